"""Writes docs/reference/config.md from the schema: python docs/reference/write_config.py.

A key's meaning is the text that stands under it in its class (or in a class above). A kind's
meaning is the first paragraph of its class. Type, default and bounds are pydantic's. A row that
several kinds of a table share is written once.
"""

import argparse
import ast
import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from manifed.experiment.paths import options, table_at
from manifed.experiment.plugins import Kinds
from manifed.experiment.schema import Experiment
from manifed.manifolds.base import Manifold
from manifed.problems.frechet import MANIFOLDS, name_of

HERE = Path(__file__).parent
CONCERNS = {
    "name": "operator",
    "description": "operator",
    "problem": "both",
    "data": "both",
    "data.paths": "operator",
    "federation": "operator",
    "federation.num_examples": "both",
    "training": "both",
    "strategy": "operator",
    "privacy": "both",
    "evaluation": "operator",
    "evaluation.hold_out": "both",
    "evaluation.loss_range": "both",
    "engine": "operator",
    "output": "operator",
}
"""Who reads a table or a key: "both" concerns the sites as well as the operator."""
TYPES = {
    int: "integer", float: "number", bool: "true or false", str: "text", Path: "path",
    type(None): "nothing",
}  # fmt: skip
HEAD = ("| key | type | default | meaning |", "|---|---|---|---|")
READERS = {
    "both": "*For the operator and the sites.*\n",
    "operator": "*For the operator.*\n",
}
INTRODUCTION = """\
# Config reference

This page lists every key of an experiment. `python docs/reference/write_config.py` writes it from
the [schema](../../manifed/experiment/schema.py). `--set a.b=value` overrides one value. Unknown
keys are refused.

An editor with Even Better TOML or taplo completes and checks keys. The first line of a config names
the [JSON Schema](config.schema.json): `#:schema` with its path or URL, as in
`configs/quickstart.toml`. The site has it as `config.schema.json`. Plug-ins' keys are not checked.

A table with several kinds has the key `kind`, for example `kind = "rsgd"`. The kinds are in bold
print. In parentheses are the type of a key, or its possible texts, and the default. "Also" names
keys that are explained above the kinds. "None" is the default of a key that may be left out.

*For the sites*: a site should read these keys before it takes part. They say what is computed from
its records and how the records are protected. The settings of a site process are options of the
process ([site.md](../site.md)).

"""
IN_FORMULA = "See the formula of the kind."
OWN_PART = (
    'A class of your own: `kind = "package.module:Class"` ([extending.md](../extending.md)).\n'
)


@cache
def texts_under(cls: type[BaseModel]) -> dict[str, str]:
    """The text under each field of a class's own body."""
    tree = ast.parse(inspect.getsource(sys.modules[cls.__module__]))
    (body,) = (
        n.body for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == cls.__name__
    )
    found: dict[str, str] = {}
    for field, text in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            found[field.target.id] = inspect.cleandoc(str(text.value.value))
    return found


def meaning_of(cls: type[BaseModel], name: str) -> str | None:
    """What a key means; None: nobody says it."""
    for owner in cls.__mro__:
        is_ours = issubclass(owner, BaseModel) and owner.__module__.startswith("manifed.")
        if is_ours and name in texts_under(owner):
            return texts_under(owner)[name].split("\n\n")[0]
    return IN_FORMULA if re.search(rf"\b{name}\b", sentence_of(cls)) else None


def sentence_of(cls: type[BaseModel]) -> str:
    """The first paragraph of a class's text."""
    return " ".join(inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].split())


def unannotated(annotation: Any) -> Any:
    """An annotation without what pydantic reads beside it."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation


def models_of(annotation: Any) -> list[type[BaseModel]]:
    """The tables that a key may hold, in the order of the schema."""
    found = options(annotation)
    return [model for kind in found if (model := table_at(found, kind))]


def kind_of(cls: type[BaseModel]) -> str | None:
    """The value of ``kind``; None: a table without kinds."""
    field = cls.model_fields.get("kind")
    return None if field is None or field.is_required() else str(field.default)


def type_of(annotation: Any) -> str:
    """A type as a reader of TOML knows it."""
    annotation = unannotated(annotation)
    parts, origin = get_args(annotation), get_origin(annotation)
    if annotation is Manifold:
        words = [f'`"{name}"`' for name in MANIFOLDS]
    elif origin is Literal:
        words = [f"`{json.dumps(part)}`" for part in parts]
    elif origin in (Union, UnionType):
        rest = [p for p in parts if p is not type(None) and not models_of(p)]
        words = [*(["table"] if models_of(annotation) else []), *map(type_of, rest)]
    elif origin is tuple and Ellipsis not in parts and len(parts) > 1:
        words = ["[" + ", ".join(map(type_of, parts)) + "]"]
    elif origin is tuple:
        words = [f"list of {type_of(parts[0])}"]
    elif origin is not None:
        words = [f"table of {type_of(parts[1])}"]
    else:
        words = ["table" if models_of(annotation) else TYPES[annotation]]
    return " or ".join(dict.fromkeys(words))


def beside(annotation: Any) -> Iterator[Any]:
    """What pydantic reads beside the members of a type, "int >= 1 or nothing" say."""
    for part in get_args(annotation):
        yield from part.metadata if isinstance(part, FieldInfo) else beside(part)


def bounds_of(field: FieldInfo) -> str:
    """What pydantic refuses beyond, as "> 0, <= 1"."""
    signs = {
        annotated_types.Gt: (">", "gt"), annotated_types.Ge: ("≥", "ge"),
        annotated_types.Lt: ("<", "lt"), annotated_types.Le: ("≤", "le"),
    }  # fmt: skip
    found = [
        f"{sign} {getattr(bound, name):g}"
        for bound in (*field.metadata, *beside(field.annotation))
        for kind, (sign, name) in signs.items()
        if isinstance(bound, kind)
    ]
    return ", ".join(dict.fromkeys(found))


def default_of(field: FieldInfo) -> str:
    """The default as TOML has it."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        kind = kind_of(type(value))
        given = {k: v for k, v in value.model_dump(exclude_defaults=True).items() if k != "kind"}
        words = [*([f'kind = "{kind}"'] if kind else []), *(f"{k} = {v}" for k, v in given.items())]
        return f"`{{ {', '.join(words)} }}`" if words else "its defaults"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    value = name_of(value) if isinstance(value, Manifold) else value
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def line_of(text: str) -> str:
    """Text as one line of Markdown."""
    return " ".join(text.replace("``", "`").split())


def cell(text: str) -> str:
    """Text for one cell of a table."""
    return line_of(text).replace("|", "\\|")


class Row(NamedTuple):
    """A line of a table."""

    key: str
    type: str
    default: str
    meaning: str

    def line(self) -> str:
        """The line of a table as Markdown."""
        return "| " + " | ".join(map(cell, self)) + " |"

    def item(self) -> str:
        """The same as text: key, type and default, meaning."""
        meaning = "" if self.meaning == IN_FORMULA else f": {self.meaning}"
        texts = self.type.replace('"` or `"', '"`, `"')
        return f"{self.key} ({texts}; {self.default}){meaning or '.'}"


def rows_of(cls: type[BaseModel], place: str) -> Iterator[Row]:
    """A line of the table for each key of a kind."""
    for name, field in cls.model_fields.items():
        if name == "kind" and kind_of(cls) is not None:
            continue
        kind, bounds = type_of(field.annotation), bounds_of(field)
        meaning = meaning_of(cls, name) or ""
        who = CONCERNS.get(f"{place}.{name}")
        if place and who not in (None, CONCERNS[place.partition(".")[0]]):
            meaning += " " + READERS[str(who)].strip()
        yield Row(f"`{name}`", kind + (f", {bounds}" if bounds else ""), default_of(field), meaning)


def shared_of(tables: list[list[Row]]) -> tuple[list[Row], dict[str, Row]]:
    """The rows of every kind, and by key those of several kinds, with their commonest default."""
    if len(tables) == 1:
        return [], {}
    rows = [row for table in tables for row in table]
    every = [row for row in dict.fromkeys(rows) if all(row in table for table in tables)]
    defaults = Counter(row for row in rows if row not in every)
    kinds = Counter((row.key, row.type, row.meaning) for row in rows if row not in every)
    several: dict[str, Row] = {}
    for (key, kind, meaning), count in kinds.most_common():
        if count > 1 and key not in several:
            same = [
                row for row in defaults if (row.key, row.type, row.meaning) == (key, kind, meaning)
            ]
            several[key] = max(same, key=lambda row: defaults[row])
    return every, several


def also(row: Row, shared: Row) -> str:
    """How a kind names a key of several kinds."""
    return row.key if row == shared else f"{row.key} ({row.default})"


def table_of(rows: list[Row], *, is_short: bool) -> str:
    """Rows as a table in Markdown, or as a list, which a phone shows as well."""
    if is_short:
        return "\n".join(f"* {line_of(row.item())}" for row in rows) + "\n"
    return "\n".join([*HEAD, *(row.line() for row in rows)]) + "\n"


def sections_of(
    cls: type[BaseModel], place: str, written: set[type[BaseModel]], is_short: bool
) -> Iterator[str]:
    """A heading for every table below a class, each table once."""
    for name, field in cls.model_fields.items():
        models = models_of(field.rebuild_annotation())
        if not models:
            continue
        here = f"{place}.{name}".strip(".")
        fresh = [model for model in models if model not in written]
        if not fresh:
            continue
        yield f"{'###' if place else '##'} {here}\n"
        if not place:
            yield line_of(meaning_of(cls, name) or "") + " " + READERS[CONCERNS[name]]
        if any(isinstance(one, Kinds) for one in options(field.rebuild_annotation()).values()):
            yield OWN_PART
        tables = {model: list(rows_of(model, here)) for model in fresh}
        every, several = shared_of(list(tables.values()))
        several = several if is_short else {}
        if every:
            yield "Keys of every kind:\n\n" + table_of(every, is_short=is_short)
        if several:
            yield "Keys of several kinds:\n\n" + table_of(list(several.values()), is_short=True)
        for model, rows in tables.items():
            written.add(model)
            kind = kind_of(model)
            rest = [row for row in rows if row not in every]
            shared = [
                row
                for row in rest
                if row.key in several
                and row[:2] == several[row.key][:2]
                and row.meaning == several[row.key].meaning
            ]
            told = ", ".join(also(row, several[row.key]) for row in shared)
            sentence = sentence_of(model) + (f" Also {told}." if told else "")
            own = [row for row in rest if row not in shared]
            if is_short and kind and len(own) == 1:
                sentence += f" Key {own.pop().item()}"
            title = f'**`"{kind}"`**: ' if is_short else f'**`kind = "{kind}"`**: '
            if kind or place:
                yield (title if kind else "") + line_of(sentence) + "\n"
            if own:
                yield table_of(own, is_short=is_short)
        for model in fresh:
            yield from sections_of(model, here, written, is_short)


def page(*, is_short: bool = True) -> str:
    """The whole page; the long one repeats a row of several kinds at each of them."""
    top = table_of(list(rows_of(Experiment, "")), is_short=is_short)
    below = "\n".join(sections_of(Experiment, "", set(), is_short)).rstrip()
    return f"{INTRODUCTION}## The file\n\n{top}\n{below}\n"


def write(text: str, name: str, about: str | None) -> None:
    """Writes a text as the file of this name beside this module, or where --out says."""
    parser = argparse.ArgumentParser(description=(about or name).splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / name)
    parser.parse_args().out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(page(), "config.md", __doc__)
