"""Reads an experiment: a TOML file and overrides ``a.b=1`` in, a frozen object out."""

import json
import tomllib
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from manifed.durable import read_regular
from manifed.errors import ConfigError, one_line, short
from manifed.experiment.paths import fault, nearest, part, plain
from manifed.experiment.plugins import (
    check_allowed,
    look_as_noted,
    plugins_in,
)
from manifed.experiment.schema import Experiment
from manifed.fields import Document, Values
from manifed.problems.data import SiteData, look_in


def load(
    path: str | Path,
    overrides: Sequence[str] = (),
    settings: Values | None = None,
    plugins: Collection[str] | None = None,
) -> Experiment:
    """Reads the experiment of ``path`` with ``overrides``, then ``settings``, applied in order.

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
            look_in([str(file.absolute().parent), str(Path.cwd())])
    return parse(table, plugins)


def table_of(
    path: str | Path, overrides: Sequence[str] = (), settings: Values | None = None
) -> Document:
    """Returns the table that `load` parses: the file's, with the overrides on top.

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
    table.setdefault("name", Path(path).stem)
    _place_files(table, Path(path).absolute().parent)
    return table


def _place_files(table: Document, folder: Path) -> None:
    """Make the path of a graph and ``data.paths`` absolute, these a list out of a pattern."""
    if isinstance(path := part(part(table, "training"), "graph").get("path"), str):
        table["training"]["graph"]["path"] = str(folder / path)
    data = part(table, "data")
    count = part(table, "federation").get("num_clients")
    paths = data.get("paths") if data.get("kind") == "file" else None
    if isinstance(paths, str) and isinstance(count, int):
        if "{partition}" not in paths:
            raise ConfigError(
                "data.paths: expected a list, or a pattern with {partition}, got one path"
            )
        paths = [paths.replace("{partition}", str(i)) for i in range(min(count, 1 << 20))]
    if isinstance(paths, list):
        table["data"]["paths"] = [
            str(folder / one) if isinstance(one, str) else one for one in paths
        ]


def parse(table: Document, plugins: Collection[str] | None = None) -> Experiment:
    """Makes the experiment of a parsed table (see `load` for arguments and errors)."""
    if plugins is not None:
        check_allowed(table, plugins)
    if _is_auto(table):
        from manifed.experiment import planner

        best, *_ = planner.planned(table, partial(parse, plugins=plugins))
        return parse(planner.with_option(table, best), plugins)
    if part(table, "privacy").get("adaptive") == "auto":
        from manifed.experiment import planner

        return parse(planner.with_clip(table, partial(parse, plugins=plugins)), plugins)
    try:
        return Experiment.model_validate(plain(table), strict=True)
    except ValidationError as error:
        raise ConfigError(fault(error, Experiment)) from None


def _is_auto(table: Values) -> bool:
    """Whether a table leaves the method to the planner."""
    return part(table, "training").get("kind") == "auto"


def parse_overrides(text: str) -> Document:
    """Reads the settings in a TOML document of single lines ``a.b = VALUE``, by dotted field.

    Nothing is guessed: a line that is no whole TOML statement, a table header, a bare word, a
    value over several lines and a field that is set twice are all refused.

    Raises:
        ConfigError: with what is wrong.
    """
    found = Document()
    try:
        tomllib.loads(text)  # refuses a field that is set twice
        for line in filter(None, map(str.strip, text.split("\n"))):
            if not line.startswith("#"):
                key, _, value = line.partition("=")
                found["".join(key.split())] = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            "overrides: expected TOML like federation.num_rounds = 50, each field once and one per "
            f"line (write \\n between two of them), strings in quotes: {error}, got {text!r}"
        ) from None
    return found


def _apply(table: Document, override: str) -> None:
    key, separator, text = (part.strip() for part in override.partition("="))
    if not separator or not all(key.split(".")):
        raise ConfigError(f"Expected an override like federation.num_rounds=50, got {override!r}")
    try:
        found = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:  # a bare word
        found = Document()
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{key}: expected a TOML value, got {one_line(str(error))}") from None
    _put(table, key, found["value"] if len(found) == 1 else text)


def _put(table: Document, key: str, value: Any) -> None:
    node, (*names, last) = table, key.split(".")
    for name in names:
        node = node.setdefault(name, {})
        if not isinstance(node, dict):
            raise ConfigError(f"Expected {key} to name a table entry, got a value at {name!r}")
    node[last] = value


# -- TOML from disk: of bounded size and depth, every fault in one line ---------------------
def read_toml(path: Path) -> Document:
    """Reads the table in a TOML file.

    Raises:
        ConfigError: in one line, for a missing, unreadable, malformed or oversized file.
    """
    shown = repr(str(path))
    try:
        return _parsed(read_regular(path, 1 << 24).decode(), shown)
    except FileNotFoundError:
        beside = nearest(path.name, (other.name for other in path.parent.glob("*.toml")))
        hint = "" if beside is None else f"; did you mean {str(path.with_name(beside))!r}?"
        raise ConfigError(
            f"Expected a config file, got {shown}, which does not exist{hint}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or error
        raise ConfigError(f"Expected a readable config file, got {shown}: {said}") from None


def _parsed(text: str, where: str, loads: Callable[[str], Any] = tomllib.loads) -> Document:
    """The table in a text, which may nest too deep, or hold an integer of thousands of digits."""
    try:
        table = loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"Expected a valid table in {where}: {one_line(str(error))}") from None
    if not isinstance(table, dict):
        raise ConfigError(f"Expected a table in {where}, got {short(table)}")
    return table


# -- as text, and its hash ------------------------------------------------------------------
def dump(config: Experiment) -> Document:
    """Returns the resolved config as plain data."""
    return config.model_dump(mode="json")


def to_toml(config: Experiment) -> str:
    """Writes the resolved config as TOML text, which `from_toml` reads back to an equal object.

    Raises:
        ConfigError: a value that TOML cannot hold (a name that is not Unicode).
    """
    import tomli_w

    try:
        text = tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))
        text.encode()
    except (UnicodeEncodeError, PydanticSerializationError) as error:
        raise ConfigError(f"Expected a config of Unicode text, got {error}") from None
    return text


def from_toml(text: str, plugins: Collection[str] | None = None) -> Experiment:
    """Reads the experiment of a resolved config's text (see `load` for arguments and errors)."""
    table = _parsed(text, "a resolved config")
    _check_resolved(table)
    return parse(table, plugins)


def without_paths(config: Experiment) -> Experiment:
    """Returns the experiment without the paths of a simulation's files, so that it may be sent."""
    data = config.data
    if not isinstance(data, SiteData) or not data.paths:
        return config
    return config.model_copy(update={"data": data.model_copy(update={"paths": ()})})


def save(config: Experiment, path: Path) -> None:
    """Writes the resolved config as TOML; `load` reads it back to an equal object."""
    path.write_text(to_toml(config), encoding="utf-8")


def table_of_canonical(text: str) -> Document:
    """Returns the table, for `parse`, of the experiment in a `canonical` text.

    What the text leaves out (how and where the run happens) is left at its defaults. Nothing is
    planned, and no plug-in is imported.

    Raises:
        ConfigError: in one line, for a text that is none, or nested too deep.
    """
    table = _parsed(text, "an experiment in JSON", json.loads)
    _check_resolved(table)
    if (evaluation := part(table, "evaluation")).get("kind") == "public":
        table["evaluation"] = {**evaluation, "path": "-"}  # the server's own
    table.pop("plugins", None)
    return table | {"engine": {"dtype": table.pop("dtype", "float64")}}


def _check_resolved(table: Values) -> None:
    """Refuse to plan what came from elsewhere: whoever sends an experiment has planned it.

    Raises:
        ConfigError: the method is left to the planner.
    """
    if _is_auto(table):
        raise ConfigError("training.kind: expected a method, which a plan has found, got 'auto'")
    if part(table, "privacy").get("adaptive") == "auto":
        raise ConfigError("privacy.adaptive: expected a table, which a plan has made, got 'auto'")
