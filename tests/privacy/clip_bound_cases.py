"""Hostile records and points for every problem of the configuration, and a judge of 50 digits.

The judge evaluates the metric from its formula in mpmath; it shares no code with what it judges.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, get_args

import mpmath as mp
import torch
from torch import Tensor

from manifed.experiment.schema import PROBLEMS
from manifed.manifolds.base import Manifold
from manifed.manifolds.product import Power, Product, Scaled
from manifed.manifolds.stiefel import Stiefel
from manifed.problems.class_means import ClassMeans
from manifed.problems.examples import Examples
from manifed.problems.frechet import MANIFOLDS, FrechetMean, HyperbolicPrediction
from manifed.problems.module_problem import ModuleSpec
from manifed.problems.problem import Problem, ProblemSource

DIGITS = 50
SCALES = (1e-300, 1e-160, 1e-30, 1e-8, 1.0, 1e4, 1e8, 1e30, 1e153, 1e160, 1e300)
TILTS = (0.0, 1e-16, 1e-12, 1e-8, 1e-4, 1.0)
BAD = (float("nan"), float("inf"), -float("inf"))
D = 6
K = 2


# -- the judge -----------------------------------------------------------------------------------
def exact(t: Tensor) -> mp.matrix:
    """The stored numbers as an mpmath matrix (a vector becomes one column)."""
    return mp.matrix([[mp.mpf(v) for v in row] for row in t.reshape(len(t), -1).tolist()])


def frobenius(a: mp.matrix) -> mp.mpf:
    return mp.sqrt(sum((v * v for v in a), mp.mpf(0)))


def symmetric(x: Tensor) -> mp.matrix:
    """The matrix whose lower triangle is that of x: all that a factorisation reads."""
    return exact(torch.tril(x) + torch.tril(x, -1).mT)


def judge(manifold: Manifold, x: Tensor) -> Callable[[Tensor], mp.mpf]:
    """The metric norm at x of a vector of float64 numbers."""
    if isinstance(manifold, Power):
        blocks = [judge(manifold.base, point) for point in x]
        return lambda u: mp.norm([block(v) for block, v in zip(blocks, u, strict=True)])
    if isinstance(manifold, Scaled):
        base = judge(manifold.base, x)
        return lambda u: manifold.scale * base(u)
    if isinstance(manifold, Product):
        factors = manifold.factors
        parts = {f.name: judge(f.manifold, manifold.unpack(x)[f.name]) for f in factors}
        return lambda u: mp.norm([parts[k](v) for k, v in manifold.unpack(u).items()])
    if isinstance(manifold, Stiefel) and manifold.metric == "canonical":
        point = exact(x)
        return lambda u: mp.sqrt(frobenius(exact(u)) ** 2 - frobenius(point.T * exact(u)) ** 2 / 2)
    return judge_of_one(manifold, x)


def judge_of_one(manifold: Manifold, x: Tensor) -> Callable[[Tensor], mp.mpf]:
    match manifold.name:
        case "Euclidean" | "Sphere" | "Stiefel" | "Grassmann":
            return lambda u: frobenius(exact(u))
        case "Lorentz":
            space = exact(x[1:])
            above = 1 + frobenius(space) ** 2
            return lambda u: lorentz(space, above, exact(u[1:]))
        case "PoincareBall":
            gap = 1 - frobenius(exact(x)) ** 2
            return lambda u: 2 * frobenius(exact(u)) / gap
        case "SPD":
            inverse = symmetric(x) ** -1
            return lambda u: mp.sqrt(trace_of_square(inverse * exact(u)))
        case "SPDLogEuclidean":
            w, v = mp.eigsy(symmetric(x))
            size = len(w)
            d = mp.matrix(size, size)
            for i, j in product(range(size), repeat=2):
                near = abs(w[i] - w[j]) < mp.mpf(10) ** -30 * abs(w[i])
                d[i, j] = 1 / w[i] if near else (mp.log(w[i]) - mp.log(w[j])) / (w[i] - w[j])
            return lambda u: frobenius(entrywise(d, v.T * exact(u) * v))
        case "SPDLogCholesky":
            factor = mp.cholesky(symmetric(x))
            inverse = factor**-1
            return lambda u: frobenius(log_cholesky_velocity(factor, inverse, exact(u)))
    raise AssertionError(f"no metric written down for {manifold.name}")


def lorentz(space: mp.matrix, above: mp.mpf, u: mp.matrix) -> mp.mpf:
    along = sum((a * b for a, b in zip(space, u, strict=True)), mp.mpf(0))
    return mp.sqrt(max(frobenius(u) ** 2 - along**2 / above, mp.mpf(0)))


def trace_of_square(a: mp.matrix) -> mp.mpf:
    return max(sum((a[i, j] * a[j, i] for i, j in product(range(a.rows), repeat=2))), mp.mpf(0))


def entrywise(a: mp.matrix, b: mp.matrix) -> mp.matrix:
    return mp.matrix([[a[i, j] * b[i, j] for j in range(a.cols)] for i in range(a.rows)])


def log_cholesky_velocity(factor: mp.matrix, inverse: mp.matrix, u: mp.matrix) -> mp.matrix:
    white = inverse * u * inverse.T
    size = factor.rows
    for i in range(size):
        white[i, i] /= 2
        for j in range(i + 1, size):
            white[i, j] = 0
    velocity = factor * white
    for i in range(size):
        velocity[i, i] /= factor[i, i]
    return velocity


def normal_part(manifold: Manifold, x: Tensor, u: Tensor) -> mp.mpf:
    """The length of what is normal to the manifold at x, in the ambient space; 0 if none can be."""
    a = exact(x)
    v = exact(u)
    match manifold.name:
        case "Sphere" | "Grassmann":
            return frobenius(a.T * v)
        case "Stiefel":
            return frobenius(a.T * v + v.T * a) / 2
    return mp.mpf(0)


# -- points --------------------------------------------------------------------------------------
def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def points(problem: Problem, shape: tuple[int, ...], seed: int) -> list[Tensor]:
    """Random points, drifted as a long chain of maps drifts, near borders, ill conditioned."""
    generator = torch.Generator().manual_seed(seed)
    manifold = problem.manifold
    if isinstance(problem, ClassMeans):
        alone = points(FrechetMean(problem.base), shape[1:], seed)
        return [torch.stack([x, *alone[: shape[0] - 1]]) for x in alone]
    x = manifold.random(*shape, generator=generator)
    noise = normal(generator, *shape)
    match manifold.name:
        case "Sphere" | "Stiefel" | "Grassmann":
            return [x, x * (1 + 1e-9), x + 1e-12 * noise, x * (1 + 1e-6), x + 1e-6 * noise]
        case "Lorentz":
            far = [_at_radius(noise, r) for r in (8.0, 20.0)]
            drifted = x.clone()
            drifted[0] *= 1 + 1e-9
            return [x, drifted, *far]
        case "PoincareBall":
            unit = noise / noise.norm()
            return [x, *((1 - gap) * unit for gap in (1e-3, 1e-8, 1e-13))]
        case "SPD" | "SPDLogEuclidean" | "SPDLogCholesky":
            basis = torch.linalg.qr(noise)[0]
            spectrum = torch.logspace(-3, 3, shape[-1], dtype=torch.float64)
            stretched = (basis * spectrum) @ basis.mT
            return [x, 1e-3 * x, (stretched + stretched.mT) / 2]
    return [x, 1e3 * x]


def _at_radius(v: Tensor, radius: float) -> Tensor:
    space = float64(radius).sinh() * v[1:] / v[1:].norm()
    return torch.cat([(1 + space.square().sum()).sqrt().unsqueeze(0), space])


# -- records -------------------------------------------------------------------------------------
def hostile_rows(x: Tensor, generator: torch.Generator) -> Tensor:
    """Rows of every length at every angle to x (to the span of its columns), mixed and broken."""
    frame = x.reshape(len(x), -1)
    axis = frame @ normal(generator, frame.shape[1])
    axis = axis / axis.norm()
    away = normal(generator, len(x))
    away = away / away.norm()
    rows = [s * (axis + t * away) for s, t in product(SCALES, TILTS)]
    rows += [s * away for s in SCALES] + [torch.zeros_like(away)]
    mixed = float64(SCALES[: len(x)])
    rows += [mixed * away, mixed.flip(0) * away]
    for bad in BAD:
        rows.append(away.clone())
        rows[-1][0] = bad
    return torch.stack(rows)


def float64(numbers: object) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def examples_of(**tensors: Tensor) -> Examples:
    return Examples(tensors, {key: t.ndim - 1 for key, t in tensors.items()})


def crossed(**parts: Tensor) -> Examples:
    """Every row of the first with every row of the second."""
    (first, a), (second, b) = parts.items()
    each = b.repeat(len(a), *[1] * (b.ndim - 1))
    return examples_of(**{first: a.repeat_interleave(len(b), 0), second: each})


OTHERS = float64([0.0, 1e-300, -1e-160, 1e-8, 1.0, -1e8, 1e160, 1e300, float("nan")])
LABELS = float64([0.0, 1.0, 0.5, -7.0, 1e300, *BAD])


def _rows(x: Tensor, generator: torch.Generator) -> Examples:
    return examples_of(z=hostile_rows(x, generator))


def _sphere_points(x: Tensor, generator: torch.Generator) -> Examples:
    z = hostile_rows(x, generator)
    opposite = [-s * (x + t * normal(generator, len(x))) for s, t in product((1.0, 1e8), TILTS)]
    return examples_of(z=torch.cat([z, torch.stack(opposite)]))


def _regression(x: Tensor, generator: torch.Generator) -> Examples:
    a = hostile_rows(x, generator)
    ends = {"feature": a, "target": a @ x}  # residuals of rounding alone
    pairs = crossed(feature=a, target=OTHERS)
    return examples_of(**{key: torch.cat([pairs[key], end]) for key, end in ends.items()})


def _classification(x: Tensor, generator: torch.Generator) -> Examples:
    return crossed(feature=hostile_rows(x, generator), label=OTHERS)


def _columns(x: Tensor, generator: torch.Generator) -> Examples:
    rows = hostile_rows(x, generator)
    one = torch.eye(len(x), dtype=torch.float64)[0]
    masks = [value * torch.ones_like(one) for value in (1, 0, -1, 1e5, 1e200)]
    some = (normal(generator, len(x)) > 0).to(torch.float64)
    return crossed(column=rows, mask=torch.stack([*masks, some, one]))


def _on_hyperboloid(x: Tensor, generator: torch.Generator) -> Tensor:
    size = len(x)
    rows = [_at_radius(normal(generator, size), r) for r in (1e-9, 1.0, 8.0, 20.0, 30.0)]
    rows += [x, x * (1 + 1e-9)]
    rows += [s * row for s, row in product((-1.0, 0.5, 2.66, 1e8), rows[:3])]
    return torch.cat([torch.stack(rows), hostile_rows(x, generator)])


def _lorentz(x: Tensor, generator: torch.Generator) -> Examples:
    return examples_of(z=_on_hyperboloid(x, generator))


def _poincare(x: Tensor, generator: torch.Generator) -> Examples:
    unit = normal(generator, len(x))
    unit = unit / unit.norm()
    lengths = (0.0, 1e-300, 0.5, 1 - 1e-12, 1 - 1e-16, 1.0, 1.00016, 2.0, 1e8)
    rows = [r * unit for r in lengths] + [x, -x, x / x.norm(), x * (1 + 1e-9)]
    return examples_of(z=torch.cat([torch.stack(rows), hostile_rows(x, generator)]))


def _prediction(x: Tensor, generator: torch.Generator) -> Examples:
    weights = float64([1.0, -1e-300, 1e8, 1e300, float("nan")])
    return crossed(target=_on_hyperboloid(x, generator), weight=weights)


def _matrices(x: Tensor, generator: torch.Generator) -> Examples:
    size = len(x)
    g = normal(generator, size, size)
    eye = torch.eye(size, dtype=torch.float64)
    spread = torch.diag(torch.logspace(-12, 12, size, dtype=torch.float64))
    shapes = [eye, g @ g.mT, g[:, :1] @ g[:, :1].mT, g, -eye, x, x + 1e-9 * g, spread, 0 * eye]
    scaled = [s * z for s, z in product((*SCALES, 1e-320, 1e308), shapes)]
    return examples_of(z=torch.stack([*scaled, *(eye * bad for bad in BAD)]))


def _labelled(z: Tensor) -> Examples:
    """Each twice, with labels in turn."""
    labels = LABELS.repeat(len(z))[: 2 * len(z)]
    return examples_of(z=z.repeat_interleave(2, 0), label=labels)


def _labelled_matrices(x: Tensor, generator: torch.Generator) -> Examples:
    return _labelled(_matrices(x[0], generator)["z"])


def _labelled_rows(x: Tensor, generator: torch.Generator) -> Examples:
    """Of three numbers each, the inputs of a network with as many weights as x has entries."""
    return _labelled(hostile_rows(x[:3], generator))


def records(spec: ProblemSource, x: Tensor, seed: int) -> Examples:
    """Hostile examples for the problem, as its ``prepare`` would leave them."""
    generator = torch.Generator().manual_seed(100 + seed)
    name = spec.build().manifold.name
    makers = {
        "rows": _rows,
        "sphere-points": _sphere_points,
        "regression": _regression,
        "classification": _classification,
        "columns": _columns,
        "spd-matrices": _matrices,
        "labelled-spd-matrices": _labelled_matrices,
        "labelled-rows": _labelled_rows,
        "hyperbolic-pairs": _poincare if name == "PoincareBall" else _lorentz,
    }
    is_prediction = isinstance(spec, HyperbolicPrediction)
    made = (_prediction if is_prediction else makers[spec.needs])(x, generator)
    return spec.prepare(made, {}) if isinstance(spec, ModuleSpec) else made


# -- cases ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Case:
    """A problem of the configuration, with the shape of its points."""

    name: str
    spec: ProblemSource
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return self.name


def _variants(model: type[ProblemSource]) -> Iterator[ProblemSource]:
    """Every combination of a specification's choices; penalties off and on."""
    choices: dict[str, tuple[object, ...]] = {}
    for name, field in model.model_fields.items():
        if name in {"on", "manifold", "center"}:
            choices[name] = get_args(field.annotation) or tuple(MANIFOLDS)
        elif name in {"num_classes", "hidden"}:
            choices[name] = (K,)
        elif name == "model":
            choices[name] = ("tests.experiment.own_nets:three_to_two",)
        elif name in {"ridge", "penalty"} and field.default == 0.0:
            choices[name] = (0.0, 0.3)
    for values in product(*choices.values()):
        chosen: dict[str, Any] = dict(zip(choices, values, strict=True))
        yield model(**chosen)


@lru_cache
def cases() -> tuple[Case, ...]:
    """Every problem of a config."""
    found: list[Case] = []
    for model in map(PROBLEMS.model, PROBLEMS.homes):
        if model is ModuleSpec:  # no loss of ours: tests/problems/test_module_problem.py
            continue
        for spec in _variants(model):
            ndim = spec.build().manifold.ndim
            shapes = {
                "spd-matrices": (3, 3), "labelled-spd-matrices": (K, 2, 2),
                "labelled-rows": (K * 4 + K * (K + 1),),
            }  # fmt: skip
            shape = shapes.get(spec.needs, (D, K)[:ndim])
            chosen = spec.model_dump(include={"on", "manifold", "center", "ridge", "penalty"})
            kind = model.model_fields["kind"].default
            label = "-".join(str(v) for v in (kind, *chosen.values()))
            found.append(Case(label, spec, shape))
    return tuple(found)
