"""What a node says of itself, and what its errors carry to the server."""

from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp

from manifed.experiment.assembly import own_node
from manifed.experiment.load import load
from manifed.flower import client
from manifed.flower.client import client_app_of
from manifed.flower.handshake import HandshakeFailed, meet
from manifed.flower.inline import InlineGrid
from manifed.flower.transport import MessageTransport

QUICKSTART = Path(__file__).resolve().parents[2] / "configs" / "quickstart.toml"
MARKER = "8675309.125"


def config_of(*sets):
    return load(QUICKSTART, ["federation.num_clients=3", *sets])


@pytest.mark.parametrize("partition", [-1, 3, True, 0.0, "1", None])
def test_a_node_without_a_place_among_the_shards_says_so(partition):
    node = {} if partition is None else {"partition-id": partition}
    context = Context(run_id=1, node_id=2, node_config=node, state=RecordDict(), run_config={})
    with pytest.raises(ValueError, match=r"partition-id of this node in .* 0\.\.2, got"):
        client.node_of(context, config_of())


def quoting(*arguments, **keywords):
    """A step that fails and quotes a record."""
    raise ValueError(f"cannot factor [[{MARKER}]]")


PLACES = {
    "loading": "manifed.experiment.assembly.client_setup",
    "validating": "manifed.experiment.assembly.own_examples",
    "the turn": "manifed.federation.client.run_update",
    "packing": "manifed.flower.clients.local_training.pack",
    "memory": "manifed.flower.client.keep",
    "introducing": "manifed.flower.client.code_sha256",
}


def replies_of(config):
    """The error texts that the server gets in a handshake and in a round."""
    from manifed.experiment.assembly import initial_point, plan_of
    from manifed.federation.rounds import run_rounds

    class Listening(InlineGrid):
        def __init__(self, app: ClientApp, *arguments):
            super().__init__(app, *arguments)
            self.texts = []

        def pull_messages(self, message_ids):
            found = super().pull_messages(message_ids)
            self.texts += [reply.error.reason for reply in found if reply.has_error()]
            return found

    grid = Listening(client_app_of(lambda _: config), 3, {})
    plan = plan_of(config)
    sha = plan.config_sha256
    try:
        nodes = meet(grid, sha, plan.num_examples, timeout=5.0, patience=0.0)
    except HandshakeFailed as failed:
        return [*grid.texts, str(failed)]
    start = plan.server_update.start(initial_point(config))
    try:
        next(run_rounds(plan, start, MessageTransport(grid, nodes, 5.0), num_rounds=1))
    except RuntimeError as failed:
        grid.texts.append(str(failed))
    return grid.texts


@pytest.mark.parametrize("place", PLACES)
def test_no_error_that_travels_quotes_a_record(place, monkeypatch):
    config = config_of("training.local_steps=1", f"description='{place}'")
    if place == "memory":
        config = config_of(
            "problem={kind='kpca'}",
            "training={kind='projected',step_size=0.1,local_steps=1}",
        )
    own_node.cache_clear()
    monkeypatch.setattr(PLACES[place], quoting)
    texts = replies_of(config)
    own_node.cache_clear()
    assert texts
    assert not any(MARKER in text for text in texts)
