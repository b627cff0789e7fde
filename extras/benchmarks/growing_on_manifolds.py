"""Growing batches on the sphere and on Stiefel: an end that is open, against the best fixed batch.

    python extras/benchmarks/growing_on_manifolds.py [--seeds 16] [--out benchmarks/results]

Six clients see fresh examples: draws from 400 unit vectors in R^20, so no gradient is longer than
the clip C = 1. f(X) = -tr(X^T M X) on S^19 and on St(20, 3). One example of every batch is another
(replace-one); epsilon 1 at delta 1e-5, against the server. Each client takes S examples in all.

"fixed": batches of S / T and equal noise, for T rounds whose price is the whole budget; T and step
are the best of a grid *for this S*. Growing: one schedule for every S, since its infinitely many
rounds cost the budget; scale, growth and step are the best of a grid over all S together, on tuning
seeds, like the fixed ones. Entries: f - f*, geometric mean over seeds.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from benchmarks.common.page import Page
from benchmarks.common.stopwatch import circumstances, table
from manifed.manifolds.base import Manifold
from manifed.manifolds.sphere import Sphere
from manifed.manifolds.stiefel import Stiefel
from manifed.privacy.composition import gaussian_epsilon as epsilon_of
from manifed.schedules import AnySchedule, Constant, Geometric, Polynomial, TimeVarying
from manifed_extras.stationary import largest_mu
from reproduction.endless import Releases

EPSILON = 1.0
DELTA = 1e-5
CLIP = 1.0
CLIENTS = 6
EXAMPLES = (1_000, 10_000, 100_000, 1_000_000)
DIM = 20
POPULATION = 400
TUNING = 1000
PLACES: dict[str, tuple[Manifold, int]] = {"sphere": (Sphere(), 1), "Stiefel": (Stiefel(), 3)}
STEPS = (0.5, 1.0, 2.0)
ROUNDS = (3, 5, 10, 20, 40, 80)


@dataclass(frozen=True)
class Way:
    """Step sizes, batches and noise multipliers of all rounds, before the budget scales these."""

    step: AnySchedule
    batch: AnySchedule
    noise: AnySchedule
    rounds: int | None = None
    """Of a fixed batch, whose rounds end; None: they never do."""

    def multiplier(self) -> float:
        """The z with which all rounds together are (EPSILON, DELTA)-private."""
        rho = largest_mu(EPSILON, DELTA) ** 2 / 2
        one = Constant(value=1.0)
        priced = Releases(
            algorithm="gradient", noise="gaussian", sensitivity=1.0,
            schedules=TimeVarying(step_size=one, mixing=Constant(value=0.5), sample_size=one,
                                  noise_scale=self.noise),
        )  # fmt: skip
        whole = priced.series(self.rounds or 10_000, with_tail=self.rounds is None)
        return math.sqrt((whole.partial if self.rounds else whole.total) / rho)


@lru_cache(maxsize=1)
def population() -> tuple[Tensor, Tensor]:
    """The examples (p, d), unit vectors with falling spread, and their outer products (p, d d)."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(POPULATION, DIM, generator=generator, dtype=torch.float64)
    rows = rows * torch.arange(1, DIM + 1, dtype=torch.float64) ** -0.75
    rows = rows / rows.norm(dim=-1, keepdim=True)
    return rows, (rows[:, :, None] * rows[:, None, :]).flatten(1)


def gaps(
    place: str, way: Way, marks: Sequence[int], seeds: int, seed: int, maps: str = "exponential"
) -> list[float]:
    """The gaps f - f* when each client has taken so many examples; geometric means over seeds.

    Batches of all clients together, and the mean of their noise: the same in law.
    """
    manifold, k = PLACES[place]
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    outer = population()[1]
    moment = outer.mean(0).view(DIM, DIM)
    best = float(torch.linalg.eigvalsh(moment)[-k:].sum())
    shape = (DIM,) if place == "sphere" else (DIM, k)
    x = manifold.random(seeds, *shape, generator=generator)
    z = way.multiplier()
    shares = np.full(POPULATION, 1 / POPULATION)
    left = list(marks)
    used = 0
    found = []
    for r in itertools.count():
        size = math.ceil(way.batch(r) - 1e-9)
        while left and used + size > left[0]:
            columns = x.unsqueeze(-1) if place == "sphere" else x
            value = torch.einsum("sik,ij,sjk->s", columns, moment, columns)
            found.append(float((best - value).clamp_min(1e-16).log().mean().exp()))
            left.pop(0)
        if not left:
            return found
        used += size
        counts = torch.as_tensor(rng.multinomial(CLIENTS * size, shares, seeds) / (CLIENTS * size))
        batch = (counts @ outer).view(seeds, DIM, DIM)
        egrad = -2 * (batch @ x.unsqueeze(-1)).squeeze(-1) if k == 1 else -2 * batch @ x
        stddev = z * way.noise(r) * 2 * CLIP / size / math.sqrt(CLIENTS)
        drawn = torch.randn(seeds, *manifold.coords_shape(shape), generator=generator,
                            dtype=x.dtype)  # fmt: skip
        step = manifold.egrad2rgrad(x, egrad) + stddev * manifold.from_coords(x, drawn)
        u = -way.step(r) * step
        x = manifold.expmap(x, u) if maps == "exponential" else x + u
        x = manifold.nearest(x)  # also after expmap, whose rounding grows over long steps
    raise AssertionError


def fixed(examples: int, rounds: int, step: float) -> Way:
    """T rounds of S / T examples."""
    batch = Constant(value=float(examples // rounds))
    return Way(Constant(value=step), batch, Constant(value=1.0), rounds)


def growing(batch: AnySchedule, zeta: float, step: float, alpha: float = 0.0) -> Way:
    """Noise multipliers and steps by powers of the round."""
    noise = Polynomial(scale=1.0, exponent=zeta)
    return Way(Polynomial(scale=step, exponent=-alpha), batch, noise)


def choices() -> dict[str, list[Way]]:
    """The growing schedules that are tried."""
    both = list(itertools.product((40.0, 160.0), STEPS))
    ratios = (1.3, 1.6, 2.0)
    return {
        "falling steps, k^0.6": [
            growing(Polynomial(scale=b, exponent=0.6), 0.6, s, 0.5) for b, s in both
        ],
        "k^1.1": [growing(Polynomial(scale=b, exponent=1.1), 0.6, s) for b, s in both],
        "geometric": [
            growing(Geometric(scale=b, ratio=q), 1.0, s) for q in ratios for b, s in both
        ],
    }


def best_fixed(place: str, examples: int, seeds: int) -> tuple[Way, int, float]:
    """The least gap of the grid on tuning seeds, with T and step."""
    tried = [(fixed(examples, t, s), t, s) for t in ROUNDS for s in STEPS if examples >= 5 * t]
    return min(tried, key=lambda one: gaps(place, one[0], [examples], seeds, TUNING)[0])


def best_growing(place: str, ways: Sequence[Way], seeds: int) -> Way:
    """The least sum of logarithms over all S, on tuning seeds."""
    return min(ways, key=lambda way: float(np.log(gaps(place, way, EXAMPLES, seeds, TUNING)).sum()))


def main() -> None:
    """Parse arguments, tune, measure, print."""
    page = Page(__doc__, "growing_on_manifolds.md", seeds=16)
    given = page.parser.parse_args()
    torch.set_num_threads(1)
    few = max(2, given.seeds // 4)
    page.say(f"# Growing batches on manifolds\n\n{circumstances()}")
    page.explain()
    columns = [f"S = {s:g}" for s in EXAMPLES]
    for place in PLACES:
        rows = []
        chosen = [best_fixed(place, s, few) for s in EXAMPLES]
        for maps in ("exponential", "projection"):
            each = [gaps(place, way, [s], given.seeds, 0, maps)[0]
                    for (way, _, _), s in zip(chosen, EXAMPLES, strict=True)]  # fmt: skip
            rows.append([f"fixed, best for each S; {maps}", *(f"{g:.3g}" for g in each)])
        grown = {name: best_growing(place, ways, few) for name, ways in choices().items()}
        for (name, way), maps in itertools.product(grown.items(), ("exponential", "projection")):
            found = gaps(place, way, EXAMPLES, given.seeds, 0, maps)
            rows.append([f"growing, {name}; {maps}", *(f"{g:.3g}" for g in found)])
        page.say(f"\n## {place}\n\n{table(['f - f*', *columns], rows)}\n")
        page.say("Fixed: " + "; ".join(
            f"S = {s:g}: T = {t}, step {step:g}"
            for s, (_, t, step) in zip(EXAMPLES, chosen, strict=True)) + ".")  # fmt: skip
        for name, way in grown.items():
            page.say(f"Growing, {name}: {_told(way)}.")
        page.say(_continued(chosen[1][1]))
    page.save(given)


def _told(way: Way) -> str:
    batch = way.batch
    growth = (
        f"first batch {batch.scale:g}, ratio {batch.ratio:g}"
        if isinstance(batch, Geometric)
        else f"first batch {batch(0):g}"
    )
    return f"{growth}, first step {way.step(0):g}, multiplier {way.multiplier():.3g}"


def _continued(rounds: int) -> str:
    """What a fixed batch costs whose plan did not end where it was to end."""
    mu = largest_mu(EPSILON, DELTA) * math.sqrt(EXAMPLES[3] / EXAMPLES[1])
    return (
        f"The fixed batch of S = {EXAMPLES[1]:g} (T = {rounds}), gone on with to S = "
        f"{EXAMPLES[3]:g}: epsilon {epsilon_of(DELTA, mu=mu):.3g}. The growing ones: 1."
    )


if __name__ == "__main__":
    main()
