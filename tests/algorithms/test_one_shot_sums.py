"""One-shot releases of logarithms and of Gram matrices: bounds, and the models that follow."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import manifed
from manifed.algorithms.log_euclidean import LogEuclidean
from manifed.algorithms.noisy_gram import LogisticGram, NoisyGram
from manifed.algorithms.second_moment import SecondMoment
from manifed.errors import ConfigError
from manifed.experiment.load import load
from manifed.experiment.schema import ExampleLevel, Multiplier
from manifed.manifolds.spd_flat import SPDLogEuclidean
from manifed.manifolds.symmetric import packed
from manifed.oracles.oracle import Draws, Oracle
from manifed.privacy.mechanism import ExampleMechanism, RelativeNoise
from manifed.privacy.noise import NoiseSource
from manifed.problems.base import Examples
from manifed.problems.frechet_mean import FrechetMean
from manifed.problems.geometric_median import GeometricMedian
from manifed.problems.least_squares import LeastSquares
from manifed.problems.linear import with_squared_norms
from manifed.problems.logistic import Logistic
from manifed.problems.pca import PrincipalEigenvector
from tests.conformance.federated_loop import federate, last

CLIP, D, M = 0.7, 4, 3
QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.toml"
SOURCE = NoiseSource.from_seed(3)
BAD = (float("nan"), float("inf"), -float("inf"), 1e200)
SCALES = (0.0, 1e-160, 1e-30, 1e-3, 1.0, 1e8, 1e30, 1e153)
SEEDS = st.integers(0, 10**6)
QUICK = settings(max_examples=40, derandomize=True, deadline=None)


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def spd(seed, scale=1.0, bad=None):
    s = normal(seed, M, M)
    z = torch.linalg.matrix_exp(min(scale, 20.0) * (s + s.mT) / 2)
    if bad is not None:
        z[seed % M, 0] = bad
    return {"z": z}


def pair(seed, scale=1.0, bad=None):
    a, b = scale * normal(seed, D), scale * normal(seed + 1, 1)[0]
    if bad is not None:
        a[seed % D] = bad
    return {"feature": a, "target": b}


def examples(records, ndim):
    tensors = {key: torch.stack([one[key] for one in records]) for key in ndim}
    found = Examples(tensors, ndim)
    return with_squared_norms(found, "feature") if "feature" in ndim else found


LOGS = (FrechetMean(SPDLogEuclidean()), LogEuclidean(), spd, {"z": 2}, M * (M + 1) // 2)
GRAMS = (LeastSquares(), NoisyGram(), pair, {"feature": 1, "target": 0}, (D + 1) * (D + 2) // 2)


def labelled(seed, scale=1.0, bad=None):
    return {
        "feature": pair(seed, scale, bad)["feature"],
        "label": torch.tensor(1.0 - 2 * (seed % 2)),
    }


LABELS = (
    Logistic(), LogisticGram(), labelled, {"feature": 1, "label": 0}, (D + 1) * (D + 2) // 2
)  # fmt: skip
KINDS = pytest.mark.parametrize("kind", [LOGS, GRAMS, LABELS], ids=["logarithms", "gram", "labels"])


def mean(kind, records, relation="add-or-remove", multiplier=0.0, server_round=1):
    problem, training, _, ndim, size = kind
    mechanism = ExampleMechanism(
        l2_norm_clip=CLIP, neighboring_relation=relation, noise=RelativeNoise(multiplier=multiplier)
    )
    asked = training.queries(mechanism, len(records))
    oracle = Oracle(problem, examples(records, ndim), [asked], Draws(SOURCE, 0, server_round))
    origin = torch.zeros(size, dtype=torch.float64)
    return oracle.statistic(origin, "statistic", training.takes), asked[0]


@KINDS
def test_no_record_moves_a_sum_by_more_than_its_bound(kind):
    make, bound_apart = kind[2], 2.0 if kind is LOGS else math.sqrt(2.0)
    record = st.builds(make, SEEDS, st.sampled_from(SCALES), st.sampled_from((None,) * 4 + BAD))

    @QUICK
    @given(record, record, st.lists(record, max_size=2))
    def moves(one, two, others):
        size = len(others) + 1
        here, asked = mean(kind, [*others, one], "replace-one")
        there, _ = mean(kind, [*others, two], "replace-one")
        assert asked.sensitivity == pytest.approx(bound_apart * CLIP / size)
        assert float((here - there).norm()) <= asked.sensitivity * (1 + 1e-9)
        alone, asked = mean(kind, [one])
        assert asked.sensitivity == pytest.approx(CLIP)
        assert float(alone.norm()) <= CLIP * (1 + 1e-9)

    moves()


def test_the_bounds_are_attained():
    z = torch.linalg.matrix_exp(torch.diag(torch.tensor([3.0, 0.0, 0.0], dtype=torch.float64)))
    both = [mean(LOGS, [{"z": y}], "replace-one")[0] for y in (z, torch.linalg.inv(z))]
    assert float((both[0] - both[1]).norm()) == pytest.approx(2 * CLIP)
    rows = 9.0 * torch.eye(D, dtype=torch.float64)
    both = [mean(GRAMS, [{"feature": a, "target": a[0] * 0}], "replace-one")[0] for a in rows[:2]]
    assert float((both[0] - both[1]).norm()) == pytest.approx(math.sqrt(2.0) * CLIP)


@pytest.mark.statistical
@KINDS
def test_the_noise_is_what_is_charged(kind):
    records, rounds = [kind[2](seed, 0.5) for seed in range(3)], 500
    clean, asked = mean(kind, records)
    total = sum(
        float((mean(kind, records, multiplier=1.1, server_round=r)[0] - clean).square().sum())
        for r in range(1, rounds + 1)
    )

    def is_law(scale):
        s = scale * 1.1 * asked.sensitivity
        return 5e-7 < stats.chi2.cdf(total / s**2, rounds * kind[4]) < 1 - 5e-7

    assert is_law(1.0)
    assert not is_law(0.9)
    assert not is_law(1.1)


def test_a_median_is_no_function_of_the_logarithms():
    assert GeometricMedian(SPDLogEuclidean()).sufficient_statistic is None
    assert FrechetMean(SPDLogEuclidean()).sufficient_statistic is not None


def test_without_noise_the_mean_of_logarithms_is_the_frechet_mean():
    problem = FrechetMean(SPDLogEuclidean())
    data = [examples([spd(7 * i + j, 0.4) for j in range(5 + i)], {"z": 2}) for i in range(3)]
    x = torch.eye(M, dtype=torch.float64)
    done = last(federate(problem, data, LogEuclidean(), LogEuclidean(), x, 1)).state
    assert float(problem.gradient_norm(done["x"], data)) <= 1e-10
    assert float(problem.objective(done["x"], data)) <= problem.optimum(data).value * (1 + 1e-9)


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_without_noise_the_gram_is_solved_as_least_squares(ridge):
    problem, training = LeastSquares(ridge), NoisyGram(ridge=ridge, eigenvalue_floor=1e-9)
    ndim = {"feature": 1, "target": 0}
    data = [examples([pair(9 * i + j) for j in range(8 + i)], ndim) for i in range(3)]
    x = torch.zeros(D, dtype=torch.float64)
    done = last(federate(problem, data, training, training, x, 1)).state
    torch.testing.assert_close(done["x"], problem.optimum(data).x, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_without_noise_the_labels_give_newtons_first_step(ridge):
    problem, training = Logistic(ridge), LogisticGram(ridge=ridge, eigenvalue_floor=1e-9)
    ndim = {"feature": 1, "label": 0}
    data = [examples([labelled(9 * i + j) for j in range(8 + i)], ndim) for i in range(3)]
    x = torch.zeros(D, dtype=torch.float64)
    done = last(federate(problem, data, training, training, x, 1)).state

    def objective(y):
        return problem.objective(y, data)

    hessian = torch.func.hessian(objective)(x)
    newton = -torch.linalg.solve(hessian, torch.func.grad(objective)(x))
    torch.testing.assert_close(done["x"], newton, rtol=1e-8, atol=1e-10)


def test_an_indefinite_gram_is_raised_to_the_floor():
    gram = torch.diag(torch.tensor([2.0, -1.0, 5.0], dtype=torch.float64))
    gram[0, 2] = gram[2, 0] = gram[1, 2] = gram[2, 1] = 1.0
    x = NoisyGram(eigenvalue_floor=0.5).solve(packed(gram), torch.zeros(2).double(), None)
    torch.testing.assert_close(x, torch.tensor([0.5, 2.0], dtype=torch.float64))


@pytest.mark.parametrize(
    ("kind", "problem", "data"),
    [
        ("log-euclidean", "{kind='frechet-mean',manifold='spd-log-euclidean'}", "spd-lognormal"),
        ("noisy-gram", "{kind='least-squares'}", "synthetic-least-squares"),
        ("logistic-gram", "{kind='logistic'}", "breast-cancer"),
    ],
)
def test_configs_name_them_and_what_does_not_fit_is_refused(kind, problem, data):
    sets = [
        f"training={{kind='{kind}'}}", f"problem={problem}", f"data={{kind='{data}'}}",
        "federation.num_rounds=1", "privacy.noise.delta=1e-4",
    ]  # fmt: skip
    assert load(QUICKSTART, sets).training.kind == kind
    with pytest.raises(ConfigError, match=f"'{kind}' solves problem.kind = .*, got 'frechet-mean'"):
        load(
            QUICKSTART,
            [*sets, "problem={kind='frechet-mean',manifold='spd'}", "data={kind='spd-lognormal'}"],
        )
    if "gram" in kind:
        ridged = problem.replace("}", ",penalty=1}" if "logistic" in kind else ",ridge=1}")
        with pytest.raises(ConfigError, match=r"training.ridge: expected the problem's 1, got 0"):
            load(QUICKSTART, [*sets, f"problem={ridged}"])


def test_no_door_opens_to_a_statistic_that_is_not_the_one_that_is_priced():
    """Logarithms may be opposite: second moments are priced as vectors that never are."""
    protected = ExampleLevel(
        l2_norm_clip=CLIP, neighboring_relation="replace-one", delta=1e-3,
        noise=Multiplier(noise_multiplier=2.0),
    )  # fmt: skip
    shards = [torch.stack([spd(seed)["z"] for seed in range(4)])]
    problem, start = FrechetMean(SPDLogEuclidean()), torch.eye(M, dtype=torch.float64)
    update = SecondMoment()
    with pytest.raises(ConfigError, match="'second-moment' solves"):
        manifed.fit(problem, shards, update, rounds=1, privacy=protected, start=start)
    mechanism = ExampleMechanism(
        l2_norm_clip=CLIP, neighboring_relation="replace-one", noise=RelativeNoise(multiplier=1.0)
    )
    rows = examples([spd(seed) for seed in range(4)], {"z": 2})
    oracle = Oracle(problem, rows, [update.queries(mechanism, 4)], Draws(SOURCE, 0, 1))
    with pytest.raises(ValueError, match="sufficient statistic SecondMoments, got FrechetMean"):
        oracle.statistic(torch.zeros(M * (M + 1) // 2).double(), "statistic", update.takes)


def test_no_column_that_came_with_the_data_is_believed_as_the_norm_of_its_rows():
    rows, none = 100 * normal(0, 8, D), torch.zeros(8, dtype=torch.float64)
    own = {"z": rows, "squared_norm": none}
    with pytest.raises(
        ConfigError, match="shards: client 0: Expected columns without 'squared_norm'"
    ):
        manifed.fit(PrincipalEigenvector(), [own], SecondMoment(), rounds=1)
    kept = with_squared_norms(Examples(own, {"z": 1, "squared_norm": 0}), "z")
    assert torch.equal(kept["squared_norm"], rows.norm(dim=1).square())
