"""The projection of the mean: line 13, the tube, the theorem's constants, and what is private."""

import math

import pytest
import torch

from clients.projected import Projected
from configs.load import ConfigError, parse
from manifolds.sphere import Sphere
from manifolds.stiefel import Stiefel
from privacy.mechanism import ClientLens, ExampleLens, RelativeNoise
from problems.pca import KPCA
from strategies.projected_theory import (
    initial_gap,
    largest_total_step,
    optimality_measure,
    stationarity_bound,
    stiefel_constants,
    theory_stepsize,
)
from strategies.projection_mean import ProjectionMean, ProjectionMeanPartial, corrections
from strategies.replies import RoundFailed
from strategies.server_half import Collected
from tests.clients.test_projected import local_gradients, pca_shards, start
from tests.conformance.federated_loop import federate, last
from wire.payloads import Displacement


def collected(u, partitions, num_clients):
    return Collected({"u": u.mean(0)}, Displacement(u), partitions, num_clients, 0.5)


def test_the_broadcast_is_unprojected_and_the_model_is_projected():
    x = torch.tensor([1.0, 0.0], dtype=torch.float64)
    u = torch.tensor([[0.0, 0.6], [0.2, 0.0]], dtype=torch.float64)
    server = ProjectionMean(server_step_size=0.5)
    state = server.step(server.initial(x), "train", collected(u, (0, 1), 2), 1, Sphere())
    expected = torch.tensor([1.05, 0.15], dtype=torch.float64)
    torch.testing.assert_close(server.down(state, "train").x, expected, rtol=0, atol=1e-15)
    model = server.model(state, Sphere())
    torch.testing.assert_close(model, expected / expected.norm(), rtol=0, atol=1e-15)
    assert torch.equal(server.base(state, Sphere()), model)


@pytest.mark.parametrize("radius", [None, 0.25])
def test_leaving_the_tube_is_an_error_that_says_what_to_do(radius):
    x = Stiefel().origin(4, 2)
    u = -0.9 * x.unsqueeze(0) if radius is None else -0.2 * x.unsqueeze(0)
    server = ProjectionMean(tube_radius=radius)
    with pytest.raises(RoundFailed) as caught:
        server.step(server.initial(x), "train", collected(u, (0,), 1), 7, Stiefel())
    for word in ("Round 7", "|x - P(x)| <", "training.step_size", f"{radius or 1:g}"):
        assert word in str(caught.value)
    inside = server.step(server.initial(x), "train", collected(u / 10, (0,), 1), 7, Stiefel())
    assert float((server.model(inside, Stiefel()) - x).norm()) <= 1e-15


def test_not_a_number_is_outside_every_tube():
    x = Stiefel().origin(4, 2)
    u = torch.full((1, 4, 2), torch.nan, dtype=torch.float64)
    server = ProjectionMean(tube_radius=1e9)
    with pytest.raises(RoundFailed, match="nan"):
        server.step(server.initial(x), "train", collected(u, (0,), 1), 1, Stiefel())


def test_the_books_keep_the_last_displacement_of_each_client():
    x = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    server, sphere = ProjectionMeanPartial(), Sphere()
    u = 0.1 * torch.eye(3, dtype=torch.float64)
    state = server.step(server.initial(x), "train", collected(u[:2], (3, 1), 5), 1, sphere)
    assert state["is_known"].tolist() == [0, 1, 0, 1, 0]
    torch.testing.assert_close(state["displacements"][3], u[0])
    state = server.step(state, "train", collected(u[2:], (1,), 5), 2, sphere)
    torch.testing.assert_close(state["displacements"][1], u[2])
    torch.testing.assert_close(state["mean_displacement"], (u[0] + u[2]) / 2)
    c = corrections(state["mean_displacement"], state["displacements"], state["is_known"])
    assert float(c.sum(0).abs().max()) <= 1e-15
    assert not bool(c[[0, 2, 4]].any())


# -- the theorem ------------------------------------------------------------------------------
def client_constants(shards, k):
    """L_hat and D_f of f_i as one sample each: eigenvalues of A_i^T A_i."""
    spectra = [torch.linalg.eigvalsh(s["z"].mT @ s["z"] / len(s)).flip(0) for s in shards]
    bound = max(float(w[:k].square().sum().sqrt()) for w in spectra)
    return stiefel_constants(k, max(float(w[0]) for w in spectra), bound)


def test_theory_step_sizes_meet_the_condition_with_equality():
    constants = client_constants(pca_shards(), 3)
    eta, server = theory_stepsize(constants, 6, 5)
    assert server == pytest.approx(math.sqrt(6))
    total = eta * server * 5
    assert total == pytest.approx(1 / (24 * 4 * math.sqrt(3) * constants.smoothness))
    assert total <= constants.gamma / (6 * constants.gradient_bound)
    curved = type(constants)(1.0, 1.0, 0.5, 2.0, 1e6)
    assert largest_total_step(curved) == pytest.approx(1e-6)


@pytest.mark.parametrize(
    ("clients", "local_steps", "rounds"), [(6, 5, 150), (6, 1, 60), (3, 8, 60)]
)
def test_the_bound_of_theorem_4_3_holds(clients, local_steps, rounds):
    problem, shards = KPCA(3), pca_shards(clients)
    x, constants = start(problem, shards), client_constants(shards, 3)
    eta, server_step_size = theory_stepsize(constants, clients, local_steps)
    half = Projected(step_size=eta, local_steps=local_steps, server_step_size=server_step_size)
    server = ProjectionMean(server_step_size=server_step_size, tube_radius=0.5)
    total_step = eta * server_step_size * local_steps
    gap = float(problem.objective(x, shards)) - problem.optimum(shards).value
    omega = initial_gap(
        gap, local_gradients(problem, x, shards), eta, server_step_size, local_steps
    )
    squares, here = [], x
    for played in federate(problem, shards, half, server, x, rounds):
        grad = problem.gradient(here, shards)
        measure = optimality_measure(here, grad, total_step, problem.manifold)
        squares.append(float(measure.square().sum()))
        assert 0.5 * float(grad.norm()) <= float(measure.norm()) <= 2 * float(grad.norm())  # A.2
        here = played.state["anchor"]
    bound = stationarity_bound(omega, clients, eta, local_steps, rounds)
    assert 0 < sum(squares) / rounds <= bound


def test_projections_are_twice_lipschitz_in_the_tube_and_normals_are_bounded():
    """(3), (4) and (15) on random points of St(6, 2) and its tube of radius 1/2."""
    stiefel, generator = Stiefel(), torch.Generator().manual_seed(1)
    x, y = (stiefel.random_point(500, 6, 2, generator=generator) for _ in range(2))
    s = torch.randn(2, 500, 2, 2, generator=generator, dtype=torch.float64)
    a, b = (p @ (w + w.mT) for p, w in zip((x, y), s, strict=True))

    def size(u):
        return u.flatten(-2).norm(dim=-1)

    def tube(p, v):
        return p + 0.5 * v / size(v)[:, None, None]

    one, two = tube(x, a), tube(y, b)
    moved = size(stiefel.projx(one) - stiefel.projx(two))
    assert bool((moved <= 2 * size(one - two) + 1e-12).all())  # (3)
    assert bool(((a * (y - x)).sum((-2, -1)) <= size(a) / 2 * size(y - x).square() + 1e-12).all())
    u = torch.randn(500, 6, 2, generator=generator, dtype=torch.float64)
    growth = stiefel_constants(2, 1.0, 1.0).growth
    assert growth == pytest.approx(4 * math.sqrt(2))
    assert bool((size(stiefel.projx(x + u) - x) <= growth * size(u)).all())  # (15)


# -- privacy ----------------------------------------------------------------------------------
def test_noise_moves_the_run_and_vanishes_with_its_multiplier():
    problem, shards = KPCA(3), pca_shards()
    x, half = start(problem, shards), Projected(step_size=2e-3, local_steps=5)
    plain = last(federate(problem, shards, half, ProjectionMean(), x, 5)).state["x"]

    def gap(multiplier, clip=1e6):
        noise = RelativeNoise(multiplier=multiplier)
        lens = ExampleLens(l2_norm_clip=clip, noise=noise)
        end = last(
            federate(problem, shards, half, ProjectionMean(tube_radius=1e9), x, 5, lens=lens)
        )
        return float((end.state["x"] - plain).norm())

    assert gap(0.0) <= 1e-12
    assert 1e-9 < gap(1e-8) < 1e-2 < gap(1e-3)


def test_client_level_noise_and_clip_act_on_ambient_uploads():
    problem, shards = KPCA(3), pca_shards()
    x, half = start(problem, shards), Projected(step_size=2e-3, local_steps=5)
    plain = last(federate(problem, shards, half, ProjectionMean(), x, 4)).state["x"]
    wide = ClientLens(l2_norm_clip=1e3, noise_multiplier=0.0)
    silent = last(federate(problem, shards, half, ProjectionMean(), x, 4, client_lens=wide))
    torch.testing.assert_close(silent.state["x"], plain, rtol=0, atol=1e-13)
    tight = ClientLens(l2_norm_clip=0.01, noise_multiplier=0.0)
    for played in federate(problem, shards, half, ProjectionMean(), x, 4, client_lens=tight):
        assert float((played.state["x"] - x).norm()) <= 0.01 + 1e-12
        x = played.state["anchor"]


def test_plain_uploads_are_algorithm_1_and_forget_the_servers_noise():
    problem, shards = KPCA(3), pca_shards()
    x, rounds = start(problem, shards), 40
    half = Projected(step_size=2e-3, local_steps=5)
    plain = half.model_copy(update={"upload": "plain"})
    one = last(federate(problem, shards, half, ProjectionMean(), x, 10)).state["x"]
    two = last(federate(problem, shards, plain, ProjectionMean(), x, 10)).state["x"]
    torch.testing.assert_close(one, two, rtol=0, atol=1e-12)
    noisy = ClientLens(l2_norm_clip=1e3, noise_multiplier=1e-8)

    def imbalance(training):
        """Size of the mean correction in the first and in the last rounds."""
        sizes = [
            float(training.correction(p.state["x"], p.memory).mean(0).norm())
            for p in federate(
                problem, shards, training, ProjectionMean(), x, rounds, client_lens=noisy
            )
        ]
        return sizes[0], sum(sizes[-10:]) / 10

    first, late = imbalance(half)
    assert late > 3 * first
    first, late = imbalance(plain)
    assert 0.3 * first < late < 2 * first


# -- the config -------------------------------------------------------------------------------
TABLE = {
    "name": "t",
    "problem": {"kind": "kpca", "num_components": 3},
    "data": {"kind": "synthetic-pca", "num_clients": 4},
    "federation": {"num_clients": 4, "num_rounds": 2, "partition": {"kind": "natural"}},
    "training": {"kind": "projected", "step_size": 1e-3},
    "strategy": {"kind": "projection-mean"},
}
SVRG = {"kind": "federated-svrg", "step_size": 1.0}
PARTIAL = {"kind": "projected-partial", "step_size": 1.0}
NOISE = {"kind": "multiplier", "noise_multiplier": 1.0}
SOME = {"kind": "fixed-size", "cohort_size": 2}
CLIENT = {"kind": "client-level", "l2_norm_clip": 1.0, "noise": NOISE, "delta": 1e-3}
PUBLISHED = {"kind": "published", "local_epsilon": 1.0, "local_delta": 1e-5}
EXAMPLE = {"kind": "example-level", "l2_norm_clip": 1.0, "noise": PUBLISHED, "delta": 1e-5}
SPD = {"problem": {"kind": "frechet-mean"}, "data": {"kind": "wishart"}}
PROX = {"kind": "rfedprox", "step_size": 1.0, "penalty_weight": 1.0, "maps": "retraction"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"strategy": {"kind": "tangent-mean"}}, ["strategy.kind", "'projection-mean'"]),
        ({"training": {"kind": "rsgd", "step_size": 1.0}}, ["strategy.kind", "'projected'"]),
        ({"training": SVRG}, ["strategy.kind", "'variance-reduced'", "'projection-mean'"]),
        ({"training": PARTIAL}, ["strategy.kind", "'projection-mean-partial'"]),
        (
            {"strategy": {"kind": "projection-mean", "server_step_size": 2.0}},
            ["training.server_step_size", "= 2", "got 1"],
        ),
        (
            {"federation": TABLE["federation"] | {"cohort": SOME}},
            ["federation.cohort.kind", "'all'", "'fixed-size'", "'projected-partial'"],
        ),
        (SPD, ["training.kind", "'projected'", "Expected a submanifold"]),
        (
            {"training": PROX, "strategy": {"kind": "tangent-mean"}},
            ["strategy.maps", "'retraction'", "'exact'"],
        ),
        (
            {"training": SVRG, "strategy": {"kind": "variance-reduced"}, "privacy": CLIENT},
            ["training.kind", "client-level", "twice a round"],
        ),
        (
            {
                "training": PARTIAL,
                "strategy": {"kind": "projection-mean-partial"},
                "privacy": CLIENT,
            },
            ["training.kind", "client-level", "books"],
        ),
        ({"privacy": CLIENT}, ["training.upload", "'plain'", "'corrected'"]),
        ({"privacy": EXAMPLE}, ["privacy.noise.kind", "'published'", "'projected'"]),
    ],
)
def test_halves_that_do_not_belong_together_are_refused(changes, words):
    with pytest.raises(ConfigError) as caught:
        parse(TABLE | changes)
    for word in words:
        assert word in str(caught.value)


def test_the_table_itself_parses_and_needs_everyone():
    config = parse(TABLE)
    assert config.strategy.needs_everyone
    assert not parse(
        TABLE | {"training": PARTIAL, "strategy": {"kind": "projection-mean-partial"}}
    ).strategy.needs_everyone
