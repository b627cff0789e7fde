"""The algorithms of the papers, one module each, imported when they are asked for."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manifed.algorithms.algorithm import Algorithm, ClientUpdate, ServerUpdate
    from manifed.algorithms.averaging import GeodesicAverage, ProjectorAverage
    from manifed.algorithms.decor import Decor
    from manifed.algorithms.gossip import Gossip
    from manifed.algorithms.growing_samples import GrowingSamples
    from manifed.algorithms.masked_mean import MaskedMean
    from manifed.algorithms.one_shot import LogEuclidean, NoisyGram, SecondMoment
    from manifed.algorithms.projected import Projected, ProjectedPartial
    from manifed.algorithms.rfedags import RFedAGS
    from manifed.algorithms.rfedprox import RFedProx
    from manifed.algorithms.rfedsvrg import RFedSVRG
    from manifed.algorithms.rsgd import RSGD, ScheduledRSGD
    from manifed.algorithms.rsvrg import RSVRG
    from manifed.algorithms.tangent_mean import TangentMean

__all__ = [
    "RSGD",
    "RSVRG",
    "Algorithm",
    "ClientUpdate",
    "Decor",
    "GeodesicAverage",
    "Gossip",
    "GrowingSamples",
    "LogEuclidean",
    "MaskedMean",
    "NoisyGram",
    "Projected",
    "ProjectedPartial",
    "ProjectorAverage",
    "RFedAGS",
    "RFedProx",
    "RFedSVRG",
    "ScheduledRSGD",
    "SecondMoment",
    "ServerUpdate",
    "TangentMean",
]

_HOME = {
    "Decor": "decor",
    "Gossip": "gossip",
    "GrowingSamples": "growing_samples",
    "MaskedMean": "masked_mean",
    "RFedAGS": "rfedags",
    "RFedProx": "rfedprox",
    "RFedSVRG": "rfedsvrg",
    "RSVRG": "rsvrg",
    "TangentMean": "tangent_mean",
    **dict.fromkeys(("Algorithm", "ClientUpdate", "ServerUpdate"), "algorithm"),
    **dict.fromkeys(("GeodesicAverage", "ProjectorAverage"), "averaging"),
    **dict.fromkeys(("LogEuclidean", "NoisyGram", "SecondMoment"), "one_shot"),
    **dict.fromkeys(("Projected", "ProjectedPartial"), "projected"),
    **dict.fromkeys(("RSGD", "ScheduledRSGD"), "rsgd"),
}


def __getattr__(name: str) -> object:
    """Imports an algorithm when it is asked for (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """The names that are imported when they are asked for."""
    return __all__
