"""The flow `rlvr`: one iteration of reinforcement learning with verifiable rewards.

    sample ─► generate ─┬─► reward ───────┬─► statistics
                        ├─► ref_logprob ──┤
                        ├─► old_logprob ──┼─► advantage ─► update ─► sync ─┬─► evaluate    (when due)
                        └─► values ───────┘                                └─► checkpoint  (when due)

Its flow run is the unit of retry: finished stages are read back from the run's ledger.
"""

from __future__ import annotations

from prefect import flow

from flows.evaluate import evaluate
from flows.publish import publish
from flows.runs import open_iteration
from flows.runtime import flow_run_name, stage_runner
from tasks import stages
from tasks.stage import await_stages


@flow(name="rlvr", task_runner=stage_runner(), flow_run_name=flow_run_name)
async def rlvr(
    config: str = "arithmetic", overrides: list[str] | None = None, iteration: int | None = None
) -> dict[str, float]:
    """The run's next iteration, or the one given; its metrics.

    Args:
        config: name of a configuration in configs/, or a run's own config.yaml.
        overrides: `key=value`, as on the command line.
        iteration: the first is 1.
    """
    with open_iteration(config, overrides or [], iteration) as it:
        planned = it.plan
        if it.number == 1 and it.config.eval_steps:
            await evaluate(config, overrides, iteration=0)

        prompts = stages.sample.submit(it)
        rollouts = stages.generate.submit(it, prompts=prompts)
        rewards = stages.reward.submit(it, rollouts=rollouts)
        reference = stages.ref_logprob.submit(it, rollouts=rollouts) if "ref_logprob" in planned else None
        old = stages.old_logprob.submit(it, rollouts=rollouts) if "old_logprob" in planned else None
        values = stages.values.submit(it, rollouts=rollouts) if "values" in planned else None
        sampled = {"rollouts": rollouts, "rewards": rewards, "old_logprobs": old, "ref_logprobs": reference}
        before = it.previous_state
        state = stages.statistics.submit(it, **sampled, previous=before) if "statistics" in planned else None
        batch = stages.advantage.submit(it, **sampled, values=values, previous=before)
        updated = stages.update.submit(it, batch=batch)
        synced = stages.sync.submit(it, batch=batch, updated=updated)
        evaluated = stages.evaluate.submit(it, synced=synced) if "evaluate" in planned else None
        saved = stages.checkpoint.submit(it, synced=synced, state=state) if "checkpoint" in planned else None

        await await_stages(it, prompts, rollouts, rewards, reference, old, values, state)
        await await_stages(it, batch, updated, synced, evaluated, saved)
        return await publish(it)
