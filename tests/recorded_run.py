"""A run directory as a training leaves it, with two made-up rows in every batch."""

from __future__ import annotations

import json
from pathlib import Path

from rlcore.batches import EvalBatch, LogprobBatch, PromptBatch, RewardBatch, RolloutBatch, TrainBatch
from rlcore.compose import compose, dump
from rlcore.config import Config
from rlcore.plan import UPDATED, plan_iteration
from rlcore.reports import CheckpointReport, RunState, SyncReport, UpdateReport
from rlcore.shaping.state import ShapingState
from rlcore.store import BatchRef, LedgerEntry, RunStore
from rlcore.trainer.checkpoint import publish
from tests.test_batches import batch_of

BATCHES = {
    "sample": ("prompts", PromptBatch),
    "generate": ("rollouts", RolloutBatch),
    "reward": ("rewards", RewardBatch),
    "ref_logprob": ("ref_logprobs", LogprobBatch),
    "advantage": ("train", TrainBatch),
    "evaluate": ("evaluation", EvalBatch),
}


class RecordedRun:
    """A run whose iterations depend on a state; it is evaluated and saved after every second one."""

    def __init__(self, directory: Path, iterations: int) -> None:
        overrides = [f"iterations={iterations}", "eval_steps=2", "save_steps=2", "save_total_limit=100"]
        state = ["algorithm=grpo", "algorithm.init_kl_coef=0.1", "algorithm.target_kl=0.1"]
        self.config: Config = compose("arithmetic", [*overrides, *state])
        self.store = RunStore(str(directory))
        self.store.write_bytes("config.yaml", dump(self.config).encode())
        self.store.assign_run_id()

    def record_all(self, accuracies: dict[int, float]) -> None:
        """Every iteration of the configuration, and the evaluation before the first."""
        self.record(0, "evaluate", {})
        self.log(0, accuracies)
        for iteration in range(1, self.config.iterations + 1):
            self.record_iteration(iteration)
            self.log(iteration, accuracies)

    def log(self, iteration: int, accuracies: dict[int, float]) -> None:
        row: dict[str, float] = {"iteration": iteration}
        if (accuracy := accuracies.get(iteration)) is not None:
            row |= {"eval/accuracy": accuracy, "eval/low": accuracy - 0.05, "eval/high": accuracy + 0.05}
        self.store.append_line("metrics.jsonl", json.dumps(row))

    def record_iteration(self, iteration: int, until: str | None = None) -> None:
        """All its stages, or those before `until`."""
        outputs: dict[str, BatchRef] = {}
        for stage, reads in plan_iteration(self.config, iteration).inputs.items():
            if stage == until:
                return
            inputs = {"batch" if name == "advantage" else name: outputs[name] for name in reads}
            before = self.store.find(iteration - 1, "statistics") if stage in ("statistics", "advantage") else None
            outputs[stage] = self.record(iteration, stage, inputs | ({"previous": before.output} if before else {}))

    def record(self, iteration: int, stage: str, inputs: dict[str, BatchRef]) -> BatchRef:
        output = self._write(iteration, stage)
        entry = LedgerEntry(
            iteration=iteration,
            stage=stage,
            identity=f"{iteration} {stage} {sorted(ref.sha256 for ref in inputs.values())}",
            inputs=inputs,
            output=output,
            policy_version=iteration if stage in UPDATED else max(iteration - 1, 0),
            started_at=1.0,
            finished_at=2.0,
            seconds=1.0,
            engine_seconds=0.5,
        )
        self.store.record(entry)
        return output

    def _write(self, iteration: int, stage: str) -> BatchRef:
        match stage:
            case "statistics":
                return self.store.write_report(
                    iteration, stage, RunState(iteration=iteration, shaping=ShapingState(), kl_controller={"coef": 0.1})
                )
            case "update":
                report = UpdateReport(
                    iteration=iteration,
                    policy_version=iteration,
                    optimizer_steps=1,
                    skipped=False,
                    seconds=1,
                    metrics={},
                )
                return self.store.write_report(iteration, stage, report)
            case "sync":
                sync = SyncReport(
                    policy_version=iteration,
                    weights_sha256=f"{iteration:064x}",
                    bytes=1,
                    seconds=1,
                    probe_tokens=1,
                    probe_gap_mean=0,
                    probe_gap_max=0,
                )
                return self.store.write_report(iteration, stage, sync)
            case "checkpoint":
                path = self.save_checkpoint(iteration)
                saved = CheckpointReport(policy_version=iteration, path=f"checkpoints/{path.name}", bytes=2, seconds=1)
                return self.store.write_report(iteration, stage, saved)
            case _:
                name, schema = BATCHES[stage]
                return self.store.write_batch(iteration, name, batch_of(schema), schema)

    def save_checkpoint(self, version: int) -> Path:
        directory = self.store.directory / "checkpoints"
        staging, final = directory / ".saving", directory / f"{version:06d}"
        (staging / "megatron").mkdir(parents=True)
        (staging / "megatron" / "weights").write_bytes(b"weights %d" % version)
        (staging / "state.json").write_text("{}")
        publish(staging, final)
        return final
