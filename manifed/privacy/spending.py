"""From the charges in a ledger to what each adversary can have learnt: realised accounting.

A charge is written before the messages of a round leave, so aborted attempts and retries are paid
like any other. All functions are pure and ask a `privacy.odometer.Odometer`, the one that a live
run asks too; every epsilon is an upper bound.
"""

from collections.abc import Iterable

from manifed.privacy.adversaries import ADVERSARIES, PrivacySpent, View
from manifed.privacy.chain import Entry
from manifed.privacy.charges import CHARGE, Charge, ClientReleases, charges
from manifed.privacy.odometer import Odometer

__all__ = [
    "ADVERSARIES",
    "CHARGE",
    "Charge",
    "ClientReleases",
    "PrivacySpent",
    "View",
    "charges",
    "external_spent",
    "odometer_of",
    "spent",
    "spent_by_client",
    "would_exceed",
]


def odometer_of(entries: Iterable[Entry]) -> Odometer:
    """The odometer that took all entries; errors as `Odometer.feed`."""
    odometer = Odometer()
    for entry in entries:
        odometer.feed(entry)
    return odometer


def spent(paid: Iterable[Charge], *, delta: float) -> tuple[PrivacySpent, ...]:
    """All views that the charges speak of, at ``delta``: for examples, for clients, or both.

    Raises:
        NoValidBound: as the accountant, and when the charges leave the external view open.
    """
    return _charged(paid).spent(delta)


def spent_by_client(paid: Iterable[Charge], *, delta: float) -> dict[int, float]:
    """Realised epsilon of every client that was ever sent a message, in the server's view.

    A client pays for each attempt whose cohort it was in, whether its reply came or not.
    """
    return _charged(paid).spent_by_client(delta)


def external_spent(paid: Iterable[Charge], *, delta: float) -> float:
    """Epsilon of the worst client that the charges name, for who sees models and not cohorts.

    A priori: every named client is priced for every round, drawn or not, by the turn it would have
    made. Attempts that use one cohort draw are one coin.

    Raises:
        NoValidBound: when a charge does not say what a client would have released.
    """
    return _charged(paid).epsilon("external", delta)


def would_exceed(
    entries: Iterable[Entry],
    next_charge: Charge,
    *,
    max_epsilon: float,
    delta: float,
    view: View | None = None,
) -> bool:
    """Whether paying ``next_charge`` would bring a view above ``max_epsilon`` at ``delta``.

    ``view`` None asks the strictest of those that exist (server and client-level; external only
    when named).
    """
    odometer = odometer_of(entries)
    odometer.charge(next_charge)
    asked = ("server", "client-level") if view is None else (view,)
    return any(s.epsilon > max_epsilon for s in odometer.spent(delta) if s.view in asked)


def _charged(paid: Iterable[Charge]) -> Odometer:
    odometer = Odometer()
    for charge in paid:
        odometer.charge(charge)
    return odometer
