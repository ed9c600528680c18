"""The prompts that a configuration names, tokenized: those to train on, and those held out."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import tempfile
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import polars as pl

from rlcore.batches import PromptBatch
from rlcore.config import Config
from rlcore.data.datasets import DatasetError, load_prompts, tokenize_prompts
from rlcore.data.reasoning_gym import made_files
from rlcore.data.sampler import PromptSampler
from rlcore.data.settings import DataConfig
from rlcore.pretrained import cache_directory

logger = logging.getLogger(__name__)

NAMED_PROMPTS = 20
"""Dropped prompts that a log line names."""
WEIGHTS = {".safetensors", ".bin", ".gguf", ".pt", ".pth"}
"""Endings of a model's files that the tokens do not depend on."""


def check_datasets(config: Config) -> None:
    """Read every data file, and make what is to be made: what is wrong is known before anything is started.

    Raises:
        FileNotFoundError, DatasetError: a file is missing or broken, or a domain that is drawn has no prompts.
    """
    domains = config.data.domain_interleave_probs
    there = set(load_prompts(_training_files(config.data), set(domains))["domain"].unique())
    empty = sorted(domain for domain, probability in domains.items() if probability > 0 and domain not in there)
    if empty:
        raise DatasetError(
            f"data.domain_interleave_probs draws {', '.join(empty)}, but the prompts to train on are of "
            f"{', '.join(sorted(there))}"
        )
    if config.data.holds_out:
        load_prompts(_held_out_files(config.data), set(domains))


def training_sampler(config: Config) -> PromptSampler:
    """The seeded order of the training prompts."""
    prompts = _tokenized(
        _training_files(config.data), _domains(config.data), config.model.path, config.data.prompt_length
    )
    return PromptSampler(prompts, config.data.domain_interleave_probs, config.seed)


def held_out_prompts(config: Config) -> pl.DataFrame:
    """All held-out prompts, as a PromptBatch in the order of their files."""
    prompts = _tokenized(
        _held_out_files(config.data), _domains(config.data), config.model.path, config.data.prompt_length
    )
    batch = prompts.with_columns(seed=pl.lit(0, dtype=pl.Int64), epoch=pl.lit(0, dtype=pl.Int64))
    return batch.select(PromptBatch.to_schema().columns.keys())


def _training_files(data: DataConfig) -> tuple[str, ...]:
    return (*data.train, *(str(made_files(source)[0]) for source in data.reasoning_gym))


def _held_out_files(data: DataConfig) -> tuple[str, ...]:
    return (*data.held_out, *(str(made_files(source)[1]) for source in data.reasoning_gym if source.held_out))


def _domains(data: DataConfig) -> frozenset[str]:
    return frozenset(data.domain_interleave_probs)


@functools.lru_cache(maxsize=4)
def _tokenized(paths: tuple[str, ...], domains: frozenset[str], model_path: str, prompt_length: int) -> pl.DataFrame:
    """Read, tokenized, and cut to those that fit; kept in this process, because every iteration draws from them."""
    prompts = load_prompts(paths, set(domains))
    cached = cache_directory() / "prompts" / f"{_identity(prompts, Path(model_path), prompt_length)}.parquet"
    if not cached.is_file():
        # In a process that ends: imported, transformers is a quarter of a gigabyte that no stage needs again.
        with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as process:
            process.submit(_tokenize_to, cached, prompts, model_path, prompt_length).result()
    kept = pl.read_parquet(cached)
    dropped = json.loads(pl.read_parquet_metadata(cached)["dropped"])
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


def _identity(prompts: pl.DataFrame, model: Path, prompt_length: int) -> str:
    """sha256 over everything that decides the tokens: the prompts, and the model's files but for its weights."""
    digest = hashlib.sha256(f"{version('transformers')} {prompt_length}\n{prompts.write_ndjson()}".encode())
    for file in sorted(model.iterdir()):
        if file.is_file() and file.suffix not in WEIGHTS:
            digest.update(f"{file.name}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def _tokenize_to(cached: Path, prompts: pl.DataFrame, model_path: str, prompt_length: int) -> None:
    """Write a parquet file of the prompts that fit, with the ids of the others in its metadata."""
    from transformers import AutoTokenizer

    kept, dropped = tokenize_prompts(prompts, AutoTokenizer.from_pretrained(model_path), prompt_length)
    cached.parent.mkdir(parents=True, exist_ok=True)
    # Processes that do the same at the same time write the same.
    with tempfile.NamedTemporaryFile(dir=cached.parent, delete=False) as staging:
        kept.write_parquet(staging, metadata={"dropped": json.dumps(dropped)})
    Path(staging.name).replace(cached)
