"""Charts as data: where the lines, ticks and values of a figure stand in an SVG of fixed size.

The page's template draws them. Every value is also a row of a table, so that nothing has to be read
from a picture.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

WIDTH, HEIGHT = 560, 330
LEFT, RIGHT, TOP, BOTTOM = 72, 12, 12, 50
"""Margins around the frame of the axes."""
MOST_DOTS = 60
"""Values of a curve that can be pointed at."""
MARKED = 31
"""Up to so many values each has a visible mark."""
MOST_ROWS = 40
"""Of the table of values."""


@dataclass(frozen=True)
class Line:
    """One curve: x, y and, for several runs, the least and the greatest of them."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    place: int = 0
    """Of its colour, the same in every chart of a page."""


@dataclass(frozen=True)
class Chart:
    """One figure: its words and its lines; `drawn` places them."""

    key: str
    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    is_log: bool = False
    from_zero: bool = False
    notes: Sequence[str] = field(default=())

    def drawn(self) -> dict[str, Any]:
        """Everything that the template needs, coordinates with one decimal."""
        shown = [_shown(line, is_log=self.is_log) for line in self.lines]
        x_axis = _Axis.over([x for line in shown for x in line.x], LEFT, WIDTH - RIGHT)
        values = [v for line in shown for v in (*line.y, *line.low, *line.high)]
        values += [0.0] if self.from_zero else []
        y_axis = _Axis.over(values, HEIGHT - BOTTOM, TOP, is_log=self.is_log)
        return {
            "chart": self,
            "lines": [_drawn(line, x_axis, y_axis) for line in shown],
            "x_ticks": x_axis.ticks(7),
            "y_ticks": y_axis.ticks(6),
            "summary": " ".join(_summary(line, self) for line in shown),
            **self._table(),
        }

    def _table(self) -> dict[str, Any]:
        """Header, rows and how many were left out: one row an x where all curves share them."""
        shared = sorted({x for line in self.lines for x in line.x})
        if len(shared) <= 1.5 * max(len(line.x) for line in self.lines):
            found = [dict(zip(line.x, line.y, strict=True)) for line in self.lines]
            rows = [[number(x), *(number(one.get(x)) for one in found)] for x in shared]
            header = [self.x_label, *(line.label for line in self.lines)]
        else:
            header = ["curve", self.x_label, self.y_label]
            rows = [
                [line.label, number(x), number(y)]
                for line in self.lines
                for x, y in zip(line.x, line.y, strict=True)
            ]
        kept = _thinned(len(rows), MOST_ROWS)
        return {"header": header, "rows": [rows[i] for i in kept], "of_rows": len(rows)}


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    first: float
    last: float
    is_log: bool

    @classmethod
    def over(
        cls, values: Sequence[float], first: float, last: float, *, is_log: bool = False
    ) -> "_Axis":
        low, high = min(values), max(values)
        if is_log:
            low, high = math.log10(low), math.log10(high)
            pad = 0.04 * (high - low) or 0.5
        else:
            pad = 0.0 if first < last else 0.05 * (high - low)  # lines end at the sides
            pad = pad if high > low else 0.5 * abs(high) or 0.5
            if low == 0 and first > last:
                return cls(0.0, high + pad, first, last, is_log)
        return cls(low - pad, high + pad, first, last, is_log)

    def at(self, value: float) -> float:
        where = math.log10(value) if self.is_log else value
        part = (where - self.low) / (self.high - self.low)
        return round(self.first + part * (self.last - self.first), 1)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        from matplotlib.ticker import LogLocator, MaxNLocator

        low, high = (10**self.low, 10**self.high) if self.is_log else (self.low, self.high)
        found: list[float] = []
        if self.is_log:
            for subs in ((1.0,), (1.0, 2.0, 5.0)):
                found = [
                    float(v) for v in LogLocator(10, subs, numticks=most).tick_values(low, high)
                ]
                found = [v for v in found if low <= v <= high]
                if len(found) >= 2:
                    break
        if len(found) < 2:
            found = [float(v) for v in MaxNLocator(most).tick_values(low, high)]
        slack = 1e-9 * (high - low)
        kept = [v for v in found if low - slack <= v <= high + slack and (v > 0 or not self.is_log)]
        return [(self.at(v), number(v)) for v in kept]


def _shown(line: Line, *, is_log: bool) -> Line:
    """The line without what its axis cannot show."""
    kept = [i for i, y in enumerate(line.y) if math.isfinite(y) and (y > 0 or not is_log)]
    low, high = list(line.low), list(line.high)
    if is_log and low:  # a band that reaches zero ends at the least value above it
        least = min(line.y[i] for i in kept)
        low = [max(v, least / 10) for v in low]
    return Line(
        line.label,
        [line.x[i] for i in kept],
        [line.y[i] for i in kept],
        [low[i] for i in kept] if low else (),
        [high[i] for i in kept] if high else (),
        line.place,
    )


def _drawn(line: Line, x_axis: _Axis, y_axis: _Axis) -> dict[str, Any]:
    points = [(x_axis.at(x), y_axis.at(y)) for x, y in zip(line.x, line.y, strict=True)]
    band = ""
    if line.low:
        above = [(x_axis.at(x), y_axis.at(v)) for x, v in zip(line.x, line.high, strict=True)]
        below = [(x_axis.at(x), y_axis.at(v)) for x, v in zip(line.x, line.low, strict=True)]
        band = _path([*above, *below[::-1]]) + "Z"
    dots = [
        {"x": points[i][0], "y": points[i][1], "said": (number(line.x[i]), number(line.y[i]))}
        for i in _thinned(len(points), MOST_DOTS)
    ]
    return {
        "label": line.label,
        "place": line.place,
        "path": _path(points),
        "band": band,
        "dots": dots,
        "is_marked": len(points) <= MARKED,
    }


def _summary(line: Line, chart: Chart) -> str:
    """The line in a sentence, for those who see no picture."""
    if not line.x:
        return f"{line.label}: no value."
    return (
        f"{line.label}: {chart.y_label} goes from {number(line.y[0])} at {chart.x_label} "
        f"{number(line.x[0])} to {number(line.y[-1])} at {number(line.x[-1])}."
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def _thinned(count: int, most: int) -> list[int]:
    """At most ``most`` places of ``count``, evenly, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float | str | None) -> str:
    """Four digits; powers of ten beyond five places as such; an empty place as a dash."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, str):
        return value
    if value and not 1e-3 <= abs(value) < 1e6:
        mantissa, _, exponent = f"{value:.3e}".partition("e")
        factor = f"{float(mantissa):g}"
        power = f"10{str(int(exponent)).translate(_RAISED)}"
        return power if factor == "1" else f"{factor} · {power}"
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
