"""What a node says of itself, and what its errors carry to the server."""

import pytest
from flwr.app import Context, RecordDict

from clients.local_training import node_of
from manifed.experiment.assembly import initial_point, own_node, plan_of
from manifed.experiment.load import load
from manifed.federation.rounds import run_rounds
from manifed.flower.grids import InlineGrid
from manifed.flower.handshake import meet
from tests.algorithms.gossip_runs import grid_of
from tests.fresh import QUICKSTART

MARKER = "8675309.125"


def config_of(*sets):
    return load(QUICKSTART, ["federation.num_clients=3", *sets])


@pytest.mark.parametrize("partition", [-1, 3, True, 0.0, "1", None])
def test_a_node_without_a_place_among_the_shards_says_so(partition):
    node = {} if partition is None else {"partition-id": partition}
    context = Context(run_id=1, node_id=2, node_config=node, state=RecordDict(), run_config={})
    with pytest.raises(ValueError, match=r"partition-id of this node in .* 0\.\.2, got"):
        node_of(config_of(), context)


def quoting(*arguments, **keywords):
    """A step that fails and quotes a record."""
    raise ValueError(f"cannot factor [[{MARKER}]]")


PLACES = {
    "loading": "manifed.experiment.assembly.client_setup",
    "validating": "manifed.experiment.assembly.own_examples",
    "the turn": "manifed.federation.client.run_update",
    "packing": "manifed.flower.clients.local_training.pack",
    "memory": "manifed.flower.clients.local_training._Memory.keep",
    "introducing": "manifed.flower.clients.local_training.code_sha256",
}


def replies_of(config):
    """The error texts that the server gets in a handshake and in a round."""
    texts = []

    class Listening(InlineGrid):
        def _deliver(self, message):
            reply = super()._deliver(message)
            texts.extend([reply.error.reason] if reply.has_error() else [])
            return reply

    plan = plan_of(config)
    start = plan.server_update.start(initial_point(config))
    grid = grid_of(config, Listening)

    def one_round():
        next(run_rounds(plan, start, meet(grid, plan, 5.0, patience=0.0), num_rounds=1))

    with pytest.raises(RuntimeError) as failed:
        one_round()
    return [*texts, str(failed.value)]


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
