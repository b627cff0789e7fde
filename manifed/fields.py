"""The immutable base of configs and messages, and the numbers that their fields are made of.

A field says by its type what it takes: ``num_rounds: PositiveCount`` refuses 0 with the same line
wherever it stands.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from manifed.errors import ConfigError, short

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(gt=0, le=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
PositiveCount = Annotated[int, Field(ge=1)]
WholeNumber = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]
Values = Mapping[str, Any]
"""Values by name that are read: a table of a config, a statement, what a file says."""
Document = dict[str, Any]
"""Values by name that are made, as JSON and TOML hold them."""

BY_KIND = Field(discriminator="kind")
"""Beside a union of models: its member is the one whose ``kind`` is given."""


class Record(BaseModel):
    """An immutable value object that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Frozen(Record):
    """A record that a person may make, so that wrong fields are told in one line."""

    def __init__(self, **fields: Any) -> None:
        """Takes the fields by name.

        Raises:
            ConfigError: naming the first wrong field, what was expected, and what came.
        """
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise ConfigError(_said(error, type(self))) from None

    # a table inside another one is read without `__init__`, so that its errors keep their places
    __init__.__pydantic_base_init__ = True  # pyright: ignore[reportFunctionMemberAccess]


@lru_cache(maxsize=16)
def fingerprint(record: Record) -> bytes:
    """Returns the SHA-256 of all that a record says, to which keys and signatures are bound."""
    said = json.dumps(record.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(said.encode()).digest()


class KeyFiles(Frozen):
    """Base of configs of nodes that sign: the files of their Ed25519 keys."""

    where: ClassVar[str]
    """The table of a config in which they stand."""
    pinned_keys: str | None = None
    """Absolute path, on every node, of a file with a line ``node key`` per node (Ed25519 public
    keys). None: what is exchanged holds against a server that only reads, not against one that
    changes messages."""
    signing_keys: str | None = None
    """Absolute path, on every node, of its Ed25519 private key. ``{node}`` stands for its number.
    """

    @model_validator(mode="after")
    def _has_both_keys(self) -> Self:
        for name in KeyFiles.model_fields:
            path = getattr(self, name)
            if path is not None and not Path(path).is_absolute():
                raise ValueError(f"{self.where}.{name}: expected an absolute path, got {path!r}")
        if (self.pinned_keys is None) != (self.signing_keys is None):
            raise ValueError(
                f"{self.where}.pinned_keys, {self.where}.signing_keys: expected both or none"
            )
        return self


def _said(error: ValidationError, model: type[BaseModel]) -> str:
    first = min(error.errors(include_url=False), key=lambda one: one["type"] != "extra_forbidden")
    text = first["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    text = text.replace("String should match", "expected")
    where = ".".join(map(str, first["loc"]))
    kind, known = first["type"], model.model_fields
    if kind == "value_error":
        return f"{where}: {text}" if where else text
    if kind == "missing":
        return f"{where}: required, but not given"
    if kind == "extra_forbidden":
        own = f"; those of {model.__name__} are {sorted(known)}" if where == first["loc"][0] else ""
        return f"{where}: expected no such field{own}"
    if kind.startswith(("union_tag", "model_attributes")):
        kinds = get_args(known[str(first["loc"][0])].annotation)
        text = "expected " + " or ".join(getattr(one, "__name__", str(one)) for one in kinds)
    return f"{where}: {text}, got {short(first['input'])}"
