"""Draws pictures of the gallery and the tutorials: python docs/pictures/gallery.py [--runs DIR].

Runs what is missing of one figure a paper, of the median's (`python -m reproduction`) and of
the first tutorial's sweep, and keeps a small copy of each picture here: at most WIDTH pixels wide,
few colours.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from PIL import Image

from manifed.runs.report import curves_of, figures_of, picture, read

HERE = Path(__file__).parent
CONFIG = HERE.parents[1] / "configs" / "quickstart.toml"
SWEEP = "first-component"
STEPS = ("sweep", str(CONFIG), "--set", "training.step_size=0.5,0.25", "--seeds", "0-2")
WIDTH, COLOURS = 900, 128
FIGURES = {
    "000-3-regime": (),
    "000-5": (),
    "001-private": (),
    "002-1": (),
    "003-3c": ("--only", "tree"),
    "004-2": (),
    "median": (),
}
"""The ones that take some minutes; 000-5 reads the published embedding below MANIFED_DATA."""


def small(source: Path, target: Path) -> None:
    """A copy that a page can afford."""
    with Image.open(source) as image:
        flat = Image.new("RGB", image.size, "white")
        flat.paste(image, mask=image.getchannel("A") if image.mode == "RGBA" else None)
    if flat.width > WIDTH:
        flat = flat.resize(
            (WIDTH, round(flat.height * WIDTH / flat.width)), Image.Resampling.LANCZOS
        )
    flat.quantize(COLOURS).save(target, optimize=True)


def main() -> None:
    """Every picture in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=Path, default=HERE.parents[1] / "runs")
    parser.add_argument("--only", nargs="*", default=[*FIGURES, SWEEP])
    given = parser.parse_args()
    for name in given.only:
        is_sweep = name == SWEEP
        out = given.runs / "steps" if is_sweep else given.runs
        words = ["reproduction", f"figure:{name}", *FIGURES.get(name, ())]
        if is_sweep:
            words = ["manifed", *STEPS]
        command = [sys.executable, "-m", *words, "--out", str(out)]
        subprocess.run(command, check=True, cwd=HERE.parents[1])
        drawn = given.runs / name / f"figure-{name}.png"
        if is_sweep:
            drawn = out / "relative-cost-gap-by-round.png"
            curves = curves_of(read(run) for run in sorted(out.glob("*-seed-*")))
            y, words, lines = next(one for one in figures_of(curves) if "gap" in one[0])
            drawn.write_bytes(picture(lines, words, y))
        small(drawn, HERE / f"{name}.png")


if __name__ == "__main__":
    main()
