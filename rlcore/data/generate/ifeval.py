"""Tasks with one or two of IFEval's instructions, each of the 25 in words and as data."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import cycle
from typing import Any

from rlcore.data.generate.format import HELD_OUT_TOPICS, TRAIN_TOPICS
from rlcore.data.generate.split import Row, Split

TASKS = ("Write a short text about {}.", "Tell me something about {}.", "Describe {} to a child.")
KEYWORDS = ("day", "people", "time", "small", "water", "old", "friend", "world")
TRAIN_ROWS, HELD_OUT_ROWS = 300, 75
COMBINABLE = (
    "keywords:existence",
    "keywords:forbidden_words",
    "length_constraints:number_words",
    "detectable_format:title",
    "startend:end_checker",
    "punctuation:no_comma",
)
"""Those that no other makes impossible."""

Instruction = tuple[str, dict[str, Any]]
"""In words, and its parameters."""


def at_least_or_less(rng: random.Random, what: str, low: int, high: int) -> tuple[str, int, str]:
    number = rng.randint(low, high)
    return rng.choice(
        [(f"at least {number} {what}", number, "at least"), (f"less than {number} {what}", number, "less than")]
    )


def keywords_existence(rng: random.Random, task: str) -> Instruction:
    words = rng.sample(KEYWORDS, 2)
    return f'Use the words "{words[0]}" and "{words[1]}".', {"keywords": words}


def keywords_frequency(rng: random.Random, task: str) -> Instruction:
    word = rng.choice(KEYWORDS)
    phrase, number, relation = at_least_or_less(rng, "times", 2, 3)
    return f'Use the word "{word}" {phrase}.', {"keyword": word, "frequency": number, "relation": relation}


def forbidden_words(rng: random.Random, task: str) -> Instruction:
    words = rng.sample(("very", "really", "nice", "good", "thing", "many"), 2)
    return f'Do not use the words "{words[0]}" and "{words[1]}".', {"forbidden_words": words}


def letter_frequency(rng: random.Random, task: str) -> Instruction:
    letter = rng.choice("bgkpw")
    phrase, number, relation = at_least_or_less(rng, "times", 3, 6)
    parameters = {"letter": letter, "let_frequency": number, "let_relation": relation}
    return f'Use the letter "{letter}" {phrase}.', parameters


def response_language(rng: random.Random, task: str) -> Instruction:
    name, code = rng.choice([("French", "fr"), ("German", "de"), ("Spanish", "es"), ("Italian", "it")])
    return f"Write in {name} only.", {"language": code}


def number_sentences(rng: random.Random, task: str) -> Instruction:
    phrase, number, relation = at_least_or_less(rng, "sentences", 2, 5)
    return f"Write {phrase}.", {"num_sentences": number, "relation": relation}


def number_paragraphs(rng: random.Random, task: str) -> Instruction:
    number = rng.randint(2, 4)
    return f"Write {number} paragraphs, with the divider *** between them.", {"num_paragraphs": number}


def number_words(rng: random.Random, task: str) -> Instruction:
    phrase, number, relation = at_least_or_less(rng, "words", 15, 40)
    return f"Write {phrase}.", {"num_words": number, "relation": relation}


def nth_paragraph(rng: random.Random, task: str) -> Instruction:
    number, word = rng.randint(2, 3), rng.choice(KEYWORDS)
    nth = rng.randint(1, number)
    text = f'Write {number} paragraphs, with an empty line between them. Paragraph {nth} begins with the word "{word}".'
    return text, {"num_paragraphs": number, "nth_paragraph": nth, "first_word": word}


def number_placeholders(rng: random.Random, task: str) -> Instruction:
    number = rng.randint(1, 3)
    text = f"Leave at least {number} placeholders in square brackets, such as [name]."
    return text, {"num_placeholders": number}


def postscript(rng: random.Random, task: str) -> Instruction:
    marker = rng.choice(("P.S.", "P.P.S"))
    return f"Add a postscript at the end that begins with {marker}", {"postscript_marker": marker}


def bullet_lists(rng: random.Random, task: str) -> Instruction:
    number = rng.randint(2, 4)
    return f"Write exactly {number} bullet points, each a line that begins with * ", {"num_bullets": number}


def constrained_response(rng: random.Random, task: str) -> Instruction:
    options = '"My answer is yes.", "My answer is no." or "My answer is maybe."'
    return f"Do you like it? Answer with one of {options}", {}


def highlighted_sections(rng: random.Random, task: str) -> Instruction:
    number = rng.randint(1, 3)
    return f"Highlight at least {number} parts with asterisks, *like this*.", {"num_highlights": number}


def multiple_sections(rng: random.Random, task: str) -> Instruction:
    number, word = rng.randint(2, 3), rng.choice(("Section", "Part"))
    text = f"Write {number} sections. Begin each with {word} and its number, such as {word} 1."
    return text, {"section_spliter": word, "num_sections": number}


def two_responses(rng: random.Random, task: str) -> Instruction:
    return "Give two different answers, with ****** between them.", {}


def repeat_prompt(rng: random.Random, task: str) -> Instruction:
    return f'Before you answer, repeat this word for word: "{task}"', {"prompt_to_repeat": task}


def end_checker(rng: random.Random, task: str) -> Instruction:
    phrase = rng.choice(("That is all.", "Is there anything else?", "The end."))
    return f'End with the words "{phrase}"', {"end_phrase": phrase}


def capital_words(rng: random.Random, task: str) -> Instruction:
    phrase, number, relation = at_least_or_less(rng, "words", 2, 5)
    text = f"Write {phrase} in capital letters only."
    return text, {"capital_frequency": number, "capital_relation": relation}


def in_words(text: str) -> Callable[[random.Random, str], Instruction]:
    """One without parameters."""
    return lambda rng, task: (text, {})


INSTRUCTIONS: dict[str, Callable[[random.Random, str], Instruction]] = {
    "keywords:existence": keywords_existence,
    "keywords:frequency": keywords_frequency,
    "keywords:forbidden_words": forbidden_words,
    "keywords:letter_frequency": letter_frequency,
    "language:response_language": response_language,
    "length_constraints:number_sentences": number_sentences,
    "length_constraints:number_paragraphs": number_paragraphs,
    "length_constraints:number_words": number_words,
    "length_constraints:nth_paragraph_first_word": nth_paragraph,
    "detectable_content:number_placeholders": number_placeholders,
    "detectable_content:postscript": postscript,
    "detectable_format:number_bullet_lists": bullet_lists,
    "detectable_format:constrained_response": constrained_response,
    "detectable_format:number_highlighted_sections": highlighted_sections,
    "detectable_format:multiple_sections": multiple_sections,
    "detectable_format:json_format": in_words("All of your answer is JSON."),
    "detectable_format:title": in_words("Give it a title in double angular brackets, such as <<a day>>."),
    "combination:two_responses": two_responses,
    "combination:repeat_prompt": repeat_prompt,
    "startend:end_checker": end_checker,
    "startend:quotation": in_words("Put all of your answer in double quotation marks."),
    "change_case:capital_word_frequency": capital_words,
    "change_case:english_capital": in_words("Write in English, in capital letters only."),
    "change_case:english_lowercase": in_words("Write in English, in lowercase letters only."),
    "punctuation:no_comma": in_words("Do not use commas."),
}


def ifeval(rng: random.Random) -> Split:
    """All instructions equally often, some with a second one. The held-out file has other topics."""
    return Split(rows(rng, TRAIN_TOPICS, TRAIN_ROWS), rows(rng, HELD_OUT_TOPICS, HELD_OUT_ROWS))


def rows(rng: random.Random, topics: tuple[str, ...], count: int) -> list[Row]:
    made: dict[str, Row] = {}
    names_in_turn = cycle(INSTRUCTIONS)
    name = next(names_in_turn)
    while len(made) < count:
        task = rng.choice(TASKS).format(rng.choice(topics))
        names = [name]
        if name in COMBINABLE and rng.random() < 0.5:
            names.append(rng.choice([other for other in COMBINABLE if other != name]))
        words, parameters = zip(*(INSTRUCTIONS[each](rng, task) for each in names), strict=True)
        prompt = " ".join([task, *words])
        ground_truth = {"instruction_id_list": names, "kwargs": list(parameters)}
        if prompt not in made:
            made[prompt] = {"domain": "ifeval", "tag": name, "prompt": prompt, "ground_truth": ground_truth}
            name = next(names_in_turn)
    return list(made.values())
