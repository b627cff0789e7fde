"""The figures of a finished run, drawn by a process of their own.

By then the run is whole: statement, manifest and ledger are written. A drawing that fails or is
killed leaves it as it is, and ``manifed report`` draws again. The process needs no torch.
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import manifed
from manifed.errors import one_line
from manifed.runs.interrupt import Ended
from manifed.runs.run_folder import RunFolder

_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[2]); "
    "from manifed.runs.report.apart import main; main(sys.argv[1])"
)


def draw_figures(folder: RunFolder, *, is_quiet: bool = False) -> None:
    """Draw what the config of a finished run asks for, and say so in a line unless quiet.

    Raises:
        NotDrawn: see `draw_apart`.
    """
    config = folder.manifest().get("config") or {}  # a resumed run's may have been damaged before
    output = config.get("output")
    if not isinstance(output, dict) or not output.get("plots", True):
        return
    drawn = draw_apart(folder.directory)
    if drawn and not is_quiet:
        sys.stdout.write(f"figures in the run folder: {', '.join(drawn)}\n")
        sys.stdout.flush()


class NotDrawn(Exception):
    """Figures that are not there, why, and the command that draws them, on one line."""

    def __init__(self, names: Sequence[str], why: str, directory: Path, code: int = 1) -> None:
        which = ", ".join(names) or "the figures"
        command = shlex.join(["manifed", "report", str(directory)])
        super().__init__(
            f"not drawn: {which}: {why}; the run is finished and whole; draw with: {command}"
        )
        self.code = code


def draw_apart(directory: Path) -> list[str]:
    """The names of the figures that were drawn into the folder of a finished run.

    Raises:
        NotDrawn: the process failed, was killed, or this one is told to end.
    """
    package = Path(str(manifed.__file__)).parents[1]
    words = [sys.executable, "-P", "-W", "ignore", "-c", _PROGRAM, str(directory), str(package)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as process:
        try:
            said, errors = process.communicate()
        except (Ended, KeyboardInterrupt) as ended:
            process.kill()
            code = ended.code if isinstance(ended, Ended) else 130
            raise NotDrawn([], "interrupted", directory, code) from None
    lines = said.decode(errors="replace").splitlines()
    wanted: list[str] = json.loads(lines[0]) if lines else []
    missing = [name for name in wanted if name not in lines[1:]]
    if process.returncode == 0 and lines and not missing:
        return wanted
    last = next(reversed(errors.decode(errors="replace").strip().splitlines()), "")
    if process.returncode < 0:
        last = f"its process ended by signal {-process.returncode}"
    raise NotDrawn(missing, one_line(last, 400) or "its process ended early", directory)


def main(directory: str) -> None:
    """Say which figures there will be, then the name of each that is there."""
    from manifed.runs.report.figures import draw_each, figures_of, name_of
    from manifed.runs.report.runs import curves_of, read

    curves = curves_of([read(Path(directory))])
    wanted = [name_of(y, x) for y, x in figures_of(curves)]
    sys.stdout.write(json.dumps(wanted) + "\n")
    sys.stdout.flush()
    for path in draw_each(curves, Path(directory)):
        sys.stdout.write(path.name + "\n")
        sys.stdout.flush()
