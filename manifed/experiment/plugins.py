"""Parts that live in packages of their own: a table whose kind is ``package.module:Class``.

Nothing is registered. The string names a class, the table is an object of that class, and the class
has the interface of the union in which its name stands: a frozen pydantic model, or a frozen
dataclass. What it is made of is part of the experiment: the hash of its source goes into the hash
of the config.

The one rule for where its module is found: where Python finds modules by itself, then in the folder
of the config file, then in the current folder. A run notes these folders in its manifest, and who
reads its folder later looks there, and in the folder that is current then. A config that comes from
somebody else, by a Flower run config or to a site, adds no folder.
"""

import dataclasses
import inspect
import json
import os
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeGuard

from pydantic import BaseModel, GetCoreSchemaHandler, SerializationInfo, create_model
from pydantic_core import CoreSchema, PydanticCustomError, SchemaValidator, core_schema

from manifed.errors import ConfigError
from manifed.privacy.events import Frozen
from manifed.problems.sources import look_in, looked_in, named, source_sha256


class NotAPlugin(ValueError):
    """A string that names no class that a table can be; the text says why, in one line."""


@dataclass(frozen=True)
class Plugin:
    """A class that a kind names, and the model of its table."""

    cls: type
    model: type[BaseModel]


def is_plugin(kind: object) -> TypeGuard[str]:
    """Whether a kind names a class instead of a part of this library."""
    return isinstance(kind, str) and ":" in kind


@lru_cache(maxsize=64)
def plugin_of(kind: str) -> Plugin:
    """The class that ``kind`` names, imported.

    Raises:
        NotAPlugin: not of that form, not importable, no class, not frozen, or without ``kind``.
    """
    try:
        cls = named(kind, "Class")
    except ValueError as error:
        raise NotAPlugin(str(error)) from None
    if not isinstance(cls, type):
        raise NotAPlugin(f"expected a class, got {kind!r}, which is {type(cls).__name__}")
    try:
        model = _model_of(cls, kind)
    except NotAPlugin:
        raise
    except Exception as error:
        raise NotAPlugin(f"{kind!r}: no fields that a table can hold ({_said(error)})") from None
    if "kind" not in model.model_fields:
        raise NotAPlugin(f"{kind!r} needs the field kind: Literal[{kind!r}] = {kind!r}")
    return Plugin(cls, model)


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _model_of(cls: type, kind: str) -> type[BaseModel]:
    """The pydantic model that reads the table of a class."""
    if issubclass(cls, BaseModel):
        if cls.model_config.get("frozen") and cls.model_config.get("extra") == "forbid":
            return cls
        raise NotAPlugin(
            f"expected a frozen model that forbids unknown keys, got {kind!r}; derive it from "
            "manifed.privacy.events.Frozen"
        )
    if not dataclasses.is_dataclass(cls) or not cls.__dataclass_params__.frozen:
        raise NotAPlugin(f"expected a frozen pydantic model or a frozen dataclass, got {kind!r}")
    types = typing.get_type_hints(cls, include_extras=True)
    fields: dict[str, Any] = {f.name: (types[f.name], _default(f)) for f in dataclasses.fields(cls)}
    return create_model(cls.__name__, __base__=Frozen, **fields)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return ... if field.default is dataclasses.MISSING else field.default


# -- where plug-ins are found ---------------------------------------------------------------------
NOTED = "plugin_folders"
"""The key of a manifest: where the run looked for its plug-ins."""


def look_beside(config: Path) -> None:
    """Look for plug-ins as a command does that a person gives on a config file."""
    look_in([str(config.absolute().parent), str(Path.cwd())])


def look_as_noted(manifest: Path) -> None:
    """Look for plug-ins as the run of a manifest did, then in the current folder.

    A run folder may be a stranger's: the run's own folder is not looked into, nor are those that
    another user's manifest notes.
    """
    found: Any = None
    with suppress(OSError, ValueError, AttributeError, RecursionError):  # no manifest of ours
        if manifest.stat().st_uid == os.geteuid():
            found = json.loads(manifest.read_bytes()).get(NOTED)
    noted = found if isinstance(found, list) and all(isinstance(f, str) for f in found) else []
    look_in([*noted, str(Path.cwd())])


def note_of(table: Mapping[str, Any]) -> dict[str, list[str]]:
    """What the manifest of a config notes of where its plug-ins were looked for."""
    return {NOTED: looked_in()} if any(plugins_in(table)) else {}


# -- which plug-ins a table names -----------------------------------------------------------------
VARIABLE = "MANIFED_PLUGINS"
"""The environment variable that lists the packages a run config may name classes of."""


def allowed_here() -> frozenset[str]:
    """The packages in this process's `VARIABLE`, separated by commas; none where it is not set."""
    named = os.environ.get(VARIABLE, "").split(",")
    return frozenset(package.strip() for package in named) - {""}


def consent_to(table: Mapping[str, Any]) -> None:
    """Let the processes that this one starts import what a config names.

    Whoever runs a config here consents for the nodes that this command plays.
    """
    packages = {name.partition(":")[0].partition(".")[0] for _, name in plugins_in(table)}
    if packages:
        os.environ[VARIABLE] = ",".join(sorted(packages | allowed_here()))


def plugins_in(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(path, name) of what raw tables name: classes of kinds, a file's source, a module."""
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


def packages_in(table: Mapping[str, Any]) -> frozenset[str]:
    """The packages of the plug-ins that a raw table names."""
    return frozenset(_package(kind) for _, kind in plugins_in(table))


def _package(kind: str) -> str:
    return kind.partition(":")[0].partition(".")[0]


@lru_cache(maxsize=64)
def sha256_of(name: str) -> str:
    """Hash of the source of a class or function that a config names, once a process.

    Raises:
        ValueError: as `named` and `source_sha256`.
    """
    return source_sha256(named(name, "name").__module__)


def check_allowed(table: Mapping[str, Any], packages: Collection[str]) -> None:
    """Refuse a table that names a class outside of ``packages``, before anything is imported.

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


# -- what a class must have -----------------------------------------------------------------------
def check_interface(cls: type, interface: type) -> None:
    """Refuse a class that lacks members of an interface, or has them in another shape.

    Raises:
        NotAPlugin: naming all members that are missing, or the first that differs.
    """
    wanted = _members(interface)
    fields = getattr(cls, "model_fields", None) or getattr(cls, "__dataclass_fields__", {})
    abstract: frozenset[str] = getattr(cls, "__abstractmethods__", frozenset())
    name = f"{cls.__module__}:{cls.__qualname__}"
    missing = sorted(n for n in wanted if n in abstract or not (n in fields or hasattr(cls, n)))
    if missing:
        raise NotAPlugin(f"{name!r} is no {interface.__name__}: it lacks {', '.join(missing)}")
    for member in sorted(wanted):
        expected, own = getattr(interface, member, None), getattr(cls, member, None)
        if callable(expected) != callable(own):
            what = "a method" if callable(expected) else "a property or a field"
            raise NotAPlugin(f"{name!r} is no {interface.__name__}: {member} must be {what}")
        if callable(expected) and callable(own):
            _check_parameters(f"{name!r}: {member}", expected, own)


def _members(interface: type) -> set[str]:
    """The public names of a protocol, or of a base class and its bases."""
    found = set[str]()
    for base in interface.__mro__:
        if base.__module__.startswith("manifed."):
            found |= {*vars(base), *base.__annotations__}
    return {n for n in found if not n.startswith(("_", "model_"))}


def _check_parameters(what: str, expected: Callable[..., Any], own: Callable[..., Any]) -> None:
    names = list(inspect.signature(expected).parameters)
    try:
        inspect.signature(own).bind(*names)
    except TypeError:
        raise NotAPlugin(
            f"{what} must take ({', '.join(names)}), got {inspect.signature(own)}"
        ) from None


def says_nothing_of_mixing(part: Any, maker: str, base: Any) -> bool:
    """Whether a part makes records by a method of its own and only inherits ``mixes_records``.

    Args:
        part: a problem or data set of a config.
        maker: its method that makes records ("prepare", "load").
        base: the class whose ``mixes_records`` says no, for this library's own parts.
    """
    cls: Any = type(part)
    is_own = not getattr(cls, maker).__module__.startswith("manifed.")
    return is_own and cls.mixes_records is base.mixes_records


# -- a plug-in in a field of the schema -----------------------------------------------------------
@dataclass(frozen=True)
class OrPlugin:
    """Annotation of a union: or an object of a class that its kind names, with ``interface``."""

    interface: type
    or_both: type | None = None
    """A second interface, which a class has whole or not at all."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """The union's own schema; a plug-in never reaches it."""
        return core_schema.no_info_wrap_validator_function(
            self._read,
            handler(source),
            serialization=core_schema.wrap_serializer_function_ser_schema(_written, info_arg=True),
        )

    def _second(self) -> set[str]:
        """The methods that only the second interface has."""
        both: Any = self.or_both
        own = _members(both) - _members(self.interface)
        return {name for name in own if callable(getattr(both, name))}

    def _read(self, value: Any, known: Callable[[Any], Any]) -> Any:
        is_table = isinstance(value, Mapping)
        kind = value.get("kind") if is_table else getattr(value, "kind", None)
        if not is_plugin(kind):
            return known(value)
        try:
            found = plugin_of(kind)
            check_interface(found.cls, self.interface)
            if self.or_both is not None and any(hasattr(found.cls, n) for n in self._second()):
                check_interface(found.cls, self.or_both)
            if not is_table and type(value) is not found.cls:
                raise NotAPlugin(f"expected a {kind!r}, got an object of {type(value).__name__}")
            return _made(found, kind, value) if is_table else value
        except NotAPlugin as error:
            raise PydanticCustomError("plugin", "{text}", {"text": str(error)}) from None


def _made(found: Plugin, kind: str, table: Mapping[str, Any]) -> Any:
    """The object of a table; errors carry the kind in their location, as those of unions do."""
    choices = {kind: found.model.__pydantic_core_schema__}
    validator = SchemaValidator(core_schema.tagged_union_schema(choices, "kind"))
    try:
        made = validator.validate_python(dict(table))
        if found.model is not found.cls:
            made = found.cls(**{name: getattr(made, name) for name in found.model.model_fields})
        hash(made)
    except ValueError:
        raise
    except Exception as error:
        raise NotAPlugin(f"{kind!r}: expected fields that make one ({_said(error)})") from None
    return made


def _written(value: Any, known: Callable[[Any], Any], info: SerializationInfo) -> Any:
    if not is_plugin(getattr(value, "kind", None)):
        return known(value)
    found = plugin_of(value.kind)
    fields = {name: getattr(value, name) for name in found.model.model_fields}
    return found.model.model_construct(**fields).model_dump(
        mode=info.mode, exclude_none=info.exclude_none
    )
