"""From a request on the command line to a finished run folder, on any of the three engines."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

from app.run_config import APP_FOLDER, find
from app.run_folder import RunFolder
from app.server_run import EXPERIMENT_FILE, default_directory
from configs.load import ConfigError, load
from configs.schema import Experiment
from wire import keys

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
    """A request resolved: the file, the overrides, the experiment they make, and its folder."""

    experiment: Path
    overrides: tuple[str, ...]
    config: Experiment
    directory: Path


def resolve(request: Request) -> Launch:
    """Check everything that can be checked before anything is written.

    Raises:
        ConfigError: in one line.
    """
    path, sets = find(request.config).resolve(), list(request.sets)
    directory = request.out
    if request.resume is not None:
        directory = request.resume
        path = _saved(request.resume)
        sets.append("output.resume=true")
    if request.engine is not None:
        sets.append(f'engine.kind="{request.engine}"')
    if request.plain:
        sets.append("output.plain=true")
    config = load(path, sets)
    directory = (directory or default_directory(config)).resolve()
    sets += ["output.quiet=true", f"output.directory={str(directory)!r}"]
    config = load(path, sets)
    if directory.exists() and request.resume is None and any(directory.iterdir()):
        raise ConfigError(f"--out: expected a new or empty folder, got {str(directory)!r}")
    check_parts(config)
    return Launch(path, tuple(sets), config, directory)


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
    from app.assembly import lens_of, load_shards, server_lens_of
    from app.treasury import Treasury

    found = load_shards(config)
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
    from app.client_app import app as client_app
    from app.engines.inline import InlineGrid, run_app
    from app.server_app import app as server_app

    overrides = " ".join(plan.overrides)
    run_config = {keys.RUN_EXPERIMENT: str(plan.experiment), keys.RUN_OVERRIDES: overrides}
    engine, clients = plan.config.engine, plan.config.federation.num_clients
    if engine.execution == "cohort":
        from app.assembly import client_side
        from app.engines.cohort import CohortGrid

        side = client_side(plan.config)
        grid = CohortGrid(side, device=engine.device, memory_budget_mb=engine.memory_budget_mb)
    else:
        grid = InlineGrid(client_app, clients, run_config)
    run_app(server_app, grid, run_config)


def _networked(plan: Launch, kind: str) -> None:
    from app.engines import deployment, ray

    engine = ray if kind == "ray" else deployment
    engine.run(
        experiment=plan.experiment,
        overrides=plan.overrides,
        num_supernodes=plan.config.federation.num_clients,
        out=plan.directory,
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
