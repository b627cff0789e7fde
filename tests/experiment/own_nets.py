"""A module of one's own, as a package outside the library would hold it."""

import geoopt
import torch
from torch import nn

FACTORY = "tests.experiment.own_nets:orthogonal"


class Orthogonal(nn.Module):
    """Columns of a frame, a nonlinearity, a linear head."""

    def __init__(self, width, hidden, classes):
        super().__init__()
        frame = torch.linalg.qr(torch.randn(width, hidden, dtype=torch.float64))[0]
        self.frame = geoopt.ManifoldParameter(frame, manifold=geoopt.EuclideanStiefel())
        self.head = nn.Linear(hidden, classes)

    def forward(self, feature):
        return self.head(torch.tanh(feature @ self.frame))


def orthogonal():
    return Orthogonal(64, 4, 10)


def broken():
    raise KeyError("weights")


def number():
    return 7
