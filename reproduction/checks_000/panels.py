"""What each figure of PriRFed shows: panels of curves, one configuration a curve."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Panel:
    """One set of axes: which configs are overlaid, and which measured columns are drawn."""

    title: str
    configs: tuple[str, ...]
    columns: tuple[str, ...]


EPSILONS = ("0.08", "0.15", "0.3")
ALGORITHMS = ("rsgd", "rsvrg")
COST = ("cost", "gradient_norm")
RISK = ("cost", "cost_gap")
WORD = ("cost", "distance_to_truth")
HYPERBOLIC = ("rsgd", "dp-rsgd", "rsvrg", "dp-rsvrg")


def _epsilons(title: str, stem: str) -> Panel:
    return Panel(title, tuple(f"{stem}-eps-{epsilon}" for epsilon in EPSILONS), COST)


def _pair(title: str, stem: str, columns: tuple[str, ...]) -> Panel:
    return Panel(title, tuple(stem.format(algorithm) for algorithm in ALGORITHMS), columns)


FIGURES: Mapping[str, Sequence[Panel]] = {
    "000-1": tuple(_epsilons(f"column {c}", f"000_1_col{c}") for c in (1, 2, 3)),
    "000-1-regime": (
        _epsilons("column 1, shared basis", "000_1_regime_col1-shared"),
        _epsilons("column 2, 2000 rows", "000_1_regime_col2-rows-2000"),
        _epsilons("column 3, 2000 rows", "000_1_regime_col3-rows-2000"),
    ),
    "000-2": tuple(
        _pair(f"MNIST, (N, N_i) = ({n}, {size})", f"000_2_mnist-{{}}-N-{n}", ("cost",))
        for n, size in ((8, 1200), (10, 1000), (13, 750), (16, 600))
    ),
    "000-2-digits": tuple(
        _pair(f"digits, (N, N_i) = ({n}, {size})", f"000_2_digits-{{}}-N-{n}", ("cost",))
        for n, size in ((3, 599), (6, 299), (12, 149))
    ),
    "000-2-regime": (
        Panel(
            "sigma fixed",
            tuple(f"000_2_regime_fixed-noise-N-{n}" for n in (3, 6, 12)),
            ("relative_cost_gap",),
        ),
        _pair("local epsilon 1", "000_2_regime_eps-1-{}-N-3", ("relative_cost_gap",)),
    ),
    "000-3": tuple(
        _pair(f"(N, N_i) = ({n}, {size})", f"000_3_wishart-{{}}-N-{n}", RISK)
        for n, size in ((20, 250), (50, 100))
    ),
    "000-3-regime": (_pair("first rounds, N = 20", "000_3_regime_early-{}-N-20", RISK),),
    "000-4": tuple(
        _pair(f"(N, N_i) = ({n}, {size})", f"000_4_photos-{{}}-N-{n}", RISK)
        for n, size in ((50, 400), (100, 200))
    ),
    "000-5": (Panel("mammals", tuple(f"000_5_mammals-{c}" for c in HYPERBOLIC), WORD),),
    "000-5-tree": (Panel("random tree", tuple(f"000_5_tree-{c}" for c in HYPERBOLIC), WORD),),
    "000-6": (Panel("mammals", tuple(f"000_5_mammals-{c}" for c in HYPERBOLIC), ()),),
    "000-6-tree": (Panel("random tree", tuple(f"000_5_tree-{c}" for c in HYPERBOLIC), ()),),
}
"""Figure 6 shows the end points of Figure 5's runs on the Poincaré disk."""
