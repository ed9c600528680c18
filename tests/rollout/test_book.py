"""The rules of the scheduler, step by step."""

from __future__ import annotations

import pytest

from rlcore.rollout.book import Book, OutOfOrder, RejectionBudgetSpent
from rlcore.rollout.groups import Group, Response
from rlcore.rollout.rules import Lane, Rules
from tests.rollout.prompts import RIGHT, WRONG, finish, generation, hand_over, names, start_all


def book_of(lane: Lane, async_ratio: float = 0.0, restart_interrupted: bool = False) -> Book:
    """Accepts groups with a reward above 0."""
    return Book(Rules({"all": lane}, async_ratio, restart_interrupted), lambda group: any(group.rewards))


def by_prompt(responses: list[Response]) -> dict[str, list[Response]]:
    """Those of each prompt."""
    found: dict[str, list[Response]] = {}
    for response in responses:
        found.setdefault(response.group.prompt.prompt_id, []).append(response)
    return found


def taken(book: Book) -> list[Group]:
    assert book.taken is not None
    return book.taken.groups


def test_as_many_prompts_are_live_as_the_batch_needs_and_extra_ones_and_those_that_run_ahead() -> None:
    book = book_of(Lane(groups=2, ahead=1, extra=1, reserve=3), async_ratio=0.5)
    hand_over(book, *"abcdefg")
    assert list(by_prompt(start_all(book))) == ["a"]
    book.begin(1)
    assert list(by_prompt(start_all(book))) == ["b", "c", "d"]
    assert book.remaining() == {"all": 7}


def test_a_batch_is_ready_with_its_prompts_complete_and_not_before() -> None:
    book = book_of(Lane(groups=2))
    hand_over(book, *"ab")
    book.begin(1)
    *most, last = start_all(book)
    finish(book, *most)
    assert not book.is_ready()
    finish(book, last)
    assert book.is_ready()
    book.take()
    assert names(taken(book)) == ["a", "b"]
    assert not book.is_ready()


def test_a_lane_cannot_fill_the_place_of_another() -> None:
    book = Book(Rules({"easy": Lane(1, extra=2), "hard": Lane(1)}), lambda group: True)
    hand_over(book, *"abc", lane="easy")
    hand_over(book, "d", lane="hard")
    book.begin(1)
    started = by_prompt(start_all(book))
    for name in "abc":
        finish(book, *started[name])
    assert not book.is_ready()
    finish(book, *started["d"])
    assert book.is_ready()
    book.take()
    assert names(taken(book)) == ["a", "d"]


def test_the_oldest_versions_go_first() -> None:
    book = book_of(Lane(groups=1, ahead=2), async_ratio=2.0)
    hand_over(book, *"abc")
    book.begin(1)
    old = by_prompt(start_all(book))
    finish(book, *old["a"])
    book.take()
    book.lost(old["b"][0], 0)
    book.advance(1)
    finish(book, *old["c"], *start_all(book))
    book.begin(2)
    finish(book, old["b"][1])
    book.take()
    # b is before c, but one response of each is of version 0, so that their places decide.
    assert names(taken(book)) == ["b"]
    hand_over(book, "d")
    book.advance(2)
    book.begin(3)
    finish(book, *start_all(book))
    book.take()
    assert names(taken(book)) == ["c"]


def test_a_batch_waits_for_what_was_passed_over_too_often_and_takes_it_first() -> None:
    book = book_of(Lane(groups=1, ahead=2), async_ratio=2.0)
    hand_over(book, *"abc")
    book.begin(1)
    started = by_prompt(start_all(book))
    finish(book, *started["b"], *started["c"])
    book.take()
    slow = started["a"][0].group
    # Of c nobody is ahead: it is younger than b.
    assert slow.passed_over == 1 and started["c"][0].group.passed_over == 0
    slow.passed_over = book.rules.patience
    for response in slow.responses:
        book.lost(response, 0)
    book.advance(1)
    book.begin(2)
    assert not book.is_ready()
    finish(book, *start_all(book))
    assert slow.version > started["c"][0].group.version
    assert book.is_ready()
    book.take()
    assert names(taken(book)) == ["a"]


def test_what_the_batch_did_not_need_goes_back_to_the_front_and_may_run_ahead() -> None:
    book = book_of(Lane(groups=1, ahead=1, extra=2), async_ratio=1.0)
    hand_over(book, *"abcdef")
    book.begin(1)
    started = by_prompt(start_all(book))
    finish(book, *started["b"], started["c"][0], tokens=5)
    aborted = book.take()
    assert names(taken(book)) == ["b"]
    # c has a response that is graded: it stays, and goes on.
    assert set(aborted) == {response_id for name in "ad" for response_id in (f"{name}#0.1", f"{name}#1.1")}
    assert start_all(book) == []
    finish(book, started["c"][1])
    book.advance(1)
    book.begin(2)
    assert list(by_prompt(start_all(book))) == ["a", "d", "e"]


def test_a_complete_group_that_no_batch_needed_is_waste_where_nothing_may_run_ahead() -> None:
    book = book_of(Lane(groups=1, extra=1))
    hand_over(book, *"ab")
    book.begin(1)
    finish(book, *start_all(book), tokens=5)
    assert book.take() == []
    assert book.taken is not None
    assert names(book.taken.groups) == ["a"]
    assert book.taken.waste == {"surplus": 10}


@pytest.mark.parametrize(("async_ratio", "kept_for"), [(0.0, 0), (0.5, 1), (1.0, 1), (1.5, 2), (2.0, 2)])
def test_a_response_is_started_anew_when_it_is_older_than_the_ratio_rounded_up(
    async_ratio: float, kept_for: int
) -> None:
    book = book_of(Lane(groups=1, ahead=1), async_ratio)
    hand_over(book, "a")
    finished, running = start_all(book)
    finish(book, finished, tokens=7)
    run_id = running.run_id
    for version in range(1, kept_for + 1):
        assert book.advance(version) == []
    assert book.advance(kept_for + 1) == [run_id]
    assert book.waste == {"stale": 7}
    book.given_up(running, 4)
    assert book.waste == {"stale": 11}
    assert [response.version for response in start_all(book)] == [kept_for + 1] * 2


def test_what_runs_while_the_weights_change_is_started_anew_if_that_is_asked_for() -> None:
    book = book_of(Lane(groups=1, ahead=1), async_ratio=1.0, restart_interrupted=True)
    hand_over(book, "a")
    finished, running = start_all(book)
    finish(book, finished)
    run_id = running.run_id
    assert book.advance(0) == []
    assert book.advance(1) == [run_id]
    assert start_all(book) == [running]
    assert (finished.version, running.version) == (0, 1)


def test_what_ended_while_the_weights_changed_is_started_anew_too() -> None:
    book = book_of(Lane(groups=1, ahead=1), async_ratio=1.0, restart_interrupted=True)
    hand_over(book, "a")
    response = start_all(book)[0]
    mixed = generation(response)
    mixed.policy_versions[-1] = 1
    book.generated(response, mixed)
    assert book.waste == {"interrupted": 3}
    assert book.next_response() is response


def test_a_rejected_prompt_is_replaced_and_does_not_come_back() -> None:
    book = book_of(Lane(groups=1, reserve=1))
    hand_over(book, *"ab")
    book.begin(1)
    finish(book, *start_all(book), outcome=WRONG)
    finish(book, *start_all(book))
    assert book.is_ready()
    book.take()
    assert book.taken is not None
    assert names(book.taken.groups) == ["b"]
    assert names(book.taken.rejected) == ["a"]
    assert book.taken.waste == {"rejected": 6}
    assert book.remaining() == {"all": 0}


def test_one_rejection_too_many_is_an_error_with_the_numbers_however_often_it_is_asked() -> None:
    book = book_of(Lane(groups=1, extra=1, reserve=1))
    hand_over(book, *"abc")
    book.begin(1)
    started = start_all(book)
    finish(book, *started[:2], outcome=WRONG)
    with pytest.raises(RejectionBudgetSpent, match=r"rejected 2 prompts for batch 1, and 1 is what .* reward is 0\)"):
        finish(book, *started[2:], outcome=WRONG)
    with pytest.raises(RejectionBudgetSpent, match="rejected 2 prompts for batch 1"):
        book.begin(1)


def test_the_budget_is_each_batch_s_own() -> None:
    book = book_of(Lane(groups=1, reserve=1))
    for iteration in (1, 2, 3):
        hand_over(book, f"wrong{iteration}", f"right{iteration}")
        book.begin(iteration)
        finish(book, *start_all(book), outcome=WRONG)
        finish(book, *start_all(book))
        book.take()
        book.advance(iteration)
    assert names(taken(book)) == ["right3"]


def test_a_filter_that_raises_is_asked_again_by_the_next_collection() -> None:
    asked: list[Group] = []

    def accepts(group: Group) -> bool:
        asked.append(group)
        if len(asked) == 1:
            raise ZeroDivisionError
        return True

    book = Book(Rules({"all": Lane(1)}), accepts)
    hand_over(book, "a")
    book.begin(1)
    first, last = start_all(book)
    finish(book, first)
    with pytest.raises(ZeroDivisionError):
        finish(book, last)
    assert not book.is_ready()
    book.begin(1)
    assert book.is_ready()


def test_a_lost_response_waits_again_before_younger_ones_and_its_tokens_are_waste() -> None:
    book = book_of(Lane(groups=2))
    hand_over(book, *"ab")
    book.begin(1)
    first = book.next_response()
    assert first is not None
    book.start(first)
    book.lost(first, 4)
    assert book.waste == {"lost": 4}
    assert book.next_response() is first


def test_batches_and_versions_come_in_order() -> None:
    book = book_of(Lane(groups=1))
    hand_over(book, *"ab")
    with pytest.raises(OutOfOrder, match="batch 2 cannot be collected: the newest one is 0"):
        book.begin(2)
    book.begin(1)
    finish(book, *start_all(book), outcome=RIGHT)
    book.take()
    with pytest.raises(OutOfOrder, match="batch 2 is for policy version 1, but this is 0"):
        book.begin(2)
    book.advance(1)
    with pytest.raises(OutOfOrder, match="policy version 0 comes after 1"):
        book.advance(0)
    book.begin(2)


def test_a_book_of_a_later_iteration_goes_on_from_there() -> None:
    book = Book(Rules({"all": Lane(1)}), lambda group: True, version=7, iteration=7)
    hand_over(book, "a")
    with pytest.raises(OutOfOrder):
        book.begin(1)
    book.begin(8)
    assert [response.version for response in start_all(book)] == [7, 7]
