"""Carries an experiment in Flower's run config: declared scalars, "" where none was given.

``experiment`` names a TOML file; `FIELDS` are what people change most, under Flower's usual names;
``overrides`` holds lines ``a.b = VALUE`` of TOML for everything else. A program that has resolved
an experiment already sends the whole of it as the TOML text ``resolved``, so that every process
reads the very object that was checked. A relative path is looked up in the current folder, then in
the app's own.

A run config comes from whoever submitted the run. It may name classes of other packages
(``kind = "package.module:Class"``), and reading it imports them: only those that the environment
variable MANIFED_PLUGINS of this process allows. It names no file of a node: ``data.paths`` of a
simulation is dropped, and a node's own config says where its data are.
"""

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import tomli_w

from manifed.errors import ConfigError
from manifed.experiment.load import from_toml, load, parse_overrides, to_toml, without_paths
from manifed.experiment.plugins import allowed_here
from manifed.experiment.schema import Experiment

APP_FOLDER = Path(__file__).resolve().parents[2]
"""In a clone, the repository; for an installed library, where no application lies."""
FIELDS = {
    "num-server-rounds": "federation.num_rounds",
    "num-clients": "federation.num_clients",
    "seed": "federation.seed",
    "epsilon": "privacy.noise.epsilon",
    "delta": "privacy.noise.delta",
    "step-size": "training.step_size",
}
"""Key of the run config to field of the experiment."""

SIMULATION = "MANIFED_SIMULATION"
"""The environment variable of processes that all play one simulation: they read ``data.paths``."""


def experiment_of(
    run_config: Mapping[str, bool | float | int | str], folder: Path = APP_FOLDER
) -> Experiment:
    """Reads the experiment that a run config carries (errors as `manifed.experiment.load.load`).

    Args:
        run_config: as Flower fuses it: the defaults of the app's pyproject.toml and what was given.
        folder: of the app: in the repository, or $FLWR_HOME/apps/... .
    """
    resolved, experiment, overrides = (
        str(run_config.get(key, "")) for key in ("resolved", "experiment", "overrides")
    )
    is_simulation = bool(os.environ.get(SIMULATION))
    given = {key: value for key in FIELDS if (value := run_config.get(key, "")) != ""}
    if resolved and (experiment or overrides or given):
        raise ConfigError(
            "resolved: expected no other key of the run config beside it, got "
            f"experiment = {experiment!r}, overrides = {overrides!r}, {given}"
        )
    if resolved:
        return _read(None, resolved, allowed_here(), is_simulation)
    # As TOML lines, which tell 1 from true and 1.0, and in which a field may stand once only.
    lines = [f"{FIELDS[key]} {tomli_w.dumps({'': value})[3:]}" for key, value in given.items()]
    try:
        path = str(find(experiment, folder))
        return _read(path, "\n".join([overrides, *lines]), allowed_here(), is_simulation)
    except ConfigError as error:
        named = [f"{FIELDS[key]} is {key}" for key in given if FIELDS[key] in str(error)]
        if not named:
            raise
        raise ConfigError(f"{error} (in the run config {', '.join(named)})") from None


@lru_cache(maxsize=8)
def _read(path: str | None, text: str, plugins: frozenset[str], is_simulation: bool) -> Experiment:
    """The experiment of a file with the lines of ``text``, or of ``text`` alone."""
    if path is None:
        config = from_toml(text, plugins)
    else:
        config = load(path, settings=parse_overrides(text), plugins=plugins)
    return config if is_simulation else without_paths(config)


def run_config_of(config: Experiment, *, is_simulation: bool = False) -> dict[str, str]:
    """Makes the run config that carries ``config``; `experiment_of` inverts it.

    The paths of sites' files stay behind, unless all processes are a simulation's.

    Raises:
        ConfigError: the config holds text that is not Unicode, for example in a folder's name.
    """
    return {
        "experiment": "",
        "overrides": "",
        "resolved": to_toml(config if is_simulation else without_paths(config)),
    }


def find(experiment: str, folder: Path = APP_FOLDER) -> Path:
    """Returns the path of an experiment's file; as given when neither folder has it."""
    path = Path(experiment)
    is_elsewhere = not os.path.exists(path) and os.path.exists(folder / path)
    return folder / path if is_elsewhere else path
