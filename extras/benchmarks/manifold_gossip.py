"""Private gossip on the sphere and on Stiefel beside the star, at equal epsilon.

    python extras/benchmarks/manifold_gossip.py [--seeds 8] [--rounds 40]

Principal components of the digits over 16 nodes: the leading eigenvector on the sphere, two
components on Stiefel (retractions). Every example of a node is (epsilon, 1e-5)-private against who
sees all messages, which in both worlds is a star's server: nodes noise their own gradients alike.
The star is PriRFed (tangent mean, uniform weights). Entries: the cost gap of the common model, and
after the slash that of the worst node's own model, mean and standard error over seeds of the noise.
"""

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common.cases import rounds_of
from benchmarks.common.page import Page
from benchmarks.common.stopwatch import mean_and_error, table
from manifed.experiment.assembly import load_shards
from manifed.experiment.load import parse
from manifed.experiment.schema import Experiment

NODES = 16
PLACES = {
    "sphere": ({"kind": "principal-eigenvector"}, {"step_size": 0.5}),
    "Stiefel": (
        {"kind": "kpca", "num_components": 2, "scaling": "mean"},
        {"step_size": 0.5, "maps": "retraction"},
    ),
}


def experiment(
    place: str, training: dict[str, Any], epsilon: float, seed: int, rounds: int
) -> Experiment:
    """One run; the star where training is RSGD."""
    problem, steps = PLACES[place]
    strategy = {"kind": "tangent-mean", "weights": "uniform"}
    return parse(
        {
            "name": "manifold-gossip",
            "problem": problem,
            "data": {"kind": "digits"},
            "federation": {"num_clients": NODES, "num_rounds": rounds, "seed": seed},
            "training": {"minibatch": {"kind": "full"}, **steps, **training},
            "privacy": {
                "kind": "example-level",
                "l2_norm_clip": 1.0,
                "noise": {
                    "kind": "target",
                    "epsilon": epsilon,
                    "delta": 1e-5,
                    "adversary": "server",
                },
            },
            **({"strategy": strategy} if training["kind"] == "rsgd" else {}),
        }
    )


def gaps(config: Experiment) -> tuple[float, float]:
    """Cost gaps of the common model and of the worst node's, after the last round."""
    (plan, made), shards = rounds_of(config), load_shards(config).examples
    *_, last = made
    moment = torch.stack([s["z"].T @ s["z"] / len(s) for s in shards]).mean(0)

    def missing(x: Tensor) -> float:
        x = x.reshape(x.shape[0], -1)
        best = torch.linalg.eigvalsh(moment)[-x.shape[1] :].sum()
        return float(best - (x * (moment @ x)).sum())

    common = missing(plan.server_update.model(last.state, plan.manifold))
    if config.training.kind == "rsgd":
        return common, common
    return common, max(missing(x) for x in last.state["x"])


def entry(place: str, training: dict[str, Any], epsilon: float, seeds: int, rounds: int) -> str:
    """Both gaps over seeds."""
    found = [gaps(experiment(place, training, epsilon, seed, rounds)) for seed in range(seeds)]
    return " / ".join(map(mean_and_error, np.array(found).T))


def main() -> None:
    page = Page(__doc__, "manifold_gossip.md", seeds=8, rounds=40)
    given = page.parser.parse_args()
    page.say(f"# Gossip on manifolds\n\n`python {' '.join(sys.argv)}`\n")
    kind = "manifed_extras.manifold_gossip:ManifoldGossip"
    ways = {"star": {"kind": "rsgd"}} | {
        f"{graph}, {consensus}": {"kind": kind, "consensus": consensus, "graph": {"kind": graph}}
        for graph in ("complete", "torus", "ring")
        for consensus in ("tangent-mean", "projection")
    }
    rows = [
        [place, f"{e:g}", name, entry(place, training, e, given.seeds, given.rounds)]
        for place in PLACES
        for e in (1.0, 4.0)
        for name, training in ways.items()
    ]
    page.say(table(["manifold", "epsilon", "who mixes", "cost gap: common / worst node"], rows))
    page.explain()
    page.save(given)


if __name__ == "__main__":
    main()
