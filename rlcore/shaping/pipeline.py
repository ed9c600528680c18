"""Graders' rewards to shaped rewards and drop reasons: masks, then by domain clip, scale, penalties, normalisation."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from rlcore.shaping.masks import DROP_REASONS, FILTERED, drop_reason, with_history_mean
from rlcore.shaping.normalise import normalise
from rlcore.shaping.penalties import length_penalty, overlong_penalty, repetition_penalty
from rlcore.shaping.settings import MaskConfig, ShapingConfig
from rlcore.shaping.state import RunningStatistics, ShapingState

PENALTIES = ("overlong_penalty", "length_penalty", "repetition_penalty")

SHAPED_COLUMNS = ("sample_id", "domain", "raw_reward", *PENALTIES, "shaped_reward", "drop_reason")


def shape(
    rollouts: pl.DataFrame,
    rewards: pl.DataFrame,
    *,
    shaping: Mapping[str, ShapingConfig],
    masks: MaskConfig,
    state: ShapingState,
    iteration: int,
    response_length: int,
) -> tuple[pl.DataFrame, ShapingState]:
    """One iteration's rewards shaped, and the state for the next.

    Masks judge the raw rewards and see histories of earlier iterations only. Running statistics first take in this
    batch and then normalise it, as in ROLL: the first batch has some, and no batch meets those of another alone. Pure:
    the same arguments give the same results, bit for bit and in any order of the rows.

    Args:
        rollouts, rewards: RolloutBatch and RewardBatch of the same responses.
        shaping: for every domain of the rollouts.
        state: after an earlier iteration.
        iteration: of these rollouts, from 1.
        response_length: most tokens of a response, the L_max of the overlong penalty.

    Returns:
        A frame of SHAPED_COLUMNS with one row per response, in the order of the rollouts. `shaped_reward` is null
        where no baseline may use it: not scored, or in a group that was filtered. Each penalty is 0 or less, null
        where its domain has none. And the state after this iteration.

    Raises:
        ValueError: a domain has no settings, or the state has this iteration already.
    """
    if missing := sorted(set(rollouts["domain"].unique()) - set(shaping)):
        raise ValueError(f"no shaping for domain {', '.join(missing)}; there is {', '.join(sorted(shaping))}")
    if iteration <= state.iteration:
        raise ValueError(f"the shaping state is of iteration {state.iteration}, so iteration {iteration} is in it")
    # Sums in a fixed order make the state the same to the last bit, however the rollouts came in.
    responses = rollouts.select("sample_id", "prompt_id", "domain", "response_ids", "finish_reason").sort("sample_id")
    raw = rewards.select("sample_id", raw_reward="reward")
    responses = responses.join(raw, on="sample_id", how="left", maintain_order="left")
    if masks.history is not None:
        responses = with_history_mean(responses, state.histories, masks.history, iteration)
    responses = responses.with_columns(drop_reason=drop_reason(masks))

    parts, running = [], dict(state.running)
    for (domain,), part in responses.group_by("domain", maintain_order=True):
        shaped, statistics = shape_domain(part, shaping[domain], running.get(domain), response_length)
        parts.append(shaped.select(SHAPED_COLUMNS))
        if statistics is not None:
            running[domain] = statistics
    shaped = rollouts.select("sample_id").join(pl.concat(parts), on="sample_id", how="left", maintain_order="left")

    histories = state.histories.extended(responses, iteration) if masks.history is not None else state.histories
    return shaped, ShapingState(iteration=iteration, running=running, histories=histories)


def shape_domain(
    responses: pl.DataFrame, config: ShapingConfig, running: RunningStatistics | None, response_length: int
) -> tuple[pl.DataFrame, RunningStatistics | None]:
    """The responses of one domain with the columns of PENALTIES and shaped_reward.

    Also the running statistics with them included; None unless the domain is normalised by them.

    Args:
        responses: columns prompt_id, response_ids, raw_reward (null: not scored), drop_reason.
        running: of the iterations before; None: there were none.
    """
    responses = responses.with_columns(**_penalties(responses["response_ids"], config, response_length))
    value = pl.col("raw_reward").clip(config.clip_low, config.clip_high) * config.scale
    value += pl.sum_horizontal(pl.col(PENALTIES))
    filtered = pl.col("drop_reason").is_in(FILTERED).fill_null(False)
    responses = responses.with_columns(value=pl.when(~filtered).then(value))
    if config.uses_running_statistics:
        running = (running or RunningStatistics()).merged(RunningStatistics.of(responses["value"]))
    else:
        running = None
    shaped = normalise(pl.col("value"), "prompt_id", config.norm_mean_type, config.norm_std_type, running)
    return responses.with_columns(shaped_reward=shaped), running


def shaping_metrics(shaped: pl.DataFrame) -> dict[str, float]:
    """Numbers of a frame with SHAPED_COLUMNS; one that does not exist is absent.

    shaping/<domain>/shaped_reward, /<penalty>   mean over the responses that were scored
    shaping/<domain>/dropped/<reason>            responses
    """
    metrics: dict[str, float] = {}
    for (domain,), rows in shaped.sort("domain").group_by("domain", maintain_order=True):
        scored = rows.drop_nulls("raw_reward")
        means = scored.select(pl.col("shaped_reward", *PENALTIES).mean()).row(0, named=True)
        metrics |= {f"shaping/{domain}/{name}": mean for name, mean in means.items() if mean is not None}
        counts = dict(rows["drop_reason"].value_counts().iter_rows())
        metrics |= {f"shaping/{domain}/dropped/{reason}": float(counts.get(reason, 0)) for reason in DROP_REASONS}
    return metrics


def _penalties(response_ids: pl.Series, config: ShapingConfig, response_length: int) -> dict[str, pl.Expr | pl.Series]:
    length, none = pl.col("response_ids").list.len(), pl.lit(None, dtype=pl.Float64)
    return {
        "overlong_penalty": overlong_penalty(length, response_length, config.overlong) if config.overlong else none,
        "length_penalty": length_penalty(length, config.length) if config.length else none,
        "repetition_penalty": repetition_penalty(response_ids, config.repetition) if config.repetition else none,
    }
