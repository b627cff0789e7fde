"""Federated and decentralised learning on Riemannian manifolds with differential privacy."""

import sys
from typing import TYPE_CHECKING

from manifed.lazy import lazily

if sys.platform == "win32":
    raise ImportError("manifed runs on Linux, got Windows: use its Linux subsystem (WSL 2)")

if TYPE_CHECKING:
    from manifed import algorithms, callbacks, layers, manifolds, problems
    from manifed.algorithms.algorithm import Algorithm
    from manifed.federation.exchange import ReplyPolicy
    from manifed.federation.held_out import PrivateEvaluation
    from manifed.oracles.minibatch import Ask
    from manifed.runs.fit import Result, Round, federate, fit, fit_module
    from manifed.setting import ClientLevel, ExampleLevel, Multiplier, SecureSum, Target

    __version__: str

__all__ = [
    "Algorithm",
    "Ask",
    "ClientLevel",
    "ExampleLevel",
    "Multiplier",
    "PrivateEvaluation",
    "ReplyPolicy",
    "Result",
    "Round",
    "SecureSum",
    "Target",
    "algorithms",
    "callbacks",
    "federate",
    "fit",
    "fit_module",
    "layers",
    "manifolds",
    "problems",
]

_get, _ = lazily(
    __name__,
    {
        "algorithms": (),
        "algorithms.algorithm": ["Algorithm"],
        "callbacks": (),
        "federation.exchange": ["ReplyPolicy"],
        "federation.held_out": ["PrivateEvaluation"],
        "layers": (),
        "manifolds": (),
        "oracles.minibatch": ["Ask"],
        "problems": (),
        "runs.fit": ["Result", "Round", "federate", "fit", "fit_module"],
        "setting": ["ClientLevel", "ExampleLevel", "Multiplier", "SecureSum", "Target"],
    },
)


def __getattr__(name: str) -> object:
    """Imports what is asked for, when it is asked for: torch takes a second."""
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    return _get(name)


def __dir__() -> list[str]:
    """The names that a person uses, imported or not."""
    return [*__all__, "__version__"]
