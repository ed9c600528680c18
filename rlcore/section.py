"""What every section of the configuration is."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class Section(BaseModel):
    """A frozen group of settings that refuses unknown keys. A number where a text belongs is that text (`run=1`)."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), coerce_numbers_to_str=True)
