"""What a config names as ``package.module:name``: above all a function that reads a file."""

import hashlib
import importlib
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manifed.problems.file_formats import BadFile, Layout, Raw, of_arrays

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


def function(name: str) -> Callable[[Path], Any]:
    """The function that reads a file.

    Raises:
        ValueError: as `named`, or it is no function.
    """
    found = named(name, "function")
    if not callable(found) or isinstance(found, type):
        raise ValueError(f"expected a function, got {name!r}, which is {type(found).__name__}")
    return found


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


def read(path: Path, name: str, layout: Layout) -> Raw:
    """The examples that the function ``name`` makes of a file.

    It returns a tensor, a mapping of tensors by the names of the layout, or a
    ``torch.utils.data.Dataset`` of examples, of (example, label) pairs or of such mappings.

    Raises:
        BadFile: what it returns is none of these, or it raised; what it said is not quoted, because
            it may hold data.
    """
    try:
        return of_arrays(path, _arrays(function(name)(path), layout), layout)
    except BadFile:
        raise
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        raise BadFile(
            path,
            f"data.source {name!r} raised {type(error).__name__} "
            f"({Path(at.filename).name}:{at.lineno})",
        ) from None


def _arrays(found: Any, layout: Layout) -> dict[str, NDArray[Any]]:
    if isinstance(found, Mapping):
        return {str(key): _array(value) for key, value in found.items()}
    if hasattr(found, "__getitem__") and hasattr(found, "__len__") and not hasattr(found, "shape"):
        found = _stacked([found[i] for i in range(len(found))], layout)
        return found if isinstance(found, dict) else {layout.array: found}
    return {layout.array: _array(found)}


def _stacked(items: list[Any], layout: Layout) -> dict[str, NDArray[Any]] | NDArray[Any]:
    """The items of a data set, along a first dimension."""
    if items and isinstance(items[0], Mapping):
        return {str(key): _array([item[key] for item in items]) for key in items[0]}
    if items and isinstance(items[0], tuple):
        names = (layout.array, layout.label or "label")
        columns = zip(*items, strict=True)
        return {name: _array(list(column)) for name, column in zip(names, columns, strict=False)}
    return _array(items)


def _array(value: Any) -> NDArray[Any]:
    if isinstance(value, list):
        return np.stack([_array(one) for one in value]) if value else np.empty(0)
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)
