"""The one reader of experiments: a TOML file and overrides ``a.b=1`` in, a frozen object out."""

import json
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from manifed.durable import read_regular
from manifed.errors import ConfigError
from manifed.experiment.paths import check_scalars, fault, nearest
from manifed.experiment.plugins import (
    check_allowed,
    look_as_noted,
    look_beside,
    plugins_in,
)
from manifed.experiment.schema import Experiment
from manifed.problems.data import SiteData

_DEEPEST = 32
"""Levels of nesting; the schema has five."""


def load(
    path: str | Path,
    overrides: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    plugins: Collection[str] | None = None,
) -> Experiment:
    """The experiment of ``path`` with ``overrides``, then ``settings``, applied in order.

    Args:
        path: a TOML file.
        overrides: items ``a.b=VALUE`` as a person types them; a bare word is a string.
        settings: dotted field to a plain value, which no parser sees.
        plugins: the packages that a kind may name classes of; None for any, which are looked for
            beside the file too (plugins.py).

    Raises:
        ConfigError: in one line, for a missing or malformed file, an unknown key, a wrong type, a
            value out of bounds, or parts that do not fit together.
    """
    table = table_of(path, overrides, settings)
    if plugins is None and any(plugins_in(table)):
        file = Path(path)
        manifest = file.with_name("manifest.json")
        if file.name == "experiment.toml" and manifest.is_file():  # a run wrote it
            look_as_noted(manifest)
        else:
            look_beside(file)
    return parse(table, plugins)


def table_of(
    path: str | Path, overrides: Sequence[str] = (), settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The table that `load` parses: that of the file, with what is put over it.

    Raises:
        ConfigError: in one line, for a missing or malformed file or override.
    """
    table = read_toml(Path(path))
    if "problem" not in table and {"parts", "drawing"} & set(table):
        raise ConfigError(
            f"{path}: expected a config, got a figure file; draw it: python -m reproduction {path}"
        )
    for override in overrides:
        _apply(table, override)
    for key, value in (settings or {}).items():
        _put(table, key, value)
    check_depth(table, "the overrides")
    table.setdefault("name", Path(path).stem)
    _place_files(table, Path(path).absolute().parent)
    return table


def _place_files(table: dict[str, Any], folder: Path) -> None:
    """Make the path of a graph and ``data.paths`` absolute, these a list out of a pattern."""
    data, federation, training = map(table.get, ("data", "federation", "training"))
    graph = training.get("graph") if isinstance(training, dict) else None
    if isinstance(graph, dict) and isinstance(graph.get("path"), str):
        graph["path"] = str(folder / graph["path"])
    if not isinstance(data, dict) or data.get("kind") != "file":
        return
    paths = data.get("paths", [])
    count = federation.get("num_clients") if isinstance(federation, dict) else None
    if isinstance(paths, str) and isinstance(count, int) and 0 < count <= 1 << 20:
        if "{partition}" not in paths:
            raise ConfigError(
                "data.paths: expected a list, or a pattern with {partition}, got one path"
            )
        paths = [paths.replace("{partition}", str(i)) for i in range(count)]
    if isinstance(paths, list) and all(isinstance(path, str) for path in paths):
        data["paths"] = [str(folder / path) for path in paths]


def parse(table: dict[str, Any], plugins: Collection[str] | None = None) -> Experiment:
    """The experiment of a parsed table (see `load` for arguments and errors)."""
    if plugins is not None:
        check_allowed(table, plugins)
    if isinstance(table.get("evaluation"), dict) and "kind" not in table["evaluation"]:
        table = {**table, "evaluation": {"kind": "oracle", **table["evaluation"]}}
    if _is_auto(table):
        from manifed.experiment import planner

        best = planner.planned(table, lambda method: parse(method, plugins))[0]
        return parse(planner.with_option(table, best), plugins)
    check_scalars(Experiment, table)
    try:
        return Experiment.model_validate(table)
    except ValidationError as error:
        raise ConfigError(fault(error, Experiment)) from None


def _is_auto(table: Mapping[str, Any]) -> bool:
    """Whether a table leaves the method to the planner."""
    training = table.get("training")
    return isinstance(training, Mapping) and training.get("kind") == "auto"


def parse_overrides(text: str) -> dict[str, Any]:
    """The settings in a TOML document of single lines ``a.b = VALUE``, by dotted field.

    Nothing is guessed: a line that is no whole TOML statement, a table header, a bare word, a
    value over several lines and a field that is set twice are all refused.

    Raises:
        ConfigError: with the line.
    """
    found = dict[str, Any]()
    for line in text.split("\n"):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _ASSIGNMENT.fullmatch(line.strip())
        value = _toml_value(match.group(2), match.group(1)) if match else None
        if match is None or value is None:
            raise ConfigError(
                "overrides: expected TOML like federation.num_rounds = 50, one field a line "
                f"(write \\n between two of them) and strings in quotes, got {line!r}"
            )
        key = re.sub(r"\s", "", match.group(1))
        if clash := next((k for k in found if f"{k}.".startswith(f"{key}.")
                          or f"{key}.".startswith(f"{k}.")), None):  # fmt: skip
            raise ConfigError(f"overrides: expected each field once, got {clash} and {key}")
        found[key] = value[0]
    return found


_ASSIGNMENT = re.compile(r"([A-Za-z0-9_-]+(?:\s*\.\s*[A-Za-z0-9_-]+)*)\s*=(.*)")


def _apply(table: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not all(key.strip().split(".")):
        raise ConfigError(f"Expected an override like federation.num_rounds=50, got {override!r}")
    value = _toml_value(text, key.strip())
    _put(table, key.strip(), text.strip() if value is None else value[0])


def _put(table: dict[str, Any], key: str, value: Any) -> None:
    path, node = key.split("."), table
    for part in path[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise ConfigError(f"Expected {key} to name a table entry, got a value at {part!r}")
    node[path[-1]] = value


def _toml_value(text: str, key: str) -> tuple[Any] | None:
    """The one TOML value that ``text`` is; None when it is none, or more than one statement."""
    try:
        found = tomllib.loads(f"value = {text.strip()}")
    except tomllib.TOMLDecodeError:
        return None
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{key}: expected a TOML value, got {first_line(error)}") from None
    return (found["value"],) if len(found) == 1 else None


# -- TOML from disk: of bounded size and depth, every fault in one line ---------------------
def read_toml(path: Path) -> dict[str, Any]:
    """The table in a file.

    Raises:
        ConfigError: in one line, for a missing, unreadable, malformed or oversized file.
    """
    try:
        text = read_regular(path, 1 << 24).decode()
    except FileNotFoundError:
        beside = nearest(path.name, (other.name for other in path.parent.glob("*.toml")))
        hint = "" if beside is None else f"; did you mean {str(path.with_name(beside))!r}?"
        raise ConfigError(
            f"Expected a config file, got {str(path)!r}, which does not exist{hint}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or error
        raise ConfigError(f"Expected a readable config file, got {str(path)!r}: {said}") from None
    where = repr(str(path))
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"Expected tables nested at most {_DEEPEST} deep in {where}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"Expected valid TOML in {where}: {first_line(error)}") from None
    except ValueError as error:  # an integer of thousands of digits
        raise ConfigError(f"Expected valid numbers in {where}: {first_line(error)}") from None
    check_depth(table, where)
    return table


def check_depth(table: Any, where: str, longest: int | None = None) -> None:
    """Refuse tables that nest deeper than any config does, or hold a list beyond ``longest``.

    Raises:
        ConfigError: naming ``where`` the table is from.
    """
    level, depth = [table], 0
    while level:
        depth += 1
        if depth > _DEEPEST:
            raise ConfigError(f"Expected tables nested at most {_DEEPEST} deep in {where}")
        if longest is not None and any(len(n) > longest for n in level if isinstance(n, list)):
            raise ConfigError(f"Expected lists of at most {longest} entries in {where}")
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]


def first_line(error: Exception) -> str:
    """What an error says first; its type where it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)


# -- as text, and its hash ------------------------------------------------------------------
def dump(config: Experiment) -> dict[str, Any]:
    """The resolved config as plain data."""
    return config.model_dump(mode="json")


def to_toml(config: Experiment) -> str:
    """The resolved config as TOML text, which `from_toml` reads back to an equal object.

    Raises:
        ConfigError: a value that TOML cannot hold (a name that is not Unicode).
    """
    import tomli_w

    try:
        text = tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))
        text.encode()
        is_same = from_toml(text) == config
    except (UnicodeEncodeError, PydanticSerializationError) as error:
        raise ConfigError(f"Expected a config of Unicode text, got {error}") from None
    if not is_same:
        raise ConfigError("Expected a config that TOML can hold, got one that it changes")
    return text


def from_toml(text: str, plugins: Collection[str] | None = None) -> Experiment:
    """The experiment of a resolved config's text (see `load` for arguments and errors)."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"Expected a resolved config in TOML: {error}") from None
    _check_resolved(table)
    return parse(table, plugins)


def without_paths(config: Experiment) -> Experiment:
    """The experiment as it may leave a machine: without the paths of a simulation's files."""
    data = config.data
    if not isinstance(data, SiteData) or not data.paths:
        return config
    return config.model_copy(update={"data": data.model_copy(update={"paths": ()})})


def save(config: Experiment, path: Path) -> None:
    """Write the resolved config as TOML; `load` reads it back to an equal object."""
    path.write_text(to_toml(config), encoding="utf-8")


def table_of_canonical(text: str) -> dict[str, Any]:
    """The table, for `parse`, of the experiment that a `canonical` text tells.

    What the text leaves out (how and where the run happens) is left at its defaults. Nothing is
    planned, and no plug-in is imported.

    Raises:
        ConfigError: in one line, for a text that is none, or deeper or longer than any.
    """

    def integer(digits: str) -> int:
        if len(digits) > 20:
            raise ConfigError("expected integers of at most 20 digits")
        return int(digits)

    try:
        table = json.loads(text, parse_int=integer)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"expected an experiment in JSON: {first_line(error)}") from None
    if not isinstance(table, dict):
        raise ConfigError("expected an experiment in JSON, a table")
    check_depth(table, "an experiment in JSON", longest=1 << 14)
    _check_resolved(table)
    evaluation = table.get("evaluation")
    if isinstance(evaluation, dict) and evaluation.get("kind") == "public":
        evaluation["path"] = "-"  # the server's own
    table.pop("plugins", None)
    return table | {"engine": {"dtype": table.pop("dtype", "float64")}}


def _check_resolved(table: Mapping[str, Any]) -> None:
    """Refuse to plan what came from elsewhere: whoever sends an experiment has planned it.

    Raises:
        ConfigError: the method is left to the planner.
    """
    if _is_auto(table):
        raise ConfigError("training.kind: expected a method, which a plan has found, got 'auto'")
