import subprocess
import sys
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from rlcore.batches import PromptBatch, validate
from rlcore.data.datasets import PROMPTS
from rlcore.data.sampler import PromptSampler

SIZES = {"a": 7, "b": 5, "c": 1}
SEEDS = st.integers(0, 2**40)


def prompts(sizes: dict[str, int]) -> pl.DataFrame:
    rows = [
        (f"{domain}:{i}", domain, "tag", [{"role": "user", "content": str(i)}], str(i), [i])
        for domain, size in sizes.items()
        for i in range(size)
    ]
    return pl.DataFrame(rows, schema={**PROMPTS, "prompt_ids": pl.List(pl.Int32)}, orient="row")


def sampler(seed: int, **probs: float) -> PromptSampler:
    return PromptSampler(prompts(SIZES), probs or {"a": 0.5, "b": 0.3, "c": 0.2}, seed)


@settings(deadline=None, max_examples=50)
@given(SEEDS, st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_drawing_in_two_parts_is_drawing_at_once(seed: int, cursor: int, first: int, second: int) -> None:
    whole = sampler(seed).draw(cursor, first + second)
    parts = [sampler(seed).draw(cursor, first), sampler(seed).draw(cursor + first, second)]
    assert_frame_equal(whole, pl.concat(parts))


@settings(deadline=None, max_examples=30)
@given(SEEDS)
def test_every_epoch_of_a_domain_has_each_of_its_prompts_once(seed: int) -> None:
    drawn = sampler(seed).draw(0, 200)
    for domain, size in SIZES.items():
        of_domain = drawn.filter(domain=domain)
        assert of_domain["epoch"].to_list() == [i // size for i in range(len(of_domain))]
        for epoch in range(len(of_domain) // size):
            contents = of_domain.filter(epoch=epoch)["ground_truth"].to_list()
            assert sorted(contents) == sorted(str(i) for i in range(size))


@settings(deadline=None, max_examples=30)
@given(SEEDS, st.integers(0, 1000))
def test_a_batch_in_which_epochs_end_follows_the_schema_with_unique_ids(seed: int, cursor: int) -> None:
    batch = validate(sampler(seed).draw(cursor, 64), PromptBatch)
    assert len(batch) == 64
    assert batch["epoch"].n_unique() > 1
    assert (batch["seed"] >= 0).all()
    assert batch["seed"].n_unique() == 64


@settings(deadline=None, max_examples=10)
@given(SEEDS, st.floats(0.05, 0.95))
def test_the_shares_of_domains_follow_their_probabilities(seed: int, share: float) -> None:
    counts = Counter(sampler(seed, a=share, b=1 - share, c=0.0).draw(0, 20_000)["domain"])
    # Five standard deviations of a share of 20,000 draws are at most 0.018.
    assert counts["a"] / 20_000 == pytest.approx(share, abs=0.018)
    assert counts["c"] == 0


def test_the_same_seed_gives_the_same_order_and_another_seed_another_one() -> None:
    assert_frame_equal(sampler(3).draw(10, 40), sampler(3).draw(10, 40))
    one, other = sampler(3).draw(0, 40), sampler(4).draw(0, 40)
    assert one["prompt_id"].to_list() != other["prompt_id"].to_list()
    assert not set(one["seed"]) & set(other["seed"])


def test_epochs_have_different_orders() -> None:
    only = sampler(0, a=1.0, b=0.0, c=0.0).draw(0, 70)
    orders = {tuple(only.filter(epoch=epoch)["ground_truth"]) for epoch in range(10)}
    assert len(orders) > 5


def test_the_order_of_one_domain_does_not_depend_on_the_others() -> None:
    mixed = sampler(5).draw(0, 100).filter(domain="a")["prompt_id"].to_list()
    alone = PromptSampler(prompts({"a": SIZES["a"]}), {"a": 1.0}, 5).draw(0, len(mixed))["prompt_id"].to_list()
    assert mixed == alone


def test_another_process_draws_the_same() -> None:
    program = """
from tests.data.test_sampler import sampler
print(sampler(7).draw(5, 30).select("prompt_id", "seed").write_csv(), end="")
"""
    printed = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        env={"PYTHONHASHSEED": "1"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert printed == sampler(7).draw(5, 30).select("prompt_id", "seed").write_csv()


def test_a_domain_without_prompts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"domain_interleave_probs has d, but the datasets only \['a', 'b', 'c'\]"):
        PromptSampler(prompts(SIZES), {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}, 0)


def test_prompts_without_a_probability_are_refused() -> None:
    with pytest.raises(ValueError, match="no probability for domain b, c"):
        PromptSampler(prompts(SIZES), {"a": 1.0}, 0)
