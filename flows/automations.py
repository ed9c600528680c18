"""What the Prefect server does by itself: a flow run that shows no sign of life any more is marked as crashed.

Then the dashboard offers Retry for it. A worker reports the flow runs whose processes die; this is for those whose
worker, or whole machine, died with them. `python -m flows.automations` makes the automation.
"""

from __future__ import annotations

from datetime import timedelta

from prefect import get_client
from prefect.automations import AutomationCore, EventTrigger
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import Posture

from flows.services import HEARTBEAT_SECONDS

NAME = "flow runs without a sign of life have crashed"
SILENCE_SECONDS = 2.5 * HEARTBEAT_SECONDS
"""Two signs of life may get lost, as while the server is started again."""
HEARTBEAT = "prefect.flow-run.heartbeat"
FINAL_STATES = ("Completed", "Failed", "Cancelled", "Crashed")


def crash_automation() -> AutomationCore:
    return AutomationCore(
        name=NAME,
        trigger=EventTrigger(
            posture=Posture.Proactive,
            match={"prefect.resource.id": "prefect.flow-run.*"},
            for_each={"prefect.resource.id"},
            after={HEARTBEAT},
            expect={HEARTBEAT, *(f"prefect.flow-run.{state}" for state in FINAL_STATES)},
            threshold=1,
            within=timedelta(seconds=SILENCE_SECONDS),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                message=f"no sign of life for {SILENCE_SECONDS:.0f} s: its process is gone, or its machine",
            )
        ],
    )


def apply() -> None:
    """Make the automation, unless the server has it: one made anew would have forgotten whom it waits for."""
    with get_client(sync_client=True) as client:
        if not client.read_automations_by_name(NAME):
            client.create_automation(crash_automation())


if __name__ == "__main__":
    apply()
