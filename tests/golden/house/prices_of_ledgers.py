"""Prices of made-up releases, ledgers and plans, as hexadecimal floats, to compare two versions.

``python tests/golden/house/prices_of_ledgers.py write`` records, without an argument it compares.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

from manifed.privacy import accountant
from manifed.privacy.events import (
    ADVERSARIES,
    OF_MASKS,
    Adversary,
    PoissonSampled,
    Release,
    SampledWithoutReplacement,
    Unsampled,
    seen_by,
)
from manifed.privacy.ledger import Entry, Reserves, Settles
from manifed.privacy.odometer import Odometer
from manifed.privacy.statement import Budget, Promise
from manifed.privacy.tariff import ClientReleases, Tariff, Terms, encode

RECORD = Path(__file__).with_suffix(".json")
SEES_AGGREGATES = Adversary("inside", "", "aggregate", sees_cohorts=True)
DELTAS = (1e-7, 1e-4, 1e-2)
Made = dict[str, Any]


# -- what is made up, as plain data ----------------------------------------------------------------
def release(rng: random.Random, relation: str, unit: str, *, may_mask: bool = True) -> Made:
    kinds = ["gaussian"] * 6 + ["laplace"] + (["masked"] if may_mask else [])
    kind = rng.choice(kinds)
    sampling: Any = None
    if kind != "laplace" and rng.random() < 0.6:
        if relation == "add-or-remove":
            sampling = rng.choice([0.01, 0.1, 0.3, 1.0])
        else:
            sampling = [rng.choice([1, 5, 20]), 40]
    made = {"kind": kind, "unit": unit, "relation": relation, "sampling": sampling,
            "z": round(rng.uniform(0.6, 6), 2), "count": rng.choice([1, 1, 2, 5])}  # fmt: skip
    if kind == "laplace":
        made["z"] = round(rng.uniform(2, 40), 2)
    if kind == "masked":
        made["to"] = [made["z"] * f for f in (4.0, 3.0, 1.5)]
    return made


def terms(rng: random.Random, population: int, relation: str, kind: str) -> Made:
    """Of a ledger in which clients release (``kind`` example), or the server (client)."""
    made: Made = {"population": population, "updates": [], "aggregate": [], "probabilities": []}
    drawn = rng.choice(["everybody", "poisson", "subset", "each"])
    if drawn == "poisson":
        made["sampling"] = rng.choice([0.2, 0.5])
    elif drawn == "subset":
        made["sampling"] = [max(1, population // 2), population]
    elif drawn == "each":
        each = [rng.choice([0.2, 0.5, 1.0]) for _ in range(population)]
        made |= {"probabilities": each, "sampling": max(each)}
    else:
        made["sampling"] = None
    made["planned_draws"] = 0 if drawn == "everybody" else rng.choice([0, 4, 9])
    if kind == "example":
        sides = rng.sample(range(population), population)
        cut = rng.choice([population, population // 2, 1])
        for group in (sides[:cut], sides[cut:]):
            if group:
                each = [release(rng, relation, "example") for _ in range(rng.choice([1, 1, 2]))]
                made["updates"].append([sorted(group), each])
    else:
        one = release(rng, relation, "client", may_mask=False)
        is_proved = relation == "add-or-remove" and not isinstance(made["sampling"], list)
        is_proved |= relation == "replace-one" and not isinstance(made["sampling"], float)
        one |= {"kind": "gaussian", "sampling": made["sampling"] if is_proved else None}
        made["aggregate"] = [one]
    return made


def ledger(rng: random.Random) -> Made:
    """Reservations with retries, blocks, torn lines and settlements."""
    population = rng.choice([1, 3, 6])
    relation = rng.choice(["add-or-remove", "replace-one"])
    kind = rng.choice(["example", "example", "client"])
    all_terms = [terms(rng, population, relation, kind) for _ in range(rng.choice([1, 1, 2, 3]))]
    ops: list[Made] = []
    now = 1
    attempt = 0
    left = 0
    for _ in range(rng.choice([2, 5, 12])):
        size = rng.choice([1, 1, 3])
        everybody = list(range(population))
        cohort = (
            everybody if size > 1 else sorted(rng.sample(everybody, rng.randint(0, population)))
        )
        op: Made = {"first": now, "last": now + size - 1, "attempt": attempt, "cohort": cohort}
        if not ops or rng.random() < 0.3:
            op["terms"] = rng.randrange(len(all_terms))
        ops.append(op)
        what = rng.choice(["run", "run", "crash", "retry", "note"])
        left = size
        if what in ("run", "note"):
            done = rng.randint(0, size)
            named = [sorted(rng.sample(cohort, rng.randint(0, len(cohort)))) for _ in range(done)]
            is_open = what == "note"
            ops.append({"upto": now + done - 1, "is_open": is_open,
                        "cohorts": named if rng.random() < 0.7 else None})  # fmt: skip
            if is_open and done < size and rng.random() < 0.5:
                ops.append({"upto": now + size - 1, "is_open": False, "cohorts": None})
                done = size
            left = done
        now, attempt = (now, attempt + 1) if what == "retry" else (now + max(left, 1), 0)
    return {"terms": all_terms, "ops": ops}


def plan(rng: random.Random) -> Made:
    """A draw, or rounds that differ, with everybody or with coins."""
    relation = rng.choice(["add-or-remove", "replace-one"])
    if rng.random() < 0.5:
        kind = rng.choice(["example", "example", "client"])
        return {"draw": terms(rng, 6, relation, kind), "made": rng.choice([1, 5, 20])}
    rate, is_drawn = rng.choice([(1.0, False), (0.3, True)])
    runs = [
        [[release(rng, relation, "example")] for _ in range(4)] for _ in range(rng.choice([1, 2]))
    ]
    made = rng.choice([3, [1, 2, 0, 1], [2, 2, 2, 2, 1]])
    lengths = [2, 1, 3, 2] if not is_drawn and rng.random() < 0.5 else []
    return {"runs": runs, "rate": rate, "is_drawn": is_drawn, "attempts": rng.choice([1, 3]),
            "lengths": lengths, "made": made}  # fmt: skip


# -- the same as objects of the library ------------------------------------------------------------
def sampling_of(made: Any) -> Any:
    if made is None:
        return Unsampled()
    if isinstance(made, list):
        return SampledWithoutReplacement(sample_size=made[0], population=made[1])
    return PoissonSampled(sampling_probability=made)


def release_of(made: Made) -> Any:
    own = {"unit": made["unit"], "neighboring_relation": made["relation"],
           "noise_multiplier": made["z"], "count": made["count"]}  # fmt: skip
    if made["kind"] == "laplace":
        return Release(kind="laplace", **own)
    own["sampling"] = sampling_of(made["sampling"])
    if made["kind"] == "masked":
        names = ("to_server", "to_one", "to_coalition")
        return Release(**own, **dict(zip(names, made["to"], strict=True)))
    return Release(**own)


def terms_of(made: Made) -> Terms:
    return Terms(
        population=made["population"],
        updates=tuple(
            ClientReleases(partitions=tuple(who), releases=tuple(map(release_of, releases)))
            for who, releases in made["updates"]
        ),
        sampling=sampling_of(made["sampling"]),
        aggregate=tuple(map(release_of, made["aggregate"])),
        planned_draws=made["planned_draws"],
        probabilities=tuple(made["probabilities"]),
    )


def members(cohort: list[int]) -> str:
    return encode(np.asarray(cohort, dtype=np.int64))


def odometer_of(made: Made) -> Odometer:
    odometer = Odometer()
    found = [terms_of(one) for one in made["terms"]]
    for op in made["ops"]:
        if "first" in op:
            own = found[op["terms"]] if "terms" in op else None
            reserves = Reserves(
                first=op["first"],
                last=op["last"],
                attempt=op["attempt"],
                cohort=members(op["cohort"]),
            )
            odometer.feed(Entry(terms=own, reserves=reserves))
        else:
            named = None if op["cohorts"] is None else tuple(map(members, op["cohorts"]))
            settles = Settles(upto=op["upto"], cohorts=named, is_open=op["is_open"])
            odometer.feed(Entry(settles=settles))
    return odometer


def plan_of(made: Made) -> tuple[Tariff, tuple[int, ...]]:
    if "draw" in made:
        return Tariff((terms_of(made["draw"]),)), (made["made"],)
    rate = made["rate"]
    lengths = tuple(made["lengths"])
    sampling = Unsampled() if rate == 1 else PoissonSampled(sampling_probability=rate)
    lines: list[Terms] = []
    for each in zip(*made["runs"], strict=True):
        updates = [
            ClientReleases(partitions=(i,), releases=tuple(map(release_of, one)))
            for i, one in enumerate(each)
        ]
        lines.append(Terms(population=len(each), updates=tuple(updates), sampling=sampling))
    tariff = Tariff(tuple(lines), lengths, made["attempts"])
    count = made["made"]
    if isinstance(count, int):
        return tariff, tariff.counted([(1, count, 1)])
    last = len(lines) - 1
    return tariff, (*count[:last], sum(count[last:]))


# -- what is recorded ------------------------------------------------------------------------------
def shown(price: Any) -> str:
    try:
        return float(price()).hex()
    except ValueError as error:
        return type(error).__name__


def of_releases(made: list[Made]) -> dict[str, str]:
    found = tuple(map(release_of, made))
    return {
        f"{knows} {delta}": shown(lambda k=knows, d=delta: accountant.epsilon(seen_by(k, found), d))
        for knows in ("nothing", "one", "coalition", "everything")
        for delta in (0.0, *DELTAS, 1.0)
    }


def of_ledger(made: Made) -> dict[str, Any]:
    odometer = odometer_of(made)
    told: dict[str, Any] = {
        "counted": odometer.rounds_counted,
        "most": odometer.participations,
        "covered": odometer.covered,
        "attempts": list(
            map(odometer.attempts, range(1, max((r[1] for r in odometer.ranges), default=0) + 1))
        ),
    }
    for adversary in (*ADVERSARIES, *OF_MASKS[1:], SEES_AGGREGATES):
        for delta in DELTAS[1:]:
            told[f"{adversary.name} {delta}"] = shown(
                lambda a=adversary, d=delta: odometer.epsilon(a, d)
            )
        told[f"{adversary.name} everybody"] = shown(
            lambda a=adversary: odometer.of_everybody().epsilon(a, 1e-3)
        )
    try:
        for one in odometer.spent(1e-3):
            told[f"spent {one['name']}"] = [one["epsilon"].hex(), one["unit"]]
    except ValueError as error:
        told["spent"] = type(error).__name__
    return told


def of_plan(made: Made) -> dict[str, Any]:
    tariff, count = plan_of(made)
    told: dict[str, Any] = {}
    for adversary in (*ADVERSARIES, *OF_MASKS[1:], SEES_AGGREGATES):
        if "runs" in made and adversary.releases == "aggregate":
            continue  # releases about whole clients do not depend on the round
        for delta in DELTAS[1:]:
            told[f"{adversary.name} {delta}"] = shown(
                lambda a=adversary, d=delta: tariff.ahead(a, count, d)
            )
    for epsilon in (1.0, 8.0):
        budget = Budget(epsilon, 1e-4, ADVERSARIES[0 if "runs" in made else 1])
        told[f"most {epsilon}"] = shown(lambda b=budget: Promise(tariff, 6, budget=b).planned_draws)
    return told


def everything() -> dict[str, Any]:
    rng = random.Random(28)
    found = {}
    for i in range(60):
        relation = rng.choice(["add-or-remove", "replace-one"])
        unit = rng.choice(["example", "client"])
        made = [release(rng, relation, unit) for _ in range(rng.choice([1, 2, 3]))]
        found[f"releases {i}"] = of_releases(made)
    for i in range(120):
        found[f"ledger {i}"] = of_ledger(ledger(rng))
    for i in range(60):
        found[f"plan {i}"] = of_plan(plan(rng))
    return found


def differing(old: Any, new: Any) -> str | None:
    """How two recorded values differ beyond 1e-12, or None."""
    if isinstance(old, list):
        pairs = (differing(a, b) for a, b in zip(old, new, strict=True))
        return next((one for one in pairs if one), None)
    if isinstance(old, str) and old.startswith(("0x", "-0x")) and isinstance(new, str):
        a = float.fromhex(old)
        b = float.fromhex(new) if new.startswith("0x") else np.nan
        return None if abs(a - b) <= 1e-12 * abs(a) else f"{a} -> {new}"
    return None if old == new else f"{old} -> {new}"


if __name__ == "__main__":
    new = everything()
    if sys.argv[1:] == ["write"]:
        RECORD.write_text(json.dumps(new, indent=1, sort_keys=True) + "\n")
        sys.exit(0)
    old = json.loads(RECORD.read_text())
    same = 0
    bad = 0
    for name, values in old.items():
        for key, value in values.items():
            same += value == new[name].get(key)
            if said := differing(value, new[name].get(key)):
                bad += 1
                print(name, key, said)
    print(f"{sum(map(len, old.values()))} values, {same} with the same bits, {bad} differ")
    sys.exit(bad > 0)
