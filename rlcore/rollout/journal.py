"""What the scheduler must not forget, in files: `RUN/iterations/<i>/journal.jsonl`.

The first line is the book when batch i − 1 had been taken; the lines after it are what happened until batch i was: one
for each response that was graded, and one for the batch. A scheduler that died is made anew from them; only what was
running or being graded starts again. When batch i + 1 is taken, the file of batch i is cut to its first line: that is
what a fork goes on from.

The responses of a file that was written under another configuration count no more; its prompts do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from rlcore.generation.interface import Generation, GenerationRequest
from rlcore.rewards.interface import Outcome
from rlcore.rollout.book import Book
from rlcore.rollout.groups import Group, Prompt, Response
from rlcore.rollout.rules import Rules
from rlcore.store import RunStore, StoreError, iteration_path


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Graded(_Line):
    """A response that was generated and graded."""

    kind: Literal["graded"] = "graded"
    version: int
    """Of the policy when it was started."""
    request_id: str
    generation: Generation
    outcome: Outcome

    @classmethod
    def of(cls, response: Response) -> Graded:
        assert response.version is not None and response.generation is not None and response.outcome is not None
        return cls(
            version=response.version,
            request_id=response.request.request_id,
            generation=response.generation,
            outcome=response.outcome,
        )


class Open(_Line):
    """A prompt that is queued or live, with what was graded of it."""

    lane: str
    prompt: Prompt
    requests: list[GenerationRequest]
    graded: list[Graded]
    passed_over: int
    """Batches that were complete without it."""


class State(_Line):
    """The book, after a batch was taken."""

    kind: Literal["state"] = "state"
    settings: str
    """Digest of the configuration that the responses depend on."""
    version: int
    handed_over: dict[str, int]
    """By lane, the prompts since the start of the run."""
    open: list[Open]
    """In the order in which they were handed over."""


class Taken(_Line):
    """The batch was taken."""

    kind: Literal["taken"] = "taken"
    prompt_ids: list[str]


Line = State | Graded | Taken
JOURNAL_FILE = "journal.jsonl"
_LINE: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="kind")])


class Journal:
    """The journal of a run, as one scheduler writes it."""

    def __init__(self, store: RunStore, settings: str) -> None:
        """
        Args:
            settings: digest of the configuration that the responses depend on.
        """
        self._store = store
        self._settings = settings

    def begin(self, iteration: int, book: Book) -> None:
        """Start an iteration's file: the book is what it is after the batch before."""
        groups = [*book.live.values(), *(group for queue in book.queued.values() for group in queue)]
        state = State(
            settings=self._settings,
            version=book.version,
            handed_over=dict(book.handed_over),
            open=[
                Open(
                    lane=group.lane,
                    prompt=group.prompt,
                    requests=[response.request for response in group.responses],
                    graded=[Graded.of(response) for response in group.responses if response.outcome is not None],
                    passed_over=group.passed_over,
                )
                for group in sorted(groups, key=lambda group: group.number)
            ],
        )
        self._replace(iteration, state)

    def graded(self, iteration: int, response: Response) -> None:
        """It outlives this process when this returns, but perhaps not the machine."""
        self._store.append_line(_path(iteration), Graded.of(response).model_dump_json(), sync=False)

    def taken(self, iteration: int, prompt_ids: list[str]) -> None:
        """The iteration's batch consists of these. It outlives the machine when this returns."""
        self._store.append_line(_path(iteration), Taken(prompt_ids=prompt_ids).model_dump_json())

    def retire(self, iteration: int) -> None:
        """Cut an iteration's file, if there is one, to its first line."""
        state = read_state(self._store, iteration)
        if state is not None:
            self._replace(iteration, state)

    def restore(self, iteration: int, rules: Rules, accepts: Callable[[Group], bool]) -> Book:
        """The book as it was when the batch before `iteration` had been taken.

        Where that was written under another configuration, the file is begun anew.

        Raises:
            StoreError: as `handed_over`.
        """
        state = read_state(self._store, iteration)
        book = Book(rules, accepts, version=state.version if state else iteration - 1, iteration=iteration - 1)
        counts = state is not None and state.settings == self._settings
        for each in state.open if state else []:
            group = book.hand_over(each.lane, each.prompt, each.requests)
            group.passed_over = each.passed_over
            if counts:
                recall(book, group, {line.request_id: line for line in each.graded})
        book.handed_over = Counter(handed_over(state, iteration, rules))
        if not counts:
            self.begin(iteration, book)
        return book

    def since(self, iteration: int) -> tuple[dict[str, Graded], list[str] | None]:
        """What was graded since the start of an iteration's file, by request_id, and the batch, if it was taken."""
        lines = list(_lines(self._store, iteration))
        if not lines or not isinstance(lines[0], State) or lines[0].settings != self._settings:
            return {}, None
        taken = next((line.prompt_ids for line in lines if isinstance(line, Taken)), None)
        return {line.request_id: line for line in lines if isinstance(line, Graded)}, taken

    def _replace(self, iteration: int, state: State) -> None:
        self._store.write_bytes(_path(iteration), state.model_dump_json().encode() + b"\n")


def copy_state(origin: RunStore, target: RunStore, iteration: int) -> None:
    """Give another run the scheduler's state from which an iteration begins, if a file has it.

    Raises:
        StoreError: the file cannot be read.
    """
    state = read_state(origin, iteration)
    if state is not None:
        target.write_bytes(_path(iteration), state.model_dump_json().encode() + b"\n")


def handed_over(state: State | None, iteration: int, rules: Rules) -> dict[str, int]:
    """By lane, the prompts that were handed over before an iteration.

    Raises:
        StoreError: it cannot be known.
    """
    if state is None:
        if iteration > 1 and any(lane.population != lane.groups for lane in rules.lanes.values()):
            raise StoreError(
                f"no journal says which prompts were under way when iteration {iteration} began: fork the run from a "
                "checkpoint (rlvr fork), or go on without rollout.async_ratio, extra_prompts and filter"
            )
        return {name: (iteration - 1) * lane.groups for name, lane in rules.lanes.items()}
    if state.handed_over.keys() - rules.lanes.keys():
        raise StoreError(
            f"the prompts before iteration {iteration} were drawn for {', '.join(sorted(state.handed_over))}, but now "
            f"they are drawn for {', '.join(sorted(rules.lanes))}: rollout.domain_quotas and the domains of "
            "data.domain_interleave_probs stay as they are for the whole run"
        )
    return {name: state.handed_over.get(name, 0) for name in rules.lanes}


def recall(book: Book, group: Group, graded: dict[str, Graded]) -> None:
    """Give a group what was graded of it."""
    for response in group.responses:
        if line := graded.get(response.request.request_id):
            book.recall(response, line.version, line.generation, line.outcome)


def read_state(store: RunStore, iteration: int) -> State | None:
    """The book when the batch before an iteration's had been taken; None where no file says.

    Raises:
        StoreError: the file cannot be read.
    """
    first = next(_lines(store, iteration), None)
    if first is not None and not isinstance(first, State):
        raise StoreError(f"{store.url}/{_path(iteration)} does not begin with the state that it goes on from")
    return first


def _path(iteration: int) -> str:
    return f"{iteration_path(iteration)}/{JOURNAL_FILE}"


def parse_line(line: bytes) -> Line:
    """
    Raises:
        ValueError: it is none.
    """
    return _LINE.validate_json(line)


def _lines(store: RunStore, iteration: int) -> Iterator[Line]:
    """Half a last line, left by a crash, is not one.

    Raises:
        StoreError: a line cannot be read.
    """
    if not store.exists(_path(iteration)):
        return
    for number, line in enumerate(store.read_bytes(_path(iteration)).split(b"\n")[:-1], start=1):
        try:
            yield parse_line(line)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise StoreError(f"{store.url}/{_path(iteration)}:{number} is no line of a journal ({what})") from None
