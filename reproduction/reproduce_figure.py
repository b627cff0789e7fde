"""Run every curve of one of PriRFed's figures over several seeds, and draw it.

    python reproduction/reproduce_figure.py 000-1 [--seeds 3] [--out runs/000-1] [--set A.B=VALUE]

Figures: 000-1, 000-1-regime, 000-2, 000-2-digits, 000-2-regime, 000-3, 000-3-regime, 000-4,
000-5, 000-5-tree, 000-6, 000-6-tree; 000-2, 000-5 and 000-6 need MANIFED_DATA. A run that is
already finished in the folder is kept, so an interrupted command goes on where it stopped. Runs are
ordinary run folders: `python -m manifed.runs.report` overlays them as well.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manifed.runs.report.runs import Run

ROOT = Path(__file__).resolve().parent.parent


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 2 after one line about what is wrong."""
    sys.path.insert(0, str(ROOT))
    from manifed.errors import ConfigError
    from reproduction.checks_000.drawing import draw_disk, draw_panels
    from reproduction.checks_000.panels import FIGURES

    given = _arguments(sorted(FIGURES)).parse_args(argv)
    panels, out = FIGURES[given.figure], given.out or Path("runs") / given.figure
    names = list(dict.fromkeys(name for panel in panels for name in panel.configs))
    try:
        runs = {
            name: [_run(name, seed, out, given.sets) for seed in range(given.seeds)]
            for name in names
        }
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    path = out / f"figure-{given.figure}.png"
    if given.figure.startswith("000-6"):
        draw_disk(runs, path)
    else:
        draw_panels(panels, runs, path)
    sys.stdout.write(f"{path}\n")
    return 0


def _arguments(figures: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figure", choices=figures, metavar="FIGURE")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0 .. SEEDS-1 (default 3)")
    parser.add_argument("--out", type=Path, help="folder of the runs (default runs/FIGURE)")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="A.B=VALUE")
    return parser


def _run(name: str, seed: int, out: Path, sets: Sequence[str]) -> "Run":
    """The finished run of one config and seed, made now unless it is there."""
    from manifed.cli.launch import Request
    from manifed.runs.report.runs import read
    from reproduction.checks_000.trials import run_silently
    from reproduction.experiment_files import experiment_path

    folder = out / f"{name}-seed-{seed}"
    if folder.exists() and (not (folder / "manifest.json").exists() or not read(folder).final):
        shutil.rmtree(folder)
    if not folder.exists():
        overrides = ("output.plots=false", *sets, f"federation.seed={seed}")
        request = Request(str(experiment_path(name)), overrides, out=folder, plain=True)
        run_silently(request)
    run = read(folder)
    cost, seconds = run.last("cost"), run.final["seconds"]
    sys.stderr.write(f"{folder.name}: cost {cost:.4g}, {seconds:.1f} s\n")
    return run


if __name__ == "__main__":
    sys.exit(main())
