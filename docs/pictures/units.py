"""Draws units.png, the same noise for three units: python docs/pictures/units.py.

Thirty full-batch answers, a clipped mean each, with Gaussian noise: one image more or fewer moves
the sum by the clip, one replaced by twice the clip, a person with five images by five times it.
"""

from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from manifed.privacy import epsilon_bounds
from manifed.privacy.events import Release, repeated
from manifed.runs.report import COLORS, STYLE

ROUNDS, DELTA = 30, 1e-5
TICKS = (3, 6, 10, 20, 30, 60)
MOVES = {
    "a person with five images": 5,
    "one image, replaced": 2,
    "one image, more or fewer": 1,
}


def epsilon(noise: float, move: float) -> float:
    """Of all rounds, where somebody moves a sum by so many clips."""
    release = Release(
        unit="example", neighboring_relation="add-or-remove", noise_multiplier=noise / move
    )
    return epsilon_bounds.epsilon(repeated([release], ROUNDS), DELTA)


def main() -> None:
    """The picture beside this script."""
    noises = np.geomspace(3, 60, 25)
    with rc_context(rc=STYLE):
        figure = Figure(figsize=(6.4, 3.4), layout="constrained")
        axes = figure.add_subplot()
        for color, (name, move) in zip(COLORS, MOVES.items(), strict=False):
            found = [epsilon(noise, move) for noise in noises]
            axes.plot(noises, found, color=color)
            axes.annotate(
                name, (noises[-1], found[-1]), (6, 0), textcoords="offset points", color=color,
                va="center", annotation_clip=False,
            )  # fmt: skip
        axes.set(
            xscale="log", yscale="log", xlabel="noise a round, in clips",
            ylabel=f"epsilon after {ROUNDS} rounds, delta = {DELTA:g}",
            xticks=TICKS, xticklabels=TICKS,
        )  # fmt: skip
        axes.minorticks_off()
        figure.savefig(Path(__file__).with_suffix(".png"), dpi=130)


if __name__ == "__main__":
    main()
