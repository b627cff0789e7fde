"""Reading a run's message log as an eavesdropper does who knows everything but the noise.

Who knows all data computes every clean gradient from the models on the wire. What is left of a
message, x_i^(t) - x_i^(t+1/2) over the step less that gradient, must be a fresh Gaussian of
variance sigma_cdp^2 + deg(i) sigma_cor^2 in every coordinate. Two sums of squares follow
chi-square laws then: of what is left, and of its change from one round to the next. A message
without masks, with less noise, or with masks that were there before is far outside.

Source: Allouah et al. (DECOR), eq. (3); spec 004, H25.
"""

from dataclasses import dataclass

import torch
from scipy.stats import chi2
from torch import Tensor

FALSE_POSITIVE = 1e-6
"""Of one node's reading."""


@dataclass(frozen=True)
class Heard:
    """One round as the server relays it: each node's model and its half step, (n, d)."""

    had: Tensor
    sent: Tensor
    step_size: float


@dataclass(frozen=True)
class Reading:
    """What the log says of one node's noise."""

    node: int
    level: float
    """Mean square of what is left of its messages, over what the mechanism says."""
    change: float
    """The same of the difference of two rounds."""
    lowest: tuple[float, float]
    highest: tuple[float, float]
    """Bands of both, by their exact laws."""

    @property
    def is_as_charged(self):
        """Whether nothing tells these messages from freshly masked ones."""
        return all(
            low <= value <= high
            for low, value, high in zip(
                self.lowest, (self.level, self.change), self.highest, strict=True
            )
        )


def read(
    log,
    gradients,
    graph,
    noise,
):
    """Of every node, of two rounds or more; ``gradients`` gives the clean ones, clipped."""
    left = torch.stack([
        (heard.had - heard.sent) / heard.step_size - gradients(heard.had) for heard in log
    ])  # fmt: skip
    rounds, _, d = left.shape
    pairs = left[: rounds - rounds % 2].reshape(rounds // 2, 2, *left.shape[1:])
    moved = (pairs[:, 0] - pairs[:, 1]) / 2**0.5
    bands = [_band(len(each) * d) for each in (left, moved)]
    found = []
    for i in range(graph.num_nodes):
        variance = noise.sigma_cdp**2 + graph.degrees[i] * noise.sigma_cor**2
        level, change = (
            float(each[:, i].square().mean()) / variance for each in (left, moved)
        )  # fmt: skip
        low, high = zip(*bands, strict=True)
        found.append(Reading(i, level, change, low, high))
    return tuple(found)


def _band(degrees):
    """Between which a mean of so many squared standard normals lies; half the rate for each."""
    each = FALSE_POSITIVE / 4
    return float(chi2.ppf(each, degrees) / degrees), float(chi2.isf(each, degrees) / degrees)
