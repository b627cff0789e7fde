"""Flower's door to the server: read the config, run the conversation."""

from collections.abc import Callable

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from app import server_run
from app.run_config import experiment_of
from configs.schema import Experiment


def server_app_of(experiment: Callable[[Context], Experiment]) -> ServerApp:
    """The ServerApp that runs the experiment of its context."""
    made = ServerApp()

    @made.main()
    def main(grid: Grid, context: Context) -> None:
        """Run the experiment."""
        server_run.run(grid, experiment(context))

    return made


app = server_app_of(lambda context: experiment_of(context.run_config))
