"""The ServerApp of an experiment, and a run of it over a Grid."""

import sys
from collections.abc import Callable, Iterator
from pkgutil import resolve_name

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from manifed.experiment.schema import Experiment, sha256
from manifed.federation.plan import RoundReport
from manifed.flower.grids import InlineGrid, PollingGrid
from manifed.flower.handshake import declared_sizes
from manifed.flower.strategy import ManifoldStrategy
from manifed.runs import driver
from manifed.runs.driver import Job
from manifed.runs.folder import RunFolder, printable
from manifed.runs.statement import statement_of

_STRATEGIES = {
    "tangent-mean": "tangent_mean:TangentMean",
    "projected": "projection_mean:ProjectionMean",
    "projected-partial": "control_variates:ControlVariates",
    "rfedsvrg": "control_variates:ControlVariates",
    "gossip": "gossip:Gossip",
    "decor": "gossip:Gossip",
    "growing-samples": "gossip:Gossip",
    "secure-mean": "secure_mean:SecureMean",
}


def strategy_of(job: Job) -> ManifoldStrategy:
    """Makes the strategy of a run, by the kind of its server update.

    A server update of another package, and one that goes with several exchanges a round, gets the
    strategy of any update: what it sends and how it steps is its own.
    """
    kind = job.plan.server_update.kind
    place = _STRATEGIES.get(kind, "any_update:AnyUpdate")
    if kind == "tangent-mean" and len(job.plan.phases) > 1:
        place = "any_update:AnyUpdate"
    # In a checkout this is the folder `strategies` beside the library.
    strategy: type[ManifoldStrategy] = resolve_name(f"manifed.flower.strategies.{place}")
    return strategy.of_plan(job.plan, job.account, job.num_rounds)


def run(
    grid: Grid,
    config: Experiment,
    strategy: Callable[[Job], ManifoldStrategy] = strategy_of,
) -> RunFolder:
    """Runs an experiment whose clients are the nodes of ``grid``; returns the run folder.

    Flower's own grids sleep between polls; replies are fetched as they come instead.
    The run's statement is printed, unless whoever started the run does that (``output.quiet``).
    """
    is_elsewhere = not isinstance(grid, InlineGrid)
    quick = PollingGrid(grid) if is_elsewhere else grid
    count = config.federation.num_clients
    timeout = config.federation.replies.timeout

    def rounds(job: Job) -> Iterator[RoundReport]:
        made = strategy(job)
        made.go_on_at(job.first_round, job.state, job.last_accepted, job.attempts)
        return made.rounds(quick, job.num_rounds)

    folder = driver.run(
        config,
        rounds,
        is_elsewhere=is_elsewhere,
        is_deployment=is_elsewhere and config.engine.kind != "ray",
        ask_sizes=lambda: declared_sizes(quick, sha256(config), count, timeout),
    )
    if not config.output.quiet:
        statement = statement_of(folder.manifest()["privacy"])
        sys.stdout.write(f"{statement}\nrun folder: {printable(folder.directory)}\n")
    return folder


def server_app_of(
    experiment: Callable[[Context], Experiment],
    strategy: Callable[[Job], ManifoldStrategy] = strategy_of,
) -> ServerApp:
    """Makes the ServerApp that runs the experiment of its context by ``strategy``."""
    made = ServerApp()

    @made.main()
    def main(grid: Grid, context: Context) -> None:
        """Run the experiment."""
        run(grid, experiment(context), strategy)

    return made
