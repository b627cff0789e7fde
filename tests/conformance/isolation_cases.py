"""Problems with records, some within a few ulp of a kink, and a rule that shows what each adds."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from manifed.layers import BiMap, KeyedDropout, LogEig, OrthogonalLinear, ReEig
from manifed.manifolds import SPD, Lorentz, PoincareBall, SPDLogEuclidean, Sphere
from manifed.oracles.sums import Vectors
from manifed.problems.class_means import ClassMeans
from manifed.problems.examples import KEY, PERSON, SHARE, Examples
from manifed.problems.frechet import FrechetMean, GeometricMedian, HyperbolicPrediction
from manifed.problems.linear import LeastSquares, Logistic
from manifed.problems.module_problem import ModuleProblem, made
from manifed.problems.moments import Moments
from manifed.problems.pca import KPCA, PrincipalEigenvector
from manifed.problems.persons import Persons
from manifed.problems.problem import Problem
from manifed.problems.statistics import GramMatrices, LabelledGrams, LogSums, SecondMoments
from manifed_extras.log_cholesky import SPDLogCholesky
from manifed_extras.rotations import SpecialOrthogonal
from reproduction.bures_wasserstein import SPDBuresWasserstein
from reproduction.matrix_completion import MatrixCompletion
from reproduction.mlp import MLP
from tests.tensors import generator, normals

WATCHED = 8
"""Records whose bits are compared."""
_ALL = 1100


# -- what a record adds --------------------------------------------------------------------------
def names_of(examples):
    """Each record by its own bytes."""
    kept = [t.double() for k, t in sorted(examples.tensors.items())]
    return [
        b"".join(t[i].contiguous().numpy().tobytes() for t in kept) for i in range(len(examples))
    ]


def bits(value):
    return (value + 0.0).contiguous().numpy().tobytes()  # zeros have one sign


@dataclass(frozen=True)
class Spy:
    """A rule that notes what each watched record adds to a sum that is used."""

    rule: Callable[..., Vectors]
    seen: dict[bytes, set[bytes]] = field(default_factory=dict, compare=False)

    def __call__(self, problem, query, points, examples):
        vectors = self.rule(problem, query, points, examples)

        def total(weights):
            found = vectors.sum(weights)
            if bool(torch.isfinite(found).all()):
                self._note(vectors, weights, examples)
            return found

        return Vectors(total, vectors.are_finite)

    def _note(self, vectors, weights, examples):
        clients = [()] if weights.dim() == 1 else [(c,) for c in range(len(weights))]
        for at in clients:
            for j, name in enumerate(names_of(examples.of_client(*at) if at else examples)):
                if name in self.seen and weights[*at, j]:
                    one = torch.zeros_like(weights)
                    one[*at, j] = weights[*at, j]
                    self.seen[name].add(bits(vectors.sum(one)[at]))


def orthogonal_to(axes, rows):
    """The rows less what they have along the axes, to an ulp or so."""
    basis = torch.linalg.qr(axes.mT)[0]
    for _ in range(3):
        rows = rows - (rows @ basis) @ basis.mT
    return rows


# -- the cases -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Case:
    """A problem at a point, with records that it can be asked about."""

    name: str
    build: Callable[[], Problem]
    feature: dict[str, tuple[int, ...]]
    classes: int = 0
    """Of labels that are class numbers; 0: labels are what `made_up` gives."""
    kink: Callable[[Tensor], Tensor] | None = None
    """The rows (k, d) to which records near a kink are orthogonal, from the point."""
    whole: frozenset[str] = frozenset()
    """Tensors of whole numbers."""
    is_dear: bool = False

    def made(self):
        problem = self.build()
        like = Examples(
            {
                k: torch.zeros((1, *s), dtype=torch.int64 if k in self.whole else torch.float64)
                for k, s in self.feature.items()
            }
        )
        tensors = dict(problem.made_up(like, _ALL, generator(1)).tensors)
        if self.classes:
            shape = (_ALL, *self.feature["label"])
            drawn = torch.randint(0, self.classes, shape, generator=generator(2))
            tensors["label"] = drawn.to(like["label"].dtype)
        for key in self.whole - {"label"}:
            shape = (_ALL, *self.feature[key])
            tensors[key] = torch.randint(0, 7, shape, generator=generator(3))
        shape = problem.point_shape(like)
        if isinstance(problem.of_rows, ModuleProblem):
            x = problem.of_rows.start
        elif problem.manifold.name == "Euclidean":
            x = normals(4, *shape)
        else:
            x = problem.manifold.random(*shape, generator=generator(4))
        if self.kink is not None:
            key = "feature" if "feature" in tensors else "z"
            rows = orthogonal_to(self.kink(x), tensors[key][: WATCHED - 2])
            tensors[key] = torch.cat([rows, tensors[key][WATCHED - 2 :]])
        return problem, x, Examples(tensors)


class Borrower(LeastSquares):
    """Logistic slopes by torch's own product of all rows, which treats rows by their number."""

    def slopes(self, x, examples):
        return torch.sigmoid(torch.matmul(examples["feature"], x.unsqueeze(-1)).squeeze(-1))


def _hidden(hidden, features):
    return lambda x: x[: hidden * features].reshape(hidden, features)


def _linear_of(x):
    return x.reshape(1, -1)


def _means(name, manifold, *shape, is_dear=False):
    return Case(f"mean-{name}", lambda: FrechetMean(manifold), {"z": shape}, is_dear=is_dear)


REGRESSION = {"feature": (30,), "target": ()}
LABELLED = {"feature": (30,), "label": ()}
ODD = {"feature": (9,), "label": ()}
WIDE = {"z": (17,), "label": ()}
LINEAR = [
    Case("least-squares", LeastSquares, REGRESSION, kink=_linear_of),
    Case("least-squares-ridge", lambda: LeastSquares(0.3), REGRESSION, kink=_linear_of),
    Case("logistic", Logistic, LABELLED, kink=_linear_of),
    Case("logistic-odd", lambda: Logistic(0.1), ODD, kink=_linear_of),
    Case("borrower", Borrower, {"feature": (64,), "target": ()}),
    Case("pca", PrincipalEigenvector, {"z": (13,)}),
    Case("kpca-stiefel", lambda: KPCA(3), {"z": (13,)}),
    Case("kpca-grassmann", lambda: KPCA(3, "grassmann"), {"z": (13,)}),
    Case("mlp-relu", lambda: MLP(6, 3), WIDE, 3, _hidden(6, 17)),
    Case("mlp-tanh", lambda: MLP(6, 3, "tanh"), WIDE, 3),
    Case("mlp-large", lambda: MLP(70, 3), {"z": (64,), "label": ()}, 3),
]
CURVED = [
    _means("sphere", Sphere(), 5),
    _means("spd", SPD(), 3, 3, is_dear=True),
    _means("spd-log-euclidean", SPDLogEuclidean(), 3, 3, is_dear=True),
    _means("spd-log-cholesky", SPDLogCholesky(), 3, 3, is_dear=True),
    _means("spd-bures", SPDBuresWasserstein(), 3, 3, is_dear=True),
    _means("lorentz", Lorentz(), 5),
    _means("poincare", PoincareBall(), 5),
    _means("rotations", SpecialOrthogonal(), 3, 3, is_dear=True),
    Case("median-sphere", lambda: GeometricMedian(Sphere()), {"z": (5,)}),
    Case("median-spd", lambda: GeometricMedian(SPD()), {"z": (3, 3)}, is_dear=True),
    Case("class-means", lambda: ClassMeans(SPD(), 2), {"z": (3, 3), "label": ()}, 2, is_dear=True),
    Case("class-means-sphere", lambda: ClassMeans(Sphere(), 2), {"z": (5,), "label": ()}, 2),
    Case("completion", lambda: MatrixCompletion(2), {"column": (9,), "mask": (9,)}),
    Case("prediction", HyperbolicPrediction, {"target": (5,), "weight": ()}),
    Case("second-moments", SecondMoments, {"z": (9,)}),
    Case("gram-matrices", GramMatrices, {"feature": (9,), "target": ()}),
    Case("labelled-grams", LabelledGrams, ODD),
    Case("moments", lambda: Moments(row_norm=2.0), {"z": (4,)}),
    Case("log-sums", LogSums, {"z": (3, 3)}, is_dear=True),
]  # fmt: skip


class Kinked(nn.Module):
    """Its gradient is a sum of the rows that fire: no number of it tells how they were computed."""

    def __init__(self, width, hidden):
        super().__init__()
        self.weight = nn.Parameter(nn.Linear(width, hidden, bias=False).weight.detach())

    def forward(self, feature):
        return torch.relu(feature @ self.weight.mT).sum(-1, keepdim=True)


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(7, 4), nn.Linear(8, 3)

    def forward(self, feature):
        return self.head(self.table(feature).flatten(1))


def _cnn():
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip


def _dropping():
    return nn.Sequential(nn.Linear(10, 8), nn.ReLU(), KeyedDropout(0.5), nn.Linear(8, 3))


def _relu():
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 3))


def _module(
    name, model, *shape, kink=None, loss="cross-entropy", dtype=torch.float64,
    whole=frozenset({"label"}), keyed=False, is_dear=True,
):  # fmt: skip
    def build():
        return ModuleProblem(made(model, 0), loss, dtype=dtype)

    feature = {"feature": shape, "label": ()} | ({KEY: ()} if keyed else {})
    classes = 3 if "label" in whole else 0
    return Case(f"module-{name}", build, feature, classes, kink, whole, is_dear)


MODULES = [
    _module("relu", _relu, 20, is_dear=False),
    _module("relu-float32", _relu, 20, dtype=torch.float32),
    _module("kinked", lambda: Kinked(17, 10), 17, kink=_hidden(10, 17), loss="mse",
            whole=frozenset(), is_dear=False),
    _module("kinked-even", lambda: Kinked(30, 10), 30, kink=_hidden(10, 30), loss="mse",
            whole=frozenset()),
    _module("cnn", _cnn, 64),
    _module("cnn-float32", _cnn, 64, dtype=torch.float32),
    _module("spdnet", lambda: nn.Sequential(BiMap(4, 3), ReEig(), LogEig(), nn.Linear(6, 3)), 4, 4),
    _module("orthogonal", lambda: nn.Sequential(
            OrthogonalLinear(16, 6), nn.Tanh(), nn.Linear(6, 3)), 16),
    _module("table", Table, 2, whole=frozenset({"label", "feature"})),
    _module("dropout", _dropping, 10, keyed=True),
]  # fmt: skip


def _persons(name, build, kink=None, whole=frozenset(), classes=0, is_dear=False, **rows):
    """Persons of three rows each, of a problem's own shapes."""
    feature = {key: shape if key == KEY else (3, *shape) for key, shape in rows.items()}
    feature |= {SHARE: (3,), PERSON: ()}
    problem = Case(f"persons-{name}", lambda: Persons(build(), 3), feature, classes, kink, whole)
    return replace(problem, is_dear=is_dear)


PERSONS = [
    _persons("logistic", Logistic, _linear_of, **LABELLED),
    _persons("least-squares", LeastSquares, _linear_of, **REGRESSION),
    _persons("moments", lambda: Moments(row_norm=2.0), z=(4,)),
    _persons("mean-sphere", lambda: FrechetMean(Sphere()), z=(5,), is_dear=True),
    _persons("kpca", lambda: KPCA(3), z=(13,), is_dear=True),
    _persons("dropout", lambda: ModuleProblem(made(_dropping, 0)), feature=(10,), label=(),
             whole=frozenset({"label"}), classes=3, is_dear=True, **{KEY: ()}),
]  # fmt: skip
CASES = [*LINEAR, *CURVED, *MODULES, *PERSONS]


# -- what stands around a record -----------------------------------------------------------------
def broken(case, examples):
    """One record that has no gradient: entries that are no numbers, or no class."""
    one = examples.take(torch.tensor([WATCHED + 1]))
    tensors = dict(one.tensors)
    for key, tensor in one.tensors.items():
        if tensor.is_floating_point() and key not in {KEY, "mask"}:
            tensors[key] = torch.full_like(tensor, torch.nan)
        elif key in case.whole and key == "feature":
            tensors[key] = torch.full_like(tensor, 1000)
    return Examples(tensors, one.feature_ndim)


def shard(examples, size, seed, bad=None):
    """So many records in an order of its own, as many watched ones among them as fit."""
    order = torch.randperm(WATCHED, generator=generator(seed))[:size]
    rest = WATCHED + 2 + torch.randperm(_ALL - WATCHED - 2, generator=generator(seed + 1))
    rows = torch.cat([order, rest[: size - len(order)]])
    found = examples.take(rows[torch.randperm(size, generator=generator(seed + 2))])
    if bad is None:
        return found
    place = seed % (size + 1)
    parts = found.take(torch.arange(place)), bad, found.take(torch.arange(place, size))
    return Examples.concatenate(parts)


def empty_log(examples):
    return {name: set[bytes]() for name in names_of(examples.take(torch.arange(WATCHED)))}
