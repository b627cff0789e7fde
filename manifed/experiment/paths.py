"""Error messages of configs: where a value stands in the TOML, and what is wrong with it.

A location of pydantic's holds the tags of discriminated unions (``training.rsgd.step_size``); the
user wrote ``training.step_size``. The schema says which part of a location is a tag, so that no
list of names has to.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError

from manifed.errors import ConfigError, one_line, short
from manifed.experiment.plugins import Kinds, is_plugin
from manifed.fields import Values

_Model = type[BaseModel]
_Options = dict[str | None, _Model | Kinds]
"""The tables that may stand at a field, by kind; None is the kind of a table without kinds."""


class _Place(NamedTuple):
    """A user's path into an experiment, and the tables that could stand there."""

    path: str
    model: _Model | None
    """The table that was chosen, or the only one; None: none was."""
    options: _Options


def options(annotation: Any) -> _Options:
    """Lists the tables that an annotation admits, in tuples and unions too."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get("kind")
        kind = None if field is None else next(iter(get_args(field.annotation)), field.default)
        return {kind: annotation}
    if get_origin(annotation) is Annotated:
        inner, *beside = get_args(annotation)
        told = next((one for one in beside if isinstance(one, Kinds)), None)
        return options(inner) if told is None else dict.fromkeys(told.homes, told)
    if get_origin(annotation) is Literal:
        return {}
    return {k: m for member in get_args(annotation) for k, m in options(member).items()}


def table_at(found: _Options, kind: str | None) -> _Model | None:
    """Returns the table class of a kind or plug-in, or None if there is none."""
    home = next(iter(found.values()), None) if is_plugin(kind) else found.get(kind)
    try:
        return home.model(str(kind)) if isinstance(home, Kinds) else home
    except ValueError:
        return None


def place_of(location: Sequence[int | str], root: _Model) -> _Place:
    """Translates a pydantic error location to a place in a table that ``root`` parses."""
    parts = list[str]()
    found = _Options()
    model: _Model | None = root
    for part in location:
        if model is None and not isinstance(part, int) and (chosen := table_at(found, part)):
            model = chosen
            found = _Options({part: chosen}) if is_plugin(part) else found
            continue
        parts.append(one_line(str(part), 80))
        if model is not None and not isinstance(part, int):
            field = model.model_fields.get(part)
            found = {} if field is None else options(field.rebuild_annotation())
            only = next(iter(found.values())) if len(found) == 1 else None
            model = None if isinstance(only, Kinds) else only
    return _Place(".".join(parts), model, found)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that ``name`` was most likely meant to be; None if none is near."""
    if len(name) > 200:  # a comparison takes the square of the length
        return None
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1)), None)


# -- what pydantic refuses -------------------------------------------------------------------
def fault(error: ValidationError, root: _Model) -> str:
    """Describes the first fault: field, value, what is expected, and the nearest name."""
    first = error.errors(include_url=False)[0]
    where = (place := place_of(first["loc"], root)).path
    context = first.get("ctx", {})
    given = first.get("input")  # a list stands as a tuple there (`plain`)
    got = short(list(given) if isinstance(given, tuple) else given)
    message = first["msg"].removeprefix("Value error, ")
    kinds = [str(kind) for kind in place.options]
    match first["type"]:
        case "value_error":
            text = f"{where}: {message}" if where else message
        case "plugin":
            text = f"{where}.kind: {message}"
        case "extra_forbidden":
            text = f"{where}: unknown key; {_hint(place_of(first['loc'][:-1], root), where)}"
        case "missing":
            text = f"{where}: required, but not given"
        case "union_tag_not_found":
            text = f"{where}.kind: required, but not given; expected one of {kinds}"
        case "union_tag_invalid":
            tag = context["tag"]
            known = repr(kinds[0]) if len(kinds) == 1 else f"one of {kinds}"
            text = f"{where}.kind: expected {known}, got {short(tag)}{_meant(tag, kinds)}"
        case "literal_error":
            words = re.findall(r"'([^']*)'", context["expected"])
            text = f"{where}: expected {context['expected']}, got {got}{_meant(given, words)}"
        case _:
            text = f"{where}: {message}, got {got}"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return " ".join(f"{text}{more}".split())


def _meant(said: object, known: Iterable[str]) -> str:
    meant = nearest(str(said), known)
    return f"; did you mean {meant!r}?" if meant else ""


def _hint(owner: _Place, path: str) -> str:
    """Which kind has an unknown key, if another one does, and the nearest name of this one."""
    key = path.rpartition(".")[2]
    fields = {
        kind: model.model_fields
        for kind in owner.options
        if (model := table_at(owner.options, kind))
    }
    mine = fields
    if owner.model is not None:
        own = owner.model.model_fields
        mine = {kind: each for kind, each in fields.items() if each is own} or {None: own}
    if owners := [repr(kind) for kind, each in fields.items() if key in each]:
        verb = "has" if len(owners) == 1 else "have"
        return f"{', '.join(owners)} {verb} it, kind {' or '.join(map(repr, mine))} has not"
    known = {name for each in mine.values() for name in each}
    return _meant(key, known).removeprefix("; ") or f"expected one of {sorted(known)}"


# -- raw tables ----------------------------------------------------------------
def part(table: Values, name: str) -> Values:
    """Returns the table of that name in a raw table; an empty one where there is none."""
    found = table.get(name)
    return found if isinstance(found, Mapping) else {}


_DEEPEST = 32
"""Levels of nesting; the schema has five."""
_SMALLEST = 1e-100
"""Size of a number that is not 0."""


def plain(value: Any, *path: str) -> Any:
    """Prepares a raw table for strict parsing, so that True is no number and "5" no integer.

    Lists become tuples.

    Raises:
        ConfigError: naming the field, for what no config holds: deep tables, text with NUL,
            integers that TOML does not promise, and numbers that are none or whose squares are.
    """
    where = ".".join(path)
    said = None
    if len(path) > _DEEPEST:
        raise ConfigError(f"Expected tables nested at most {_DEEPEST} deep, got {where}")
    if isinstance(value, Mapping):
        return {key: plain(below, *path, key) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return tuple(plain(below, *path, str(i)) for i, below in enumerate(value))
    if isinstance(value, str) and "\0" in value:
        said = "text without NUL"
    elif isinstance(value, int) and value.bit_length() > 63:  # TOML promises 64 with the sign
        said = "an integer below 2^63"
    elif isinstance(value, float) and not _SMALLEST <= abs(value or 1.0) <= 1 / _SMALLEST:
        said = f"a size between {_SMALLEST:g} and {1 / _SMALLEST:g}, where squares are numbers"
    if said is not None:
        raise ConfigError(f"{where}: expected {said}, got {short(value)}")
    return value
