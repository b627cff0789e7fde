"""CPU seconds of rival implementations, measured interleaved in one process on one thread.

The machine is shared, so wall time and absolute numbers mean little: every rival of one case runs
once per round, rounds repeat, and the smallest CPU time of each rival is kept. Read the ratios.
"""

import time
from collections.abc import Callable, Mapping

Work = Callable[[], object]


def cpu_seconds(work: Work, repeats: int) -> float:
    """CPU seconds of one call, averaged over ``repeats`` calls."""
    start = time.process_time()
    for _ in range(repeats):
        work()
    return (time.process_time() - start) / repeats


def race(rivals: Mapping[str, Work], *, rounds: int = 5, slice_: float = 0.02) -> dict[str, float]:
    """CPU seconds of one call of each rival: the smallest of ``rounds`` interleaved slices.

    Args:
        rivals: what to run, by name.
        rounds: rounds at most; one where a single call exceeds a hundred slices.
        slice_: CPU seconds that one rival gets in one round.
    """
    first = {name: max(cpu_seconds(work, 1), 1e-7) for name, work in rivals.items()}  # warm-up
    first = {
        name: seconds if seconds > 100 * slice_ else max(cpu_seconds(rivals[name], 1), 1e-7)
        for name, seconds in first.items()
    }
    repeats = {name: max(1, int(slice_ / seconds)) for name, seconds in first.items()}
    best = dict(first)
    for _ in range(rounds):
        for name, work in rivals.items():
            if first[name] <= 100 * slice_:
                best[name] = min(best[name], cpu_seconds(work, repeats[name]))
    return best


def milliseconds(seconds: float) -> str:
    """Three significant digits of milliseconds."""
    return f"{seconds * 1e3:.3g}"


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
