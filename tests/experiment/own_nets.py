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


def three_to_two():
    return nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2))


def mixing():
    return nn.Sequential(nn.Linear(64, 10), nn.BatchNorm1d(10))


def broken():
    raise KeyError("weights")


def number():
    return 7


def hinge(output, label):
    sign = 2.0 * (torch.arange(output.shape[-1]) == label[:, None]) - 1
    return nn.functional.relu(1 - sign * output).sum(-1).mean()
