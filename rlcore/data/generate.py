"""Writes the three datasets that ship in configs/data: `python -m rlcore.data.generate DIR`.

Each has a train and a held-out file that share no prompt, and no problem in other words: where 3 + 4
is held out, 4 + 3 is not in training either. The same files every time, for the same version of reasoning-gym.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, NamedTuple

import reasoning_gym

SEED = 20
Row = dict[str, Any]
Pair = tuple[int, int]


class Split(NamedTuple):
    train: list[Row]
    held_out: list[Row]


# --- arithmetic -------------------------------------------------------------------------------------------------

BRIEFLY = "Reply in one short sentence."
SUM = "What is {a} + {b}?"
PRODUCTS = ("What is {a} x {b}?", "What does {a} x {b} equal?", "What is {a} times {b}?")
NAMES = ("Sam", "Mia", "Tom", "Anna", "Ben", "Lily", "Leo", "Sara")
THINGS = ("books", "coins", "apples", "cards", "pens", "stickers", "marbles", "shells")
GAINS = (
    "{name} has {a} {things} and gets {b} more {things}, so how many {things} does {name} have?",
    "{name} has {a} {things} and buys {b} more {things}, so how many {things} does {name} have?",
)
LOSS = "{name} had {a} {things} and lost {b} {things}, so how many {things} does {name} have?"
TRAIN_ROWS = 200
"""Most training rows of a tag."""


def arithmetic(rng: random.Random) -> Split:
    """Sums of 0–20, products of 2–9, and one-sentence word problems with 2–20; the ground truth is the integer."""

    def row(tag: str, prompt: str, result: int) -> Row:
        return {"domain": "arithmetic", "tag": tag, "prompt": f"{prompt} {BRIEFLY}", "ground_truth": str(result)}

    def sums(pairs: list[Pair]) -> Iterator[Row]:
        for a, b in both_orders(pairs):
            yield row("sum", SUM.format(a=a, b=b), a + b)

    def products(pairs: list[Pair]) -> Iterator[Row]:
        for wording in PRODUCTS:
            for a, b in both_orders(pairs):
                yield row("product", wording.format(a=a, b=b), a * b)

    def word_problems(pairs: list[Pair]) -> Iterator[Row]:
        for low, high in pairs:
            name, things = rng.choice(NAMES), rng.choice(THINGS)
            for wording in GAINS:
                a, b = rng.sample((low, high), 2)
                yield row("word", wording.format(name=name, things=things, a=a, b=b), a + b)
            # What is lost is less than what was there.
            a, b = low + high, low
            yield row("word", LOSS.format(name=name, things=things, a=a, b=b), a - b)

    split = Split([], [])
    for rows, numbers, held_out in (
        (sums, range(21), 32),
        (products, range(2, 10), 10),
        (word_problems, range(2, 21), 20),
    ):
        pairs = list(combinations_with_replacement(numbers, 2))
        rng.shuffle(pairs)
        split.held_out.extend(rows(pairs[:held_out]))
        train = list(rows(pairs[held_out:]))
        split.train.extend(rng.sample(train, min(len(train), TRAIN_ROWS)))
    return split


def both_orders(pairs: list[Pair]) -> list[Pair]:
    return [order for a, b in pairs for order in dict.fromkeys([(a, b), (b, a)])]


# --- reasoning_gym ----------------------------------------------------------------------------------------------

TASKS: dict[str, dict[str, Any]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
    "gcd": {"min_value": 2, "max_value": 30},
    "lcm": {"min_value": 2, "max_value": 12},
    "letter_counting": {"min_words": 2, "max_words": 3},
    "simple_equations": {"max_terms": 2, "max_value": 9, "operators_weights": [1, 0, 0]},
    "spell_backward": {"min_word_len": 3, "max_word_len": 4},
}
TASK_ROWS = (50, 16)


def reasoning_gym_mix() -> Split:
    """Six easy tasks; the ground truth is the whole entry, which the task's verifier scores with."""
    split = Split([], [])
    train_count, held_out_count = TASK_ROWS
    for task, parameters in TASKS.items():
        entries = reasoning_gym.create_dataset(task, seed=SEED, size=10 * sum(TASK_ROWS), **parameters)
        # The same words in another order (4, 6 and 6, 4) are the same problem.
        problems = {tuple(sorted(re.findall(r"\w+", entry["question"]))): entry for entry in entries}
        rows = [
            {
                "domain": "reasoning_gym",
                "tag": task,
                "prompt": f"{entry['question'].strip()} Answer with nothing but the result.",
                "ground_truth": entry,
            }
            for entry in problems.values()
        ]
        split.held_out.extend(rows[:held_out_count])
        split.train.extend(rows[held_out_count : held_out_count + train_count])
    return split


# --- format -----------------------------------------------------------------------------------------------------

TRAIN_TOPICS = (
    "the sea", "a cat", "rain", "bread", "a train", "the moon", "winter", "a garden", "coffee", "a river", "music",
    "a horse", "the forest", "a book", "snow", "a bicycle", "the city", "cheese", "a bridge", "the wind", "a teacher",
    "football", "a lighthouse", "honey", "a market", "the desert", "a violin", "spring", "an island", "a clock",
)  # fmt: skip
HELD_OUT_TOPICS = (
    "the sun", "a dog", "a storm", "soup", "a ship", "the stars", "summer", "a farm", "tea", "a lake", "painting",
    "an owl", "a mountain", "a letter",
)  # fmt: skip
ENDINGS = ("That is all.", "The end.", "Thank you.", "Have a nice day.")
KEYS = (("name", "color"), ("name", "size"), ("title", "year"), ("topic", "reason"))


def format_following(topics: tuple[str, ...]) -> Iterator[Row]:
    """For each topic one instruction of each kind; the ground truth is the rules that check it."""
    for number, topic in enumerate(topics):
        words, bullets = 3 + number % 8, 2 + number % 4
        ending, keys = ENDINGS[number % len(ENDINGS)], KEYS[number % len(KEYS)]
        lowercase = {"kind": "lowercase"}
        ends_with = {"kind": "ends_with", "phrase": ending}
        instructions: dict[str, tuple[str, list[Row]]] = {
            "lowercase": (f"Write one sentence about {topic}. Use lowercase letters only.", [lowercase]),
            "word_count": (
                f"Write exactly {words} words about {topic}.",
                [{"kind": "word_count", "count": words}],
            ),
            "ends_with": (f'Write one sentence about {topic}, and end with the words "{ending}"', [ends_with]),
            "quoted": (
                f"Write one sentence about {topic}. Put your whole answer in double quotation marks.",
                [{"kind": "quoted"}],
            ),
            "json_keys": (
                f'Describe {topic} as a JSON object with the keys "{keys[0]}" and "{keys[1]}". Write only the JSON.',
                [{"kind": "json_keys", "keys": list(keys)}],
            ),
            "bullet_list": (
                f'Write a list of {bullets} facts about {topic}. Start each line with "- " and write nothing else.',
                [{"kind": "bullet_list", "count": bullets}],
            ),
            "two_rules": (
                f'In lowercase letters only, write about {topic}, and end with the words "{ending.lower()}"',
                [lowercase, {"kind": "ends_with", "phrase": ending.lower()}],
            ),
        }
        for tag, (prompt, rules) in instructions.items():
            yield {"domain": "format", "tag": tag, "prompt": prompt, "ground_truth": {"rules": rules}}


# ----------------------------------------------------------------------------------------------------------------


def write_all(directory: Path) -> None:
    """Write `{arithmetic,reasoning_gym,format}.{train,held_out}.jsonl`."""
    directory.mkdir(parents=True, exist_ok=True)
    datasets = {
        "arithmetic": arithmetic(random.Random(SEED)),
        "reasoning_gym": reasoning_gym_mix(),
        "format": Split(list(format_following(TRAIN_TOPICS)), list(format_following(HELD_OUT_TOPICS))),
    }
    for name, split in datasets.items():
        for part, rows in split._asdict().items():
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            (directory / f"{name}.{part}.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m rlcore.data.generate DIR")
    write_all(Path(sys.argv[1]))
