"""From a request on the command line to a finished run folder, on any of the three engines."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from app.run_config import APP_FOLDER, find, run_config_of
from app.run_folder import RunFolder
from app.server_run import EXPERIMENT_FILE, named_directory
from configs.load import ConfigError, load
from configs.schema import Experiment

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


@dataclass(frozen=True)
class Launch:
    """A request resolved: the experiment that was checked is the one that runs, in its folder."""

    config: Experiment
    directory: Path


def resolve(request: Request) -> Launch:
    """Check everything that can be checked before anything is written.

    Raises:
        ConfigError: in one line.
    """
    path, directory = find(request.config), request.out
    settings: dict[str, Any] = {"output.quiet": True}
    if request.resume is not None:
        directory = request.resume
        path = _saved(request.resume)
        settings["output.resume"] = True
    if request.engine is not None:
        settings["engine.kind"] = request.engine
    if request.plain:
        settings["output.plain"] = True
    config = load(path, request.sets, settings)
    directory = (directory or named_directory(config)).resolve()
    config = placed(config, directory)
    if not config.output.resume and directory.exists():
        if not directory.is_dir():
            raise ConfigError(f"--out: expected a folder, got the file {str(directory)!r}")
        if any(directory.iterdir()):
            raise ConfigError(f"--out: expected a new or empty folder, got {str(directory)!r}")
    check_parts(config)
    return Launch(config, directory)


def placed(config: Experiment, directory: Path) -> Experiment:
    """The experiment with its run folder; any name that the file system takes."""
    output = config.output.model_copy(update={"directory": str(directory)})
    return config.model_copy(update={"output": output})


def _saved(directory: Path) -> Path:
    """The resolved config in an unfinished run's folder."""
    source = directory / EXPERIMENT_FILE
    if not source.exists():
        raise ConfigError(f"--resume: expected a run folder, got {str(directory)!r}")
    if "final" in RunFolder.open(directory).manifest():
        raise ConfigError(f"--resume: expected an unfinished run, got {str(directory)!r}")
    return source.resolve()


def check_parts(config: Experiment) -> None:
    """Load the data and find the noise, so that a config that cannot run fails before round 1."""
    from app.assembly import check_shards, initial_point, lens_of, load_shards, server_lens_of
    from app.treasury import Treasury

    found = load_shards(config)
    check_shards(config)
    initial_point(config)
    lens_of(config)
    server_lens_of(config)
    Treasury.prepare(config, found.sizes).statement()


def launch(request: Request) -> RunFolder:
    """Run a request on its engine.

    Raises:
        ConfigError: bad input. EngineFailed, RoundFailed, ...: the run itself failed.
    """
    plan = resolve(request)
    kind = plan.config.engine.kind
    if kind == "inline":
        _inline(plan)
    else:
        _networked(plan, kind)
    return RunFolder.open(plan.directory)


def _inline(plan: Launch) -> None:
    from app.client_app import client_app_of
    from app.engines.inline import InlineGrid, run_app
    from app.server_app import server_app_of

    config = plan.config
    engine, clients = config.engine, config.federation.num_clients
    if engine.execution == "cohort":
        from app.assembly import client_side
        from app.engines.cohort import CohortGrid

        side = client_side(config)
        grid = CohortGrid(side, device=engine.device, memory_budget_mb=engine.memory_budget_mb)
    else:
        grid = InlineGrid(client_app_of(lambda _: config), clients, {})
    run_app(server_app_of(lambda _: config), grid, {})


def _networked(plan: Launch, kind: str) -> None:
    from app.engines import deployment, ray

    engine = ray if kind == "ray" else deployment
    engine.run(
        run_config=run_config_of(plan.config),
        num_supernodes=plan.config.federation.num_clients,
        project=APP_FOLDER,
        timeout=plan.config.engine.timeout,
        on_line=lambda line: sys.stderr.write(line + "\n"),
    )


def guarded(action: Callable[[], T], fail: Callable[..., NoReturn]) -> T:
    """The value of ``action``; every expected failure is one line and an exit code.

    2: the input; 1: the run; 130: interrupted.
    """
    from app.checkpoint import CheckpointError
    from app.engines.processes import EngineFailed
    from privacy.ledger import LedgerDamaged
    from strategies.handshake import HandshakeFailed
    from strategies.replies import RoundFailed

    try:
        return action()
    except (ConfigError, LedgerDamaged, CheckpointError) as error:
        fail(str(error), 2)
    except (EngineFailed, HandshakeFailed, RoundFailed) as error:
        fail(str(error), 1)
    except KeyboardInterrupt:
        fail("interrupted; go on with: python simulation.py --resume RUN_DIR", 130)


def launch_or_exit(request: Request, fail: Callable[..., NoReturn]) -> RunFolder:
    """`launch`, guarded."""
    return guarded(lambda: launch(request), fail)


def load_or_exit(request: Request, fail: Callable[..., NoReturn]) -> Experiment:
    """The experiment of a request, guarded; nothing is run or written."""

    def checked() -> Experiment:
        config = load(find(request.config), request.sets)
        check_parts(config)
        return config

    return guarded(checked, fail)
