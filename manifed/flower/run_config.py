"""An experiment as Flower's run config carries it: three declared scalars.

``experiment`` names a TOML file and ``overrides`` holds lines ``a.b = VALUE`` of TOML, for people
who type ``flwr run``. A program that has resolved an experiment already sends the whole of it as
the TOML text ``resolved``, so that every process reads the very object that was checked. A
relative path is looked up in the current folder, then in the app's own.

A run config comes from whoever submitted the run. It may name classes of other packages
(``kind = "package.module:Class"``), and reading it imports them: only those that the environment
variable MANIFED_PLUGINS of this process allows.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from manifed.errors import ConfigError
from manifed.experiment.load import from_toml, load, parse_overrides, to_toml
from manifed.experiment.plugins import allowed_here
from manifed.experiment.schema import Experiment
from manifed.flower import keys

APP_FOLDER = Path(__file__).resolve().parents[2]
"""Where the app was unpacked: the repository, or $FLWR_HOME/apps/... ."""

RunConfig = Mapping[str, bool | float | int | str]


def experiment_of(run_config: RunConfig) -> Experiment:
    """The experiment that a run config carries (see `manifed.experiment.load.load` for errors)."""
    resolved = str(run_config.get(keys.RUN_RESOLVED, ""))
    given = [str(run_config.get(k, "")) for k in (keys.RUN_EXPERIMENT, keys.RUN_OVERRIDES)]
    return _experiment(resolved, *given, allowed_here())


@lru_cache(maxsize=8)
def _experiment(
    resolved: str, experiment: str, overrides: str, plugins: frozenset[str]
) -> Experiment:
    if not resolved:
        return load(find(experiment), settings=parse_overrides(overrides), plugins=plugins)
    if experiment or overrides:
        raise ConfigError(
            "resolved: expected empty experiment and overrides beside it, got "
            f"{experiment!r} and {overrides!r}"
        )
    return from_toml(resolved, plugins)


def run_config_of(config: Experiment) -> dict[str, str]:
    """The run config that carries ``config`` to other processes; `experiment_of` inverts it.

    Raises:
        ConfigError: the config holds text that is not Unicode, for example in a folder's name.
    """
    return {
        keys.RUN_EXPERIMENT: "",
        keys.RUN_OVERRIDES: "",
        keys.RUN_RESOLVED: to_toml(config),
    }


def find(experiment: str) -> Path:
    """The path of an experiment's file; as given when neither folder has it."""
    path = Path(experiment)
    if not path.is_absolute() and not path.exists() and (APP_FOLDER / path).exists():
        return APP_FOLDER / path
    return path
