"""The one reader of experiments: a TOML file and overrides ``a.b=1`` in, a frozen object out."""

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from configs.schema import Experiment

_NOT_IN_THE_HASH = {"output", "engine", "description"}
"""How and where a run happens; two runs that differ only there are the same experiment."""


class ConfigError(ValueError):
    """A config that cannot run; one line naming the field, its value and the bound."""


def load(
    path: str | Path, overrides: Sequence[str] = (), settings: Mapping[str, Any] | None = None
) -> Experiment:
    """The experiment of ``path`` with ``overrides``, then ``settings``, applied in order.

    Args:
        path: a TOML file.
        overrides: items ``a.b=VALUE`` as a person types them; a bare word is a string.
        settings: dotted field to a plain value, which no parser sees.

    Raises:
        ConfigError: in one line, for a missing or malformed file, an unknown key, a wrong type, a
            value out of bounds, or parts that do not fit together.
    """
    table = _read(Path(path))
    for override in overrides:
        _apply(table, override)
    for key, value in (settings or {}).items():
        _put(table, key, value)
    table.setdefault("name", Path(path).stem)
    return parse(table)


def parse(table: dict[str, Any]) -> Experiment:
    """The experiment of a parsed table (see `load` for errors)."""
    try:
        return Experiment.model_validate(table)
    except ValidationError as error:
        raise ConfigError(_one_line(error)) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"Expected a config file, got {str(path)!r}, which does not exist"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Expected a readable config file, got {str(path)!r}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"Expected valid TOML in {str(path)!r}: {error}") from None


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
        value = _toml_value(match.group(2)) if match else None
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
    value = _toml_value(text)
    _put(table, key.strip(), text.strip() if value is None else value[0])


def _put(table: dict[str, Any], key: str, value: Any) -> None:
    path, node = key.split("."), table
    for part in path[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise ConfigError(f"Expected {key} to name a table entry, got a value at {part!r}")
    node[path[-1]] = value


def _toml_value(text: str) -> tuple[Any] | None:
    """The one TOML value that ``text`` is; None when it is none, or more than one statement."""
    try:
        found = tomllib.loads(f"value = {text.strip()}")
    except tomllib.TOMLDecodeError:
        return None
    return (found["value"],) if len(found) == 1 else None


def _one_line(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"] if not _is_tag(part, first["loc"]))
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return f"{where}: {message}{more}" if where else f"{message}{more}"
    if first["type"] == "extra_forbidden":
        return f"{where}: unknown key{more}; see configs/schema.py for the keys there are"
    if first["type"] == "missing":
        return f"{where}: required, but not given{more}"
    shown = repr(first.get("input"))
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return f"{where}: {message}, got {shown}{more}"


def _is_tag(part: Any, location: tuple[Any, ...]) -> bool:
    """Union tags that pydantic puts into a location (training.rsgd.step_size)."""
    index = location.index(part)
    parents = {
        "training",
        "strategy",
        "problem",
        "data",
        "privacy",
        "noise",
        "cohort",
        "minibatch",
        "partition",
        "start",
    }
    return index > 0 and location[index - 1] in parents and ("-" in str(part) or str(part) in _TAGS)


_TAGS = {
    "rsgd",
    "rsvrg",
    "full",
    "poisson",
    "all",
    "none",
    "multiplier",
    "target",
    "published",
    "equal",
    "sorted",
    "dirichlet",
    "digits",
    "mnist",
    "wishart",
    "a9a",
    "kpca",
    "logistic",
    "random",
    "origin",
    "given",
}


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


def from_toml(text: str) -> Experiment:
    """The experiment of a resolved config's text (see `load` for errors)."""
    try:
        return parse(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"Expected a resolved config in TOML: {error}") from None


def save(config: Experiment, path: Path) -> None:
    """Write the resolved config as TOML; `load` reads it back to an equal object."""
    path.write_text(to_toml(config), encoding="utf-8")


def sha256(config: Experiment) -> str:
    """Hash of everything that decides the trajectory and the privacy of a run."""
    table = config.model_dump(mode="json", exclude=_NOT_IN_THE_HASH)
    canonical = json.dumps(table, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
