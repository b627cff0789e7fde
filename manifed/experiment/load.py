"""The one reader of experiments: a TOML file and overrides ``a.b=1`` in, a frozen object out."""

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from annotated_types import Le, Lt
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError

from manifed.errors import ConfigError, short
from manifed.experiment.figure_files import read_figure, split
from manifed.experiment.older import RENAMED, in_todays_keys
from manifed.experiment.paths import Location, Place, kind_of, leaves, nearest, place_of, scalars
from manifed.experiment.planning import auto_of, is_auto, resolved, stand_in
from manifed.experiment.plugins import check_allowed, plugins_in, sha256_of
from manifed.experiment.schema import Experiment
from manifed.experiment.toml_files import check_depth, first_line, read_toml
from manifed.problems.dataset import SiteData

_NOT_IN_THE_HASH = ("output", "engine", "description")
"""How and where a run happens; two runs that differ only there are the same experiment."""
_LATER = (
    ("federation", "num_examples"),
    ("federation", "reserve_rounds"),
    ("privacy", "noise", "noise_multiplier"),
    ("privacy", "l1_norm_clip"),
    ("training", "samples"),
    ("strategy", "average"),
    ("strategy", "momentum"),
    ("strategy", "adam"),
    ("strategy", "server_step_sizes"),
    ("data", "has_labels"),
    ("data", "edge"),
    ("problem", "clip_shares"),
    ("problem", "compute"),
)
"""Fields that came later: left at None they change no hash."""

_LONGEST_INTEGER = 63
"""Bits; TOML promises 64 with the sign."""
_MOST_DIGITS = 20
"""Of an integer in a text that came, its sign included."""
_MOST_ENTRIES = 1 << 14
"""Of a list in a text that came."""
_SMALLEST = 1e-100
"""Of a step, a clip or any other size; the largest is one over it."""
_MOST_FILES = 1 << 20
"""Clients of a pattern of files."""


def load(
    path: str | Path,
    overrides: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    plugins: Collection[str] | None = None,
) -> Experiment:
    """The experiment of ``path`` with ``overrides``, then ``settings``, applied in order.

    Args:
        path: a TOML file, or FILE.toml::CURVE for one curve of a figure file.
        overrides: items ``a.b=VALUE`` as a person types them; a bare word is a string.
        settings: dotted field to a plain value, which no parser sees.
        plugins: the packages that a kind may name classes of; None for any.

    Raises:
        ConfigError: in one line, for a missing or malformed file, an unknown key, a wrong type, a
            value out of bounds, or parts that do not fit together.
    """
    return parse(table_of(path, overrides, settings), plugins)


def table_of(
    path: str | Path, overrides: Sequence[str] = (), settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The table that `load` parses: that of the file, with what is put over it.

    Raises:
        ConfigError: in one line, for a missing or malformed file or override.
    """
    table = _read(Path(path))
    if _is_record(Path(path)):
        table = in_todays_keys(table)
    for override in overrides:
        _apply(table, override)
    for key, value in (settings or {}).items():
        _put(table, key, value)
    check_depth(table, "the overrides")
    table.setdefault("name", Path(path).stem)
    _place_files(table, Path(path).absolute().parent)
    _place_graph(table, Path(path).absolute().parent)
    return table


def _place_files(table: dict[str, Any], folder: Path) -> None:
    """Make ``data.paths`` absolute, and a list out of a pattern with {partition}."""
    data, federation = table.get("data"), table.get("federation")
    if not isinstance(data, dict) or data.get("kind") != "file":
        return
    paths = data.get("paths", [])
    count = federation.get("num_clients") if isinstance(federation, dict) else None
    if isinstance(paths, str) and isinstance(count, int) and 0 < count <= _MOST_FILES:
        if "{partition}" not in paths:
            raise ConfigError(
                "data.paths: expected a list, or a pattern with {partition}, got one path"
            )
        paths = [paths.replace("{partition}", str(i)) for i in range(count)]
    if isinstance(paths, list) and all(isinstance(path, str) for path in paths):
        data["paths"] = [str(folder / path) for path in paths]


def _place_graph(table: dict[str, Any], folder: Path) -> None:
    """Make ``training.graph.path`` absolute."""
    training = table.get("training")
    graph = training.get("graph") if isinstance(training, dict) else None
    if isinstance(graph, dict) and isinstance(graph.get("path"), str):
        graph["path"] = str(folder / graph["path"])


def parse(table: dict[str, Any], plugins: Collection[str] | None = None) -> Experiment:
    """The experiment of a parsed table (see `load` for arguments and errors)."""
    if plugins is not None:
        check_allowed(table, plugins)
    if isinstance(table.get("evaluation"), dict) and "kind" not in table["evaluation"]:
        table = {**table, "evaluation": {"kind": "oracle", **table["evaluation"]}}
    if is_auto(table):
        auto_of(table)  # its own keys first
        return parse(resolved(table, parse(stand_in(table), plugins)), plugins)
    _check_scalars(table)
    try:
        return Experiment.model_validate(table)
    except ValidationError as error:
        raise ConfigError(_one_line(error)) from None


def _is_record(path: Path) -> bool:
    """Whether a run wrote the file into its folder."""
    return path.name == "experiment.toml" and (path.parent / "manifest.json").is_file()


def _read(path: Path) -> dict[str, Any]:
    """The raw table of a config's file, or of one curve of a figure file."""
    file, curve = split(path)
    if curve is not None:
        return read_figure(file).table(curve)
    table = read_toml(file)
    if "problem" not in table and {"parts", "drawing"} & set(table):
        raise ConfigError(f"{file}: expected a config, got a figure file; name {file}::CURVE")
    return table


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


def _one_line(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = place_of(first["loc"], Experiment)
    where, context = place.path, first.get("ctx", {})
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    message = first["msg"].removeprefix("Value error, ")
    match first["type"]:
        case "value_error":
            text = f"{where}: {message}" if where else message
        case "plugin":
            text = f"{where}.kind: {message}"
        case "extra_forbidden":
            text = _unknown_key(first["loc"])
        case "missing":
            text = f"{where}: required, but not given"
        case "union_tag_not_found":
            text = f"{where}.kind: required, but not given; expected one of {_kinds(place)}"
        case "union_tag_invalid":
            meant = nearest(str(context["tag"]), _kinds(place))
            hint = f"; did you mean {meant!r}?" if meant else ""
            expected = f"expected one of {_kinds(place)}, got {short(context['tag'])}"
            text = f"{where}.kind: {expected}{hint}"
        case "literal_error":
            words = [str(word) for word in re.findall(r"'([^']*)'", context["expected"])]
            meant = nearest(str(first.get("input")), words)
            hint = f"; did you mean {meant!r}?" if meant else ""
            text = f"{where}: expected {context['expected']}, got {short(first.get('input'))}{hint}"
        case _:
            text = f"{where}: {message}, got {short(first.get('input'))}"
    return " ".join(f"{text}{more}".split())


def _unknown_key(location: Location) -> str:
    """Which kind has the key, if another one does, and the nearest name that this one has."""
    owner, whole = place_of(location[:-1], Experiment), place_of(location, Experiment)
    key = str(location[-1])
    known = {name for model in owner.models for name in model.model_fields}
    owners = [str(kind_of(m)) for m in owner.kinds if key in m.model_fields]
    hints: list[str] = []
    if (now := RENAMED.get(whole.path)) is not None:
        hints.append(f"it is called {now!r}")
    elif owners:
        mine = " or ".join(repr(kind_of(m)) for m in owner.models)
        verb = "has" if len(owners) == 1 else "have"
        hints.append(f"{', '.join(map(repr, owners))} {verb} it, kind {mine} has not")
    elif (meant := nearest(key, known)) is not None:
        hints.append(f"did you mean {meant!r}?")
    else:
        hints.append(f"expected one of {sorted(known)}")
    return "; ".join([f"{whole.path}: unknown key", *hints])


def _kinds(place: Place) -> list[str]:
    return [str(kind_of(model)) for model in place.models]


def _check_scalars(table: Mapping[str, Any]) -> None:
    """Refuse what a lax parser would turn into something else: True for 1, "5" for 5, 1 for True.

    Raises:
        ConfigError: naming the field.
    """
    for path, field, value in leaves(Experiment, table):
        admitted = scalars(field.annotation)
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, str) and "\0" in item:
                raise ConfigError(f"{path}: expected text without NUL, got {short(item)}")
            if isinstance(item, bool) and bool not in admitted and admitted & {int, float}:
                raise ConfigError(f"{path}: expected a number, got {item!r}")
            if isinstance(item, str) and str not in admitted and admitted & {int, float}:
                what = "an integer" if float not in admitted else "a number"
                raise ConfigError(f"{path}: expected {what}, got {short(item)}")
            if isinstance(item, int | float) and not isinstance(item, bool):
                _check_number(path, admitted, item, is_bounded=_has_upper_bound(field))


def _has_upper_bound(field: FieldInfo) -> bool:
    """Whether the schema itself bounds a number from above (a probability, a share)."""
    return any(isinstance(bound, Lt | Le) for bound in field.metadata)


def _check_number(path: str, admitted: set[type], item: float, *, is_bounded: bool) -> None:
    if bool in admitted and not admitted & {int, float}:
        raise ConfigError(f"{path}: expected true or false, got {short(item)}")
    if isinstance(item, int) and item.bit_length() > _LONGEST_INTEGER:
        raise ConfigError(f"{path}: expected an integer below 2^63, got {short(item)}")
    if is_bounded or item == 0 or not math.isfinite(item) or not isinstance(item, float):
        return  # bounds of its own, or refused by the parser
    if not _SMALLEST <= abs(item) <= 1 / _SMALLEST:
        raise ConfigError(
            f"{path}: expected a size between {_SMALLEST:g} and {1 / _SMALLEST:g}, where squares "
            f"and ratios are still numbers, got {item!r}"
        )


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


def canonical(config: Experiment) -> str:
    """Everything that decides the trajectory and the privacy of a run, as JSON in ASCII.

    The source of plug-ins is part of it; where a simulation finds its files is not. `sha256` is the
    hash of this text, so that whoever knows the hash can check a text before reading it.
    """
    table = config.model_dump(mode="json", exclude=set(_NOT_IN_THE_HASH))
    if isinstance(config.data, SiteData):
        del table["data"]["paths"]
    for *parts, field in _LATER:
        node: dict[str, Any] = table
        for part in parts:
            node = node.get(part) or {}
        if node.get(field, "") is None:
            del node[field]
    if config.engine.dtype != "float64":  # alone of the engine it decides the trajectory
        table["dtype"] = config.engine.dtype
    if config.evaluation.kind == "oracle":  # the only kind that there was
        del table["evaluation"]["kind"]
    if config.evaluation.kind == "public":
        del table["evaluation"]["path"]
    if sources := {name: sha256_of(name) for _, name in plugins_in(table)}:
        table["plugins"] = sources
    return json.dumps(table, sort_keys=True, separators=(",", ":"))


def sha256(config: Experiment) -> str:
    """Hash of everything that decides the trajectory and the privacy of a run (`canonical`)."""
    return hashlib.sha256(canonical(config).encode()).hexdigest()


def table_of_canonical(text: str) -> dict[str, Any]:
    """The table, for `parse`, of the experiment that a `canonical` text tells.

    What the text leaves out (how and where the run happens) is left at its defaults. Nothing is
    planned, and no plug-in is imported.

    Raises:
        ConfigError: in one line, for a text that is none, or deeper or longer than any.
    """

    def integer(digits: str) -> int:
        if len(digits) > _MOST_DIGITS:
            raise ConfigError(f"expected integers of at most {_MOST_DIGITS} digits")
        return int(digits)

    try:
        table = json.loads(text, parse_int=integer)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"expected an experiment in JSON: {first_line(error)}") from None
    if not isinstance(table, dict):
        raise ConfigError("expected an experiment in JSON, a table")
    check_depth(table, "an experiment in JSON", longest=_MOST_ENTRIES)
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
    if is_auto(table):
        raise ConfigError("training.kind: expected a method, which a plan has found, got 'auto'")
