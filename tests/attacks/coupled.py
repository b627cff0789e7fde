"""Attacks on growing samples: two streams that differ in one example of every round's batch.

Everything is on R^1, with messages of zero coming down, so that the client updates of a node are
all that is attacked. Every example of both streams has the loss h x^2 / 2, except for the one that
differs: its target pulls one way in one stream and the other way in the other, by turns such that
the hidden states part as fast as they can. They are then m_k and -m_k, which an attacker who knows
both streams can compute, and the score is the log likelihood ratio of all messages.
"""

from dataclasses import dataclass, replace

import torch

from manifed.algorithms.growing_samples import GrowingSamples, OwnAndMixed, OwnModel
from manifed.algorithms.payloads import Point
from manifed.audit.bound import Attack, Audited
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.graphs import Ring
from manifed.privacy import epsilon_bounds
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.random_numbers import NoiseSource
from manifed.privacy.series import Releases
from manifed.problems.examples import Examples
from manifed.problems.linear import LeastSquares
from manifed.problems.rows import row_products
from reproduction.endless import printed_epsilon
from reproduction.powers import EXAMPLES


class _Hill(LeastSquares):
    """Least squares upside down: curvature -|a|^2, the most that a Lipschitz constant allows."""

    keeps_rows_apart = True

    def slopes(self, x, examples):
        """-a_j^T x - b_j, shape ``(..., n)``."""
        return -row_products(examples["feature"], x) - examples["target"]


_ROWS = 400_000
"""Records that are held at once."""
_FLAT = 1e-6
_FAR = 1e6
"""A target so far away, in clip norms, that its gradient is clipped wherever the model is."""
_SEEN = 4.0
"""A stream is made so steep that it loses this many times what is claimed, if one can be."""


@dataclass(frozen=True)
class CoupledAttack(Attack):
    """One node's client updates of rounds 1, 2, ... on one of two coupled streams."""

    training: GrowingSamples
    mechanism: ExampleMechanism
    num_rounds: int
    source: NoiseSource
    curvature: float
    """h of every example that both streams have, where gradients are clipped -h."""
    change: float
    """How far apart two examples' gradients are: 2 S where they are clipped at S, else C."""

    def claim(self, delta):
        """Epsilon of what the attacked rounds are charged as."""
        return epsilon_bounds.epsilon(charged(self), delta)

    @property
    def at_once(self):
        return max(1, _ROWS // self.training.schedules.size(self.num_rounds - 1))

    # -- the streams -------------------------------------------------------------------------
    @property
    def _is_clipped(self):
        return self.mechanism.l2_norm_clip is not None

    def _turns(self):
        """In every round which way the example pulls the state (1 or -1), and then m_k + 1."""
        s = self.training.schedules
        found = list[tuple[float, float]]()
        state = 0.0
        is_output = self.training.perturbation == "output"
        for k in range(self.num_rounds):
            if not is_output:
                found.append((1.0, self.change / 2 / s.size(k)))
                continue
            kept = 1 - s.mixing(k) - s.step_size(k) * self._slope(k)
            way = 1.0 if kept * state >= 0 else -1.0
            state = kept * state + way * s.step_size(k) * self.change / 2 / s.size(k)
            found.append((way, state))
        return found

    def _slope(self, k):
        """Of the batch's gradient in the hidden state."""
        if self.training.perturbation == "gradient" or self.training.grad_point == "mixed":
            return 0.0
        if not self._is_clipped:
            return self.curvature
        size = self.training.schedules.size(k)
        return -self.curvature * (size - 1) / size  # the clipped one has none

    def loss(self):
        """The privacy loss of the pair: sum of 2 |m_k| / scale, which is epsilon with Laplace."""
        noises = [self._query(k).stddev or self._scale(k) for k in range(self.num_rounds)]
        return sum(2 * abs(m) / b for (_, m), b in zip(self._turns(), noises, strict=True))

    def _scale(self, k):
        is_output = self.training.perturbation == "output"
        return self.training.schedules.noise_scale(k + is_output)

    def _query(self, k):
        update = self.training.in_round(k + 1)
        (query,) = update.queries(self.mechanism, self.training.schedules.size(k))
        return query

    def _examples(self, k, way):
        """A round's batch, fresh; the first of it is the example that differs."""
        size = self.training.schedules.size(k)
        side = max(self.curvature, 1e-12) ** 0.5
        feature = torch.full((size, 1), side, dtype=torch.float64)
        target = torch.zeros(size, dtype=torch.float64)
        far = _FAR * self.change if self._is_clipped else self.change / 2
        if self._is_clipped:
            feature[0] = _FLAT  # flatter than any premise, and its target so much further away
        target[0] = way * far / float(feature[0, 0])
        return Examples({"feature": feature, "target": target}, {"feature": 1, "target": 0})

    # -- the updates -------------------------------------------------------------------------
    def run(self, trials, *, is_present):
        """One score a node: of what it sends in all rounds."""
        count = len(trials)
        sign = 1.0 if is_present else -1.0
        problem = _Hill() if self._is_clipped else LeastSquares()
        setup = ClientSetup(problem, self.training, self.mechanism)
        zero = torch.zeros(count, 1, dtype=torch.float64)
        is_output = self.training.perturbation == "output"
        memory = self.training.initial_memory(zero)
        total = torch.zeros(count, dtype=torch.float64)
        for k, (way, state) in enumerate(self._turns()):
            examples = self._examples(k, sign * way)
            size = len(examples)
            stacked = Examples.stack([examples] * count)
            down = Point(zero) if is_output else OwnAndMixed(zero, zero)
            seat = Seat(trials, k + 1, 0, "mix")
            done = run_update(setup, seat, down, memory, stacked, [size] * count, self.source)
            memory = done.memory
            assert isinstance(done.up, Point)
            y = done.up.x[:, 0]
            if not is_output:
                y = y / self.training.schedules.step_size(k)
            total += self._gain(y, state, k)
            assert memory is None or isinstance(memory, OwnModel)
        return total

    def _gain(self, y, state, k):
        """Log p(y | state) - log p(y | -state)."""
        stddev = self._query(k).stddev
        if stddev > 0:
            return 2 * state * y / stddev**2
        return ((y + state).abs() - (y - state).abs()) / self._scale(k)


# -- claims --------------------------------------------------------------------------------------
def charged(attack):
    """What the attacked rounds are charged as."""
    found = []
    for k in range(attack.num_rounds):
        update = attack.training.in_round(k + 1)
        found += update.releases(attack.mechanism, attack.training.schedules.size(k))
    return tuple(found)


def of_published(training, num_rounds, source):
    """Mode "paper" on a stream, and epsilon by the paper's formula, which is 1 by the choice of C.

    Gradients move by exactly C in L1 at every point, as Definition 1 says.
    """
    unit = Releases(algorithm=training.perturbation, schedules=training.schedules, sensitivity=1.0)
    change = 1.0 / printed_epsilon(unit, num_rounds)
    bare = CoupledAttack(training, ExampleMechanism(), num_rounds, source, 0.0, change)
    return steep(bare, 1.0), 1.0


def steep(attack, claimed):
    """With a curvature at which the pair loses several times what is claimed, or most."""
    first = attack.training.schedules.step_size(0)
    tried = [replace(attack, curvature=n / first) for n in (0.0, *(1.1**i for i in range(60)))]
    for one in tried:
        if one.loss() >= _SEEN * claimed:
            return one
    return max(tried, key=lambda one: one.loss())


def of_rigorous(training, mechanism, num_rounds, source):
    """Clipped gradients, as steep as records that count may be."""
    assert mechanism.l2_norm_clip is not None
    steepest = (training.lipschitz or 0.0) * (1 - 1e-9)
    change = 2 * mechanism.l2_norm_clip
    return CoupledAttack(training, mechanism, num_rounds, source, steepest, change)


def audited_coupling(
    name,
    training,
    mechanism,
    num_rounds,
    source,
    trials,
):
    """The attack and its claim: the ledger's, or without a mechanism the paper's formula."""
    if mechanism is None:
        attack, epsilon = of_published(training, num_rounds, source)
        return Audited(name, attack, trials, name, lambda _: epsilon)
    return Audited(name, of_rigorous(training, mechanism, num_rounds, source), trials, name)


# -- what ships, and what was left out -------------------------------------------------------
def shipped_coupling(source, trials=8000):
    """Algorithm 1 at hidden states, with records as steep as may be, priced as it is charged."""
    training = GrowingSamples(
        perturbation="output",
        schedules=EXAMPLES[1].schedules,
        lipschitz=1.0,
        graph=Ring(),
        num_nodes=6,
    )
    mechanism = ExampleMechanism(
        l2_norm_clip=0.5,
        neighboring_relation="replace-one",
        noise=Noise(multiplier=1.0),
    )
    return audited_coupling("growing-samples-own", training, mechanism, 6, source, trials)


def one_state(source):
    """The same, priced as if both runs took their gradients at one state (Lemma 1 of the paper)."""
    honest = shipped_coupling(source)
    assert isinstance(honest.attack, CoupledAttack)
    seen = honest.attack.training.model_copy(update={"grad_point": "mixed", "lipschitz": None})
    events = charged(replace(honest.attack, training=seen))
    return replace(
        honest,
        name="growing-samples-one-state",
        claim=lambda delta: epsilon_bounds.epsilon(events, delta),
        how="as shipped",
    )
