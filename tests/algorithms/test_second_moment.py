"""One noised second moment a client: its bound, its noise, and the components that follow."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from manifed.algorithms.interface import Collected
from manifed.algorithms.second_moment import SecondMoment, leading_eigenvectors
from manifed.errors import ConfigError
from manifed.experiment.load import load
from manifed.federation.aggregation import ServerDraws
from manifed.manifolds.symmetric import packed, packed_size, unpacked
from manifed.oracles.oracle import Draws, Oracle
from manifed.privacy.mechanism import ClientMechanism, ExampleMechanism, RelativeNoise
from manifed.privacy.noise import NoiseSource
from manifed.problems.base import Examples
from manifed.problems.linear import with_squared_norms
from manifed.problems.pca import KPCA, PrincipalEigenvector, principal_angle
from manifed.problems.second_moments import SecondMoments
from tests.conformance.client_cases import shards
from tests.conformance.federated_loop import federate, last

CLIP, D = 0.7, 5
ONE_SHOT = SecondMoment()
CONFIG = Path(__file__).parents[2] / "configs" / "examples" / "best_pca.toml"
BAD = (float("nan"), float("inf"), -float("inf"), 1e200)
SCALES = (0.0, 1e-300, 1e-160, 1e-30, 1e-8, 1.0, 3.0, 1e8, 1e30, 1e153, 1e160)
SEEDS = st.integers(0, 10**6)


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def frobenius(c):
    return float(torch.linalg.matrix_norm(unpacked(c)))


def row_of(seed, scale, bad=None):
    z = normal(seed, D)
    z = scale * z / z.norm()
    if bad is not None:
        z[seed % D] = bad
    return z


ROWS = st.builds(row_of, SEEDS, st.sampled_from(SCALES), st.sampled_from((None,) * 4 + BAD))


def mean(rows, relation="add-or-remove", size=None, multiplier=0.0, draws=None, stored=True):
    """What leaves the oracle of one client whose public size is that of its rows."""
    z = torch.stack(rows) if rows else torch.zeros(0, D, dtype=torch.float64)
    examples = Examples({"z": z}, {"z": 1})
    mechanism = ExampleMechanism(
        l2_norm_clip=CLIP, neighboring_relation=relation, noise=RelativeNoise(multiplier=multiplier)
    )
    asked = ONE_SHOT.queries(mechanism, size or max(1, len(rows)))
    examples = with_squared_norms(examples, "z") if stored else examples
    draws = draws or Draws(NoiseSource.from_seed(3), 0, 1)
    oracle = Oracle(PrincipalEigenvector(), examples, [asked], draws)
    return oracle.statistic(
        torch.zeros(packed_size(z.shape[-1]), dtype=torch.float64), "statistic", SecondMoments
    )


def sensitivity(relation, size):
    mechanism = ExampleMechanism(l2_norm_clip=CLIP, neighboring_relation=relation)
    return ONE_SHOT.queries(mechanism, size)[0].sensitivity


# -- coordinates ---------------------------------------------------------------------------------
@settings(max_examples=40, derandomize=True, deadline=None)
@given(SEEDS, st.integers(1, 7))
def test_coordinates_of_symmetric_matrices_are_an_isometry(seed, order):
    a, b = normal(seed, 2, order, order)
    a, b = a + a.mT, b + b.mT
    torch.testing.assert_close(packed(a) @ packed(b), (a * b).sum(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(unpacked(packed(a)), a, rtol=1e-14, atol=1e-14)
    assert packed(a).shape == (packed_size(order),)
    with pytest.raises(ValueError, match="coordinates of a symmetric matrix, got"):
        unpacked(torch.zeros(packed_size(order + 1) + 1))


# -- sensitivity ---------------------------------------------------------------------------------
@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.lists(ROWS, max_size=3), ROWS, st.booleans())
def test_a_row_more_moves_the_mean_by_at_most_the_bound(others, row, stored):
    size = len(others) + 1
    move = mean([*others, row], stored=stored) - mean(others, size=size, stored=stored)
    bound = sensitivity("add-or-remove", size)
    assert bound == pytest.approx(CLIP / size)
    assert frobenius(move) <= bound * (1 + 1e-9)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.lists(ROWS, max_size=3), ROWS, ROWS)
def test_another_row_moves_the_mean_by_at_most_root_two_bounds(others, row, other):
    size = len(others) + 1
    move = mean([*others, row], "replace-one") - mean([*others, other], "replace-one")
    bound = sensitivity("replace-one", size)
    assert bound == pytest.approx(math.sqrt(2.0) * CLIP / size)
    assert frobenius(move) <= bound * (1 + 1e-9)


def test_both_bounds_are_attained_and_opposite_rows_are_one():
    one, two = 9.0 * torch.eye(D, dtype=torch.float64)[:2]
    assert frobenius(mean([one])) == pytest.approx(CLIP)
    move = mean([one], "replace-one") - mean([two], "replace-one")
    assert frobenius(move) == pytest.approx(sensitivity("replace-one", 1))
    assert frobenius(mean([one]) - mean([-one])) == 0.0


def test_a_row_within_the_bound_is_whole():
    z = row_of(4, 0.8)
    torch.testing.assert_close(unpacked(mean([z])), torch.outer(z, z), rtol=1e-14, atol=1e-15)


# -- noise ---------------------------------------------------------------------------------------
@pytest.mark.statistical
@pytest.mark.parametrize("relation", ["add-or-remove", "replace-one"])
def test_the_noise_is_the_isotropic_gaussian_on_symmetric_matrices(relation):
    """Variance s^2 on the diagonal, s^2 / 2 beside it, s = multiplier * sensitivity."""
    d, rounds, size = 100, 40, 2
    rows, found = list(normal(0, size, d)), []
    clean = mean(rows, relation)
    for r in range(1, rounds + 1):
        draws = Draws(NoiseSource.from_seed(3), 0, r)
        found.append(unpacked(mean(rows, relation, multiplier=1.3, draws=draws) - clean))
    e = torch.stack(found)
    assert float((e - e.mT).abs().max()) == 0.0
    apart = {"add-or-remove": 1.0, "replace-one": math.sqrt(2.0)}[relation]
    s, rows_, columns = 1.3 * apart * CLIP / size, *torch.triu_indices(d, d, 1)
    beside = float(e[:, rows_, columns].square().sum())
    diagonal = float(e.diagonal(dim1=-2, dim2=-1).square().sum())

    def is_law(scale):
        tail = stats.chi2.cdf(beside / (scale * s) ** 2 * 2, rounds * d * (d - 1) // 2)
        return 5e-7 < tail < 1 - 5e-7

    assert is_law(1.0)
    assert not is_law(0.98)
    assert not is_law(1.02)
    assert 5e-7 < stats.chi2.cdf(diagonal / s**2, rounds * d) < 1 - 5e-7


def test_the_server_noises_the_mean_of_clients_in_the_same_coordinates():
    mechanism = ClientMechanism(l2_norm_clip=CLIP, noise_multiplier=0.0)
    base, big = torch.zeros(packed_size(D)).double(), 50 * normal(2, 3, packed_size(D))
    normals = ServerDraws(NoiseSource.from_seed(1), 1, 0).normals
    mean_of = mechanism.noised_mean(
        big, base, PrincipalEigenvector().manifold, normals,
        expected_cohort=3.0, is_tangent=False,
    ).mean  # fmt: skip
    torch.testing.assert_close(mean_of, CLIP * (big / big.norm(dim=1, keepdim=True)).mean(0))


# -- components ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "problem",
    [PrincipalEigenvector(), KPCA(1), KPCA(2), KPCA(3, "grassmann")],
    ids=["sphere", "one-component", "stiefel", "grassmann"],
)
def test_without_noise_it_is_the_optimum_of_the_weighted_objective(problem):
    data, shape = shards(), problem.point_shape(shards()[0])
    x = (
        torch.eye(6, dtype=torch.float64)[:, : shape[-1]]
        if len(shape) == 2
        else torch.eye(6)[0].double()
    )
    done = last(federate(problem, data, ONE_SHOT, ONE_SHOT, x, 1)).state
    best = problem.optimum(data)
    value = float(problem.objective(done["x"], data))
    assert value == pytest.approx(best.value, rel=1e-12)
    assert float(problem.gradient_norm(done["x"], data)) <= 1e-12
    both = [v if v.dim() == 2 else v[:, None] for v in (done["x"], best.x)]
    assert float(principal_angle(*both)) <= 1e-7
    largest = both[0].gather(0, both[0].abs().argmax(0, keepdim=True))
    assert bool((largest > 0).all())


def test_uniform_weights_are_those_of_one_vote_a_client():
    uniform, data = SecondMoment(weights="uniform"), shards()
    x = torch.eye(6, dtype=torch.float64)[0]
    done = last(federate(PrincipalEigenvector(), data, uniform, uniform, x, 1)).state
    expected = torch.stack([s["z"].mT @ s["z"] / len(s) for s in data]).mean(0)
    torch.testing.assert_close(unpacked(done["mean"]), expected, rtol=1e-12, atol=1e-14)


def test_negative_eigenvalues_do_not_lead():
    a = torch.diag(torch.tensor([-9.0, 1.0, 2.0], dtype=torch.float64))
    assert leading_eigenvectors(a, 2).tolist() == [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]]


def test_a_mean_without_eigenvectors_is_no_state():
    collected = Collected({"u": torch.full((21,), torch.nan)}, None, (), 1, lambda: 0.5)
    state = ONE_SHOT.initial(torch.eye(6, dtype=torch.float64)[0])
    with pytest.raises(torch.linalg.LinAlgError):
        ONE_SHOT.step(state, "train", collected, 1, PrincipalEigenvector().manifold)


# -- configs -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("federation.num_rounds=2", "federation.num_rounds: .*releases once, expected 1, got 2"),
        ("strategy.kind=tangent-mean", "strategy.kind: .*brings its own server update"),
        ("training.minibatch={kind='poisson',batch_size=9}", "training.minibatch.kind: .*'full'"),
        (
            "problem={kind='frechet-mean',manifold='sphere'}",
            "training.kind: 'second-moment' solves .* got 'frechet-mean'",
        ),
    ],
)
def test_what_does_not_go_with_it_is_refused_in_one_line(override, message):
    with pytest.raises(ConfigError, match=message) as refused:
        load(CONFIG, [override])
    assert "\n" not in str(refused.value)
