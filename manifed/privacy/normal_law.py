"""Distribution functions that the bounds need, typed (scipy ships no stubs)."""

from typing import Any

import numpy as np
import numpy.typing as npt

from manifed.deferred import defer

defer("numpy", ("f2py",))  # scipy.special names all of NumPy, its Fortran compiler too
from scipy import special  # noqa: E402  # scipy looks for f2py while it is imported: first the stand-in

Array = npt.NDArray[np.float64]
_special: Any = special


def cdf(x: Array) -> Array:
    """Phi(x), elementwise, with relative accuracy in the lower tail."""
    return _special.ndtr(x)


def log_cdf(x: float) -> float:
    """Log Phi(x), finite for every finite x."""
    return float(_special.log_ndtr(x))


def binomial_tail(count: Array, trials: int, probability: float) -> Array:
    """P[Binomial(trials, probability) > count], elementwise, rounded up."""
    return np.minimum(_special.bdtrc(count, trials, probability) * (1 + 1e-12), 1.0)
