"""This application's Flower strategies; a wheel has them as `manifed.flower.strategies`.

Under either name a module is one object: this package enters those of the library.
"""

from manifed.flower import enter_as
from manifed.lazy import lazily

enter_as(__name__)
__getattr__, __dir__ = lazily(
    __name__,
    {
        "any_update": ["AnyUpdate"],
        "control_variates": ["ControlVariates"],
        "gossip": ["Gossip"],
        "projection_mean": ["ProjectionMean"],
        "secure_mean": ["SecureMean"],
        "tangent_mean": ["TangentMean"],
    },
)
