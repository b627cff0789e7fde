"""What goes beyond the paper as measured checks: partial participation and private training.

PARTIAL, EXAMPLE and CLIENT, on the data of configs/figures/001_partial.toml and
001_private-*.toml.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from manifed.algorithms.projected import Projected
from manifed.experiment.assembly import load_shards
from manifed.experiment.evaluation import client_shares
from manifed.experiment.schema import Experiment
from manifed.federation.cohorts import FixedSize
from manifed.plan import planned_statement
from reproduction.findings import Finding, Part
from reproduction.race import run
from reproduction.trials import curve

Gaps = Mapping[str, float]
"""What is left, by algorithm."""


def gap_of(config: Experiment) -> float:
    """(f - f*) / |f*| at the model after all rounds, all data."""
    x = run(config).model
    found = load_shards(config)
    shares = client_shares(found.sizes, "uniform")
    best = found.problem.optimum(found.examples, shares).value
    return (float(found.problem.objective(x, found.examples, shares)) - best) / abs(best)


def partial_parts(each: Sequence[Gaps]) -> list[Part]:
    """At most twice the gradient of everybody; the others at least thirty times."""

    def over(name: str, other: str) -> list[float]:
        return [float(np.log10(one[name] / one[other])) for one in each]

    ours = "control variates"
    return [
        Part(f"log10 of |grad| with {ours} over everybody's", over(ours, "everybody"),
             most=float(np.log10(2))),
        *(Part(f"log10 of {name} over {ours}", over(name, ours), least=float(np.log10(30)))
          for name in ("stale", "rfedavg")),
    ]  # fmt: skip


def check_partial(seeds: Sequence[int] = range(10)) -> Finding:
    """Ten of thirty a round: with control variates as with everybody, stale ones never."""

    def ends(seed: int) -> dict[str, float]:
        changes = {"seed": seed, "step_size": 2e-3}
        naive = curve("001_6_projected", **changes, tube_radius=1e9)
        found = {
            "control variates": run(curve("001_partial-control-variates", **changes)),
            "stale": run(naive, cohort=FixedSize(cohort_size=10), patience=100),
            "rfedavg": run(curve("001_partial-rfedavg", **changes), patience=100),
            "everybody": run(curve("001_6_projected", **changes)),
        }
        return {name: end.final for name, end in found.items()}

    return Finding.judged(
        "ten of thirty a round: with control variates at the server it converges as with all",
        partial_parts([ends(seed) for seed in seeds]),
        {},
        seeds,
    )


def example_part(each: Sequence[Gaps]) -> Part:
    """Ours ends below RFedAvg."""
    ratios = [one["projected"] / one["rfedavg"] for one in each]
    return Part("cost gap of ours over RFedAvg's", ratios, most=1.0)


def check_example(seeds: Sequence[int] = range(10)) -> Finding:
    """At (4, 1e-5) for every image, even against the server, ours ends below RFedAvg."""
    each = [
        {
            name: gap_of(curve(f"001_private-example-{name}", seed=s))
            for name in ("projected", "rfedavg")
        }
        for s in seeds
    ]
    return Finding.judged(
        "(4, 1e-5) for every image, even against the server: ours ends below RFedAvg",
        [example_part(each)],
        {"epsilon": _epsilons("example", "server")},
        seeds,
    )


class LetThrough(Projected):
    """Projected steps whose corrected uploads are not refused, to show why they are."""

    def check(self, setting: Any) -> None:
        """Refuse nothing."""


FACTORS = {20: 2.0, 200: 8.0}
"""How many times the gap of plain uploads corrected ones leave at least, by rounds."""


def client_parts(rounds: int, each: Sequence[Gaps]) -> list[Part]:
    """Plain uploads within 2 % of RFedAvg, corrected ones far behind."""
    return [
        Part(
            f"cost gap of {name} over that of {other}, {rounds} rounds",
            [one[name] / one[other] for one in each],
            **bound,
        )
        for name, other, bound in (
            ("plain", "rfedavg", {"most": 1.02}),
            ("corrected", "plain", {"least": FACTORS[rounds]}),
        )
    ]


def check_client(seeds: Sequence[int] = range(10)) -> Finding:
    """At (8, 1e-3) for every client plain uploads keep up with RFedAvg, corrected ones do not."""

    def gaps(seed: int, rounds: int) -> dict[str, float]:
        changes = {"seed": seed, "num_rounds": rounds}
        plain = curve("001_private-client-projected", **changes)
        training = LetThrough(**{**plain.training.model_dump(), "upload": "corrected"})
        return {
            "plain": gap_of(plain),
            "corrected": gap_of(plain.model_copy(update={"training": training})),
            "rfedavg": gap_of(curve("001_private-client-rfedavg", **changes)),
        }

    return Finding.judged(
        "(8, 1e-3) for every client: plain uploads keep up with RFedAvg, corrected do not",
        [
            part
            for rounds in FACTORS
            for part in client_parts(rounds, [gaps(seed, rounds) for seed in seeds])
        ],
        {"epsilon": _epsilons("client", "client-level")},
        seeds,
    )


def _epsilons(unit: str, adversary: str) -> dict[str, float]:
    """What each config of ``unit`` spends over its rounds, against ``adversary``."""
    spent = {}
    for name in ("projected", "rfedavg"):
        config = curve(f"001_private-{unit}-{name}")
        told = planned_statement(config.setting, load_shards(config).sizes)["adversaries"]
        (spent[name],) = (found["epsilon"] for found in told if found["name"] == adversary)
    return spent
