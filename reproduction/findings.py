"""What a numerical check found, and how it is printed."""

import importlib
import math
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Part:
    """One number of a claim, measured once for each seed, and between which bounds it should be."""

    claim: str
    values: Sequence[float]
    least: float = -math.inf
    most: float = math.inf

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean over seeds (Student's t).

        It has no ends for one seed, and where a seed has no finite value.
        """
        count = len(self.values)
        if count < 2 or not np.isfinite(self.values).all():
            return -math.inf, math.inf
        mean, error = float(np.mean(self.values)), float(np.std(self.values, ddof=1) / count**0.5)
        spread = float(stats.t.ppf(0.975, count - 1)) * error
        return mean - spread, mean + spread

    @property
    def verdict(self) -> str:
        """Whether the interval lies inside the bounds, outside, or neither."""
        low, high = self.interval
        if self.least <= low and high <= self.most:
            return "reproduced"
        return "contradicted" if high < self.least or low > self.most else "open"

    @property
    def numbers(self) -> dict[str, Any]:
        """Mean, interval, bounds and verdict, for a table."""
        low, high = self.interval
        return {
            "mean": float(np.mean(self.values)), "low": low, "high": high,
            "least": self.least, "most": self.most, "verdict": self.verdict,
        }  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """The result of one check: measured numbers, their seeds, and whether the claim holds."""

    claim: str
    as_printed: bool
    """Whether the claim holds as it is printed."""
    numbers: Mapping[str, Any]
    seeds: tuple[int, ...] = ()
    """Empty where nothing is drawn or the check fixes its generators itself."""
    remark: str = ""
    in_regime: bool = False
    """Whether it holds in the regime that the remark names, where not as printed."""
    parts: tuple[Part, ...] = ()
    """Parts of a claim that are judged by an interval over seeds, each on its own."""

    @staticmethod
    def judged(
        claim: str,
        parts: Sequence[Part],
        numbers: Mapping[str, Any],
        seeds: Iterable[int],
        remark: str = "",
    ) -> "Finding":
        """Makes the finding of a claim of several parts; it holds as printed if each does."""
        each = {part.claim: part.numbers for part in parts}
        is_whole = all(part.verdict == "reproduced" for part in parts)
        return Finding(
            claim, is_whole, {**each, **numbers}, tuple(seeds), remark, parts=tuple(parts)
        )

    @property
    def verdict(self) -> str:
        """Of a claim that holds as printed, only in a regime, or not at all; or of its parts."""
        if self.parts:
            said = {part.verdict for part in self.parts}
            for one in ("contradicted", "open", "reproduced"):
                if one in said:
                    return one if len(said) == 1 else f"{one} in part"
        if self.as_printed:
            return "reproduced"
        return "reproduced in the stated regime" if self.in_regime else "contradicted"


def checks_of(
    package: str, folder: Iterable[str], prefix: str = ""
) -> dict[str, Callable[[], Finding]]:
    """The functions ``check_ID`` of a package's modules by ``prefix`` and ID, in the IDs' order."""
    found = {}
    for module in pkgutil.iter_modules(folder):
        members = vars(importlib.import_module(f"{package}.{module.name}"))
        for name, member in members.items():
            if name.startswith("check_") and member.__module__ == members["__name__"]:
                letters = name.removeprefix("check_").upper().rstrip("0123456789")
                found[letters, int(f"0{name[len('check_') + len(letters) :]}")] = member
    return {f"{prefix}{a}{n or ''}": found[a, n] for a, n in sorted(found)}


def log_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Slope of the least-squares line through the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def text_of(name: str, found: Finding, cpu_seconds: float) -> str:
    """A few lines about one finding."""
    seeds = ", ".join(str(seed) for seed in found.seeds) or "fixed or none"
    lines = [
        f"check {name}: {found.verdict.upper()}",
        f"  {found.claim}",
        *(f"  {line}" for line in lines_of(found.numbers)),
        f"  seeds {seeds}; {cpu_seconds:.1f} s of CPU time",
    ]
    if found.remark:
        lines.append(f"  {found.remark}")
    return "\n".join(lines) + "\n"


def lines_of(numbers: Mapping[str, Any], indent: str = "") -> list[str]:
    """Nested numbers, indented by depth; an innermost mapping stands on one line."""
    lines = []
    for key, value in numbers.items():
        if isinstance(value, Mapping) and any(isinstance(v, Mapping) for v in value.values()):
            lines += [f"{indent}{key}:", *lines_of(value, indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {_short(value)}")
    return lines


def _short(value: Any) -> str:
    """Four digits of every number in ``value``."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_short(v)}" for key, v in value.items())
    if isinstance(value, list | tuple):
        return "  ".join(_short(v) for v in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
