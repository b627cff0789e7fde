"""A network with a parameter on every kind of manifold that a module may hold."""

import geoopt
import torch
from torch import Tensor, nn


class ManyManifolds(nn.Module):
    """Digits through two frames, a direction and an SPD form; scores by hyperbolic distances."""

    def __init__(self) -> None:
        super().__init__()
        first, second = (
            torch.linalg.qr(torch.randn(*shape, dtype=torch.float64))[0]
            for shape in ((64, 8), (64, 8))
        )
        self.euclidean = geoopt.ManifoldParameter(first, manifold=geoopt.EuclideanStiefel())
        canonical = geoopt.CanonicalStiefel()  # noqa: TID251 - what users have
        self.canonical = geoopt.ManifoldParameter(second, manifold=canonical)
        direction = nn.functional.normalize(torch.randn(8, dtype=torch.float64), dim=0)
        self.direction = geoopt.ManifoldParameter(
            direction, manifold=geoopt.Scaled(geoopt.Sphere(), 2.0)
        )
        self.form = geoopt.ManifoldParameter(
            torch.eye(8, dtype=torch.float64), manifold=geoopt.SymmetricPositiveDefinite()
        )
        ball = geoopt.PoincareBall()
        self.ball = geoopt.ManifoldParameter(
            0.1 * torch.randn(10, 8, dtype=torch.float64), manifold=ball
        )
        lorentz = geoopt.Lorentz()
        flat = 0.1 * torch.randn(10, 8, dtype=torch.float64)
        time = (1 + flat.square().sum(-1, keepdim=True)).sqrt()
        self.lorentz = geoopt.ManifoldParameter(torch.cat([time, flat], -1), manifold=lorentz)
        self.head = nn.Linear(16, 10)

    def forward(self, feature: Tensor) -> Tensor:
        hidden = torch.tanh(feature @ self.euclidean) @ self.form
        other = torch.tanh(feature @ self.canonical) + self.direction
        near = hidden @ self.ball.mT + other @ self.lorentz[:, 1:].mT - self.lorentz[:, 0]
        return near + self.head(torch.cat([hidden, other], -1))


def network() -> nn.Module:
    return ManyManifolds()
