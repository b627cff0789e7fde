"""Flower's doors: a ServerApp and a ClientApp of an experiment."""

from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from manifed.experiment.schema import Experiment
from manifed.flower import client, server_run


def server_app_of(experiment: Callable[[Context], Experiment]) -> ServerApp:
    """The ServerApp that runs the experiment of its context."""
    made = ServerApp()

    @made.main()
    def main(grid: Grid, context: Context) -> None:
        """Run the experiment."""
        server_run.run(grid, experiment(context))

    return made


def client_app_of(experiment: Callable[[Context], Experiment]) -> ClientApp:
    """The ClientApp of nodes that take part in the experiment of their context."""
    made = ClientApp()

    @made.query()
    def introduce(message: Message, context: Context) -> Message:
        """Which partition this node holds and how many examples (a public size)."""
        return client.introduce(message, context, experiment(context))

    @made.train()
    def train(message: Message, context: Context) -> Message:
        """One client update."""
        return client.answer(message, context, experiment(context))

    return made
