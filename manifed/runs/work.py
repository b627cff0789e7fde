"""What a round costs: matrices, bytes and phases on the wire, and calls of the geometry.

Zhang, Hu, So, Johansson (2024), section 5: the "communication quantity" is the number of d x k
matrices a client sends to the server. The calls are declared, not counted, so that nothing is
counted while a run is timed; tests/runs/test_work.py counts them and compares.

One thing is booked elsewhere than in the papers: a client sends the tangent vector log_x(x_i)
instead of x_i, so the n logarithms of the server's mean are made by the clients, one each.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from manifed.algorithms.interface import ServerUpdate
from manifed.algorithms.projected import Projected, ProjectedPartial
from manifed.algorithms.rfedprox import RFedProx
from manifed.algorithms.rfedsvrg import RFedSVRG
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.rsvrg import RSVRG
from manifed.algorithms.tangent_mean import TangentMean
from manifed.experiment.plugins import is_plugin
from manifed.experiment.schema import Experiment, Training
from manifed.manifolds.maps import MapChoice

_FLOAT64_BYTES = 8


@dataclass(frozen=True)
class Work:
    """Calls in one round; ``gradients`` are oracle queries (a minibatch mean counts once)."""

    gradients: int = 0
    projections: int = 0
    exponentials: int = 0
    logarithms: int = 0
    retractions: int = 0
    inverse_retractions: int = 0
    transports: int = 0


def _moves(maps: MapChoice, forward: int, inverse: int, **others: int) -> Work:
    if maps == "exact":
        return Work(exponentials=forward, logarithms=inverse, **others)
    return Work(retractions=forward, inverse_retractions=inverse, **others)


def client_work(training: Training) -> Work:
    """Calls of one client in one round, over all phases (table of spec 001, section 5)."""
    match training:
        case Projected(local_steps=steps) | ProjectedPartial(local_steps=steps):
            return Work(gradients=steps, projections=steps)
        case RSGD(local_steps=steps):
            inverse = 2 if training.output == "random-output" else 1
            return _moves(training.maps, steps, inverse, gradients=steps)
        case RFedProx(local_steps=steps):
            pulls = steps - 1 if training.penalty == "geodesic" else 0
            return _moves(training.maps, steps, pulls + 1, gradients=steps)
        case RFedSVRG(local_steps=steps):
            gradients = steps if training.reuses_reference else steps + 1
            return _moves(training.maps, steps, 1, gradients=gradients, transports=steps - 1)
        case RSVRG():
            steps = training.epochs * training.inner_steps
            inverse = 2 if training.output == "random-output" else 1
            queries = training.epochs + steps
            return _moves("exact", steps, inverse, gradients=queries, transports=2 * steps)


def server_work(strategy: ServerUpdate) -> Work:
    """Calls of the server in one round, whatever the number of clients."""
    match strategy:
        case TangentMean() | RFedSVRG():
            return _moves(strategy.maps or "exact", 1, 0)
        case _:
            return Work(projections=1)


def communication(training: Training, point_shape: tuple[int, ...]) -> dict[str, int]:
    """Matrices and bytes a client sends and gets in one round, and the phases they take."""
    up = sum(len(phase.up.names()) for phase in training.phases)
    down = sum(len(phase.down.names()) for phase in training.phases)
    size = math.prod(point_shape) * _FLOAT64_BYTES
    return {
        "phases": len(training.phases),
        "matrices_up": up,
        "matrices_down": down,
        "bytes_up": up * size,
        "bytes_down": down * size,
    }


def work_of(config: Experiment, point_shape: tuple[int, ...]) -> dict[str, Any]:
    """The account of one round, for the manifest; None for the calls of a plug-in."""
    training, server = config.training, config.server_update
    return {
        "communication_per_client": communication(training, point_shape),
        "client": None if is_plugin(training.kind) else asdict(client_work(training)),
        "server": None if is_plugin(server.kind) else asdict(server_work(server)),
    }
