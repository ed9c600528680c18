"""Instructions that a program can verify: IFEval's, with its names and parameters.

Prompt: the task, with its instructions in words. Ground truth: those as data, in the format of IFEval's own dataset.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from rlcore.rewards.ifeval_checks import CHECKS
from rlcore.rewards.interface import Score

Credit = Literal["share", "all"]


class Instructions(BaseModel):
    """The ground truth. Parameters that are null are those of other instructions, as in IFEval's files."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    instruction_id_list: tuple[str, ...]
    parameters: tuple[dict[str, Any], ...] = Field(validation_alias=AliasChoices("kwargs"))

    @model_validator(mode="after")
    def _are_known(self) -> Instructions:
        if not self.instruction_id_list or len(self.instruction_id_list) != len(self.parameters):
            raise ValueError(
                f"{len(self.instruction_id_list)} instructions and {len(self.parameters)} sets of parameters: "
                "there must be as many, and at least one"
            )
        if unknown := sorted(set(self.instruction_id_list) - CHECKS.keys()):
            raise ValueError(f"unknown instruction {', '.join(unknown)}; there are: {', '.join(sorted(CHECKS))}")
        return self


def grade(response_text: str, ground_truth: str, *, credit: Credit = "share", loose: bool = False) -> Score:
    """How many of the instructions the response follows.

    Args:
        ground_truth: JSON `{"instruction_id_list": ["punctuation:no_comma", …], "kwargs": [{…}, …]}`.
        credit: the share that is followed, or 1 if all are and else 0, which is IFEval's prompt-level accuracy.
        loose: an instruction counts as followed if the response without its first line, its last line, or its
            asterisks follows it (IFEval, section 2.3).

    Components: 1 or 0 for each instruction, under its name; the share where one is there several times.

    Raises:
        ValidationError: the ground truth is no such JSON, or has parameters that an instruction does not take.
    """
    instructions = Instructions.model_validate_json(ground_truth)
    readings = _readings(response_text) if loose else [response_text]
    followed: dict[str, list[bool]] = {}
    for name, given in zip(instructions.instruction_id_list, instructions.parameters, strict=True):
        its_own = {key: value for key, value in given.items() if value is not None}
        follows = [bool(text.strip()) and CHECKS[name](text, **its_own) for text in readings]
        followed.setdefault(name, []).append(any(follows))
    all_of_them = [each for several in followed.values() for each in several]
    share = sum(all_of_them) / len(all_of_them)
    components = {name: sum(several) / len(several) for name, several in followed.items()}
    return Score(share if credit == "share" else float(all(all_of_them)), components)


def _readings(text: str) -> list[str]:
    """The text, and without its first line, its last, or both; each with its asterisks and without."""
    lines = text.split("\n")
    cut = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return cut + [reading.replace("*", "") for reading in cut]
