"""Every instruction of IFEval is followed by some text and not by another."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from rlcore.rewards.ifeval import grade
from rlcore.rewards.ifeval_checks import CHECKS

LONG_ENGLISH = "the weather in the north of the country was cold and wet for most of the year"

CASES: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    (
        "keywords:existence",
        {"keywords": ["cat", "red hat"]},
        ["A Cat in a red hat", "cat; RED HAT!"],
        ["A category in a red hat", "red hat", "a cat with a red hatch"],
    ),
    (
        "keywords:frequency",
        {"keyword": "tea", "frequency": 2, "relation": "at least"},
        ["Tea, then tea", "tea tea tea"],
        ["tea", "tea steam teapot"],
    ),
    (
        "keywords:frequency",
        {"keyword": "tea", "frequency": 2, "relation": "less than"},
        ["tea", "nothing"],
        ["tea and tea"],
    ),
    ("keywords:forbidden_words", {"forbidden_words": ["bad", "ugly"]}, ["badly done"], ["so BAD", "an ugly one"]),
    (
        "keywords:letter_frequency",
        {"letter": "o", "let_frequency": 3, "let_relation": "at least"},
        ["Oh no, no"],
        ["oh no"],
    ),
    (
        "language:response_language",
        {"language": "de"},
        ["Das Wetter im Norden des Landes war kalt und nass, und niemand ging aus dem Haus."],
        [LONG_ENGLISH, "12345"],
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": "at least"},
        ["One. Two! Three?", "It cost 3.5 dollars. Dr. Smith paid. Who knows why"],
        ["One. Two!", "It cost 3.5 dollars. Dr. Smith paid."],
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": "less than"},
        ["Only one, e.g. this."],
        ["One. Two."],
    ),
    (
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        ["one\n***\ntwo", "***\none\n***\ntwo\n***"],
        ["one", "one\n***\n***\ntwo", "one\n***\ntwo\n***\nthree"],
    ),
    (
        "length_constraints:number_words",
        {"num_words": 4, "relation": "at least"},
        ["it's a fine-looking day"],
        ["it's a day", "- - - - -"],
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "weekend"},
        ["One.\n\nWeekend is near.", 'a\n\n\n"weekend", b'],
        ["One.\n\nThe weekend", "Weekend\n\nTwo", "a\n\nweekend\n\nc"],
    ),
    (
        "detectable_content:number_placeholders",
        {"num_placeholders": 2},
        ["Dear [name], at [address]", "[a][b][c]"],
        ["Dear [name]", "[a"],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        ["Bye.\nP.S. Write soon", "p.s. hello"],
        ["Bye.\nP.S.", "Bye. PS hello"],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.P.S"},
        ["Bye.\nP.P.S Write soon"],
        ["P.S. Write soon"],
    ),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["* one\n* two", "Intro:\n- one\n  - two"],
        ["* one", "* one\n* two\n- three", "*one* *two*"],
    ),
    (
        "detectable_format:constrained_response",
        {},
        ["My answer is yes.", "Well. My answer is maybe."],
        ["Yes.", "my answer is yes"],
    ),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*one* and **two**"],
        ["*one*", "* one\n* two", "** **  * *"],
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        ["Section 1\na\nSection 2\nb"],
        ["Section 1\na", "Section A\nSection B", "Subsection 1 Subsection 2"],
    ),
    (
        "detectable_format:json_format",
        {},
        ['{"a": [1, 2]}', '```json\n{"a": 1}\n```', "```\n[]\n```"],
        ["a: 1", "Here: {}", "{'a': 1}", "[" * 100_000],
    ),
    ("detectable_format:title", {}, ["<<poem of joy>>\nRoses"], ["<poem>", "<<>>", "<< >>"]),
    (
        "combination:two_responses",
        {},
        ["One way.******Another way.", "One way.\n******\nAnother way.\n******"],
        ["One way.", "Same.******Same.", "a******b******c", "******"],
    ),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "What is love?"},
        ["what is love? A song."],
        ["A song. What is love?"],
    ),
    (
        "startend:end_checker",
        {"end_phrase": "Is there more?"},
        ["Done. Is there more?", 'Done. "is there more?"'],
        ["Is there more? No."],
    ),
    ("startend:quotation", {}, ['"All of it."'], ['"Half" of it', '"', "'All of it'"]),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        ["NASA and the UN"],
        ["NASA and Un", "Nasa"],
    ),
    ("change_case:english_capital", {}, [LONG_ENGLISH.upper()], [LONG_ENGLISH, "123", "DAS WETTER WAR KALT UND NASS"]),
    ("change_case:english_lowercase", {}, [LONG_ENGLISH], [LONG_ENGLISH.title(), "das wetter war kalt und nass"]),
    ("punctuation:no_comma", {}, ["one; two"], ["one, two"]),
]


def truth(*instructions: tuple[str, dict[str, Any]]) -> str:
    names, kwargs = zip(*instructions, strict=True)
    return json.dumps({"instruction_id_list": names, "kwargs": kwargs, "key": 1000, "prompt": "…"})


def test_every_one_of_the_25_has_a_case() -> None:
    assert len(CHECKS) == 25
    assert {name for name, *_ in CASES} == CHECKS.keys()


@pytest.mark.parametrize(("name", "parameters", "text"), [(n, p, text) for n, p, right, _ in CASES for text in right])
def test_a_text_that_follows_an_instruction(name: str, parameters: dict[str, Any], text: str) -> None:
    score = grade(text, truth((name, parameters)))
    assert (score.reward, score.components) == (1.0, {name: 1.0})


@pytest.mark.parametrize(
    ("name", "parameters", "text"), [(n, p, text) for n, p, _, wrong in CASES for text in [*wrong, "", " \n"]]
)
def test_a_text_that_does_not(name: str, parameters: dict[str, Any], text: str) -> None:
    score = grade(text, truth((name, parameters)))
    assert (score.reward, score.components) == (0.0, {name: 0.0})


def test_parameters_that_are_null_are_those_of_others() -> None:
    parameters = {"keywords": ["tea"], "num_words": None, "relation": None}
    assert grade("tea", truth(("keywords:existence", parameters))).reward == 1.0


def test_several_instructions_are_a_share_or_all() -> None:
    two = truth(("punctuation:no_comma", {}), ("keywords:existence", {"keywords": ["tea"]}))
    assert grade("coffee", two).reward == 0.5
    assert grade("coffee", two).components == {"punctuation:no_comma": 1.0, "keywords:existence": 0.0}
    assert grade("coffee", two, credit="all").reward == 0.0
    assert grade("tea", two, credit="all").reward == 1.0


def test_one_instruction_several_times_is_one_component() -> None:
    name = "keywords:frequency"
    tea, cup = ({"keyword": word, "frequency": 1, "relation": "at least"} for word in ("tea", "cup"))
    score = grade("tea", truth((name, tea), (name, cup)))
    assert (score.reward, score.components) == (0.5, {name: 0.5})


def test_a_loose_reading_forgives_an_introduction_and_asterisks() -> None:
    quoted = truth(("startend:quotation", {}))
    for text in ('Sure, here it is:\n"All of it."', '"All of it."\nI hope this helps!', '*"All of it."*'):
        assert grade(text, quoted).reward == 0.0
        assert grade(text, quoted, loose=True).reward == 1.0


@pytest.mark.parametrize(
    ("ground_truth", "message"),
    [
        ("[]", "instruction_id_list|model"),
        (truth(("punctuation:no_full_stop", {})), "unknown instruction punctuation:no_full_stop; there are: "),
        (json.dumps({"instruction_id_list": [], "kwargs": []}), "at least one"),
        (json.dumps({"instruction_id_list": ["punctuation:no_comma"], "kwargs": []}), "1 instructions and 0 sets"),
        (truth(("keywords:existence", {})), "keywords"),
        (truth(("keywords:frequency", {"keyword": "a", "frequency": 1, "relation": "at most"})), "less than"),
        (truth(("punctuation:no_comma", {"commas": 3})), "commas"),
    ],
)
def test_a_ground_truth_of_another_form_says_what_is_wrong(ground_truth: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        grade("some text", ground_truth)
