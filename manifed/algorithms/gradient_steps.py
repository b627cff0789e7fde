"""What all client halves that take ``local_steps`` gradient steps share: the charge for them."""

from pydantic import Field

from manifed.oracles.minibatch import Full, Minibatch
from manifed.privacy.events import Frozen, GaussianRelease
from manifed.privacy.mechanism import ExampleMechanism


class GradientSteps(Frozen):
    """``local_steps`` steps of ``step_size`` along minibatch gradients."""

    step_size: float = Field(gt=0)
    local_steps: int = Field(default=1, ge=1)
    minibatch: Minibatch = Full()

    def sensitivity(self, mechanism: ExampleMechanism, num_examples: int) -> float:
        """L2 sensitivity of one clipped mean gradient."""
        assert mechanism.l2_norm_clip is not None
        return mechanism.sensitivity(
            mechanism.l2_norm_clip, self.minibatch.expected_size(num_examples)
        )

    def stddev(self, mechanism: ExampleMechanism, num_examples: int) -> float:
        """Standard deviation of the noise of one gradient."""
        return mechanism.stddev(self.sensitivity(mechanism, num_examples), num_examples)

    def releases(
        self, mechanism: ExampleMechanism, num_examples: int
    ) -> tuple[GaussianRelease, ...]:
        """``local_steps`` noised gradients; all else in an upload follows from them."""
        if mechanism.l2_norm_clip is None:
            return ()
        return (
            mechanism.release(
                label="gradient",
                count=self.local_steps,
                stddev=self.stddev(mechanism, num_examples),
                sensitivity=self.sensitivity(mechanism, num_examples),
                sampling=self.minibatch.sampling(num_examples),
            ),
        )
