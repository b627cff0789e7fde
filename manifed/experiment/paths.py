"""Where a value stands in an experiment's TOML, read off the schema itself.

A location of pydantic's holds the tags of discriminated unions (``training.rsgd.step_size``); the
user wrote ``training.step_size``. The schema says which part of a location is a tag, so that no
list of names has to.
"""

import difflib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from manifed.errors import one_line
from manifed.experiment.plugins import NotAPlugin, is_plugin, plugin_of

_LONGEST_NAME = 200

Model = type[BaseModel]
Location = Sequence[int | str]


@dataclass(frozen=True)
class Place:
    """A user's path into an experiment, and the tables that could stand there."""

    path: str
    models: tuple[Model, ...]
    """Every kind that the table may be of; the one that was chosen alone, where one was."""
    kinds: tuple[Model, ...]
    """All kinds of that table, chosen or not."""


def place_of(location: Location, root: Model) -> Place:
    """The place of a pydantic error location in a table that ``root`` parses."""
    parts: list[str] = []
    models: tuple[Model, ...] = (root,)
    kinds: tuple[Model, ...] = (root,)
    for part in location:
        chosen = _chosen(models, part) if _is_known(part) else ()
        if chosen:
            models = chosen
            kinds = chosen if is_plugin(part) else kinds
            continue
        parts.append(one_line(str(part), 80))
        if isinstance(part, int) or len(models) != 1:
            continue
        field = models[0].model_fields.get(part)
        kinds = models = () if field is None else _kinds_of(models[0], part)
    return Place(".".join(parts), models, kinds)


def _is_known(part: object) -> bool:
    """Whether a part of a location can be a kind; what parsing did not import is a key."""
    return not is_plugin(part) or str(part).partition(":")[0] in sys.modules


def _chosen(kinds: tuple[Model, ...], kind: object) -> tuple[Model, ...]:
    """The table that ``kind`` selects, alone: one of several, or a plug-in's."""
    if is_plugin(kind) and kinds:
        try:
            return (plugin_of(str(kind)).model,)
        except NotAPlugin:
            return ()
    return tuple(model for model in kinds if kind_of(model) == kind)[:1] if len(kinds) > 1 else ()


def tables(annotation: Any) -> Iterator[Model]:
    """The table types of an annotation: a model, or each model of a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is Annotated:
        yield from tables(get_args(annotation)[0])
    elif get_origin(annotation) is not Literal:
        for member in get_args(annotation):
            yield from tables(member)


@cache
def kind_of(model: Model) -> str | None:
    """The value of ``kind`` that selects ``model``; None for a table without kinds."""
    field = model.model_fields.get("kind")
    if field is None:
        return None
    return next(iter(get_args(field.annotation)), field.default)


def leaves(
    model: Model, table: Mapping[str, Any], path: str = ""
) -> Iterator[tuple[str, FieldInfo, Any]]:
    """(path, field, value) of every value in a raw table that is no table itself.

    Unknown keys, and tables whose kind is missing or unknown, are left to the parser.
    """
    for key, field in model.model_fields.items():
        if key not in table:
            continue
        value, place = table[key], f"{path}.{key}" if path else key
        if not isinstance(value, Mapping):
            yield place, field, value
            continue
        kinds = _kinds_of(model, key)
        if len(kinds) > 1 or is_plugin(value.get("kind")):
            kinds = _chosen(kinds, value.get("kind"))
        for kind in kinds[:1]:
            yield from leaves(kind, value, place)


@cache
def _kinds_of(model: Model, key: str) -> tuple[Model, ...]:
    """The tables that may stand under a field."""
    return tuple(tables(model.model_fields[key].annotation))


def scalars(annotation: Any) -> set[type]:
    """The scalar types that an annotation admits, inside of tuples too."""
    if isinstance(annotation, type):
        return {annotation}
    if get_origin(annotation) is Literal:
        return {type(value) for value in get_args(annotation)}
    return {found for member in get_args(annotation) for found in scalars(member)}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that ``name`` was most likely meant to be; None when nothing is near."""
    if len(name) > _LONGEST_NAME:  # a comparison takes the square of the length
        return None
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1)), None)
