"""What a response pays for its form: 0 or less, added to its reward."""

from __future__ import annotations

import polars as pl

from rlcore.shaping.settings import LengthPenalty, OverlongPenalty, RepetitionPenalty

ID_RANGE = 1 << 32
"""Above any token id and any number of tokens in a batch: two of either fit into one 64-bit key."""


def overlong_penalty(length: pl.Expr, response_length: int, config: OverlongPenalty) -> pl.Expr:
    """0 up to L_max − L_cache tokens, then linearly down to −factor at L_max.

    DAPO (Yu et al.), arXiv 2503.14476, equation 13, times `factor`; L_max is `response_length`.

    Raises:
        ValueError: the buffer is longer than a response can be.
    """
    if config.buffer_length > response_length:
        raise ValueError(
            f"overlong.buffer_length is {config.buffer_length}, but rollout.response_length only {response_length}: "
            "the penalty would start below 0 tokens"
        )
    beyond = _beyond(length, response_length - config.buffer_length)
    return 0.0 - config.factor * (beyond / config.buffer_length).clip(upper_bound=1.0)


def length_penalty(length: pl.Expr, config: LengthPenalty) -> pl.Expr:
    """−coefficient · max(0, |y| − free_length).

    Aggarwal and Welleck (L1), arXiv 2503.04697, equation 1, in its one-sided form: a shorter response pays nothing.
    """
    return 0.0 - config.coefficient * _beyond(length, config.free_length)


def repetition_penalty(response_ids: pl.Series, config: RepetitionPenalty) -> pl.Series:
    """−coefficient · share of repeated n-grams, Float64.

    After Yeo et al., arXiv 2502.03373, appendix C.2, which charges the tokens of each repetition; here the response as
    a whole pays for their share, since one reward per response is what is shaped.
    """
    return 0.0 - config.coefficient * repeated_ngram_share(response_ids, config.ngram_size)


def repeated_ngram_share(response_ids: pl.Series, ngram_size: int) -> pl.Series:
    """1 − (different n-grams) / (all n-grams) of each response, Float64; 0 if it is shorter than one n-gram.

    Exact, by prefix doubling: the 2k-gram at a place is the pair of the k-grams at it and k further on. Each round
    numbers the pairs of all responses at once, so the cost is O(tokens · log(tokens) · log(ngram_size)).
    """
    rows = pl.DataFrame({"row": pl.int_range(len(response_ids), eager=True), "token": response_ids.rename("token")})
    tokens = rows.explode("token", empty_as_null=False).with_columns(
        left=pl.int_range(pl.len(), 0, -1).over("row"), number=pl.col("token").cast(pl.Int64)
    )
    size = 1
    while size < ngram_size:
        # The last round's halves overlap unless ngram_size is a power of 2.
        step = min(size, ngram_size - size)
        # Where the second half is of the next response there is no n-gram, and the number is not used.
        second = pl.col("number").shift(-step, fill_value=0)
        tokens = tokens.with_columns(number=(pl.col("number") * ID_RANGE + second).rank("dense").cast(pl.Int64))
        size += step
    counts = (
        tokens.filter(pl.col("left") >= ngram_size)
        .group_by("row")
        .agg(share=1.0 - pl.col("number").n_unique() / pl.len())
    )
    return rows.join(counts, on="row", how="left", maintain_order="left")["share"].fill_null(0.0)


def _beyond(length: pl.Expr, free: int) -> pl.Expr:
    # List lengths are unsigned.
    return (length.cast(pl.Int64) - free).clip(lower_bound=0)
