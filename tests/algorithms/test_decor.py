"""DECOR: every way is Algorithm 1 in numpy, masks cancel, are fresh, and priced on the graph."""

import errno
import json
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from manifed.algorithms.pair_masks import MaskUsed, NotAgreed
from manifed.algorithms.payloads import Point
from manifed.errors import BudgetExhausted, ConfigError, RoundFailed
from manifed.experiment.assembly import client_side, initial_point, load_shards, plan_of
from manifed.federation import memory
from manifed.federation.client import Seat, run_update
from manifed.federation.exchange import ReplyPolicy
from manifed.federation.rounds import free, run_rounds
from manifed.federation.stack import StackTransport
from manifed.flower.handshake import meet
from manifed.plan import promise_of
from manifed.privacy.charging import Account
from manifed.privacy.events import OF_MASKS
from manifed.privacy.masks import seeded_pairs
from manifed.privacy.random_numbers import NoiseSource, Stream
from manifed.privacy.secldp import Correlated, against, worst
from manifed.runs.statement import statement_of
from reproduction import decor_reference as reference
from tests.algorithms.gossip_runs import (
    EVERY_WAY,
    correlated,
    grid_of,
    models_in_numpy,
    models_of,
    reports_of,
    transport_of,
)
from tests.conformance.federated_loop import losing
from tests.tensors import assert_near

SERVER = OF_MASKS[0]

OWN = 0.5
MASK = 40.0
DELTA = 1e-2


def decor(rounds=4, *, mask=MASK, **changes):
    return correlated("decor", OWN, mask, rounds, **changes)


def promised(config):
    return promise_of(config.setting, (3,) * 6)


def drawn(config, stddev=MASK):
    """The masks and the own noise of a round, from their addresses, (n, d) each."""
    source = NoiseSource.from_seed(0)
    graph = config.training.secret_graph
    nodes = range(graph.num_nodes)

    def of(t):
        own = source.normals(
            (3,), stream=Stream.GRADIENT_NOISE, partition=nodes, server_round=t
        )  # fmt: skip
        pairs = [
            seeded_pairs(source).normals((3,), stream=Stream.PAIR_NOISE, edge=edge, server_round=t)
            for edge in graph.edges
        ]
        masks = torch.zeros_like(own)
        for (i, j), v in zip(graph.edges, pairs, strict=True):
            masks[i] += v
            masks[j] -= v
        return (stddev * masks).numpy(), (OWN * own).numpy()

    return of


@EVERY_WAY
def test_every_way_is_algorithm_1_in_numpy(way):
    config = decor()
    expected = models_in_numpy(config, clip=1.0, noise=drawn(config))
    assert_near(models_of(config, way), expected, 1e-9)


@EVERY_WAY
def test_exchanged_keys_give_one_model_whoever_carries_the_messages(way):
    config = decor(pair_keys="exchanged")
    found = models_of(config, way)
    expected = models_of(config, "memory")
    assert_near(found, expected, 1e-9)
    assert np.abs(found - models_of(decor())).max() > 1e-3


@pytest.mark.parametrize("way", ["memory", "stacked"])
@pytest.mark.parametrize("keys", ["seeded", "exchanged"])
def test_masks_are_fresh_in_every_round_and_attempt(keys, way):
    seen = {}
    for attempt in (0, 1):
        for mask in (0.0, MASK):
            own = decor(2, pair_keys=keys, mask=mask, step_size=1e-9)
            plan = replace(plan_of(own), policy=ReplyPolicy(on_failure="retry"))
            transport = transport_of(way, own, client_side(own))
            start = plan.server_update.start(initial_point(own))
            ends = run_rounds(
                plan, start, transport, free, num_rounds=2, attempts=lambda _, a=attempt: a
            )
            first, second = [one.state["x"] for one in ends]
            seen[attempt, 1, mask], seen[attempt, 2, mask] = first - start["x"], second - first
    masks = [seen[a, r, MASK] - seen[a, r, 0.0] for a in (0, 1) for r in (1, 2)]
    for one, other in combinations([torch.zeros_like(masks[0]), *masks], 2):
        assert (one - other).abs().max() > 1e-9


@pytest.mark.parametrize("unit", ["client", "example"])
def test_every_adversary_pays_what_the_graph_hides_from_it(unit):
    mask = 1.3
    batch = {} if unit == "client" else {"minibatch": {"kind": "poisson", "batch_size": 2}}
    config = decor(7, unit=unit, mask=mask, privacy={"coalition": [1, 3]}, **batch)
    graph = config.training.secret_graph
    noise = Correlated(OWN, mask)
    whole = (7, 2.0) if unit == "client" else (7, 1.0 / 2, 2 / 3)
    odometer = promised(config).odometer(7)
    met = (
        worst(graph, noise, 0), worst(graph, noise, 1), against(graph, noise, (1, 3)),
        worst(graph, noise, 5),
    )  # fmt: skip
    spent = [odometer.epsilon(adversary, DELTA) for adversary in OF_MASKS]
    expected = [one.epsilon(DELTA, *whole) for one in met]
    assert spent == pytest.approx(expected, rel=1e-9)
    assert all(low <= high * (1 + 1e-9) for low, high in pairwise(spent))
    assert spent[0] < 0.8 * spent[3]
    audited = {one["name"] for one in odometer.spent(DELTA)}
    assert {"server", "one-node", "coalition", "everybody"} <= audited


@pytest.mark.parametrize("keys", ["seeded", "exchanged"])
def test_a_retry_has_fresh_masks_and_is_charged(keys):
    policy = {"on_failure": "retry", "max_attempts": 2}
    config = decor(3, pair_keys=keys, federation={"replies": policy})
    transport = losing(2, {2})(client_side(config))
    account = Account(promised(config))
    reports = reports_of(config, transport=transport, charge=account.charge)
    assert account.odometer.rounds_counted == 4
    assert account.odometer.epsilon(SERVER, DELTA) == pytest.approx(
        worst(config.training.secret_graph, Correlated(OWN, MASK), 0).epsilon(DELTA, 4, 2.0)
    )
    assert reports[1].participants == tuple(range(6))


def test_a_node_masks_no_second_message_of_a_round_and_attempt():
    config = decor(2, pair_keys="exchanged")
    inner = StackTransport(client_side(config))
    again = {}

    class Curious:
        def exchange(self, asked):
            found = inner.exchange(asked)
            if asked.header.server_round > 0:
                again[asked.header.server_round] = inner.exchange(asked).failures
            return found

    reports_of(config, transport=Curious())
    assert {r: len(failures) for r, failures in again.items()} == {1: 6, 2: 6}
    assert all("MaskUsed" in f.text for failures in again.values() for f in failures.values())


def test_no_masked_message_leaves_a_node_whose_disk_cannot_say_that_masks_were_used(
    tmp_path, monkeypatch
):
    config = decor(2, pair_keys="exchanged")
    grid = grid_of(config, node_config=lambda i: {"state-dir": str(tmp_path / str(i))})
    transport = meet(grid, plan_of(config))
    write = memory.write_atomically

    def full(path, content):
        if json.loads(content.split(b"\n")[1])[1][1] == 1:  # the round in the header
            raise OSError(errno.ENOSPC, "disk full")
        write(path, content)

    monkeypatch.setattr(memory, "write_atomically", full)
    with pytest.raises(RoundFailed, match=r"Round 1: .*this node is absent"):
        reports_of(config, transport=transport)


def setup_phase_of(config, name, node, memory, server_round=0, down=None):
    """One answer of one node, by the very update that runs."""
    side = client_side(config)
    training = side.setup.training
    x = initial_point(config)
    seat = Seat(node, server_round, 0, name)
    return run_update(
        side.setup, seat, down or Point(x), memory or training.initial_memory(x),
        side.shards[node], 3, NoiseSource.from_seed(node),
    )  # fmt: skip


def test_no_message_is_masked_by_keys_that_were_never_agreed_on():
    """A secret that was not offered, and keys that were not agreed on, are zeros: all know them."""
    config = decor(1, pair_keys="exchanged")
    offers = [setup_phase_of(config, "offer", i, None) for i in range(6)]
    offered = offers[2].memory
    with pytest.raises(NotAgreed, match="Expected a key with every neighbour of node 2"):
        setup_phase_of(config, "mix", 2, offered, server_round=1)
    near = [offers[j].up.tensors() for j in config.training.secret_graph.neighbors[2]]
    (_, agree) = config.training.setup_phases
    down = agree.down(
        initial_point(config), *(torch.stack([one[n] for one in near]) for n in near[0])
    )
    with pytest.raises(NotAgreed, match="node 2 to have offered a key"):
        setup_phase_of(config, "agree", 2, None, down=down)
    agreed = setup_phase_of(config, "agree", 2, offered, down=down).memory
    setup_phase_of(config, "mix", 2, agreed, server_round=1)
    used = replace(agreed, used=torch.tensor([1, 0]))
    with pytest.raises(MaskUsed, match="before masks were used"):
        setup_phase_of(config, "offer", 2, used)


# -- who sits in the middle ------------------------------------------------------------------
def signed(tmp_path, nodes=6):
    """A config whose nodes know each other by pinned keys."""
    lines = []
    for i in range(nodes):
        key = Ed25519PrivateKey.generate()
        path = tmp_path / f"{i}.key"
        path.write_text(key.private_bytes_raw().hex())
        path.chmod(0o600)
        lines.append(f"{i} {key.public_key().public_bytes_raw().hex()}")
    (tmp_path / "pinned.txt").write_text("\n".join(lines))
    return {
        "pinned_keys": str(tmp_path / "pinned.txt"),
        "signing_keys": str(tmp_path / "{node}.key"),
    }


@EVERY_WAY
def test_a_release_agrees_on_keys_and_its_statement_says_how(way, tmp_path):
    config = decor(2, source="os", **signed(tmp_path))
    assert config.training.pair_keys == "exchanged"
    *_, last = reports_of(config, way)
    assert last.noise_origins == {"os"}
    models = last.state["x"]
    assert models.std(0).max() > 0.02 * MASK / 4
    moved = models.mean(0) - initial_point(config)
    assert moved.abs().max() < 0.02 * (2 + 10 * OWN)  # two clipped gradients, own noise
    text = statement_of(promised(config).planned(2))
    assert "signed by keys that every node pinned" in text
    assert "coalition" in text


def test_without_pinned_keys_the_statement_says_that_a_server_may_sit_in_the_middle():
    planned = promised(decor(1, source="os")).planned(1)
    assert "not against one that changes messages" in statement_of(planned)
    assert "hides nothing" in statement_of(promised(decor(1)).planned(1))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"privacy": {"coalition": [1, 6]}}, "privacy.coalition: expected different nodes"),
        ({"privacy": {"mask_stddev": None}}, "expected noise_stddev and mask_stddev"),
        ({"privacy": {"mask_stddev": 1e9}}, "beside which float64 keeps a node's own noise"),
        ({"pinned_keys": "/a", "signing_keys": "/b"}, "needs training.pair_keys = 'exchanged'"),
    ],
)
def test_what_would_hide_nothing_is_refused(changes, text):
    with pytest.raises(ConfigError, match=text):
        promised(decor(1, **changes))


def test_example_level_clips_each_example():
    config = decor(1, unit="example", step_size=1.0)
    x = initial_point(config).numpy()
    mixed = reports_of(config)[-1].state["x"].numpy()
    halves = np.zeros_like(mixed)
    masks, own = drawn(config)(1)
    for i, shard in enumerate(load_shards(config).examples):
        rows = shard["feature"].numpy()
        targets = shard["target"].numpy()
        each = reference.clipped(rows * (rows @ x - targets)[:, None], 1.0)
        halves[i] = x - each.mean(0) - masks[i] - own[i]
    expected = config.training.network.weights @ halves
    assert_near(mixed, expected, 1e-9)


def test_a_target_is_met_from_the_private_side():
    target = {"epsilon": 3.0, "delta": DELTA, "adversary": "one-node"}
    said = {"target": target, "delta": None, "noise_stddev": None, "mask_stddev": None}
    config = decor(20, privacy=said)
    rows = {one["name"]: one for one in promised(config).planned(20)["adversaries"]}
    assert 2.99 <= rows["one-node"]["epsilon"] <= 3.0
    assert rows["server"]["epsilon"] < rows["one-node"]["epsilon"] < rows["everybody"]["epsilon"]


def test_a_budget_ends_the_run_before_the_round_that_it_does_not_pay():
    config = decor(50, privacy={"max_epsilon": 5.0})
    account = Account(promised(config))
    with pytest.raises(BudgetExhausted, match=r"privacy.max_epsilon: round \d+ would be"):
        reports_of(config, charge=account.charge)
    assert account.odometer.epsilon(SERVER, DELTA) <= 5.0
