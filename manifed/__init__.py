"""Federated and decentralised learning on Riemannian manifolds with differential privacy."""

from importlib import import_module
from typing import TYPE_CHECKING

from manifed.deferred import defer

if TYPE_CHECKING:
    from manifed.door import fit
    from manifed.experiment.schema import ClientLevel, ExampleLevel, Multiplier, Target
    from manifed.federation.replies import ReplyPolicy
    from manifed.runs.fit import federate
    from manifed.runs.result import Result, Round

__all__ = [
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

defer("geoopt", ("optim", "samplers", "manifolds.lorentz.math", "manifolds.stereographic.math"))

_HOME = {
    "ReplyPolicy": "federation.replies",
    **dict.fromkeys(("ClientLevel", "ExampleLevel", "Multiplier", "Target"), "experiment.schema"),
    **dict.fromkeys(("Result", "Round"), "runs.result"),
    "federate": "runs.fit",
    "fit": "door",
}


def __getattr__(name: str) -> object:
    """Import what is asked for, when it is asked for (PEP 562): torch takes a second."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
