"""Instructions about the form of the response."""

from __future__ import annotations

from collections.abc import Iterator

from rlcore.data.generate.split import Row, Split

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


def format_following() -> Split:
    """Training and held-out files have other topics."""
    return Split(list(rows(TRAIN_TOPICS)), list(rows(HELD_OUT_TOPICS)))


def rows(topics: tuple[str, ...]) -> Iterator[Row]:
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
