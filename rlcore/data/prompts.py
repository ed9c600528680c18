"""The prompts that a configuration names, tokenized: those to train on, and those held out."""

from __future__ import annotations

import functools
import logging
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import polars as pl

from rlcore.batches import PromptBatch
from rlcore.config import Config, DataConfig
from rlcore.data.datasets import DatasetError, load_prompts, tokenize_prompts
from rlcore.data.sampler import PromptSampler

logger = logging.getLogger(__name__)

NAMED_PROMPTS = 20
"""Dropped prompts that a log line names."""


def check_datasets(config: Config) -> None:
    """Read every data file, so that what is wrong with one is known before anything is started.

    Raises:
        FileNotFoundError, DatasetError: a file is missing or broken, or a domain that is drawn has no prompts.
    """
    domains = config.data.domain_interleave_probs
    there = set(load_prompts(config.data.train, set(domains))["domain"].unique())
    empty = sorted(domain for domain, probability in domains.items() if probability > 0 and domain not in there)
    if empty:
        raise DatasetError(
            f"data.domain_interleave_probs draws {', '.join(empty)}, but data.train has only {', '.join(sorted(there))}"
        )
    if config.data.held_out:
        load_prompts(config.data.held_out, set(domains))


def training_sampler(config: Config) -> PromptSampler:
    """The seeded order of the training prompts."""
    prompts = _tokenized(tuple(config.data.train), _domains(config.data), config.model.path, config.data.prompt_length)
    return PromptSampler(prompts, config.data.domain_interleave_probs, config.seed)


def held_out_prompts(config: Config) -> pl.DataFrame:
    """All held-out prompts, as a PromptBatch in the order of their files."""
    prompts = _tokenized(
        tuple(config.data.held_out), _domains(config.data), config.model.path, config.data.prompt_length
    )
    batch = prompts.with_columns(seed=pl.lit(0, dtype=pl.Int64), epoch=pl.lit(0, dtype=pl.Int64))
    return batch.select(PromptBatch.to_schema().columns.keys())


def _domains(data: DataConfig) -> frozenset[str]:
    return frozenset(data.domain_interleave_probs)


@functools.lru_cache(maxsize=4)
def _tokenized(paths: tuple[str, ...], domains: frozenset[str], model_path: str, prompt_length: int) -> pl.DataFrame:
    """Read, tokenized, and cut to those that fit; kept, because every iteration draws from the same ones."""
    # In a process that ends: imported, transformers is a quarter of a gigabyte that no stage needs again.
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as process:
        kept, dropped = process.submit(_tokenize, load_prompts(paths, set(domains)), model_path, prompt_length).result()
    if dropped:
        named = ", ".join(dropped[:NAMED_PROMPTS]) + (", …" if len(dropped) > NAMED_PROMPTS else "")
        logger.warning(
            "%d of %d prompts are longer than prompt_length %d and dropped: %s",
            len(dropped),
            len(dropped) + len(kept),
            prompt_length,
            named,
        )
    return kept


def _tokenize(prompts: pl.DataFrame, model_path: str, prompt_length: int) -> tuple[pl.DataFrame, list[str]]:
    from transformers import AutoTokenizer

    return tokenize_prompts(prompts, AutoTokenizer.from_pretrained(model_path), prompt_length)
