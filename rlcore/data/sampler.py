"""The order in which prompts are drawn: a pure function of the seed, with one integer as its state."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from rlcore.batches import PromptBatch, validate

DOMAIN_STREAM, EPOCH_STREAM, SEED_STREAM = range(3)
"""Keys that keep the random streams of one run seed apart."""


class PromptSampler:
    """Draws prompts of several domains, each domain in epochs.

    Draw i (from 0) is of the domain that the i-th number of a random stream falls on. If n earlier
    draws were of that domain, and it has m prompts, it is number n mod m of epoch n // m, and each
    epoch is a random permutation of the domain's prompts. Nothing but the cursor, the number of draws
    so far, has to be saved to go on.
    """

    def __init__(self, prompts: pl.DataFrame, domain_interleave_probs: Mapping[str, float], seed: int) -> None:
        """
        Args:
            prompts: columns prompt_id, domain, tag, messages, prompt_ids, ground_truth. Their order counts.
            domain_interleave_probs: sums to 1; domains of probability 0 are not drawn.
            seed: of the run; not negative.

        Raises:
            ValueError: a domain has a probability but no prompts, or prompts but no probability.
        """
        drawn = {domain: p for domain, p in sorted(domain_interleave_probs.items()) if p > 0}
        there = set(prompts["domain"].unique())
        if empty := sorted(set(drawn) - there):
            raise ValueError(f"domain_interleave_probs has {', '.join(empty)}, but the datasets only {sorted(there)}")
        if forgotten := sorted(there - set(domain_interleave_probs)):
            raise ValueError(f"no probability for domain {', '.join(forgotten)}: add it to domain_interleave_probs")
        self._seed = seed
        self._domains = list(drawn)
        self._bounds = np.cumsum(list(drawn.values()))[:-1]
        self._prompts = prompts
        self._rows = {domain: np.flatnonzero(prompts["domain"] == domain) for domain in drawn}

    def draw(self, cursor: int, count: int, domain: str | None = None) -> pl.DataFrame:
        """Draws cursor … cursor + count - 1, as a PromptBatch in their order.

        `prompt_id` is `{id in the dataset}@{epoch}`: unique in a run, even where an epoch ends inside a
        batch. `seed` depends on the run's seed and the number of the draw alone.

        Cost: O(cursor + count), some nanoseconds each.

        Args:
            domain: draws of this domain alone are counted. None: those of all, which fall by the probabilities.
        """
        rows = np.empty(count, dtype=np.int64)
        epochs = np.empty(count, dtype=np.int64)
        if domain is None:
            domains = np.searchsorted(self._bounds, self._stream(DOMAIN_STREAM).random(cursor + count), side="right")
            stream: tuple[int, ...] = (SEED_STREAM,)
        else:
            domains = np.full(cursor + count, self._domains.index(domain))
            stream = (SEED_STREAM, _key(domain))
        for index, name in enumerate(self._domains):
            before = int(np.count_nonzero(domains[:cursor] == index))
            places = np.flatnonzero(domains[cursor:] == index)
            epoch, position = np.divmod(before + np.arange(len(places)), len(self._rows[name]))
            epochs[places] = epoch
            for number in np.unique(epoch):
                of_epoch = epoch == number
                rows[places[of_epoch]] = self._epoch(name, int(number))[position[of_epoch]]
        seeds = self._bits(*stream).advance(cursor).random_raw(count) >> np.uint64(1)
        batch = self._prompts[rows].with_columns(
            prompt_id=pl.col("prompt_id") + "@" + pl.Series(epochs).cast(pl.String),
            seed=pl.Series(seeds.astype(np.int64)),
            epoch=pl.Series(epochs),
        )
        return validate(batch.select(PromptBatch.to_schema().columns.keys()), PromptBatch)

    def _epoch(self, domain: str, epoch: int) -> npt.NDArray[np.int64]:
        """Rows of the domain in the order of one epoch."""
        return self._stream(EPOCH_STREAM, _key(domain), epoch).permutation(self._rows[domain])

    def _stream(self, *key: int) -> np.random.Generator:
        return np.random.Generator(self._bits(*key))

    def _bits(self, *key: int) -> np.random.PCG64:
        return np.random.PCG64(np.random.SeedSequence(self._seed, spawn_key=key))


def _key(domain: str) -> int:
    # A checksum, not hash(), which differs between processes; not the index, which other domains move.
    return zlib.crc32(domain.encode())
