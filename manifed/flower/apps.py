"""The ServerApp of an experiment, and a run over a Grid (its ClientApp: client.py)."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from manifed.experiment.load import sha256
from manifed.experiment.schema import Experiment
from manifed.federation.plan import RoundReport
from manifed.flower.handshake import declared_sizes
from manifed.flower.inline import InlineGrid
from manifed.flower.loop import ServerLoop
from manifed.flower.polling import PollingGrid
from manifed.flower.strategy import strategy_of
from manifed.runs import driver
from manifed.runs.driver import Job
from manifed.runs.manifest import process_began
from manifed.runs.run_folder import RunFolder

StrategyOf = Callable[[Job], ServerLoop]
"""Makes the strategy of a run, which sends, aggregates, charges and fails in its own way."""


def run(
    grid: Grid,
    config: Experiment,
    strategy: StrategyOf = strategy_of,
    began: float | None = None,
) -> RunFolder:
    """The finished run folder of an experiment whose clients are the nodes of ``grid``.

    Flower's own grids sleep between polls; replies are fetched as they come instead.
    ``began`` as in `driver.run_experiment`.
    """
    is_elsewhere = not isinstance(grid, InlineGrid)
    quick = PollingGrid(grid) if is_elsewhere else grid
    count, timeout = config.federation.num_clients, config.federation.replies.timeout

    def rounds(job: Job) -> Iterator[RoundReport]:
        made, start = strategy(job), job.start
        asked, by = job.plan.evaluation, job.plan.evaluation_mechanism
        made.plan = replace(made.plan, evaluation=asked, evaluation_mechanism=by)
        made.go_on_at(start.first_round, start.state, start.last_accepted, job.account.attempts)
        return made.rounds(quick, job.num_rounds)

    return driver.run(
        config,
        rounds,
        is_elsewhere=is_elsewhere,
        is_deployment=is_elsewhere and config.engine.kind != "ray",
        ask_sizes=lambda: declared_sizes(quick, sha256(config), count, timeout),
        began=began,
    )


def server_app_of(
    experiment: Callable[[Context], Experiment], strategy: StrategyOf = strategy_of
) -> ServerApp:
    """The ServerApp that runs the experiment of its context by ``strategy``."""
    made = ServerApp()

    @made.main()
    def main(grid: Grid, context: Context) -> None:
        """Run the experiment."""
        run(grid, experiment(context), strategy, process_began())

    return made
