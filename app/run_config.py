"""From Flower's run config to an experiment: two scalars carry everything.

Flower admits only declared scalar keys, so ``experiment`` names a TOML file and ``overrides`` holds
what ``--set`` would. A relative path is looked up in the current folder, then in the app's own.
"""

from functools import lru_cache
from pathlib import Path

from configs.load import load, split_overrides
from configs.schema import Experiment

APP_FOLDER = Path(__file__).resolve().parent.parent
"""Where the app was unpacked: the repository, or $FLWR_HOME/apps/... ."""


@lru_cache(maxsize=8)
def config_of(experiment: str, overrides: str) -> Experiment:
    """The experiment that a run config names (see configs.load.load for errors)."""
    return load(find(experiment), split_overrides(overrides))


def find(experiment: str) -> Path:
    """The path of an experiment's file; as given when neither folder has it."""
    path = Path(experiment)
    if not path.is_absolute() and not path.exists() and (APP_FOLDER / path).exists():
        return APP_FOLDER / path
    return path
