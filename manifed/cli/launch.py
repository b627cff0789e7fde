"""From a request on the command line to a finished run folder, on any of the three engines."""

import importlib
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from manifed.cli.options import DEBUG, outcome
from manifed.errors import ConfigError, EngineFailed, RunEnded, one_line
from manifed.experiment.assembly import (
    check_first_update,
    check_shards,
    facts_of,
    initial_point,
    simulated_paths,
)
from manifed.experiment.load import dump, load
from manifed.experiment.plugins import consent_to
from manifed.experiment.schema import Experiment
from manifed.flower.run_config import APP_FOLDER, find, run_config_of
from manifed.plan import promise_of
from manifed.problems.data import SiteData
from manifed.runs.driver import cohort_transport, named_directory, rounds_over, run
from manifed.runs.evidence import experiment_in, held_or_refused, read_past, to_go_on
from manifed.runs.folder import RunFolder, is_fresh, printable
from manifed.runs.interrupt import Ended, ending_signals
from manifed.runs.places import check_new, real


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line."""

    config: str
    sets: tuple[str, ...] = ()
    engine: str | None = None
    out: Path | None = None
    resume: Path | None = None
    plain: bool = False
    ledger_head: str | None = None
    is_insecure: bool = False
    credentials: Path | None = None


def _to_go_on(config: Experiment, named: str) -> str:
    """What remains of a run that ended, and how to go on with it."""
    directory = named_directory(config)
    folder = RunFolder(directory)
    if folder.is_finished:
        return f"; {finished(folder)}"
    if not folder.experiment_path.is_file():
        return " before anything was written"
    # a deployed run's folder names no files of its nodes
    needs_files = config.engine.kind == "deployment" and isinstance(config.data, SiteData)
    words = [*([named] if needs_files else []), "--resume", str(directory)]
    return f"; go on with: {to_go_on(shlex.join(words))}"


def resolve(request: Request) -> Experiment:
    """The experiment to run, with its folder, checked as far as can be before anything is written.

    Raises:
        ConfigError: in one line.
    """
    path = find(request.config)
    resume = request.resume
    if resume is not None:
        path = experiment_in(real("--resume", resume))
    elif request.ledger_head is not None:
        raise ConfigError("--ledger-head: expected --resume RUN_DIR beside it, got none")
    asked = {"output.resume": resume is not None, "output.ledger_head": request.ledger_head,
             "engine.kind": request.engine, "output.plain": request.plain}  # fmt: skip
    settings = {"output.quiet": True} | {key: value for key, value in asked.items() if value}
    try:
        config = load(path, request.sets, settings)
        if resume is not None and isinstance(config.data, SiteData) and not simulated_paths(config):
            # the folder of a deployed run does not tell where its nodes have their files
            files = [str(one) for one in simulated_paths(load(find(request.config)))]
            if files:
                config = load(path, request.sets, settings | {"data.paths": files})
    except ConfigError as error:
        if resume is None or request.sets:
            raise
        raise ConfigError(f"{path}: {error}") from None
    option = "--out" if resume is None else "--resume"
    directory = real(option, resume or request.out or named_directory(config))
    output = config.output.model_copy(update={"directory": str(directory)})
    config = config.model_copy(update={"output": output})
    _check_machine(request, config)
    if resume is not None:
        with held_or_refused(directory):
            read_past(directory, config)
    check_parts(config)
    if resume is None:
        check_new("--out", directory, is_fresh)
    return config


def _check_machine(request: Request, config: Experiment) -> None:
    """Refuse a device, files or keys that this engine on this machine has not."""
    is_deployment = config.engine.kind == "deployment"
    if config.engine.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "engine.device: expected a CUDA device for 'cuda', got none on this machine; use 'cpu'"
        )
    if is_deployment and isinstance(config.data, SiteData) and not simulated_paths(config):
        raise ConfigError(
            "data.paths: required by --engine deployment, which plays all sites on this machine, "
            "but not given; name the config that has them (also before --resume), or one file a "
            "site with --set"
        )
    if request.is_insecure and request.credentials is not None:
        raise ConfigError("--insecure: expected it or --credentials DIR, got both")
    if not is_deployment and (request.is_insecure or request.credentials is not None):
        raise ConfigError(
            f"{'--insecure' if request.is_insecure else '--credentials'}: expected --engine "
            f"deployment, got {config.engine.kind!r}, which uses no network"
        )


def check_parts(config: Experiment, *, is_to_run: bool = True) -> None:
    """Load the data and find the noise, so that a config that cannot run fails before round 1.

    A config that is only to be priced says all that is needed where it declares the N_i: no file of
    a client is opened then.
    """
    facts = facts_of(config)
    if is_to_run or config.federation.num_examples is None:
        check_shards(config)
    initial_point(config)
    check_first_update(config)
    if facts.declared is not None:
        promise = promise_of(config.setting, facts.declared)
        promise.statement(promise.odometer())


def checked_config(config: str, sets: Sequence[str] | None) -> Experiment:
    """The experiment of a config that is to be priced; nothing is run or written."""
    found = load(find(config), tuple(sets or ()))
    check_parts(found, is_to_run=False)
    return found


def finished(folder: RunFolder) -> str:
    """What whoever interrupts a command after its last round is told."""
    return f"the run is finished and whole: {printable(folder.directory)}"


def launch(request: Request, began: float | None = None) -> RunFolder:
    """Run a request on its engine; ``began`` as of `manifed.runs.driver.run`.

    Raises:
        ConfigError: bad input. EngineFailed, RoundFailed, ...: the run itself failed.
        RunEnded: Ctrl-C, SIGTERM, SIGHUP, or a disk that refused.
    """
    config = resolve(request)
    code = 1
    try:
        with ending_signals():
            if config.engine.kind == "inline":
                _inline(config, began)
            else:
                _networked(config, request)
        return RunFolder.open(named_directory(config))
    except Ended as signalled:
        why = "interrupted"
        code = signalled.code
    except EngineFailed as failed:
        why = str(failed)
    except OSError as error:
        said = f"run failed: the system refused: {error}; nothing that was written is lost"
        why = one_line(said)
    except Exception as error:
        if hasattr(error, "exit_code") or os.environ.get(DEBUG):
            raise
        why = f"run failed: {outcome(error)[0]}"
    raise RunEnded(why + _to_go_on(config, request.config), code)


def _inline(config: Experiment, began: float | None) -> None:
    if config.engine.execution == "cohort":
        with cohort_transport(config) as transport:
            is_elsewhere = config.engine.workers is not None
            run(config, rounds_over(transport), is_elsewhere=is_elsewhere, began=began)
        return
    from manifed.flower.apps import run as run_on
    from manifed.flower.client import client_app_of
    from manifed.flower.inline import InlineGrid

    grid = InlineGrid(client_app_of(lambda _: config), config.federation.num_clients, {})
    run_on(grid, config, began=began)


def engine(kind: str) -> Callable[..., None]:
    """The function that runs the application on an engine of Flower's ("ray" or "deployment").

    Raises:
        ConfigError: when this is no clone.
    """
    if not (APP_FOLDER / "app" / "deployment.py").is_file():
        raise ConfigError(
            f"engine.kind: {kind!r} runs the Flower application, which the installed library does "
            "not hold; run it from a clone: python simulation.py CONFIG --engine " + kind
        )
    if str(APP_FOLDER) not in sys.path:
        sys.path.insert(0, str(APP_FOLDER))
    return importlib.import_module("app.deployment").run


def _networked(config: Experiment, request: Request) -> None:
    kind = config.engine.kind
    told: dict[str, Any] = {}
    run_on = engine(kind)
    consent_to(dump(config))
    if kind == "deployment":  # nobody else is told of keys, and of the files of the nodes
        told |= {"is_insecure": request.is_insecure, "credentials": request.credentials}
        if paths := simulated_paths(config):
            told["data_paths"] = paths
    run_on(
        run_config=run_config_of(config, is_simulation=kind == "ray"),
        num_supernodes=config.federation.num_clients,
        project=APP_FOLDER,
        timeout=config.engine.timeout,
        on_line=lambda line: sys.stderr.write(line + "\n"),
        is_simulation=kind == "ray",
        **told,
    )
