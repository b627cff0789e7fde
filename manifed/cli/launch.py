"""From a request on the command line to a finished run folder, on any of the three engines."""

import gc
import os
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from manifed.cli.application import engine
from manifed.errors import ConfigError, EngineFailed, one_line
from manifed.experiment.load import load
from manifed.experiment.schema import Experiment
from manifed.flower.run_config import APP_FOLDER, find, run_config_of
from manifed.problems.dataset import SiteData
from manifed.runs.driver import named_directory
from manifed.runs.interrupt import Ended, ending_signals
from manifed.runs.places import check_new, real
from manifed.runs.reading import FolderDamaged
from manifed.runs.resume import held_or_refused, in_force, read_past, refused, to_go_on
from manifed.runs.run_folder import RunFolder, is_fresh, printable

T = TypeVar("T")


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
    began: float = field(default_factory=time.perf_counter)
    """When the command was given, on the clock of `time.perf_counter`."""


@dataclass(frozen=True)
class Launch:
    """A request resolved: the experiment that was checked is the one that runs, in its folder."""

    config: Experiment
    directory: Path
    secure: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the deployment engine is told about TLS; empty for the others."""
    named: str = ""
    """The config that was asked for."""

    @property
    def to_go_on(self) -> str:
        """What the command that resumes the run takes: a deployed run's folder names no files."""
        is_deployment = self.config.engine.kind == "deployment"
        needs_files = is_deployment and isinstance(self.config.data, SiteData)
        named = [self.named] if needs_files else []
        return shlex.join([*named, "--resume", str(self.directory)])


def resolve(request: Request) -> Launch:
    """Check everything that can be checked before anything is written.

    Raises:
        ConfigError: in one line.
    """
    path, directory = find(request.config), request.out
    settings: dict[str, Any] = {"output.quiet": True, "output.draws_later": True}
    if request.resume is not None:
        directory = request.resume
        path = _saved(request.resume)
        settings["output.resume"] = True
    if request.ledger_head is not None:
        if request.resume is None:
            raise ConfigError("--ledger-head: expected --resume RUN_DIR beside it, got none")
        settings["output.ledger_head"] = request.ledger_head
    if request.engine is not None:
        settings["engine.kind"] = request.engine
    if request.plain:
        settings["output.plain"] = True
    try:
        config = load(path, request.sets, settings)
        if request.resume is not None:
            files = _files_of_nodes(config, request.config)
            config = load(path, request.sets, settings | files) if files else config
            config = in_force(config, real("--resume", request.resume))
    except ConfigError as error:
        if request.resume is None or request.sets:
            raise
        raise ConfigError(f"{path}: {error}") from None
    option = "--resume" if config.output.resume else "--out"
    directory = real(option, directory or named_directory(config))
    config = placed(config, directory)
    _check_device(config)
    _check_files(config)
    check_parts(config)
    if config.output.resume:
        with held_or_refused(directory):
            read_past(directory, config)
    else:
        check_new("--out", directory, is_fresh)
    return Launch(config, directory, _secure(request, config), request.config)


def _files_of_nodes(config: Experiment, named: str) -> dict[str, Any]:
    """``data.paths`` of the config that was named beside ``--resume``.

    The folder of a deployed run does not tell where its nodes have their files.
    """
    from manifed.experiment.assembly import simulated_paths

    if not isinstance(config.data, SiteData) or simulated_paths(config):
        return {}
    paths = simulated_paths(load(find(named)))
    return {"data.paths": [str(path) for path in paths]} if paths else {}


def _secure(request: Request, config: Experiment) -> dict[str, Any]:
    """TLS and SuperNode authentication of a request, or ConfigError.

    Only a deployment has them.
    """
    insecure, credentials = request.is_insecure, request.credentials
    if insecure and credentials is not None:
        raise ConfigError("--insecure: expected it or --credentials DIR, got both")
    if config.engine.kind == "deployment":
        return {"is_insecure": insecure, "credentials": credentials}
    if insecure or credentials is not None:
        option = "--insecure" if insecure else "--credentials"
        raise ConfigError(
            f"{option}: expected --engine deployment, got {config.engine.kind!r}, "
            "which uses no network"
        )
    return {}


def _check_device(config: Experiment) -> None:
    import torch

    if config.engine.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "engine.device: expected a CUDA device for 'cuda', got none on this machine; use 'cpu'"
        )


def _check_files(config: Experiment) -> None:
    """Refuse to play a deployment whose nodes would find no files."""
    from manifed.experiment.assembly import simulated_paths

    is_deployment = config.engine.kind == "deployment"
    if is_deployment and isinstance(config.data, SiteData) and not simulated_paths(config):
        raise ConfigError(
            "data.paths: required by --engine deployment, which plays all sites on this machine, "
            "but not given; name the config that has them (also before --resume), or one file a "
            "site with --set"
        )


def placed(config: Experiment, directory: Path) -> Experiment:
    """The experiment with its run folder; any name that the file system takes."""
    output = config.output.model_copy(update={"directory": str(directory)})
    return config.model_copy(update={"output": output})


def _saved(directory: Path) -> Path:
    """The resolved config in a run's folder."""
    source = RunFolder(real("--resume", directory)).experiment_path
    if not source.is_file():
        raise refused(directory, "expected a run folder", "no experiment.toml in it")
    return source


def check_parts(config: Experiment, *, is_to_run: bool = True) -> None:
    """Load the data and find the noise, so that a config that cannot run fails before round 1.

    A config that is only to be priced says all that is needed where it declares the N_i: no file of
    a client is opened then.
    """
    from manifed.experiment.assembly import (
        check_first_update,
        check_shards,
        facts_of,
        initial_point,
    )
    from manifed.experiment.privacy import promise_of

    facts = facts_of(config)
    if is_to_run or config.federation.num_examples is None:
        check_shards(config)
    initial_point(config)
    check_first_update(config)
    if facts.declared is not None:
        promise = promise_of(config, facts.declared)
        promise.statement(promise.odometer())


class RunEnded(Exception):
    """A run that ended before its end; the text says how to go on."""

    def __init__(self, why: str, plan: Launch, code: int) -> None:
        hint, folder = " before anything was written", RunFolder(plan.directory)
        if folder.manifest_path.is_file() and "final" in folder.manifest():
            hint = f"; {finished(folder)}"
        elif folder.experiment_path.is_file():
            hint = f"; go on with: {to_go_on(plan.to_go_on)}"
        super().__init__(why + hint)
        self.code = code


def finished(folder: RunFolder) -> str:
    """What whoever interrupts a command after its last round is told."""
    return f"the run is finished and whole: {printable(folder.directory)}"


def launch(request: Request, strategy: Callable[[Any], Any] | None = None) -> RunFolder:
    """Run a request on its engine; in this process by ``strategy``, or by the library's own.

    Raises:
        ConfigError: bad input. EngineFailed, RoundFailed, ...: the run itself failed.
        RunEnded: Ctrl-C, SIGTERM, SIGHUP, or a disk that refused.
    """
    plan = resolve(request)
    kind = plan.config.engine.kind
    try:
        with ending_signals():
            if kind == "inline":
                _inline(plan, strategy, request.began)
            else:
                _networked(plan, kind)
        return RunFolder.open(plan.directory)
    except Ended as ended:
        raise RunEnded("interrupted", plan, ended.code) from None
    except KeyboardInterrupt:
        raise RunEnded("interrupted", plan, 128 + signal.SIGINT) from None
    except SystemExit as ended:
        if ended.code not in {128 + signal.SIGTERM, 128 + signal.SIGHUP}:
            raise
        raise RunEnded("interrupted", plan, int(ended.code)) from None
    except EngineFailed as failed:
        raise RunEnded(str(failed), plan, 1) from failed
    except OSError as error:
        why = f"run failed: the system refused: {error}; nothing that was written is lost"
        raise RunEnded(one_line(why), plan, 1) from error
    except Exception as error:
        if is_expected(error) or os.environ.get(DEBUG):
            raise
        raise RunEnded(f"run failed: {unexpected(error)}", plan, 1) from error


def _inline(plan: Launch, strategy: Callable[[Any], Any] | None, began: float) -> None:
    config = plan.config
    engine, clients = config.engine, config.federation.num_clients
    if engine.execution == "cohort":
        from manifed.runs.cohort import cohort_transport
        from manifed.runs.driver import rounds_over, run

        _settle()
        with cohort_transport(config) as transport:
            is_elsewhere = engine.workers is not None
            run(config, rounds_over(transport), is_elsewhere=is_elsewhere, began=began)
        return
    from manifed.flower.apps import run as run_on
    from manifed.flower.client import client_app_of
    from manifed.flower.inline import InlineGrid
    from manifed.flower.strategy import strategy_of

    _settle()
    grid = InlineGrid(client_app_of(lambda _: config), clients, {})
    run_on(grid, config, strategy or strategy_of, began)


def _settle() -> None:
    """Look for garbage again once the modules are there, but never among what they made."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _networked(plan: Launch, kind: str) -> None:
    run_on = engine(kind)
    _settle()
    run_on(
        run_config=run_config_of(plan.config, is_simulation=kind == "ray"),
        num_supernodes=plan.config.federation.num_clients,
        project=APP_FOLDER,
        timeout=plan.config.engine.timeout,
        on_line=lambda line: sys.stderr.write(line + "\n"),
        **plan.secure,
        **_files(plan.config, kind),
    )


def _files(config: Experiment, kind: str) -> dict[str, Any]:
    """What the nodes of a deployment are told about their files; nobody else is."""
    from manifed.experiment.assembly import simulated_paths

    paths = simulated_paths(config)
    return {"data_paths": paths} if kind == "deployment" and paths else {}


DEBUG = "MANIFED_DEBUG"
"""The environment variable under which an unexpected error shows its traceback."""


def unexpected(error: BaseException) -> str:
    """Type, text and place of an error that nothing foresaw, on one line."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    place = "".join(f" at {Path(frame.filename).name}:{frame.lineno}" for frame in last)
    said = one_line(f"{type(error).__name__}: {error}", 400)
    return f"{said} (unexpected{place}; {DEBUG}=1 shows the traceback)"


def is_expected(error: Exception) -> bool:
    """Whether `guarded` has a line and an exit code for it."""
    from manifed.errors import RoundFailed
    from manifed.flower.handshake import HandshakeFailed
    from manifed.privacy.ledger import LedgerDamaged
    from manifed.runs.checkpoint import CheckpointError

    bad_input = (ConfigError, FolderDamaged, LedgerDamaged, CheckpointError)
    return isinstance(error, (*bad_input, EngineFailed, HandshakeFailed, RoundFailed, RunEnded))


def guarded(action: Callable[[], T], fail: Callable[..., NoReturn]) -> T:
    """The value of ``action``; every expected failure is one line and an exit code.

    2: the input; 1: the run; of a run that a signal ended, 130: Ctrl-C; 143: SIGTERM; 129: SIGHUP.
    """
    from manifed.errors import RoundFailed
    from manifed.flower.handshake import HandshakeFailed
    from manifed.privacy.ledger import LedgerDamaged
    from manifed.runs.checkpoint import CheckpointError

    try:
        return action()
    except (ConfigError, FolderDamaged, LedgerDamaged, CheckpointError) as error:
        fail(one_line(str(error), 1500), 2)
    except (EngineFailed, HandshakeFailed, RoundFailed) as error:
        fail(str(error), 1)
    except RunEnded as ended:
        fail(str(ended), ended.code)


def launch_or_exit(
    request: Request,
    fail: Callable[..., NoReturn],
    strategy: Callable[[Any], Any] | None = None,
) -> RunFolder:
    """`launch`, guarded."""
    return guarded(lambda: launch(request, strategy), fail)


def load_or_exit(request: Request, fail: Callable[..., NoReturn]) -> Experiment:
    """The experiment of a request, guarded; nothing is run or written (see `check_parts`)."""

    def checked() -> Experiment:
        config = load(find(request.config), request.sets)
        check_parts(config, is_to_run=False)
        return config

    return guarded(checked, fail)
