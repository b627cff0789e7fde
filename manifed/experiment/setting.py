"""What of an experiment decides its mechanisms, its draws and its price."""

from typing import Protocol

from manifed.algorithms.interface import ClientUpdate, ServerUpdate
from manifed.experiment.schema import (
    AnyEvaluation,
    ClientLevel,
    CorrelatedNoise,
    Engine,
    ExampleLevel,
    Federation,
    NoPrivacy,
)


class Setting(Protocol):
    """Hashable; an `Experiment` is one, and so are the arguments of `manifed.fit`."""

    @property
    def federation(self) -> Federation:
        """Who takes part, how often."""
        ...

    @property
    def training(self) -> ClientUpdate:
        """What clients run."""
        ...

    @property
    def server_update(self) -> ServerUpdate:
        """What the server runs."""
        ...

    @property
    def privacy(self) -> NoPrivacy | ExampleLevel | ClientLevel | CorrelatedNoise:
        """Who is protected, and how."""
        ...

    @property
    def evaluation(self) -> AnyEvaluation:
        """How models are judged."""
        ...

    @property
    def is_at_sites(self) -> bool:
        """Whether every site has its data at home, so that N_i is declared and not counted."""
        ...

    @property
    def has_all_data(self) -> bool:
        """Whether this process could read the data of everybody."""
        ...

    @property
    def engine(self) -> Engine:
        """Where it runs."""
        ...
