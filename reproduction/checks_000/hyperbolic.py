"""Check 12: Figures 5 and 6, hyperbolic structured prediction."""

from collections.abc import Mapping, Sequence

from manifed.problems.real import DataMissing
from manifed.problems.shards import data_folder
from reproduction.findings import Finding, Part
from reproduction.mammals import wordnet_embedding
from reproduction.trials import Columns, trial


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


def embedding_parts(each: Sequence[Mapping[str, Mapping[str, float]]]) -> list[Part]:
    """Distances by method, by seed: who reaches the embedding, who is sooner, who leaves."""

    def of(name: str, key: str) -> list[float]:
        return [one[name][key] for one in each]

    def ratio(over: list[float], under: list[float]) -> list[float]:
        return [a / b for a, b in zip(over, under, strict=True)]

    parts = [
        Part(f"{name}: nearest over where RSGD ends", ratio(of(name, "least"), of("rsgd", "end")),
             most=1.5)
        for name in ("dp-rsgd", "dp-rsvrg")
    ]  # fmt: skip
    for name in ("rsvrg", "dp-rsvrg"):
        ends = ratio(of(name, "end"), of(name, "least"))
        parts.append(Part(f"{name}: end over nearest", ends, least=1.2))
    rounds = ratio(of("dp-rsvrg", "round of least"), of("dp-rsgd", "round of least"))
    return [*parts, Part("rounds to its nearest, dp-rsvrg over dp-rsgd", rounds, most=1.0)]


def check_12(seeds: Sequence[int] = range(10)) -> Finding:
    """Who reaches the true embedding, and who leaves it again."""
    each = [
        {
            name: start_reach_end(trial(f"000_5_{source()}-{name}", seed, "evaluation.every=5")[0])
            for name in ("rsgd", "dp-rsgd", "rsvrg", "dp-rsvrg")
        }
        for seed in seeds
    ]
    return Finding.judged(
        "Figure 5: DP methods reach the embedding, RSVRG faster; both RSVRG leave it again",
        embedding_parts(each),
        {f"seed {seed}": one for seed, one in zip(seeds, each, strict=True)},
        seeds,
        f"Data: {source()}.",
    )
