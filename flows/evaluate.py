"""The flow `evaluate`: the held-out prompts, answered by a run's policy."""

from __future__ import annotations

from prefect import flow

from flows.publish import publish
from flows.runs import open_iteration
from flows.runtime import flow_run_name, stage_runner
from rlcore.store import StoreError
from tasks import stages
from tasks.stage import await_stages


@flow(name="evaluate", task_runner=stage_runner(), flow_run_name=flow_run_name)
async def evaluate(config: str = "arithmetic", overrides: list[str] | None = None, iteration: int = 0) -> None:
    """Evaluate the policy after `iteration`; 0 is the model before training.

    Raises:
        StoreError: the run has no such policy.
    """
    with open_iteration(config, overrides or [], iteration) as it:
        synced = it.store.find(iteration, "sync")
        if iteration > 0 and synced is None:
            raise StoreError(f"{it.store.url} has no policy of iteration {iteration}: its sync is not in the ledger")
        evaluated = stages.evaluate.submit(it, synced=synced.output if synced else None)
        await await_stages(it, evaluated)
        if iteration == 0:
            await publish(it)
