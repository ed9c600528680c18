"""Seconds to grade mathematical answers, as in a training.

    python benchmarks/rewards.py [--quick]

Half of the ground truths are integers and half are LaTeX (fractions, roots, polynomials, intervals); half of the
answers are right, half of them boxed, behind a few sentences. The graders are those of a run, in as many processes as
this machine's configuration has, and are ready before the clock starts.
"""

from __future__ import annotations

import argparse
import random
import time
from contextlib import closing

import polars as pl

from rlcore.compose import compose
from rlcore.rewards.router import RewardRouter

AIM_SECONDS = 20.0
SEED = 0
THOUGHTS = "Let us see. First we add {a} and {b}, which is {c}. Then we divide by {a}, and so on. "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="an eighth of the answers")
    count = 512 if parser.parse_args().quick else 4096
    config = compose("arithmetic", [])
    rng = random.Random(SEED)
    rows = [answer(rng, number) for number in range(count)]
    with closing(RewardRouter(config.rewards, config.hardware.reward_processes)) as router:
        router.grade(frame(rows[:16]))
        started = time.perf_counter()
        graded = router.grade(frame(rows))
        seconds = time.perf_counter() - started
    wrong = sum(reward != right for reward, (*_, right) in zip(graded["reward"], rows, strict=True))
    if wrong:
        raise SystemExit(f"{wrong} of {count} answers have another grade than they should have")
    rate = count / seconds
    print(
        f"{count} answers in {seconds:.1f} s on {config.hardware.reward_processes} processes: {rate:.0f} a second; "
        f"4096 take {4096 / rate:.1f} s (aim ≤ {AIM_SECONDS:g})"
    )


def answer(rng: random.Random, number: int) -> tuple[str, str, float]:
    """A response, its ground truth, and the reward that it should have."""
    truth, other = (integers if number % 2 else expressions)(rng)
    right = rng.random() < 0.5
    stated = truth if right else other
    boxed = number % 2 == 0 or rng.random() < 0.5
    end = rf"So the answer is \boxed{{{stated}}}." if boxed else f"So the answer is {stated}."
    a, b = rng.randint(1, 99), rng.randint(1, 99)
    return THOUGHTS.format(a=a, b=b, c=a + b) + end, truth, float(right)


def integers(rng: random.Random) -> tuple[str, str]:
    value = rng.randint(-999, 9999)
    return str(value), str(value + rng.randint(1, 9))


def expressions(rng: random.Random) -> tuple[str, str]:
    a, b = rng.randint(2, 9), rng.randint(11, 19)
    return rng.choice(
        [
            (rf"\frac{{{a}}}{{{b}}}", rf"\frac{{{a}}}{{{b + 1}}}"),
            (rf"{a}\sqrt{{{b}}}", rf"{a + 1}\sqrt{{{b}}}"),
            (f"x^2 + {a}x + {b}", f"x^2 + {a}x - {b}"),
            (rf"\left[{a}, {b}\right)", rf"\left[{a}, {b}\right]"),
        ]
    )


def frame(rows: list[tuple[str, str, float]]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "sample_id": [str(number) for number in range(len(rows))],
            "domain": "arithmetic",
            "prompt_text": "?",
            "response_text": [response for response, *_ in rows],
            "ground_truth": [truth for _, truth, _ in rows],
        }
    )


if __name__ == "__main__":
    main()
