"""The ServerApp of an experiment, and a run over a Grid (its ClientApp: client.py)."""

from collections.abc import Callable

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from manifed.experiment.schema import Experiment
from manifed.flower.inline import InlineGrid
from manifed.flower.polling import PollingGrid
from manifed.flower.transport import MessageTransport
from manifed.runs import driver
from manifed.runs.run_folder import RunFolder


def run(grid: Grid, config: Experiment) -> RunFolder:
    """The finished run folder of an experiment whose clients are the nodes of ``grid``.

    Flower's own grids sleep between polls; replies are fetched as they come instead.
    """
    is_elsewhere = not isinstance(grid, InlineGrid)
    quick = PollingGrid(grid) if is_elsewhere else grid
    return driver.run(
        config,
        lambda plan: MessageTransport.meet(quick, plan),
        is_elsewhere=is_elsewhere,
        is_deployment=is_elsewhere and config.engine.kind != "ray",
    )


def server_app_of(experiment: Callable[[Context], Experiment]) -> ServerApp:
    """The ServerApp that runs the experiment of its context."""
    made = ServerApp()

    @made.main()
    def main(grid: Grid, context: Context) -> None:
        """Run the experiment."""
        run(grid, experiment(context))

    return made
