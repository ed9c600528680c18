"""Weights from the trainer to the engines."""

from __future__ import annotations

import time

from rlcore.cluster.engine import EngineGroup
from rlcore.cluster.trainer import TrainerGroup
from rlcore.cluster.waiting import Call
from rlcore.sync_check import Transfer
from rlcore.weights.bucket import Bucket, weights_sha256

BUCKET_BYTES = 64 * 2**20
"""Small beside the weights, so that writing and loading overlap; large beside what a call takes."""


def transfer_weights(trainer: TrainerGroup, engines: EngineGroup, policy_version: int) -> Transfer:
    """Give the engines the trainer's weights, bucket by bucket: they load one while the trainer writes the next."""
    buckets: list[Bucket] = []
    loading: list[Call] = []
    for bucket in trainer.buckets(BUCKET_BYTES):
        if not buckets:
            started = time.perf_counter()
            engines.start_update()
        engines.loaded(loading)
        loading = engines.begin_load(bucket)
        buckets.append(bucket)
    engines.loaded(loading)
    engines.finish_update(policy_version)
    return Transfer(
        bytes=sum(bucket.bytes for bucket in buckets),
        weights_sha256=weights_sha256(tensor for bucket in buckets for tensor in bucket.tensors),
        seconds=time.perf_counter() - started,
    )
