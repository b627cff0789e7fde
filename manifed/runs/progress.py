"""Progress of a run on standard error: a bar on a terminal, else at most about 20 plain lines.

with progress_of(num_rounds) as progress:
    progress(1, {"cost": 0.3, "gradient_norm": 0.1, "epsilon": 0.5})
"""

import logging
import math
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, Self, TextIO

LINES = 20
SHOWN = (("cost", "cost"), ("gradient_norm", "gradient norm"), ("epsilon", "epsilon"))
"""Key and word of what a line shows; epsilon with its label before it."""

SHORT = (("cost", "cost", 9), ("gradient_norm", "gradient", 9), ("epsilon", "epsilon", 5))
"""Key, word and width on the bar, which has to fit 80 columns."""

LONGEST = 28
"""Characters of a run's name on the bar over all runs."""
WIDTH = 20
"""Characters of the bar of a fit."""
UNTOLD = ("round", "participants", "failures")
"""Of a fit's row: in its curves, not on its line."""

Row = Mapping[str, float | int | str | None]


class Progress(Protocol):
    """What a round loop tells: the rounds that are done and the row of the newest one."""

    def __call__(self, server_round: int, row: Row) -> None:
        """Show that ``server_round`` is done."""
        ...

    def __enter__(self) -> Self:
        """Start showing."""
        ...

    def __exit__(self, *error: object) -> None:
        """Stop showing; what is on the screen stays."""
        ...


def progress_of(num_rounds: int, *, plain: bool = False, stream: TextIO | None = None) -> Progress:
    """A bar when ``stream`` (standard error) is a terminal and not ``plain``, else lines."""
    target = stream if stream is not None else sys.stderr
    if plain or not is_screen(target):
        return PlainLines(num_rounds, target)
    return Bar(num_rounds, target)


def is_screen(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can rewrite its lines; TERM=dumb says that it cannot."""
    return stream.isatty() and os.environ.get("TERM") not in {"dumb", "unknown"}


class PlainLines:
    """One line for the first round told, the last, and about ``LINES`` in between."""

    def __init__(self, num_rounds: int, stream: TextIO) -> None:
        self._num_rounds = num_rounds
        self._every = max(1, math.ceil(num_rounds / LINES))
        self._next = 0
        self._stream = stream

    def __call__(self, server_round: int, row: Row) -> None:
        """Write the line of ``server_round`` if it is one of those shown."""
        if server_round < min(self._next, self._num_rounds):
            return
        self._next = (server_round // self._every + 1) * self._every
        width = len(str(self._num_rounds))
        cells = [f"{word} {_number(row.get(key)):<10}" for key, word in SHOWN]
        cells[-1:] = _labels(row) + cells[-1:]
        line = f"round {server_round:>{width}}/{self._num_rounds}  " + "  ".join(cells)
        self._stream.write(line.rstrip() + "\n")
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.flush()


class Bar:
    """rich's progress bar with the newest cost, gradient norm and epsilon beside it.

    Log lines, Flower's too, are written above it. rich takes what is printed to ``sys.stderr``; a
    log handler that was made before holds the stream itself and is told of the new one meanwhile.
    """

    def __init__(self, num_rounds: int, stream: TextIO) -> None:
        from rich import progress as rich
        from rich.console import Console

        fields = [
            rich.TextColumn(f"{word} [bold]{{task.fields[cells][{key}]}}") for key, word, _ in SHORT
        ]
        self._bar = rich.Progress(
            rich.TextColumn("round"),
            rich.MofNCompleteColumn(),
            rich.BarColumn(bar_width=24),
            *fields,
            rich.TimeRemainingColumn(),
            console=Console(file=stream),
        )
        self._task = self._bar.add_task("run", total=num_rounds, cells=_cells({}))
        self._stream = stream
        self._told: list[str] = []
        """The label that was shown above the bar."""
        self._led: list[logging.StreamHandler[Any]] = []

    def __call__(self, server_round: int, row: Row) -> None:
        """Move the bar to ``server_round``."""
        if _labels(row) != self._told:
            self._told = _labels(row)
            self._bar.console.print(f"privacy: {self._told[0]}", markup=False, highlight=False)
        self._bar.update(self._task, completed=server_round, cells=_cells(row))

    def __enter__(self) -> Self:
        self._bar.start()
        if sys.stderr is not self._stream:
            self._led = [one for one in _handlers() if one.stream is self._stream]
            for handler in self._led:
                handler.setStream(sys.stderr)
        return self

    def __exit__(self, *error: object) -> None:
        for handler in self._led:
            handler.setStream(self._stream)
        self._bar.stop()


def _handlers() -> Iterator["logging.StreamHandler[Any]"]:
    """The handlers of all loggers that write to a stream."""
    known = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    for logger in known:
        for handler in logger.handlers if isinstance(logger, logging.Logger) else ():
            if isinstance(handler, logging.StreamHandler):
                yield handler


def _cells(row: Row) -> dict[str, str]:
    return {key: f"{_number(row.get(key), 3):<{width}}" for key, _, width in SHORT}


def _number(value: Any, digits: int = 4) -> str:
    """``digits`` significant digits; a dash for what was not measured (epsilon: privacy is off)."""
    return "-" if value is None else f"{value:.{digits}g}"


def _labels(row: Row) -> list[str]:
    """The label of a row that has one (`manifed.privacy.label`)."""
    found = row.get("label")
    return [found] if isinstance(found, str) else []


class OverRuns(Protocol):
    """What is told of each run that has ended, with the line of its error if it failed."""

    def __call__(self, name: str, error: str | None) -> None:
        """Show that one more has ended."""
        ...


@contextmanager
def over_runs(total: int, stream: TextIO | None = None) -> Generator[OverRuns, None, None]:
    """One bar over all runs on a terminal, what failed above it; elsewhere a line for each run."""
    target = stream if stream is not None else sys.stderr
    if not is_screen(target):
        yield _line_a_run(total, target)
        return
    from rich import progress as rich
    from rich.console import Console

    bar = rich.Progress(
        rich.TextColumn("runs"),
        rich.MofNCompleteColumn(),
        rich.BarColumn(bar_width=24),
        rich.TextColumn("{task.fields[last]}", markup=False),
        rich.TimeRemainingColumn(),
        console=Console(file=target),
    )
    with bar:
        task = bar.add_task("runs", total=total, last="")

        def show(name: str, error: str | None) -> None:
            if error is not None:
                bar.console.print(f"{name}: FAILED: {error}", markup=False, highlight=False)
            bar.update(task, advance=1, last=name[-LONGEST:])

        yield show


def _line_a_run(total: int, stream: TextIO) -> OverRuns:
    began, done = time.monotonic(), 0

    def show(name: str, error: str | None) -> None:
        nonlocal done
        done += 1
        left = (time.monotonic() - began) / done * (total - done)
        state = f"about {duration(left)} left" if error is None else f"FAILED: {error}"
        stream.write(f"{done}/{total} {name}: {state}\n")
        stream.flush()

    return show


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def watched(
    num_rounds: int, *, is_shown: bool | None = None, stream: TextIO | None = None
) -> Generator[Callable[[int, Row], None], None, None]:
    """What a fit tells its rounds to: one line, rewritten in place, with a bar and the newest row.

    A notebook rewrites it as a terminal does, and needs no widgets for that.

    Args:
        num_rounds: how many there are to be.
        is_shown: None: in a notebook and on a terminal.
        stream: where; None: standard error.
    """
    target = stream if stream is not None else sys.stderr
    if not (target.isatty() or "ipykernel" in sys.modules if is_shown is None else is_shown):
        yield lambda _server_round, _row: None
        return
    longest = 0

    def show(server_round: int, row: Row) -> None:
        nonlocal longest
        full = WIDTH * server_round // num_rounds
        numbers = {k: v for k, v in row.items() if k not in (*UNTOLD, "label")}
        cells = _labels(row) + [f"{k.replace('_', ' ')} {_number(v)}" for k, v in numbers.items()]
        bar = "#" * full + "-" * (WIDTH - full)
        line = "  ".join([f"round {server_round}/{num_rounds} [{bar}]", *cells])
        longest = max(longest, len(line))
        target.write(f"\r{line:<{longest}}")
        target.flush()

    try:
        yield show
    finally:
        target.write("\n" if longest else "")
        target.flush()
