"""Rows to trees, and trees to ranks and micro-batches."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from rlcore.trainer.packing import Packed, RowLengths, Tree, deal, fill_micro_batches, grow_trees, pack

BATCH = pl.DataFrame(
    {
        "prompt_ids": [[1, 2, 3], [4], [1, 2, 3], [1, 2]],
        "response_ids": [[5, 6], [7, 8, 9], [1], [2, 2]],
    }
)


@st.composite
def row_lengths(draw: st.DrawFn) -> RowLengths:
    prompts = draw(st.lists(st.integers(1, 20), min_size=1, max_size=6))
    prompt_of = draw(st.lists(st.integers(0, len(prompts) - 1), min_size=1, max_size=30))
    responses = [draw(st.integers(1, 30)) for _ in prompt_of]
    return RowLengths([prompts[prompt] for prompt in prompt_of], responses, prompt_of)


def tokens(tree: Tree, lengths: RowLengths) -> int:
    return lengths.prompts[tree.rows[0]] + sum(lengths.responses[row] - 1 for row in tree.rows)


def test_lengths_are_of_prompt_and_response_and_equal_prompts_have_one_number() -> None:
    lengths = RowLengths.of(BATCH)
    assert lengths == RowLengths([3, 1, 3, 2], [2, 3, 1, 2], [0, 1, 0, 2])
    assert lengths.total([0, 1]) == 9


def test_eight_responses_of_24_tokens_on_a_prompt_of_40_are_224_positions() -> None:
    """Of 512 in rows of their own. The last token of each response is not read."""
    lengths = RowLengths([40] * 8, [24] * 8, [0] * 8)
    [tree] = grow_trees(range(8), lengths, share_prompts=True, limit=512)
    assert tree == Tree(tuple(range(8)), 40 + 8 * 23)


@given(row_lengths(), st.booleans(), st.integers(1, 100))
def test_trees_hold_every_row_once_with_its_prompt_within_the_limit(
    lengths: RowLengths, share: bool, limit: int
) -> None:
    rows = range(len(lengths.prompts))
    trees = grow_trees(rows, lengths, share_prompts=share, limit=limit)
    assert sorted(row for tree in trees for row in tree.rows) == list(rows)
    for tree in trees:
        assert len({lengths.prompt_of[row] for row in tree.rows}) == 1
        assert tree.tokens == tokens(tree, lengths)
        assert len(tree.rows) == 1 or (share and tree.tokens <= limit)


@given(row_lengths(), st.integers(1, 5), st.integers(1, 100), st.booleans())
def test_all_ranks_together_hold_every_row_once_in_micro_batches_within_the_budget(
    lengths: RowLengths, ranks: int, budget: int, share: bool
) -> None:
    rows = range(len(lengths.prompts))
    packed = [pack(rows, lengths, share_prompts=share, budget=budget, rank=rank, ranks=ranks) for rank in range(ranks)]
    held = [row for parts in packed for part in parts for tree in part.trees for row in tree.rows]
    assert sorted(held) == list(rows)
    for part in (part for parts in packed for part in parts):
        assert part.counts
        assert len(part.trees) == 1 or sum(tree.tokens for tree in part.trees) <= budget


@given(row_lengths(), st.integers(1, 5), st.integers(1, 100), st.integers(1, 3))
def test_where_ranks_need_equal_numbers_the_missing_micro_batches_do_not_count(
    lengths: RowLengths, ranks: int, budget: int, number_of: int
) -> None:
    def packed(rank: int, number_of: int | None) -> list[Packed]:
        rows = range(len(lengths.prompts))
        return pack(rows, lengths, share_prompts=True, budget=budget, rank=rank, ranks=ranks, number_of=number_of)

    filled = [packed(rank, number_of) for rank in range(ranks)]
    assert len({len(parts) for parts in filled}) == 1
    assert len(filled[0]) % number_of == 0
    assert [[part for part in parts if part.counts] for parts in filled] == [
        packed(rank, None) for rank in range(ranks)
    ]


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 5))
def test_no_rank_has_more_than_its_share_and_one_tree(sizes: list[int], ranks: int) -> None:
    dealt = deal([Tree((row,), size) for row, size in enumerate(sizes)], ranks)
    loads = [sum(tree.tokens for tree in trees) for trees in dealt]
    assert sum(loads) == sum(sizes)
    assert max(loads) <= sum(sizes) / ranks + max(sizes, default=0)


def test_a_batch_of_one_prompt_is_divided_among_the_ranks() -> None:
    lengths = RowLengths([10] * 8, [21] * 8, [0] * 8)
    packed = [pack(range(8), lengths, share_prompts=True, budget=1000, rank=rank, ranks=2) for rank in range(2)]
    rows = [[tree.rows for part in parts for tree in part.trees] for parts in packed]
    assert rows == [[(0, 1, 2, 3, 4)], [(5, 6, 7)]]


def test_no_rows_are_no_micro_batches_also_where_numbers_must_be_equal() -> None:
    assert pack([], RowLengths([], [], []), share_prompts=True, budget=9, rank=0, ranks=2, number_of=2) == []


def test_micro_batches_take_the_largest_first_and_fill_up() -> None:
    trees = [Tree((row,), size) for row, size in enumerate([30, 5, 31, 6, 100])]
    filled = fill_micro_batches(trees, budget=62)
    assert [[tree.tokens for tree in micro] for micro in filled] == [[100], [31, 30], [6, 5]]
