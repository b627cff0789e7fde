"""The Flower application beside the library: what a wheel does not hold and a clone does."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from manifed.errors import ConfigError
from manifed.flower.run_config import APP_FOLDER


def engine(kind: str) -> Callable[..., None]:
    """The function that runs the application on an engine of Flower's ("ray" or "deployment").

    Raises:
        ConfigError: when this is no clone, or another package is called ``app`` in this process.
    """
    if not (APP_FOLDER / "app" / "engines.py").is_file():
        raise ConfigError(
            f"engine.kind: {kind!r} runs the Flower application, which the installed library does "
            "not hold; run it from a clone: python simulation.py CONFIG --engine " + kind
        )
    if str(APP_FOLDER) not in sys.path:
        sys.path.insert(0, str(APP_FOLDER))
    engines = importlib.import_module("app.engines")
    if Path(str(engines.__file__)).resolve().parent.parent != APP_FOLDER:
        raise ConfigError(
            f"engine.kind: {kind!r}: expected the application in {APP_FOLDER}, got a package "
            f"'app' from {engines.__file__}; run it from the clone"
        )
    found: Callable[..., None] = engines.ENGINES[kind]
    return found


def reproduction() -> Any:
    """The clone's module that draws what panels of runs cannot show.

    Raises:
        ConfigError: when this is no clone.
    """
    if not (APP_FOLDER / "reproduction" / "figure.py").is_file():
        raise ConfigError(
            "reproduce: this figure is drawn by the folder reproduction/ of a clone, which the "
            "installed library does not hold; run it there"
        )
    if str(APP_FOLDER) not in sys.path:
        sys.path.insert(0, str(APP_FOLDER))
    return importlib.import_module("reproduction.figure")
