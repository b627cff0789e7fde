"""The table, the ratios and the plot of benchmarks/engines.py."""

import json
from pathlib import Path

import torch

from benchmarks.stopwatch import table

Results = dict[str, dict[str, float]]
"""Seconds of a round by rival, by "case clients"; "memory" is the peak of the process in MiB."""


def flat_ratios(results: Results) -> dict[str, float]:
    """Every ratio by one name: case_clients_cohort_over_rival, case_clients_over_floor."""
    flat: dict[str, float] = {}
    for key, seconds in results.items():
        name, mine = key.replace(" ", "_"), seconds["cohort"]
        for rival in ("messages", "numpy", "ray"):
            if rival in seconds:
                flat[f"{name}_cohort_over_{rival}"] = seconds[rival] / mine
        if "floor" in seconds:
            flat[f"{name}_over_floor"] = mine / seconds["floor"]
    aliases = {
        "kpca_784x5_cohort_over_ray": "kpca_784x5_1000_cohort_over_ray",
        "kpca_784x5_over_floor": "kpca_784x5_100_over_floor",
    }
    return flat | {short: flat[long] for short, long in aliases.items() if long in flat}


def report(results: Results) -> str:
    """A Markdown table."""
    flat, rows = flat_ratios(results), []
    for key, seconds in results.items():
        case, clients = key.split(" ")
        name, mine = f"{case}_{clients}", seconds["cohort"]
        ratios = [flat.get(f"{name}_cohort_over_{n}") for n in ("messages", "numpy", "ray")]
        rows.append(
            [case, clients, f"{int(clients) / mine:,.0f}", f"{mine * 1e3:.3g}"]
            + ["" if ratio is None else f"{ratio:.1f}" for ratio in ratios]
            + [f"{flat[f'{name}_over_floor']:.2f}" if "floor" in seconds else ""]
            + [f"{seconds['memory']:.0f}"]
        )
    header = ["case", "clients", "cohort turns/s", "ms a round"]
    header += ["x messages", "x numpy loop", "x Ray", "over floor", "peak MiB"]
    return table(header, rows)


def plot(results: Results, path: Path) -> None:
    """Client turns per second of every engine, a bar each, for the largest cohort Ray ran."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = {key: seconds for key, seconds in results.items() if "ray" in seconds}
    figure, axis = pyplot.subplots(figsize=(8, 3.2))
    for place, rival in enumerate(("cohort", "numpy", "messages", "ray")):
        heights = [int(key.split(" ")[1]) / seconds[rival] for key, seconds in shown.items()]
        axis.bar([i + place * 0.2 for i in range(len(shown))], heights, 0.19, label=rival)
    axis.set_xticks([i + 0.3 for i in range(len(shown))], list(shown), fontsize=7)
    axis.set_yscale("log")
    axis.set_ylabel("client turns a second")
    axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def write(results: Results, out: Path) -> None:
    """engines.json (what later commands add to), engines.md and engines.png."""
    (out / "engines.json").write_text(json.dumps(results, indent=1) + "\n")
    heading = (
        "# Client turns a second, engine by engine\n\n`python benchmarks/engines.py --out "
        "benchmarks/results`, case by case with `--cases`\n\nTwo cores, "
        f"{torch.get_num_threads()} torch threads, ten local steps, full gradients. Ratios are wall"
        " times of a round over the cohort engine's, medians of interleaved rounds (Ray: its own "
        "rounds, in the same command). Peak memory is that of the benchmark's process.\n\n"
    )
    (out / "engines.md").write_text(heading + report(results) + "\n")
    plot(results, out / "engines.png")
