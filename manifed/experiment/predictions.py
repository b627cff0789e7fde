r"""What a method's answer will cost, from public numbers alone: principal components under noise.

Symbols: l_1 >= ... >= l_d the spectrum of the second moment A (a public guess), k components; the
gap is (f(x) - f*) / |f*|, where f = -tr(X^T A X) up to a constant factor. For i <= k < j let
g_ij = l_i - l_j and t_ij^2 the squared tangent of the angle by which direction j leaks into
component i; then the gap is sum_ij g_ij t_ij^2 / (1 + sum_j t_ij^2) / sum_i l_i, and a component
that is lost altogether counts as a typical direction beyond k.

* One noised second moment, A + E with E_ij of variance s^2 / 2 beside the diagonal: first-order
  perturbation gives t_ij = E_ij / g_ij. sum_j t_ij^2 is the squared sine up to the noise at which
  the component drowns (the transition of a spiked matrix, Baik, Ben Arous, Peche 2005).
* T steps of size eta along gradients with noise of standard deviation t in every tangent
  coordinate: linearised at the optimum with curvatures h_ij = c g_ij, c = 2 for an eigenvector of
  -x^T A x and 1 for -1/2 tr(X^T A X), the start decays as a power iteration, by (1 + eta h)^-T, and
  noise settles at eta^2 t^2 (1 - r^{2T}) / (1 - r^2), r = 1 - eta h. A random start has
  t_ij = z_j / z_i for independent normals; the mean over z_i is taken, because the few starts that
  lie almost across the component decide it.

These are predictions of means. They are as good as the guess: docs/choosing.md has the measured
gaps beside them.
"""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_STARTS = tuple(NormalDist().inv_cdf(1 - (n + 0.5) / 100) for n in range(50))
"""|z_i| of starts that are equally likely."""


@dataclass(frozen=True)
class Spectrum:
    """Public guess: row moments of trace ``trace`` with eigenvalues falling as i^-decay."""

    dimension: int
    components: int
    trace: float
    decay: float

    @property
    def values(self) -> Array:
        """l_1 >= ... >= l_d, shape (d,)."""
        powers = np.arange(1, self.dimension + 1, dtype=np.float64) ** -self.decay
        return self.trace * powers / powers.sum()

    @property
    def gaps(self) -> Array:
        """l_i - l_j for i <= k < j, shape (k, d - k)."""
        values = self.values
        return values[: self.components, None] - values[None, self.components :]

    @property
    def best(self) -> float:
        """sum_{i<=k} l_i."""
        return float(self.values[: self.components].sum())


def one_shot_gap(spectrum: Spectrum, stddev: float) -> float:
    """Of the leading eigenvectors of A + E, E with this deviation in coordinates of Sym(d)."""
    gaps = spectrum.gaps
    leaks = stddev**2 / 2 / gaps**2
    total = leaks.sum(1, keepdims=True)
    return float((gaps * leaks / np.maximum(total, 1.0)).sum()) / spectrum.best


def descent_gap(
    spectrum: Spectrum, stddev: float, step_size: float, num_rounds: int, curvature: float
) -> float:
    """Of so many steps along gradients with this deviation in every tangent coordinate."""
    gaps = spectrum.gaps
    bend = step_size * curvature * gaps
    shrink = (1 - bend) ** 2
    if bool((shrink >= 1).any()):
        return float("inf")
    settled = (step_size * stddev) ** 2 * (1 - shrink**num_rounds) / (1 - shrink)
    decay = (1 + bend) ** (-2.0 * num_rounds)
    means: list[float] = []
    for z in _STARTS:
        leaks = decay / z**2 + settled
        means.append(float((gaps * leaks / (1 + leaks.sum(1, keepdims=True))).sum()))
    return float(np.mean(means)) / spectrum.best
