"""C3 to C13: the claims of the projected federated learning paper, measured.

The runs are those of configs/figures/001_*.toml, shortened where a claim needs fewer rounds,
and ended on their plateau where the gradient norm has not fallen by 1 % in ``patience`` rounds.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch

from manifed.experiment.assembly import load_shards
from manifed.experiment.evaluation import client_shares
from reproduction.findings import Finding, Part
from reproduction.race import Result, raced, run
from reproduction.trials import best_point, curve

ROUNDING = 1e-12
"""A gradient this much shorter than the first is a sum of what cancelled."""
ALL = ("projected", "rfedavg", "rfedprox", "rfedsvrg")
TAUS = ("10", "15", "20")


def at(result: Result, *rounds: int) -> dict[str, float]:
    """Gradient norms by round."""
    return {str(r): result.gradient_norms[r] for r in rounds}


def finals(results: Mapping[str, Result]) -> dict[str, float]:
    """The last gradient norms by name."""
    return {name: result.final for name, result in results.items()}


def endings(results: Mapping[str, Result]) -> dict[str, float | str]:
    """`finals`, as a bound where one is lost in the rounding of the first."""
    floors = {name: ROUNDING * result.gradient_norms[0] for name, result in results.items()}
    return {
        name: final if final > floors[name] else f"< {floors[name]:.1g}"
        for name, final in finals(results).items()
    }


def check_c3() -> Finding:
    """From the optimum with zero corrections RFedAvg leaves for good, Algorithm 1 comes back."""
    ours, averaged = (
        run(curve(f"001_6_{name}", step_size=2e-3, num_rounds=rounds), start=best_point)
        for name, rounds in (("projected", 400), ("rfedavg", 100))
    )
    return Finding(
        "no client drift: from the optimum Algorithm 1 comes back, RFedAvg leaves for good",
        ours.final < 1e-3 and averaged.final > 0.3,
        {"projected": at(ours, 0, 1, 10, 100, 400), "rfedavg": at(averaged, 0, 10, 100)},
    )


def check_c4(seeds: Sequence[int] = range(10)) -> Finding:
    """Synthetic kPCA at the paper's eta: drift-corrected algorithms converge, averaging stalls.

    Converging is judged by two orders of magnitude of |grad| below where averaging stays.
    """
    each = [finals(raced("001_6_", ALL, patience=100, seed=s, step_size=4e-3)) for s in seeds]
    parts = [
        Part(
            f"log10 of RFedAvg's |grad| over that of {name} at 500 rounds",
            [float(np.log10(one["rfedavg"] / one[name])) for one in each],
            least=2.0,
        )
        for name in ("projected", "rfedsvrg")
    ]
    parts += [
        Part(f"|grad| of {name} at 500 rounds", [one[name] for one in each], least=0.5)
        for name in ("rfedavg", "rfedprox")
    ]
    numbers = {f"seed {s}, |grad| at 500": one for s, one in zip(seeds, each, strict=True)}
    return Finding.judged(
        "synthetic kPCA, eta 4e-3: ours and RFedSVRG converge, RFedAvg and RFedProx stall",
        parts,
        numbers,
        seeds,
    )


def check_c5() -> Finding:
    """Ours needs at most 0.55 times the uploads of RFedSVRG at equal step size."""
    numbers = {}
    for stem, target in (("001_6_", 1e-2), ("001_4_exact-", 1e-4)):
        ends = raced(stem, ("projected", "rfedsvrg"), [target], stops=True)
        uploads = {name: result.uploads(target) for name, result in ends.items()}
        ratio = uploads["projected"] / uploads["rfedsvrg"]
        numbers[stem[:-1]] = {**uploads, "ratio": ratio}
    return Finding(
        "at most 0.55 times the uploads of RFedSVRG at equal eta",
        all(entry["ratio"] <= 0.55 for entry in numbers.values()),
        numbers,
    )


def falls(values: Sequence[float]) -> bool:
    """Whether each value is below the one before it."""
    return all(b < a for a, b in pairwise(values))


def check_c6() -> Finding:
    """More local steps: fewer uploads for Algorithm 1, a higher plateau for RFedAvg."""
    ours = raced("001_7_projected-tau-", TAUS, [1e-2], num_rounds=1000).values()
    flat = finals(raced("001_7_rfedavg-tau-", TAUS, patience=100, num_rounds=500))
    uploads = [result.uploads(1e-2) for result in ours]
    ends = [result.final for result in ours]
    return Finding(
        "more local steps: fewer uploads for ours, a higher plateau for RFedAvg",
        falls(uploads)
        and falls([-plateau for plateau in flat.values()])
        and all(b < a / 10 for a, b in pairwise(ends)),
        {"uploads to 1e-2": uploads, "|grad| at 1000": ends, "rfedavg plateau": flat},
    )


def check_c7() -> Finding:
    """Digits: after 1000 rounds the corrected algorithms are far below averaging's plateau."""
    ends = raced("001_1_digits-", ALL, patience=250)
    final = finals(ends)
    found = load_shards(curve("001_1_digits-projected"))
    shares = client_shares((1,) * 10, "uniform")
    best = found.problem.optimum(found.examples, shares)
    gaps = {
        name: float(found.problem.objective(result.model, found.examples, shares)) - best.value
        for name, result in ends.items()
    }
    angle = found.problem.metrics(ends["projected"].model, best, {})["principal_angle"]
    plateau = min(final["rfedavg"], final["rfedprox"])
    return Finding(
        "digits: after 1000 rounds the corrected algorithms are far below averaging's plateau",
        30 * max(final["projected"], final["rfedsvrg"]) <= plateau
        and 50 * max(gaps["projected"], gaps["rfedsvrg"]) <= gaps["rfedavg"],
        {"|grad|": final, "f - f*": gaps, "angle": angle},
    )


def check_c8() -> Finding:
    """Stochastic gradients: a floor whose mean square falls like the sampling variance."""
    runs = {
        b: run(curve(f"001_3_digits-batch-{b}", num_rounds=400), start=best_point)
        for b in (9, 18, 45, 90, 179)
    }
    full = runs.pop(179).final
    floors = {
        str(b): float(np.square(result.gradient_norms[-200:]).mean()) for b, result in runs.items()
    }
    scaled = [floors[str(b)] * b / (1 - (b - 1) / 178) for b in runs]
    ratios = [one / scaled[0] for one in scaled[1:]]
    return Finding(
        "minibatches end in a floor whose mean square falls like the sampling variance",
        all(0.5 <= r <= 2 for r in ratios) and full < 0.05 * floors["90"] ** 0.5,
        {"mean square": floors, "relative to sampling variance": ratios, "full": full},
    )


def check_c9() -> Finding:
    """Matrix completion: as many rounds as RFedSVRG, half the uploads; RFedAvg needs conflict."""
    numbers = {}
    are_alike = []
    for eta in (2e-5, 5e-5):
        few = ("projected", "rfedsvrg", "rfedavg")
        ends = raced("001_4_exact-", few, [1e-4], stops=True, step_size=eta)
        rounds = {n: r.reached[1e-4].rounds if r.reached else None for n, r in ends.items()}
        numbers[f"rounds to 1e-4 at {eta:g}"] = rounds
        are_alike.append(abs(rounds["projected"] / rounds["rfedsvrg"] - 1) <= 0.2)
    noisy = raced("001_4_noisy-", ALL, patience=30, num_rounds=80)
    numbers |= {
        "noisy, |grad| at 80": endings(noisy),
        "heterogeneous, |grad| at 200": endings(raced("001_4_heterogeneous-", ALL, patience=30)),
    }
    converges = noisy["projected"].final <= 1e-6 and noisy["rfedavg"].final >= 1
    return Finding(
        "matrix completion: as many rounds as RFedSVRG, half the uploads",
        all(are_alike) and converges,
        numbers,
        remark="Regime: eta = 2e-5. Rounds are alike to 20 %.",
        in_regime=are_alike[0] and converges,
    )


def check_c10() -> Finding:
    """Matrix completion: more local steps, fewer uploads."""
    found = raced("001_9_projected-tau-", TAUS, [1e-4], stops=True)
    uploads = [result.uploads(1e-4) for result in found.values()]
    return Finding(
        "matrix completion: more local steps, fewer uploads",
        falls(uploads),
        {"uploads to 1e-4": uploads},
    )


def check_c12() -> Finding:
    """CPU time a round: ours is fastest and RFedProx slowest, with exact maps and without."""
    numbers = {}
    for maps in ("exact", "retraction"):
        times = {}
        for name in ALL:
            chosen = {} if name == "projected" else {"maps": maps}
            config = curve(f"001_6_{name}", num_rounds=60, step_size=2e-3, **chosen)
            times[name] = 1e3 * min(run(config).seconds_per_round for _ in range(3))
        numbers[f"CPU ms a round, {maps}"] = times
    exact, approximate = (
        min(t, key=t.__getitem__) == "projected" and max(t, key=t.__getitem__) == "rfedprox"
        for t in numbers.values()
    )
    return Finding(
        "ours is the cheapest round and RFedProx the dearest, with exact maps and without",
        exact and approximate,
        numbers,
        remark="Regime: exact maps.",
        in_regime=exact,
    )


def check_c13() -> Finding:
    """Limits: a narrower window than RFedSVRG's, its edge at eta = 4e-3, and centred data."""
    two = ("projected", "rfedsvrg")
    window = {
        f"{eta:g}": raced("001_6_", two, patience=100, step_size=eta)
        for eta in (5e-3, 8e-3, 1.2e-2)
    }
    edge = [run(curve("001_6_projected", seed=seed)).final for seed in range(4)]
    config = curve("001_1_digits-projected", is_centred=True)
    z = torch.cat([s["z"] for s in load_shards(config).examples]) / 179**0.5
    beta = float(torch.linalg.eigvalsh(z.mT @ z)[-1])
    centred = {
        f"{c}/beta": raced(
            "001_1_digits-", two, is_centred=True, step_size=c / beta, num_rounds=300
        )
        for c in (1.0, 0.5)
    }
    is_true = window["0.008"]["projected"].final > 0.1 > window["0.008"]["rfedsvrg"].final
    is_true &= centred["1.0/beta"]["projected"].final > 1 > centred["0.5/beta"]["projected"].final
    return Finding(
        "limits: a narrower window of eta than RFedSVRG's, its edge at 4e-3, centred data",
        is_true and sum(end > 5e-3 for end in edge) >= 2,
        {
            "synthetic, |grad| at 500, by eta": {e: endings(ends) for e, ends in window.items()},
            "synthetic, eta 4e-3, |grad| at 500, seeds 0-3": edge,
            "centred digits, |grad| at 300": {c: endings(ends) for c, ends in centred.items()},
        },
    )
