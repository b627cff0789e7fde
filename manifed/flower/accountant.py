"""Flower's protocol `PrivacyAccountant`, answered by this library's accountant and its ledger.

Flower's own differential privacy wrappers take it in one line:

    DifferentialPrivacyServerSideFixedClipping(
        FedAvg(), 2.0, 1.0, 10, accountant=Accountant(config, ledger="ledger.jsonl"))

Guarantee: when `Accountant.compose` returns, the line that pays for the release is on disk, and the
epsilon is what ``manifed privacy ledger`` prints for the file. The noise is drawn by Flower, from
numpy's global generator, so the ledger's label stays "unknown".
"""

import math
from bisect import bisect_left
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.serverapp import GaussianPrivacyEvent, PrivacyAccountant, PrivacyConfig, PrivacySpent

from manifed.fields import Document
from manifed.privacy.events import (
    CLIENT_LEVEL,
    PoissonSampled,
    SampledWithoutReplacement,
    Sampling,
    Unsampled,
)
from manifed.privacy.foreign import of_clients
from manifed.privacy.ledger import Entry, Ledger, Reserves, ledger_key
from manifed.privacy.odometer import Odometer
from manifed.privacy.tariff import Terms

_FINEST = 2500
"""How many values of delta `Accountant.get_delta` tells apart in a factor of ten: 0.1 % each."""


class Accountant:
    """A `PrivacyAccountant` of Flower with this library's bounds and, if asked, a ledger."""

    def __init__(
        self, config: PrivacyConfig, *, ledger: Path | str | None = None, halve: bool = True
    ) -> None:
        """Opens the accountant; all that an existing ledger holds counts as spent.

        Args:
            config: Flower's own, with the default delta and the largest epsilon.
            ledger: file to create, or to go on with. A last line that a crash tore is dropped: the
                release that it pays for had not left.
            halve: whether sampling without replacement takes half of the multiplier, because
                Flower's wrappers scale noise to the clip and replacing a client moves a mean by
                twice the clip. False for events that are scaled to it already.

        Raises:
            LedgerDamaged: as `Ledger.recover`.
        """
        self.config = config
        self._halve = halve
        self._made: list[Document] = []
        self._odometer = Odometer()
        self._odometer.declare(Terms(population=config.population_size))
        self.ledger: Ledger | None = None
        """None without one; its ``close`` releases the lock."""
        if ledger:
            path = Path(ledger)
            key = ledger_key()
            if not path.exists():
                Ledger.create(path, self.state_dict(), key=key).close()
            self.ledger = Ledger.recover(path, key=key, feed=self._take)

    @property
    def num_releases(self) -> int:
        """The number of releases that were composed."""
        return self._odometer.rounds_counted

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Counts ``count`` releases; when it returns, their line is on disk.

        Raises:
            ValueError: for an event of another population, or a count below 1.
            OSError: as `Ledger.append`.
        """
        entry = self._entry(event, count)
        self._odometer.after(entry)  # refuses what cannot be counted before anything is written
        self._take(self.ledger.append(entry) if self.ledger else entry)

    def get_epsilon(self, delta: float) -> float:
        """Returns epsilon of all releases at ``delta``."""
        return self._odometer.epsilon(CLIENT_LEVEL, delta)

    def get_delta(self, epsilon: float) -> float:
        """Returns a delta at which ``epsilon`` holds, at most 0.1 % above the least one."""

        def exceeds(k: int) -> bool:
            return self.get_epsilon(10 ** (-k / _FINEST)) > epsilon

        return 10.0 ** ((1 - bisect_left(range(300 * _FINEST), x=True, key=exceeds)) / _FINEST)

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """Returns what was spent at ``delta``, or at the config's."""
        at = delta or self.config.target_delta
        return PrivacySpent(self.get_epsilon(at), at, self.num_releases, "manifed")

    def would_exceed(
        self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1
    ) -> bool:
        """Whether so many releases more would exceed the limit, if any; nothing is counted."""
        after = self._odometer.after(self._entry(event, count))
        limit = max_epsilon or self.config.max_epsilon or math.inf
        return after.epsilon(CLIENT_LEVEL, self.config.target_delta) > limit

    def state_dict(self) -> Document:
        """Returns the state as JSON holds it."""
        return {
            "schema_version": 1,
            "backend": "manifed",
            "config": asdict(self.config),
            "halve": self._halve,
            "compositions": [*self._made],
        }

    def load_state_dict(self, state: Document) -> None:
        """Restores a state; with a ledger, which alone counts, it is only compared.

        Raises:
            ValueError: for the state of another backend, schema or config, and for one with more
                releases than the ledger.
            KeyError, TypeError: for what is no state.
        """
        fresh = Accountant(self.config, halve=self._halve)
        if {**state, "compositions": []} != fresh.state_dict():
            raise ValueError(f"state: expected one like {fresh.state_dict()}, got another")
        for one in state["compositions"]:
            fresh.compose(GaussianPrivacyEvent(**one["event"]), one["count"])
        if self.ledger is None:
            self._made = fresh._made
            self._odometer = fresh._odometer
        elif fresh.num_releases > self.num_releases:
            raise ValueError(
                f"state: expected at most the {self.num_releases} releases of the ledger, got "
                f"{fresh.num_releases}; give the ledger of that run"
            )

    def _entry(self, event: GaussianPrivacyEvent, count: int) -> Entry:
        """The line that pays for so many releases."""
        m = event.sample_size
        n = event.population_size
        samplings: dict[str, Sampling] = {
            "no-amplification": Unsampled(),
            "poisson": PoissonSampled(sampling_probability=m / n),
            "without-replacement": SampledWithoutReplacement(sample_size=m, population=n),
        }
        method = self.config.sampling_method.value
        is_halved = self._halve and method == "without-replacement"
        release = of_clients(event.noise_multiplier / (1 + is_halved), samplings[method])
        first = self.num_releases + 1
        return Entry(
            terms=Terms(population=n, aggregate=(release,)),
            reserves=Reserves(first=first, last=first + count - 1, cohort=f"0-{n - 1}"),
            said={"event": asdict(event), "count": count},
        )

    def _take(self, entry: Entry) -> None:
        """Count an entry that is on disk, or that no ledger takes."""
        self._odometer = self._odometer.after(entry)
        if entry.reserves:
            self._made.append(dict(entry.said))


if TYPE_CHECKING:
    _: type[PrivacyAccountant] = Accountant
