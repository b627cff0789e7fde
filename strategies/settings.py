"""What every strategy of this application takes beside its algorithm."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from manifed.federation.cohorts import Cohort
from manifed.federation.replies import ReplyPolicy
from manifed.flower.privacy import Privacy
from manifed.privacy.noise import NoiseSource


class Settings(TypedDict, total=False):
    """Keyword arguments of `manifed.flower.strategy.ManifoldStrategy`; none has to be given."""

    num_examples: Sequence[int] | None
    """Public size of every client's shard; left out, those of ``privacy``."""
    privacy: Privacy | None
    budget: tuple[float, float] | None
    """(epsilon, delta): the draw that it does not pay ends the run."""
    ledger: str | Path | None
    """A file that is not there yet; it goes with ``privacy``."""
    num_rounds: int | None
    """For Flower's own loop, which does not say how many rounds there will be."""
    replies: ReplyPolicy | None
    source: NoiseSource | None
    """A seeded one in tests; left out, it is keyed by the operating system."""


class CohortSettings(Settings, total=False):
    """The same for an algorithm that does not need every client in every round."""

    cohort: Cohort | None
