"""Penalties by their equations."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.shaping.penalties import repeated_ngram_share
from rlcore.shaping.settings import LengthPenalty, OverlongPenalty, RepetitionPenalty, ShapingConfig
from tests.shaping.responses import RESPONSE_LENGTH, Response, shaped


def of_lengths(config: ShapingConfig, *lengths: int) -> pl.DataFrame:
    frame, _ = shaped([Response("a", 1.0, tokens=tuple(range(length))) for length in lengths], config)
    return frame


def test_the_overlong_penalty_is_a_slope_over_the_last_tokens() -> None:
    # L_max 10, L_cache 4, factor 2: free up to 6 tokens, then −2·(|y| − 6)/4, and no more than −2.
    config = ShapingConfig(overlong=OverlongPenalty(buffer_length=4, factor=2.0))
    frame = of_lengths(config, 0, 6, 7, 9, 10, 12)
    assert frame["overlong_penalty"].to_list() == [0.0, 0.0, -0.5, -1.5, -2.0, -2.0]
    assert frame["shaped_reward"].to_list() == [1.0, 1.0, 0.5, -0.5, -1.0, -1.0]


def test_a_buffer_longer_than_a_response_is_refused() -> None:
    config = ShapingConfig(overlong=OverlongPenalty(buffer_length=RESPONSE_LENGTH + 1))
    with pytest.raises(ValueError, match=r"overlong\.buffer_length is 11, but rollout\.response_length only 10"):
        of_lengths(config, 3)


def test_the_length_penalty_charges_each_token_beyond_the_free_ones() -> None:
    config = ShapingConfig(length=LengthPenalty(coefficient=0.25, free_length=4))
    assert of_lengths(config, 0, 4, 5, 8)["length_penalty"].to_list() == [0.0, 0.0, -0.25, -1.0]


def test_the_repetition_penalty_is_the_share_of_ngrams_that_came_before() -> None:
    # (1 2)(2 1)(1 2)(2 1)(1 2): 5 bigrams, 2 different: 3/5 repeat.
    config = ShapingConfig(repetition=RepetitionPenalty(ngram_size=2, coefficient=0.5))
    frame, _ = shaped([Response("a", 1.0, tokens=(1, 2, 1, 2, 1, 2))], config)
    assert frame["repetition_penalty"].to_list() == [pytest.approx(-0.3)]
    assert frame["shaped_reward"].to_list() == [pytest.approx(0.7)]


@pytest.mark.parametrize(
    ("size", "share"),
    # Of 1 2 3 1 2 3 9 repeat 3 of 7 tokens, 2 of 6 pairs (12 and 23), 1 of 5 triples (123), no longer n-gram.
    [(1, 3 / 7), (2, 2 / 6), (3, 1 / 5), (4, 0.0), (7, 0.0), (8, 0.0)],
)
def test_repeated_ngrams_by_hand(size: int, share: float) -> None:
    # The neighbours would make other n-grams of its ends, if these reached over.
    responses = pl.Series([[1, 2, 3], [1, 2, 3, 1, 2, 3, 9], [1, 2, 3]], dtype=pl.List(pl.Int32))
    assert repeated_ngram_share(responses, size).to_list() == [0.0, pytest.approx(share), 0.0]


@given(st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=5), st.integers(1, 9))
def test_repeated_ngrams_are_counted_as_a_set_counts_them(rows: list[list[int]], size: int) -> None:
    shares = repeated_ngram_share(pl.Series(rows, dtype=pl.List(pl.Int32)), size).to_list()
    for row, share in zip(rows, shares, strict=True):
        ngrams = [tuple(row[i : i + size]) for i in range(len(row) - size + 1)]
        assert share == pytest.approx(1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0)


def test_penalties_come_after_clip_and_scale_and_before_normalisation() -> None:
    # Clip 5 to 2, times 1/2: 1; 3 tokens at 1/4 each: 1/4. The other: −1 clipped to 0, minus 1/4·1 token: −1/4.
    config = ShapingConfig(clip_low=0.0, clip_high=2.0, scale=0.5, length=LengthPenalty(coefficient=0.25))
    responses = [Response("a", 5.0, tokens=(1, 2, 3)), Response("a", -1.0, tokens=(1,))]
    assert shaped(responses, config)[0]["shaped_reward"].to_list() == [0.25, -0.25]
    centred = config.model_copy(update={"norm_mean_type": "group", "norm_std_type": "group"})
    # Mean 0, std √(2/16) = 0.35355.
    assert shaped(responses, centred)[0]["shaped_reward"].to_list() == pytest.approx([0.70711, -0.70711], abs=1e-4)


def test_a_domain_without_a_penalty_has_none() -> None:
    frame = of_lengths(ShapingConfig(), 3)
    assert frame.select("overlong_penalty", "length_penalty", "repetition_penalty").row(0) == (None, None, None)
