r"""The private Fréchet mean of a flat metric: one Gaussian release, in closed form.

Where a chart phi makes the manifold a vector space (log-Euclidean and log-Cholesky metrics on SPD
matrices) the Fréchet mean of z_1, ..., z_n is Exp_x((1/n) sum_j Log_x z_j) for *every* x. With a
public centre x and logarithms clipped to a bound C in the metric at x,

    u = (1/n) sum_j clip_C(Log_x z_j) + N_x(0, sigma^2),    mean = Exp_x(u)

has sensitivity C/n (add-or-remove, n public) or 2C/n (replace-one), whatever x; the price is the
Gaussian mechanism's, exactly. No iteration, no bias but that of the clip.

It is also one step of DP-RGD: `RSGD(step_size=1/2, minibatch=Full())` on f_j = dist^2, whose
gradients -2 Log_x z_j are clipped to 2C. A federation runs that and this is its law.
"""

from dataclasses import dataclass

from pydantic import Field
from torch import Tensor

from clients.clipped_sums import clip_each, sum_of_good
from clients.draws import Draws
from manifolds.base import Manifold
from manifolds.euclidean import Euclidean
from manifolds.spd_flat import SPDLogCholesky, SPDLogEuclidean
from privacy.events import Frozen, GaussianRelease, NeighboringRelation
from privacy.noise import Stream
from problems.base import Examples


@dataclass(frozen=True)
class _ClippedLogs:
    """clip_C(Log_x z_j)."""

    manifold: Manifold
    clip: float

    def __call__(self, points: tuple[Tensor, ...], examples: Examples, weights: Tensor) -> Tensor:
        (x,) = points
        axis = -1 - self.manifold.ndim
        base = x.unsqueeze(axis)
        logs = clip_each(self.manifold, base, self.manifold.logmap(base, examples["z"]), self.clip)
        total = (self.manifold.expand_scalar(weights) * logs).sum(axis)
        return self.manifold.tangent_part(x, total)


class FlatMean(Frozen):
    """The clipped and noised mean of the logarithms at a public centre."""

    l2_norm_clip: float = Field(gt=0)
    """C: the bound of dist(centre, z_j), in the metric."""
    noise_multiplier: float = Field(ge=0)
    neighboring_relation: NeighboringRelation = "add-or-remove"

    def sensitivity(self, num_examples: int) -> float:
        """L2 change of the mean logarithm when one example changes."""
        change = 1.0 if self.neighboring_relation == "add-or-remove" else 2.0
        return change * self.l2_norm_clip / num_examples

    def stddev(self, num_examples: int) -> float:
        """Sigma, per metric-orthonormal coordinate."""
        return self.noise_multiplier * self.sensitivity(num_examples)

    def release(self) -> GaussianRelease:
        """The event: mu-GDP with mu = 1 / noise_multiplier."""
        return GaussianRelease(
            unit="example",
            neighboring_relation=self.neighboring_relation,
            noise_multiplier=self.noise_multiplier,
            label="mean",
        )

    def clipped_mean(self, centre: Tensor, points: Tensor, manifold: Manifold) -> Tensor:
        """(1/n) sum_j clip_C(Log_x z_j) for points ``(..., n, *point)``, tangent at the centre."""
        check_flat(manifold)
        examples = Examples({"z": points}, {"z": manifold.ndim})
        lead = points.shape[: points.dim() - manifold.ndim]
        weights = points.new_full(lead, 1.0 / len(examples))
        at = centre
        if len(lead) > 1:
            at = centre.expand(*lead[:-1], *centre.shape[centre.dim() - manifold.ndim :])
        return sum_of_good(_ClippedLogs(manifold, self.l2_norm_clip), (at,), examples, weights)

    def estimate(self, centre: Tensor, points: Tensor, manifold: Manifold, draws: Draws) -> Tensor:
        """The private mean, a point; ``centre`` (..., *point) must not depend on the points.

        Guarantees: mu-GDP about one example for mu = 1 / noise_multiplier, whatever the points hold
        (a logarithm that fails or is not finite counts as zero).

        Raises:
            ValueError: for a metric that is not known to be flat.
        """
        u = self.clipped_mean(centre, points, manifold)
        shape = tuple(centre.shape[centre.dim() - manifold.ndim :])
        normals = draws.normals(manifold.coords_shape(shape), Stream.GRADIENT_NOISE, 0)
        num_examples = points.shape[points.dim() - manifold.ndim - 1]
        noise = self.stddev(num_examples) * manifold.from_coords(centre, normals)
        return manifold.expmap(centre, u + noise)


def check_flat(manifold: Manifold) -> None:
    """Refuse a manifold on which the mean of logarithms depends on where they are taken.

    Raises:
        ValueError: naming the manifolds that are flat.
    """
    if not isinstance(manifold, Euclidean | SPDLogEuclidean | SPDLogCholesky):
        raise ValueError(
            f"Expected a flat metric (Euclidean, SPDLogEuclidean, SPDLogCholesky), got "
            f"{manifold.name}; use training.kind = 'rsgd' there"
        )
