"""The one reader of experiments: a TOML file and overrides ``a.b=1`` in, a frozen object out."""

import hashlib
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from configs.schema import Experiment

_NOT_IN_THE_HASH = {"output", "engine", "description"}
"""How and where a run happens; two runs that differ only there are the same experiment."""


class ConfigError(ValueError):
    """A config that cannot run; one line naming the field, its value and the bound."""


def load(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment of ``path`` with ``overrides`` applied in order.

    Raises:
        ConfigError: in one line, for a missing or malformed file, an unknown key, a wrong type, a
            value out of bounds, or parts that do not fit together.
    """
    table = _read(Path(path))
    for override in overrides:
        _apply(table, override)
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


def split_overrides(text: str) -> list[str]:
    """The overrides of one run-config string, separated by spaces outside quotes and brackets."""
    parts, depth, quote, current = [], 0, "", ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        if char == " " and not quote and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += char
    return [part for part in [*parts, current] if part]


def _apply(table: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    path = key.strip().split(".")
    if not separator or not all(path):
        raise ConfigError(f"Expected an override like federation.num_rounds=50, got {override!r}")
    node = table
    for part in path[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise ConfigError(
                f"Expected {key.strip()} to name a table entry, got a value at {part!r}"
            )
    node[path[-1]] = _value(text.strip())


def _value(text: str) -> Any:
    """A TOML value; bare words are strings, so that ``engine.kind=ray`` needs no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


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
}


def dump(config: Experiment) -> dict[str, Any]:
    """The resolved config as plain data."""
    return config.model_dump(mode="json")


def save(config: Experiment, path: Path) -> None:
    """Write the resolved config as TOML; `load` reads it back to an equal object."""
    import tomli_w

    table = config.model_dump(mode="json", exclude_none=True)
    path.write_text(tomli_w.dumps(table), encoding="utf-8")


def sha256(config: Experiment) -> str:
    """Hash of everything that decides the trajectory and the privacy of a run."""
    table = {k: v for k, v in dump(config).items() if k not in _NOT_IN_THE_HASH}
    canonical = json.dumps(table, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
