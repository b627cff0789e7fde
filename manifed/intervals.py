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

With S = tau^2 I + V / n the covariance of t's error, terms of second order are tr(f'' S) / 2 for
the bias, which is subtracted, and tr(f'' S f'' S) / 2 for the squared error, which is added. Half
of the bias of G is subtracted from it. V is noised as well, by a known deviation, which `reach_of`
allows for: intervals are a little wide where noise outweighs the sample.
Rows beyond the bound count as scaled down to it. An f that is not smooth near t (equal
eigenvalues, a collinear ridge) has no valid interval. Where rows are no sample of all sites
together, but of each site by itself, intervals are too wide.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

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
from manifed.problems.problem import InvalidRecord
from manifed.runs.fit import fit_as_planned
from manifed.runs.folder import FolderDamaged, RunFolder
from manifed.runs.predict import config_of, model_in
from manifed.runs.report import read

Statistic = Callable[[Tensor, Tensor], Tensor]
"""A smooth function of the mean (d,) and the second moment (d, d) of rows, of any shape."""


class Interval(NamedTuple):
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
    as often as ``level`` says, to second order in u / v. It fails for v near 0 or below, so in
    place of the bracket stands a w with the same expansion, whose constants were fitted by
    quadrature: for levels from 0.8 to 0.99 and any u the interval holds as often as ``level``, less
    0.32 % at most and 0.05 % for u <= v (measured by tests/runs/test_intervals.py). No interval is
    shorter than 0.7 of what the known noise alone makes it, which holds a little too often.
    """
    z = statistics.NormalDist().inv_cdf((1 + level) / 2)
    v = by_noise + by_sample
    u = unsure.clamp_min(torch.finfo(v.dtype).tiny)
    w = 0.5 * (v + (v.square() + 0.99 * (z**2 + 1) * u.square()).sqrt())
    w = w - 0.61 * u * torch.exp(-((v / u + 2.56) / (2.06 + 0.49 * z)).square())
    return z * torch.maximum(w, 0.5 * by_noise).sqrt()


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

    def of(t: Tensor) -> Tensor:
        return function(t[:order] * row_norm, unpacked(t[order:]) * row_norm**2)

    t = values[..., :size].detach()
    eye = torch.eye(size, dtype=t.dtype)
    # the noise of t alone adds noise^2 to the diagonal of t t^T
    spread = unpacked(values[..., size:]) / SPREAD_SHARE + noise**2 * eye
    spread = (spread - t.unsqueeze(-1) * t.unsqueeze(-2)) / max(1, count - 1)
    # t, and around it a part of a deviation of its error along each of its axes, there and back
    square, axes = linalg.eigh(spread + noise**2 * eye)
    square = square.clamp_min(torch.finfo(t.dtype).tiny)
    axes = (axes * square.sqrt().unsqueeze(-2)).mT
    points = t.unsqueeze(-2) + _NEAR * torch.cat([0.0 * axes[..., :1, :], axes, -axes], -2)
    points = points.flatten(0, -2).requires_grad_()
    f = torch.vmap(of)(points)
    y = f.reshape(len(points), -1) + 0.0 * points[:, :1]  # a constant has a derivative as well
    each = torch.eye(y.shape[-1], dtype=y.dtype).unsqueeze(1).expand(-1, *y.shape)
    # not torch.func.jacrev, whose first call imports torch's compiler: that takes seconds
    (slope,) = torch.autograd.grad(y, points, each, is_grads_batched=True)
    slope = slope.movedim(0, -2)
    lead = (*t.shape[:-1], 1 + 2 * size)
    f, slope = f.detach().reshape(*lead, *f.shape[1:]), slope.reshape(*lead, *slope.shape[1:])
    f, f_bias, _ = _changes(f, len(lead) - 1)
    slope, slope_bias, bend = _changes(slope, len(lead) - 1)
    # half: all of it makes intervals too short where errors have heavy tails
    slope = slope - 0.5 * slope_bias
    second = 0.5 * (bend @ axes.mT.unsqueeze(-3)).square().sum((-3, -1))
    of_noise = (noise**2 / square.mean(-1, keepdim=True)).square()
    steep = noise * slope.square().sum(-1)
    found = (
        noise * steep + of_noise * second,
        ((slope @ spread) * slope).sum(-1) + (1.0 - of_noise) * second,
        # G V G^T / n has itself this deviation, by the noise of the released second moment of t
        steep / (SPREAD_SHARE * count),
    )
    by_noise, by_sample, unsure = (one.reshape(f.shape) for one in found)
    return f - f_bias, by_noise, by_sample, unsure


def _changes(at: Tensor, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first value along an axis, what noise adds to it on average, and first derivatives.

    The others are those at `_NEAR` deviations away along each axis of the noise, there and back.
    """
    count = (at.shape[axis] - 1) // 2
    first, there, back = at.split([1, count, count], axis)
    bias = (there + back - 2 * first).sum(axis) / (2 * _NEAR**2)
    return first.squeeze(axis), bias, (there - back) / (2 * _NEAR)


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
            f"persons: expected those of each of {len(rows)} sites with rows_per_person, else "
            f"none, got those of {len(persons)} sites and rows_per_person = {rows_per_person}"
        )
    said = {"epsilon": epsilon, "delta": delta, **privacy}
    sizes = [len(codes(names).unique()) for names in persons] or [*map(len, rows)]
    plan = plan_of(sizes, rows[0].shape[1], row_norm, said, rows_per_person)
    named = [{PERSON: names} for names in persons] or [{}] * len(rows)
    shards = [{"z": one, **beside} for one, beside in zip(rows, named, strict=True)]
    found = fit_as_planned(plan, shards)
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
    return _moments(model, plan, sizes, run.manifest["privacy"])


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
