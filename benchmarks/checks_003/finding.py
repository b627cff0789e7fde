"""What a check found: a verdict computed from measured numbers, and what it was measured on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["reproduced", "reproduced in the stated regime", "contradicted"]


@dataclass(frozen=True)
class Finding:
    """The result of one check of spec 003 §11."""

    check: str
    claim: str
    verdict: Verdict
    numbers: Mapping[str, Any]
    seeds: tuple[int, ...] = ()
    remark: str = ""


def verdict_of(*, as_printed: bool, in_regime: bool = False) -> Verdict:
    """The verdict of a claim that holds as printed, only in a regime, or not at all."""
    if as_printed:
        return "reproduced"
    return "reproduced in the stated regime" if in_regime else "contradicted"
