"""The problems under test, each with a maker of random examples, and random points."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from manifed.manifolds.hyperbolic import Lorentz
from manifed.manifolds.spd import SPD, SPDLogEuclidean
from manifed.manifolds.sphere import Sphere
from manifed.problems.class_means import ClassMeans
from manifed.problems.examples import PERSON, SHARE, Examples
from manifed.problems.frechet import FrechetMean, GeometricMedian, HyperbolicPrediction
from manifed.problems.linear import LeastSquares, Logistic
from manifed.problems.moments import Moments
from manifed.problems.pca import KPCA, PrincipalEigenvector
from manifed.problems.persons import Persons
from manifed.problems.problem import Problem
from reproduction.matrix_completion import MatrixCompletion
from reproduction.mlp import MLP
from tests.conformance.manifold_cases import generator as seeded

Maker = Callable[[torch.Generator, tuple[int, ...]], Examples]


@dataclass(frozen=True)
class Case:
    problem: Problem
    make: Maker
    has_optimum: bool = True
    """Whether a minimiser can be computed; of a network none can."""

    def examples(self, seed, *lead):
        """Random examples with leading dimensions and number of examples ``lead``."""
        return self.make(seeded(seed), lead)

    def point(self, seed, *lead):
        shape = self.problem.point_shape(self.examples(seed, 2))
        return self.problem.manifold.random(*lead, *shape, generator=seeded(1000 + seed))


def normal(generator, *shape):
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def rows(generator, lead):
    return Examples({"z": normal(generator, *lead, 6)}, {"z": 1})


def near(manifold, shape, spread):
    """Points near one random point of the manifold."""

    def make(generator, lead):
        base = manifold.random(*shape, generator=generator).expand(*lead, *shape)
        c = normal(generator, *lead, *manifold.coords_shape(shape))
        points = manifold.expmap(base, spread * manifold.from_coords(base, c))
        return Examples({"z": points}, {"z": len(shape)})

    return make


def regression(generator, lead):
    tensors = {"feature": normal(generator, *lead, 5), "target": normal(generator, *lead)}
    return Examples(tensors, {"feature": 1, "target": 0})


def classification(generator, lead):
    sign = torch.where(normal(generator, *lead) > 0, 1.0, -1.0).double()
    return Examples(
        {"feature": normal(generator, *lead, 5), "label": sign}, {"feature": 1, "label": 0}
    )


def columns(generator, lead):
    mask = (torch.rand((*lead, 9), generator=generator) < 0.7).double()
    mask[..., :3] = 1.0
    column = mask * normal(generator, *lead, 9)
    return Examples({"column": column, "mask": mask}, {"column": 1, "mask": 1})


def weighted_targets(generator, lead):
    target = near(Lorentz(), (3,), 1.0)(generator, lead)["z"]
    weight = normal(generator, *lead) + 1.0
    return Examples({"target": target, "weight": weight}, {"target": 1, "weight": 0})


def labelled(maker, num_classes):
    """The same points, every class with one at least."""

    def make(generator, lead):
        found = maker(generator, lead)
        label = (torch.arange(lead[-1]) % num_classes).double().expand(lead)
        return Examples({**found.tensors, "label": label}, {**found.feature_ndim, "label": 0})

    return make


def persons(maker, count=3):
    """Persons of two and of all ``count`` rows."""

    def make(generator, lead):
        found = maker(generator, (*lead, count))
        kept = 2 + torch.arange(lead[-1]) % (count - 1)
        share = (torch.arange(count) < kept.unsqueeze(-1)).double() / kept.unsqueeze(-1)
        tensors = {**found.tensors, SHARE: share.expand(*lead, count)}
        tensors[PERSON] = torch.arange(lead[-1]).expand(lead)
        depths = {key: depth + 1 for key, depth in found.feature_ndim.items()}
        return Examples(tensors, depths | {SHARE: 1, PERSON: 0})

    return make


CASES = {
    "principal-eigenvector": Case(PrincipalEigenvector(), rows),
    "kpca-stiefel": Case(KPCA(2, "stiefel"), rows),
    "kpca-grassmann": Case(KPCA(2, "grassmann"), rows),
    "frechet-mean-sphere": Case(FrechetMean(Sphere()), near(Sphere(), (5,), 0.3)),
    "frechet-mean-spd": Case(FrechetMean(SPD()), near(SPD(), (4, 4), 0.5)),
    "frechet-mean-flat": Case(FrechetMean(SPDLogEuclidean()), near(SPD(), (4, 4), 0.5)),
    "frechet-mean-lorentz": Case(FrechetMean(Lorentz()), near(Lorentz(), (4,), 0.8)),
    "geometric-median": Case(GeometricMedian(Lorentz()), near(Lorentz(), (4,), 0.8)),
    "class-means": Case(ClassMeans(SPD(), 3), labelled(near(SPD(), (3, 3), 0.5), 3)),
    "class-means-lorentz": Case(ClassMeans(Lorentz(), 2), labelled(near(Lorentz(), (4,), 0.8), 2)),
    "hyperbolic-prediction": Case(HyperbolicPrediction(), weighted_targets),
    "least-squares": Case(LeastSquares(), regression),
    "ridge": Case(LeastSquares(ridge=0.3), regression),
    "logistic": Case(Logistic(), classification),
    "logistic-penalised": Case(Logistic(penalty=0.3), classification),
    "mlp-relu": Case(MLP(4, 3), labelled(rows, 3), has_optimum=False),
    "mlp-tanh": Case(MLP(4, 3, "tanh"), labelled(rows, 3), has_optimum=False),
    "matrix-completion-stiefel": Case(MatrixCompletion(2, "stiefel"), columns),
    "matrix-completion-grassmann": Case(MatrixCompletion(2, "grassmann"), columns),
    "moments": Case(Moments(row_norm=2.0), rows),
    "persons-ridge": Case(Persons(LeastSquares(ridge=0.3), 3), persons(regression)),
    "persons-logistic": Case(Persons(Logistic(penalty=0.3), 3), persons(classification)),
    "persons-kpca": Case(Persons(KPCA(2), 3), persons(rows)),
    "persons-frechet": Case(Persons(FrechetMean(SPD()), 3), persons(near(SPD(), (3, 3), 0.5))),
}


@pytest.fixture(params=list(CASES))
def case(request):
    return CASES[request.param]


@pytest.fixture(params=[name for name, case in CASES.items() if case.has_optimum])
def solvable(request):
    return CASES[request.param]
