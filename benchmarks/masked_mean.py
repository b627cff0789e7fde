"""What masks buy one shared model on curved spaces, at equal epsilon for every example.

    python benchmarks/masked_mean.py [--seeds 8] [--rounds 40] [--out benchmarks/results]

16 nodes, a random regular graph of degree 6 of shared secrets, full batches, every example
(epsilon, 1e-5)-private against the server and two colluding nodes. "alone": each node's own noise
is enough (no masks, one local step of RSGD). "masked": own noise just above what the sum needs,
masks for the rest. "no noise": the same steps, without a clip. Entries: cost gap of the model, mean
and standard error over seeds of data and noise. Digits on the sphere and on Stiefel (two
components), log-normal matrices on SPD.
"""

from typing import Any

import numpy as np
import torch

from benchmarks.common.cases import rounds_of
from benchmarks.common.page import Page
from benchmarks.common.stopwatch import circumstances, mean_and_error, table
from manifed.experiment.assembly import load_shards
from manifed.experiment.load import parse

NODES = 16
PLACES: dict[str, dict[str, Any]] = {
    "sphere": {
        "problem": {"kind": "principal-eigenvector"},
        "data": {"kind": "digits"},
        "training": {"step_size": 0.5},
    },
    "Stiefel": {
        "problem": {"kind": "kpca", "num_components": 2, "scaling": "mean"},
        "data": {"kind": "digits"},
        "training": {"step_size": 2.0},
        "maps": "retraction",  # logarithms of long steps do not converge
    },
    "SPD": {
        "problem": {"kind": "frechet-mean", "manifold": "spd"},
        "data": {"kind": "spd-lognormal"},
        "training": {"step_size": 0.5},
        "clip": 3.0,
    },
}
WAYS = ("no noise", "alone", "masked")


def parts_of(way: str, epsilon: float, clip: float) -> dict[str, Any]:
    """Training, privacy and strategy of one way."""
    if way == "masked":
        target = {"epsilon": epsilon, "delta": 1e-5, "adversary": "coalition", "noise_ratio": 1.05}
        privacy = {"kind": "correlated", "unit": "example", "l2_norm_clip": clip, "collusion": 2}
        training = {"kind": "masked-mean", "graph": {"kind": "random-regular", "degree": 6}}
        return {"training": training, "privacy": privacy | {"target": target}}
    noise = {"kind": "target", "epsilon": epsilon, "delta": 1e-5, "adversary": "server"}
    alone = {"kind": "example-level", "l2_norm_clip": clip, "noise": noise}
    return {
        "training": {"kind": "rsgd"},
        "privacy": alone if way == "alone" else {"kind": "none"},
        "strategy": {"kind": "tangent-mean", "weights": "uniform"},
    }


def gap(place: str, way: str, epsilon: float, seed: int, rounds: int) -> float:
    """Cost of the last model over that of the best."""
    parts = PLACES[place]
    ways = parts_of(way, epsilon, PLACES[place].get("clip", 1.0))
    steps = {"minibatch": {"kind": "full"}, **parts["training"]}
    if ways["training"]["kind"] == "rsgd":
        steps["maps"] = parts.get("maps", "exact")
    config = parse(
        {
            "name": "masked-mean",
            "problem": parts["problem"],
            "data": parts["data"],
            "federation": {"num_clients": NODES, "num_rounds": rounds, "seed": seed},
            **ways,
            "training": ways["training"] | steps,
        }
    )
    (plan, made), shards = rounds_of(config), load_shards(config).examples
    *_, last = made
    problem = config.problem.build()
    even = torch.ones(NODES, dtype=torch.float64)
    x = plan.server_update.model(last.state, plan.manifold)
    return float(problem.objective(x, shards, even)) - problem.optimum(shards, even).value


def main() -> None:
    page = Page(__doc__, "masked_mean.md", seeds=8, rounds=40)
    given = page.parser.parse_args()
    torch.set_num_threads(1)
    page.say(f"# The masked mean on manifolds\n\n{circumstances()}\n")
    rows = []
    for place in PLACES:
        for epsilon in (1.0, 4.0):
            row = [place, f"{epsilon:g}"]
            for way in WAYS:
                found = [gap(place, way, epsilon, s, given.rounds) for s in range(given.seeds)]
                row.append(mean_and_error(np.array(found)))
            rows.append(row)
    page.say(table(["manifold", "epsilon", *WAYS], rows))
    page.explain()
    page.save(given)


if __name__ == "__main__":
    main()
