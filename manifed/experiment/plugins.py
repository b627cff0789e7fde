"""Plug-ins in a config: a ``kind`` names a part of this library or ``package.module:Class``.

Nothing is registered and nothing is imported before a config names it. `Kinds` stands at a field of
the schema and says which names there are. A part of somebody's own derives from the base class of
its place and is a frozen pydantic model, as these are: the table is an object of that class. The
hash of its source goes into the hash of the config.

The one rule for where its module is found: where Python finds modules by itself, then in the folder
of the config file, then in the current folder. A run notes these folders in its manifest, and who
reads its folder later looks there, and in the folder that is current then. A config that comes from
somebody else, by a Flower run config or to a site, adds no folder.
"""

import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeGuard

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import (
    CoreSchema,
    PydanticCustomError,
    PydanticKnownError,
    SchemaValidator,
    core_schema,
)

from manifed.errors import ConfigError
from manifed.fields import Values
from manifed.problems.data import look_in, looked_in, named, source_sha256


def is_plugin(kind: object) -> TypeGuard[str]:
    """Whether a kind names a class instead of a part of this library."""
    return isinstance(kind, str) and ":" in kind


@dataclass(frozen=True, eq=False)
class Kinds:
    """Annotation of a field whose table is parsed by the class that its ``kind`` names."""

    base: type[BaseModel]
    """What each class derives from."""
    homes: Mapping[str, str]
    """"module:Class" below ``manifed``, by kind; the only one is the default of ``kind``."""

    def model(self, kind: str) -> type[BaseModel]:
        """Imports and returns the class that a kind names.

        Raises:
            KeyError: no kind of this field.
            ValueError: a plug-in that cannot be imported or is of another class; in one line.
        """
        if not is_plugin(kind):
            module, _, name = self.homes[kind].partition(":")
            return getattr(import_module(f"manifed.{module}"), name)
        found = named(kind, "Class")
        if not isinstance(found, type):
            raise ValueError(f"expected a class, got {kind!r}, which is {type(found).__name__}")
        if not issubclass(found, self.base):
            raise ValueError(
                f"{kind!r} is no {self.base.__name__}; derive it from "
                f"{self.base.__module__}.{self.base.__name__}"
            )
        return found

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Read by the class that the kind tells; written as what the object is."""
        return core_schema.no_info_plain_validator_function(self._read)

    def _read(self, value: Any) -> Any:
        is_table = isinstance(value, Mapping)
        if is_table and len(self.homes) == 1:
            value = {"kind": next(iter(self.homes)), **value}
        kind = value.get("kind") if is_table else getattr(value, "kind", None)
        if kind is None:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": "'kind'"})
        try:
            cls = self.model(kind)
        except (KeyError, TypeError):
            tags = ", ".join(map(repr, self.homes))
            told = {"discriminator": "'kind'", "tag": str(kind), "expected_tags": tags}
            raise PydanticKnownError("union_tag_invalid", told) from None
        except ValueError as error:
            raise PydanticCustomError("plugin", "{text}", {"text": str(error)}) from None
        if isinstance(value, cls):
            return value
        try:
            made = _validator(cls, kind).validate_python(
                dict(value) if is_table else value, strict=is_table
            )
            hash(made)
        except TypeError as error:
            said = f"{kind!r}: expected fields that make one (TypeError: {error})"
            raise PydanticCustomError("plugin", "{text}", {"text": said}) from None
        return made


@lru_cache(maxsize=256)
def _validator(cls: type[BaseModel], kind: str) -> SchemaValidator:
    """Reads the table of a class; errors have the kind in their location, as those of unions do."""
    choices = {kind: cls.__pydantic_core_schema__}
    return SchemaValidator(core_schema.tagged_union_schema(choices, "kind"))


# -- where plug-ins are found ---------------------------------------------------------------------
NOTED = "plugin_folders"
"""The key of a manifest: where the run looked for its plug-ins."""


def look_as_noted(manifest: Path) -> None:
    """Sets where plug-ins are looked for: as a manifest notes, then in the current folder.

    A run folder may be a stranger's: the run's own folder is not looked into, nor are those that
    another user's manifest notes.
    """
    found: Any = None
    with suppress(OSError, ValueError, AttributeError, RecursionError):  # no manifest of ours
        if manifest.stat().st_uid == os.geteuid():
            found = json.loads(manifest.read_bytes()).get(NOTED)
    noted = found if isinstance(found, list) and all(isinstance(f, str) for f in found) else []
    look_in([*noted, str(Path.cwd())])


def note_of(table: Values) -> dict[str, list[str]]:
    """Returns the manifest's note of where a config's plug-ins were looked for."""
    return {NOTED: looked_in()} if any(plugins_in(table)) else {}


# -- which plug-ins a table names -----------------------------------------------------------------
VARIABLE = "MANIFED_PLUGINS"
"""The environment variable that lists the packages a run config may name classes of."""


def allowed_here() -> frozenset[str]:
    """Lists the packages that `VARIABLE` of this process allows; empty if it is not set."""
    named = os.environ.get(VARIABLE, "").split(",")
    return frozenset(package.strip() for package in named) - {""}


def consent_to(table: Values) -> None:
    """Allows the processes that this one starts to import what a config names.

    Whoever runs a config here consents for the nodes that this command plays.
    """
    if packages := packages_in(table):
        os.environ[VARIABLE] = ",".join(sorted(packages | allowed_here()))


def plugins_in(table: Values) -> Iterator[tuple[str, str]]:
    """Lists (path, name) of what raw tables name: classes, a file's source, a module."""
    waiting: list[tuple[str, Any]] = [("", table)]
    while waiting:
        path, node = waiting.pop()
        if is_plugin(kind := node.get("kind")):
            yield f"{path}kind", kind
        elif kind == "file" and is_plugin(source := node.get("source")):
            yield f"{path}source", source
        elif kind == "module":
            for key in ("model", "loss"):
                if is_plugin(named_there := node.get(key)):
                    yield f"{path}{key}", named_there
        waiting += [(f"{path}{k}.", v) for k, v in node.items() if isinstance(v, Mapping)]


def packages_in(table: Values) -> frozenset[str]:
    """Lists the packages of the plug-ins that a raw table names."""
    return frozenset(_package(kind) for _, kind in plugins_in(table))


def _package(kind: str) -> str:
    return kind.partition(":")[0].partition(".")[0]


@lru_cache(maxsize=64)
def sha256_of(name: str) -> str:
    """Hashes the source of a class or function that a config names, once a process.

    Raises:
        ValueError: as `named` and `source_sha256`.
    """
    return source_sha256(named(name, "name").__module__)


def check_allowed(table: Values, packages: Collection[str]) -> None:
    """Refuses a table that names a class outside of ``packages``, before anything is imported.

    Raises:
        ConfigError: naming field and kind, and the variable that would allow it.
    """
    for path, kind in plugins_in(table):
        if _package(kind) not in packages:
            raise ConfigError(
                f"{path}: expected a plug-in that this node allows ({VARIABLE}="
                f"{','.join(sorted(packages))}), got {kind[:200]!r}; install it here and add its "
                f"package to {VARIABLE}"
            )
