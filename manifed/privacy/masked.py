"""Noise of a node's own and masks that it shares with its neighbours, as one mechanism (DECOR).

What leaves node i is g_i + N(0, noise_stddev^2) + mask_stddev * sum_j (+-) v_ij. g_i moves by at
most its sensitivity: with ``unit = "client"`` the whole gradient is clipped and somebody's data are
replaced, so 2 C; with "example" each example's gradient is clipped and b examples are averaged, so
C / b (add-or-remove). The message is a Gaussian release whose standard deviation depends on who
looks (`manifed.privacy.secldp`): the mechanism scales the noise and states that event.

Source: Allouah et al. (DECOR), Algorithm 1 and Theorem 6; the exact price is spec 004 §3.5.
"""

from collections.abc import Sequence

from pydantic import Field

from manifed.graphs import Graph
from manifed.privacy.events import Frozen, PrivacyUnit, Release, Sampling
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.secldp import Correlated, against, worst

_DOWN = 1 - 2.0**-50
"""Against the rounding of a quotient: a noise multiplier is stated no larger than it is."""


class Hidden(Frozen):
    """Effective standard deviation of the worst node's message, by who looks."""

    from_server: float
    from_one: float
    from_coalition: float
    from_all: float

    @classmethod
    def of(
        cls, graph: Graph, noise: Correlated, collusion: int, coalition: Sequence[int] = ()
    ) -> "Hidden":
        """As `secldp.worst` finds them, and `secldp.against` for a named coalition.

        Where so many cannot collude without the victim, all others do.
        """
        most = graph.num_nodes - 1
        three = (
            against(graph, noise, coalition)
            if coalition
            else worst(graph, noise, min(collusion, most))
        )
        return cls(
            from_server=worst(graph, noise, 0).stddev * _DOWN,
            from_one=worst(graph, noise, min(1, most)).stddev * _DOWN,
            from_coalition=three.stddev * _DOWN,
            from_all=noise.sigma_cdp,
        )

    @classmethod
    def uniform(cls, stddev: float) -> "Hidden":
        """What hides the same from every adversary: noise of one deviation."""
        return cls(from_server=stddev, from_one=stddev, from_coalition=stddev, from_all=stddev)

    def more_than(self, before: "Hidden") -> "Hidden":
        """The deviations of releases that, beside those of ``before``, amount to these.

        The squares of their inverses add up (`accountant`: unsampled Gaussians); never nothing.
        """

        def left(after: float, was: float) -> float:
            paid = was**-2
            return max(after**-2 * (1 + 1e-9) - paid, 1e-12 * paid) ** -0.5

        names = Hidden.model_fields
        return Hidden(**{name: left(getattr(self, name), getattr(before, name)) for name in names})


class MaskedMechanism(ExampleMechanism):
    """Clips, and says how much noise and which masks are added; see the module."""

    unit: PrivacyUnit = "client"
    mask_stddev: float = Field(default=0.0, ge=0)
    """The deviation of the mask of one pair, per orthonormal coordinate."""
    hidden: Hidden

    def masks(self) -> tuple[PrivacyUnit, float]:
        """The unit that masks hide, and the deviation of one pair's mask."""
        return self.unit, self.mask_stddev

    def sensitivity(
        self, l2_norm_clip: float, expected_size: float, *, terms: int = 1, apart: float = 2.0
    ) -> float:
        """What a change of somebody's data moves a message by."""
        if self.unit == "client":
            return 2.0 * l2_norm_clip
        return super().sensitivity(l2_norm_clip, expected_size, terms=terms, apart=apart)

    def disclosing(self, after: Hidden) -> "MaskedMechanism":
        """Prices what it costs beside a message that it comes to be hidden as ``after`` says."""
        return self.model_copy(update={"hidden": after.more_than(self.hidden)})

    def scaled(self, factor: float) -> "MaskedMechanism":
        """Refused: what masks hide is found for the noise of both kinds together.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"Expected masked noise as it is priced, got {factor:g} times as much")

    def release(
        self, *, label: str, count: int, stddev: float, sensitivity: float, sampling: Sampling
    ) -> Release:
        """The event of so many messages of the worst node."""
        del stddev
        hidden = self.hidden
        return Release(
            unit=self.unit,
            neighboring_relation=self.neighboring_relation,
            noise_multiplier=hidden.from_all / sensitivity * _DOWN,
            to_coalition=hidden.from_coalition / sensitivity * _DOWN,
            to_one=hidden.from_one / sensitivity * _DOWN,
            to_server=hidden.from_server / sensitivity * _DOWN,
            sampling=sampling,
            count=count,
            label=label,
        )
