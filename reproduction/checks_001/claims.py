"""C3 to C13: the claims of the projected federated learning paper, measured (spec 001 §8).

The runs are those of configs/figures/001_*.toml, shortened where a claim needs fewer rounds,
and ended on their plateau where the gradient norm has not fallen by 1 % in ``patience`` rounds.
"""

from collections.abc import Mapping

import torch

from manifed.experiment.assembly import load_shards
from manifed.experiment.evaluation import client_shares
from manifed.experiment.load import parse
from reproduction.findings import Finding, verdict_of
from reproduction.race import Result, run
from reproduction.trials import best_point, table

ROUNDING = 1e-12
"""A gradient this much shorter than the first is a sum of what cancelled."""
RIVALS = ("rfedavg", "rfedprox", "rfedsvrg")


def at(result: Result, *rounds: int) -> dict[str, float]:
    """Gradient norms by round."""
    return {str(r): result.gradient_norms[r] for r in rounds}


def ending(result: Result) -> float | str:
    """The last gradient norm, as a bound where it is lost in the rounding of the first."""
    floor = ROUNDING * result.gradient_norms[0]
    return result.final if result.final > floor else f"< {floor:.1g}"


def endings(results: Mapping[str, Result]) -> dict[str, float | str]:
    """`ending` by name."""
    return {name: ending(result) for name, result in results.items()}


def check_c3() -> Finding:
    """From the optimum with zero corrections RFedAvg leaves for good, Algorithm 1 comes back."""
    ours = run(table("001_6_projected", step_size=2e-3, rounds=400), start=best_point)
    averaged = run(table("001_6_rfedavg", step_size=2e-3, rounds=100), start=best_point)
    shown = {"projected": at(ours, 0, 1, 10, 100, 400), "rfedavg": at(averaged, 0, 10, 100)}
    return Finding(
        "C3",
        "no client drift: from the optimum Algorithm 1 comes back, RFedAvg leaves for good",
        verdict_of(ours.final < 1e-3 and averaged.final > 0.3),
        shown,
    )


def check_c4() -> Finding:
    """Synthetic kPCA: both drift-corrected algorithms converge, averaging stalls."""
    numbers = {}
    is_true = True
    for seed, eta in ((0, 4e-3), (1, 3e-3), (2, 3e-3)):
        ends = {
            a: run(table(f"001_6_{a}", seed=seed, step_size=eta), patience=100)
            for a in ("projected", *RIVALS)
        }
        final = {name: result.final for name, result in ends.items()}
        numbers[f"seed {seed}, eta {eta:g}, |grad| at 500"] = final
        is_true &= final["projected"] <= min(5e-3, 1.5 * final["rfedsvrg"])
        is_true &= min(final["rfedavg"], final["rfedprox"]) >= 0.5
        is_true &= final["rfedavg"] / final["projected"] >= 100
    return Finding(
        "C4",
        "synthetic kPCA, equal eta: ours and RFedSVRG converge, RFedAvg and RFedProx stall",
        verdict_of(is_true),
        numbers,
    )


def check_c5() -> Finding:
    """Ours needs at most 0.55 times the uploads of RFedSVRG at equal step size."""
    numbers = {}
    for name, target in (("001_6", 1e-2), ("001_4_exact", 1e-4)):
        mine, theirs = (
            run(table(f"{name}_{a}" if name == "001_6" else f"{name}-{a}"), [target], stops=True)
            for a in ("projected", "rfedsvrg")
        )
        ratio = mine.uploads(target) / theirs.uploads(target)
        numbers[name] = {
            "projected": mine.uploads(target),
            "rfedsvrg": theirs.uploads(target),
            "ratio": ratio,
        }
    is_true = all(entry["ratio"] <= 0.55 for entry in numbers.values())
    return Finding(
        "C5",
        "at most 0.55 times the uploads of RFedSVRG at equal eta",
        verdict_of(is_true),
        numbers,
    )


def check_c6() -> Finding:
    """More local steps: fewer uploads for Algorithm 1, a higher plateau for RFedAvg."""
    ours = {tau: run(table(f"001_7_projected-tau-{tau}", rounds=1000), [1e-2]) for tau in TAUS}
    flat = {
        tau: run(table(f"001_7_rfedavg-tau-{tau}", rounds=500), patience=100).final for tau in TAUS
    }
    uploads = [ours[tau].uploads(1e-2) for tau in TAUS]
    ends = [ours[tau].final for tau in TAUS]
    is_true = uploads[0] > uploads[1] > uploads[2] and flat[10] < flat[15] < flat[20]
    is_true &= ends[1] < ends[0] / 10 and ends[2] < ends[1] / 10
    numbers = {"uploads to 1e-2": uploads, "|grad| at 1000": ends, "rfedavg plateau": flat}
    return Finding(
        "C6",
        "more local steps: fewer uploads for ours, a higher plateau for RFedAvg",
        verdict_of(is_true),
        numbers,
    )


TAUS = (10, 15, 20)


def check_c7() -> Finding:
    """Digits: after 1000 rounds the corrected algorithms are far below averaging's plateau."""
    ends = {a: run(table(f"001_1_digits-{a}"), patience=250) for a in ("projected", *RIVALS)}
    final = {name: result.final for name, result in ends.items()}
    config = parse(table("001_1_digits-projected"))
    found = load_shards(config)
    shares = client_shares((1,) * 10, "uniform")
    best = found.problem.optimum(found.examples, shares)
    gaps = {
        name: float(found.problem.objective(result.model, found.examples, shares)) - best.value
        for name, result in ends.items()
    }
    angle = found.problem.metrics(ends["projected"].model, best, {})["principal_angle"]
    plateau = min(final["rfedavg"], final["rfedprox"])
    is_true = 30 * max(final["projected"], final["rfedsvrg"]) <= plateau
    is_true &= 50 * max(gaps["projected"], gaps["rfedsvrg"]) <= gaps["rfedavg"]
    return Finding(
        "C7",
        "digits: after 1000 rounds the corrected algorithms are far below averaging's plateau",
        verdict_of(is_true),
        {"|grad|": final, "f - f*": gaps, "angle": angle},
    )


def check_c8() -> Finding:
    """Stochastic gradients: a floor whose mean square falls like the sampling variance."""
    floors = {}
    for b in (9, 18, 45, 90):
        result = run(table(f"001_3_digits-batch-{b}", rounds=400), start=best_point)
        tail = torch.tensor(result.gradient_norms[-200:], dtype=torch.float64)
        floors[str(b)] = float(tail.square().mean())
    full = run(table("001_3_digits-batch-179", rounds=400), start=best_point).final
    ratios = [
        floors[str(b)] * b / (1 - (b - 1) / 178) / (floors["9"] * 9 / (1 - 8 / 178))
        for b in (18, 45, 90)
    ]
    is_true = all(0.5 <= r <= 2 for r in ratios) and full < 0.05 * floors["90"] ** 0.5
    numbers = {"mean square": floors, "relative to sampling variance": ratios, "full": full}
    return Finding(
        "C8",
        "minibatches end in a floor whose mean square falls like the sampling variance",
        verdict_of(is_true),
        numbers,
    )


def check_c9() -> Finding:
    """Matrix completion: as many rounds as RFedSVRG, half the uploads; RFedAvg needs conflict."""
    numbers = {}
    is_true = True
    for eta, slack in ((2e-5, 0.2), (5e-5, 0.3)):
        ends = {
            a: run(table(f"001_4_exact-{a}", step_size=eta), [1e-4], stops=True)
            for a in ("projected", "rfedsvrg", "rfedavg")
        }
        rounds = {n: r.reached[1e-4].rounds if r.reached else None for n, r in ends.items()}
        numbers[f"rounds to 1e-4 at {eta:g}"] = rounds
        is_true &= abs(rounds["projected"] / rounds["rfedsvrg"] - 1) <= slack
    noisy = {
        a: run(table(f"001_4_noisy-{a}", rounds=80), patience=30) for a in ("projected", *RIVALS)
    }
    mixed = {a: run(table(f"001_4_heterogeneous-{a}"), patience=30) for a in ("projected", *RIVALS)}
    is_true &= noisy["projected"].final <= 1e-6 and noisy["rfedavg"].final >= 1
    numbers |= {
        "noisy, |grad| at 80": endings(noisy),
        "heterogeneous, |grad| at 200": endings(mixed),
    }
    return Finding(
        "C9",
        "matrix completion: as many rounds as RFedSVRG, half the uploads",
        verdict_of(is_true),
        numbers,
    )


def check_c10() -> Finding:
    """Matrix completion: more local steps, fewer uploads."""
    uploads = [
        run(table(f"001_9_projected-tau-{tau}"), [1e-4], stops=True).uploads(1e-4) for tau in TAUS
    ]
    is_true = uploads[0] > uploads[1] > uploads[2]
    return Finding(
        "C10",
        "matrix completion: more local steps, fewer uploads",
        verdict_of(is_true),
        {"uploads to 1e-4": uploads},
    )


def check_c12() -> Finding:
    """CPU time a round: ours is fastest and RFedProx slowest, with exact maps and without."""
    numbers = {}
    for maps in ("exact", "retraction"):
        times = {}
        for name in ("projected", *RIVALS):
            found = table(f"001_6_{name}", rounds=60, step_size=2e-3)
            if name != "projected":
                found["training"]["maps"] = maps
            times[name] = 1e3 * min(run(found).seconds_per_round for _ in range(3))
        numbers[f"CPU ms a round, {maps}"] = times
    is_true = all(
        min(t, key=lambda name: t[name]) == "projected"
        and max(t, key=lambda name: t[name]) == "rfedprox"
        for t in numbers.values()
    )
    return Finding(
        "C12",
        "ours is the cheapest round and RFedProx the dearest, with exact maps and without",
        verdict_of(is_true),
        numbers,
    )


def check_c13() -> Finding:
    """Limits: a narrower window than RFedSVRG's, its edge at eta = 4e-3, and centred data."""
    window = {
        f"{eta:g}": {
            a: run(table(f"001_6_{a}", step_size=eta), patience=100)
            for a in ("projected", "rfedsvrg")
        }
        for eta in (5e-3, 8e-3, 1.2e-2)
    }
    edge = [run(table("001_6_projected", seed=seed)).final for seed in range(4)]
    config = parse(table("001_1_digits-projected", centred=True))
    z = torch.cat([s["z"] for s in load_shards(config).examples]) / 179**0.5
    beta = float(torch.linalg.eigvalsh(z.mT @ z)[-1])
    centred = {
        f"{c}/beta": {
            a: run(table(f"001_1_digits-{a}", centred=True, step_size=c / beta, rounds=300))
            for a in ("projected", "rfedsvrg")
        }
        for c in (1.0, 0.5)
    }
    is_true = window["0.008"]["projected"].final > 0.1 > window["0.008"]["rfedsvrg"].final
    is_true &= centred["1.0/beta"]["projected"].final > 1 > centred["0.5/beta"]["projected"].final
    is_true &= sum(end > 5e-3 for end in edge) >= 2
    numbers = {
        "synthetic, |grad| at 500, by eta": {eta: endings(ends) for eta, ends in window.items()},
        "synthetic, eta 4e-3, |grad| at 500, seeds 0-3": edge,
        "centred digits, |grad| at 300": {step: endings(ends) for step, ends in centred.items()},
    }
    return Finding(
        "C13",
        "limits: a narrower window of eta than RFedSVRG's, its edge at 4e-3, centred data",
        verdict_of(is_true),
        numbers,
    )
