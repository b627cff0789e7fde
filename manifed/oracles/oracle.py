"""The gradient oracle of a client: problem, minibatch, clip, noise and randomness behind two calls.

A client update sees nothing else. It declares its queries (what is asked, how an example is
bounded, which noise is drawn and charged), asks ``gradient(x)`` or ``correction(x, anchor)``, and
gets what may leave the client: clipped per example in the metric at x, averaged over the expected
batch, with N_x(0, stddev^2) added by ``manifold.from_coords``. Every call draws a fresh batch and
fresh noise at its own address, and is counted in ``queries`` so that a test can tie what was drawn
to what was charged.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from manifed.manifolds.tensors import as_plain
from manifed.oracles.clipped_sums import ClippedGradients, Corrections, narrowed, sum_of_good
from manifed.oracles.draws import Draws
from manifed.oracles.minibatch import Minibatch
from manifed.privacy.events import GaussianRelease
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.noise import Stream
from manifed.problems.base import Examples, Problem

UNNOISED = "-unnoised"
"""What the label of a query ends with where nothing was added to its answer."""

Form = Literal["gradient", "difference", "each"]
"""What one example adds to a mean: its clipped gradient; its correction, clipped as one vector; or
its correction with each of the two gradients clipped (so that it moves the mean by two bounds)."""


@dataclass(frozen=True)
class Query:
    """One kind of question of a client update: the numbers that scale its noise and its charge."""

    label: str
    minibatch: Minibatch
    mechanism: ExampleMechanism
    num_examples: int
    form: Form
    expected_size: float
    """What the sum over the batch is divided by."""
    clip: float | None
    """Bound of one example's vector, in the metric at the point; None: nothing is clipped."""
    sensitivity: float
    """L2 change of the mean when one example changes."""
    stddev: float
    """What is charged."""
    drawn: float | None
    """What is added to an answer; None: nothing, because noise of another query covers it."""
    count: int
    """How many are charged in one round."""

    @staticmethod
    def of(
        mechanism: ExampleMechanism,
        minibatch: Minibatch,
        num_examples: int,
        *,
        label: str = "gradient",
        form: Form = "gradient",
        count: int = 1,
    ) -> "Query":
        """The query that the mechanism noises by its own rule, for a shard of that size."""
        clip = mechanism.l2_norm_clip if form == "gradient" else mechanism.correction_clip
        size = minibatch.expected_size(num_examples)
        sensitivity = stddev = 0.0
        if clip is not None:
            terms = 2 if form == "each" else 1
            sensitivity = mechanism.sensitivity(clip, size, terms=terms)
            stddev = mechanism.stddev(sensitivity, num_examples)
        return Query(
            label, minibatch, mechanism, num_examples, form, size, clip, sensitivity, stddev,
            drawn=None if mechanism.l2_norm_clip is None else stddev, count=count,
        )  # fmt: skip

    def release(self) -> tuple[GaussianRelease, ...]:
        """The event that it is charged as; none where nothing is clipped or asked."""
        if self.mechanism.l2_norm_clip is None or self.count == 0:
            return ()
        event = self.mechanism.release(
            label=self.label,
            count=self.count,
            stddev=self.stddev,
            sensitivity=self.sensitivity,
            sampling=self.minibatch.sampling(self.num_examples),
        )
        return (event,)


@dataclass(frozen=True)
class _Asked:
    """A query as the oracle asks it: numbers of one client, or columns of a cohort."""

    query: Query
    size: Tensor
    """() or (C,)."""
    stddev: Tensor | None
    """() or (C, 1, ...), to multiply points; None: nothing is added."""


class Oracle:
    """The oracle of one client, or of a stacked cohort (leading dimension C everywhere)."""

    def __init__(
        self,
        problem: Problem,
        examples: Examples,
        num_examples: Tensor,
        queries: Sequence[Sequence[Query]],
        draws: Draws,
    ) -> None:
        """``num_examples`` is () or (C,); ``examples`` are padded to the longest shard.

        ``queries`` are those of each client, in the order of the cohort.
        """
        self.problem = problem
        self.manifold = problem.manifold
        self.queries: Counter[str] = Counter()
        self._examples = examples
        self._num_examples = num_examples
        self._asked = {row[0].label: self._numbers(row) for row in zip(*queries, strict=True)}
        self._draws = draws
        self._step = 0

    def gradient(self, x: Tensor, label: str = "gradient") -> Tensor:
        """(1/b) sum_j clip(grad f_j(x)) + N_x(0, stddev^2), shape ``(..., *point)``.

        Guarantees, with a clip: what one example adds to the un-noised value is tangent at x, and
        exactly zero or of metric norm at most clip (1 + 1e-9) / b, whatever the example holds; one
        whose gradient fails or is not finite adds zero and changes nobody else's.
        """
        asked, x = self._asked[label], as_plain(x)
        examples, weights = self._batch(asked)
        clip = asked.query.clip
        if clip is None:
            mean = self.problem.rgrad_sum(x, examples, weights.to(x.dtype))
        else:
            mean = sum_of_good(
                ClippedGradients(self.problem, self.manifold, clip), (x,), examples, weights
            )
        return self._noised(x, mean, asked)

    def correction(self, x: Tensor, anchor: Tensor, label: str = "correction") -> Tensor:
        """(1/b) sum_j [grad f_j(x) - transp grad f_j(anchor)], clipped, plus noise at x.

        Either each of the two gradients is clipped (Algorithm 3, line 8; an example moves the sum
        by two bounds) or their difference is, as one vector (spec 000 §7.3 iii; by one bound).
        """
        asked, x, anchor = self._asked[label], as_plain(x), as_plain(anchor)
        clip = asked.query.clip
        examples, weights = self._batch(asked)
        change = Corrections(self.problem, clip, is_clipped_as_one=asked.query.form == "difference")
        if clip is None:
            mean = change((x, anchor), examples, weights.to(x.dtype))
        else:
            mean = sum_of_good(change, (x, anchor), examples, weights)
        return self._noised(x, mean, asked)

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
        if asked.stddev is not None or asked.query.clip is None:
            return self.manifold.transp(anchor, x, mean)
        start, end = anchor.to(torch.float64), x.to(torch.float64)
        moved = self.manifold.transp(start, end, mean.to(torch.float64))
        here = torch.as_tensor(self.manifold.norm_slack(end), dtype=end.dtype, device=x.device)
        there = torch.as_tensor(self.manifold.norm_slack(start), dtype=end.dtype, device=x.device)
        slack = self.manifold.expand_scalar(torch.maximum(here, there))
        return narrowed(torch.where(slack <= 1.0, moved / (1 + slack), 0.0), x.dtype)

    # -- the parts ---------------------------------------------------------------------------
    def _numbers(self, row: Sequence[Query]) -> _Asked:
        """One query of all clients, as tensors."""
        lead = self._num_examples.shape
        device = self._num_examples.device
        sizes = torch.tensor([q.expected_size for q in row], dtype=torch.float64, device=device)
        stddev = None
        if row[0].drawn is not None:
            drawn = torch.tensor([q.drawn for q in row], dtype=torch.float64, device=device)
            stddev = drawn.reshape((*lead, *[1] * (self.manifold.ndim if lead else 0)))
        return _Asked(row[0], sizes.reshape(lead), stddev)

    def _batch(self, asked: _Asked) -> tuple[Examples, Tensor]:
        """A fresh batch with the weights of its mean, over the expected size."""
        positions, chosen = asked.query.minibatch.draw(
            self._num_examples, len(self._examples), self._draws, self._step
        )
        self._step += 1
        weights = chosen / asked.size.unsqueeze(-1)
        examples = self._examples if positions is None else self._examples.take(positions)
        return examples, weights

    def _noised(self, x: Tensor, mean: Tensor, asked: _Asked) -> Tensor:
        label, stddev = asked.query.label, asked.stddev
        if stddev is None:
            self.queries[label + UNNOISED] += 1
            return narrowed(mean, x.dtype)
        self.queries[label] += 1
        if not bool((stddev > 0).any()):
            return narrowed(mean, x.dtype)
        shape = tuple(x.shape[x.dim() - self.manifold.ndim :])
        normals = self._draws.normals(
            self.manifold.coords_shape(shape), Stream.GRADIENT_NOISE, self._step - 1
        )
        noise = self.manifold.from_coords(x.to(normals.dtype), normals)
        return (mean + stddev * noise).to(x.dtype)
