"""What became of every prompt: the rules of the rollout scheduler, without engines, clock or files.

A prompt that was handed over is in one of four places: queued; live, while its responses are generated and graded;
taken, in a batch; or rejected, by the filter. From live it goes back to the queue if a batch was complete without it.

**How far rollouts run ahead.** Iteration i trains on batch i, under the policy of version i − 1. While batch i is
collected, (1 + α)·B prompts may be live (and `extra` ones), and ⌊α·B⌋ while nothing is collected: started prompts, less
those that were rejected or sent back, are never more than (α + i)·B + extra.

**Why no sample is too old.** Claim: every response in batch i was started under a version of at least i − 1 − ⌈α⌉.
A response gets the book's version when it starts (`start`), and the engine samples no token of it under an older one,
as versions only grow. `advance(v)` resets every response of a live prompt that was started before v − ⌈α⌉, finished or
not: afterwards all that live prompts hold was started at v − ⌈α⌉ or later, and what is started next, at v. Batch i is
taken of live prompts, and only at version i − 1 (`begin` sees to that), so the claim holds. It does not depend on how
long responses take, on which of them fail, or on what the filter does. The budget above only makes such resets rare:
with B prompts taken per version, oldest first, those started up to version u are at most (α + u + 1)·B, and all of them
are in batches up to u + 1 + ⌈α⌉, unless one is passed over because it takes longer than those started later.

ROLL Flash (arXiv 2510.11345), sections 4.1 and 4.3; there the bound is on admission alone.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator

from rlcore.generation.interface import Generation, GenerationRequest
from rlcore.rewards.interface import Outcome
from rlcore.rollout.groups import Batch, Group, Prompt, Reason, Response
from rlcore.rollout.rules import Rules


class RejectionBudgetSpent(RuntimeError):
    """The filter rejected more prompts than a batch may cost."""


class OutOfOrder(ValueError):
    """A batch was asked for, or a version set, that does not come next."""


class Book:
    """All prompts that were handed over and not trained on, by their places."""

    def __init__(self, rules: Rules, accepts: Callable[[Group], bool], *, version: int = 0, iteration: int = 0) -> None:
        """
        Args:
            accepts: whether a complete group is worth training on.
            version: of the policy.
            iteration: of the newest batch that was taken.
        """
        self.rules = rules
        self.version = version
        self.iteration = iteration
        self.is_collecting = False
        self.handed_over: Counter[str] = Counter()
        """Prompts of each lane so far."""
        self.queued: dict[str, deque[Group]] = {lane: deque() for lane in rules.lanes}
        self.live: dict[int, Group] = {}
        """By number."""
        self.rejected: list[Group] = []
        """Since the newest batch was taken, as `waste`."""
        self.waste: Counter[Reason] = Counter()
        self.taken: Batch | None = None
        """The newest."""
        self._accepts = accepts
        self._live_in: Counter[str] = Counter()
        self._complete: dict[str, dict[int, Group]] = {lane: {} for lane in rules.lanes}
        """By lane and number, the live groups that the filter accepted."""
        self._waiting: list[tuple[int, int]] = []
        """A heap of responses that may wait to be started, by the group's number and the place in it."""

    def hand_over(self, lane: str, prompt: Prompt, requests: Iterable[GenerationRequest]) -> Group:
        """A new prompt, the last of its lane's queue."""
        group = Group.of(self.handed_over.total(), lane, prompt, requests)
        self.handed_over[lane] += 1
        self.queued[lane].append(group)
        self._admit()
        return group

    def recall(self, response: Response, version: int, generation: Generation, outcome: Outcome) -> None:
        """What a book before this one had of a response, which is not started here."""
        response.version, response.generation = version, generation
        if response.group.number in self.live:
            self.graded(response, outcome)
        else:
            response.outcome = outcome

    def begin(self, iteration: int) -> None:
        """Batch `iteration` is collected from now on.

        Raises:
            OutOfOrder: it is not the next one, or the policy is not the one that will train on it.
            RejectionBudgetSpent: too many prompts were rejected for it already.
        """
        if iteration != self.iteration + 1:
            raise OutOfOrder(f"batch {iteration} cannot be collected: the newest one is {self.iteration}")
        if self.version != iteration - 1:
            raise OutOfOrder(f"batch {iteration} is for policy version {iteration - 1}, but this is {self.version}")
        self.is_collecting = True
        for lane in self.rules.lanes:
            self._check_budget(lane)
        for group in list(self.live.values()):
            # The filter, or what was told of the response, raised.
            if group.is_complete and group.number not in self._complete[group.lane]:
                self._completed(group)
        self._admit()

    def next_response(self) -> Response | None:
        """The one to start next: of the oldest live prompt that has one to start."""
        while self._waiting:
            number, index = self._waiting[0]
            group = self.live.get(number)
            if group is not None and (response := group.responses[index]).version is None:
                return response
            heapq.heappop(self._waiting)
        return None

    def start(self, response: Response) -> None:
        """It runs from now on, under the present version."""
        response.version = self.version
        response.attempt += 1

    def generated(self, response: Response, generation: Generation) -> None:
        response.generation = generation
        # Engines have new weights a while before `advance` is told.
        if self.rules.restart_interrupted and any(v != response.version for v in generation.policy_versions):
            self._reset(response, "interrupted")

    def graded(self, response: Response, outcome: Outcome) -> None:
        """Takes a complete group to the filter.

        Raises:
            RejectionBudgetSpent: that was one rejection too many.
        """
        response.outcome = outcome
        if response.group.is_complete:
            self._completed(response.group)

    def lost(self, response: Response, tokens: int) -> None:
        """What it was running on is gone, or let go of it after so many tokens: it waits again."""
        self._reset(response, "lost")
        self.given_up(response, tokens)

    def given_up(self, response: Response, tokens: int) -> None:
        """So many tokens came back of an attempt that was in vain."""
        self.waste[response.reset_for] += tokens

    def advance(self, version: int) -> list[str]:
        """The policy is of this version from now on; the run_ids of the responses that are to be aborted.

        Raises:
            OutOfOrder: it is older than the present one.
        """
        if version < self.version:
            raise OutOfOrder(f"policy version {version} comes after {self.version}")
        interrupts = self.rules.restart_interrupted and version > self.version
        self.version = version
        aborted = []
        for response in self.responses():
            if response.version is None:
                continue
            is_stale = response.version < self._oldest
            if is_stale or (interrupts and response.is_running):
                if response.is_running:
                    aborted.append(response.run_id)
                self._reset(response, "stale" if is_stale else "interrupted")
        return aborted

    def is_ready(self) -> bool:
        """Whether the batch that is collected is complete."""
        return self.is_collecting and all(
            len(self._complete[name]) >= lane.groups
            and all(group.number in self._complete[name] for group in self._overdue(name)[: lane.groups])
            for name, lane in self.rules.lanes.items()
        )

    def take(self, prompt_ids: Container[str] | None = None) -> list[str]:
        """Make `taken` the batch that is ready; the run_ids that are to be aborted.

        Prompts that were passed over too often go first, then those with the oldest versions. What is live beyond what
        may run ahead goes back to the queue.

        Args:
            prompt_ids: the batch consists of these.
        """
        groups: list[Group] = []
        for name, lane in self.rules.lanes.items():
            complete = self._complete[name].values()
            groups += (
                sorted(complete, key=self._turn)[: lane.groups]
                if prompt_ids is None
                else [group for group in complete if group.prompt.prompt_id in prompt_ids]
            )
        for group in groups:
            self._remove(group)
        youngest = {group.lane: group.number for group in sorted(groups, key=_number)}
        for group in self.live.values():
            group.passed_over += group.number < youngest.get(group.lane, 0)
        aborted = [run_id for name in self.rules.lanes for run_id in self._send_back(name)]
        self.iteration += 1
        self.is_collecting = False
        self.taken = Batch(self.iteration, sorted(groups, key=_number), self.rejected, self.waste)
        self.rejected, self.waste = [], Counter()
        return aborted

    def remaining(self) -> dict[str, int]:
        """By lane, the prompts that are queued or live."""
        return {name: len(self.queued[name]) + self._live_in[name] for name in self.rules.lanes}

    @property
    def _oldest(self) -> int:
        """The version that a response must have been started under to be trained on now."""
        return self.version - self.rules.staleness_bound

    def complete(self) -> int:
        """Live prompts that could be taken."""
        return sum(map(len, self._complete.values()))

    def waiting(self) -> int:
        """Responses of live prompts that are not started."""
        return sum(response.version is None for response in self.responses())

    def groups(self) -> Iterator[Group]:
        """Everything in the book."""
        for queue in self.queued.values():
            yield from queue
        yield from self.live.values()
        yield from self.rejected
        if self.taken is not None:
            yield from self.taken.groups
            yield from self.taken.rejected

    def responses(self) -> Iterator[Response]:
        """Of all live prompts."""
        for group in self.live.values():
            yield from group.responses

    def _admit(self) -> None:
        for name, lane in self.rules.lanes.items():
            allowed = lane.ahead + (lane.groups + lane.extra if self.is_collecting else 0)
            while self.queued[name] and self._live_in[name] < allowed:
                self._make_live(self.queued[name].popleft())

    def _make_live(self, group: Group) -> None:
        self.live[group.number] = group
        self._live_in[group.lane] += 1
        for response in group.responses:
            # What was recalled may have become too old in the queue.
            if response.version is not None and response.version < self._oldest:
                self._reset(response, "stale")
            heapq.heappush(self._waiting, (group.number, response.index))
        if group.is_complete:
            self._completed(group)

    def _completed(self, group: Group) -> None:
        if self._accepts(group):
            self._complete[group.lane][group.number] = group
            return
        self._remove(group)
        self.rejected.append(group)
        self.waste["rejected"] += group.tokens
        self._admit()
        self._check_budget(group.lane)

    def _overdue(self, lane: str) -> list[Group]:
        """Live prompts that were passed over often enough, the oldest first."""
        late = [group for group in self.live.values() if group.passed_over >= self.rules.patience]
        return sorted((group for group in late if group.lane == lane), key=_number)

    def _turn(self, group: Group) -> tuple[int, int]:
        """Orders groups for a batch."""
        return (group.version if group.passed_over < self.rules.patience else -1), group.number

    def _remove(self, group: Group) -> None:
        del self.live[group.number]
        self._live_in[group.lane] -= 1
        self._complete[group.lane].pop(group.number, None)

    def _send_back(self, lane: str) -> list[str]:
        """Queue what is live beyond what may run ahead, first what is furthest from being complete."""
        live = sorted((group for group in self.live.values() if group.lane == lane), key=_progress)
        back = live[: max(0, len(live) - self.rules.lanes[lane].ahead)]
        aborted = []
        for group in sorted(back, key=_number, reverse=True):
            for response in group.responses:
                if response.is_running:
                    aborted.append(response.run_id)
                self._reset(response, "surplus")
            self._remove(group)
            self.queued[lane].appendleft(group)
        return aborted

    def _reset(self, response: Response, reason: Reason) -> None:
        self.waste[reason] += response.tokens
        response.reset(reason)
        group = response.group
        self._complete[group.lane].pop(group.number, None)
        heapq.heappush(self._waiting, (group.number, response.index))

    def _check_budget(self, lane: str) -> None:
        rejected = [group for group in self.rejected if group.lane == lane]
        budget = self.rules.lanes[lane].reserve
        if len(rejected) > budget:
            rewards = [reward for group in rejected for reward in group.rewards]
            mean = f"their mean reward is {sum(rewards) / len(rewards):.3g}" if rewards else "none of them was scored"
            raise RejectionBudgetSpent(
                f"the filter rejected {len(rejected)} prompts for batch {self.iteration + 1}, and {budget} is what "
                f"rollout.filter.max_rejected_prompts allows ({mean}): widen rollout.filter, raise the budget, or give "
                "prompts that are neither too hard nor too easy"
            )


def _number(group: Group) -> int:
    return group.number


def _progress(group: Group) -> tuple[int, int]:
    return sum(response.outcome is not None for response in group.responses), -group.number
