"""The word that stands before every epsilon: whether the noise behind it can be subtracted.

An epsilon is a price. It protects somebody only where nobody can compute the noise again, and that
is decided by where the keys of the noise came from (privacy/noise.py). Every command and every
document that shows an epsilon shows one of these words before it, in words and in JSON as
``label``, in tables and csv files as a column.
"""

from collections.abc import Iterable
from typing import Final

RELEASE: Final = "release"
"""Every noise source that was used had a key of an operating system."""
SEEDED: Final = "seeded run (no guarantee)"
"""The noise is, or may be, keyed by the config's seed: whoever has the config subtracts it."""
PLANNED: Final = "price only (no noise drawn)"
"""A price of what may come: a plan, a mechanism, a run before its first charge."""
NOT_PRIVATE: Final = "not private"
"""No noise is added."""
UNKNOWN: Final = "unknown"
"""Something was charged, and nothing that can be believed says where all of its noise came from."""
LABELS: Final = (RELEASE, SEEDED, PLANNED, NOT_PRIVATE, UNKNOWN)
"""All of them; none holds a comma, so that each is one cell of a csv file."""
AUTHENTICITY: Final = {
    "unkeyed": "unkeyed: accidents are excluded, a consistent rewrite is not",
    "not checked": "keyed, but no key was given: a consistent rewrite is not excluded",
    "verified": "keyed: every line is by the holder of the key",
}
"""What a ledger's tags exclude, by `Verified.authenticity`."""


def label_of(
    noise_source: str | None,
    origins: Iterable[str],
    *,
    is_charged: bool = True,
    is_private: bool = True,
) -> str:
    """The word for what a config asks for and what the noise sources said.

    Guarantee: a release is said only where the config, if it is known, asks for one, and every
    noise source that was used had a key of the operating system.

    Args:
        noise_source: "os" or "seed", as the config has it; None where only a ledger is known.
        origins: where the keys of all noise came from so far, as the sources said.
        is_charged: whether anything was charged, so that noise may have been drawn.
        is_private: whether the config adds any noise.
    """
    found = set(origins)
    if not is_private:
        return NOT_PRIVATE
    if noise_source == "seed" or "seed" in found:
        return SEEDED
    if noise_source not in (None, "os"):
        return UNKNOWN
    if not found:
        return UNKNOWN if is_charged else PLANNED
    return RELEASE if found == {"os"} else UNKNOWN
