"""The 25 verifiable instructions of IFEval (arXiv 2311.07911, table 1), each a function of text and parameters.

Words are runs of letters, digits and apostrophes, sentences end at a mark that white space follows, and languages are
told apart by py3langid. The published checks use NLTK and langdetect there, so that a count can differ by one in odd
texts; a right response is right under both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Annotated, Literal

import py3langid
from pydantic import Field, validate_call

Count = Annotated[int, Field(ge=0)]
Number = Annotated[int, Field(gt=0)]
Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[list[Text], Field(min_length=1)]
Relation = Literal["less than", "at least"]

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
ABBREVIATIONS = frozenset(
    [
        "mr",
        "mrs",
        "ms",
        "dr",
        "prof",
        "st",
        "jr",
        "sr",
        "vs",
        "etc",
        "e.g",
        "i.e",
        "inc",
        "ltd",
        "co",
        "no",
        "fig",
        "vol",
        "dept",
        "est",
        "approx",
    ]
)
SENTENCE_END = re.compile(r"[.!?。！？]+[\"'”’)\]]*(?=\s|$)")
PLACEHOLDER = re.compile(r"\[[^\[\]]*\]")
HIGHLIGHT = re.compile(r"\*\*([^*\n]+)\*\*|\*([^*\n]+)\*")
BULLET = re.compile(r"^\s*[*-]\s+\S", re.MULTILINE)
TITLE = re.compile(r"<<[^\n]+?>>")
FENCE = re.compile(r"^```\w*\n(.*)\n```$", re.DOTALL)
CONSTRAINED_RESPONSES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")

Check = Callable[..., bool]
CHECKS: dict[str, Check] = {}


def _check(name: str) -> Callable[[Check], Check]:
    """Under IFEval's name of the instruction; parameters that do not fit raise a ValidationError."""

    def register(function: Check) -> Check:
        CHECKS[name] = validate_call(function)
        return function

    return register


def _holds(count: int, relation: Relation, number: int) -> bool:
    return count < number if relation == "less than" else count >= number


def _occurrences(keyword: str, text: str) -> int:
    return len(re.findall(rf"(?<!\w){re.escape(keyword)}(?!\w)", text, re.IGNORECASE))


def _words(text: str) -> list[str]:
    return WORD.findall(text)


def _sentences(text: str) -> int:
    """How many there are; what stands behind the last mark is one more."""
    count, start = 0, 0
    for end in SENTENCE_END.finditer(text):
        before = text[start : end.start()].split()
        last = before[-1].lower().strip("(\"'“‘") if before else ""
        if end[0].startswith(".") and (
            last in ABBREVIATIONS or (re.fullmatch(r"[a-z]|\d+", last) and len(before) == 1)
        ):
            continue
        count, start = count + 1, end.end()
    return count + bool(_words(text[start:]))


@_check("keywords:existence")
def keywords_exist(text: str, *, keywords: Texts) -> bool:
    """All of them occur, in upper or lower case."""
    return all(_occurrences(keyword, text) for keyword in keywords)


@_check("keywords:frequency")
def keyword_frequency(text: str, *, keyword: Text, frequency: Count, relation: Relation) -> bool:
    return _holds(_occurrences(keyword, text), relation, frequency)


@_check("keywords:forbidden_words")
def no_forbidden_words(text: str, *, forbidden_words: Texts) -> bool:
    return not any(_occurrences(word, text) for word in forbidden_words)


@_check("keywords:letter_frequency")
def letter_frequency(
    text: str,
    *,
    letter: Annotated[str, Field(min_length=1, max_length=1)],
    let_frequency: Count,
    let_relation: Relation,
) -> bool:
    return _holds(text.lower().count(letter.lower()), let_relation, let_frequency)


@_check("language:response_language")
def response_language(text: str, *, language: Text) -> bool:
    """Of the whole text. A text without letters is of no language.

    Args:
        language: its ISO 639-1 code.
    """
    return any(character.isalpha() for character in text) and py3langid.classify(text)[0] == language.split("-")[0]


@_check("length_constraints:number_sentences")
def number_of_sentences(text: str, *, num_sentences: Count, relation: Relation) -> bool:
    return _holds(_sentences(text), relation, num_sentences)


@_check("length_constraints:number_paragraphs")
def number_of_paragraphs(text: str, *, num_paragraphs: Number) -> bool:
    """Paragraphs with the markdown divider `***` between them; none is empty."""
    parts = [part.strip() for part in re.split(r"\s?\*\*\*\s?", text)]
    # A divider before the first and one after the last do no harm.
    inner = parts[bool(not parts[0]) : len(parts) - bool(len(parts) > 1 and not parts[-1])]
    return all(inner) and len(inner) == num_paragraphs


@_check("length_constraints:number_words")
def number_of_words(text: str, *, num_words: Count, relation: Relation) -> bool:
    return _holds(len(_words(text)), relation, num_words)


@_check("length_constraints:nth_paragraph_first_word")
def nth_paragraph_first_word(text: str, *, num_paragraphs: Number, nth_paragraph: Number, first_word: Text) -> bool:
    """Paragraphs with an empty line between them, so many; the nth begins with the word."""
    paragraphs = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
    if len(paragraphs) != num_paragraphs or nth_paragraph > num_paragraphs:
        return False
    words = _words(paragraphs[nth_paragraph - 1])
    return bool(words) and words[0].lower() == first_word.lower()


@_check("detectable_content:number_placeholders")
def number_of_placeholders(text: str, *, num_placeholders: Count) -> bool:
    """At least so many of the form `[address]`."""
    return len(PLACEHOLDER.findall(text)) >= num_placeholders


@_check("detectable_content:postscript")
def postscript(text: str, *, postscript_marker: Text) -> bool:
    """A line begins with the marker, such as `P.S.`, and has text behind it."""
    marker = r"\s*".join(re.escape(part) for part in postscript_marker.split())
    return re.search(rf"^\s*{marker}\s*\S", text, re.IGNORECASE | re.MULTILINE) is not None


@_check("detectable_format:number_bullet_lists")
def number_of_bullets(text: str, *, num_bullets: Count) -> bool:
    """Exactly so many points, lines that begin with `* ` or `- `."""
    return len(BULLET.findall(text)) == num_bullets


@_check("detectable_format:constrained_response")
def constrained_response(text: str) -> bool:
    """One of `My answer is yes.`, `My answer is no.`, `My answer is maybe.`"""
    return any(option in text for option in CONSTRAINED_RESPONSES)


@_check("detectable_format:number_highlighted_sections")
def number_of_highlights(text: str, *, num_highlights: Count) -> bool:
    """At least so many parts between single or double asterisks, with text in them."""
    return sum(bool((one or two).strip()) for one, two in HIGHLIGHT.findall(text)) >= num_highlights


@_check("detectable_format:multiple_sections")
def number_of_sections(text: str, *, section_spliter: Text, num_sections: Count) -> bool:
    """At least so many, each begun by the word and a number: `Section 1`. (The parameter's name is IFEval's.)"""
    return len(re.findall(rf"(?<!\w){re.escape(section_spliter)}\s?\d+", text)) >= num_sections


@_check("detectable_format:json_format")
def json_format(text: str) -> bool:
    """All of it is JSON, in a code block or not."""
    text = text.strip()
    fenced = FENCE.match(text)
    try:
        json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        return False
    return True


@_check("detectable_format:title")
def title(text: str) -> bool:
    """A title in double angular brackets: `<<poem of joy>>`."""
    return any(found.strip("<>").strip() for found in TITLE.findall(text))


@_check("combination:two_responses")
def two_responses(text: str) -> bool:
    """Two different ones, with six asterisks between them."""
    parts = [part.strip() for part in text.split("******")]
    parts = [part for number, part in enumerate(parts) if part or 0 < number < len(parts) - 1]
    return len(parts) == 2 and all(parts) and parts[0] != parts[1]


@_check("combination:repeat_prompt")
def repeat_prompt(text: str, *, prompt_to_repeat: Text) -> bool:
    """It begins with the prompt, in upper or lower case."""
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


@_check("startend:end_checker")
def ends_with(text: str, *, end_phrase: Text) -> bool:
    """Its last characters are the phrase, in upper or lower case; a quotation mark may follow."""
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


@_check("startend:quotation")
def quotation(text: str) -> bool:
    """All of it is between double quotation marks."""
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


@_check("change_case:capital_word_frequency")
def capital_word_frequency(text: str, *, capital_frequency: Count, capital_relation: Relation) -> bool:
    """Words all of whose letters are capital."""
    return _holds(sum(word.isupper() for word in _words(text)), capital_relation, capital_frequency)


@_check("change_case:english_capital")
def english_capital(text: str) -> bool:
    """English, and in capital letters only."""
    return text.isupper() and response_language(text.lower(), language="en")


@_check("change_case:english_lowercase")
def english_lowercase(text: str) -> bool:
    """English, and without capital letters."""
    return text.islower() and response_language(text, language="en")


@_check("punctuation:no_comma")
def no_comma(text: str) -> bool:
    return "," not in text
