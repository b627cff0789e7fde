"""What all client updates that take ``local_steps`` gradient steps share: what they ask and pay."""

from pydantic import Field

from manifed.oracles.minibatch import Full, Minibatch
from manifed.oracles.query import Query
from manifed.privacy.events import Event, Frozen
from manifed.privacy.mechanism import ExampleMechanism


class GradientSteps(Frozen):
    """``local_steps`` steps of ``step_size`` along minibatch gradients."""

    step_size: float = Field(gt=0)
    """Of a local step."""
    local_steps: int = Field(default=1, ge=1)
    """Local steps a round."""
    minibatch: Minibatch = Full()
    """The examples of one step."""

    def queries(self, mechanism: ExampleMechanism, num_examples: int) -> tuple[Query, ...]:
        """``local_steps`` gradients; all else in an upload follows from them."""
        return (Query.of(mechanism, self.minibatch, num_examples, count=self.local_steps),)

    def releases(self, mechanism: ExampleMechanism, num_examples: int) -> tuple[Event, ...]:
        """What one round releases."""
        return releases_of(self.queries(mechanism, num_examples))


def releases_of(queries: tuple[Query, ...]) -> tuple[Event, ...]:
    """What the queries are charged as, in order."""
    return tuple(release for query in queries for release in query.release())
