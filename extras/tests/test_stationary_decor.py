"""DECOR with streams: one law at both ends of an edge, one price, one result on all engines."""

import numpy as np
import pytest
import torch

from manifed.errors import ConfigError
from manifed.experiment.assembly import initial_point, plan_of
from manifed.federation.rounds import Course, free, run_rounds, sent
from manifed.plan import example_mechanism, planned_statement
from manifed.privacy.random_numbers import NoiseSource, Stream
from manifed.privacy.secldp import Correlated, worst
from manifed_extras import stationary
from manifed_extras.stationary import Shape
from reproduction import decor_reference as reference
from tests.algorithms.gossip_runs import (
    EVERY_WAY,
    experiment,
    least_squares_of,
    models_of,
    reports_of,
    transport_of,
)

OWN = 0.3
MASK = 2.0
CLIP = 1.0
STEP = 0.02
STREAMS = [
    {"kind": "slow", "memory": 0.9, "shared": 0.8},
    {"kind": "fast", "memory": 0.5, "own": 2.0},
    {"kind": "white", "shared": 0.6},
]


def streaming(nodes=6, rounds=5, dimension=3, privacy=None, federation=None, **training):
    """A run of DECOR with streams on a ring."""
    said = {"kind": "correlated", "l2_norm_clip": CLIP, "noise_stddev": OWN, "mask_stddev": MASK,
            "collusion": 1, "delta": 1e-3, **(privacy or {})}  # fmt: skip
    training = {
        "kind": "manifed_extras.stationary_decor:StationaryDecor",
        "streams": STREAMS,
        **training,
    }
    return experiment(nodes, rounds, dimension, said, federation, **training)


def noise_of(config, source, rounds):
    """The noise of every round, (rounds, n, d), from addresses and the law as it is written."""
    graph = config.training.secret_graph
    d = initial_point(config).shape[0]
    n = graph.num_nodes
    edges = graph.edges
    pairs = source.derive(b"pair of a seeded run\0")

    def fresh(t, j):
        own = source.normals((d,), stream=Stream.STREAM_NOISE, partition=tuple(range(n)),
                             server_round=t, step=j)  # fmt: skip
        each = torch.stack([
            pairs.normals((d,), stream=Stream.PAIR_NOISE, edge=edge, server_round=t, step=j)
            for edge in edges
        ])  # fmt: skip
        return own.numpy(), each.numpy()

    said = config.training.streams
    states = [fresh(0, j) for j in range(len(said))]
    found = []
    for t in range(1, rounds + 1):
        white = source.normals((d,), stream=Stream.GRADIENT_NOISE, partition=tuple(range(n)),
                               server_round=t)  # fmt: skip
        z = OWN * white.numpy()
        for j, stream in enumerate(said):
            shape, (own, each) = Shape(stream.kind, stream.memory), fresh(t, j)
            own_state, own_noise = shape.step(states[j][0], own)
            each_state, each_noise = shape.step(states[j][1], each)
            states[j] = own_state, each_state
            z = z + OWN * stream.own * own_noise
            z = z + MASK * stream.shared * (graph.incidence @ each_noise)
        found.append(z)
    return np.stack(found)


@EVERY_WAY
def test_every_engine_is_the_noise_as_written_in_plain_numpy(way):
    config = streaming()
    noise = noise_of(config, NoiseSource.from_seed(config.federation.seed), 5)
    task = least_squares_of(config)
    start = initial_point(config).numpy()
    x = np.tile(start, (6, 1))
    weights = reference.metropolis_hastings(config.training.secret_graph).toarray()
    for z in noise:
        g = reference.clipped(task.gradients(x[None])[0], CLIP)
        x = weights @ (x - STEP * (g + z))
    assert np.abs(models_of(config, way) - x).max() < 1e-9


def test_masks_do_not_move_the_mean_of_all_models():
    still, moved = (models_of(streaming(privacy={"mask_stddev": m})) for m in (0.0, 2.0))
    assert np.abs(still - moved).max() > 0.01
    quiet = {"streams": [{"kind": "slow", "memory": 0.9, "shared": 1.0}], "step_size": 1e-9}
    still, moved = (models_of(streaming(privacy={"mask_stddev": m}, **quiet)).mean(0)
                    for m in (0.0, 1e3))  # fmt: skip
    assert np.abs(still - moved).max() < 1e-14


def test_a_round_is_charged_as_its_streams_hide_it_and_white_ones_as_decor():
    config = streaming()
    mechanism = example_mechanism(config.setting, (3,) * 6)
    noise = config.training.noise(Correlated(OWN, MASK))
    for name, collusion in (("from_server", 0), ("from_one", 1)):
        found = getattr(mechanism.hidden, name)
        assert found == pytest.approx(stationary.worst(noise, collusion).stddev, rel=1e-12)
    assert mechanism.hidden.from_all == pytest.approx(OWN, rel=1e-9)
    white = streaming(streams=[{"kind": "white", "shared": 1.0}])
    fresh = worst(white.training.secret_graph, Correlated(OWN, MASK), 0).stddev
    found = example_mechanism(white.setting, (3,) * 6).hidden.from_server
    assert fresh * (1 - 2e-4) <= found <= fresh


def test_a_statement_says_what_a_node_keeps_and_prices_all_rounds():
    said = [planned_statement(streaming(rounds=r).setting, (3,) * 6) for r in (5, 20)]
    spent = [[one["epsilon"] for one in each["adversaries"]] for each in said]
    assert all(few < many for few, many in zip(*spent, strict=True))
    assert "states of its streams" in said[0]["kept_noise"]


def test_a_seeded_run_goes_on_in_the_middle_as_if_it_had_never_stopped():
    config = streaming(rounds=6)
    plan = plan_of(config)
    whole = reports_of(config)
    rest = list(run_rounds(plan, whole[2].state, transport_of("stacked", config), free,
                           num_rounds=6, first_round=4))  # fmt: skip
    assert torch.equal(rest[-1].state["x"], reports_of(config, "stacked")[-1].state["x"])


@EVERY_WAY
def test_streams_from_exchanged_keys_cancel_too(way):
    config = streaming(rounds=4, step_size=1e-9, privacy={"noise_source": "os"})
    assert config.training.pair_keys == "exchanged"
    found = models_of(config, way)
    start = initial_point(config).numpy()
    spread = np.abs(found - found.mean(0)).max()
    assert np.abs(found.mean(0) - start).max() < 1e-6 * max(spread / STEP, 1.0)
    assert spread > 1e-10


def test_a_node_whose_streams_are_of_another_round_refuses():
    config = streaming(rounds=3, privacy={"noise_source": "os"})
    plan = plan_of(config)
    transport = transport_of("memory", config)
    reports = list(run_rounds(plan, plan.server_update.start(initial_point(config)), transport,
                              free, num_rounds=1))  # fmt: skip
    for wanted, why in ((3, "Expected streams of round 2"), (1, "those masks were used")):
        course = Course(plan, reports[-1].state)
        course.round = wanted
        now = course.opened()
        replies = transport.exchange(course.asked(sent(now)))
        assert len(replies.failures) == 6
        assert why in replies.failures[0].text, replies.failures[0]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"privacy": {"noise_stddev": None, "mask_stddev": None, "delta": None,
                      "target": {"epsilon": 1.0, "delta": 1e-3}}}, "privacy.target"),
        ({"federation": {"replies": {"on_failure": "retry"}}}, "on_failure"),
        ({"minibatch": {"kind": "poisson", "batch_size": 2},
          "privacy": {"unit": "example"}}, "training.minibatch.kind"),
        ({"streams": [{"kind": "white", "own": 1.0}]}, "noise_stddev"),
        ({"streams": []}, "streams"),
    ],
)  # fmt: skip
def test_what_is_not_priced_is_refused(changes, why):
    with pytest.raises(ConfigError, match=why):
        streaming(**changes)
