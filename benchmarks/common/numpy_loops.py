"""The loops a researcher would write: numpy and pymanopt, one client after the other, no messages.

They do the same arithmetic as the engines' cases (full gradients, ten local steps, plain mean in a
tangent space) and nothing else: no noise, no wire, no ledger, no checks.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.cases import STEPS
from manifed.experiment.assembly import load_shards
from manifed.experiment.schema import Experiment

Array = NDArray[np.float64]
Round = Callable[[Array], Array]


def round_of(case: str, config: Experiment) -> tuple[Round, Array]:
    """One round of ``case`` as a function of the model, and a start."""
    from manifed.experiment.assembly import initial_point

    x = initial_point(config).numpy()
    tensors = [shard.tensors for shard in load_shards(config).examples]
    step = float(config.training.step_size)
    if case.startswith("least_squares"):
        data = [(t["feature"].numpy(), t["target"].numpy()) for t in tensors]
        return _least_squares(data, step), x
    rows = [t["z"].numpy() for t in tensors]
    if case == "lorentz_d10":
        return _lorentz(rows, step), x
    if case == "spd_10":
        return _spd(rows, step), x
    return _kpca(rows, step), x


def _least_squares(data: list[tuple[Array, Array]], step: float) -> Round:
    def one(x: Array) -> Array:
        ends = []
        for a, b in data:
            y = x
            for _ in range(STEPS):
                y = y - step * (a.T @ (a @ y - b)) / len(b)
            ends.append(y)
        return np.mean(ends, axis=0)

    return one


def stacked_round_of(config: Experiment) -> tuple[Round, Array]:
    """One round of least squares, all clients as one stack, as a function of the model; a start."""
    from manifed.experiment.assembly import initial_point

    tensors = [shard.tensors for shard in load_shards(config).examples]
    a = np.stack([t["feature"].numpy() for t in tensors])
    b = np.stack([t["target"].numpy() for t in tensors])[..., None]
    step = float(config.training.step_size) / a.shape[1]
    turned = np.ascontiguousarray(a.mT)

    def one(x: Array) -> Array:
        y = np.broadcast_to(x, (len(a), len(x)))[..., None]
        for _ in range(STEPS):
            y = y - step * (turned @ (a @ y - b))
        return y[..., 0].mean(0)

    return one, initial_point(config).numpy()


def _lorentz_log(x: Array, z: Array) -> Array:
    inner = z[..., 1:] @ x[1:] - z[..., 0] * x[0]
    distance = np.arccosh(np.maximum(-inner, 1.0))
    ratio = np.where(distance > 1e-9, distance / np.sinh(np.maximum(distance, 1e-9)), 1.0)
    return ratio[..., None] * (z + inner[..., None] * x)


def _lorentz_exp(x: Array, u: Array) -> Array:
    size = np.sqrt(max(u[1:] @ u[1:] - u[0] ** 2, 0.0))
    return np.cosh(size) * x + (np.sinh(size) / size if size > 1e-12 else 1.0) * u


def _lorentz(rows: list[Array], step: float) -> Round:
    def one(x: Array) -> Array:
        ends = []
        for z in rows:
            y = x
            for _ in range(STEPS):
                y = _lorentz_exp(y, 2 * step * _lorentz_log(y, z).mean(0))
            ends.append(_lorentz_log(x, y[None])[0])
        return _lorentz_exp(x, np.mean(ends, axis=0))

    return one


def _spd(rows: list[Array], step: float) -> Round:
    from pymanopt.manifolds import SymmetricPositiveDefinite

    manifold = SymmetricPositiveDefinite(rows[0].shape[-1])
    stacked = SymmetricPositiveDefinite(rows[0].shape[-1], k=len(rows[0]))

    def one(x: Array) -> Array:
        ends = []
        for z in rows:
            y = x
            for _ in range(STEPS):
                logs = stacked.log(np.broadcast_to(y, z.shape), z)
                y = manifold.exp(y, 2 * step * logs.mean(0))
            ends.append(manifold.log(x, y))
        return manifold.exp(x, np.mean(ends, axis=0))

    return one


def _polar(x: Array) -> Array:
    u, _, vt = np.linalg.svd(x, full_matrices=False)
    return u @ vt


def _kpca(rows: list[Array], step: float) -> Round:
    """Algorithm 1 of Zhang et al. without its correction: the same products and projections."""

    def one(x: Array) -> Array:
        ends = []
        for a in rows:
            y = z = _polar(x)
            for _ in range(STEPS):
                g = -(a.T @ (a @ z)) / len(a)
                g = g - z @ (z.T @ g + g.T @ z) / 2
                y = y - step * g
                z = _polar(y)
            ends.append(y)
        return np.mean(ends, axis=0)

    return one
