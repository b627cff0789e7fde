"""C3 to C13: the claims of the projected federated learning paper, measured.

The runs are those of configs/figures/001_*.toml, shortened where a claim needs fewer rounds,
and ended on their plateau where the gradient norm has not fallen by 1 % in ``patience`` rounds.
"""

import math
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


LABELS = {"rfedavg": "RFedAvg", "rfedprox": "RFedProx"}


def above(
    each: Sequence[Mapping[str, float]], what: str, rounds: int, rivals: Sequence[str]
) -> list[Part]:
    """Rivals that drift stay two orders of magnitude above both that are corrected."""
    return [
        Part(
            f"log10 of {LABELS[rival]}'s {what} over that of {name} at {rounds} rounds",
            [float(np.log10(one[rival] / one[name])) for one in each],
            least=2.0,
        )
        for rival in rivals
        for name in ("projected", "rfedsvrg")
    ]


def drift_parts(each: Sequence[tuple[Result, Result]]) -> list[Part]:
    """Ours and RFedAvg, both from the optimum of the pooled problem."""
    back = [float(np.log10(ours.final / ours.gradient_norms[1])) for ours, _ in each]
    apart = [float(np.log10(averaged.final / ours.final)) for ours, averaged in each]
    return [
        Part("log10 of ours after 400 rounds over ours after one", back, most=-2.0),
        Part("log10 of RFedAvg's |grad| after 100 rounds over ours after 400", apart, least=2.0),
    ]


def check_c3(seeds: Sequence[int] = range(10)) -> Finding:
    """From the optimum with zero corrections RFedAvg leaves for good, Algorithm 1 comes back."""

    def left(name: str, rounds: int, seed: int) -> Result:
        config = curve(f"001_6_{name}", step_size=2e-3, num_rounds=rounds, seed=seed)
        return run(config, start=best_point)

    each = [(left("projected", 400, s), left("rfedavg", 100, s)) for s in seeds]
    ours, averaged = each[0]
    return Finding.judged(
        "no client drift: from the optimum Algorithm 1 comes back, RFedAvg leaves for good",
        drift_parts(each),
        {"projected": at(ours, 0, 1, 10, 100, 400), "rfedavg": at(averaged, 0, 10, 100)},
        seeds,
    )


def check_c4(seeds: Sequence[int] = range(10)) -> Finding:
    """Synthetic kPCA at the paper's eta: drift-corrected algorithms converge, averaging stalls.

    Converging is judged by two orders of magnitude of |grad| below where averaging stays.
    """
    each = [finals(raced("001_6_", ALL, patience=100, seed=s, step_size=4e-3)) for s in seeds]
    parts = above(each, "|grad|", 500, ("rfedavg",))
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


def fewer_part(name: str, uploads: Sequence[tuple[float, float]]) -> Part:
    """Uploads of ours and of RFedSVRG; a seed where ours never gets there has no ratio."""
    ratios = [reduced / ours if ours < math.inf else math.nan for ours, reduced in uploads]
    return Part(f"{name}: uploads of RFedSVRG over ours", ratios, least=1.0)


def check_c5(seeds: Sequence[int] = range(10)) -> Finding:
    """RFedSVRG uploads more than ours at equal step size."""

    def uploads(stem: str, target: float, seed: int) -> tuple[float, float]:
        changes = {"seed": seed, "num_rounds": 2000}
        ends = raced(stem, ("projected", "rfedsvrg"), [target], stops=True, **changes)
        return ends["projected"].uploads(target), ends["rfedsvrg"].uploads(target)

    return Finding.judged(
        "fewer uploads than RFedSVRG at equal eta",
        [
            fewer_part(name, [uploads(stem, target, seed) for seed in seeds])
            for name, stem, target in (
                ("synthetic kPCA to 1e-2", "001_6_", 1e-2),
                ("matrix completion to 1e-4", "001_4_exact-", 1e-4),
            )
        ],
        {},
        seeds,
    )


def faster_parts(what: str, each: Sequence[Sequence[float]]) -> list[Part]:
    """What is left, or sent, for each of ``TAUS``: log10 of each over the next."""
    return [
        Part(
            f"log10 of {what} at tau = {few} over that at {many}",
            [float(np.log10(one[at] / one[at + 1])) for one in each],
            least=0.0,
        )
        for at, (few, many) in enumerate(pairwise(TAUS))
    ]


def check_c6(seeds: Sequence[int] = range(10)) -> Finding:
    """More local steps: a smaller gradient for Algorithm 1, a higher plateau for RFedAvg."""

    def left(stem: str, rounds: int, patience: int | None) -> list[list[float]]:
        return [
            [*finals(raced(stem, TAUS, patience=patience, num_rounds=rounds, seed=s)).values()]
            for s in seeds
        ]

    ours = left("001_7_projected-tau-", 1000, None)
    flat = left("001_7_rfedavg-tau-", 500, 100)
    ratios = [one[-1] / one[0] for one in flat]
    return Finding.judged(
        "more local steps converge faster; RFedAvg's plateau grows",
        [
            *faster_parts("|grad| of ours after 1000 rounds", ours),
            Part("RFedAvg's plateau at tau = 20 over that at 10 (ours)", ratios, least=1.0),
        ],
        {"|grad| at 1000, by seed and tau": ours, "rfedavg's plateau": flat},
        seeds,
    )


def check_c7(seeds: Sequence[int] = range(10)) -> Finding:
    """Digits: after 1000 rounds the corrected algorithms are far below averaging's plateau."""
    found = load_shards(curve("001_1_digits-projected"))
    shares = client_shares((1,) * 10, "uniform")
    best = found.problem.optimum(found.examples, shares)
    norms = []
    gaps = []
    for seed in seeds:
        ends = raced("001_1_digits-", ALL, patience=250, seed=seed)
        norms.append(finals(ends))
        values = {
            n: found.problem.objective(r.model, found.examples, shares) for n, r in ends.items()
        }
        gaps.append({name: float(value) - best.value for name, value in values.items()})
    drifting = ("rfedavg", "rfedprox")
    return Finding.judged(
        "digits: after 1000 rounds the corrected algorithms are far below averaging's plateau",
        [*above(norms, "|grad|", 1000, drifting), *above(gaps, "f - f*", 1000, drifting)],
        {
            f"seed {s}, [|grad|, f - f*]": [*both]
            for s, *both in zip(seeds, norms, gaps, strict=True)
        },
        seeds,
    )


BATCHES = (9, 18, 45, 90)
"""Of 179 examples."""


def floor_parts(floors: Sequence[Mapping[int, float]], full: float) -> list[Part]:
    """How mean squares of |grad| on the floor lie, by batch size; |grad| of full gradients."""
    parts = [
        Part(
            f"mean square at b = {small} over that at b = {large}",
            [one[small] / one[large] for one in floors],
            least=1.0,
        )
        for small, large in pairwise(BATCHES)
    ]
    over = [{b: one[b] * b / (1 - (b - 1) / 178) for b in BATCHES} for one in floors]
    parts += [
        Part(
            f"mean square over the sampling variance, b = {b} against b = {BATCHES[0]}",
            [one[b] / one[BATCHES[0]] for one in over],
            least=0.5,
            most=2.0,
        )
        for b in BATCHES[1:]
    ]
    shares = [full / one[BATCHES[-1]] ** 0.5 for one in floors]
    return [*parts, Part("|grad| of full gradients over the floor at b = 90", shares, most=0.05)]


def check_c8(seeds: Sequence[int] = range(2)) -> Finding:
    """Stochastic gradients: a floor whose mean square falls like the sampling variance."""

    def ended(batch: int, seed: int) -> Result:
        config = curve(f"001_3_digits-batch-{batch}", num_rounds=400, seed=seed)
        return run(config, start=best_point)

    def floor(batch: int, seed: int) -> float:
        return float(np.square(ended(batch, seed).gradient_norms[-200:]).mean())

    floors = [{b: floor(b, seed) for b in BATCHES} for seed in seeds]
    full = ended(179, 0).final
    return Finding.judged(
        "minibatches end in a floor whose mean square falls like the sampling variance",
        floor_parts(floors, full),
        {"mean square": dict(zip(map(str, seeds), floors, strict=True)), "full": full},
        seeds,
    )


STEPS = (2e-5, 5e-5)


def completion_parts(uploads: Sequence[Mapping[float, Mapping[str, float]]]) -> list[Part]:
    """Uploads to 1e-4 by step size and algorithm; RFedSVRG uploads twice a round, others once."""
    parts = []
    for eta in STEPS:
        ours, averaged, reduced = (
            np.array([one[eta][name] for one in uploads])
            for name in ("projected", "rfedavg", "rfedsvrg")
        )
        parts += [
            Part(
                f"rounds of ours over those of RFedSVRG, eta {eta:g}",
                (ours / (reduced / 2)).tolist(),
                least=0.8,
                most=1.2,
            ),
            Part(
                f"uploads of RFedSVRG over ours, eta {eta:g}", (reduced / ours).tolist(), least=1.0
            ),
            Part(
                f"uploads of RFedAvg over ours, eta {eta:g}", (averaged / ours).tolist(), least=1.0
            ),
        ]
    return parts


def check_c9(seeds: Sequence[int] = range(10)) -> Finding:
    """Matrix completion: as many rounds as RFedSVRG, half the uploads; RFedAvg needs conflict."""
    few = ("projected", "rfedsvrg", "rfedavg")
    uploads = []
    noisy = []
    for seed in seeds:
        found = {
            eta: raced("001_4_exact-", few, [1e-4], stops=True, step_size=eta, seed=seed)
            for eta in STEPS
        }
        uploads.append({e: {n: r.uploads(1e-4) for n, r in f.items()} for e, f in found.items()})
        noisy.append(raced("001_4_noisy-", few, patience=30, num_rounds=80, seed=seed))
    parts = completion_parts(uploads)
    parts += above([finals(ends) for ends in noisy], "|grad| where clients conflict", 80, few[2:])
    return Finding.judged(
        "matrix completion: as many rounds as RFedSVRG, fewer uploads than all others",
        parts,
        {
            "uploads to 1e-4": dict(zip(map(str, seeds), uploads, strict=True)),
            "noisy, |grad| at 80": {str(s): endings(n) for s, n in zip(seeds, noisy, strict=True)},
        },
        seeds,
        remark="The paper's data have one optimum for all clients; the noisy ones are ours.",
    )


def check_c10(seeds: Sequence[int] = range(10)) -> Finding:
    """Matrix completion: more local steps, fewer uploads."""
    uploads = []
    for seed in seeds:
        found = raced("001_9_projected-tau-", TAUS, [1e-4], stops=True, seed=seed)
        uploads.append([result.uploads(1e-4) for result in found.values()])
    return Finding.judged(
        "matrix completion: more local steps, fewer uploads",
        faster_parts("uploads to 1e-4", uploads),
        {"uploads to 1e-4, by seed and tau": uploads},
        seeds,
    )


def time_parts(times: Sequence[Mapping[str, Mapping[str, float]]]) -> list[Part]:
    """CPU milliseconds a round by kind of maps and algorithm."""
    return [
        Part(
            f"CPU time a round of {over} over {under}, {maps}",
            [one[maps][over] / one[maps][under] for one in times],
            least=1.0,
        )
        for maps in times[0]
        for over, under in (
            ("rfedavg", "projected"),
            ("rfedsvrg", "projected"),
            ("rfedprox", "projected"),
            ("rfedprox", "rfedavg"),
            ("rfedprox", "rfedsvrg"),
        )
    ]


def check_c12(seeds: Sequence[int] = range(10)) -> Finding:
    """CPU time a round: ours is fastest and RFedProx slowest, with exact maps and without."""

    def milliseconds(name: str, maps: str, seed: int) -> float:
        chosen = {} if name == "projected" else {"maps": maps}
        config = curve(f"001_6_{name}", num_rounds=40, step_size=2e-3, seed=seed, **chosen)
        return 1e3 * min(run(config).seconds_per_round for _ in range(2))

    times = [
        {maps: {n: milliseconds(n, maps, s) for n in ALL} for maps in ("exact", "retraction")}
        for s in seeds
    ]
    return Finding.judged(
        "ours is the cheapest round and RFedProx the dearest, with exact maps and without",
        time_parts(times),
        {f"CPU ms a round, seed {s}": one for s, one in zip(seeds, times, strict=True)},
        seeds,
    )


def limit_parts(
    window: Sequence[Mapping[str, float]], centred: Sequence[Sequence[float]]
) -> list[Part]:
    """|grad| by algorithm at eta = 8e-3; of ours on centred data at 1/beta and half of it."""
    apart = [float(np.log10(one["projected"] / max(one["rfedsvrg"], 1e-11))) for one in window]
    halves = [float(np.log10(whole / half)) for whole, half in centred]
    return [
        Part("log10 of ours over RFedSVRG after 500 rounds, eta 8e-3", apart, least=2.0),
        Part("log10 of ours at 1/beta over 0.5/beta, centred, 300 rounds", halves, least=1.0),
    ]


def check_c13(seeds: Sequence[int] = range(10)) -> Finding:
    """Limits: a narrower window than RFedSVRG's, and centred data."""
    config = curve("001_1_digits-projected", is_centred=True)
    z = torch.cat([s["z"] for s in load_shards(config).examples]) / 179**0.5
    beta = float(torch.linalg.eigvalsh(z.mT @ z)[-1])

    def centred(share: float, seed: int) -> float:
        changes = {"is_centred": True, "step_size": share / beta, "num_rounds": 300}
        return run(curve("001_1_digits-projected", seed=seed, **changes)).final

    two = ("projected", "rfedsvrg")
    window = [finals(raced("001_6_", two, patience=100, step_size=8e-3, seed=s)) for s in seeds]
    on_centred = [[centred(share, seed) for share in (1.0, 0.5)] for seed in seeds]
    return Finding.judged(
        "limits: a narrower window of eta than RFedSVRG's, centred data",
        limit_parts(window, on_centred),
        {"eta 8e-3, |grad| at 500": window, "centred digits, |grad| at 300": on_centred},
        seeds,
    )
