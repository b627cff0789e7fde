"""Partial participation: the corrections sum to zero and it converges where stale ones fail."""

import torch

from manifed.algorithms.projected import ProjectedPartial, corrections
from manifed.problems.pca import KPCA
from tests.algorithms.test_projected import UPDATE, pca_shards, start
from tests.conformance.federated_loop import federate, last


def thirds(server_round):
    """Two of six clients, drawn anew every round."""
    generator = torch.Generator().manual_seed(server_round)
    return tuple(sorted(torch.randperm(6, generator=generator)[:2].tolist()))


PARTIAL = ProjectedPartial(step_size=2e-3, local_steps=5)


def test_with_everybody_the_control_variates_are_algorithm_1():
    problem = KPCA(3)
    shards = pca_shards()
    x = start(problem, shards)
    plain = federate(problem, shards, UPDATE, UPDATE, x, 15)
    partial = federate(problem, shards, PARTIAL, PARTIAL, x, 15)
    for a, b in zip(plain, partial, strict=True):
        assert float((a.state["x"] - b.state["x"]).abs().max()) <= 1e-12


def test_corrections_sum_to_zero_whoever_takes_part():
    problem = KPCA(3)
    shards = pca_shards()
    x = start(problem, shards)
    rounds = federate(problem, shards, PARTIAL, PARTIAL, x, 12, cohort=thirds)
    unknown = 0
    for played in rounds:
        state = played.state
        mine = PARTIAL.correction(state["mean_displacement"], played.memory)
        assert float(mine.sum(0).abs().max()) <= 1e-10
        scale = -PARTIAL.step_size * PARTIAL.local_steps
        theirs = corrections(state["mean_displacement"], state["displacements"], state["is_known"])
        torch.testing.assert_close(theirs, scale * mine, rtol=0, atol=1e-14)
        unknown += int((state["is_known"] == 0).sum())
    assert unknown > 0, "some rounds must have clients that never took part"


def test_control_variates_converge_where_stale_corrections_do_not():
    problem = KPCA(3)
    shards = pca_shards()
    x = start(problem, shards)
    partial = federate(problem, shards, PARTIAL, PARTIAL, x, 200, cohort=thirds)
    assert float(problem.gradient_norm(last(partial).state["anchor"], shards)) < 2e-2
    wide = UPDATE.model_copy(update={"tube_radius": 99.0})
    naive = [
        float(problem.gradient_norm(p.state["anchor"], shards))
        for p in federate(problem, shards, wide, wide, x, 100, cohort=thirds)
    ]
    assert min(naive[50:]) > 1.0


def test_a_client_that_lost_its_memory_does_not_bend_the_control_variates():
    """What goes up is uncorrected: whatever correction a client used, the server's sum is zero."""
    problem = KPCA(3)
    shards = pca_shards()
    first = last(federate(problem, shards, PARTIAL, PARTIAL, start(problem, shards), 5))
    blank = PARTIAL.initial_memory(first.memory.tensors()["u"])
    x = first.state["anchor"]
    state = last(federate(problem, shards, PARTIAL, PARTIAL, x, 1, memory=blank)).state
    total = corrections(state["mean_displacement"], state["displacements"], state["is_known"])
    assert float(total.sum(0).abs().max()) <= 1e-12
