"""Check 12: Figures 5 and 6, hyperbolic structured prediction."""

import numpy as np

from manifed.problems.real import DataMissing
from manifed.problems.shards import data_folder
from reproduction.findings import Finding, verdict_of
from reproduction.mammals import wordnet_embedding
from reproduction.trials import Trial, mean, trials

SEEDS = (0, 1, 2)
CURVES = ("rsgd", "dp-rsgd", "rsvrg", "dp-rsvrg")
DISTANCE = "distance_to_truth"
EVERY = ("evaluation.every=5",)


def source() -> str:
    """The published embedding of WordNet's mammals where it is, else the random tree."""
    try:
        wordnet_embedding(data_folder())
    except DataMissing:
        return "tree"
    return "mammals"


def start_reach_end(runs: list[Trial]) -> dict[str, float]:
    """Mean distance to the true embedding: at first, at its least, and over the last 50 rounds."""
    curve = np.mean([run.columns[DISTANCE] for run in runs], axis=0)
    return {
        "start": float(curve[0]),
        "least": float(curve.min()),
        "round of least": float(runs[0].columns["round"][int(curve.argmin())]),
        "end": float(curve[-10:].mean()),
    }


def check_12() -> Finding:
    """Who reaches the true embedding, and who leaves it again."""
    found = {
        name: start_reach_end(trials(f"000_5_{source()}-{name}", SEEDS, *EVERY)) for name in CURVES
    }
    optimum = mean(
        [
            float(run.columns[DISTANCE][-1])
            for run in trials(f"000_5_{source()}-rsgd", SEEDS, *EVERY)
        ]
    )
    reaches = {name: found[name]["least"] < 1.5 * optimum for name in ("dp-rsgd", "dp-rsvrg")}
    leaves = {name: found[name]["end"] > 1.2 * found[name]["least"] for name in CURVES}
    faster = found["dp-rsvrg"]["round of least"] < found["dp-rsgd"]["round of least"]
    private = all(reaches.values()) and faster and leaves["dp-rsvrg"]
    return Finding(
        "12",
        "Figure 5: DP methods reach the embedding, RSVRG faster; both RSVRG leave it again",
        verdict_of(private and leaves["rsvrg"], in_regime=private),
        {
            **found,
            "reaches": reaches,
            "DP-RSVRG sooner": faster,
            "leaves": leaves,
            "where RSGD ends": optimum,
        },
        SEEDS,
        f"regime: with noise, whether RSVRG without noise leaves or not. Data: {source()}",
    )
