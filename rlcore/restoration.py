"""What a version of the policy is made from: a checkpoint, and the recorded batches of the updates after it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlcore.lineage import refuse_before_fork
from rlcore.retention import PRUNED_FILE, pruned_outputs
from rlcore.store import BatchRef, RunStore, StoreError
from rlcore.trainer.checkpoint import CheckpointDamaged, newest_good, published


@dataclass(frozen=True, slots=True)
class Restoration:
    """Where ranks start, and what they are given then."""

    checkpoint: Path | None
    """None: what they hold; of new ranks, the model that the run started from."""
    batches: dict[int, BatchRef]
    """The TrainBatch of each update after that, by iteration, in order."""


def plan_restoration(store: RunStore, held: int, wanted: int) -> Restoration:
    """How ranks that hold version `held` come to version `wanted`: by the newest good checkpoint between them.

    Raises:
        CheckpointDamaged: no checkpoint is good, and the ranks have no update of their own to go on from.
        StoreError: an update is not in the ledger, its batch is not there, or a fork has no good checkpoint.
    """
    checkpoint = _checkpoint_between(store, held, wanted)
    start = int(checkpoint.name) if checkpoint else held
    refuse_before_fork(store, start)
    return Restoration(checkpoint, {number: train_batch(store, number) for number in range(start + 1, wanted + 1)})


def train_batch(store: RunStore, iteration: int) -> BatchRef:
    """The batch of update `iteration`.

    Raises:
        StoreError: the update is not in the ledger, or the batch is not there.
    """
    entry = store.find(iteration, "update")
    if entry is None:
        raise StoreError(f"{store.url}/ledger.jsonl has no update {iteration}: no later version can be computed")
    batch = entry.inputs["batch"]
    if store.exists(batch.path):
        return batch
    pruned = (batch.path, batch.sha256) in pruned_outputs(store)
    fate = f"was deleted by `rlvr prune` (it is in {PRUNED_FILE})" if pruned else "is not there"
    raise StoreError(
        f"{store.url}/{batch.path} {fate}: update {iteration} cannot be applied again, only those after a checkpoint "
        f"of version {iteration} or newer"
    )


def _checkpoint_between(store: RunStore, held: int, wanted: int) -> Path | None:
    """The newest good checkpoint after version `held`, up to `wanted`; None where going on from `held` is the way."""
    checkpoints = published(store.directory / "checkpoints")
    try:
        return newest_good(path for path in checkpoints if held < int(path.name) <= wanted)
    except CheckpointDamaged as damage:
        refuse_before_fork(store, held)
        if held == 0:
            raise CheckpointDamaged(
                f"{damage}. To have all updates up to {wanted} replayed from the model that the run started from, "
                f"delete the damaged directories under {store.directory / 'checkpoints'}"
            ) from None
        return None
