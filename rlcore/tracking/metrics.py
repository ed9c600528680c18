"""The numbers of one iteration, from what its stages put out."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from rlcore.batches import DROP_REASONS, RewardBatch, is_greedy
from rlcore.reports import SyncReport, UpdateReport
from rlcore.rollout.schedule import Schedule
from rlcore.shaping.pipeline import shaping_metrics
from rlcore.tracking.accuracy import accuracy
from rlcore.tracking.outputs import IterationOutputs

Metrics = dict[str, float]

REWARD_STATUSES = RewardBatch.to_schema().columns["reward_status"].checks[0].statistics["allowed_values"]


def iteration_metrics(
    *,
    rollouts: pl.DataFrame | None,
    rewards: pl.DataFrame | None,
    train: pl.DataFrame,
    update: UpdateReport,
    sync: SyncReport,
    evaluation: pl.DataFrame | None,
    seconds: Mapping[str, float],
    schedule: Schedule | None = None,
) -> Metrics:
    """All metrics of an iteration under namespaced keys. A number that does not exist is absent, never NaN.

        reward/mean, reward/<domain>          mean over the scored responses
        reward/status/<status>                responses
        shaping/<domain>/…                    mean shaped reward and penalties of the scored; dropped by reason
        response/…                            tokens per response; shares cut off at the limit
        rollout/…                             tokens, tokens per second, staleness in policy versions and its histogram;
                                              of the scheduler: idle share of the engines, queue, wasted and rejected
        train/…                               what the update reported, and what of the batch trained
        critic/…                              what the critic's update reported, and how well it foretold
        sync/…                                engine against trainer
        eval/accuracy, eval/<domain>/…        held-out; with the low and high end of the 95 % interval
        seconds/<stage>                       wall time

    Args:
        rollouts, rewards, train: RolloutBatch, RewardBatch and TrainBatch of the same responses. One of the first two
            may be lost after the update.
        evaluation: EvalBatch, or None where the iteration has none.
        seconds: wall time by stage.
        schedule: the scheduler's, where it is there.
    """
    # Greedy responses are no sample of the policy.
    metrics: Metrics = {}
    if rollouts is not None:
        rollouts = rollouts.filter(~is_greedy())
        if rewards is not None:
            metrics |= reward_metrics(rollouts, rewards.filter(~is_greedy()))
        metrics |= shaping_metrics(train.join(rollouts.select("sample_id", "domain"), on="sample_id"))
        metrics |= response_metrics(rollouts)
        metrics |= rollout_metrics(rollouts, update.iteration, seconds)
    return {
        **metrics,
        **train_metrics(train, update),
        **critic_metrics(train, update),
        **sync_metrics(sync),
        **({} if evaluation is None else evaluation_metrics(evaluation)),
        **({} if schedule is None else schedule_metrics(schedule)),
        **seconds_metrics(seconds),
    }


def read_iteration_metrics(outputs: IterationOutputs) -> Metrics:
    """The metrics of a finished iteration. Iteration 0, the untrained policy, has only an evaluation.

    Rollouts or rewards that are lost are not computed again after the update: then what they alone tell is absent.

    Raises:
        KeyError: a stage of the iteration is not finished.
        StoreError, BatchError: another output is missing or damaged.
    """
    evaluation = outputs.batch("evaluate") if "evaluate" in outputs.entries else None
    seconds = {stage: entry.seconds for stage, entry in outputs.entries.items()}
    if outputs.iteration == 0:
        return {**({} if evaluation is None else evaluation_metrics(evaluation)), **seconds_metrics(seconds)}
    return iteration_metrics(
        rollouts=outputs.batch("generate") if outputs.is_intact("generate") else None,
        rewards=outputs.batch("reward") if outputs.is_intact("reward") else None,
        train=outputs.batch("advantage"),
        update=outputs.report("update", UpdateReport),
        sync=outputs.report("sync", SyncReport),
        evaluation=evaluation,
        seconds=seconds,
        schedule=outputs.schedule,
    )


def reward_metrics(rollouts: pl.DataFrame, rewards: pl.DataFrame) -> Metrics:
    """Means over the responses that were scored; how many ended in each status."""
    scored = rewards.filter(pl.col("reward").is_not_null()).join(
        rollouts.select("sample_id", "domain"), on="sample_id", how="left"
    )
    metrics = {f"reward/{domain}": mean for domain, mean in _mean_by_domain(scored, pl.col("reward")).items()}
    if len(scored):
        metrics["reward/mean"] = _number(scored["reward"].mean())
    counts = dict(rewards["reward_status"].value_counts().iter_rows())
    return metrics | {f"reward/status/{status}": float(counts.get(status, 0)) for status in REWARD_STATUSES}


def response_metrics(rollouts: pl.DataFrame) -> Metrics:
    """Lengths in tokens, over all and by domain; the share that was cut off at `response_length`."""
    length = pl.col("response_ids").list.len()
    lengths = rollouts.select(length)["response_ids"]
    metrics = {f"response/length_mean/{domain}": mean for domain, mean in _mean_by_domain(rollouts, length).items()}
    return metrics | {
        "response/length_mean": _number(lengths.mean()),
        "response/length_max": _number(lengths.max()),
        "response/truncated": _number((rollouts["finish_reason"] == "length").mean()),
    }


def rollout_metrics(rollouts: pl.DataFrame, iteration: int, seconds: Mapping[str, float]) -> Metrics:
    """Size and speed of the generation; staleness of its tokens in policy versions, 0 if sampled on-policy."""
    versions = rollouts["policy_versions"].explode().drop_nulls()
    metrics = {"rollout/responses": float(len(rollouts)), "rollout/tokens": float(len(versions))}
    if seconds.get("generate"):
        metrics["rollout/tokens_per_second"] = len(versions) / seconds["generate"]
    if len(versions):
        # Iteration n trains the policy of version n - 1.
        staleness = (iteration - 1) - versions
        metrics["rollout/staleness_mean"] = _number(staleness.mean())
        metrics["rollout/staleness_max"] = _number(staleness.max())
        counts = staleness.value_counts().sort("policy_versions").iter_rows()
        metrics |= {f"rollout/staleness/{age}": count / len(versions) for age, count in counts}
    return metrics


def schedule_metrics(schedule: Schedule) -> Metrics:
    """What the engines did since the batch before: their idle share, what waited for them, what was in vain."""
    waiting = [responses for _, responses in schedule.queue]
    wasted = {f"rollout/wasted_tokens/{reason}": float(tokens) for reason, tokens in schedule.wasted_tokens.items()}
    return {
        "rollout/idle_share": schedule.idle_share,
        "rollout/rejected_prompts": float(schedule.rejected_prompts),
        "rollout/wasted_tokens": float(sum(schedule.wasted_tokens.values())),
        **wasted,
        **({"rollout/queue_mean": sum(waiting) / len(waiting), "rollout/queue_max": max(waiting)} if waiting else {}),
    }


def train_metrics(train: pl.DataFrame, update: UpdateReport) -> Metrics:
    """The update's own metrics, both clip fractions as one, what was left out, and the KL to the reference."""
    metrics = {f"train/{name}": value for name, value in update.metrics.items()}
    clipped = [metrics[key] for key in ("train/clip_fraction_low", "train/clip_fraction_high") if key in metrics]
    if clipped:
        metrics["train/clip_fraction"] = sum(clipped)
    counts = dict(train["drop_reason"].value_counts().iter_rows())
    metrics |= {f"train/dropped/{reason}": float(counts.get(reason, 0)) for reason in DROP_REASONS}
    metrics["train/responses"] = float(train["drop_reason"].null_count())
    tokens = train.filter(pl.col("ref_logprobs").is_not_null()).select("loss_mask", "old_logprobs", "ref_logprobs")
    tokens = tokens.explode(tokens.columns).filter("loss_mask")
    if len(tokens):
        metrics["train/reference_kl_k3"] = _number(tokens.select(_reference_kl_k3())["k3"].mean())
    return metrics


def _reference_kl_k3() -> pl.Expr:
    """`rlcore.algorithms.kl_estimate` of kind k3, without torch: whoever publishes metrics should start fast."""
    difference = (pl.col("old_logprobs") - pl.col("ref_logprobs")).clip(-20.0, 20.0)
    return ((-difference).exp() + difference - 1).clip(upper_bound=10.0).alias("k3")


def critic_metrics(train: pl.DataFrame, update: UpdateReport) -> Metrics:
    """The critic's update's own metrics, and explained_variance: 1 − Var(R − V)/Var(R) of the values before it."""
    if update.critic is None:
        return {}
    metrics = {f"critic/{name}": value for name, value in update.critic.metrics.items()}
    tokens = (
        train.select("loss_mask", "values", "returns").explode("loss_mask", "values", "returns").filter("loss_mask")
    )
    variances = tokens.select(unexplained=(pl.col("returns") - pl.col("values")).var(), total=pl.col("returns").var())
    unexplained, variance = variances.row(0)
    if variance:
        metrics["critic/explained_variance"] = 1.0 - unexplained / variance
    return metrics


def sync_metrics(sync: SyncReport) -> Metrics:
    """The probe's difference between engine and trainer in nats; the transfer's size and seconds."""
    return {
        "sync/probe_gap_mean": sync.probe_gap_mean,
        "sync/probe_gap_max": sync.probe_gap_max,
        "sync/bytes": float(sync.bytes),
        "sync/seconds": sync.seconds,
    }


def evaluation_metrics(evaluation: pl.DataFrame) -> Metrics:
    """Accuracy of an EvalBatch, whole and by domain, among the rows that could be graded."""
    parts = {"eval": evaluation} | {
        f"eval/{domain}": rows for (domain,), rows in evaluation.group_by("domain", maintain_order=True)
    }
    metrics = {"eval/ungraded": float(evaluation["reward"].null_count())}
    for prefix, rows in parts.items():
        if (result := accuracy(rows)) is not None:
            metrics[f"{prefix}/accuracy"] = result.share
            metrics[f"{prefix}/low"] = result.low
            metrics[f"{prefix}/high"] = result.high
    return metrics


def seconds_metrics(seconds: Mapping[str, float]) -> Metrics:
    return {f"seconds/{stage}": value for stage, value in seconds.items()}


def _mean_by_domain(rows: pl.DataFrame, value: pl.Expr) -> dict[str, float]:
    means = rows.group_by("domain").agg(value.mean().alias("mean")).sort("domain")
    return dict(means.iter_rows())


def _number(value: object) -> float:
    """A polars aggregate of a column that is numeric and not empty."""
    assert isinstance(value, (int, float)), value
    return float(value)
