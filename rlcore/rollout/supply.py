"""Which prompts an iteration hands over to the scheduler: as many as have left it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rlcore.rollout.journal import State, handed_over
from rlcore.rollout.rules import Rules


@dataclass(frozen=True, slots=True)
class Supply:
    """The next prompts of a lane."""

    cursor: int
    """Prompts of the lane that were handed over before."""
    count: int


def supplies(state: State | None, iteration: int, rules: Rules) -> dict[str, Supply]:
    """By lane, what an iteration hands over: afterwards as many prompts are queued or live as the lane may hold.

    Args:
        state: of the scheduler when the batch before had been taken; None where no file says.

    Raises:
        StoreError: it cannot be known.
    """
    before = handed_over(state, iteration, rules)
    still = Counter(each.lane for each in state.open) if state else Counter()
    return {name: Supply(before[name], max(0, lane.population - still[name])) for name, lane in rules.lanes.items()}
