"""`rlvr replay`: updates of a run computed again, beside the run."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from flows import services
from flows.runs import CONFIG_FILE
from rlcore.compose import load
from rlcore.config import Config, model_directory
from rlcore.recorded_updates import ReplayPlan, plan_replay
from rlcore.store import RunStore
from rlcore.verification.findings import counted

DIFFERENT = 1


def replay_here(store: RunStore, first: int, last: int, console: Console) -> int:
    """Replay updates `first` to `last` and print how each came out; the exit status.

    Raises:
        ConfigError, FileNotFoundError, StoreError, CheckpointDamaged, ServiceError: before anything was computed.
    """
    config = load(store.read_bytes(CONFIG_FILE).decode())
    model_directory(config.model)
    model_directory(config.critic_model, key="critic.path")
    with console.status("reading the checkpoint to start from"):
        plan = plan_replay(store, first, last)
    console.print(_introduction(config, plan), highlight=False, soft_wrap=True)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix="rlvr-replay-")))
        with console.status("starting Ray"):
            stack.enter_context(services.ray_available(scratch / "services"))
        from rlcore.cluster.replay import replay

        comparisons = stack.enter_context(closing(replay(config, store, plan, RunStore(str(scratch / "run")))))
        different = 0
        with console.status("computing"):
            for comparison in comparisons:
                console.print(str(comparison), highlight=False, markup=False, soft_wrap=True)
                different += not comparison.is_same
    console.print(_summary(config, len(plan.updates), different), highlight=False, soft_wrap=True)
    return DIFFERENT if different else 0


def _introduction(config: Config, plan: ReplayPlan) -> str:
    start = plan.start.checkpoint
    source = f"checkpoints/{start.name}" if start else f"the model that the run started from ({config.model.path})"
    between = f" and {counted(len(plan.start.batches), 'update')} after it" if plan.start.batches else ""
    compared = "bit for bit: the weights that were synced, by their sha256, and the metrics of the update"
    return f"from {source}{between}; compared {compared}"


def _summary(config: Config, updates: int, different: int) -> str:
    outcome = f"{different} different" if different else "nothing different"
    threads = counted(config.hardware.trainer_threads, "thread")
    return f"replayed: {counted(updates, 'update')} with {config.model.dtype} and {threads} a rank, {outcome}"
