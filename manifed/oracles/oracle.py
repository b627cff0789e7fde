"""The gradient oracle of a client: batch, clip, sum and noise behind two calls.

A client update sees nothing else. It declares its queries (`query.py`), asks ``gradient(x)`` or
``correction(x, anchor)``, and gets what may leave the client: clipped per example in the metric at
x, averaged over the expected batch, with N_x(0, stddev^2) added by ``manifold.from_coords``. Every
call draws a fresh batch and fresh noise at its own address, and is counted in ``queries`` so that a
test can tie what was drawn to what was charged.

Everything here serves one client and a stacked cohort, with a leading dimension C.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from manifed.manifolds.base import Manifold
from manifed.oracles.query import UNNOISED, Query, WrongSize
from manifed.oracles.salvage import Points, salvaged
from manifed.privacy.clipping import clip_factors, clipped
from manifed.privacy.noise import NoiseSource, Stream
from manifed.problems.base import Examples, Problem

LARGEST_BESIDE_NOISE = 1e9
"""An entry this many standard deviations long is rounded by 1e-7 of one."""
STEPS_PER_PHASE = 1 << 20
"""Oracle queries that one phase of one update may ask."""

Batch = tuple[Tensor | None, Tensor]
"""Positions (..., b) or None for the whole shard; weights (..., b) of 0 and 1, padding has 0."""


@dataclass(frozen=True)
class Draws:
    """The randomness of one client update, or of those of a stacked cohort.

    It fixes who, when and in which phase; an oracle adds the stream and the step. So a draw depends
    on its address alone: not on the order of draws, not on the cohort that is stacked with it.
    """

    source: NoiseSource
    partition: int | tuple[int, ...]
    """An int for one client, a tuple for a cohort."""
    server_round: int
    attempt: int = 0
    phase_index: int = 0
    device: str = "cpu"

    def _step(self, step: int) -> int:
        if not 0 <= step < STEPS_PER_PHASE:
            raise ValueError(
                f"Expected 0 <= step < {STEPS_PER_PHASE}, got {step}; use fewer local steps"
            )
        return self.phase_index * STEPS_PER_PHASE + step

    def normals(self, shape: Sequence[int], stream: Stream, step: int) -> Tensor:
        """Standard normals, shape ``shape`` or ``(C, *shape)``, float64."""
        return self.source.normals(
            tuple(shape),
            stream=stream,
            partition=self.partition,
            server_round=self.server_round,
            attempt=self.attempt,
            step=self._step(step),
        ).to(self.device)

    def uniforms(self, shape: Sequence[int], stream: Stream, step: int) -> Tensor:
        """Uniforms in (0, 1) with 53 bits, shape ``shape`` or ``(C, *shape)``."""
        return self.source.uniforms(
            tuple(shape),
            stream=stream,
            partition=self.partition,
            server_round=self.server_round,
            attempt=self.attempt,
            step=self._step(step),
        ).to(self.device)

    def index(self, count: int, step: int = 0) -> Tensor:
        """A uniform index in 0..count-1, shape () or (C,): Option 2 of Algorithms 2 and 3."""
        drawn = self.uniforms((1,), Stream.ITERATE_CHOICE, step)[..., 0]
        return (drawn * count).to(torch.int64).clamp_max(count - 1)


@dataclass(frozen=True)
class Asked:
    """A query as the oracle answers it: numbers of one client, or columns of a cohort."""

    query: Query
    """Of the first client; what differs between clients stands below."""
    size: float | Tensor
    """The normaliser, a number or, where clients differ, (C, 1)."""
    rate: float | Tensor
    """Of a Poisson batch, a number or, where clients differ, (C, 1)."""
    subset: int
    """Examples of the largest subset of fixed size."""
    stddev: float | Tensor | None
    """A number or (C, 1, ...), to multiply points, as above; None: nothing is added."""
    charged: float | Tensor
    """What is charged, in the same shape."""

    @staticmethod
    def of(queries: Sequence[Query], ndim: int, draws: Draws) -> "Asked":
        """One query of all clients, whose public sizes may differ."""

        def column(values: list[float], dims: int) -> float | Tensor:
            if isinstance(draws.partition, int) or values.count(values[0]) == len(values):
                return values[0]
            stacked = torch.tensor(values, dtype=torch.float64, device=draws.device)
            return stacked.reshape(-1, *[1] * dims)

        schemes = [query.sampling for query in queries]
        drawn = [query.drawn or 0.0 for query in queries]
        return Asked(
            queries[0],
            column([query.expected_size for query in queries], 1),
            column([s.sampling_probability if s.kind == "poisson" else 1.0 for s in schemes], 1),
            max(s.sample_size if s.kind == "without-replacement" else 0 for s in schemes),
            column(drawn, ndim) if any(drawn) else None,
            column([query.stddev for query in queries], ndim),
        )

    def stddev_for(self, ndim: int) -> float | Tensor:
        """What multiplies points of that many dimensions."""
        stddev = 0.0 if self.stddev is None else self.stddev
        if not isinstance(stddev, Tensor) or stddev.dim() == 1 + ndim:
            return stddev
        return stddev.reshape(-1, *[1] * ndim)

    def batch(self, present: Tensor, draws: Draws, step: int) -> Batch:
        """A batch drawn as it is charged; ``present`` (..., n) holds for what is no padding."""
        longest, scheme = present.shape[-1], self.query.sampling.kind
        if scheme == "unsampled":
            return None, present.to(torch.float64)
        uniforms = draws.uniforms((longest,), Stream.MINIBATCH, step)
        if scheme == "poisson":
            chosen = (uniforms < self.rate) & present
            size = max(int(chosen.sum(-1).max()), 1)  # that of the largest batch of a cohort
            if 2 * size > longest:
                return None, chosen.to(torch.float64)
            weights, positions = torch.topk(chosen.to(torch.float64), size, dim=-1, sorted=False)
            return positions, weights
        # the positions of the smallest of i.i.d. uniforms
        keys, positions = torch.topk(
            uniforms.masked_fill(~present, 2.0), self.subset, dim=-1, largest=False, sorted=False
        )
        return positions, (keys < 1.5).to(torch.float64)


class Oracle:
    """The oracle of one client, or of a stacked cohort (leading dimension C everywhere)."""

    def __init__(
        self,
        problem: Problem,
        examples: Examples,
        queries: Sequence[Sequence[Query]],
        draws: Draws,
    ) -> None:
        """``queries`` are those of each client, in the order of the cohort.

        Rates, normalisers and noise are theirs, from public sizes. How many rows there really are
        decides what can be drawn, and nothing else.

        Raises:
            WrongSize: a query is priced for exactly its public size, and there are other rows.
        """
        self.problem = problem
        self.manifold = problem.manifold
        self.queries: Counter[str] = Counter()
        self._examples = examples
        self._present = _present(examples, queries, draws)
        self._asked = {
            row[0].label: Asked.of(row, self.manifold.ndim, draws)
            for row in zip(*queries, strict=True)
        }
        self._draws = draws
        self._step = 0
        self._whole: dict[str, Batch] = {}

    def gradient(
        self, x: Tensor, label: str = "gradient", *, masks: Tensor | None = None
    ) -> Tensor:
        """(1/b) sum_j clip(grad f_j(x)) + N_x(0, stddev^2), shape ``(..., *point)``.

        ``masks`` are coordinates, of unit deviation a pair; the query says what they are multiplied
        by before they are added at x. Where a client is the unit, the whole mean is clipped.

        Guarantees, with a clip: what one example adds to the un-noised value is tangent at x, and
        exactly zero or of metric norm at most clip (1 + 1e-9) / b, whatever the example holds; one
        whose gradient fails or is not finite adds zero and changes nobody else's. A query that is
        charged as masked is not answered without masks.
        """
        return self._answer(gradient_sum, label, x.detach(), masks=masks)

    def correlated(self, x: Tensor, past: Tensor, label: str = "gradient") -> tuple[Tensor, Tensor]:
        """`gradient` with the noise stddev * from_coords(x, z + past), and the fresh normals z.

        ``past`` (..., *coords), float64, is a combination of normals of earlier rounds. They and z
        never leave the client. z is zero where no noise is added.
        """
        base = x.detach()
        if self._asked[label].stddev is None:
            return self._answer(gradient_sum, label, base), torch.zeros_like(past)
        shape = tuple(x.shape[x.dim() - self.manifold.ndim :])
        coords = self.manifold.coords_shape(shape)
        z = self._draws.normals(coords, Stream.GRADIENT_NOISE, self._step)
        return self._answer(gradient_sum, label, base, normals=z + past), z

    def masking(self, x: Tensor, masks: Tensor, label: str = "gradient") -> Tensor:
        """What `gradient` adds for these masks, as a vector at x; of no record."""
        placed = self.manifold.from_coords(x.to(masks.dtype), masks)
        return (self._asked[label].query.mask_stddev * placed).to(x.dtype)

    def correction(self, x: Tensor, anchor: Tensor, label: str = "correction") -> Tensor:
        """(1/b) sum_j [grad f_j(x) - transp grad f_j(anchor)], clipped, plus noise at x.

        Either each of the two gradients is clipped (Algorithm 3, line 8; an example moves the sum
        by two bounds) or their difference is, as one vector (spec 000 §7.3 iii; by one bound).
        """
        return self._answer(correction_sum, label, x.detach(), anchor.detach())

    def statistic(self, origin: Tensor, label: str, kind: type[Problem]) -> Tensor:
        """(1/b) sum_j clip(s_j) + N(0, stddev^2 I_m) of the problem's sufficient statistic.

        ``origin`` is zero, shape ``(..., m)``. Guarantees as `gradient`, in the norm of R^m.
        ``kind`` is the statistic that the query is priced for: how far apart two clipped ones can
        be is a property of it.

        Raises:
            ValueError: the problem has no such statistic.
        """
        problem = self.problem.sufficient_statistic
        if not isinstance(problem, kind):
            raise ValueError(
                f"Expected a problem with the sufficient statistic {kind.__name__}, got "
                f"{type(self.problem).__name__} with {type(problem).__name__}"
            )
        return self._answer(gradient_sum, label, origin, problem=problem)

    def shown(self, x: Tensor, seen: Tensor, label: str = "gradient") -> Tensor:
        """The model x + N_x(0, stddev^2), which was computed from un-noised answers of that query.

        The noise is what the query is charged for, so it answers without noise (``drawn`` None) and
        its sensitivity is that of the model. ``seen`` is the point that came down, by which x is as
        large as it is.

        Raises:
            ValueError: ``seen`` is so large that float64 would round the noise away beside it.
        """
        asked = self._asked[label]
        if asked.query.drawn is not None:
            raise ValueError(f"Expected a query {label!r} whose answers are not noised themselves")
        self._step += 1
        if asked.query.clip is None:
            return x
        largest = float(seen.detach().abs().max())
        least = float(torch.as_tensor(asked.charged).min())
        if not largest <= LARGEST_BESIDE_NOISE * least:
            raise ValueError(
                f"Expected a broadcast point of entries up to {LARGEST_BESIDE_NOISE:g} times the "
                f"noise {least:.3g}, got {largest:.3g}: float64 would round the noise away"
            )
        self.queries[label] += 1
        return (x + asked.charged * self._noise(x, self.manifold)).to(x.dtype)

    def carried(self, anchor: Tensor, x: Tensor, mean: Tensor, label: str = "reference") -> Tensor:
        """The answer of a query at the anchor, transported to x.

        An answer that was noised may be stretched. One that was not is covered by later noise, and
        may not. Guarantee, with a clip: what one example adds is at x no longer than the clip
        allows it to be at the anchor, as far out as the points may be. Rounding stretches transport
        by less than the larger `Manifold.norm_slack` of the two points, so it is divided by one
        plus that; points are public or noised before, so that the divisor says nothing about an
        example.
        """
        asked = self._asked[label]
        if asked.query.drawn is not None or asked.query.clip is None:
            return self.manifold.transp(anchor, x, mean)
        start, end = anchor.to(torch.float64), x.to(torch.float64)
        moved = self.manifold.transp(start, end, mean.to(torch.float64))
        here = torch.as_tensor(self.manifold.norm_slack(end), dtype=end.dtype, device=x.device)
        there = torch.as_tensor(self.manifold.norm_slack(start), dtype=end.dtype, device=x.device)
        slack = self.manifold.expand_scalar(torch.maximum(here, there))
        return narrowed(torch.where(slack <= 1.0, moved / (1 + slack), 0.0), x.dtype)

    # -- the parts ---------------------------------------------------------------------------
    def _batch(self, asked: Asked) -> Batch:
        """The batch of the next answer, its weights over the expected size.

        All of them are what they were in the first step, where all examples are.
        """
        is_drawn = asked.query.sampling.kind != "unsampled"
        whole = None if is_drawn else self._whole.get(asked.query.label)
        if whole is None:
            positions, chosen = asked.batch(self._present, self._draws, self._step)
            whole = positions, chosen / asked.size
        if not is_drawn:
            self._whole[asked.query.label] = whole
        return whole

    def _answer(
        self,
        rule: "Rule",
        label: str,
        *points: Tensor,
        problem: Problem | None = None,
        normals: Tensor | None = None,
        masks: Tensor | None = None,
    ) -> Tensor:
        """A fresh batch, its mean over the expected size at the first point, and noise there.

        ``normals`` are those of the noise; None draws fresh ones.
        """
        asked, problem = self._asked[label], problem or self.problem
        positions, weights = self._batch(asked)
        self._step += 1
        examples = self._examples if positions is None else self._examples.take(positions)
        if asked.query.clip is None and asked.query.whole_clip is None:
            mean = rule(problem, asked.query, points, examples, weights.to(points[0].dtype))
        else:
            mean = sum_of_good(rule, problem, asked.query, points, examples, weights)
        if asked.query.whole_clip is not None:
            base = points[0].to(torch.float64)
            mean = clip_each(problem.manifold, base, mean, asked.query.whole_clip)
        if masks is None and asked.query.mask_stddev > 0:
            raise ValueError(
                f"Expected masks with the answer {asked.query.label!r}, which is charged as masked "
                f"with {asked.query.mask_stddev:g}, got none"
            )
        if masks is not None:
            masking = problem.manifold.from_coords(points[0].to(masks.dtype), masks)
            mean = mean + asked.query.mask_stddev * masking
        return self._noised(points[0], mean, asked, problem.manifold, normals)

    def _noised(
        self, x: Tensor, mean: Tensor, asked: Asked, manifold: Manifold, normals: Tensor | None
    ) -> Tensor:
        is_noised = asked.query.drawn is not None
        self.queries[asked.query.label + ("" if is_noised else UNNOISED)] += 1
        if asked.stddev is None:
            return narrowed(mean, x.dtype)
        noise = self._noise(x, manifold, normals)
        return (mean + asked.stddev_for(manifold.ndim) * noise).to(x.dtype)

    def _noise(self, x: Tensor, manifold: Manifold, normals: Tensor | None = None) -> Tensor:
        """N_x(0, 1): that of ``normals``, else of the last step."""
        if normals is None:
            shape = tuple(x.shape[x.dim() - manifold.ndim :])
            normals = self._draws.normals(
                manifold.coords_shape(shape), Stream.GRADIENT_NOISE, self._step - 1
            )
        return manifold.from_coords(x.to(normals.dtype), normals)


def _present(examples: Examples, queries: Sequence[Sequence[Query]], draws: Draws) -> Tensor:
    """Which rows are no padding, shape (..., n)."""
    n = examples.size
    lead = () if isinstance(draws.partition, int) else (len(draws.partition),)
    rows = torch.tensor(n) if examples.counts is None else examples.counts
    rows = rows.to(draws.device).expand(lead)
    if any(query.needs_exact_size for each in queries[:1] for query in each):
        public = [each[0].num_examples for each in queries]
        for declared, found in zip(public, rows.reshape(-1).tolist(), strict=True):
            if declared != found:
                raise WrongSize(
                    f"num_examples: expected the declared {declared} rows, got {found}; "
                    "'replace-one' and batches without replacement are priced for exactly that "
                    "many: declare what is there, or use 'add-or-remove' with full or Poisson "
                    "batches"
                )
    return torch.arange(n, device=draws.device) < rows.unsqueeze(-1)


# -- sums of clipped vectors -----------------------------------------------------------------
Rule = Callable[[Problem, Query, Points, Examples, Tensor], Tensor]
"""sum_j weights_j v_j at the first point, (..., *point), for vectors v_j of one example each."""


def gradient_sum(
    problem: Problem, query: Query, points: Points, examples: Examples, weights: Tensor
) -> Tensor:
    """v_j = clip(grad f_j(x)), in the problem's own products."""
    (x,) = points
    each = problem.gradients(x, examples)
    if query.clip is None:
        return each.sum(weights)
    total = each.sum(weights * clip_factors(each.norms, query.clip))
    return problem.manifold.tangent_part(x, total)


def correction_sum(
    problem: Problem, query: Query, points: Points, examples: Examples, weights: Tensor
) -> Tensor:
    """v_j = grad f_j(x) - transp grad f_j(anchor), clipped as one vector or each of the two."""
    (x, anchor), manifold, clip = points, problem.manifold, query.clip
    axis = -1 - manifold.ndim
    here, there = x.unsqueeze(axis), anchor.unsqueeze(axis)
    now, then = problem.rgrads(x, examples), problem.rgrads(anchor, examples)
    if query.form == "difference":
        change = clip_each(manifold, here, now - manifold.transp(there, here, then), clip)
    else:  # what is transported is clipped again where it is added
        moved = manifold.transp(there, here, clip_each(manifold, there, then, clip))
        now = clip_each(manifold, here, now, clip)
        change = now - clip_each(manifold, here, moved, clip)
    total = (manifold.expand_scalar(weights) * change).sum(axis)
    return total if clip is None else manifold.tangent_part(x, total)


def clip_each(manifold: Manifold, x: Tensor, vectors: Tensor, clip: float | None) -> Tensor:
    """The vectors at x scaled to metric norm at most ``clip``; zero where not finite."""
    if clip is None:
        return vectors
    return clipped(vectors, manifold.norm_bound(x, vectors), clip)


def sum_of_good(
    rule: Rule, problem: Problem, query: Query, points: Points, examples: Examples, weights: Tensor
) -> Tensor:
    """The sum over the examples that have a finite vector, shape ``(..., *point)`` of points[0].

    Tried for all examples (of all clients of a cohort) at once; only where that fails are the ones
    at fault looked for (`salvage.py`). They count as zero. Computed and returned in float64,
    whatever the type of the points: a shorter type rounds what is released (`narrowed`), never what
    noise is added to.
    """

    def attempt(points: Points, examples: Examples, weights: Tensor) -> Tensor | None:
        """The sum, or None where a kernel fails or the result is not finite."""
        try:
            total = rule(problem, query, points, examples, weights)
        # torch exports the error from C, out of the sight of pyright
        except (torch.linalg.LinAlgError, ArithmeticError):  # pyright: ignore[reportPrivateImportUsage]
            return None
        return total if bool(torch.isfinite(total).all()) else None

    if points[0].dtype != torch.float64:
        points = tuple(p.to(torch.float64) for p in points)
        examples, weights = examples.to(torch.float64), weights.to(torch.float64)
    total = attempt(points, examples, weights)
    if total is None:
        return salvaged(attempt, problem.manifold, points, examples, weights)
    return total


def narrowed(total: Tensor, dtype: torch.dtype) -> Tensor:
    """The float64 ``total`` in ``dtype``, not longer: in a shorter type by two units of its own."""
    if total.dtype == dtype:
        return total
    return (total * (1 - 2 * torch.finfo(dtype).eps)).to(dtype)
