"""Questions of general knowledge with four choices."""

from __future__ import annotations

import random
from collections.abc import Mapping

from rlcore.data.generate.split import Row, Split

LETTERS = "ABCD"
HELD_OUT_SHARE = 0.2
KNOWLEDGE: dict[str, tuple[str, Mapping[str, str]]] = {
    "capital": (
        "What is the capital of {}?",
        {
            "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin", "Austria": "Vienna",
            "Poland": "Warsaw", "Greece": "Athens", "Portugal": "Lisbon", "Norway": "Oslo", "Sweden": "Stockholm",
            "Finland": "Helsinki", "Denmark": "Copenhagen", "Hungary": "Budapest", "Ireland": "Dublin",
            "Belgium": "Brussels", "Japan": "Tokyo", "China": "Beijing", "India": "New Delhi", "Egypt": "Cairo",
            "Kenya": "Nairobi", "Peru": "Lima", "Chile": "Santiago", "Cuba": "Havana", "Canada": "Ottawa",
            "Russia": "Moscow", "Turkey": "Ankara", "Iran": "Tehran", "Iraq": "Baghdad", "Thailand": "Bangkok",
            "Vietnam": "Hanoi",
        },
    ),
    "symbol": (
        "Which chemical element has the symbol {}?",
        {
            "H": "hydrogen", "He": "helium", "Li": "lithium", "C": "carbon", "N": "nitrogen", "O": "oxygen",
            "F": "fluorine", "Ne": "neon", "Na": "sodium", "Mg": "magnesium", "Al": "aluminium", "Si": "silicon",
            "P": "phosphorus", "S": "sulfur", "Cl": "chlorine", "K": "potassium", "Ca": "calcium", "Fe": "iron",
            "Cu": "copper", "Zn": "zinc", "Ag": "silver", "Sn": "tin", "Au": "gold", "Hg": "mercury", "Pb": "lead",
        },
    ),
    "young": (
        "What is a young {} called?",
        {
            "dog": "a puppy", "cat": "a kitten", "cow": "a calf", "horse": "a foal", "sheep": "a lamb",
            "goat": "a kid", "pig": "a piglet", "hen": "a chick", "duck": "a duckling", "goose": "a gosling",
            "frog": "a tadpole", "kangaroo": "a joey", "bear": "a cub", "deer": "a fawn", "swan": "a cygnet",
        },
    ),
    "opposite": (
        'Which word means the opposite of "{}"?',
        {
            "hot": "cold", "big": "small", "fast": "slow", "early": "late", "full": "empty", "hard": "soft",
            "high": "low", "light": "dark", "long": "short", "loud": "quiet", "near": "far", "new": "old",
            "open": "closed", "rich": "poor", "right": "wrong", "safe": "dangerous", "strong": "weak", "wet": "dry",
            "thick": "thin", "first": "last",
        },
    ),
}  # fmt: skip


def multiple_choice(rng: random.Random) -> Split:
    """The choices are the right answers of other questions of the kind; every question twice, in other choices."""
    split = Split([], [])
    for tag, (question, answers) in KNOWLEDGE.items():
        subjects = list(answers)
        rng.shuffle(subjects)
        held_out = round(len(subjects) * HELD_OUT_SHARE)
        split.held_out.extend(row(rng, tag, question, answers, subject) for subject in subjects[:held_out])
        split.train.extend(row(rng, tag, question, answers, each) for each in subjects[held_out:] for _ in range(2))
    return split


def row(rng: random.Random, tag: str, question: str, answers: Mapping[str, str], subject: str) -> Row:
    right = answers[subject]
    choices = [right, *rng.sample(sorted(set(answers.values()) - {right}), len(LETTERS) - 1)]
    rng.shuffle(choices)
    lines = "\n".join(f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=True))
    return {
        "domain": "multiple_choice",
        "tag": tag,
        "prompt": f"{question.format(subject)}\n{lines}\nEnd with the letter of the right choice in \\boxed{{}}.",
        "ground_truth": LETTERS[choices.index(right)],
    }
