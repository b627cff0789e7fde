"""What goes beyond the paper as measured checks: partial participation and private training.

PARTIAL, EXAMPLE and CLIENT, on the data of configs/figures/001_partial.toml and
001_private-*.toml.
"""

from statistics import mean
from typing import Any

from manifed.algorithms.projected import Projected
from manifed.experiment.assembly import load_shards
from manifed.experiment.evaluation import client_shares
from manifed.experiment.load import parse
from manifed.experiment.schema import Experiment
from manifed.federation.cohorts import FixedSize
from manifed.plan import planned_statement
from reproduction.findings import Finding, verdict_of
from reproduction.race import Result, run
from reproduction.trials import table

SEEDS = (0, 1, 2)


def cost_gap(config: Experiment, result: Result) -> float:
    """(f - f*) / |f*| at the model of a run, all data."""
    found = load_shards(config)
    shares = client_shares(found.sizes, "uniform")
    best = found.problem.optimum(found.examples, shares).value
    return (float(found.problem.objective(result.model, found.examples, shares)) - best) / abs(best)


def gap_of(config: Experiment) -> float:
    """`cost_gap` after all rounds."""
    return cost_gap(config, run(config))


def check_partial() -> Finding:
    """Ten of thirty a round: with control variates as with everybody, stale ones never."""
    numbers = {}
    is_true = True
    for seed in SEEDS[:2]:
        changes = {"seed": seed, "step_size": 2e-3}
        whole = table("001_6_projected", **changes)
        naive = table("001_6_projected", **changes)
        naive["training"]["tube_radius"] = 1e9
        ends = {
            "control variates": run(table("001_partial-control-variates", **changes)),
            "stale": run(naive, cohort=FixedSize(cohort_size=10), patience=100),
            "rfedavg": run(table("001_partial-rfedavg", **changes), patience=100),
            "everybody": run(whole),
        }
        final = {name: end.final for name, end in ends.items()}
        numbers[f"seed {seed}, |grad|"] = final
        is_true &= final["control variates"] <= 2 * final["everybody"]
        is_true &= min(final["stale"], final["rfedavg"]) >= 30 * final["control variates"]
    price = run(table("001_partial-control-variates"), [1e-2], stops=True).reached[1e-2]
    full = run(table("001_6_projected", step_size=2e-3), [1e-2], stops=True).reached[1e-2]
    numbers["messages up to 1e-2, seed 0"] = [10 * price.rounds, 30 * full.rounds]
    numbers["MB both ways to 1e-2, seed 0"] = [price.wire_bytes / 1e6, full.wire_bytes / 1e6]
    return Finding(
        "PARTIAL",
        "ten of thirty a round: with control variates at the server it converges as with all",
        verdict_of(is_true),
        numbers,
        SEEDS[:2],
    )


def check_example() -> Finding:
    """At (4, 1e-5) for every image, even against the server, ours ends below RFedAvg."""
    names = ("projected", "rfedavg")
    gaps = {
        name: [gap_of(parse(table(f"001_private-example-{name}", seed=s))) for s in SEEDS]
        for name in names
    }
    is_true = all(a < b for a, b in zip(gaps["projected"], gaps["rfedavg"], strict=True))
    numbers = {"relative cost gap": gaps, "epsilon": _epsilons("example", "server")}
    return Finding(
        "EXAMPLE",
        "(4, 1e-5) for every image, even against the server: ours ends below RFedAvg",
        verdict_of(is_true),
        numbers,
        SEEDS,
    )


class LetThrough(Projected):
    """Projected steps whose corrected uploads are not refused, to show why they are."""

    def check(self, setting: Any) -> None:
        """Refuse nothing."""


def check_client() -> Finding:
    """At (8, 1e-3) for every client plain uploads keep up with RFedAvg, corrected ones do not."""
    numbers = {}
    is_true = True
    for rounds in (20, 200):
        gaps = {"plain": [], "corrected": [], "rfedavg": []}
        for seed in SEEDS:
            changes = {"seed": seed, "rounds": rounds}
            plain = parse(table("001_private-client-projected", **changes))
            training = LetThrough(**{**plain.training.model_dump(), "upload": "corrected"})
            gaps["plain"].append(gap_of(plain))
            gaps["corrected"].append(gap_of(plain.model_copy(update={"training": training})))
            averaged = parse(table("001_private-client-rfedavg", **changes))
            gaps["rfedavg"].append(gap_of(averaged))
        numbers[f"relative cost gap, {rounds} rounds"] = gaps
        is_true &= mean(gaps["plain"]) <= 1.02 * mean(gaps["rfedavg"])
        is_true &= mean(gaps["corrected"]) >= (2 if rounds == 20 else 8) * mean(gaps["plain"])
    numbers["epsilon"] = _epsilons("client", "client-level")
    return Finding(
        "CLIENT",
        "(8, 1e-3) for every client: plain uploads keep up with RFedAvg, corrected do not",
        verdict_of(is_true),
        numbers,
        SEEDS,
    )


def _epsilons(unit: str, adversary: str) -> dict[str, float]:
    """What each config of ``unit`` spends over its rounds, against ``adversary``."""
    return {
        name: next(
            found["epsilon"]
            for found in _planned(parse(table(f"001_private-{unit}-{name}")))
            if found["name"] == adversary
        )
        for name in ("projected", "rfedavg")
    }


def _planned(config: Experiment) -> list[dict[str, Any]]:
    return planned_statement(config.setting, load_shards(config).sizes)["adversaries"]
