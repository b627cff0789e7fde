"""The gradient oracle of a client: problem, minibatch, mechanism and noise behind three calls.

A client half sees nothing else. It asks for ``gradient(x)``, or for ``anchor(x)`` and
``correction(x, anchor)``, and gets what may leave the client: clipped per example in the metric at
x, averaged over the expected batch, with N_x(0, stddev^2) added by ``manifold.from_coords``. Every
call draws a fresh batch and fresh noise at its own address, and is counted in ``queries`` so that a
test can tie what was drawn to what was charged.
"""

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from manifed.oracles.clipped_sums import ClippedGradients, Corrections, narrowed, sum_of_good
from manifed.oracles.draws import Draws
from manifed.oracles.minibatch import Batch, Minibatch
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.noise import Stream
from manifed.problems.base import Examples, Problem

UNNOISED = "-unnoised"
"""What the label of a query ends with where nothing was added to its answer."""

StddevRule = Callable[[ExampleMechanism, int], float]
"""(mechanism, num_examples) -> stddev of one release, from the half that states the event."""


class Oracle:
    """The oracle of one client, or of a stacked cohort (leading dimension C everywhere)."""

    def __init__(
        self,
        problem: Problem,
        examples: Examples,
        num_examples: Tensor,
        mechanism: ExampleMechanism,
        draws: Draws,
    ) -> None:
        """``num_examples`` is () or (C,); ``examples`` are padded to the longest shard."""
        self.problem = problem
        self.manifold = problem.manifold
        self.queries: Counter[str] = Counter()
        self._examples = examples
        self._num_examples = num_examples
        self._sizes = num_examples.reshape(-1).tolist()
        self._mechanism = mechanism
        self._draws = draws
        self._step = 0

    def gradient(
        self, x: Tensor, minibatch: Minibatch, stddev: StddevRule | None, label: str = "gradient"
    ) -> Tensor:
        """(1/b) sum_j clip(grad f_j(x)) + N_x(0, stddev^2), shape ``(..., *point)``.

        Guarantees, with a clip: what one example adds to the un-noised value is tangent at x, and
        exactly zero or of metric norm at most clip (1 + 1e-9) / b, whatever the example holds; one
        whose gradient fails or is not finite adds zero and changes nobody else's.

        Without a ``stddev`` rule nothing is added: such a value must not leave the client unless
        something noised covers it (the anchor of Algorithm 3 as printed).
        """
        examples, weights = self._batch(minibatch)
        clip = self._mechanism.l2_norm_clip
        if clip is None:
            mean = self.problem.rgrad_sum(x, examples, weights.to(x.dtype))
        else:
            mean = sum_of_good(ClippedGradients(self.problem, clip), (x,), examples, weights)
        return self._noised(x, mean, stddev, label)

    def correction(
        self,
        x: Tensor,
        anchor: Tensor,
        minibatch: Minibatch,
        stddev: StddevRule | None,
        *,
        is_clipped_as_one: bool,
    ) -> Tensor:
        """(1/b) sum_j [grad f_j(x) - transp grad f_j(anchor)], clipped, plus noise at x.

        Either each of the two gradients is clipped (Algorithm 3, line 8; an example moves the sum
        by two bounds) or their difference is, as one vector (spec 000 §7.3 iii; by one bound).
        """
        clip = self._mechanism.correction_clip
        examples, weights = self._batch(minibatch)
        change = Corrections(self.problem, clip, is_clipped_as_one=is_clipped_as_one)
        if clip is None:
            mean = change((x, anchor), examples, weights.to(x.dtype))
        else:
            mean = sum_of_good(change, (x, anchor), examples, weights)
        return self._noised(x, mean, stddev, "correction")

    def carried(self, anchor: Tensor, x: Tensor, mean: Tensor) -> Tensor:
        """An un-noised mean at the anchor, transported to x, where later noise covers it.

        Guarantee, with a clip: what one example adds is at x no longer than the clip allows it to
        be at the anchor, as far out as the points may be. Rounding stretches transport by less
        than the larger `Manifold.norm_slack` of the two points, so it is divided by one plus that;
        points are public or noised before, so that the divisor says nothing about an example.
        """
        if self._mechanism.l2_norm_clip is None:
            return self.manifold.transp(anchor, x, mean)
        start, end = anchor.to(torch.float64), x.to(torch.float64)
        moved = self.manifold.transp(start, end, mean.to(torch.float64))
        here = torch.as_tensor(self.manifold.norm_slack(end), dtype=end.dtype, device=x.device)
        there = torch.as_tensor(self.manifold.norm_slack(start), dtype=end.dtype, device=x.device)
        slack = self.manifold.expand_scalar(torch.maximum(here, there))
        return narrowed(torch.where(slack <= 1.0, moved / (1 + slack), 0.0), x.dtype)

    # -- the parts ---------------------------------------------------------------------------
    def _batch(self, minibatch: Minibatch) -> tuple[Examples, Tensor]:
        """A fresh batch with the weights of its mean, over the expected size."""
        batch: Batch = minibatch.draw(
            self._num_examples, len(self._examples), self._draws, self._step
        )
        self._step += 1
        positions, chosen = batch
        weights = chosen / self._per_client(minibatch.expected_size).unsqueeze(-1)
        examples = self._examples if positions is None else self._examples.take(positions)
        return examples, weights

    def _per_client(self, function: Callable[[int], float]) -> Tensor:
        counts = self._num_examples
        if counts.dim() == 0:
            value = function(int(counts))
            return torch.tensor(value, dtype=torch.float64, device=counts.device)
        distinct = {n: function(n) for n in set(self._sizes)}
        values = [distinct[n] for n in self._sizes]
        return torch.tensor(values, dtype=torch.float64, device=counts.device)

    def _noised(self, x: Tensor, mean: Tensor, stddev: StddevRule | None, label: str) -> Tensor:
        if stddev is None or self._mechanism.l2_norm_clip is None:
            self.queries[label + UNNOISED] += 1
            return narrowed(mean, x.dtype)
        self.queries[label] += 1
        stddevs = self._per_client(lambda n: stddev(self._mechanism, n))
        if not bool((stddevs > 0).any()):
            return narrowed(mean, x.dtype)
        shape = tuple(x.shape[x.dim() - self.manifold.ndim :])
        normals = self._draws.normals(
            self.manifold.coords_shape(shape), Stream.GRADIENT_NOISE, self._step - 1
        )
        noise = self.manifold.from_coords(x.to(normals.dtype), normals)
        return (mean + self.manifold.expand_scalar(stddevs) * noise).to(x.dtype)
