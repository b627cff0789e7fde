"""Flower's door to a client: a query that introduces the node, and a turn."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from app import client_turn

app = ClientApp()


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Which partition this node holds and how many examples (a public size)."""
    return client_turn.introduce(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One turn of the client half."""
    return client_turn.answer(message, context)
