"""Federated and decentralised learning on Riemannian manifolds with differential privacy."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if sys.platform == "win32":
    raise ImportError("manifed runs on Linux, got Windows: use its Linux subsystem (WSL 2)")

if TYPE_CHECKING:
    from manifed import algorithms, layers, manifolds, problems
    from manifed.algorithms.algorithm import Algorithm
    from manifed.federation.exchange import ReplyPolicy
    from manifed.oracles.minibatch import Ask
    from manifed.runs.fit import Result, Round, federate, fit, fit_module
    from manifed.setting import ClientLevel, ExampleLevel, Multiplier, Target

    __version__: str

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
    "algorithms",
    "federate",
    "fit",
    "fit_module",
    "layers",
    "manifolds",
    "problems",
]

_HOME = {
    "Algorithm": "algorithms.algorithm",
    "Ask": "oracles.minibatch",
    "ReplyPolicy": "federation.exchange",
    **dict.fromkeys(("ClientLevel", "ExampleLevel", "Multiplier", "Target"), "setting"),
    **dict.fromkeys(("Result", "Round", "federate", "fit", "fit_module"), "runs.fit"),
}


def __getattr__(name: str) -> object:
    """Import what is asked for, when it is asked for (PEP 562): torch takes a second."""
    if name == "__version__":
        return import_module("importlib.metadata").version(__name__)
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The names that a person uses, imported or not."""
    return [*__all__, "__version__"]
