"""Federated and decentralised learning on Riemannian manifolds with differential privacy."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if sys.platform == "win32":
    raise ImportError("manifed runs on Linux, got Windows: use its Linux subsystem (WSL 2)")

if TYPE_CHECKING:
    from manifed.algorithms.algorithm import Algorithm
    from manifed.federation.exchange import ReplyPolicy
    from manifed.oracles.minibatch import Ask
    from manifed.runs.fit import Result, Round, federate, fit
    from manifed.setting import ClientLevel, ExampleLevel, Multiplier, Target

__all__ = [
    "Algorithm",
    "Ask",
    "ClientLevel",
    "ExampleLevel",
    "Multiplier",
    "ReplyPolicy",
    "Result",
    "Round",
    "Target",
    "federate",
    "fit",
]

_HOME = {
    "Algorithm": "algorithms.algorithm",
    "Ask": "oracles.minibatch",
    "ReplyPolicy": "federation.exchange",
    **dict.fromkeys(("ClientLevel", "ExampleLevel", "Multiplier", "Target"), "setting"),
    **dict.fromkeys(("Result", "Round", "federate", "fit"), "runs.fit"),
}


def __getattr__(name: str) -> object:
    """Import what is asked for, when it is asked for (PEP 562): torch takes a second."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
