"""The isometric samplers of Utpala et al. (2023) re-coded in JAX and jitted, as rivals.

rieoptax ships no callable tangent sampler, so the corrected Algorithms 3, 7 and 10 are written
here after the paper: eigendecomposition square root for SPD, transport from the first unit
vector for Lorentz, projection for Stiefel and Grassmann. Without jax there are no rivals.
"""

import importlib.util
from collections.abc import Callable


def jax_samplers() -> dict[str, Callable[[], object]]:
    """One compiled draw per case name of ``tangent_noise.py``; empty without jax."""
    if importlib.util.find_spec("jax") is None:
        return {}
    import jax

    jax.config.update("jax_enable_x64", True)  # noqa: FBT003  # jax takes it by position
    draws = {f"spd_{m}": _spd(m) for m in (5, 10, 20, 50, 100)}
    draws |= {f"lorentz_{d + 1}": _lorentz(d) for d in (10, 100, 1000)}
    draws |= {"grassmann_784x5": _grassmann(784, 5), "stiefel_784x5": _stiefel(784, 5)}
    return draws


def _compiled(sampler: Callable, point: object) -> Callable[[], object]:
    """A draw with a fresh key per call; compiled before it is returned."""
    import jax

    jitted = jax.jit(sampler)
    keys = iter(range(1 << 62))

    def one_draw() -> object:
        return jitted(point, jax.random.key(next(keys))).block_until_ready()

    one_draw()
    return one_draw


def _spd(m: int) -> Callable[[], object]:
    import jax
    import jax.numpy as jnp

    def sampler(w, key):
        a = jax.random.normal(key, (m, m))
        values, basis = jnp.linalg.eigh(w)
        root = (basis * jnp.sqrt(values)) @ basis.T
        return root @ ((a + a.T) / 2) @ root  # Algorithm 3, line 3

    z = jax.random.normal(jax.random.key(0), (m, m))
    return _compiled(sampler, z @ z.T / m + jnp.eye(m))


def _lorentz(d: int) -> Callable[[], object]:
    import jax
    import jax.numpy as jnp

    def sampler(w, key):
        start = jnp.concatenate([jnp.zeros(1), jax.random.normal(key, (d,))])
        first = jnp.zeros(d + 1).at[0].set(1.0)
        return start + (w @ start) / (1 + w[0]) * (first + w)  # Algorithm 7, line 3

    space = jax.random.normal(jax.random.key(0), (d,)) / d**0.5
    return _compiled(sampler, jnp.concatenate([jnp.sqrt(1 + space @ space)[None], space]))


def _frame(n: int, k: int):
    import jax
    import jax.numpy as jnp

    return jnp.linalg.qr(jax.random.normal(jax.random.key(0), (n, k)))[0]


def _grassmann(n: int, k: int) -> Callable[[], object]:
    import jax

    def sampler(w, key):
        z = jax.random.normal(key, (n, k))
        return z - w @ (w.T @ z)

    return _compiled(sampler, _frame(n, k))


def _stiefel(n: int, k: int) -> Callable[[], object]:
    import jax

    def sampler(w, key):
        z = jax.random.normal(key, (n, k))
        along = w.T @ z
        return z - w @ ((along + along.T) / 2)

    return _compiled(sampler, _frame(n, k))
