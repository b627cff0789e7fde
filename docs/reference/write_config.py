"""Writes docs/reference/config.md from the schema: python docs/reference/write_config.py.

A key's meaning is the text that stands under it in its class (or in a class above), a kind's is the
first paragraph of its class. Type, default and bounds are pydantic's. A name has one unit.
"""

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from manifed.experiment.paths import options, table_at
from manifed.experiment.plugins import Kinds
from manifed.experiment.schema import Experiment
from manifed.manifolds.base import Manifold
from manifed.problems.frechet import MANIFOLDS, name_of

HERE = Path(__file__).parent
UNITS = {
    "timeout": "seconds",
    "memory_budget_mb": "MiB",
    **dict.fromkeys(
        ("num_rounds", "every", "from_round", "reserve_rounds", "no_better_for"), "rounds"
    ),
    "decay_rounds": "rounds",
    **dict.fromkeys(("num_clients", "cohort_size", "max_dropped"), "clients"),
    **dict.fromkeys(("num_nodes", "degree", "collusion"), "nodes"),
    **dict.fromkeys(("num_examples", "batch_size", "shard_size"), "examples"),
    **dict.fromkeys(("l2_norm_clip", "correction_l2_norm_clip"), "length of a gradient or upload"),
    "l1_norm_clip": "L1 length of a gradient",
    **dict.fromkeys(("local_steps", "inner_steps"), "steps"),
    **dict.fromkeys(("noise_multiplier", "quantile_noise_multiplier"), "sensitivities"),
    **dict.fromkeys(("epsilon", "local_epsilon", "max_epsilon"), "nats"),
    **dict.fromkeys(
        ("delta", "local_delta", "slack_delta", "sampling_probability", "probability"),
        "probability",
    ),
    **dict.fromkeys(("row_norm", "radius"), "distance"),
    "max_attempts": "attempts",
    "checkpoint_every": "rounds",
}
"""What a number counts; one without is a pure number, or in the data's own unit."""
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
"""Whose decision a key is: what a site must read before it takes part is "both"."""
TYPES = {
    int: "integer", float: "number", bool: "true or false", str: "text", Path: "path",
    type(None): "nothing",
}  # fmt: skip
HEAD = ("| key | type | default | unit | who | meaning |", "|---|---|---|---|---|---|")
INTRODUCTION = """\
# Config reference

Every key of an experiment. `python docs/reference/write_config.py` writes this page from the schema
([schema.py](../../manifed/experiment/schema.py)); a test compares them. A table with several kinds
is told apart by its key `kind`. `--set a.b=value` overrides one value; unknown keys are refused.

*Who*: "operator" is whoever starts the run and runs the server. "both": a site should read it as
well before it takes part, because it says what is computed from its examples, and how they are
protected. A site's own settings (its file, its limit, its ledger) are options of its process and no
part of this file ([site.md](../site.md)).

*Unit*: what a number counts; "-" is a pure number, or the unit of your own data.

`training = { kind = "auto" }` is planned when the file is read, and is one of the kinds below
afterwards ([choosing.md](../choosing.md)).

"""
OWN_PART = (
    'Or a part of your own, `kind = "package.module:Class"` ([extending.md](../extending.md)).\n'
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
            return texts_under(owner)[name]
    return "As in the formula above." if re.search(rf"\b{name}\b", sentence_of(cls)) else None


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
        words = [f'`"{part}"`' if isinstance(part, str) else f"`{part}`" for part in parts]
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


def cell(text: str) -> str:
    """Text for one cell of a table."""
    return " ".join(text.replace("``", "`").replace("|", "\\|").split())


def rows_of(cls: type[BaseModel], place: str) -> Iterator[str]:
    """A line of the table for each key of a kind."""
    yield from HEAD
    for name, field in cls.model_fields.items():
        if name == "kind" and kind_of(cls) is not None:
            continue
        kind, bounds = type_of(field.annotation), bounds_of(field)
        top = place.partition(".")[0] or name
        who = CONCERNS.get(f"{place}.{name}", CONCERNS[top])
        is_number = any(word in kind for word in ("integer", "number"))
        unit = UNITS.get(name, "-") if is_number else ""
        cells = [
            f"`{name}`",
            kind + (f", {bounds}" if bounds else ""),
            default_of(field),
            unit,
            who,
        ]
        yield "| " + " | ".join(map(cell, [*cells, meaning_of(cls, name) or ""])) + " |"


def sections_of(cls: type[BaseModel], place: str, written: set[type[BaseModel]]) -> Iterator[str]:
    """A heading for every table below a class, each table once."""
    for name, field in cls.model_fields.items():
        models = models_of(field.rebuild_annotation())
        if not models:
            continue
        here = f"{place}.{name}".strip(".")
        fresh = [model for model in models if model not in written]
        if not fresh:
            continue
        depth = "##" if not place else "###"
        yield f"{depth} {here}\n"
        meaning = meaning_of(cls, name)
        if meaning:
            yield cell(meaning) + "\n"
        if any(isinstance(one, Kinds) for one in options(field.rebuild_annotation()).values()):
            yield OWN_PART
        tables = {model: list(rows_of(model, here)) for model in fresh}
        shared = [
            row for row in next(iter(tables.values())) if all(row in t for t in tables.values())
        ]
        if len(fresh) == 1 or len(shared) == len(HEAD):
            shared = []
        else:
            yield "Keys of every kind:\n"
            yield "\n".join(shared) + "\n"
        for model, rows in tables.items():
            written.add(model)
            kind = kind_of(model)
            yield (f'**`kind = "{kind}"`**: ' if kind else "") + cell(sentence_of(model)) + "\n"
            own = [row for row in rows if row in HEAD or row not in shared]
            if len(own) > len(HEAD):
                yield "\n".join(own) + "\n"
        for model in fresh:
            yield from sections_of(model, here, written)


def page() -> str:
    """The whole page."""
    top = "\n".join(rows_of(Experiment, ""))
    below = "\n".join(sections_of(Experiment, "", set())).rstrip()
    return f"{INTRODUCTION}## The file\n\n{top}\n\n{below}\n"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=HERE / "config.md")
    parser.parse_args().out.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
