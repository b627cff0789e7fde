"""Least-squares experiments on a graph, run without a folder, and the same in plain numpy."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from manifed.experiment.assembly import client_side, initial_point, load_shards, plan_of
from manifed.experiment.load import parse
from manifed.federation.rounds import free, run_rounds
from manifed.federation.stack import StackTransport
from manifed.flower.client import client_app_of
from manifed.flower.grids import InlineGrid
from manifed.flower.handshake import meet
from reproduction import decor_reference as reference

WAYS = ("memory", "stacked", "messages")
EVERY_WAY = pytest.mark.parametrize("way", WAYS)
EQUAL = {"kind": "equal"}
SPACES = {
    "stiefel": (
        {"kind": "kpca", "num_components": 2, "scaling": "mean"},
        {"kind": "synthetic-pca", "num_clients": 6, "rows": 10, "dimension": 5},
        {"kind": "natural"},
    ),
    "spd": (
        {"kind": "frechet-mean", "manifold": "spd"},
        {"kind": "spd-lognormal", "num_examples": 60, "dimension": 3, "condition": 4.0},
        EQUAL,
    ),
    "lorentz": (
        {"kind": "frechet-mean", "manifold": "lorentz"},
        {"kind": "reproduction.recipes:HyperbolicCloud", "num_examples": 60, "dimension": 3},
        EQUAL,
    ),
}
"""Problem, data and partition of what is not flat."""


def experiment(
    nodes=6, rounds=5, dimension=3, privacy=None, federation=None, space="flat", **training
):
    """The experiment of a table; training on a ring unless it says other."""
    problem, data, partition = SPACES.get(space) or (
        {"kind": "least-squares", "scaling": "sum"},
        {"kind": "scaled-identities", "num_clients": nodes, "dimension": dimension},
        {"kind": "natural"},
    )
    return parse(
        {
            "name": "on-a-graph",
            "problem": problem,
            "data": data,
            "federation": {
                "num_clients": nodes,
                "num_rounds": rounds,
                "partition": partition,
                **(federation or {}),
            },
            "training": {
                "kind": "gossip",
                "graph": {"kind": "ring"},
                "step_size": 0.02,
                **training,
            },
            "privacy": privacy or {"kind": "none"},
        }
    )


def correlated(kind, own, mask, rounds, *, unit="client", source="seed", privacy=None, **changes):
    """The experiment under noise whose neighbours share masks."""
    said = {
        "kind": "correlated", "unit": unit, "l2_norm_clip": 1.0, "noise_stddev": own,
        "mask_stddev": mask, "delta": 1e-2, "noise_source": source, **(privacy or {}),
    }  # fmt: skip
    return experiment(rounds=rounds, privacy=said, kind=kind, **changes)


def grid_of(config, kind=InlineGrid, **more):
    """A grid whose nodes are the clients of an experiment."""
    return kind(client_app_of(lambda _: config), config.federation.num_clients, {}, **more)


def transport_of(way, config, side=None):
    """The transport of an experiment."""
    side = side or client_side(config)
    if way == "memory":
        return StackTransport(side)
    if way == "stacked":
        return StackTransport(side, at_once=None, memory_budget_mb=64)
    return meet(grid_of(config), plan_of(config))


def reports_of(config, way="memory", transport=None, charge=free, **changes):
    """All reports of the rounds of an experiment."""
    plan = replace(plan_of(config), **changes)
    start = plan.server_update.start(initial_point(config))
    way = transport or transport_of(way, config)
    return list(run_rounds(plan, start, way, charge, num_rounds=config.federation.num_rounds))


def models_of(config, way="memory", **changes):
    """The models of all nodes after the last round, numpy (n, d)."""
    *_, last = reports_of(config, way, **changes)
    plan = plan_of(config)
    return plan.server_update.node_models(last.state, plan.manifold).numpy()


def least_squares_of(config):
    """The task in plain numpy, from the very shards: with scaling "sum" rows are sqrt(d) A_i."""
    shards = load_shards(config).examples
    d = len(shards[0])
    targets = torch.stack([shard["target"] for shard in shards]).numpy() / np.sqrt(d)
    return reference.LeastSquares(targets[None])


def models_in_numpy(config, clip=None, noise=lambda t: (0.0, 0.0)):
    """The same models by `reproduction.decor_reference`; ``noise(t)`` gives masks and own noise."""
    task = least_squares_of(config)
    training = config.training
    x = np.tile(initial_point(config).numpy(), (config.federation.num_clients, 1))
    for t in range(config.federation.num_rounds):
        g = reference.clipped(task.gradients(x)[0], clip)
        masks, own = noise(t + 1)
        eta = training.step_size / (1 + t / (training.decay_rounds or np.inf))
        x = reference.mixed(
            reference.half_steps(x, g, masks, own, eta),
            training.network.mixed(torch.eye(len(x)).double()).numpy(),
        )
    return x
