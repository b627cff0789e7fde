"""One-shot releases of logarithms and of Gram matrices: bounds, and the models that follow."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import manifed
from manifed.algorithms.one_shot import LogEuclidean, OneShot, SecondMoment
from manifed.algorithms.payloads import SymmetricMean
from manifed.errors import ConfigError
from manifed.experiment.load import load
from manifed.manifolds import SPDLogEuclidean
from manifed.manifolds.linalg import packed_size, unpacked
from manifed.oracles.noisy_oracle import Draws, Oracle
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.frechet import FrechetMean
from manifed.problems.linear import LeastSquares
from manifed.problems.pca import PrincipalEigenvector
from manifed.problems.statistics import APART, GramMatrices
from manifed.setting import ExampleLevel, Multiplier
from tests.conformance.federated_loop import federate, last
from tests.fresh import QUICKSTART
from tests.statistics.laws import assert_chi_square
from tests.tensors import float64, normals

CLIP = 0.7
D = 4
M = 3
ROW = 5
SOURCE = NoiseSource.from_seed(3)
BAD = (float("nan"), float("inf"), -float("inf"), 1e200)
SCALES = (0.0, 1e-300, 1e-160, 1e-30, 1e-8, 1e-3, 1.0, 3.0, 1e8, 1e30, 1e153, 1e160)
SEEDS = st.integers(0, 10**6)
QUICK = settings(max_examples=100, derandomize=True, deadline=None)


def spd(seed, scale=1.0, bad=None, d=M):
    s = normals(seed, d, d)
    z = torch.linalg.matrix_exp(min(scale, 20.0) * (s + s.mT) / 2)
    if bad is not None:
        z[seed % d, 0] = bad
    return {"z": z}


def pair(seed, scale=1.0, bad=None, d=D):
    a = scale * normals(seed, d)
    b = scale * normals(seed + 1, 1)[0]
    if bad is not None:
        a[seed % d] = bad
    return {"feature": a, "target": b}


def row(seed, scale=1.0, bad=None, d=ROW):
    z = normals(seed, d)
    z = scale * z / z.norm()
    if bad is not None:
        z[seed % d] = bad
    return {"z": z}


def examples(records):
    return Examples({key: torch.stack([one[key] for one in records]) for key in records[0]})


class Kind(NamedTuple):
    problem: Any
    training: Any
    record: Callable
    apart: float = math.sqrt(2.0)
    """How far two clipped records lie apart at most, in clips."""
    more: int = 0
    """Rows of the matrix that a record gives beside its own entries."""


class Grams(OneShot):
    """What a plug-in releases of rows with targets; `manifed_extras.noisy_gram` solves them."""

    kind: Literal["grams"] = "grams"
    up = SymmetricMean.sized(1)
    takes = GramMatrices
    apart = APART


LOGS = Kind(FrechetMean(SPDLogEuclidean()), LogEuclidean(), spd, 2.0)
GRAMS = Kind(LeastSquares(), Grams(), pair, more=1)
MOMENTS = Kind(PrincipalEigenvector(), SecondMoment(), row)
KINDS = [LOGS, GRAMS, MOMENTS]
IDS = [kind.training.kind for kind in KINDS]


def mean(kind, records, relation="add-or-remove", multiplier=0.0, server_round=1):
    mechanism = ExampleMechanism(
        l2_norm_clip=CLIP, neighboring_relation=relation, noise=Noise(multiplier=multiplier)
    )
    asked = kind.training.queries(mechanism, len(records))
    data = examples(records)
    oracle = Oracle(kind.problem, data, [asked], Draws(SOURCE, 0, server_round))
    order = next(iter(records[0].values())).shape[-1] + kind.more
    origin = torch.zeros(packed_size(order)).double()
    return oracle.statistic(origin, "statistic", kind.training.takes), asked[0]


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_no_record_moves_a_sum_by_more_than_its_bound(kind):
    bad = st.sampled_from((None,) * 4 + BAD)
    record = st.builds(kind.record, SEEDS, st.sampled_from(SCALES), bad)

    @QUICK
    @given(record, record, st.lists(record, max_size=3))
    def moves(one, two, others):
        size = len(others) + 1
        here, asked = mean(kind, [*others, one], "replace-one")
        there, _ = mean(kind, [*others, two], "replace-one")
        assert asked.sensitivity == pytest.approx(kind.apart * CLIP / size)
        assert (here - there).norm() <= asked.sensitivity * (1 + 1e-9)
        alone, asked = mean(kind, [one])
        assert asked.sensitivity == pytest.approx(CLIP)
        assert alone.norm() <= CLIP * (1 + 1e-9)

    moves()


def test_the_bounds_are_attained():
    z = torch.linalg.matrix_exp(torch.diag(float64([3.0, 0.0, 0.0])))
    one, two = 9.0 * torch.eye(D).double()[:2]
    for kind, records in (
        (LOGS, [{"z": z}, {"z": torch.linalg.inv(z)}]),
        (GRAMS, [{"feature": a, "target": a[0] * 0} for a in (one, two)]),
        (MOMENTS, [{"z": one}, {"z": two}]),
    ):
        both = [mean(kind, [record], "replace-one")[0] for record in records]
        assert float((both[0] - both[1]).norm()) == pytest.approx(kind.apart * CLIP)
        assert float(mean(kind, records[:1])[0].norm()) == pytest.approx(CLIP)
    assert torch.equal(mean(MOMENTS, [{"z": one}])[0], mean(MOMENTS, [{"z": -one}])[0])


def test_a_row_within_the_bound_is_whole():
    z = row(4, 0.8)["z"]
    found, _ = mean(MOMENTS, [{"z": z}])
    torch.testing.assert_close(unpacked(found), torch.outer(z, z), rtol=1e-14, atol=1e-15)


@pytest.mark.statistical
@pytest.mark.parametrize("relation", ["add-or-remove", "replace-one"])
@pytest.mark.parametrize(
    ("kind", "d", "rounds", "wrong"),
    [(LOGS, M, 500, 0.1), (GRAMS, D, 500, 0.1), (MOMENTS, 100, 40, 0.02)],
    ids=IDS,
)
def test_the_noise_is_what_is_charged(kind, d, rounds, wrong, relation):
    """Isotropic in the coordinates, on the diagonal and beside it."""
    records = [kind.record(seed, 0.5, d=d) for seed in range(3)]
    clean, asked = mean(kind, records, relation)
    found = [mean(kind, records, relation, 1.1, r)[0] - clean for r in range(1, rounds + 1)]
    noise = unpacked(torch.stack(found))
    noise /= 1.1 * asked.sensitivity
    whole = noise.square().sum()
    diagonal = noise.diagonal(dim1=-2, dim2=-1).square().sum()
    on = rounds * noise.shape[-1]
    beside = on * (noise.shape[-1] - 1) // 2
    assert_chi_square(diagonal, on, ())
    assert_chi_square(whole - diagonal, beside, ())
    assert_chi_square(whole, on + beside, (1 - wrong, 1 + wrong))


def test_without_noise_the_mean_of_logarithms_is_the_frechet_mean():
    problem = FrechetMean(SPDLogEuclidean())
    data = [examples([spd(7 * i + j, 0.4) for j in range(5 + i)]) for i in range(3)]
    x = torch.eye(M).double()
    done = last(federate(problem, data, LogEuclidean(), LogEuclidean(), x, 1)).state
    assert problem.gradient_norm(done["x"], data) <= 1e-10
    assert problem.objective(done["x"], data) <= problem.optimum(data).value * (1 + 1e-9)


def test_a_config_names_it():
    sets = [
        "training={kind='log-euclidean'}", "data={kind='spd-lognormal'}",
        "problem={kind='frechet-mean',manifold='spd-log-euclidean'}",
        "federation.num_rounds=1", "privacy.noise.delta=1e-4",
    ]  # fmt: skip
    assert load(QUICKSTART, sets).training.kind == "log-euclidean"


def test_no_door_opens_to_a_statistic_that_is_not_the_one_that_is_priced():
    """Logarithms may be opposite: second moments are priced as vectors that never are."""
    protected = ExampleLevel(
        l2_norm_clip=CLIP, neighboring_relation="replace-one", delta=1e-3,
        noise=Multiplier(noise_multiplier=2.0),
    )  # fmt: skip
    shards = [torch.stack([spd(seed)["z"] for seed in range(4)])]
    problem = FrechetMean(SPDLogEuclidean())
    start = torch.eye(M).double()
    update = SecondMoment()
    with pytest.raises(ConfigError, match="'second-moment' solves"):
        manifed.fit(problem, shards, update, rounds=1, privacy=protected, start=start)
    mechanism = ExampleMechanism(
        l2_norm_clip=CLIP, neighboring_relation="replace-one", noise=Noise(multiplier=1.0)
    )
    rows = examples([spd(seed) for seed in range(4)])
    oracle = Oracle(problem, rows, [update.queries(mechanism, 4)], Draws(SOURCE, 0, 1))
    with pytest.raises(ValueError, match="sufficient statistic SecondMoments, got FrechetMean"):
        oracle.statistic(torch.zeros(M * (M + 1) // 2).double(), "statistic", update.takes)
