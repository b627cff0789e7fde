"""Partial participation: the corrections sum to zero and it converges where stale ones fail."""

import torch

from manifed.algorithms.projected import ProjectedPartial
from tests.algorithms.test_projected import PROBLEM, SHARDS, START, UPDATE
from tests.conformance.federated_loop import federate, last
from tests.tensors import assert_near


def thirds(server_round):
    """Two of six clients, drawn anew every round."""
    generator = torch.Generator().manual_seed(server_round)
    return tuple(sorted(torch.randperm(6, generator=generator)[:2].tolist()))


def of_server(state):
    """-eta tau c_i of all clients by what the server keeps of them; 0: unknown."""
    known = state["is_known"].reshape(-1, *[1] * state["x"].dim())
    return known * (state["mean_displacement"] - state["displacements"])


PARTIAL = ProjectedPartial(step_size=2e-3, local_steps=5)


def test_with_everybody_the_control_variates_are_algorithm_1():
    plain = federate(PROBLEM, SHARDS, UPDATE, UPDATE, START, 15)
    partial = federate(PROBLEM, SHARDS, PARTIAL, PARTIAL, START, 15)
    for a, b in zip(plain, partial, strict=True):
        assert_near(a.state["x"], b.state["x"], 1e-12)


def test_corrections_sum_to_zero_whoever_takes_part():
    rounds = federate(PROBLEM, SHARDS, PARTIAL, PARTIAL, START, 12, cohort=thirds)
    unknown = 0
    for played in rounds:
        state = played.state
        mine = PARTIAL.correction(state["mean_displacement"], played.memory)
        assert mine.sum(0).abs().max() <= 1e-10
        scale = -PARTIAL.step_size * PARTIAL.local_steps
        theirs = of_server(state)
        assert_near(theirs, scale * mine, 1e-14)
        unknown += int((state["is_known"] == 0).sum())
    assert unknown > 0, "some rounds must have clients that never took part"


def test_control_variates_converge_where_stale_corrections_do_not():
    partial = federate(PROBLEM, SHARDS, PARTIAL, PARTIAL, START, 200, cohort=thirds)
    assert PROBLEM.gradient_norm(last(partial).state["anchor"], SHARDS) < 2e-2
    wide = UPDATE.model_copy(update={"tube_radius": 99.0})
    naive = [
        float(PROBLEM.gradient_norm(p.state["anchor"], SHARDS))
        for p in federate(PROBLEM, SHARDS, wide, wide, START, 100, cohort=thirds)
    ]
    assert min(naive[50:]) > 1.0


def test_a_client_that_lost_its_memory_does_not_bend_the_control_variates():
    """What goes up is uncorrected: whatever correction a client used, the server's sum is zero."""
    first = last(federate(PROBLEM, SHARDS, PARTIAL, PARTIAL, START, 5))
    blank = PARTIAL.initial_memory(first.memory.tensors()["u"])
    x = first.state["anchor"]
    state = last(federate(PROBLEM, SHARDS, PARTIAL, PARTIAL, x, 1, memory=blank)).state
    assert of_server(state).sum(0).abs().max() <= 1e-12
