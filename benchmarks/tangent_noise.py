"""Cost of one draw of the isotropic tangent Gaussian, against every rival, side by side.

    python benchmarks/tangent_noise.py [--json] [--quick]

``ours`` is one draw of N_x(0, 1): normals through ``manifold.from_coords``, factor included.
Rivals: ``randn``, drawing as many normals as the stored point has entries (a floor, not a
sampler); ``basis``, a metric-orthonormal basis built at the point and one combination of it;
``mcmc``, the published chain of 10 010 Metropolis steps, whatever its correctness; ``eigh``, the
paper's route through an eigendecomposition in torch. Numbers marked ~ are extrapolated: the chain
from 100 steps, the basis from a smaller shape by the cube of the dimension. ``ours/randn`` is given
for one draw and for a cohort of 32 draws at 32 points, as the federated code makes them; everything
else is one draw. CPU time, one thread; all rivals of a row are interleaved.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.common.page import Page
from benchmarks.common.stopwatch import Work, prepare, race, table
from manifed.manifolds import (
    SPD,
    Grassmann,
    Lorentz,
    Manifold,
    PoincareBall,
    SPDLogEuclidean,
    Sphere,
    Stiefel,
)
from reproduction import printed_samplers as paper
from reproduction.bures_wasserstein import SPDBuresWasserstein
from reproduction.tangent_samplers import Basis, Metropolis, normals_from

CHAIN_STEPS = 10_010
MEASURED_STEPS = 100
COHORT = 32


@dataclass(frozen=True)
class Case:
    """One row: a manifold, a shape and the rivals that exist for it."""

    name: str
    manifold: Manifold
    shape: tuple[int, ...]
    basis_shape: tuple[int, ...] | None = None
    """The smaller shape from which the cost of the basis is extrapolated by dim^3."""
    eigh: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None


CASES = [
    Case("stiefel_784x5", Stiefel(), (784, 5), (240, 5)),
    Case("stiefel_canonical_784x5", Stiefel("canonical"), (784, 5), (240, 5)),
    Case("stiefel_100x5", Stiefel(), (100, 5)),
    Case("grassmann_784x5", Grassmann(), (784, 5), (240, 5)),
    Case("grassmann_100x5", Grassmann(), (100, 5)),
    *[
        Case(f"spd_{m}", SPD(), (m, m), eigh=paper.corrected_affine_invariant)
        for m in (5, 10, 20, 50)
    ],
    Case("spd_100", SPD(), (100, 100), (50, 50), paper.corrected_affine_invariant),
    Case("spd_bw_50", SPDBuresWasserstein(), (50, 50), eigh=paper.corrected_bures_wasserstein),
    Case("spd_le_50", SPDLogEuclidean(), (50, 50), eigh=paper.corrected_log_euclidean),
    Case("lorentz_11", Lorentz(), (11,)),
    Case("lorentz_101", Lorentz(), (101,)),
    Case("lorentz_1001", Lorentz(), (1001,)),
    Case("poincare_100", PoincareBall(), (100,)),
    Case("poincare_1000", PoincareBall(), (1000,)),
    Case("sphere_100", Sphere(), (100,)),
    Case("sphere_1000", Sphere(), (1000,)),
]


def draw(strategy: Basis | Metropolis, case: Case, shape: tuple[int, ...]) -> Work:
    """One draw of ``strategy`` at a random point of ``shape``."""
    generator = torch.Generator().manual_seed(1)
    x = case.manifold.random(*shape, generator=generator)
    normals = normals_from(generator)
    return lambda: strategy.sample(case.manifold, x, 1.0, normals)


def isometry(case: Case, *lead: int) -> Work:
    """Normals through ``from_coords`` at ``lead`` points."""
    m = case.manifold
    generator = torch.Generator().manual_seed(1)
    x = m.random(*lead, *case.shape, generator=generator)
    size = (*lead, *m.coords_shape(case.shape))
    return lambda: m.from_coords(x, torch.randn(size, generator=generator, dtype=torch.float64))


def floor(case: Case, *lead: int) -> Work:
    """As many normals as ``lead`` stored points have entries."""
    generator = torch.Generator().manual_seed(1)
    size = (*lead, *case.shape)
    return lambda: torch.randn(size, generator=generator, dtype=torch.float64)


def eigendecomposition(case: Case) -> Work:
    """The paper's sampler, corrected, in torch."""
    generator = torch.Generator().manual_seed(1)
    x = case.manifold.random(*case.shape, generator=generator)
    size = (case.manifold.dim(case.shape),)
    return lambda: case.eigh(x, torch.randn(size, generator=generator, dtype=torch.float64))


def measure(case: Case) -> dict[str, float]:
    """CPU seconds of one draw by every rival; none of the chain's steps is ever refused."""
    basis_shape = case.basis_shape or case.shape
    unguarded = Metropolis(
        burn_in=MEASURED_STEPS - 1, thinning=1, step=1.0, min_acceptance_rate=-1.0
    )
    rivals = {
        "randn": floor(case),
        "ours": isometry(case),
        "basis": draw(Basis(), case, basis_shape),
        "mcmc": draw(unguarded, case, case.shape),
    }
    if case.eigh is not None:
        rivals["eigh"] = eigendecomposition(case)
    seconds = race(rivals, rounds=40, slice_=0.005)
    seconds["mcmc"] *= CHAIN_STEPS / MEASURED_STEPS
    m = case.manifold
    seconds["basis"] *= (m.dim(case.shape) / m.dim(basis_shape)) ** 3
    many = race({"randn": floor(case, COHORT), "ours": isometry(case, COHORT)}, rounds=20)
    return seconds | {f"cohort_{name}": value for name, value in many.items()}


def main() -> None:
    page = Page(__doc__, "tangent_noise.md")
    page.parser.add_argument("--quick", action="store_true", help="only dimensions below 600")
    given = page.parser.parse_args()
    page.say(prepare("Cost of one draw of the tangent Gaussian"))
    rows = []
    result = {}
    for case in CASES:
        dim = case.manifold.dim(case.shape)
        if given.quick and dim > 600:
            continue
        seconds = measure(case)
        ours = seconds["ours"]
        many = result[f"{case.name}_over_randn"] = seconds["cohort_ours"] / seconds["cohort_randn"]
        one = result[f"{case.name}_single_over_randn"] = ours / seconds["randn"]
        over = {r: seconds[r] / ours for r in ("basis", "mcmc", "eigh") if r in seconds}
        result |= {f"{case.name}_{rival}_over_ours": ratio for rival, ratio in over.items()}
        rows.append(
            [
                case.name,
                str(dim),
                f"{ours * 1e3:.3g}",
                f"{one:.2f}",
                f"{many:.2f}",
                f"{'~' if case.basis_shape else ''}{over['basis']:,.3g}",
                f"~{over['mcmc']:,.2g}",
                f"{over['eigh']:.2f}" if "eigh" in over else "",
            ]
        )
    header = ["case", "dim", "ours ms", "ours/randn, 1", f"ours/randn, {COHORT}"]
    page.say(table([*header, "basis/ours", "mcmc/ours", "eigh/ours"], rows))
    page.explain()
    page.save(given, result)


if __name__ == "__main__":
    main()
