"""Check 12: Figures 5 and 6, hyperbolic structured prediction."""

from manifed.problems.real import DataMissing
from manifed.problems.shards import data_folder
from reproduction.findings import Finding
from reproduction.mammals import wordnet_embedding
from reproduction.trials import Columns, averaged

SEEDS = (0, 1, 2)


def source() -> str:
    """The published embedding of WordNet's mammals where it is, else the random tree."""
    try:
        wordnet_embedding(data_folder())
    except DataMissing:
        return "tree"
    return "mammals"


def start_reach_end(run: Columns) -> dict[str, float]:
    """Distance to the true embedding: at first, at its least, and over the last 50 rounds."""
    curve = run["distance_to_truth"]
    return {
        "start": float(curve[0]),
        "least": float(curve.min()),
        "round of least": float(run["round"][curve.argmin()]),
        "end": float(curve[-10:].mean()),
    }


def check_12() -> Finding:
    """Who reaches the true embedding, and who leaves it again."""
    runs = {
        name: averaged(f"000_5_{source()}-{name}", SEEDS, "evaluation.every=5")
        for name in ("rsgd", "dp-rsgd", "rsvrg", "dp-rsvrg")
    }
    found = {name: start_reach_end(run) for name, run in runs.items()}
    optimum = runs["rsgd"].tail("distance_to_truth", 1)
    reaches = {name: found[name]["least"] < 1.5 * optimum for name in ("dp-rsgd", "dp-rsvrg")}
    leaves = {name: row["end"] > 1.2 * row["least"] for name, row in found.items()}
    faster = found["dp-rsvrg"]["round of least"] < found["dp-rsgd"]["round of least"]
    private = all(reaches.values()) and faster and leaves["dp-rsvrg"]
    return Finding(
        "Figure 5: DP methods reach the embedding, RSVRG faster; both RSVRG leave it again",
        private and leaves["rsvrg"],
        {
            **found,
            "reaches": reaches,
            "DP-RSVRG sooner": faster,
            "leaves": leaves,
            "where RSGD ends": optimum,
        },
        SEEDS,
        f"regime: with noise, whether RSVRG without noise leaves or not. Data: {source()}",
        in_regime=private,
    )
