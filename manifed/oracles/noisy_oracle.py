"""The gradient oracle of a client: it draws a batch, clips, sums, adds noise and counts.

A client update sees nothing else. It declares its queries (`query.py`) and gets what may leave the
client: clipped per example in the metric at x, averaged over the expected batch, with
N_x(0, stddev^2) added by ``manifold.from_coords``. `Oracle.answer` does all of it; what updates
call (`Oracle.gradient`, `Oracle.correction`, ...) are names of it. Every call draws a fresh batch
and fresh noise at its own address, and is counted in ``queries`` so that a test can tie what was
drawn to what was charged.

Everything here serves one client and a stacked cohort, with a leading dimension C.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from manifed.fields import Document
from manifed.oracles.fused import fused_steps, is_fused
from manifed.oracles.minibatch import UNNOISED, Query, WrongSize, rows_of, rows_of_least
from manifed.oracles.sums import (
    clip_each,
    correction_sum,
    gradient_sum,
    share_below,
    sum_of_good,
)
from manifed.privacy.random_numbers import NoiseSource, Stream
from manifed.problems.examples import KEY, Examples
from manifed.problems.problem import Problem

_LARGEST_BESIDE_NOISE = 1e9
"""An entry this many standard deviations long is rounded by 1e-7 of one."""
STEPS_PER_PHASE = 1 << 20
"""Oracle queries that one phase of one update may ask."""
_STEPS_AT_ONCE = 8
"""Steps whose noise is drawn before they are computed."""


class Draws(NamedTuple):
    """The addressed randomness of one client update, or of a stacked cohort's updates.

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

    def at(self, stream: Stream, step: int) -> Document:
        """Returns the address of one draw."""
        if not 0 <= step < STEPS_PER_PHASE:
            raise ValueError(
                f"Expected 0 <= step < {STEPS_PER_PHASE}, got {step}; use fewer local steps"
            )
        return {
            "stream": stream,
            "partition": self.partition,
            "server_round": self.server_round,
            "attempt": self.attempt,
            "step": self.phase_index * STEPS_PER_PHASE + step,
        }

    def normals(self, shape: Sequence[int], stream: Stream, step: int) -> Tensor:
        """Draws standard normals, ``shape`` or ``(C, *shape)``, float64."""
        return self.source.normals(tuple(shape), **self.at(stream, step)).to(self.device)

    def uniforms(self, shape: Sequence[int], stream: Stream, step: int) -> Tensor:
        """Draws uniforms in (0, 1) with 53 bits, ``shape`` or ``(C, *shape)``."""
        return self.source.uniforms(tuple(shape), **self.at(stream, step)).to(self.device)

    def laplaces(self, shape: Sequence[int], stream: Stream, step: int) -> Tensor:
        """Draws Laplace numbers of scale 1, ``shape`` or ``(C, *shape)``, float64."""
        return self.source.laplaces(tuple(shape), **self.at(stream, step)).to(self.device)

    def place(self, count: int) -> Tensor:
        """A uniform index in 0..count-1, shape () or (C,): Option 2 of Algorithms 2 and 3."""
        drawn = self.uniforms((1,), Stream.ITERATE_CHOICE, 0)[..., 0]
        return (drawn * count).to(torch.int64).clamp_max(count - 1)


class Asked(NamedTuple):
    """One query of all clients of an update; numbers that differ between them are columns."""

    query: Query
    """The query of the first client; all clients of a stack have its form."""
    size: Tensor
    """The normaliser: one for all, shape (), or (C,) where they differ."""
    rate: Tensor
    """The rate of a Poisson batch, as ``size``."""
    subset: int
    """Examples of the largest subset of fixed size."""
    stddev: Tensor | None
    """What is added to an answer, as ``size``; None: nothing."""
    charged: Tensor
    """What is charged, as ``size``."""

    @staticmethod
    @lru_cache(maxsize=32)
    def of(queries: tuple[Query, ...], device: str) -> "Asked":
        """Joins the queries of all clients, whose public sizes may differ."""
        rows = list[tuple[float, float, float, float]]()
        subset = 0
        for query in queries:
            scheme = query.sampling
            rate = scheme.sampling_probability if scheme.kind == "poisson" else 1.0
            if scheme.kind == "without-replacement":
                subset = max(subset, scheme.sample_size)
            rows.append((query.expected_size, rate, query.drawn or 0.0, query.stddev))
        size, rate, drawn, charged = (
            torch.tensor(
                values[0] if len(set(values)) == 1 else values, dtype=torch.float64, device=device
            )
            for values in zip(*rows, strict=True)
        )
        stddev = drawn if bool(drawn.any()) else None
        return Asked(queries[0], size, rate, subset, stddev, charged)

    def batch(
        self, rows: Tensor, longest: int, draws: Draws, step: int, lap: int = 0
    ) -> tuple[Tensor | None, Tensor]:
        """Draws a batch as it is charged, from shards of ``rows`` (...) padded to ``longest``.

        Positions (..., b) or None for the whole shard; weights (..., b) of 0 and 1, padding has 0.

        A query in order takes the rows from its first on, each at most once; ``lap`` says how many
        times as many rows of a stream were set aside for earlier attempts.
        """
        if self.query.first is not None:
            steps = torch.arange(self.subset, device=rows.device)
            count = rows.unsqueeze(-1)
            positions = (self.query.first + steps) % count.clamp_min(1) + lap * count
            return positions, (steps < count).to(torch.float64)
        scheme = self.query.sampling.kind
        present = _all_present(rows, longest)
        if scheme == "unsampled":
            return None, present.to(torch.float64)
        at = draws.at(Stream.MINIBATCH, step)
        if scheme == "poisson":
            rate = self.rate.numpy(force=True)[..., None]
            chosen = draws.source.coins(longest, rate, **at) & present.cpu()
            found = rows_of(chosen.numpy())
            if found is None:
                return None, chosen.to(draws.device, torch.float64)
        else:
            words = draws.source.words(longest, **at)
            found = rows_of_least(words, present.numpy(force=True), self.subset)
        positions, weights = (torch.as_tensor(each, device=draws.device) for each in found)
        return positions, weights


class Oracle:
    """The oracle through which a client update reads its examples, or a cohort's (dimension C)."""

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
        """How often each label was answered; un-noised answers have a label of their own."""
        self._examples = examples
        self._draws = draws
        self._step = 0
        unlike = [*dict(zip(map(id, queries), queries, strict=True)).values()]
        self._rows = _rows(examples, draws)
        if any(query.needs_exact_size for each in unlike for query in each):
            _check_exact(queries, self._rows)
        columns = zip(*(unlike if len(unlike) == 1 else queries), strict=True)
        self._asked = {one[0].label: Asked.of(one, draws.device) for one in columns}

    def answer(
        self,
        label: str,
        *points: Tensor,
        problem: Problem | None = None,
        normals: Tensor | None = None,
        masks: Tensor | None = None,
    ) -> Tensor:
        """Returns (1/b) sum_j clip(v_j) + N_x(0, stddev^2) of a fresh batch, shape (..., *point).

        v_j is grad f_j(x) at one point x, or a correction at two. ``normals`` are those of the
        noise; None draws fresh ones. ``masks`` are coordinates, of unit deviation a pair; the query
        says what they are multiplied by before they are added at x. Where a client is the unit, the
        whole mean is clipped.

        Guarantees, with a clip: what one example adds to the un-noised value is tangent at x, and
        exactly zero or of metric norm at most clip (1 + 1e-9) / b, whatever the example holds; one
        whose gradient fails or is not finite adds zero and changes nobody else's. A query that is
        charged as masked is not answered without masks. The answer is counted.
        """
        asked = self._asked[label]
        problem = problem or self.problem
        query = asked.query
        manifold = problem.manifold
        x = points[0]
        examples, chosen = self._batch(asked, problem)
        weights = chosen / asked.size.unsqueeze(-1)
        rule = gradient_sum if len(points) == 1 else correction_sum
        if query.clip is None and query.whole_clip is None:
            mean = rule(problem, query, points, examples).sum(weights.to(x.dtype))
        else:
            mean = sum_of_good(rule, problem, query, points, examples, weights)
        if query.whole_clip is not None:
            mean = clip_each(manifold, x.to(torch.float64), mean, query.whole_clip)
        if masks is not None:
            placed = manifold.from_coords(x.to(masks.dtype), masks)
            mean = mean + query.mask_stddev * placed
        elif query.mask_stddev > 0:
            raise ValueError(
                f"Expected masks with the answer {label!r}, which is charged as masked with "
                f"{query.mask_stddev:g}, got none"
            )
        self.queries[label if query.drawn is not None else label + UNNOISED] += 1
        if asked.stddev is None:
            return _narrowed(mean, x.dtype)
        noise = self._noise(asked, x, problem, normals)
        if asked.stddev.dim():
            stddev = manifold.expand_scalar(asked.stddev)
            return torch.addcmul(mean, stddev, noise).to(x.dtype)
        return torch.add(mean, noise, alpha=float(asked.stddev)).to(x.dtype)

    # -- names of an answer ------------------------------------------------------------------
    def gradient(
        self, x: Tensor, label: str = "gradient", *, masks: Tensor | None = None
    ) -> Tensor:
        """Returns the noised mean gradient at x, as `answer` does."""
        return self.answer(label, x.detach(), masks=masks)

    def descent(self, x: Tensor, count: int, step_size: float) -> Tensor | None:
        """Where ``count`` steps from x to x - step_size * `gradient` end; None without the kernel.

        Batches and noise have the same addresses, bounds and counts as those of `gradient`.
        """
        asked = self._asked["gradient"]
        query, examples = asked.query, self._examples
        is_masked = query.whole_clip is not None or query.mask_stddev > 0
        if is_masked or not is_fused(self.problem, query, x, examples):
            return None
        self.queries["gradient" if query.drawn is not None else "gradient" + UNNOISED] += count
        for first in range(0, count, _STEPS_AT_ONCE):
            weights, normals = list[Tensor](), list[Tensor]()
            steps = min(_STEPS_AT_ONCE, count - first)
            for _ in range(steps):
                if not weights or query.sampling.kind != "unsampled":
                    weights.append(self._whole_batch(asked))
                if asked.stddev is not None:
                    stream = Stream.GRADIENT_NOISE
                    normals.append(self._draws.normals(x.shape[-1:], stream, self._step))
                self._step += 1
            x, _ = fused_steps(
                self.problem,
                query,
                x,
                examples,
                torch.stack(weights, -2),
                torch.stack(normals, -2) if normals else None,
                asked.stddev,
                steps=steps,
                step_size=step_size,
            )
        return x

    def correction(self, x: Tensor, anchor: Tensor) -> Tensor:
        """(1/b) sum_j [grad f_j(x) - transp grad f_j(anchor)], clipped, plus noise at x.

        Either each of the two gradients is clipped (Algorithm 3, line 8; an example moves the sum
        by two bounds) or their difference is, as one vector (by one bound).
        """
        return self.answer("correction", x.detach(), anchor.detach())

    def correlated(
        self, x: Tensor, past: Tensor, *, masks: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`gradient` with the noise stddev * from_coords(x, z + past), and the fresh normals z.

        ``past`` (..., *coords), float64, is a combination of normals of earlier rounds. They and z
        never leave the client. z is zero where no noise is added.
        """
        base = x.detach()
        z = torch.zeros_like(past)
        if self._asked["gradient"].stddev is not None:
            z = self._draws.normals(self.manifold.coords_of(x), Stream.GRADIENT_NOISE, self._step)
        return self.answer("gradient", base, normals=z + past, masks=masks), z

    def statistic(self, origin: Tensor, label: str, kind: type[Problem]) -> Tensor:
        """(1/b) sum_j clip(s_j) + N(0, stddev^2 I_m) of the problem's sufficient statistic.

        ``origin`` is zero, shape ``(..., m)``. Guarantees as `answer`, in the norm of R^m.
        ``kind`` is the statistic that the query is priced for: how far apart two clipped ones can
        be is a property of it.

        Raises:
            ValueError: the problem has no such statistic.
        """
        problem = self.problem.sufficient_statistic
        if problem is None or not isinstance(problem.of_rows, kind):
            raise ValueError(
                f"Expected a problem with the sufficient statistic {kind.__name__}, got "
                f"{type(self.problem).__name__} with {type(problem).__name__}"
            )
        return self.answer(label, origin, problem=problem)

    def narrow(self, share: float) -> None:
        """Clips from now on to this share of each clip norm, and draws so much less noise.

        Noise over sensitivity, and so the price, stays as it is; that of a "count" is not a clip's.
        """
        for label, before in self._asked.items():
            query = before.query
            clip = None if query.clip is None else share * query.clip
            asked = before._replace(query=replace(query, clip=clip))
            if query.form != "below":
                stddev = None if asked.stddev is None else share * asked.stddev
                asked = asked._replace(stddev=stddev, charged=share * asked.charged)
            self._asked[label] = asked

    def share_below(self, x: Tensor) -> Tensor:
        """Returns the noised share of examples whose gradient at x is not clipped, (..., 1).

        Guarantees: one example moves it by at most 1/2 over N_i, whatever it holds, and changes
        nobody else's part. It is counted as an answer "count".
        """
        asked = self._asked["count"]
        x = x.detach()
        examples, chosen = self._batch(asked, self.problem)
        weights = chosen / asked.size.unsqueeze(-1)
        each = (self.problem, asked.query, (x,), examples, weights)
        share = sum_of_good(share_below, *each, size=1) + 0.5
        self.queries["count" if asked.stddev is not None else "count" + UNNOISED] += 1
        if asked.stddev is None:
            return share
        drawn = self._draws.normals((1,), Stream.GRADIENT_NOISE, self._step - 1)
        return share + asked.stddev.unsqueeze(-1) * drawn

    # -- what goes with answers --------------------------------------------------------------
    def shown(self, x: Tensor, seen: Tensor) -> Tensor:
        """The model x + N_x(0, stddev^2), which was computed from un-noised `gradient` answers.

        The noise is what the query is charged for, so it answers without noise (``drawn`` None) and
        its sensitivity is that of the model. ``seen`` is the point that came down, by which x is as
        large as it is.

        Raises:
            ValueError: ``seen`` is so large that float64 would round the noise away beside it, or x
                is in a shorter type, which rounds it by more than its sensitivity holds.
        """
        asked = self._asked["gradient"]
        query = asked.query
        seen = seen.detach()
        if query.drawn is not None:
            raise ValueError("Expected a query 'gradient' whose answers are not noised themselves")
        self._step += 1
        if query.clip is None:
            return x
        if x.dtype != torch.float64:
            raise ValueError(f"Expected a model that nobody sees in float64, got {x.dtype}")
        unit = x.new_ones(())
        if query.mechanism.l1_norm_clip is None:  # a metric of long distances has small entries
            ones = x.new_ones(self.manifold.coords_of(x))
            unit = self.manifold.from_coords(seen.to(x), ones)
        charged = self.manifold.expand_scalar(asked.charged)
        largest = float(seen.abs().max())
        least = float((charged * unit).abs().min())
        if not largest <= _LARGEST_BESIDE_NOISE * least:
            raise ValueError(
                f"Expected a broadcast point of entries up to {_LARGEST_BESIDE_NOISE:g} times the "
                f"noise {least:.3g}, got {largest:.3g}: float64 would round the noise away"
            )
        self.queries["gradient"] += 1
        return x + charged * self._noise(asked, x, self.problem)

    def carried(self, anchor: Tensor, x: Tensor, mean: Tensor) -> Tensor:
        """The answer of the query "reference" at the anchor, transported to x.

        An answer that was noised may be stretched. One that was not is covered by later noise, and
        may not. Guarantee, with a clip: what one example adds is at x no longer than the clip
        allows it to be at the anchor, as far out as the points may be. Rounding stretches transport
        by less than the larger `Manifold.norm_slack` of the two points, so it is divided by one
        plus that; points are public or noised before, so that the divisor says nothing about an
        example.
        """
        query = self._asked["reference"].query
        manifold = self.manifold
        if query.drawn is not None or query.clip is None:
            return manifold.transp(anchor, x, mean)
        start = anchor.to(torch.float64)
        end = x.to(torch.float64)
        moved = manifold.transp(start, end, mean.to(torch.float64))
        larger = torch.maximum(manifold.norm_slack(end), manifold.norm_slack(start))
        slack = manifold.expand_scalar(larger)
        return _narrowed(torch.where(slack <= 1.0, moved / (1 + slack), 0.0), x.dtype)

    # -- the parts ---------------------------------------------------------------------------
    def _batch(
        self, asked: Asked, problem: Problem, keys: Mapping[str, Stream] | None = None
    ) -> tuple[Examples, Tensor]:
        """Draws the next batch: its examples, and weights (..., b) of 0 and 1.

        Each place in the shard has a fresh uniform of every stream of ``keys``, beside the example.
        """
        examples = self._examples
        lap = 0 if examples.stream is None else self._draws.attempt
        positions, chosen = asked.batch(self._rows, examples.size, self._draws, self._step, lap)
        keys = {**(keys or {}), **({KEY: Stream.DROPOUT} if problem.needs_keys else {})}
        for name, stream in keys.items():
            uniforms = self._draws.uniforms((len(examples),), stream, self._step)
            examples = examples.beside(name, uniforms)
        self._step += 1
        return examples if positions is None else examples.take(positions), chosen

    def _whole_batch(self, asked: Asked) -> Tensor:
        """Draws the next batch: the weight of every row in its mean, (..., n)."""
        size = len(self._examples)
        positions, chosen = asked.batch(self._rows, size, self._draws, self._step)
        if positions is not None:
            chosen = chosen.new_zeros(*chosen.shape[:-1], size).scatter_add(-1, positions, chosen)
        return chosen / asked.size.unsqueeze(-1)

    def _noise(
        self, asked: Asked, x: Tensor, problem: Problem, normals: Tensor | None = None
    ) -> Tensor:
        """N_x(0, 1), or Laplace noise of scale 1: that of ``normals``, else of the last step."""
        manifold = problem.manifold
        coords = manifold.coords_of(x)
        if asked.query.mechanism.l1_norm_clip is not None:
            return self._draws.laplaces(coords, Stream.GRADIENT_NOISE, self._step - 1)
        if normals is None:
            normals = self._draws.normals(coords, Stream.GRADIENT_NOISE, self._step - 1)
        return manifold.from_coords(x.to(normals.dtype), normals)


def _narrowed(total: Tensor, dtype: torch.dtype) -> Tensor:
    """The float64 ``total`` in ``dtype``, not longer: in a shorter type by two units of its own."""
    if total.dtype == dtype:
        return total
    return (total * (1 - 2 * torch.finfo(dtype).eps)).to(dtype)


def _all_present(rows: Tensor, longest: int) -> Tensor:
    """Which of ``longest`` rows are no padding, bool (..., longest), where each has ``rows``."""
    return torch.arange(longest, device=rows.device) < rows.unsqueeze(-1)


def _rows(examples: Examples, draws: Draws) -> Tensor:
    """How many rows are no padding, shape (...)."""
    lead = () if isinstance(draws.partition, int) else (len(draws.partition),)
    rows = torch.tensor(examples.size) if examples.counts is None else examples.counts
    return rows.to(draws.device).expand(lead)


def _check_exact(queries: Sequence[Sequence[Query]], rows: Tensor) -> None:
    """Refuses a client that has another number of rows than a query of its is priced for."""
    for each, found in zip(queries, rows.reshape(-1).tolist(), strict=True):
        if any(query.needs_exact_size and query.num_examples != found for query in each):
            raise WrongSize(
                f"num_examples: expected the declared {each[0].num_examples} rows, got {found}; "
                "'replace-one' and batches without replacement need the exact number; declare "
                f"{found}"
            )
