"""Hostile records and points for every problem of the configuration, and a judge of 50 digits.

The judge evaluates the metric from its formula in mpmath; it shares no code with what it judges.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import get_args

import mpmath as mp
import torch

from manifed.experiment.schema import PROBLEMS
from manifed.manifolds import Power, Product, Scaled, Stiefel
from manifed.manifolds.linalg import packed_size
from manifed.problems.class_means import ClassMeans
from manifed.problems.examples import Examples
from manifed.problems.frechet import MANIFOLDS, FrechetMean, HyperbolicPrediction
from manifed.problems.module_problem import ModuleSpec
from manifed.problems.moments import Moments
from manifed.problems.problem import ProblemSource
from tests.tensors import float64

DIGITS = 50
SCALES = (1e-300, 1e-160, 1e-30, 1e-8, 1.0, 1e4, 1e8, 1e30, 1e153, 1e160, 1e300)
TILTS = (0.0, 1e-16, 1e-12, 1e-8, 1e-4, 1.0)
BAD = (float("nan"), float("inf"), -float("inf"))
D = 6
K = 2


# -- the judge -----------------------------------------------------------------------------------
frobenius = mp.norm


def exact(t):
    """The stored numbers as an mpmath matrix (a vector becomes one column)."""
    return mp.matrix(t.reshape(len(t), -1).tolist())


def symmetric(x):
    """The matrix whose lower triangle is that of x: all that a factorisation reads."""
    return exact(torch.tril(x) + torch.tril(x, -1).mT)


def judge(manifold, x):
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


def judge_of_one(manifold, x):
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
            return lambda u: mp.sqrt(max(mp.fdot(inverse * exact(u), (inverse * exact(u)).T), 0))
        case "SPDLogEuclidean":
            w, v = mp.eigsy(symmetric(x))
            size = len(w)
            d = mp.matrix(size, size)
            for i, j in product(range(size), repeat=2):
                near = abs(w[i] - w[j]) < mp.mpf(10) ** -30 * abs(w[i])
                d[i, j] = 1 / w[i] if near else (mp.log(w[i]) - mp.log(w[j])) / (w[i] - w[j])
            return lambda u: mp.norm([a * b for a, b in zip(d, v.T * exact(u) * v, strict=True)])
        case "SPDLogCholesky":
            factor = mp.cholesky(symmetric(x))
            inverse = factor**-1
            return lambda u: frobenius(log_cholesky_velocity(factor, inverse, exact(u)))
    raise AssertionError(f"no metric written down for {manifold.name}")


def lorentz(space, above, u):
    return mp.sqrt(max(frobenius(u) ** 2 - mp.fdot(space, u) ** 2 / above, 0))


def log_cholesky_velocity(factor, inverse, u):
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


def normal_part(manifold, x, u):
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
def normal(generator, *shape):
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def points(problem, shape, seed):
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


def _at_radius(v, radius):
    space = float64(radius).sinh() * v[1:] / v[1:].norm()
    return torch.cat([(1 + space.square().sum()).sqrt().unsqueeze(0), space])


# -- records -------------------------------------------------------------------------------------
def hostile_rows(x, generator):
    """Rows of every length at every angle to x (to the span of its columns), mixed and broken."""
    frame = x.reshape(len(x), -1)
    axis = frame @ normal(generator, frame.shape[1])
    axis = axis / axis.norm()
    away = normal(generator, len(x))
    away = away / away.norm()
    mixed = float64(SCALES[: len(x)])
    rows = [s * (axis + t * away) for s, t in product(SCALES, TILTS)]
    rows += [s * away for s in (*SCALES, 0.0, mixed, mixed.flip(0))]
    for bad in BAD:
        rows.append(away.clone())
        rows[-1][0] = bad
    return torch.stack(rows)


def examples_of(**tensors):
    return Examples(tensors)


def crossed(**parts):
    """Every row of the first with every row of the second."""
    (first, a), (second, b) = parts.items()
    each = b.repeat(len(a), *[1] * (b.ndim - 1))
    return examples_of(**{first: a.repeat_interleave(len(b), 0), second: each})


OTHERS = float64([0.0, 1e-300, -1e-160, 1e-8, 1.0, -1e8, 1e160, 1e300, float("nan")])
LABELS = float64([0.0, 1.0, 0.5, -7.0, 1e300, *BAD])


def _sphere_points(x, generator):
    rows = hostile_rows(x, generator)
    opposite = [-s * (x + t * normal(generator, len(x))) for s, t in product((1.0, 1e8), TILTS)]
    return torch.cat([rows, torch.stack(opposite)])


def _regression(x, generator):
    a = hostile_rows(x, generator)
    ends = examples_of(feature=a, target=a @ x)  # residuals of rounding alone
    return Examples.concatenate([crossed(feature=a, target=OTHERS), ends])


def _columns(x, generator):
    rows = hostile_rows(x, generator)
    one, *_ = torch.eye(len(x)).double()
    some = (normal(generator, len(x)) > 0).double()
    masks = [torch.full_like(one, value) for value in (1, 0, -1, 1e5, 1e200)]
    return crossed(column=rows, mask=torch.stack([*masks, some, one]))


def _on_hyperboloid(x, generator):
    size = len(x)
    rows = [_at_radius(normal(generator, size), r) for r in (1e-9, 1.0, 8.0, 20.0, 30.0)]
    rows += [x, x * (1 + 1e-9)]
    rows += [s * row for s, row in product((-1.0, 0.5, 2.66, 1e8), rows[:3])]
    return torch.cat([torch.stack(rows), hostile_rows(x, generator)])


def _poincare(x, generator):
    unit = normal(generator, len(x))
    unit = unit / unit.norm()
    lengths = (0.0, 1e-300, 0.5, 1 - 1e-12, 1 - 1e-16, 1.0, 1.00016, 2.0, 1e8)
    rows = [r * unit for r in lengths] + [x, -x, x / x.norm(), x * (1 + 1e-9)]
    return torch.cat([torch.stack(rows), hostile_rows(x, generator)])


def _prediction(x, generator):
    weights = float64([1.0, -1e-300, 1e8, 1e300, float("nan")])
    return crossed(target=_on_hyperboloid(x, generator), weight=weights)


def _matrices(x, generator):
    size = len(x)
    g = normal(generator, size, size)
    eye = torch.eye(size).double()
    spread = torch.diag(torch.logspace(-12, 12, size, dtype=torch.float64))
    shapes = [eye, g @ g.mT, g[:, :1] @ g[:, :1].mT, g, -eye, x, x + 1e-9 * g, spread, 0 * eye]
    scaled = [s * z for s, z in product((*SCALES, 1e-320, 1e308), shapes)]
    return torch.stack([*scaled, *(eye * bad for bad in BAD)])


def _labelled(z):
    """Each twice, with labels in turn."""
    labels = LABELS.repeat(len(z))[: 2 * len(z)]
    return examples_of(z=z.repeat_interleave(2, 0), label=labels)


def records(spec, x, seed):
    """Hostile examples for the problem."""
    generator = torch.Generator().manual_seed(100 + seed)
    name = spec.build().manifold.name
    if isinstance(spec, HyperbolicPrediction):
        return _prediction(x, generator)
    if isinstance(spec, Moments):  # whose points are longer than its rows
        x = x[:D]
    match spec.needs:
        case "regression":
            return _regression(x, generator)
        case "classification":
            return crossed(feature=hostile_rows(x, generator), label=OTHERS)
        case "columns":
            return _columns(x, generator)
        case "labelled-spd-matrices" | "labelled-rows":  # a network takes three numbers
            made = _matrices(x[0], generator) if x.ndim > 1 else hostile_rows(x[:3], generator)
            return _labelled(made)
    rows = {
        "rows": hostile_rows,
        "sphere-points": _sphere_points,
        "spd-matrices": _matrices,
        "hyperbolic-pairs": _poincare if name == "PoincareBall" else _on_hyperboloid,
    }
    return examples_of(z=rows[spec.needs](x, generator))


# -- cases ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Case:
    """A problem of the configuration, with the shape of its points."""

    name: str
    spec: ProblemSource
    shape: tuple[int, ...]


def _variants(model):
    """Every combination of a specification's choices; penalties off and on."""
    choices = {}
    for name, field in model.model_fields.items():
        if name in {"on", "manifold"}:
            choices[name] = get_args(field.annotation) or tuple(MANIFOLDS)
        elif name in {"num_classes", "hidden"}:
            choices[name] = (K,)
        elif name in {"ridge", "penalty"} and field.default == 0.0:
            choices[name] = (0.0, 0.3)
    for values in product(*choices.values()):
        yield model(**dict(zip(choices, values, strict=True)))


@lru_cache
def cases():
    """Every problem of a config."""
    found = []
    shapes = {
        "spd-matrices": (3, 3), "labelled-spd-matrices": (K, 2, 2),
        "labelled-rows": (K * 4 + K * (K + 1),),
    }  # fmt: skip
    for model in map(PROBLEMS.model, PROBLEMS.homes):
        # a module has no loss of ours: tests/problems/test_module_problem.py
        for spec in _variants(model) if model is not ModuleSpec else ():
            shape = shapes.get(spec.needs, (D, K)[: spec.build().manifold.ndim])
            if isinstance(spec, Moments):
                size = D + packed_size(D)
                shape = (size + packed_size(size),)
            chosen = spec.model_dump(include={"on", "manifold", "ridge", "penalty"})
            label = "-".join(map(str, (spec.kind, *chosen.values())))
            found.append(Case(label, spec, shape))
    return tuple(found)
