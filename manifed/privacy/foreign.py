"""What the privacy settings of other libraries really buy.

`Local`, `Fixed` and `Adaptive` are the settings of Flower 1.41's mod and wrappers, and of platforms
that copy their formulas. Neighbours are zero-out (a client's update is replaced by none) or any two
(by that of any other data).

>>> settings = {"clipping_norm": 1.0, "sensitivity": 1e-4, "epsilon": 10.0, "delta": 1e-5}
>>> {name: f"{spent:.3g}" for name, spent in Local(**settings).prices().items()}
{'zero-out': '2.13e+08', 'any two': '8.52e+08'}
"""

import math
from typing import Literal

from pydantic import model_validator

from manifed.fields import Fraction, Frozen, NonNegative, Positive, PositiveCount, Probability
from manifed.privacy.composition import gaussian_epsilon
from manifed.privacy.epsilon_bounds import epsilon, least_multiplier
from manifed.privacy.events import (
    EXTERNAL,
    SERVER,
    PoissonSampled,
    Release,
    SampledWithoutReplacement,
    Sampling,
    repeated,
)
from manifed.privacy.odometer import Odometer
from manifed.privacy.statement import Promise
from manifed.privacy.tariff import ClientReleases, Tariff, Terms


def of_clients(z: float, sampling: Sampling, rounds: int = 1) -> Release:
    """Makes the release of whole clients under the relation that their sampling is priced by."""
    is_subset = isinstance(sampling, SampledWithoutReplacement)
    return Release(
        unit="client",
        neighboring_relation="replace-one" if is_subset else "add-or-remove",
        noise_multiplier=z,
        sampling=sampling,
        count=rounds,
    )


class Run(Frozen):
    """The settings of a run, beside those of what adds its noise."""

    num_rounds: PositiveCount = 1
    delta: Fraction = 1e-5

    @property
    def mus(self) -> tuple[float, float]:
        """What a client moves over the noise in one round: zero-out, and any two data sets."""
        return math.inf, math.inf

    def prices(self) -> dict[str, float]:
        """Returns epsilon of all rounds by neighbours, against who knows the cohorts."""
        made = zip(("zero-out", "any two"), self.mus, strict=True)
        root = math.sqrt(self.num_rounds)
        return {name: gaussian_epsilon(self.delta, mu=root * mu) for name, mu in made}

    def hidden(self) -> dict[str, float]:
        """Returns the same against who sees models and no cohorts."""
        return self.prices()


class Local(Run):
    """Flower's ``LocalDpMod``: noise of sensitivity sqrt(2 ln(1.25 / delta)) / epsilon."""

    clipping_norm: Positive
    sensitivity: Positive
    epsilon: Positive

    @property
    def mus(self) -> tuple[float, float]:
        """By the clip, which bounds what an answer reveals, whatever the sensitivity says."""
        noise = self.sensitivity * math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon
        return self.clipping_norm / noise, 2 * self.clipping_norm / noise

    @property
    def noise_multiplier(self) -> float:
        """The one that epsilon in all rounds together needs, for any two data sets."""
        root = math.sqrt(self.num_rounds)
        return least_multiplier(
            lambda z: gaussian_epsilon(self.delta, mu=root / (z or 1e-99)), self.epsilon
        )


class Fixed(Run):
    """Flower's wrappers with fixed clipping: noise of z clip / m on a mean by weight."""

    noise_multiplier: Positive
    num_sampled_clients: PositiveCount
    clipping_norm: Positive = 1.0
    share: Probability = 1.0
    """The largest share of the weights that a client may have; 1: it states its weight itself."""
    inner: str = "FedAvg"
    """The strategy inside; a bound holds for those whose step is the mean."""
    sampling: Literal["own", "poisson", "fixed-size"] = "own"
    """How cohorts are drawn from coins that nobody sees; "own": as Flower does, which does not."""
    population: PositiveCount = 1
    """The number of clients; required where ``sampling`` is secret."""

    @model_validator(mode="after")
    def _has_population(self) -> "Fixed":
        if self.sampling != "own" and self.population < self.num_sampled_clients:
            raise ValueError(
                f"Expected population >= num_sampled_clients = {self.num_sampled_clients} with "
                f"sampling {self.sampling!r}, got {self.population}"
            )
        return self

    @property
    def mus(self) -> tuple[float, float]:
        """By the share."""
        mu = self.num_sampled_clients * self.share / self.noise_multiplier
        return mu, 2 * mu

    def hidden(self) -> dict[str, float]:
        """Returns the prices with the amplification that a theorem gives for the neighbours."""
        m, n = self.num_sampled_clients, self.population
        found = self.prices()
        name, mu = "zero-out", self.mus[0]
        if self.sampling == "own":
            return found
        way: Sampling = PoissonSampled(sampling_probability=m / n)
        if self.sampling == "fixed-size":
            name, mu = "any two", self.mus[1]
            way = SampledWithoutReplacement(sample_size=m, population=n)
        return found | {name: epsilon([of_clients(1 / mu, way, self.num_rounds)], self.delta)}


class Adaptive(Fixed):
    """Flower's wrappers with adaptive clipping, which noise a count of clipped clients besides."""

    clipped_count_stddev: Positive | None = None
    """None: m / 20."""

    @property
    def mus(self) -> tuple[float, float]:
        """Of mean and count together: a client moves the count by 1, Flower reckons with 1/2."""
        m = self.num_sampled_clients
        count = 1 / (self.clipped_count_stddev or m / 20)
        rest = self.noise_multiplier**-2 - count**2 / 4
        mean = m * self.share * math.sqrt(rest) if rest > 0 else math.inf  # which Flower refuses
        return math.hypot(mean, count), math.hypot(2 * mean, count)


class DPSGD(Run):
    """DP-SGD that an app declares, such as Opacus's: priced, and not enforced.

    Its rounds are those in which one client takes part.
    """

    noise_multiplier: NonNegative
    sampling_probability: Probability
    """Of one example in one step: the batch size over the number of examples."""
    steps_per_round: PositiveCount

    @property
    def release(self) -> Release:
        """What one client releases in one round."""
        return Release(
            unit="example",
            neighboring_relation="add-or-remove",
            noise_multiplier=self.noise_multiplier,
            sampling=PoissonSampled(sampling_probability=self.sampling_probability),
            count=self.steps_per_round,
            label="declared",
        )

    def promise(self, population: int, cohort: Sampling, rounds: int, delta: float) -> Promise:
        """Makes the promise for examples; whole clients have another one, and another ledger.

        Args:
            population: number of clients.
            cohort: how each round's clients are drawn; `Unsampled` where others can know them.
            rounds: number of rounds that are planned.
            delta: that of the statement.
        """
        update = ClientReleases(partitions=tuple(range(population)), releases=(self.release,))
        terms = Terms(population=population, updates=(update,), sampling=cohort)
        return Promise(Tariff((terms,)), rounds, (SERVER, EXTERNAL), delta).for_draws(rounds)

    def prices(self) -> dict[str, float]:
        """Returns epsilon of one example, against who knows the cohorts."""
        spent = epsilon(repeated([self.release], self.num_rounds), self.delta)
        return {"one example, declared by the app, not enforced": spent}


def declared(promise: Promise, odometer: Odometer) -> list[str]:
    """Returns a line for each adversary about what an app declares of its own steps."""
    return [
        f"{one['name']}: ({one['epsilon']:.4g}, {one['delta']:g})-DP, unit example, against "
        f"{one['text']}; declared by the app, not enforced"
        for one in promise.statement(odometer)["adversaries"]
    ]
