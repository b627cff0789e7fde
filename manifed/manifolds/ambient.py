"""The flat space around a submanifold: nearest point, vectors in it, and how far it may be left.

Zhang, Hu, So, Johansson (2024), section 2: P_M(y) is a nearest point of M; M is r-proximally smooth
when it is the only one for dist(y, M) < r (Definition 2.2). The metric must be the ambient one.

Fixed-rank points are packed, their ambient space is that of the dense m x n matrices; everywhere
else points are ambient as they are.
"""

import math

from torch import Tensor

from manifed.manifolds.base import Manifold
from manifed.manifolds.euclidean import Euclidean
from manifed.manifolds.fixed_rank import FixedRank
from manifed.manifolds.grassmann import Grassmann
from manifed.manifolds.oblique import Oblique
from manifed.manifolds.rotations import SpecialOrthogonal
from manifed.manifolds.sphere import Sphere
from manifed.manifolds.stiefel import Stiefel


def reach(manifold: Manifold) -> float:
    """The constant of proximal smoothness: P_M is single valued at smaller distances.

    1 for Stiefel (paper, after Definition 2.2), and by the same argument for orthonormal bases of
    subspaces, spheres, oblique matrices and rotations; infinite for flat space. Fixed-rank matrices
    are not closed: the distance allowed is the smallest singular value, which no constant bounds;
    infinite is returned and nothing is checked.

    Raises:
        ValueError: for a manifold that is not a submanifold with the ambient metric.
    """
    match manifold:
        case Stiefel(metric="euclidean"):
            return 1.0
        case Sphere() | Grassmann() | Oblique() | SpecialOrthogonal():
            return 1.0
        case Euclidean() | FixedRank():
            return math.inf
        case _:
            raise ValueError(
                "Expected a submanifold with the metric of its ambient space (Stiefel with "
                "metric='euclidean', Grassmann, sphere, oblique, rotations, fixed rank, flat), got "
                f"{manifold!r}; use training.kind = 'rsgd' there"
            )


def nearest(manifold: Manifold, y: Tensor) -> Tensor:
    """P_M(y), the point of the manifold nearest to an ambient y."""
    return manifold.from_dense(y) if isinstance(manifold, FixedRank) else manifold.projx(y)


def ambient_point(manifold: Manifold, x: Tensor) -> Tensor:
    """The point as an element of the ambient space."""
    return manifold.dense(x) if isinstance(manifold, FixedRank) else x


def point_of(manifold: Manifold, y: Tensor) -> Tensor:
    """The point of the manifold that the ambient y, which lies on it, is."""
    return manifold.from_dense(y) if isinstance(manifold, FixedRank) else y


def ambient_vector(manifold: Manifold, x: Tensor, u: Tensor) -> Tensor:
    """The tangent vector u at x as an element of the ambient space."""
    return manifold.embed(x, u) if isinstance(manifold, FixedRank) else u
