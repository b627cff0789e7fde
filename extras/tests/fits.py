"""A private fit of two clients on the sphere, and what one Gaussian release costs."""

import manifed
from manifed.manifolds.sphere import Sphere
from manifed.privacy import epsilon_bounds
from manifed.privacy.events import Release
from manifed.problems.frechet import FrechetMean
from tests.conformance.manifold_cases import normals

DELTA = 1e-3
CLIENT_LEVEL = (
    "privacy={kind='client-level',l2_norm_clip=0.05,delta=0.01,"
    "noise={kind='multiplier',noise_multiplier=2.0}}"
)


def rows_of(*sizes, seed=0):
    """Rows of unit length, (size, 4) each."""
    return [Sphere().projx(normals(seed + k, n, 4)) for k, n in enumerate(sizes)]


def fit(update, noise, **changes):
    """Of clients with 40 and 30 examples; ``noise`` is a multiplier or a target."""
    noise = manifed.Multiplier(noise_multiplier=noise) if isinstance(noise, float) else noise
    level = manifed.ExampleLevel(l2_norm_clip=1.0, noise=noise, delta=DELTA)
    settings = {"privacy": level, **changes}
    return manifed.fit(FrechetMean(Sphere()), rows_of(40, 30), update, **settings)


def epsilon_of(mu):
    """Of one Gaussian release."""
    release = Release(unit="example", neighboring_relation="add-or-remove", noise_multiplier=1 / mu)
    return epsilon_bounds.epsilon([release], DELTA)
