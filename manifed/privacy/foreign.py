"""What the privacy settings of other libraries really buy, and events for dp_accounting.

`Local`, `Fixed` and `Adaptive` are the settings of Flower 1.41's mod and wrappers, and of platforms
that copy their formulas. Each says the noise multiplier that a round really has, as (zero-out, any
two): the client's update is replaced by none, or by that of any other data.

>>> zero_out, any_two = Local(
...     clipping_norm=1.0, sensitivity=1e-4, epsilon=10.0, delta=1e-5).noise_multipliers
>>> print(f"{price(zero_out, 1, 1e-5):.3g} {price(any_two, 1, 1e-5):.3g}")
2.13e+08 8.52e+08
"""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from manifed.fields import Fraction, Frozen, NonNegative, Positive, PositiveCount, Probability
from manifed.privacy.composition import NoValidBound
from manifed.privacy.epsilon_bounds import epsilon
from manifed.privacy.events import (
    EXTERNAL,
    SERVER,
    Adversary,
    PoissonSampled,
    Release,
    SampledWithoutReplacement,
    Sampling,
    Unsampled,
    repeated,
)
from manifed.privacy.odometer import Odometer
from manifed.privacy.statement import Promise
from manifed.privacy.tariff import ClientReleases, Tariff, Terms

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_Multipliers = tuple[float, float]


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


def price(z: float, rounds: int, delta: float) -> float:
    """Returns epsilon of so many unsampled rounds, under either relation."""
    return epsilon([of_clients(z, Unsampled(), rounds)], delta)


class Local(Frozen):
    """Flower's ``LocalDpMod``: noise of sensitivity sqrt(2 ln(1.25 / delta)) / epsilon."""

    clipping_norm: Positive
    sensitivity: Positive
    epsilon: Positive
    delta: Fraction

    @property
    def noise_multipliers(self) -> _Multipliers:
        """That of one answer; the clip bounds what it reveals, whatever the sensitivity says."""
        z = self.sensitivity * math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon
        return z / self.clipping_norm, z / (2 * self.clipping_norm)


class Fixed(Frozen):
    """Flower's wrappers with fixed clipping: noise of z clip / m on a mean by weight."""

    noise_multiplier: NonNegative
    num_sampled_clients: PositiveCount
    share: Probability = 1.0
    """The largest share of the weights that a client may have; 1: it states its weight itself."""

    @property
    def noise_multipliers(self) -> _Multipliers:
        """That of one round."""
        z = self.noise_multiplier / (self.num_sampled_clients * self.share)
        return z, z / 2


class Adaptive(Fixed):
    """Flower's wrappers with adaptive clipping, which noise a count of clipped clients besides."""

    clipped_count_stddev: Positive | None = None
    """None: m / 20."""

    @property
    def noise_multipliers(self) -> _Multipliers:
        """That of one round, of mean and count together: a client moves its count by 1."""
        z, m, noise = self.noise_multiplier, self.num_sampled_clients, self.clipped_count_stddev
        count = (noise or m / 20) ** -2
        mean = ((z or math.inf) ** -2 - count / 4) * (m * self.share) ** 2
        if mean <= 0:  # no noise, or what Flower refuses
            return 0.0, 0.0
        return (mean + count) ** -0.5, (4 * mean + count) ** -0.5


class DPSGD(Frozen):
    """DP-SGD that an app declares, such as Opacus's: priced, and not enforced."""

    noise_multiplier: NonNegative
    sampling_probability: Probability
    """Of one example in one step: the batch size over the number of examples."""
    steps_per_round: PositiveCount

    def promise(self, population: int, cohort: Sampling, rounds: int, delta: float) -> Promise:
        """Makes the promise for examples; whole clients have another one, and another ledger.

        Args:
            population: number of clients.
            cohort: how each round's clients are drawn; `Unsampled` where others can know them.
            rounds: number of rounds that are planned.
            delta: that of the statement.
        """
        step = Release(
            unit="example",
            neighboring_relation="add-or-remove",
            noise_multiplier=self.noise_multiplier,
            sampling=PoissonSampled(sampling_probability=self.sampling_probability),
            count=self.steps_per_round,
            label="declared",
        )
        update = ClientReleases(partitions=tuple(range(population)), releases=(step,))
        terms = Terms(population=population, updates=(update,), sampling=cohort)
        promise = Promise(Tariff((terms,)), rounds, (SERVER, EXTERNAL), delta)
        return promise.for_draws(rounds)


def declared(promise: Promise, odometer: Odometer) -> list[str]:
    """Returns a line for each adversary about what an app declares of its own steps."""
    return [
        f"{one['name']}: ({one['epsilon']:.4g}, {one['delta']:g})-DP, unit example, against "
        f"{one['text']}; declared by the app, not enforced"
        for one in promise.statement(odometer)["adversaries"]
    ]


# -- events for dp_accounting ------------------------------------------------------------------
def dp_event(releases: Iterable[Release]) -> "DpEvent":
    """Returns the releases as an event that dp_accounting's accountants compose.

    For neighbours that differ by a replaced unit give them to an ``RdpAccountant`` of REPLACE_ONE
    or a ``PLDAccountant`` of REPLACE_SPECIAL: its REPLACE_ONE doubles the sensitivity once more.
    """
    import dp_accounting as dp

    made: list[DpEvent] = []
    for one in releases:
        kind = dp.LaplaceDpEvent if one.kind == "laplace" else dp.GaussianDpEvent
        event = kind(one.noise_multiplier)
        match one.sampling:
            case PoissonSampled(sampling_probability=q):
                event = dp.PoissonSampledDpEvent(q, event)
            case SampledWithoutReplacement(sample_size=m, population=n):
                event = dp.SampledWithoutReplacementDpEvent(n, m, event)
            case _:
                pass
        made.append(dp.SelfComposedDpEvent(event, one.count))
    return dp.ComposedDpEvent(made)


def dp_events(odometer: Odometer, adversary: Adversary) -> list["DpEvent"]:
    """Returns the event of each kind of client; the dearest has the odometer's epsilon.

    Raises:
        NoValidBound: where clients take part by coins that the adversary does not see, which
            dp_accounting has no event for.
    """
    kinds = odometer.coins(adversary)
    if any(probability < 1 for coins in kinds for _, probability, _ in coins):
        raise NoValidBound(f"no event of dp_accounting has the coins of {adversary.name!r}")
    return [
        dp_event([one for update, _, n in each for one in repeated(update, n)])
        for each in kinds
        if each
    ]
