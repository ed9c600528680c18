"""Prompts come, batches go: what the run directory keeps of it, in virtual time with simulated engines."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from benchmarks.simulation.simulated_engine import SimulatedEngine
from benchmarks.simulation.virtual_time import run_in_virtual_time
from rlcore.batches import RolloutBatch, validate
from rlcore.compose import compose
from rlcore.config import Config
from rlcore.data.sampler import PromptSampler
from rlcore.generation.interface import EngineDied, Generation, GenerationRequest
from rlcore.rewards.interface import Outcome
from rlcore.rollout.book import OutOfOrder, RejectionBudgetSpent
from rlcore.rollout.groups import Prompt
from rlcore.rollout.journal import read_state
from rlcore.rollout.rules import ALL, rules_of
from rlcore.rollout.schedule import read_schedule
from rlcore.rollout.service import RolloutService
from rlcore.rollout.supply import supplies
from rlcore.store import RunStore, StoreError

SHARES = {"arithmetic": 0.75, "format": 0.25}
BATCH, GROUP = 8, 4


class Training:
    """A run's scheduler, with what a trainer does between its batches."""

    def __init__(self, directory: Path, *overrides: str) -> None:
        self.config: Config = compose(
            "arithmetic",
            [
                f"runs_dir={directory}",
                f"rollout.rollout_batch_size={BATCH}",
                f"rollout.num_return_sequences_in_group={GROUP}",
                "data.domain_interleave_probs={arithmetic: 0.75, format: 0.25}",
                "rewards.format.grader=format",
                *overrides,
            ],
        )
        self.store = RunStore(str(directory / "run"))
        self.sampler = PromptSampler(dataset(), SHARES, seed=0)
        self.graded: list[str] = []
        self.service = RolloutService(self.config, self.store)
        self.engines = {f"engine-{number}": SimulatedEngine(length, 0.1) for number in range(2)}

    def start_again(self) -> None:
        """A new process: nothing is left of the one before but its files."""
        self.service.close()
        self.service = RolloutService(self.config, self.store)

    def prompts(self, iteration: int) -> pl.DataFrame:
        """What the stage `sample` hands over."""
        wanted = supplies(read_state(self.store, iteration), iteration, rules_of(self.config))
        return pl.concat(
            self.sampler.draw(supply.cursor, supply.count, None if lane == ALL else lane)
            for lane, supply in wanted.items()
        )

    async def collect(self, iteration: int, prompts: pl.DataFrame | None = None) -> pl.DataFrame:
        for engine in self.engines.values():
            engine.load(iteration - 1)
        handed_over = self.prompts(iteration) if prompts is None else prompts
        batch = await self.service.collect(iteration, handed_over, self.engines, self.grade)
        return validate(batch, RolloutBatch)

    async def sync(self, version: int) -> None:
        await self.service.suspend()
        for engine in self.engines.values():
            engine.load(version)
        await self.service.resume(version)

    async def grade(self, prompt: Prompt, generation: Generation) -> Outcome:
        await asyncio.sleep(0.05)
        self.graded.append(generation.request_id.rsplit(".", 1)[0])
        return Outcome("scored", float(length_of(generation.request_id) % 2), {}, "", 0.05)


def dataset() -> pl.DataFrame:
    rows = [
        {
            "prompt_id": f"{domain}:{number}",
            "domain": domain,
            "tag": domain,
            "messages": [{"role": "user", "content": f"{domain} {number}"}],
            "prompt_ids": [number % 7, number],
            "ground_truth": str(number),
        }
        for domain in SHARES
        for number in range(200)
    ]
    return pl.DataFrame(rows, schema_overrides={"prompt_ids": pl.List(pl.Int32)})


def length_of(request_id: str) -> int:
    return 1 + int(random.Random(request_id.rsplit(".", 1)[0]).lognormvariate(3.0, 1.0))


def length(request: GenerationRequest) -> int:
    return length_of(request.request_id)


def prompt_ids(batch: pl.DataFrame) -> list[str]:
    return batch["prompt_id"].unique(maintain_order=True).to_list()


def in_virtual_time(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_in_virtual_time(main())


def test_without_asynchrony_a_batch_is_the_next_prompts_in_their_order(tmp_path: Path) -> None:
    training = Training(tmp_path)

    async def main() -> None:
        for iteration in range(1, 5):
            batch = await training.collect(iteration)
            drawn = training.sampler.draw((iteration - 1) * BATCH, BATCH)
            assert prompt_ids(batch) == drawn["prompt_id"].to_list()
            assert batch["sample_id"].to_list() == [f"{name}#{i}" for name in drawn["prompt_id"] for i in range(GROUP)]
            assert set(batch["policy_versions"].explode()) == {iteration - 1}
            await training.sync(iteration)

    in_virtual_time(main)


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_ahead_of_the_trainer_no_prompt_is_lost_or_used_twice_and_none_is_too_old(tmp_path: Path, ratio: float) -> None:
    training = Training(tmp_path, f"rollout.async_ratio={ratio}")
    used: list[str] = []

    async def main() -> None:
        for iteration in range(1, 13):
            batch = await training.collect(iteration)
            assert len(prompt_ids(batch)) == BATCH
            used.extend(prompt_ids(batch))
            oldest = batch["policy_versions"].list.min().min()
            assert isinstance(oldest, int) and oldest >= iteration - 1 - -(-ratio // 1)
            await asyncio.sleep(10.0)
            await training.sync(iteration)

    in_virtual_time(main)
    assert len(set(used)) == len(used)
    drawn = training.sampler.draw(0, len(used) + int(ratio * BATCH))["prompt_id"].to_list()
    assert set(used) <= set(drawn), "a prompt was drawn before an earlier one had its turn"
    schedules = [read_schedule(training.store, iteration) for iteration in range(1, 13)]
    ages = [schedule.staleness for schedule in schedules if schedule is not None]
    assert len(ages) == 12 and all(sum(each.values()) == BATCH * GROUP for each in ages)
    assert any(age > 0 for each in ages for age in each), "nothing ran ahead"


def test_a_scheduler_that_dies_is_made_anew_and_grades_nothing_twice(tmp_path: Path) -> None:
    training = Training(tmp_path, "rollout.async_ratio=1")

    async def main() -> None:
        first = await training.collect(1)
        await training.sync(1)
        prompts = training.prompts(2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(training.collect(2, prompts), 3.0)
        graded = len(training.graded)
        training.start_again()
        second = await training.collect(2, prompts)
        assert not set(prompt_ids(first)) & set(prompt_ids(second))
        assert len(training.graded) > graded > BATCH * GROUP

    in_virtual_time(main)
    assert len(set(training.graded)) == len(training.graded)


def test_a_batch_that_was_collected_comes_back_after_the_schedulers_death(tmp_path: Path) -> None:
    training = Training(tmp_path, "rollout.async_ratio=1")

    async def main() -> None:
        prompts = training.prompts(1)
        batch = await training.collect(1, prompts)
        assert (await training.collect(1, prompts)).equals(batch)
        await asyncio.sleep(5.0)
        training.start_again()
        assert (await training.collect(1, prompts)).equals(batch)
        await training.sync(1)
        following = await training.collect(2)
        assert not set(prompt_ids(batch)) & set(prompt_ids(following))

    in_virtual_time(main)
    assert len(set(training.graded)) == len(training.graded)


def test_half_a_line_at_the_end_of_the_journal_costs_that_response_only(tmp_path: Path) -> None:
    training = Training(tmp_path)

    async def main() -> None:
        prompts = training.prompts(1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(training.collect(1, prompts), 3.0)
        journal = training.store.directory / "iterations/000001/journal.jsonl"
        journal.write_bytes(journal.read_bytes()[:-30])
        training.start_again()
        assert len(await training.collect(1, prompts)) == BATCH * GROUP

    in_virtual_time(main)
    assert len(training.graded) == BATCH * GROUP + 1
    state = read_state(training.store, 2)
    assert state is not None and state.handed_over == {ALL: BATCH}


def test_a_journal_that_cannot_be_read_is_named_with_the_line(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.store.write_bytes("iterations/000002/journal.jsonl", b'{"kind": "nonsense"}\n')
    with pytest.raises(StoreError, match=r"000002/journal\.jsonl:1 is no line of a journal \("):
        training.prompts(2)


def test_responses_under_other_settings_are_generated_again_and_prompts_stay(tmp_path: Path) -> None:
    training = Training(tmp_path, "rollout.async_ratio=1")

    async def main() -> None:
        first = await training.collect(1)
        await asyncio.sleep(30.0)
        ahead = set(training.graded) - set(first["sample_id"])
        assert ahead
        training.config = training.config.model_copy(
            update={"rollout": training.config.rollout.model_copy(update={"temperature": 0.5})}
        )
        training.graded.clear()
        training.start_again()
        batch = await training.collect(2)
        again = ahead & set(batch["sample_id"])
        assert again and again <= set(training.graded)
        state = read_state(training.store, 3)
        assert state is not None
        still = {each.prompt.prompt_id for each in state.open}
        assert {sample.split("#")[0] for sample in ahead} <= {*prompt_ids(batch), *still}

    in_virtual_time(main)


def test_rejected_prompts_are_replaced_and_the_next_iteration_hands_over_as_many_more(tmp_path: Path) -> None:
    training = Training(tmp_path, "rollout.filter={min_std: 0.45, max_rejected_prompts: 40}")
    used: list[str] = []

    async def main() -> None:
        for iteration in range(1, 6):
            prompts = training.prompts(iteration)
            batch = await training.collect(iteration, prompts)
            spread = batch.group_by("prompt_id").agg(pl.col("grade").struct.field("reward").std(ddof=0))["reward"]
            assert spread.min() >= 0.45  # type: ignore[operator]
            schedule = read_schedule(training.store, iteration)
            assert schedule is not None
            left = BATCH + schedule.rejected_prompts
            assert len(training.prompts(iteration + 1)) == left
            used.extend(prompt_ids(batch))
            await training.sync(iteration)

    in_virtual_time(main)
    assert len(set(used)) == len(used) == 5 * BATCH


def test_a_filter_that_rejects_too_much_says_so_and_how_much(tmp_path: Path) -> None:
    training = Training(tmp_path, "rollout.filter={min_mean: 0.99, max_rejected_prompts: 5}")

    async def main() -> None:
        prompts = training.prompts(1)
        for _ in range(2):
            with pytest.raises(
                RejectionBudgetSpent, match=r"rejected 6 prompts for batch 1, and 5 .*mean reward is 0\."
            ):
                await training.collect(1, prompts)

    in_virtual_time(main)


def test_with_quotas_every_batch_has_its_share_of_each_domain_whatever_the_filter_does(tmp_path: Path) -> None:
    rejecting = "rollout.filter={min_std: 0.45, max_rejected_prompts: 40}"
    training = Training(tmp_path, "rollout.domain_quotas=true", "rollout.async_ratio=0.5", rejecting)

    async def main() -> None:
        for iteration in range(1, 6):
            batch = await training.collect(iteration)
            groups = batch.group_by("domain").agg(pl.col("prompt_id").n_unique())
            assert dict(groups.iter_rows()) == {"arithmetic": 6, "format": 2}
            await training.sync(iteration)

    in_virtual_time(main)


def test_what_cannot_come_next_is_refused(tmp_path: Path) -> None:
    training = Training(tmp_path, "rollout.async_ratio=1")

    async def main() -> None:
        with pytest.raises(StoreError, match="no journal says which prompts were under way when iteration 3 began"):
            training.prompts(3)
        await training.collect(1)
        await training.sync(1)
        with pytest.raises(OutOfOrder, match="policy version 0 comes after 1"):
            await training.service.resume(0)

    in_virtual_time(main)


def test_a_cancelled_collection_stops_generating_and_the_next_goes_on(tmp_path: Path) -> None:
    training = Training(tmp_path, "rollout.async_ratio=1")

    async def main() -> None:
        prompts = training.prompts(1)
        collecting = asyncio.create_task(training.collect(1, prompts))
        await asyncio.sleep(3.0)
        collecting.cancel()
        await asyncio.sleep(0.2)
        graded = len(training.graded)
        await asyncio.sleep(60.0)
        assert len(training.graded) == graded > 0
        assert len(await training.collect(1, prompts)) == BATCH * GROUP

    in_virtual_time(main)
    assert len(set(training.graded)) == len(training.graded)


def test_without_engines_the_stage_fails_and_goes_on_with_new_ones_where_it_was(tmp_path: Path) -> None:
    training = Training(tmp_path)

    async def main() -> None:
        prompts = training.prompts(1)
        collecting = asyncio.create_task(training.collect(1, prompts))
        await asyncio.sleep(3.0)
        for engine in training.engines.values():
            engine.die()
        with pytest.raises(EngineDied):
            await collecting
        graded = len(training.graded)
        training.engines = {"engine-2": SimulatedEngine(length, 0.1)}
        assert len(await training.collect(1, prompts)) == BATCH * GROUP
        assert graded > 0

    in_virtual_time(main)
    assert len(set(training.graded)) == len(training.graded) == BATCH * GROUP
