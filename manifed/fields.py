"""The immutable base of configs and messages, and the numbers that their fields are made of.

A field says by its type what it takes: ``num_rounds: PositiveCount`` refuses 0 with the same line
wherever it stands.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(gt=0, le=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
PositiveCount = Annotated[int, Field(ge=1)]
WholeNumber = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]

BY_KIND = Field(discriminator="kind")
"""Beside a union of models: its member is the one whose ``kind`` is given."""


class Frozen(BaseModel):
    """An immutable value object that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
