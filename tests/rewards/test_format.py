import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rlcore.rewards.format import grade

WORD = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=8)


def reward(text: str, *rules: dict[str, Any]) -> float:
    return grade(text, json.dumps({"rules": rules})).reward


@given(st.lists(WORD, min_size=1, max_size=12))
def test_lowercase_words_pass_and_one_capital_fails(words: list[str]) -> None:
    text = " ".join(words)
    assert reward(text, {"kind": "lowercase"}) == 1
    assert reward(text.capitalize(), {"kind": "lowercase"}) == 0


@given(st.lists(WORD, min_size=1, max_size=12), st.integers(1, 12), st.sampled_from([" ", "\n", "  \t"]))
def test_exactly_the_counted_words_pass(words: list[str], count: int, space: str) -> None:
    assert reward(space.join(words), {"kind": "word_count", "count": count}) == (len(words) == count)


@given(st.text(), st.text(min_size=1).map(str.strip).filter(bool))
def test_text_followed_by_the_phrase_ends_with_it(text: str, phrase: str) -> None:
    assert reward(text + phrase + " \n", {"kind": "ends_with", "phrase": phrase}) == 1
    assert reward(text + phrase + "!", {"kind": "ends_with", "phrase": phrase + "?"}) == 0


@given(WORD)
def test_one_pair_of_quotation_marks_around_all_passes(word: str) -> None:
    assert reward(f' "{word}" ', {"kind": "quoted"}) == 1
    for text in (word, f'"{word}', f'{word}"', f'"{word}" and "{word}"', '""', '"'):
        assert reward(text, {"kind": "quoted"}) == 0


@given(st.dictionaries(WORD, st.integers() | WORD, min_size=1, max_size=4), WORD)
def test_a_json_object_passes_with_exactly_the_keys(value: dict[str, Any], other: str) -> None:
    rule = {"kind": "json_keys", "keys": list(value)}
    assert reward(json.dumps(value), rule) == 1
    assert reward(json.dumps({**value, other + "!": 1}), rule) == 0
    assert reward("Sure: " + json.dumps(value), rule) == 0


@given(st.lists(WORD, min_size=1, max_size=6), st.integers(1, 6), st.sampled_from("-*"))
def test_exactly_the_counted_bullets_and_nothing_else_pass(words: list[str], count: int, mark: str) -> None:
    rule = {"kind": "bullet_list", "count": count}
    bullets = "\n".join(f"{mark} {word}" for word in words)
    assert reward(bullets, rule) == (len(words) == count)
    assert reward("Here you are:\n" + bullets, rule) == 0


@given(st.text(max_size=40))
def test_any_text_gets_a_share_of_its_rules(text: str) -> None:
    rules: list[dict[str, Any]] = [
        {"kind": "lowercase"},
        {"kind": "word_count", "count": 2},
        {"kind": "quoted"},
        {"kind": "json_keys", "keys": ["a"]},
        {"kind": "bullet_list", "count": 1},
    ]
    score = grade(text, json.dumps({"rules": rules}))
    assert set(score.components) == {rule["kind"] for rule in rules}
    assert score.reward == sum(score.components.values()) / len(rules)


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_an_empty_response_satisfies_no_rule(text: str) -> None:
    for rule in (
        {"kind": "lowercase"},
        {"kind": "word_count", "count": 1},
        {"kind": "ends_with", "phrase": "."},
        {"kind": "quoted"},
        {"kind": "json_keys", "keys": ["a"]},
        {"kind": "bullet_list", "count": 1},
    ):
        assert reward(text, rule) == 0


def test_two_rules_give_half_a_reward_each() -> None:
    rules = ({"kind": "lowercase"}, {"kind": "ends_with", "phrase": "the end."})
    assert reward("so it was. the end.", *rules) == 1
    assert reward("So it was. the end.", *rules) == 0.5
    assert reward("So it was.", *rules) == 0


def test_json_nested_too_deeply_to_read_is_a_wrong_answer() -> None:
    assert reward("[" * 200_000, {"kind": "json_keys", "keys": ["a"]}) == 0


@pytest.mark.parametrize(
    "truth",
    [
        "{}",
        '{"rules": []}',
        '{"rules": [{"kind": "loud"}]}',
        '{"rules": [{"kind": "word_count"}]}',
        '{"rules": [{"kind": "word_count", "count": 0}]}',
        '{"rules": [{"kind": "quoted", "mark": "x"}]}',
        '{"rules": [{"kind": "quoted"}, {"kind": "quoted"}]}',
    ],
)
def test_a_ground_truth_that_is_no_rules_is_refused(truth: str) -> None:
    with pytest.raises(ValidationError):
        grade("text", truth)
