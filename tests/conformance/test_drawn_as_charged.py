"""The noise that a client really draws is the noise that it is charged for, query by query.

Each client update runs on two oracles with the same draws, one of them without noise, so that what
was added to every answer is seen. Sensitivities are computed here by hand, not by the update.
"""

from collections import defaultdict

import pytest

from manifed.algorithms.algorithm import Here
from manifed.algorithms.payloads import recorded
from manifed.algorithms.rsvrg import RSVRG
from manifed.oracles.noisy_oracle import Draws, Oracle
from manifed.privacy.mechanism import Noise
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.pca import PrincipalEigenvector
from tests.conformance.client_cases import CASES, SIZES, broadcast, shards, start
from tests.conformance.manifold_marks import of
from tests.statistics.laws import assert_chi_square

DIM = 400
ROUNDS = 4
PRIVATE = [case for case in CASES if case.mechanism.l2_norm_clip is not None]


class Twin(Oracle):
    """An oracle that also asks a noiseless one and keeps the squared length of what was added."""

    def __init__(self, clean, seen, *given):
        super().__init__(*given)
        self.clean = clean
        self.seen = seen

    def answer(self, label, *points, **given):
        answer = super().answer(label, *points, **given)
        added = answer - self.clean.answer(label, *points, **given)
        if label in self.queries:
            self.seen[label].append(float(added.square().sum()))
        return answer


def added_in(case):
    """Query label -> squared lengths of the noise drawn, over a few rounds of client 0."""
    problem = PrincipalEigenvector()
    seen = defaultdict(list)
    quiet = case.mechanism.model_copy(update={"noise": Noise(multiplier=0.0)})
    shard = shards(DIM)[0]
    x = start(DIM)
    loudly, quietly = ([case.training.queries(m, len(shard))] for m in (case.mechanism, quiet))
    for server_round in range(1, ROUNDS + 1):
        memory = case.training.initial_memory(x)
        for index, phase in enumerate(case.training.phases):
            draws = Draws(NoiseSource.from_seed(5), 0, server_round, 0, index)
            clean = Oracle(problem, shard, quietly, draws)
            twin = Twin(clean, seen, problem, shard, loudly, draws)
            down = broadcast(phase, x)
            here = Here(problem.manifold, phase.name, server_round, down, memory, draws)
            made = case.training.client(next(iter(vars(down).values())), twin, here)
            memory = made[1] if isinstance(made, tuple) else None
            memory = recorded(memory) if isinstance(memory, dict) else memory
    return seen


def sensitivity(case, label):
    """How far one example moves the answer to a query of this label."""
    mechanism = case.mechanism
    training = case.training
    size = SIZES[0]
    change = 2.0 if mechanism.neighboring_relation == "replace-one" else 1.0
    if label == "reference":
        return change * mechanism.l2_norm_clip / size
    if label == "statistic":  # two positive semidefinite matrices are never opposite
        change = min(change, 2.0**0.5)
    batch = training.minibatch.expected_size(size)
    if label == "correction":
        terms = 2.0 if training.correction_clip == "each" else 1.0
        clip = mechanism.correction_l2_norm_clip or mechanism.l2_norm_clip
        return terms * change * clip / batch
    return change * mechanism.l2_norm_clip / batch


def charged(case):
    """Query label -> standard deviation that the charges state for it."""
    releases = case.training.releases(case.mechanism, SIZES[0])
    stated = {r.label: r.noise_multiplier * sensitivity(case, r.label) for r in releases}
    if isinstance(case.training, RSVRG) and case.training.variant == "fresh":
        # One draw stands for two releases whose variances add up to its own (eq. 2).
        return {"correction": (stated["reference"] ** 2 + stated["correction"] ** 2) ** 0.5}
    return stated


@pytest.mark.statistical
@of(PRIVATE)
def test_every_query_carries_the_noise_it_is_charged_for(case):
    """At a false-positive rate of 1e-6 each; a fifth less or more is another law."""
    seen = added_in(case)
    stated = charged(case)
    assert set(seen) == set(stated)
    for label, squares in seen.items():
        freedom = DIM * (DIM + 1) // 2 if label == "statistic" else DIM - 1
        total = sum(squares) / stated[label] ** 2
        assert_chi_square(total, len(squares) * freedom, (0.8, 1.25))
