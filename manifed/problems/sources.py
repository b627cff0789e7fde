"""What a config names as ``package.module:name``: a class, a factory, a function."""

import hashlib
import importlib
import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
FOLDERS = "MANIFED_PLUGIN_FOLDERS"
"""The environment variable by which the processes that this one starts look where it does."""


def look_in(places: Iterable[str]) -> None:
    """Look for what configs name in these folders too, after all that Python finds by itself.

    The processes that this one starts from now on do the same.
    """
    os.environ[FOLDERS] = json.dumps(list(dict.fromkeys(places)))


def looked_in() -> list[str]:
    """The folders of the newest `look_in`, here or in the process that started this one."""
    return json.loads(os.environ.get(FOLDERS) or "[]")


def named(name: str, what: str) -> Any:
    """The object that ``package.module:name`` names, its module imported; ``what`` it should be.

    Raises:
        ValueError: not of that form, or not importable; in one line.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"expected 'package.module:{what}', got {name!r}")
    where, _, attribute = name.partition(":")
    sys.path += [folder for folder in looked_in() if folder not in sys.path]
    try:
        module = importlib.import_module(where)
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            f"expected a module that can be imported, got {where!r} ({said}); install its package "
            "where this runs, or put it beside the config file"
        ) from None
    return getattr(module, attribute, None)


def source_sha256(module: str) -> str:
    """Hash of the modules of a module's package, by name; of its own file where it has none.

    The package is the outermost folder with an ``__init__.py``.

    Raises:
        ValueError: a module without a file.
    """
    file = getattr(sys.modules[module], "__file__", None)
    if file is None:
        raise ValueError(f"expected a module with a file, got {module!r}")
    root = Path(file)
    while (root.parent / "__init__.py").exists():
        root = root.parent
    files = sorted(root.rglob("*.py")) if root.is_dir() else [root]
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root.parent).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
