"""Evaluation on hold-outs, which no training step uses: public, or noised at every site.

Each site keeps some of its records out of training. Every so many rounds it gets the model and
sends one noised vector: the sum of its hold-out's clipped losses, of its right and wrong answers,
and the number of its records. The server adds these up; a ratio of two sums is a mean.

Symbols: t_j the loss of record j, clipped to ``loss_range`` and mapped to [-1, 1]; c_j = 1 or -1
where the predicted class is right or wrong (0 without classes); v_j = (t_j, c_j, 1); the site sends
sum_j v_j + N(0, stddev^2 I_3). Under add-or-remove one record moves the sum by |v_j| <= sqrt(3);
under replace-one by at most 2 sqrt(2), because the number stays.

Invariant: neighbouring datasets differ in one record on one side. A record more or less may shift
the places of all others, so under add-or-remove a keyed hash of the record itself says where it
belongs; under replace-one its place does, because another record there may have another hash.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from manifed.algorithms.algorithm import Phase
from manifed.algorithms.payloads import Payload, Point
from manifed.fields import Fraction, Frozen, Positive, PositiveCount, Values
from manifed.manifolds.linalg import Shape
from manifed.oracles.blocks import Points, in_blocks
from manifed.oracles.noisy_oracle import Draws
from manifed.oracles.sums import keeps_rows_apart
from manifed.privacy.events import NeighboringRelation, Release
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.random_numbers import Stream
from manifed.problems.examples import Examples
from manifed.problems.problem import Problem

LABEL = "evaluation"
"""The label of the release that an evaluation is charged as."""
HELD_OUT = tuple(f"held_out_{what}{end}" for what in ("loss", "accuracy")
                 for end in ("", "_low", "_high"))  # fmt: skip
"""Columns of a private evaluation."""
_FAR = -NormalDist().inv_cdf(1e-9 / 6)
"""An honest site's totals of one evaluation are refused with probability 1e-9 at most: the standard
normal is above it with a sixth of that, and six bounds are looked at."""


@dataclass(frozen=True)
class Totals(Payload):
    """Uplink of a private evaluation: sum_j (t_j, c_j, 1) of a hold-out, noised; shape (3,)."""

    u: Tensor

    @classmethod
    def layout(cls, shape: Shape, dtype: torch.dtype) -> Values:
        """Lists one field of three numbers."""
        return {"u": ((3,), dtype)}


EVALUATE = Phase("evaluate", Point, Totals, uploads=("any",), aggregation="none")
"""The model down, and the totals up: the last exchange of a round that is evaluated."""


class _StopWhen(Frozen):
    """Early stopping. The run pays for all planned rounds."""

    no_better_for: PositiveCount
    """Evaluations in a row without a new least mean loss."""


class _HeldOut(Frozen):
    """When a model is judged by records that no training step uses, and what follows from it."""

    every: PositiveCount = 1
    """Rounds between evaluations. The other rounds pay nothing."""
    keep: Literal["last", "best"] = "last"
    """The model of the last round, or that of the least mean loss."""
    stop_when: _StopWhen | None = None
    """Early stopping. None: never."""


class PublicEvaluation(_HeldOut):
    """Loss and accuracy on a public file of the server."""

    kind: Literal["public"] = "public"
    path: str = Field(min_length=1)
    """Path on the server, relative to the current folder. Read as ``data`` says."""


class PrivateEvaluation(_HeldOut):
    """Loss and accuracy on the hold-out of every site, noised and charged to every ledger."""

    kind: Literal["private"] = "private"
    hold_out: Fraction
    """Share of the records that is kept from training."""
    loss_range: tuple[float, float]
    """Public interval to which losses are clipped."""
    noise_multiplier: Positive | None = None
    """Noise over the sensitivity. None: that of training, calibrated together with it."""

    @model_validator(mode="after")
    def _is_interval(self) -> "PrivateEvaluation":
        low, high = self.loss_range
        if not low < high:
            raise ValueError(f"loss_range: expected low < high, got {[low, high]}")
        return self

    def is_due(self, server_round: int) -> bool:
        """Whether a round is evaluated, and charged for it."""
        return server_round > 0 and server_round % self.every == 0

    def trained_on(self, num_examples: int) -> int:
        """Returns the public size of the part of a shard that training uses."""
        return max(1, num_examples - math.floor(num_examples * self.hold_out))

    def split(
        self, examples: Examples, relation: NeighboringRelation, seed: int
    ) -> tuple[Examples, Examples]:
        """Splits one client's examples into (training, hold-out) by a public rule."""
        if relation == "replace-one":
            ends = [math.floor(j * self.hold_out) for j in range(len(examples) + 1)]
            are_out = [low < high for low, high in pairwise(ends)]
        else:
            are_out = [share < self.hold_out for share in _hashes(examples, seed)]
        is_out = torch.tensor(are_out, dtype=torch.bool)
        return examples.take((~is_out).nonzero()[:, 0]), examples.take(is_out.nonzero()[:, 0])

    def multiplier(self, mechanism: ExampleMechanism) -> float:
        """The noise relative to the sensitivity."""
        own = self.noise_multiplier
        return mechanism.noise.multiplier if own is None else own

    def stddev(self, mechanism: ExampleMechanism) -> float:
        """The standard deviation of the noise on each of the three sums."""
        is_added = mechanism.neighboring_relation == "add-or-remove"
        return self.multiplier(mechanism) * (math.sqrt(3.0) if is_added else 2 * math.sqrt(2.0))

    def release(self, mechanism: ExampleMechanism) -> Release:
        """The release that one evaluation of one client is charged as."""
        return Release(
            unit=mechanism.unit,
            neighboring_relation=mechanism.neighboring_relation,
            noise_multiplier=self.multiplier(mechanism),
            count=mechanism.sites_per_person,
            label=LABEL,
        )

    def totals(
        self, problem: Problem, x: Tensor, examples: Examples, stddev: float, draws: Draws
    ) -> Totals:
        """Returns sum_j (t_j, c_j, 1) + N(0, stddev^2), shape (3,), or (C, 3) of a cohort."""
        low, high = self.loss_range
        losses, answers = judged(problem, x, examples, worst=high)
        t = (losses.clamp(low, high) - (low + high) / 2) / ((high - low) / 2)
        t = t.clamp(-1.0, 1.0)  # also where the ends of a narrow interval round to its middle
        rows = torch.stack([t, answers, torch.ones_like(t)], dim=-1)
        if examples.counts is not None:
            is_own = torch.arange(rows.shape[-2], device=x.device) < examples.counts.unsqueeze(-1)
            rows = torch.where(is_own.unsqueeze(-1), rows, 0.0)
        noise = draws.normals((3,), Stream.EVALUATION_NOISE, 0)
        return Totals((rows.to(noise.dtype).sum(-2) + stddev * noise).to(x.dtype))

    def refused(
        self,
        mechanism: ExampleMechanism,
        num_examples: Sequence[int],
        totals: Tensor,
        partitions: tuple[int, ...],
    ) -> dict[int, str]:
        """Returns the clients whose totals no hold-out has, but for noise of probability 1e-9.

        Every record adds 1 to the count, and at most 1 to what the other two sums are in size.

        Args:
            mechanism: the sites', by whose noise the totals are off.
            num_examples: N_i of every site.
            totals: what came, (C, 3).
            partitions: whose they are.
        """
        found = dict[int, str]()
        off = _FAR * self.stddev(mechanism)
        rounding = 64 * torch.finfo(totals.dtype).eps
        for i, (t, c, count) in zip(partitions, totals.tolist(), strict=True):
            least = most = num_examples[i] - self.trained_on(num_examples[i])
            if mechanism.neighboring_relation == "add-or-remove":
                # equal records are on one side: it may be none of them or all
                least = 0
                most = num_examples[i]
            slack = rounding * (most + max(abs(t), abs(c), abs(count)))
            if not least - off - slack <= count <= most + off + slack:
                found[i] = (
                    f"Expected {least} to {most} held out records of N_{i} = "
                    f"{num_examples[i]}, within {off:.4g} of noise, got {count:.6g}"
                )
            elif not max(abs(t), abs(c)) <= count + math.sqrt(2.0) * off + slack:
                found[i] = (
                    f"Expected sums of at most the {count:.6g} held out records, within "
                    f"{math.sqrt(2.0) * off:.4g} of noise, got {t:.6g} (loss) and {c:.6g} (class)"
                )
        return found

    def row(
        self, said: tuple[Tensor, int] | None, mechanism: ExampleMechanism
    ) -> dict[str, float | None]:
        """Returns mean loss and accuracy of all hold-outs, with 95 % intervals for the noise alone.

        ``said`` is the sum (3,) of what so many sites sent; None: nothing was evaluated.
        """
        if said is None:
            return dict.fromkeys(HELD_OUT)
        summed, replies = said
        stddev = self.stddev(mechanism)
        (t, c, count), (low, high) = summed.tolist(), self.loss_range
        rows = (("loss", t, (high - low) / 2, sum(self.loss_range) / 2), ("accuracy", c, 0.5, 0.5))
        return {
            f"held_out_{name}{ending}": None if value is None else shift + scale * value
            for name, total, scale, shift in rows
            for ending, value in zip(
                ("", "_low", "_high"), ratio(total, count, stddev * replies**0.5), strict=True
            )
        }


def ratio(total: float, count: float, noise: float) -> tuple[float | None, float, float]:
    """Returns the mean in [-1, 1] of a total over a count, with its 95 % interval.

    Total and count each have N(0, noise^2) on them.

    All theta with |total - theta count| <= 1.96 noise sqrt(1 + theta^2) (Fieller 1954): exact.
    None, and all of [-1, 1], where the count is not told from 0.
    """
    spread = 1.959963984540054 * noise  # a normal is farther from 0 with probability 5 %
    lead = count**2 - spread**2
    if lead <= 0 or count <= 0:
        return None, -1.0, 1.0
    root = spread * math.sqrt(max(total**2 + lead, 0.0))
    ends = ((total * count - root) / lead, (total * count + root) / lead)
    middle, low, high = (min(1.0, max(-1.0, value)) for value in (total / count, *ends))
    return middle, low, high


def judged(
    problem: Problem, x: Tensor, examples: Examples, *, worst: float
) -> tuple[Tensor, Tensor]:
    """Returns losses and answers (1, -1, or 0 without classes), shape (..., n), in float64.

    A record without a finite loss has the worst one; one that makes a kernel fail has the worst of
    both. What a record gives is a function of that record, bit for bit (`oracles.blocks`).
    """

    def together(points: Points, examples: Examples) -> Tensor:
        losses = problem.losses(points[0], examples)
        right = problem.correct(points[0], examples)
        losses = losses.to(torch.float64)  # a shorter type may not hold the bounds
        losses = torch.where(torch.isfinite(losses), losses, worst)
        answers = torch.zeros_like(losses) if right is None else (2 * right - 1).to(losses)
        return torch.stack([losses, answers], -1)

    def compute(points: Points, block: Examples) -> Callable[[int], Tensor]:
        return together(points, block).__getitem__

    def in_turn(x: Tensor, own: Examples) -> Tensor:
        """One client's, in blocks; a record that fails fails alone."""

        def attempt(block: Tensor, counts: Tensor) -> Tensor | None:
            try:
                return together(points, own.take(block))
            except (RuntimeError, ArithmeticError):
                return None

        points = (x.clone(),)  # no place in a stack, but one of its own
        found = torch.tensor([worst, -1.0], dtype=torch.float64).repeat(len(own), 1)
        for at, is_good, made in in_blocks(
            problem, compute, "evaluation", points, own, torch.arange(len(own)), attempt
        ):
            found[at[is_good]] = made[: len(at)][is_good]
        return found

    if keeps_rows_apart(problem):
        rows = together((x,), examples)
    elif x.dim() == problem.manifold.ndim:
        rows = in_turn(x, examples)
    else:  # a cohort is taken apart into clients; what pads one counts for nothing
        rows = torch.zeros(len(x), len(examples), 2, dtype=torch.float64)
        for i, point in enumerate(x):
            own = examples.of_client(i)
            rows[i, : len(own)] = in_turn(point, own)
    losses, answers = rows.unbind(-1)
    return losses, answers


def _hashes(examples: Examples, seed: int) -> list[float]:
    """A number in [0, 1) of each record, by its own entries and the public seed."""
    columns = [
        examples[key].to(torch.float64).reshape(len(examples), -1)
        for key in sorted(examples.tensors)
    ]
    key = f"hold-out {seed}".encode()
    return [
        int.from_bytes(hashlib.blake2b(row.tobytes(), key=key, digest_size=8).digest(), "little")
        / 2.0**64
        for row in torch.cat(columns, 1).numpy()
    ]
