"""Instructions on the form of a response, checked by rules."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rlcore.rewards.interface import Score

Count = Annotated[int, Field(gt=0)]
Text = Annotated[str, Field(min_length=1)]


class Rule(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Lowercase(Rule):
    """Has letters, none of them upper case."""

    kind: Literal["lowercase"]


class WordCount(Rule):
    """So many words, separated by white space."""

    kind: Literal["word_count"]
    count: Count


class EndsWith(Rule):
    """Its last characters are the phrase, case included."""

    kind: Literal["ends_with"]
    phrase: Text


class Quoted(Rule):
    """Between double quotation marks, with something in between that has none."""

    kind: Literal["quoted"]


class JsonKeys(Rule):
    """A JSON object with exactly these keys."""

    kind: Literal["json_keys"]
    keys: Annotated[tuple[Text, ...], Field(min_length=1)]


class BulletList(Rule):
    """So many lines that start with `- ` or `* ` and have text, and no other line."""

    kind: Literal["bullet_list"]
    count: Count


AnyRule = Annotated[Lowercase | WordCount | EndsWith | Quoted | JsonKeys | BulletList, Field(discriminator="kind")]


class Rules(BaseModel):
    """The ground truth: what the response must satisfy, at most one rule of a kind."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rules: Annotated[tuple[AnyRule, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _one_rule_of_a_kind(self) -> Rules:
        kinds = [rule.kind for rule in self.rules]
        if len(set(kinds)) < len(kinds):
            raise ValueError(f"at most one rule of a kind, but got {', '.join(kinds)}")
        return self


def grade(response_text: str, ground_truth: str) -> Score:
    """The share of the rules that the response satisfies.

    A share, not all-or-nothing: with two rules there is something to learn from before both are met.
    White space around the response is ignored. An empty response satisfies no rule.

    Args:
        ground_truth: JSON `{"rules": [{"kind": …}, …]}`, see `Rules`.

    Components: 1 or 0 for each rule, under its kind.

    Raises:
        ValidationError: the ground truth is no such JSON.
    """
    rules = Rules.model_validate_json(ground_truth).rules
    text = response_text.strip()
    components: dict[str, float] = {str(rule.kind): float(satisfies(text, rule)) for rule in rules}
    return Score(sum(components.values()) / len(components), components)


def satisfies(text: str, rule: AnyRule) -> bool:
    """Whether the stripped text follows the rule."""
    match rule:
        case Lowercase():
            return text.islower()
        case WordCount(count=count):
            return len(text.split()) == count
        case EndsWith(phrase=phrase):
            return text.endswith(phrase)
        case Quoted():
            return len(text) > 2 and text[0] == text[-1] == '"' and '"' not in text[1:-1]
        case JsonKeys(keys=keys):
            return _json_keys(text) == sorted(set(keys))
        case BulletList(count=count):
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            bullets = [line for line in lines if line[:2] in ("- ", "* ")]
            return len(bullets) == len(lines) == count


def _json_keys(text: str) -> list[str] | None:
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return None
    return sorted(value) if isinstance(value, dict) else None
