"""Statistics of rows that several sites hold, each with a 95 % interval, from one private release.

    from manifed.intervals import release
    found = release(sites, row_norm=3.0, epsilon=1.0, delta=1e-5)
    found.interval("mean").rows(["age", "weight"])  # for a pandas.DataFrame
    found.interval(partial(ridge, target=0, alpha=0.1))

A release (`manifed.problems.moments`) holds the noised mean and second moment of all rows, and the
second moment of these. What is read from it afterwards costs no privacy, however much is read.

The interval of a statistic f is for its value in the population that the rows are a sample of. With
t the released mean and second moment in m numbers, G the derivative of f there, tau the known
deviation of the noise in each number and V the released covariance of t over rows (the delta
method, van der Vaart: Asymptotic Statistics (1998), Theorem 3.1), the squared errors are

    noise: tau^2 |G|^2,    sampling: G V G^T / n.

G is taken at the noised t. From it, as from f itself, is subtracted how far the error of t, of
covariance S = tau^2 I + V / n, moves it on average: half the sum of its second differences along
the axes of S. Over a whole deviation for G, whose average counts; close to t for f. The terms of
second order of the squared error, tr(f'' S f'' S) / 2, are not added: those by which the noise of G
makes the first terms too large are twice as large. V is noised as well, by a known
deviation, which `reach_of` allows for: intervals are a little wide where noise outweighs the
sample. Rows beyond the bound count as scaled down to it. An f that is not smooth near t (equal
eigenvalues, a collinear ridge) has no valid interval. Where rows are no sample of all sites
together, but of each site by itself, intervals are too wide.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, linalg

from manifed.algorithms.rsgd import RSGD
from manifed.errors import ConfigError, named_by
from manifed.experiment.load import parse
from manifed.fields import Document, Values
from manifed.manifolds.linalg import leading, unpacked
from manifed.oracles.minibatch import Full
from manifed.plan import mean_noise
from manifed.problems.examples import PERSON, codes
from manifed.problems.moments import LARGEST, SPREAD_SHARE, log_rows
from manifed.problems.own_arrays import tensor_of
from manifed.problems.persons import Persons
from manifed.problems.problem import InvalidRecord
from manifed.runs.fit import fit
from manifed.runs.folder import FolderDamaged, RunFolder
from manifed.runs.predict import config_of, model_in
from manifed.runs.report import read

Statistic = Callable[[Tensor, Tensor], Tensor]
"""A smooth function of the mean (d,) and the second moment (d, d) of rows, of any shape."""


@dataclass(frozen=True)
class Interval:
    """A statistic with its errors; all tensors have its shape."""

    estimate: Tensor
    noise_error: Tensor
    """Standard error from the noise of the release."""
    sampling_error: Tensor
    """Standard error of the statistic of a sample of so many rows."""
    low: Tensor
    high: Tensor

    def rows(self, columns: Sequence[str] = ()) -> list[Document]:
        """Returns a row for each number, of what it is and its errors.

        ``columns`` names what stands along a dimension of that length.
        """
        names = [
            columns if len(columns) == size else range(1, size + 1) for size in self.estimate.shape
        ]
        fields = ("estimate", "low", "high", "noise_error", "sampling_error")
        numbers = zip(*(getattr(self, field).flatten().tolist() for field in fields), strict=True)
        return [
            {"statistic": ", ".join(map(str, at)), **dict(zip(fields, row, strict=True))}
            for at, row in zip(product(*names), numbers, strict=True)
        ]


@dataclass(frozen=True)
class ReleasedMoments:
    """A noised release of moments, and what is known of its noise."""

    values: Tensor
    """The released mean of the statistic of `manifed.problems.moments`."""
    count: int
    """The number n of rows of all sites."""
    noise: float
    """The deviation of the noise in each number."""
    row_norm: float
    """The public bound of a row's length, in whose units ``values`` are."""
    statement: Values
    """The privacy statement."""
    columns: Sequence[str] = ()
    """Names of the columns, of a table."""

    def interval(self, statistic: str | Statistic, level: float = 0.95) -> Interval:
        """Returns one of `STATISTICS`, or any other, with its errors and intervals of that level.

        Raises:
            ConfigError: for a name or a level that there is not.
        """
        function = STATISTICS.get(statistic) if isinstance(statistic, str) else statistic
        if function is None:
            names = ", ".join(STATISTICS)
            raise ConfigError(f"statistic: expected one of {names}, got {statistic!r}")
        if not 0 < level < 1:
            raise ConfigError(f"level: expected a number between 0 and 1, got {level:g}")
        estimate, by_noise, by_sample, unsure = estimates(
            self.values, self.count, self.noise, self.row_norm, function
        )
        reach = reach_of(by_noise, by_sample, unsure, level)
        sampling = by_sample.clamp_min(0.0).sqrt()
        return Interval(estimate, by_noise.sqrt(), sampling, estimate - reach, estimate + reach)


def covariance(mean: Tensor, second: Tensor) -> Tensor:
    """Covariance of the columns, (d, d)."""
    return second - mean.unsqueeze(-1) * mean.unsqueeze(-2)


def standardisation(mean: Tensor, second: Tensor) -> Tensor:
    """Location and scale (mean and standard deviation) of each column, (2, d)."""
    variance = covariance(mean, second).diagonal(dim1=-2, dim2=-1)
    return torch.stack([mean, variance.clamp_min(torch.finfo(mean.dtype).tiny).sqrt()])


def components(mean: Tensor, second: Tensor, count: int = 1) -> Tensor:
    """Variance, then direction of leading components, (count, 1 + d); largest entries positive."""
    values, frame = leading(covariance(mean, second), count)
    return torch.cat([values.unsqueeze(0), frame]).mT


def ridge(mean: Tensor, second: Tensor, target: int = -1, alpha: float = 0.0) -> Tensor:
    """Coefficients of a linear model of one column by the others, the intercept last, (d,).

    ``alpha`` is the weight of |w|^2 / 2 beside half the mean squared error.
    """
    d = len(mean)
    others = [k for k in range(d) if k != target % d]
    spread = covariance(mean, second)
    gram = spread[others][:, others] + alpha * torch.eye(d - 1, dtype=mean.dtype)
    w = linalg.solve(gram, spread[others, target])
    return torch.cat([w, (mean[target] - mean[others] @ w).unsqueeze(0)])


STATISTICS: Mapping[str, Statistic] = {
    "mean": lambda mean, second: mean,
    "covariance": covariance,
    "standardisation": standardisation,
    "first-component": components,
    "regression-of-last": ridge,
    "log-euclidean-mean": lambda mean, second: linalg.matrix_exp(unpacked(mean)),
}
"""The statistics with a name. The last is the Fréchet mean of SPD matrices, (k, k)."""


_NEAR = 0.1
"""The part of a deviation at which the curvature of a statistic is measured."""


def reach_of(by_noise: Tensor, by_sample: Tensor, unsure: Tensor, level: float) -> Tensor:
    """Half the length of an interval, from the last three tensors of `estimates`.

    The estimate v of the whole squared error has normal noise of deviation u. With z the normal
    quantile, h^2 = z^2 (v + (z^2 + 1) u^2 / (4 v)) gives half a length h that holds a normal value
    as often as ``level`` says, to second order in u / v. It fails for v near 0 or below, so w, the
    larger root of w^2 = v w + (z^2 + 1) u^2 / 5, stands in place of the bracket: it is positive,
    about the bracket where v is large, and a fifth corrects for terms of third order. For any u and
    any true v the interval holds as often as ``level``, less 0.15 % at most (measured by
    tests/runs/test_intervals.py), and it is never shorter than the known noise alone makes it.
    """
    z = statistics.NormalDist().inv_cdf((1 + level) / 2)
    v = by_noise + by_sample
    v = 0.5 * (v + (v.square() + 0.8 * (z**2 + 1) * unsure.square()).sqrt())
    return z * torch.maximum(v, by_noise).sqrt()


@torch.enable_grad()
def estimates(
    values: Tensor, count: int, noise: float, row_norm: float, function: Statistic
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns a statistic, its squared errors by noise and sampling, and the second's deviation.

    All have the shape of the statistic, after that of ``values`` without its last dimension: one
    release, or many. Noise may make a squared error by sampling negative.
    """
    size = _root(values.shape[-1])
    order = _root(size)
    t = values[..., :size].detach().requires_grad_()

    def of(t: Tensor) -> Tensor:
        return function(t[:order] * row_norm, unpacked(t[order:]) * row_norm**2)

    t = values[..., :size].detach()
    eye = torch.eye(size, dtype=t.dtype)
    # the noise of t alone adds noise^2 to the diagonal of t t^T
    spread = unpacked(values[..., size:]) / SPREAD_SHARE + noise**2 * eye
    spread = (spread - t.unsqueeze(-1) * t.unsqueeze(-2)) / max(1, count - 1)
    # one deviation of t's error along each of its axes, there and back
    square, axes = linalg.eigh(spread + noise**2 * eye)
    away = (axes * square.clamp_min(0.0).sqrt().unsqueeze(-2)).mT
    away = torch.cat([0.0 * away[..., :1, :], away, -away], -2)
    near, far = (t.unsqueeze(-2) + h * away for h in (_NEAR, 1.0))
    lead = (*t.shape[:-1], 1 + 2 * size)
    f = torch.vmap(of)(near.flatten(0, -2))
    f = f.reshape(*lead, *f.shape[1:])
    far = far.flatten(0, -2).requires_grad_()
    slope = _slopes(torch.vmap(of)(far).reshape(len(far), -1), far).reshape(*lead, -1, size)
    estimate = _without_bias(f, len(lead) - 1, _NEAR)
    slope = _without_bias(slope, len(lead) - 1, 1.0)
    steep = slope.square().sum(-1)
    # G V G^T / n has itself the last deviation, by the noise of the released second moment of t
    found = (
        noise**2 * steep,
        ((slope @ spread) * slope).sum(-1),
        noise * steep / (SPREAD_SHARE * count),
    )
    by_noise, by_sample, unsure = (one.reshape(estimate.shape) for one in found)
    return estimate, by_noise, by_sample, unsure


def _without_bias(at: Tensor, axis: int, h: float) -> Tensor:
    """The first value along an axis, less how far noise moves it on average.

    The others are those at h deviations away along each axis of the noise, there and back.
    """
    first, others = at.split([1, at.shape[axis] - 1], axis)
    return (first - (others - first).sum(axis, keepdim=True) / (2 * h**2)).squeeze(axis)


def _slopes(y: Tensor, t: Tensor) -> Tensor:
    """Derivatives (k, m, size) of y (k, m) by t (k, size)."""
    m = y.shape[-1]
    if not y.requires_grad:  # constant
        return t.new_zeros(*y.shape, t.shape[-1])
    each = torch.eye(m, dtype=y.dtype).unsqueeze(1).expand(m, *y.shape)
    (found,) = torch.autograd.grad(y, t, each, is_grads_batched=True, materialize_grads=True)
    return found.movedim(0, -2)


def _root(size: int) -> int:
    """The length d of rows that have d + d(d + 1)/2 numbers with their products."""
    return (math.isqrt(9 + 8 * size) - 3) // 2


def plan_of(
    sizes: Sequence[int], d: int, row_norm: float, privacy: Values, rows_per_person: int = 0
) -> Any:
    """Returns the experiment of one release by sites of these numbers of records of d numbers.

    Records are rows, or persons of so many rows at most where ``rows_per_person`` is not 0.
    """
    data: Document = {"kind": "file", "examples": "rows", "columns": [str(k + 1) for k in range(d)]}
    if rows_per_person:
        data |= {"person": "person", "rows_per_person": rows_per_person}
        privacy = {"unit": "person", **privacy}
    return parse(
        {
            "name": "moments",
            "problem": {"kind": "moments", "row_norm": row_norm},
            "data": data,
            "federation": {"num_clients": len(sizes), "num_rounds": 1, "num_examples": [*sizes]},
            "training": {"kind": "rsgd", "step_size": 1.0, "minibatch": {"kind": "full"}},
            "privacy": {"kind": "example-level", "l2_norm_clip": LARGEST, **privacy},
            "evaluation": {"is_enabled": False},
        }
    )


def release(
    sites: Sequence[Any],
    *,
    row_norm: float,
    epsilon: float,
    delta: float,
    persons: Sequence[Sequence[Any]] = (),
    rows_per_person: int = 0,
    **privacy: Any,
) -> ReleasedMoments:
    """Releases the moments of the rows of all sites, each of which adds its own noise.

    Args:
        sites: the rows of each site, (n_i, d), or SPD matrices (n_i, k, k), whose logarithms are
            the rows; arrays, tensors or frames.
        row_norm: public bound of a row's length, from domain knowledge and never from the data.
        epsilon: what the release costs each row, or each person where ``persons`` are given.
        delta: as in (epsilon, delta).
        persons: whose each row of each site is, texts or whole numbers. A person then counts with
            the mean over her rows, each person alike, and is at one site.
        rows_per_person: at most so many rows of a person count; required with ``persons``.
        privacy: further keys of the config's table, as ``trust={"kind": "secure-sum"}``.

    Raises:
        ConfigError: for rows or a privacy that no release can be made of.
    """
    rows = [tensor_of(site, f"sites[{i}]").to(torch.float64) for i, site in enumerate(sites)]
    if not rows or {one.dim() for one in rows} not in ({2}, {3}):
        raise ConfigError("sites: expected rows (n, d), or SPD matrices (n, k, k), of each site")
    with named_by("sites", InvalidRecord):
        rows = [one if one.dim() == 2 else log_rows(one) for one in rows]
    if len(persons) != (len(rows) if rows_per_person else 0):
        raise ConfigError(
            "persons, rows_per_person: expected both or none, and the persons of each of "
            f"{len(rows)} sites, got those of {len(persons)} and {rows_per_person}"
        )
    said = {"epsilon": epsilon, "delta": delta, **privacy}
    sizes = [len(codes(names).unique()) for names in persons] or [*map(len, rows)]
    plan = plan_of(sizes, rows[0].shape[1], row_norm, said, rows_per_person)
    named = [{PERSON: names} for names in persons] or [{}] * len(rows)
    shards = [{"z": one, **beside} for one, beside in zip(rows, named, strict=True)]
    start = torch.zeros(plan.problem.point_shape(shards[0]), dtype=torch.float64)
    problem = Persons(plan.problem, rows_per_person) if persons else plan.problem
    found = fit(
        problem, shards, plan.training, rounds=1, privacy=plan.privacy, start=start, progress=False
    )
    return _moments(found.model, plan, sizes, found.statement)


def of_run(directory: str | Path) -> ReleasedMoments:
    """Reads what a finished run of ``problem.kind = "moments"`` released.

    Raises:
        FileNotFoundError, FolderDamaged: ``directory`` is no run, or damaged.
        ConfigError: an unfinished run, or one whose model is not one full-batch release of moments.
    """
    run = read(Path(directory))
    plan = config_of(run)
    sizes = [n for n, many in run.manifest.get("num_examples") or () for _ in range(many)]
    heard = (run.manifest.get("replies") or {}).get("participants")
    if not sizes or heard != len(sizes) * plan.federation.num_rounds:
        raise ConfigError(f"Expected replies of all {len(sizes)} clients, got {heard} replies")
    folder = RunFolder(run.directory)
    model = model_in(folder)
    size = _root(_root(model.numel()))
    if model.shape != plan.problem.point_shape({"z": model.new_zeros(size)}):
        path = folder.directory / "model.safetensors"
        raise FolderDamaged(path, "moments", f"a tensor of shape {tuple(model.shape)}")
    return _moments(model, plan, sizes, run.manifest.get("privacy") or {"kind": "none"})


def _moments(model: Tensor, plan: Any, sizes: Sequence[int], statement: Values) -> ReleasedMoments:
    """The moments that a plan released, once it is sure what is in its model."""
    privacy = plan.privacy
    for key, is_so, expected in (
        ("problem.kind", plan.problem.kind == "moments", "'moments'"),
        ("problem.start", plan.problem.start.kind == "origin", "'origin'"),
        ("federation.num_rounds", plan.federation.num_rounds == 1, "1"),
        ("federation.cohort", plan.federation.cohort.kind == "all", "'all'"),
        (
            "training",
            plan.training == RSGD(step_size=1.0, minibatch=Full()),
            "'rsgd' with one step of length 1 over all rows",
        ),
        ("strategy", plan.strategy is None, "none"),
        ("privacy.kind", privacy.kind == "example-level", "'example-level'"),
        # a person at two sites is two records, which are no independent sample
        ("privacy.sites_per_person", getattr(privacy, "sites_per_person", 1) == 1, "1"),
    ):
        if not is_so:
            raise ConfigError(f"{key}: expected {expected} for statistics with intervals")
    if privacy.l2_norm_clip < LARGEST * (1 - 1e-9):
        raise ConfigError(
            f"privacy.l2_norm_clip: expected at least {LARGEST:.7g}, which clips no row, got "
            f"{privacy.l2_norm_clip:g}"
        )
    noise = mean_noise(plan.setting, tuple(sizes))
    columns = getattr(plan.data, "columns", ())
    return ReleasedMoments(model, sum(sizes), noise, plan.problem.row_norm, statement, columns)
