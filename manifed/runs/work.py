"""What a round costs: matrices, bytes and phases on the wire, and calls of the geometry.

Zhang, Hu, So, Johansson (2024), section 5: the "communication quantity" is the number of d x k
matrices a client sends to the server. The calls are declared on the page of the algorithm, not
counted, so that nothing is counted while a run is timed; tests/runs/test_work.py counts them and
compares.

One thing is booked elsewhere than in the papers: a client sends the tangent vector log_x(x_i)
instead of x_i, so the n logarithms of the server's mean are made by the clients, one each.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from manifed.algorithms.interface import DeclaresServerWork
from manifed.algorithms.payloads import Payload
from manifed.experiment.plugins import is_plugin
from manifed.experiment.schema import Experiment, Training

_FLOAT64_BYTES = 8


def communication(training: Training, point_shape: tuple[int, ...]) -> dict[str, int]:
    """Matrices and bytes a client sends and gets in one round, and the phases they take."""
    up, down = (
        _entries([p.up for p in training.phases], point_shape),
        _entries([p.down for p in training.phases], point_shape),
    )
    point = math.prod(point_shape)
    return {
        "phases": len(training.phases),
        "matrices_up": up // point,
        "matrices_down": down // point,
        "bytes_up": up * _FLOAT64_BYTES,
        "bytes_down": down * _FLOAT64_BYTES,
    }


def _entries(payloads: Sequence[type[Payload]], point_shape: tuple[int, ...]) -> int:
    """The numbers in payloads of points of that shape."""
    layouts = (payload.layout(point_shape, torch.float64).values() for payload in payloads)
    return sum(math.prod(shape) for layout in layouts for shape, _ in layout)


def work_of(config: Experiment, point_shape: tuple[int, ...]) -> dict[str, Any]:
    """The account of one round, for the manifest; None for the calls of a plug-in."""
    training, server = config.training, config.server_update
    return {
        "communication_per_client": communication(training, point_shape),
        "client": None if is_plugin(training.kind) else asdict(training.client_work),
        "server": asdict(server.server_work) if isinstance(server, DeclaresServerWork) else None,
    }
