"""A made-up run directory: the files that a run leaves, with invented numbers that look like learning."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rlcore.batches import Batch, EvalBatch, RewardBatch, RolloutBatch, TrainBatch
from rlcore.compose import dump
from rlcore.config import Config
from rlcore.plan import plan_iteration
from rlcore.reports import CheckpointReport, SyncReport, UpdateReport
from rlcore.store import BatchRef, LedgerEntry, RunStore
from rlcore.tracking.metrics import read_iteration_metrics
from rlcore.tracking.outputs import IterationOutputs
from rlcore.tracking.sinks import Tracker
from tests.rollout_rows import PROMPT_AND_GRADE

DOMAINS = ("arithmetic", "reasoning_gym", "format")
SECONDS = {"sample": 0.05, "generate": 3.8, "reward": 0.4, "advantage": 0.1, "update": 8.1, "sync": 0.5}
START = 1_700_000_000.0
EVIL = "<script>alert('42')</script> & so 42"


def config_of(runs_dir: Path, iterations: int = 12) -> Config:
    return Config.model_validate(
        {
            "run": "made-up",
            "runs_dir": str(runs_dir),
            "iterations": iterations,
            "eval_steps": 5,
            "model": {"path": "models/SmolLM2-135M-Instruct"},
            "data": {
                "train": ["train.jsonl"],
                "held_out": ["held_out.jsonl"],
                "prompt_length": 80,
                "domain_interleave_probs": dict.fromkeys(DOMAINS[:2], 0.4) | {DOMAINS[2]: 0.2},
            },
            "rollout": {"rollout_batch_size": 6, "num_return_sequences_in_group": 4, "response_length": 32},
            "rewards": dict(zip(DOMAINS, ({"grader": g} for g in ("math", "reasoning_gym", "format")), strict=True)),
            "hardware": {"trainer_threads": 2, "engine_threads": 2},
        }
    )


@dataclass
class MadeUpRun:
    """Writes iterations as a run does: outputs, ledger, metrics."""

    config: Config
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    now: float = START

    @property
    def directory(self) -> Path:
        return Path(self.config.run_url)

    @property
    def store(self) -> RunStore:
        return RunStore(self.config.run_url)

    def write(self, iterations: int) -> None:
        """The untrained policy's evaluation and so many iterations, with their metrics."""
        self.store.write_bytes("config.yaml", dump(self.config).encode())
        self._record(0, "evaluate", self.store.write_batch(0, "evaluation", self.evaluation(0.5), EvalBatch), 2.0)
        tracker = Tracker(self.directory, self.config)
        tracker.log(0, read_iteration_metrics(IterationOutputs(self.store, 0)))
        for iteration in range(1, iterations + 1):
            self.write_stages(iteration)
            tracker.log(iteration, read_iteration_metrics(IterationOutputs(self.store, iteration)))
        tracker.close()

    def write_stages(self, iteration: int, until: str | None = None) -> None:
        """The stages of one iteration, or those before `until`."""
        skill = 0.1 + 0.05 * iteration
        rollouts, rewards, train = self.rollouts(iteration, skill)
        for stage in plan_iteration(self.config, iteration).stages:
            if stage == until:
                return
            seconds = SECONDS.get(stage, 2.0) * self.rng.uniform(0.8, 1.3)
            match stage:
                case "generate":
                    ref = self.store.write_batch(iteration, "rollouts", rollouts, RolloutBatch)
                case "reward":
                    ref = self.store.write_batch(iteration, "rewards", rewards, RewardBatch)
                case "advantage":
                    ref = self.store.write_batch(iteration, "train", train, TrainBatch)
                case "update":
                    ref = self.store.write_report(iteration, "update", self.update(iteration, seconds))
                case "sync":
                    ref = self.store.write_report(iteration, "sync", sync_report(iteration))
                case "evaluate":
                    batch = self.evaluation(0.5 + 0.03 * iteration)
                    ref = self.store.write_batch(iteration, "evaluation", batch, EvalBatch)
                case "checkpoint":
                    report = CheckpointReport(policy_version=iteration, path="c", bytes=1, seconds=2.0)
                    ref = self.store.write_report(iteration, "checkpoint", report)
                case _:
                    ref = BatchRef(path="prompts.parquet", schema_name="PromptBatch", rows=6, sha256="0" * 64)
            self._record(iteration, stage, ref, seconds)

    def _record(self, iteration: int, stage: str, ref: BatchRef, seconds: float) -> None:
        started, self.now = self.now, self.now + seconds
        self.store.record(
            LedgerEntry(
                iteration=iteration,
                stage=stage,
                identity=f"{iteration}-{stage}",
                inputs={},
                output=ref,
                policy_version=max(iteration - 1, 0),
                started_at=started,
                finished_at=self.now,
                seconds=seconds,
                engine_seconds=0.9 * seconds,
            )
        )

    def rollouts(self, iteration: int, skill: float) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        rows: list[dict[str, Any]] = []
        for sample in range(24):
            length = self.rng.randint(6, 32)
            timed_out = self.rng.random() < 0.04
            logprobs = [-self.rng.expovariate(2.0) for _ in range(length)]
            rows.append(
                {
                    "sample_id": f"p{sample // 4}#{sample % 4}",
                    "prompt_id": f"p{sample // 4}",
                    "domain": DOMAINS[sample // 4 % 3],
                    **PROMPT_AND_GRADE,
                    "prompt_ids": [1, 2, 3],
                    "response_ids": list(range(length)),
                    "loss_mask": [True] * length,
                    "rollout_logprobs": logprobs,
                    "policy_versions": [iteration - 1] * length,
                    "finish_reason": "length" if length == 32 else "stop",
                    "response_text": "The answer is 7.",
                    "seconds": 0.1 * length,
                    "reward": None if timed_out else float(self.rng.random() < skill),
                    "reward_status": "timeout" if timed_out else "scored",
                    "components": [],
                    "detail": "no answer within 10 s" if timed_out else "",
                    "old_logprobs": logprobs,
                    "ref_logprobs": None,
                    "values": None,
                    "advantages": [0.5] * length,
                    "returns": [0.5] * length,
                    "raw_reward": 1.0,
                    "overlong_penalty": -0.1 if length == 32 else 0.0,
                    "length_penalty": None,
                    "repetition_penalty": None,
                    "shaped_reward": 0.9 if length == 32 else 1.0,
                    "score": 0.5,
                    "sample_weight": 1.0,
                    "drop_reason": "no_reward" if timed_out else None,
                }
            )
        return conform(rows, RolloutBatch), conform(rows, RewardBatch), conform(rows, TrainBatch)

    def evaluation(self, skill: float) -> pl.DataFrame:
        rows: list[dict[str, Any]] = []
        for prompt in range(60):
            # Hardness is the prompt's own, so that an answer once right mostly stays right.
            right = (prompt * 37 % 60) / 60 < skill + self.rng.uniform(-0.04, 0.04)
            a, b = prompt % 20, prompt * 7 % 20
            truth = str(a + b)
            text = f"{a} + {b} = {truth}" if right else f"Let's see. {a} plus {b} equals {a + b + 1}."
            rows.append(
                {
                    "prompt_id": f"h{prompt}",
                    "domain": DOMAINS[prompt % 3],
                    "tag": "sum",
                    "prompt_text": f"What is {a} + {b}?",
                    "response_ids": [1, 2, 3],
                    "rollout_logprobs": [-0.1, -0.2, -0.3],
                    "finish_reason": "stop",
                    "response_text": EVIL if prompt == 0 else text,
                    "ground_truth": truth,
                    "reward": None if prompt == 59 else float(right),
                    "reward_status": "timeout" if prompt == 59 else "scored",
                }
            )
        return conform(rows, EvalBatch)

    def update(self, iteration: int, seconds: float) -> UpdateReport:
        return UpdateReport(
            iteration=iteration,
            policy_version=iteration,
            optimizer_steps=1,
            skipped=False,
            seconds=seconds,
            metrics={
                "loss": -0.01 * self.rng.random(),
                "entropy": 1.2 - 0.05 * iteration + 0.03 * self.rng.random(),
                "ratio": 1.0,
                "approx_kl_k1": 0.0004,
                "approx_kl_k3": 0.0008 + 0.0004 * self.rng.random(),
                "clip_fraction_low": 0.01 * self.rng.random(),
                "clip_fraction_high": 0.01 * self.rng.random(),
                "grad_norm": 0.8 + 0.4 * self.rng.random(),
                "logprob_gap_mean": 0.035,
            },
        )


def sync_report(version: int) -> SyncReport:
    return SyncReport(
        policy_version=version,
        weights_sha256=f"{version:064x}",
        bytes=269_000_000,
        seconds=0.23,
        probe_tokens=100,
        probe_gap_mean=0.03,
        probe_gap_max=0.2,
    )


def conform(rows: list[dict[str, Any]], schema: type[Batch]) -> pl.DataFrame:
    """The columns of a schema, in its types."""
    types = {name: column.dtype.type for name, column in schema.to_schema().columns.items()}
    return pl.DataFrame([{name: row[name] for name in types} for row in rows], schema=types)


@pytest.fixture(scope="session")
def template_run(tmp_path_factory: pytest.TempPathFactory) -> MadeUpRun:
    """Eight of twelve iterations, and the ninth up to its update. Written once, and only copied from."""
    config = config_of(tmp_path_factory.mktemp("runs"))
    tracking = config.tracking.model_copy(update={"wandb": "off", "tensorboard": False})
    run = MadeUpRun(config.model_copy(update={"tracking": tracking}))
    run.write(8)
    run.write_stages(9, until="update")
    return run


@pytest.fixture
def made_up_run(template_run: MadeUpRun, tmp_path: Path) -> MadeUpRun:
    """A copy of the template that a test may change."""
    shutil.copytree(template_run.directory, tmp_path / template_run.config.run)
    config = template_run.config.model_copy(update={"runs_dir": str(tmp_path)})
    return MadeUpRun(config, now=template_run.now)
