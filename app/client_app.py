"""Flower's door to a client: a query that introduces the node, and a turn."""

from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from app import client_turn
from app.run_config import experiment_of
from configs.schema import Experiment


def client_app_of(experiment: Callable[[Context], Experiment]) -> ClientApp:
    """The ClientApp of nodes that take part in the experiment of their context."""
    made = ClientApp()

    @made.query()
    def introduce(message: Message, context: Context) -> Message:
        """Which partition this node holds and how many examples (a public size)."""
        return client_turn.introduce(message, context, experiment(context))

    @made.train()
    def train(message: Message, context: Context) -> Message:
        """One turn of the client half."""
        return client_turn.answer(message, context, experiment(context))

    return made


app = client_app_of(lambda context: experiment_of(context.run_config))
