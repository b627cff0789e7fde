"""TOML from disk: of bounded size and depth, and every fault in one line."""

import tomllib
from pathlib import Path
from typing import Any

from manifed.errors import ConfigError
from manifed.experiment.paths import nearest
from manifed.regular import read_regular

_LONGEST_FILE = 1 << 24
"""Bytes; a config is a page, with a start point given in full a long one."""
_DEEPEST = 32
"""Levels of nesting; the schema has five."""


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a file.

    Raises:
        ConfigError: in one line, for a missing, unreadable, malformed or oversized file.
    """
    try:
        text = read_regular(path, _LONGEST_FILE).decode()
    except FileNotFoundError:
        beside = nearest(path.name, (other.name for other in path.parent.glob("*.toml")))
        hint = "" if beside is None else f"; did you mean {str(path.with_name(beside))!r}?"
        raise ConfigError(
            f"Expected a config file, got {str(path)!r}, which does not exist{hint}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or error
        raise ConfigError(f"Expected a readable config file, got {str(path)!r}: {said}") from None
    return _toml(text, repr(str(path)))


def _toml(text: str, where: str) -> dict[str, Any]:
    """The table of a TOML text, of bounded depth and with integers of bounded length."""
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
