"""Geometry's operations to 50 digits, by mpmath: what `peers.py` measures errors against.

Every function takes the arrays of one point, as the operation does, under ``mpmath.workdps(50)``.
"""

from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def _matrix(a: Array) -> Any:
    return mp.matrix(a.reshape(a.shape[0], -1).tolist())


def _subspace_dist(x: Array, y: Array) -> Array:
    """From the angles of the spans of the very numbers that are stored."""
    left, right = mp.qr(_matrix(x), mode="skinny")[0], mp.qr(_matrix(y), mode="skinny")[0]
    cosines = mp.svd_r(left.T * right, compute_uv=False)
    return np.array(float(mp.sqrt(sum(mp.acos(min(c, mp.mpf(1))) ** 2 for c in cosines))))


def _stiefel_proju(x: Array, u: Array) -> Array:
    a, b = _matrix(x), _matrix(u)
    along = a.T * b
    return np.array((b - a * (along + along.T) / 2).tolist(), dtype=float)


def _subspace_proju(x: Array, u: Array) -> Array:
    a, b = _matrix(x), _matrix(u)
    return np.array((b - a * (a.T * b)).tolist(), dtype=float)


def _inner(x: Array, u: Array, v: Array) -> Array:
    return np.array(float(mp.fdot(u.ravel().tolist(), v.ravel().tolist())))


def _ball_dist(x: Array, y: Array) -> Array:
    def square(a: Any) -> Any:
        return mp.fsum(mp.mpf(v) ** 2 for v in a)

    gap = square([mp.mpf(a) - mp.mpf(b) for a, b in zip(x.tolist(), y.tolist(), strict=True)])
    return np.array(float(2 * mp.asinh(mp.sqrt(gap / ((1 - square(x)) * (1 - square(y)))))))


def _vector(a: Any) -> Any:
    return mp.matrix([mp.mpf(v) for v in a])


def _dot(a: Any, b: Any) -> Any:
    return mp.fdot(a, b)


def _sphere_dist(x: Array, y: Array) -> Array:
    a, b = _vector(x), _vector(y)
    a, b = a / mp.norm(a), b / mp.norm(b)
    return np.array(float(2 * mp.asin(mp.norm(a - b) / 2)))


def _lifted(x: Array) -> Any:
    """The point of the hyperboloid above the stored space part."""
    return mp.matrix([mp.sqrt(1 + _dot(_vector(x[1:]), _vector(x[1:]))), *_vector(x[1:])])


def _minkowski(a: Any, b: Any) -> Any:
    return _dot(a, b) - 2 * a[0] * b[0]


def _lorentz_dist(x: Array, y: Array) -> Array:
    return np.array(float(mp.acosh(-_minkowski(_lifted(x), _lifted(y)))))


def _lorentz_log(x: Array, y: Array) -> Array:
    a, b = _lifted(x), _lifted(y)
    cosine = -_minkowski(a, b)
    return _floats((b - a * cosine) * (mp.acosh(cosine) / mp.sqrt(cosine**2 - 1)))


def _mobius(a: Any, b: Any) -> Any:
    along, p, q = _dot(a, b), _dot(a, a), _dot(b, b)
    return (a * (1 + 2 * along + q) + b * (1 - p)) / (1 + 2 * along + p * q)


def _ball_exp(x: Array, u: Array) -> Array:
    a, b = _vector(x), _vector(u)
    size = mp.norm(b)
    return _floats(_mobius(a, b * (mp.tanh(size / (1 - _dot(a, a))) / size)))


def _ball_log(x: Array, y: Array) -> Array:
    a, b = _vector(x), _vector(y)
    w = _mobius(-a, b)
    size = mp.norm(w)
    return _floats(w * ((1 - _dot(a, a)) * mp.atanh(size) / size))


def _floats(a: Any) -> Array:
    return np.array([float(v) for v in a])


def _lifted_tangent(x: Array, u: Array) -> Any:
    """The tangent vector at `_lifted` of the stored space part."""
    a, space = _lifted(x), _vector(u[1:])
    return mp.matrix([_dot(_vector(x[1:]), space) / a[0], *space])


def _lorentz_inner(x: Array, u: Array, v: Array) -> Array:
    return np.array(float(_minkowski(_lifted_tangent(x, u), _lifted_tangent(x, v))))


def _lorentz_proju(x: Array, u: Array) -> Array:
    a, b = _lifted(x), _vector(u)
    return _floats(b + a * _minkowski(a, b))


def _lorentz_egrad2rgrad(x: Array, g: Array) -> Array:
    return _lorentz_proju(x, np.array([-g[0], *g[1:]]))


def _lorentz_transp(x: Array, y: Array, v: Array) -> Array:
    a, b, c = _lifted(x), _lifted(y), _lifted_tangent(x, v)
    return _floats(c + (a + b) * (_minkowski(b, c) / (1 - _minkowski(a, b))))


def _ball_transp(x: Array, y: Array, v: Array) -> Array:
    """gyr[y, -x] v, scaled by the conformal factors."""
    a, b, c = _vector(x), _vector(y), _vector(v)
    turned = _mobius(-_mobius(b, -a), _mobius(b, _mobius(-a, c / (8 * mp.norm(c)))))
    return _floats(turned * (8 * mp.norm(c) * (1 - _dot(b, b)) / (1 - _dot(a, a))))


def _columns(*arrays: Array) -> Any:
    return zip(*[[_vector(column) for column in a.T] for a in arrays], strict=True)


def _oblique_retr(x: Array, u: Array) -> Array:
    return np.array([_floats((a + b) / mp.norm(a + b)) for a, b in _columns(x, u)]).T


def _oblique_exp(x: Array, u: Array) -> Array:
    ends = [
        a * mp.cos(mp.norm(b)) + b * (mp.sin(mp.norm(b)) / mp.norm(b)) for a, b in _columns(x, u)
    ]
    return np.array([_floats(end / mp.norm(end)) for end in ends]).T


def _oblique_dist(x: Array, y: Array) -> Array:
    pairs = [(a / mp.norm(a), b / mp.norm(b)) for a, b in _columns(x, y)]
    angles = [2 * mp.atan2(mp.norm(a - b), mp.norm(a + b)) for a, b in pairs]
    return np.array(float(mp.norm(mp.matrix(angles))))


def _dense(a: Any) -> Array:
    return np.array(a.tolist(), dtype=float)


def polar_retr(x: Array, u: Array) -> Array:
    """(x + u) (gram)^{-1/2}."""
    y = _matrix(x) + _matrix(u)
    values, basis = mp.eigsy(y.T * y)
    return _dense(y * basis * mp.diag([1 / mp.sqrt(w) for w in values]) * basis.T)


def _qr_retr(x: Array, u: Array) -> Array:
    """The factor of x + u whose triangle has a positive diagonal."""
    y = _matrix(x) + _matrix(u)
    factor = mp.cholesky(y.T * y)
    return _dense(y * mp.inverse(factor.T))


def _stiefel_exp(x: Array, u: Array) -> Array:
    """Edelman, Arias, Smith (1998), (2.42) in the Euclidean metric."""
    a, b, k = _matrix(x), _matrix(u), x.shape[1]
    along, gram = a.T * b, b.T * b
    block = mp.zeros(2 * k)
    for i in range(k):
        for j in range(k):
            block[i, j] = block[k + i, k + j] = along[i, j]
            block[i, k + j], block[k + i, j] = -gram[i, j], mp.mpf(i == j)
    turned = mp.expm(block)[:, :k] * mp.expm(-along)
    return _dense(a * turned[:k, :] + b * turned[k:, :])


def _subspace_retr(x: Array, u: Array) -> Array:
    return _dense(_matrix(x) + _matrix(u))


def _subspace_log(x: Array, y: Array) -> Array:
    """U atan(S) V^T of (I - x x^T) y (x^T y)^{-1}."""
    a, b = _matrix(x), _matrix(y)
    height = b * mp.inverse(a.T * b) - a * mp.inverse(a.T * a)
    values, basis = mp.eigsy(height.T * height)
    turn = [mp.atan(mp.sqrt(w)) / mp.sqrt(w) for w in values]
    return _dense(height * basis * mp.diag(turn) * basis.T)


def _spd_inner(x: Array, u: Array, v: Array) -> Array:
    left, right = (mp.inverse(_matrix(x)) * _matrix(w) for w in (u, v))
    return np.array(float(mp.fsum(mp.fdot(left[i, :], right[:, i].T) for i in range(len(x)))))


def _spd_egrad2rgrad(x: Array, g: Array) -> Array:
    a, b = _matrix(x), _matrix(g)
    return _dense(a * ((b + b.T) / 2) * a)


def _spd_retr(x: Array, u: Array) -> Array:
    a, b = _matrix(x), _matrix(u)
    return _dense(a + b + b * mp.inverse(a) * b / 2)


def _congruence(x: Array, other: Array, function: Callable[[Any], Any]) -> Any:
    """L f(L^{-1} other L^{-T}) L^T with x = L L^T."""
    factor = mp.cholesky(_matrix(x))
    inverse = mp.inverse(factor)
    values, basis = mp.eigsy(inverse * _matrix(other) * inverse.T)
    half = factor * basis
    return half * mp.diag([function(w) for w in values]) * half.T


def _spd_exp(x: Array, u: Array) -> Array:
    return _dense(_congruence(x, u, mp.exp))


def _spd_log(x: Array, y: Array) -> Array:
    return _dense(_congruence(x, y, mp.log))


def _spd_dist(x: Array, y: Array) -> Array:
    inverse = mp.inverse(mp.cholesky(_matrix(x)))
    values = mp.eigsy(inverse * _matrix(y) * inverse.T, eigvals_only=True)
    return np.array(float(mp.norm(mp.matrix([mp.log(w) for w in values]))))


REFERENCES: dict[tuple[str, str], Callable[..., Array]] = {
    ("Grassmann", "dist"): _subspace_dist,
    ("Grassmann", "proju"): _subspace_proju,
    ("Grassmann", "retr"): _subspace_retr,
    ("Grassmann", "logmap"): _subspace_log,
    ("Stiefel", "retr"): _qr_retr,
    ("Stiefel", "expmap"): _stiefel_exp,
    ("Stiefel", "projx_1e8"): lambda x: polar_retr(x, np.zeros_like(x)),
    ("SPD", "inner"): _spd_inner,
    ("SPD", "egrad2rgrad"): _spd_egrad2rgrad,
    ("SPD", "retr"): _spd_retr,
    ("SPD", "expmap"): _spd_exp,
    ("SPD", "logmap"): _spd_log,
    ("SPD", "dist"): _spd_dist,
    ("Oblique", "retr"): _oblique_retr,
    ("Oblique", "expmap"): _oblique_exp,
    ("Oblique", "dist"): _oblique_dist,
    ("Lorentz", "inner"): _lorentz_inner,
    ("Lorentz", "proju"): _lorentz_proju,
    ("Lorentz", "egrad2rgrad"): _lorentz_egrad2rgrad,
    ("Lorentz", "transp"): _lorentz_transp,
    ("PoincareBall", "transp"): _ball_transp,
    ("Stiefel", "proju"): _stiefel_proju,
    ("Stiefel", "inner"): _inner,
    ("Sphere", "inner"): _inner,
    ("Sphere", "dist"): _sphere_dist,
    ("Lorentz", "dist"): _lorentz_dist,
    ("Lorentz", "logmap"): _lorentz_log,
    ("PoincareBall", "expmap"): _ball_exp,
    ("PoincareBall", "logmap"): _ball_log,
    ("PoincareBall", "dist"): _ball_dist,
}
