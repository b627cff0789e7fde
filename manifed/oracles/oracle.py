"""The gradient oracle of a client: batch, clip, sum and noise behind two calls.

A client update sees nothing else. It declares its queries (`query.py`), asks ``gradient(x)`` or
``correction(x, anchor)``, and gets what may leave the client: clipped per example in the metric at
x, averaged over the expected batch, with N_x(0, stddev^2) added by ``manifold.from_coords``. Every
call draws a fresh batch and fresh noise at its own address, and is counted in ``queries`` so that a
test can tie what was drawn to what was charged.

Everything here serves one client and a stacked cohort, with a leading dimension C.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from manifed.manifolds.base import Manifold
from manifed.oracles.minibatch import Array, rows_of, rows_of_least
from manifed.oracles.query import UNNOISED, Query, WrongSize
from manifed.oracles.sums import (
    Rule,
    clip_each,
    correction_sum,
    gradient_sum,
    narrowed,
    sum_of_good,
)
from manifed.privacy import laplace
from manifed.privacy.noise import NoiseSource, Stream
from manifed.problems.base import KEY, Examples, Problem, Quadratic
from manifed.problems.linear import steps_at_once

LARGEST_BESIDE_NOISE = 1e9
"""An entry this many standard deviations long is rounded by 1e-7 of one."""
Walk = tuple[str, float, int, torch.dtype]
"""Label, step size, number of steps, and the type of the points."""
POINTS_AT_ONCE = 6
"""H, the step and its powers with their temporaries, in matrices of d points."""
_NUMBERS_AHEAD = 1 << 18
"""Normals that an oracle draws in one call for steps to come: 2 MiB."""
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

    def normals(self, shape: Sequence[int], stream: Stream, step: int | range) -> Tensor:
        """Standard normals, ``shape`` or ``(C, *shape)``, float64; a range of steps is in front."""
        size, who, count = tuple(shape), self.partition, math.prod(shape)
        if isinstance(step, int):
            at = self._step(step)
        else:
            at, count = range(self._step(step[0]), self._step(step[-1]) + 1), len(step) * count

        def draw(rounds: int | range) -> Tensor:
            return self.source.normals(
                size,
                stream=stream,
                partition=who,
                server_round=rounds,
                attempt=self.attempt,
                step=at,
            )

        if isinstance(who, int):
            return draw(self.server_round).to(self.device)
        what = (size, stream, who, self.attempt, at)
        found = self.source.in_turn(what, self.server_round, len(who) * count, draw)
        return found.to(self.device)

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

    def coins(self, count: int, rate: float | Tensor, step: int) -> Tensor:
        """Which rows a Poisson batch takes, bool, shape ``(count,)`` or ``(C, count)``, on the CPU.

        ``rate`` is a number or (C, 1).
        """
        return self.source.coins(
            count,
            rate.numpy(force=True) if isinstance(rate, Tensor) else rate,
            stream=Stream.MINIBATCH,
            partition=self.partition,
            server_round=self.server_round,
            attempt=self.attempt,
            step=self._step(step),
        )

    def words(self, count: int, step: int) -> Array:
        """The keys of a subset, uint64, of the same shapes."""
        return self.source.words(
            count,
            stream=Stream.MINIBATCH,
            partition=self.partition,
            server_round=self.server_round,
            attempt=self.attempt,
            step=self._step(step),
        )

    def laplaces(self, shape: Sequence[int], stream: Stream, step: int) -> Tensor:
        """Laplace draws of scale 1, shape ``shape`` or ``(C, *shape)``, float64."""
        if self.source.precision == "summed":
            return laplace.of_normals(self.normals((4, *shape), stream, step), -1 - len(shape))
        return laplace.of_uniforms(self.uniforms(shape, stream, step))

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

    def in_order(self, rows: Tensor, lap: int = 0) -> Batch:
        """The rows from the query's first on, of shards of ``rows`` (...), each at most once.

        ``lap``: of a stream, how many times as many rows were set aside for earlier attempts.
        """
        assert self.query.first is not None
        steps, count = torch.arange(self.subset, device=rows.device), rows.unsqueeze(-1)
        positions = (self.query.first + steps) % count.clamp_min(1) + lap * count
        return positions, (steps < count).to(torch.float64)

    def batch(self, present: Tensor, draws: Draws, step: int) -> Batch:
        """A batch drawn as it is charged; ``present`` (..., n) holds for what is no padding."""
        longest, scheme = present.shape[-1], self.query.sampling.kind
        if scheme == "unsampled":
            return None, present.to(torch.float64)
        if scheme == "poisson":
            chosen = draws.coins(longest, self.rate, step) & present.cpu()
            rows = rows_of(chosen.numpy())
            if rows is None:
                return None, chosen.to(draws.device, torch.float64)
        else:
            words = draws.words(longest, step)
            rows = rows_of_least(words, present.numpy(force=True), self.subset)
        positions, weights = rows
        return (
            torch.as_tensor(positions, device=draws.device),
            torch.as_tensor(weights, device=draws.device),
        )


@dataclass(frozen=True)
class Answers:
    """What an oracle knows before it is asked: nothing of a round, so it may serve in many."""

    rows: Tensor
    """How many rows are no padding, (...)."""
    longest: int
    """Rows with padding."""
    asked: Mapping[str, Asked]
    """By label."""
    whole: dict[str, Batch]
    """By label, where nothing is drawn: all rows, once they were asked for."""
    walks: "dict[Walk, tuple[Tensor, Tensor] | None]"
    """T and v with x_K - x = T x + v, one client's below the other's, of the steps that were asked
    for; None: no such map."""

    @staticmethod
    def of(
        problem: Problem, examples: Examples, queries: Sequence[Sequence[Query]], draws: Draws
    ) -> "Answers":
        """For the queries of each client, in the order of the cohort.

        Raises:
            WrongSize: as `Oracle`.
        """
        rows, each = _rows(examples, queries, draws), zip(*queries, strict=True)
        asked = {one[0].label: Asked.of(one, problem.manifold.ndim, draws) for one in each}
        return Answers(rows, examples.size, asked, {}, {})

    @cached_property
    def present(self) -> Tensor:
        """Which rows are no padding, (..., n); made when a batch is drawn from all of them."""
        return torch.arange(self.longest, device=self.rows.device) < self.rows.unsqueeze(-1)


class Oracle:
    """The oracle of one client, or of a stacked cohort (leading dimension C everywhere)."""

    def __init__(
        self,
        problem: Problem,
        examples: Examples,
        queries: "Sequence[Sequence[Query]] | Answers",
        draws: Draws,
    ) -> None:
        """``queries`` are those of each client, in the order of the cohort, or their `Answers`.

        Rates, normalisers and noise are theirs, from public sizes. How many rows there really are
        decides what can be drawn, and nothing else.

        Raises:
            WrongSize: a query is priced for exactly its public size, and there are other rows.
        """
        self.problem = problem
        self.manifold = problem.manifold
        self.queries: Counter[str] = Counter()
        self._examples = examples
        if not isinstance(queries, Answers):
            queries = Answers.of(problem, examples, queries, draws)
        self._known, self._asked, self._whole = queries, queries.asked, queries.whole
        self._draws = draws
        self._step = 0
        self._held: tuple[tuple[int, ...], range, Sequence[Tensor]] = (), range(0), ()
        """Normals of some steps: shape of one, which, and they."""

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

    def correlated(
        self, x: Tensor, past: Tensor, label: str = "gradient", *, masks: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`gradient` with the noise stddev * from_coords(x, z + past), and the fresh normals z.

        ``past`` (..., *coords), float64, is a combination of normals of earlier rounds. They and z
        never leave the client. z is zero where no noise is added.
        """
        base = x.detach()
        if self._asked[label].stddev is None:
            return self._answer(gradient_sum, label, base, masks=masks), torch.zeros_like(past)
        shape = tuple(x.shape[x.dim() - self.manifold.ndim :])
        coords = self.manifold.coords_shape(shape)
        z = self._draws.normals(coords, Stream.GRADIENT_NOISE, self._step)
        return self._answer(gradient_sum, label, base, normals=z + past, masks=masks), z

    def along(
        self, x: Tensor, step_size: float, steps: int, label: str = "gradient", *, masks: Tensor
    ) -> Tensor:
        """clip(g_1 + ... + g_steps) + masks + noise, g_k the gradients along so many steps from x.

        None of them leaves: the whole sum is clipped, so replacing a client moves it by two bounds
        whatever its steps were. Of one step it is `gradient`. Guarantees as `gradient`.

        Raises:
            ValueError: where no client is the unit, or on a curved manifold.
        """
        asked = self._asked[label]
        if asked.query.whole_clip is None or not self.manifold.is_whole_space:
            raise ValueError(
                f"Expected a query {label!r} of whole clients on R^d for several steps under one "
                f"clip, got one of examples or on {self.manifold.name}"
            )
        base = x.detach()
        total = self._mean(gradient_sum, asked, (base,), self.problem)
        for _ in range(steps - 1):
            here = (base - step_size * total).to(base.dtype)
            total = total + self._mean(gradient_sum, asked, (here,), self.problem)
        return self._released(asked, base, total, self.problem.manifold, masks, None)

    def descended(
        self, x: Tensor, step_size: float, steps: int, label: str = "gradient"
    ) -> Tensor | None:
        """x_K - x after K = ``steps`` steps x - step_size gradient(x), at once, (..., *point).

        None: step by step. Of a run that protects nobody, where the mean gradient of a whole shard
        is affine and has no more dimensions than make that cheaper. It counts as K answers.
        """
        walk, known = (label, step_size, steps, x.dtype), self._known.walks
        found = known.get(walk)
        if found is None and walk not in known:
            found = known[walk] = self._at_once(walk, x.shape[-1])
        if found is None:
            return None
        self._step += steps
        self.queries[label + UNNOISED] += steps
        turn, shift = found
        if x.dim() == 1:
            return torch.addmv(shift, turn, x)
        if x.stride(0) == 0:  # all start from one point, and their maps are one long matrix
            return torch.addmv(shift, turn, x.select(0, 0)).view_as(x)
        stacked = turn.view(*x.shape, -1), shift.view(*x.shape, 1)
        return torch.baddbmm(stacked[1], stacked[0], x.unsqueeze(-1)).squeeze(-1)

    def _at_once(self, walk: Walk, dimension: int) -> tuple[Tensor, Tensor] | None:
        label, step_size, steps, dtype = walk
        asked, problem, examples = self._asked[label], self.problem, self._examples
        is_bare = asked.query.mechanism.l2_norm_clip is None and asked.query.first is None
        is_whole = asked.query.sampling.kind == "unsampled" and examples.stream is None
        if not (is_bare and is_whole and isinstance(problem, Quadratic)):
            return None
        if not pays_at_once(dimension, steps, len(examples)):
            return None
        _, weights = self._batch(asked)
        equations = problem.normal_equations(examples, weights.to(dtype))
        if equations is None:
            return None
        turn, shift = steps_at_once(*equations, step_size, steps)
        return turn.view(-1, dimension), shift.view(-1)

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
        if problem is None or not problem.is_priced_as(kind):
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
            ValueError: ``seen`` is so large that float64 would round the noise away beside it, or x
                is in a shorter type, which rounds it by more than its sensitivity holds.
        """
        asked = self._asked[label]
        if asked.query.drawn is not None:
            raise ValueError(f"Expected a query {label!r} whose answers are not noised themselves")
        self._step += 1
        if asked.query.clip is None:
            return x
        if x.dtype != torch.float64:
            raise ValueError(f"Expected a model that nobody sees in float64, got {x.dtype}")
        largest = float(seen.detach().abs().max())
        least = self._least_noise(asked, seen.detach())
        if not largest <= LARGEST_BESIDE_NOISE * least:
            raise ValueError(
                f"Expected a broadcast point of entries up to {LARGEST_BESIDE_NOISE:g} times the "
                f"noise {least:.3g}, got {largest:.3g}: float64 would round the noise away"
            )
        self.queries[label] += 1
        return (x + asked.charged * self._noise(asked, x, self.manifold)).to(x.dtype)

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
            positions, chosen = self._drawn(asked)
            whole = positions, chosen / asked.size
            if not is_drawn:
                self._whole[asked.query.label] = whole
        return whole

    def _drawn(self, asked: Asked) -> Batch:
        if asked.query.first is None:
            return asked.batch(self._known.present, self._draws, self._step)
        is_stream = self._examples.stream is not None
        return asked.in_order(self._known.rows, self._draws.attempt if is_stream else 0)

    def _answer(
        self,
        rule: Rule,
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
        mean = self._mean(rule, asked, points, problem)
        return self._released(asked, points[0], mean, problem.manifold, masks, normals)

    def _mean(
        self, rule: Rule, asked: Asked, points: tuple[Tensor, ...], problem: Problem
    ) -> Tensor:
        """Of a fresh batch, before noise and before a whole mean is clipped."""
        positions, weights = self._batch(asked)
        self._step += 1
        whole = self._keyed() if problem.needs_keys else self._examples
        examples = whole if positions is None else whole.take(positions)
        if asked.query.clip is None and asked.query.whole_clip is None:
            vectors = rule(problem, asked.query, points, examples)
            return vectors.sum(weights.to(points[0].dtype))
        return sum_of_good(rule, problem, asked.query, points, examples, weights)

    def _released(
        self,
        asked: Asked,
        x: Tensor,
        mean: Tensor,
        manifold: Manifold,
        masks: Tensor | None,
        normals: Tensor | None,
    ) -> Tensor:
        """The mean at x, clipped where a client is the unit, with its masks and its noise."""
        if asked.query.whole_clip is not None:
            mean = clip_each(manifold, x.to(torch.float64), mean, asked.query.whole_clip)
        if masks is None and asked.query.mask_stddev > 0:
            raise ValueError(
                f"Expected masks with the answer {asked.query.label!r}, which is charged as masked "
                f"with {asked.query.mask_stddev:g}, got none"
            )
        if masks is not None:
            masking = manifold.from_coords(x.to(masks.dtype), masks)
            mean = mean + asked.query.mask_stddev * masking
        return self._noised(x, mean, asked, manifold, normals)

    def _keyed(self) -> Examples:
        """The examples with a fresh uniform each, by its place in the shard and by the step."""
        uniforms = self._draws.uniforms((len(self._examples),), Stream.DROPOUT, self._step - 1)
        return self._examples.beside(KEY, uniforms)

    def _noised(
        self, x: Tensor, mean: Tensor, asked: Asked, manifold: Manifold, normals: Tensor | None
    ) -> Tensor:
        is_noised = asked.query.drawn is not None
        self.queries[asked.query.label + ("" if is_noised else UNNOISED)] += 1
        if asked.stddev is None:
            return narrowed(mean, x.dtype)
        noise = self._noise(asked, x, manifold, normals)
        stddev = asked.stddev_for(manifold.ndim)
        if isinstance(stddev, Tensor):
            return torch.addcmul(mean, stddev, noise).to(x.dtype)
        return torch.add(mean, noise, alpha=stddev).to(x.dtype)

    def _least_noise(self, asked: Asked, x: Tensor) -> float:
        """The least deviation of an entry of what is added at x, in flat space.

        A metric of distances that are c times as long has entries of 1/c.
        """
        if asked.query.mechanism.l1_norm_clip is not None:
            return float(torch.as_tensor(asked.charged).min())
        shape = self.manifold.coords_shape(tuple(x.shape[x.dim() - self.manifold.ndim :]))
        ones = x.new_ones(shape, dtype=torch.float64)
        unit = self.manifold.from_coords(x.to(torch.float64), ones)
        return float((asked.charged * unit).abs().min())

    def _noise(
        self, asked: Asked, x: Tensor, manifold: Manifold, normals: Tensor | None = None
    ) -> Tensor:
        """N_x(0, 1), or Laplace noise of scale 1: that of ``normals``, else of the last step."""
        shape = tuple(x.shape[x.dim() - manifold.ndim :])
        if asked.query.mechanism.l1_norm_clip is not None:
            return self._draws.laplaces(shape, Stream.GRADIENT_NOISE, self._step - 1)
        if normals is None:
            normals = self._normals(asked.query, manifold.coords_shape(shape), self._step - 1)
        return manifold.from_coords(x.to(normals.dtype), normals)

    def _normals(self, query: Query, coords: tuple[int, ...], step: int) -> Tensor:
        """Standard normals of a step, drawn with those of further steps that the query pays for.

        A number depends on its address alone, so they are the same. A source with a recorder, which
        hears of what is used, is asked for each step; and so is any where some steps use none.
        """
        shape, held, normals = self._held
        if shape != coords or step not in held:
            count = 1 if isinstance(self._draws.partition, int) else len(self._draws.partition)
            most = min(STEPS_PER_PHASE - step, _NUMBERS_AHEAD // max(1, count * math.prod(coords)))
            left = query.count - self.queries[query.label] + 1
            uses_all = all(asked.query.drawn is not None for asked in self._asked.values())
            is_ahead = uses_all and self._draws.source.recorder is None
            held = range(step, step + (max(1, min(left, most)) if is_ahead else 1))
            normals = self._draws.normals(coords, Stream.GRADIENT_NOISE, held).unbind(0)
            self._held = coords, held, normals
        return normals[step - held.start]


def pays_at_once(dimension: int, steps: int, num_examples: int) -> bool:
    """Whether H of d x d costs no more than the steps that it replaces, and is no larger than rows.

    Building it holds a few such matrices a client: `POINTS_AT_ONCE` d points.
    """
    return dimension <= min(2 * steps, num_examples)


def _rows(examples: Examples, queries: Sequence[Sequence[Query]], draws: Draws) -> Tensor:
    """How many rows are no padding, shape (...)."""
    lead = () if isinstance(draws.partition, int) else (len(draws.partition),)
    rows = torch.tensor(examples.size) if examples.counts is None else examples.counts
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
    return rows
