"""Problems with records, some within a few ulp of a kink, and a rule that shows what each adds."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from manifed.layers import BiMap, KeyedDropout, LogEig, OrthogonalLinear, ReEig
from manifed.manifolds.hyperbolic import Lorentz, PoincareBall
from manifed.manifolds.spd import SPD, SPDLogEuclidean
from manifed.manifolds.sphere import Sphere
from manifed.oracles.sums import Rule, Vectors
from manifed.problems.class_means import ClassMeans
from manifed.problems.examples import KEY, Examples
from manifed.problems.frechet import FrechetMean, GeometricMedian, HyperbolicPrediction
from manifed.problems.linear import LeastSquares, Logistic
from manifed.problems.module_problem import ModuleProblem, made
from manifed.problems.pca import KPCA, PrincipalEigenvector
from manifed.problems.problem import Problem
from manifed.problems.statistics import GramMatrices, LabelledGrams, LogSums, SecondMoments
from manifed_extras.log_cholesky import SPDLogCholesky
from manifed_extras.rotations import SpecialOrthogonal
from reproduction.bures_wasserstein import SPDBuresWasserstein
from reproduction.matrix_completion import MatrixCompletion
from reproduction.mlp import MLP

WATCHED = 8
"""Records whose bits are compared."""
_ALL = 1100


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


# -- what a record adds --------------------------------------------------------------------------
def names_of(examples):
    """Each record by its own bytes."""
    kept = [t.to(torch.float64) for k, t in sorted(examples.tensors.items())]
    return [
        b"".join(t[i].contiguous().numpy().tobytes() for t in kept) for i in range(len(examples))
    ]


def bits(value):
    return (value + 0.0).contiguous().numpy().tobytes()  # zeros have one sign


@dataclass(frozen=True)
class Spy:
    """A rule that notes what each watched record adds to a sum that is used."""

    rule: Rule
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
        if weights.dim() == 1:
            for j, name in enumerate(names_of(examples)):
                if name in self.seen and weights[j]:
                    one = torch.zeros_like(weights)
                    one[j] = weights[j]
                    self.seen[name].add(bits(vectors.sum(one)))
            return
        for c in range(len(weights)):
            for j, name in enumerate(names_of(examples.of_clients(torch.tensor([c])).of_client(0))):
                if name in self.seen and weights[c, j]:
                    one = torch.zeros_like(weights)
                    one[c, j] = weights[c, j]
                    self.seen[name].add(bits(vectors.sum(one)[c]))


# -- the cases -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Case:
    """A problem at a point, with records that it can be asked about."""

    name: str
    build: Callable[[], Problem]
    shape: tuple[int, ...]
    feature: dict[str, tuple[int, ...]]
    classes: int = 0
    """Of labels that are class numbers; 0: labels are what `made_up` gives."""
    kink: Callable[[Tensor], Tensor] | None = None
    """The rows (k, d) to which records near a kink are orthogonal, from the point."""
    at: Callable[[Problem], Tensor] | None = None
    whole: frozenset[str] = frozenset()
    """Tensors of whole numbers."""
    is_dear: bool = False

    def __str__(self):
        return self.name

    def made(self):
        problem = self.build()
        ndim = {key: len(shape) for key, shape in self.feature.items()}
        like = {
            k: torch.zeros((1, *s), dtype=torch.int64 if k in self.whole else torch.float64)
            for k, s in self.feature.items()
        }
        tensors = dict(problem.made_up(Examples(like, ndim), _ALL, seeded(1)).tensors)
        if self.classes:
            drawn = torch.randint(0, self.classes, (_ALL,), generator=seeded(2))
            tensors["label"] = drawn.to(like["label"].dtype)
        for key in self.whole - {"label"}:
            shape = (_ALL, *self.feature[key])
            tensors[key] = torch.randint(0, 7, shape, generator=seeded(3))
        if self.at is not None:
            x = self.at(problem)
        elif problem.manifold.name == "Euclidean":
            x = normal(*self.shape, seed=4)
        else:
            x = problem.manifold.random(*self.shape, generator=seeded(4))
        if self.kink is not None:
            key = "feature" if "feature" in tensors else "z"
            basis = torch.linalg.qr(self.kink(x).mT)[0]
            rows = tensors[key][: WATCHED - 2]
            for _ in range(3):
                rows = rows - (rows @ basis) @ basis.mT
            tensors[key] = torch.cat([rows, tensors[key][WATCHED - 2 :]])
        return problem, x, Examples(tensors, ndim)


class Borrower(LeastSquares):
    """Logistic slopes by torch's own product of all rows, which treats rows by their number."""

    def slopes(self, x, examples):
        return torch.sigmoid(torch.matmul(examples["feature"], x.unsqueeze(-1)).squeeze(-1))


def _hidden(hidden, features):
    return lambda x: x[: hidden * features].reshape(hidden, features)


def _linear_of(x):
    return x.reshape(1, -1)


def _means(name, manifold, *shape, is_dear=False):
    return Case(f"mean-{name}", lambda: FrechetMean(manifold), shape, {"z": shape}, is_dear=is_dear)


def linear_cases():
    regression = {"feature": (30,), "target": ()}
    labelled = {"feature": (30,), "label": ()}
    odd = {"feature": (9,), "label": ()}
    mlp = {"z": (17,), "label": ()}
    return [
        Case("least-squares", LeastSquares, (30,), regression, kink=_linear_of),
        Case("least-squares-ridge", lambda: LeastSquares(0.3), (30,), regression, kink=_linear_of),
        Case("logistic", Logistic, (30,), labelled, kink=_linear_of),
        Case("logistic-odd", lambda: Logistic(0.1), (9,), odd, kink=_linear_of),
        Case("borrower", Borrower, (64,), {"feature": (64,), "target": ()}),
        Case("pca", PrincipalEigenvector, (13,), {"z": (13,)}),
        Case("kpca-stiefel", lambda: KPCA(3), (13, 3), {"z": (13,)}),
        Case("kpca-grassmann", lambda: KPCA(3, "grassmann"), (13, 3), {"z": (13,)}),
        Case("mlp-relu", lambda: MLP(6, 3), (6 * 18 + 3 * 7,), mlp, 3, _hidden(6, 17)),
        Case("mlp-tanh", lambda: MLP(6, 3, "tanh"), (6 * 18 + 3 * 7,), mlp, 3),
        Case("mlp-large", lambda: MLP(70, 3), (70 * 65 + 3 * 71,), {"z": (64,), "label": ()}, 3),
    ]  # fmt: skip


def curved_cases():
    return [
        _means("sphere", Sphere(), 5),
        _means("spd", SPD(), 3, 3, is_dear=True),
        _means("spd-log-euclidean", SPDLogEuclidean(), 3, 3, is_dear=True),
        _means("spd-log-cholesky", SPDLogCholesky(), 3, 3, is_dear=True),
        _means("spd-bures", SPDBuresWasserstein(), 3, 3, is_dear=True),
        _means("lorentz", Lorentz(), 5),
        _means("poincare", PoincareBall(), 5),
        _means("rotations", SpecialOrthogonal(), 3, 3, is_dear=True),
        Case("spd-mean", FrechetMean, (3, 3), {"z": (3, 3)}, is_dear=True),
        Case("median-sphere", lambda: GeometricMedian(Sphere()), (5,), {"z": (5,)}),
        Case("median-spd", lambda: GeometricMedian(SPD()), (3, 3), {"z": (3, 3)}, is_dear=True),
        Case(
            "class-means", lambda: ClassMeans(SPD(), 2), (2, 3, 3),
            {"z": (3, 3), "label": ()}, 2, is_dear=True,
        ),
        Case(
            "class-medians", lambda: ClassMeans(Sphere(), 2, is_median=True), (2, 5),
            {"z": (5,), "label": ()}, 2,
        ),
        Case("completion", lambda: MatrixCompletion(2), (9, 2), {"column": (9,), "mask": (9,)}),
        Case("prediction", HyperbolicPrediction, (5,), {"target": (5,), "weight": ()}),
        Case("second-moments", SecondMoments, (45,), {"z": (9,)}),
        Case("gram-matrices", GramMatrices, (55,), {"feature": (9,), "target": ()}),
        Case("labelled-grams", LabelledGrams, (55,), {"feature": (9,), "label": ()}),
        Case("log-sums", LogSums, (6,), {"z": (3, 3)}, is_dear=True),
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


def module_cases():
    def case(
        name, model, shape,
        kink = None, loss = "cross-entropy",
        shares = None, dtype = torch.float64, *,
        whole = frozenset({"label"}), keyed = False, is_dear = True,
    ):  # fmt: skip
        def build():
            return ModuleProblem(made(model, 0), loss, dtype=dtype, clip_shares=shares)

        feature = {"feature": shape, "label": ()} | ({KEY: ()} if keyed else {})
        classes = 3 if "label" in whole else 0
        return Case(
            f"module-{name}",
            build,
            (),
            feature,
            classes,
            kink,
            lambda p: p.start,
            whole,
            is_dear=is_dear,
        )

    def relu():
        return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 3))

    return [
        case("relu", relu, (20,), is_dear=False),
        case("relu-float32", relu, (20,), dtype=torch.float32),
        case("kinked", lambda: Kinked(17, 10), (17,), _hidden(10, 17), "mse",
             whole=frozenset(), is_dear=False),
        case("kinked-even", lambda: Kinked(30, 10), (30,), _hidden(10, 30), "mse",
             whole=frozenset()),
        case("groups", relu, (20,), shares={"0": 1.0, "": 1.0}),
        case("cnn", _cnn, (64,)),
        case("cnn-float32", _cnn, (64,), dtype=torch.float32),
        case("spdnet", lambda: nn.Sequential(BiMap(4, 3), ReEig(), LogEig(), nn.Linear(6, 3)),
             (4, 4)),
        case("orthogonal", lambda: nn.Sequential(
             OrthogonalLinear(16, 6), nn.Tanh(), nn.Linear(6, 3)), (16,)),
        case("table", Table, (2,), whole=frozenset({"label", "feature"})),
        case("dropout", _dropping, (10,), keyed=True),
    ]  # fmt: skip


CASES = [*linear_cases(), *curved_cases(), *module_cases()]


# -- what stands around a record -----------------------------------------------------------------
def broken(case, examples):
    """One record that has no gradient: entries that are no numbers, or no class."""
    one = examples.take(torch.tensor([WATCHED + 1]))
    tensors = dict(one.tensors)
    for key, tensor in tensors.items():
        if tensor.is_floating_point() and key not in {KEY, "mask"}:
            tensors[key] = torch.full_like(tensor, torch.nan)
        elif key in case.whole and key == "feature":
            tensors[key] = torch.full_like(tensor, 1000)
    return Examples(tensors, one.feature_ndim)


def shard(examples, size, seed, bad=None):
    """So many records in an order of its own, as many watched ones among them as fit."""
    order = torch.randperm(WATCHED, generator=seeded(seed))[:size]
    rest = WATCHED + 2 + torch.randperm(_ALL - WATCHED - 2, generator=seeded(seed + 1))
    rows = torch.cat([order, rest[: size - len(order)]])
    found = examples.take(rows[torch.randperm(size, generator=seeded(seed + 2))])
    if bad is None:
        return found
    place = seed % (size + 1)
    parts = found.take(torch.arange(place)), bad, found.take(torch.arange(place, size))
    return Examples.concatenate(parts)


def lipschitz(query):
    return replace(query, lipschitz=40.0)


def empty_log(examples):
    return {name: set[bytes]() for name in names_of(examples.take(torch.arange(WATCHED)))}
