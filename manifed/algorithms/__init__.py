"""The algorithms of the papers, one module each, imported when they are asked for."""

from typing import TYPE_CHECKING

from manifed.lazy import lazily

if TYPE_CHECKING:
    from manifed.algorithms.algorithm import Algorithm, ClientUpdate, ServerUpdate
    from manifed.algorithms.averaging import GeodesicAverage, ProjectorAverage
    from manifed.algorithms.decor import Decor
    from manifed.algorithms.gossip import Gossip
    from manifed.algorithms.growing_samples import GrowingSamples
    from manifed.algorithms.measured_steps import MeasuredSteps
    from manifed.algorithms.one_shot import LogEuclidean, SecondMoment
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
    "MeasuredSteps",
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

__getattr__, __dir__ = lazily(
    __name__,
    {
        "algorithm": ["Algorithm", "ClientUpdate", "ServerUpdate"],
        "averaging": ["GeodesicAverage", "ProjectorAverage"],
        "decor": ["Decor"],
        "gossip": ["Gossip"],
        "growing_samples": ["GrowingSamples"],
        "measured_steps": ["MeasuredSteps"],
        "one_shot": ["LogEuclidean", "SecondMoment"],
        "projected": ["Projected", "ProjectedPartial"],
        "rfedags": ["RFedAGS"],
        "rfedprox": ["RFedProx"],
        "rfedsvrg": ["RFedSVRG"],
        "rsgd": ["RSGD", "ScheduledRSGD"],
        "rsvrg": ["RSVRG"],
        "tangent_mean": ["TangentMean"],
    },
)
