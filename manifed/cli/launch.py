"""Runs a request of the command line on any of the three engines, up to a finished run folder."""

import importlib
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from manifed.cli.options import outcome
from manifed.errors import ConfigError, EngineFailed, RunEnded, check_linux, one_line, optional
from manifed.experiment.assembly import (
    check_first_update,
    facts_of,
    initial_point,
    own_examples,
    simulated_paths,
)
from manifed.experiment.load import dump, load
from manifed.experiment.plugins import consent_to
from manifed.experiment.schema import Experiment
from manifed.flower.run_config import APP_FOLDER, find, run_config_of
from manifed.plan import promise_of
from manifed.runs.driver import cohort_transport, named_directory, rounds_over, run
from manifed.runs.evidence import experiment_in, held_or_refused, read_past, to_go_on
from manifed.runs.folder import RunFolder, is_fresh, printable
from manifed.runs.interrupt import Ended, ending_signals
from manifed.runs.places import check_new, real


class Request(NamedTuple):
    """A run that was requested on the command line: config, overrides, engine, folder."""

    config: str
    sets: Sequence[str] = ()
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
        return f"; the run is finished and whole: {printable(directory)}"
    if not folder.experiment_path.is_file():
        return " before anything was written"
    # a deployed run's folder names no files of its nodes
    needs_files = config.engine.kind == "deployment" and config.setting.is_at_sites
    words = [*([named] if needs_files else []), "--resume", str(directory)]
    return f"; go on with: {to_go_on(shlex.join(words))}"


def resolve(request: Request) -> Experiment:
    """Returns the experiment and its folder, checked as far as can be before any write.

    Raises:
        ConfigError: in one line.
    """
    path = find(request.config)
    resume = request.resume
    if resume:
        path = experiment_in(real("--resume", resume))
    elif request.ledger_head is not None:
        raise ConfigError("--ledger-head: expected --resume RUN_DIR beside it, got none")
    asked = {"output.quiet": True, "output.resume": bool(resume), "engine.kind": request.engine,
             "output.ledger_head": request.ledger_head, "output.plain": request.plain}  # fmt: skip
    settings = {key: value for key, value in asked.items() if value}
    try:
        config = load(path, request.sets, settings)
        if resume and not config.setting.has_all_data:
            # the folder of a deployed run does not tell where its nodes have their files
            files = [str(one) for one in simulated_paths(load(find(request.config)))]
            if files:
                config = load(path, request.sets, settings | {"data.paths": files})
    except ConfigError as error:
        if not resume or request.sets:
            raise
        raise ConfigError(f"{path}: {error}") from None
    directory = real(
        "--resume" if resume else "--out", resume or request.out or named_directory(config)
    )
    config = config.model_copy(
        update={"output": config.output.model_copy(update={"directory": str(directory)})}
    )
    _check_machine(request, config)
    if resume:
        with held_or_refused(directory):
            read_past(directory, config)
    check_parts(config)
    if not resume:
        check_new("--out", directory, is_fresh)
    return config


def _check_machine(request: Request, config: Experiment) -> None:
    """Refuse a device, files or keys that this engine on this machine has not."""
    is_deployment = config.engine.kind == "deployment"
    config.engine.check_device("engine.device")
    if is_deployment and not config.setting.has_all_data:
        raise ConfigError(
            "data.paths: required by --engine deployment, which plays all sites on this machine, "
            "but not given; name the config that has them (also before --resume), or one file per "
            "site with --set"
        )
    if request.is_insecure and request.credentials:
        raise ConfigError("--insecure: expected it or --credentials DIR, got both")
    if (request.is_insecure or request.credentials) and not is_deployment:
        option = "--insecure" if request.is_insecure else "--credentials"
        raise ConfigError(
            f"{option}: expected --engine deployment, got {config.engine.kind!r}, which uses no "
            "network"
        )


def check_parts(config: Experiment, *, is_to_run: bool = True) -> None:
    """Loads the data and finds the noise, so that a config that cannot run fails before round 1.

    A config that is only to be priced says all that is needed where it declares the N_i: no file of
    a client is opened then.
    """
    facts = facts_of(config)
    is_played_here = config.setting.has_all_data and config.engine.processes is None
    if is_played_here and (is_to_run or config.federation.num_examples is None):
        for partition in range(config.federation.num_clients):  # workers check their own
            own_examples(config, partition)
    initial_point(config)
    check_first_update(config)
    if facts.declared:
        promise = promise_of(config.setting, facts.declared)
        promise.statement(promise.odometer())


def checked_config(config: str, sets: Sequence[str] | None) -> Experiment:
    """Reads the experiment of a config that is only to be priced; nothing is run or written."""
    found = load(find(config), sets or ())
    check_parts(found, is_to_run=False)
    return found


def launch(request: Request) -> RunFolder:
    """Run a request on its engine.

    Raises:
        ConfigError: bad input. EngineFailed, RoundFailed, ...: the run itself failed.
        RunEnded: Ctrl-C, SIGTERM, SIGHUP, or a disk that refused.
    """
    config = resolve(request)
    code = 1
    try:
        with ending_signals():
            if config.engine.kind == "inline":
                _inline(config)
            else:
                _networked(config, request)
        return RunFolder.open(named_directory(config))
    except Ended as signalled:
        why = "interrupted"
        code = signalled.code
    except EngineFailed as failed:
        why = str(failed)
    except OSError as error:
        why = one_line(f"run failed: the system refused: {error}; nothing that was written is lost")
    except Exception as error:
        if hasattr(error, "exit_code") or os.environ.get("MANIFED_DEBUG"):
            raise
        why = f"run failed: {outcome(error)[0]}"
    raise RunEnded(why + _to_go_on(config, request.config), code)


def _inline(config: Experiment) -> None:
    if config.engine.execution == "cohort":
        with cohort_transport(config) as transport:
            run(
                config,
                rounds_over(transport),
                is_elsewhere=bool(config.engine.processes),
            )
        return
    with optional():
        from manifed.flower.apps import run as run_on
        from manifed.flower.client import inline_grid

    run_on(
        inline_grid(config),
        config,
    )


def engine(kind: str) -> Callable[..., None]:
    """Returns the function that runs the application on an engine of Flower ("ray", "deployment").

    Raises:
        ConfigError: this is no clone, or the platform is not Linux.
    """
    if not (APP_FOLDER / "app" / "deployment.py").is_file():
        raise ConfigError(
            f"engine.kind: {kind!r} runs the Flower application, which the installed library does "
            "not hold; run it from a clone: python simulation.py CONFIG --engine " + kind
        )
    check_linux(f"engine.kind: {kind!r}")
    if str(APP_FOLDER) not in sys.path:
        sys.path.insert(0, str(APP_FOLDER))
    with optional():
        return importlib.import_module("app.deployment").run


def _networked(config: Experiment, request: Request) -> None:
    is_simulation = config.engine.kind == "ray"
    run_on = engine(config.engine.kind)
    consent_to(dump(config))
    run_on(
        run_config=run_config_of(config, is_simulation=is_simulation),
        num_supernodes=config.federation.num_clients,
        project=APP_FOLDER,
        timeout=config.engine.timeout,
        on_line=lambda line: sys.stderr.write(line + "\n"),
        is_simulation=is_simulation,
        is_insecure=request.is_insecure,
        credentials=request.credentials,
        data_paths=simulated_paths(config) or None,
    )
