"""What a client update asks its oracle: the batch, the bound of an example, noise and charge."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from manifed.oracles.minibatch import Full, Minibatch
from manifed.privacy.events import Release, Sampling, Unsampled
from manifed.privacy.masked import MaskedMechanism
from manifed.privacy.mechanism import ExampleMechanism

UNNOISED = "-unnoised"
"""What the label of a query ends with where nothing was added to its answer."""

Form = Literal["gradient", "difference", "each"]
"""What one example adds to a mean: its clipped gradient; its correction, clipped as one vector; or
its correction with each of the two gradients clipped (so that it moves the mean by two bounds)."""


class WrongSize(ValueError):
    """A shard whose number of rows is not its public size, where the price needs that it is."""


class Ask(NamedTuple):
    """One kind of question in one round: how often, over which batch, and what an example adds."""

    batch: Minibatch = Full()
    count: int = 1
    label: str = "gradient"
    form: Form = "gradient"
    apart: float = 2.0
    """How many clip norms the vectors of two examples are apart at most."""


@dataclass(frozen=True)
class Query:
    """One kind of question of a client update: the numbers that scale its noise and its charge."""

    label: str
    mechanism: ExampleMechanism
    num_examples: int
    """The public size N_i of the shard."""
    sampling: Sampling
    """How a batch is drawn, and charged."""
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
    needs_exact_size: bool
    """Whether the shard must hold exactly ``num_examples`` rows, because neighbours have as many.

    Under add-or-remove the two may differ by any amount: that is the relation itself.
    """
    whole_clip: float | None = None
    """Bound of the mean itself, where a client is the unit; None: the mean is not clipped."""
    first: int | None = None
    """The row at which the batch begins, where rows are used in their order, and then from the
    start; None: the batch is drawn."""
    lipschitz: float | None = None
    """A record whose gradient can be steeper counts as zero; None: any may be as it likes."""
    mask_stddev: float = 0.0
    """What masks of unit deviation are multiplied by before they are added to an answer."""

    @staticmethod
    def of(mechanism: ExampleMechanism, ask: Ask, num_examples: int) -> "Query":
        """The question that the mechanism noises by its own rule, for a shard of that size.

        Where a client is the unit of masked noise its batch amplifies nothing: the whole mean is
        clipped.
        """
        clip = mechanism.l2_norm_clip if ask.form == "gradient" else mechanism.correction_clip
        size, is_clipped = ask.batch.expected_size(num_examples), mechanism.l2_norm_clip is not None
        masked = mechanism if isinstance(mechanism, MaskedMechanism) else None
        is_client = masked is not None and masked.unit == "client"
        is_replaced = is_clipped and masked is None
        is_replaced = is_replaced and mechanism.neighboring_relation == "replace-one"
        sensitivity = stddev = 0.0
        if clip is not None:
            terms = 2 if ask.form == "each" else 1
            sensitivity = mechanism.sensitivity(clip, size, terms=terms, apart=ask.apart)
            stddev = mechanism.stddev(sensitivity, num_examples)
        return Query(
            ask.label, mechanism, num_examples, ask.batch.sampling(num_examples), ask.form, size,
            None if is_client else clip, sensitivity, stddev,
            drawn=stddev if is_clipped else None, count=ask.count,
            needs_exact_size=is_replaced or ask.batch.kind == "without-replacement",
            whole_clip=clip if is_client else None,
            mask_stddev=0.0 if masked is None else masked.mask_stddev,
        )  # fmt: skip

    def release(self) -> tuple[Release, ...]:
        """The event that it is charged as; none where nothing is clipped or asked."""
        if self.mechanism.l2_norm_clip is None or self.count == 0:
            return ()
        event = self.mechanism.release(
            label=self.label,
            count=self.count,
            stddev=self.stddev,
            sensitivity=self.sensitivity,
            sampling=self.sampling if self.whole_clip is None else Unsampled(),
        )
        return (event,)
