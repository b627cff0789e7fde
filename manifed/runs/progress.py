"""The progress of rounds on standard error: one rewritten line, or about 20 plain lines.

with shown(num_rounds) as show:
    show(1, {"cost": 0.3, "gradient_norm": 0.1, "epsilon": 0.5})
"""

import math
import os
import shutil
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

_TWENTY = 20
"""Characters of the bar, and about how many plain lines there are."""
_Row = Mapping[str, float | int | str | None]


def is_screen() -> bool:
    """Whether standard error is a notebook's, or a terminal that can rewrite a line."""
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") not in {"dumb", "unknown"}
    return is_terminal or "ipykernel" in sys.modules


@contextmanager
def shown(
    num_rounds: int,
    *,
    is_rewritten: bool = False,
    is_of_all: bool = False,
) -> Generator[Callable[[int, _Row], None]]:
    """Shows finished rounds and their rows as they come, each epsilon after its label.

    Args:
        num_rounds: how many there are to be.
        is_rewritten: one line with a bar; else lines for the first, the last and about `_TWENTY`.
        is_of_all: every number of a row; else cost, gradient norm and epsilon.
    """
    target = sys.stderr
    due = 0
    longest = 0
    every = max(1, math.ceil(num_rounds / _TWENTY))
    width = len(str(num_rounds))

    def show(server_round: int, row: _Row) -> None:
        nonlocal due, longest
        if not is_rewritten and server_round < min(due, num_rounds):
            return
        due = (server_round // every + 1) * every
        keys = [key for key in row if key not in ("round", "participants", "failures")]
        keys = keys if is_of_all else ("cost", "gradient_norm", "label", "epsilon")
        cells = [_cell(key, row.get(key)) for key in keys if key != "label" or row.get(key)]
        full = _TWENTY * server_round // num_rounds
        bar = f" [{'#' * full:-<{_TWENTY}}]" if is_rewritten else ""
        line = "  ".join([f"round {server_round:>{width}}/{num_rounds}{bar}", *cells]).rstrip()
        if is_rewritten:
            line = line[: shutil.get_terminal_size().columns - 1] if target.isatty() else line
            longest = max(longest, len(line))
        target.write(f"\r{line:<{longest}}" if is_rewritten else line + "\n")
        target.flush()

    try:
        yield show
    finally:
        target.write("\n" if longest else "")
        target.flush()


def _cell(key: str, value: float | str | None) -> str:
    """A label as it is; else a name and four digits, or a dash for what was not measured."""
    if key == "label":
        return str(value)
    number = f"{value:.4g}" if isinstance(value, float | int) else "-"
    return f"{key.replace('_', ' ')} {number:<10}"
