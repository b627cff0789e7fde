"""Private gossip on the sphere and on Stiefel beside the star, at equal epsilon.

    python extras/benchmarks/manifold_gossip.py [--seeds 8] [--rounds 40]

Principal components of the digits over 16 nodes: the leading eigenvector on the sphere, two
components on Stiefel (retractions). Every example of a node is (epsilon, 1e-5)-private against who
sees all messages, which in both worlds is a star's server: nodes noise their own gradients alike.
The star is PriRFed (tangent mean, uniform weights). Entries: the cost gap of the common model, and
after the slash that of the worst node's own model, mean and standard error over seeds of the noise.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common.cases import rounds_of
from benchmarks.common.page import Page
from benchmarks.common.stopwatch import table
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
GRAPHS: dict[str, dict[str, Any]] = {
    "complete": {"graph": {"kind": "complete"}},
    "torus": {"graph": {"kind": "torus"}},
    "ring": {"graph": {"kind": "ring"}},
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
    columns = np.array(found).T
    said = [f"{c.mean():.3g} ± {c.std(ddof=1) / len(c) ** 0.5:.1g}" for c in columns]
    return " / ".join(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, help="folder whose manifold_gossip.md to write")
    arguments = parser.parse_args()
    page = Page()
    page.say(f"# Gossip on manifolds\n\n`python {' '.join(sys.argv)}`\n")
    rows = []
    for place in PLACES:
        for epsilon in (1.0, 4.0):
            sizes = epsilon, arguments.seeds, arguments.rounds
            rows.append([place, f"{epsilon:g}", "star", entry(place, {"kind": "rsgd"}, *sizes)])
            for name, graph in GRAPHS.items():
                for consensus in ("tangent-mean", "projection"):
                    training = {
                        "kind": "manifed_extras.manifold_gossip:ManifoldGossip",
                        "consensus": consensus,
                        **graph,
                    }
                    rows.append([place, f"{epsilon:g}", f"{name}, {consensus}",
                                 entry(place, training, *sizes)])  # fmt: skip
    page.say(table(["manifold", "epsilon", "who mixes", "cost gap: common / worst node"], rows))
    page.say(f"\n{__doc__.split(chr(10), 4)[4].strip()}")
    page.save(arguments.out, "manifold_gossip.md")


if __name__ == "__main__":
    main()
