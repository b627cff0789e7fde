"""DECOR with streams beside DECOR at equal epsilon, both as training on the stacked engine.

    python extras/benchmarks/stationary_decor.py [--seeds 4] [--graph torus]

DECOR's least squares (16 nodes, d = 10), clip 1, (epsilon, 1e-5) for a whole node against the
server. `decor` is the best of r = 1.1, 1.25, 1.5, chosen afterwards for each entry, so in its
favour. `stationary-decor` is the best design for the linear recursion that is alike at all nodes
and edges (`manifed_extras.stationary_design`), untuned. The mean over nodes of |x_i - x*|^2 in the
last 200 rounds, with the standard error over seeds, and the same of the mean model. Targets are
drawn anew for every seed, so ratios are of one seed: their geometric mean, and its standard error.
The price is that of the run's own statement, of all rounds.
"""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.cases import rounds_of
from benchmarks.common.page import Page
from benchmarks.common.stopwatch import mean_and_error, table
from extras.benchmarks.decor_covariance import CURVATURE, DELTA, NODES, decor
from manifed.experiment.assembly import facts_of, load_shards
from manifed.experiment.load import parse
from manifed.experiment.schema import Experiment
from manifed.graphs import ErdosRenyi, Graph, Ring, Torus, metropolis_hastings
from manifed.plan import planned_statement
from manifed_extras.stationary import (
    StationaryNoise,
    coalitions,
    largest_mu,
    shapes,
    squared_mu,
    worst,
)
from manifed_extras.stationary_design import Workload, optimise

Array = NDArray[np.float64]

STEP_SIZE = 0.005
CLIP = 1.0
LAST = 200
EPSILONS = (3.0, 10.0)
GRAPHS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ring": (Ring(), {"kind": "ring"}),
    "torus": (Torus(), {"kind": "torus"}),
    "erdos-renyi 1/4": (
        ErdosRenyi(probability=0.25),
        {"kind": "erdos-renyi", "probability": 0.25},
    ),
}
SEED_OF_GRAPH = 1


def designed(graph: Graph) -> StationaryNoise:
    """The best streams that are alike at all nodes and edges, of precision at most 1."""
    workload = Workload(metropolis_hastings(graph).toarray(), 1 - STEP_SIZE * CURVATURE)
    found = optimise(
        graph, workload, shapes((0.8, 0.95)), coalitions(graph, 0), is_uniform=True
    ).noise
    return found.scaled(worst(found, 0).precision)


def fields_of(noise: StationaryNoise) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a config says of it: of [training], and of [privacy]."""
    own = noise.nodes[0]
    shared = noise.edges[0]
    if len(noise.shapes) == 1:
        stddevs = {"noise_stddev": float(own[0] ** 0.5), "mask_stddev": float(shared[0] ** 0.5)}
        return {"kind": "decor"}, stddevs
    white = float(own[0] ** 0.5)
    masks = float(shared.sum() ** 0.5)
    streams = [
        {
            "kind": shape.kind,
            "memory": shape.memory,
            "own": 0.0 if shape.kind == "white" else float(a**0.5 / white),
            "shared": float(b**0.5 / masks),
        }
        for shape, a, b in zip(noise.shapes, own, shared, strict=True)
        if b > 1e-9 * masks**2 or (shape.kind != "white" and a > 1e-9 * white**2)
    ]
    kind = {"kind": "manifed_extras.stationary_decor:StationaryDecor", "streams": streams}
    return kind, {"noise_stddev": white, "mask_stddev": masks}


def experiment(
    name: str, noise: StationaryNoise, epsilon: float, rounds: int, seed: int
) -> Experiment:
    """The training with that noise, scaled to the budget."""
    spent = squared_mu(2 * CLIP, rounds, worst(noise, 0).precision)
    training, stddevs = fields_of(noise.scaled(spent / largest_mu(epsilon, DELTA) ** 2))
    return parse(
        {
            "name": "streams",
            "problem": {"kind": "least-squares", "scaling": "sum"},
            "data": {
                "kind": "scaled-identities",
                "num_clients": NODES,
                "dimension": 10,
            },
            "federation": {
                "num_clients": NODES,
                "num_rounds": rounds,
                "seed": seed,
                "partition": {"kind": "natural"},
            },
            "training": {
                "graph": GRAPHS[name][1],
                "graph_seed": SEED_OF_GRAPH,
                "step_size": STEP_SIZE,
                **training,
            },
            "privacy": {
                "kind": "correlated",
                "l2_norm_clip": CLIP,
                "delta": DELTA,
                "collusion": 1,
                **stddevs,
            },
        }
    )


def errors(config: Experiment) -> tuple[float, float]:
    """Mean_i |x_i - x*|^2 and |mean - x*|^2, means over the last rounds."""
    best = facts_of(config).problem.optimum(load_shards(config).examples).x.numpy()
    found = []
    for report in rounds_of(config)[1]:
        if report.server_round > config.federation.num_rounds - LAST:
            away = report.state["x"].numpy() - best
            found.append((float((away**2).sum(-1).mean()), float((away.mean(0) ** 2).sum())))
    near, mean = np.array(found).mean(0)
    return float(near), float(mean)


def price(config: Experiment) -> float:
    """Epsilon of all rounds against the server, as the statement says it."""
    told = planned_statement(config.setting, facts_of(config).sizes)["adversaries"]
    (found,) = (one["epsilon"] for one in told if one["name"] == "server")
    return found


def ratio(ours: Array, theirs: Array) -> str:
    """Geometric mean of ratios by seed, and its standard error."""
    logs = np.log(ours / theirs)
    middle = float(np.exp(logs.mean()))
    return f"{middle:.2f} ± {middle * logs.std(ddof=1) / len(logs) ** 0.5:.2f}"


def rows_of(name: str, seeds: int, rounds: int) -> list[list[str]]:
    """One line for each epsilon."""
    graph = GRAPHS[name][0].build(NODES, SEED_OF_GRAPH)
    rivals = [noise for r in (1.1, 1.25, 1.5) if (noise := decor(graph, 0, r)) is not None]
    ours = designed(graph)
    rows = []
    for epsilon in EPSILONS:
        runs = [
            np.array([errors(experiment(name, n, epsilon, rounds, s)) for s in range(seeds)])
            for n in [*rivals, ours]
        ]
        prices = [price(experiment(name, n, epsilon, rounds, 0)) for n in (rivals[0], ours)]
        cells = []
        for column in (0, 1):
            *theirs, own = (run[:, column] for run in runs)
            best = min(theirs, key=np.mean)
            cells += [mean_and_error(best), mean_and_error(own), ratio(own, best)]
        rows.append([name, f"{epsilon:g}", " / ".join(f"{p:.3f}" for p in prices), *cells])
    return rows


def main() -> None:
    page = Page(__doc__, "stationary_decor.md", seeds=4, rounds=1000)
    page.parser.add_argument("--graph", choices=GRAPHS, help="this one alone")
    given = page.parser.parse_args()
    page.say("# DECOR with streams as training\n\n`python " + " ".join(sys.argv) + "`\n")
    names = [given.graph] if given.graph else GRAPHS
    rows = [row for name in names for row in rows_of(name, given.seeds, given.rounds)]
    header = ["graph", "epsilon", "priced: decor / streams"]
    for what in ("nodes", "mean model"):
        header += [f"{what}: decor", "streams", "streams / decor"]
    page.say(f"{table(header, rows)}\n\n{given.seeds} seeds.")
    page.explain()
    if given.graph:
        page.name = f"stationary_decor_{given.graph.split()[0]}.md"
    page.save(given)


if __name__ == "__main__":
    main()
