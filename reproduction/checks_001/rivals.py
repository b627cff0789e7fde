"""STEP and PAIR: Algorithm 1 against RFedSVRG on Figure 6, each at the steps that suit it best.

C5 compares the two at the paper's step size. RFedAvg and RFedProx drift, and do not get to the
target at any step size.
"""

from collections.abc import Iterable, Sequence

from reproduction.checks_001.claims import fewer_part
from reproduction.findings import Finding
from reproduction.race import Result, run
from reproduction.trials import curve

TARGET = 1e-2
"""Of |grad f|; an upload is a matrix that one client sends until then."""
PAPER_STEP_SIZE = 4e-3
GRID = (6.0, 5.0, 4.0, 3.0, 2.0, 1.5, 1.25, 1.0, 0.75, 0.5, 0.25, 0.125, 0.0625)
"""Multiples of the paper's step size that every algorithm may choose from."""
TOTALS = (4.0, 5.0, 6.0, 7.0, 8.0)
LOCALS = (0.25, 0.5, 1.0, 2.0)
"""Multiples for step_size * server_step_size and for step_size in the search over both."""
PATIENCE = 150
"""A tuning run ends after so many rounds without a gradient norm 1 % below all before."""
LAST = 2000
"""It ends at this round, too, or at that in which the best so far was there."""
Pairs = Sequence[tuple[float, float | None]]


def best(name: str, seed: int, pairs: Pairs) -> Result:
    """The run of a pair of step sizes that reaches the target with the fewest uploads.

    Else that of the smallest gradient norm.
    """
    tried = []
    last = LAST
    for step, server in pairs:
        changes = {"seed": seed, "num_rounds": last, "step_size": step * PAPER_STEP_SIZE}
        changes |= {} if server is None else {"server_step_size": server}
        one = run(curve(f"001_6_{name}", **changes), [TARGET], stops=True, patience=PATIENCE)
        tried.append(one)
        last = one.reached[TARGET][0] if TARGET in one.reached else last
    return min(tried, key=lambda result: (result.uploads(TARGET), result.final))


def compared(claim: str, pairs: Pairs, seeds: Iterable[int]) -> Finding:
    """Holds where RFedSVRG needs at least as many uploads as ours, each at its best pair."""
    each = [{a: best(a, seed, pairs) for a in ("projected", "rfedsvrg")} for seed in seeds]
    uploads = {a: [found[a].uploads(TARGET) for found in each] for a in each[0]}
    chosen = {
        f"eta, eta_g and uploads of {a}": [
            [found[a].step_size, found[a].server_step_size, found[a].uploads(TARGET)]
            for found in each
        ]
        for a in each[0]
    }
    both = [*zip(uploads["projected"], uploads["rfedsvrg"], strict=True)]
    return Finding.judged(claim, [fewer_part("to 1e-2", both)], chosen, seeds)


def check_step(seeds: Sequence[int] = range(10)) -> Finding:
    """Each algorithm at its best step of the grid."""
    pairs = [(factor, None) for factor in GRID]
    return compared("each at its best eta, ours needs the fewest uploads", pairs, seeds)


def check_pair(seeds: Sequence[int] = range(10)) -> Finding:
    """Each at its best pair; one that leaves the tube is out."""
    pairs = [(local, total / local) for total in TOTALS for local in LOCALS]
    return compared(
        "each at its best pair (eta, eta_g), ours needs the fewest uploads", pairs, seeds
    )
