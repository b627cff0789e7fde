"""The noise that a client really draws is the noise that it is charged for, query by query.

Each client update runs on two oracles with the same draws, one of them without noise, so that what
was added to every answer is seen. Sensitivities are computed here by hand, not by the update.
"""

from collections import defaultdict
from functools import lru_cache

import pytest
from scipy import stats

from manifed.algorithms.rsvrg import RSVRG
from manifed.oracles.oracle import Draws, Oracle
from manifed.privacy.mechanism import Noise
from manifed.privacy.noise import NoiseSource
from manifed.problems.pca import PrincipalEigenvector
from tests.conformance.client_cases import CASES, SIZES, broadcast, shards, start

DIM = 400
ROUNDS = 4
PRIVATE = [case for case in CASES if case.mechanism.l2_norm_clip is not None]


class Twin:
    """An oracle that also asks a noiseless one and keeps the squared length of what was added."""

    def __init__(self, noisy, clean, seen):
        self._noisy = noisy
        self._clean = clean
        self._seen = seen
        self.manifold = noisy.manifold
        self.carried = noisy.carried

    def gradient(self, x, label="gradient"):
        answer = self._noisy.gradient(x, label)
        added = answer - self._clean.gradient(x, label)
        if label in self._noisy.queries:
            self._seen[label].append(float(added.square().sum()))
        return answer

    def statistic(self, origin, label, kind):
        answer = self._noisy.statistic(origin, label, kind)
        added = answer - self._clean.statistic(origin, label, kind)
        self._seen[label].append(float(added.square().sum()))
        return answer

    def correlated(self, x, past, label="gradient"):
        answer, z = self._noisy.correlated(x, past, label)
        clean, _ = self._clean.correlated(x, past, label)
        self._seen[label].append(float((answer - clean).square().sum()))
        return answer, z

    def correction(self, x, anchor):
        answer = self._noisy.correction(x, anchor)
        clean = self._clean.correction(x, anchor)
        self._seen["correction"].append(float((answer - clean).square().sum()))
        return answer


@lru_cache
def added(name):
    """Query label -> squared lengths of the noise drawn, over a few rounds of client 0."""
    case = next(case for case in CASES if case.name == name)
    problem = PrincipalEigenvector()
    seen = defaultdict(list)
    quiet = case.mechanism.model_copy(update={"noise": Noise(multiplier=0.0)})
    shard = shards(DIM)[0]
    x = start(DIM)

    def asked(mechanism):
        return case.training.queries(mechanism, len(shard))

    for server_round in range(1, ROUNDS + 1):
        memory = case.training.initial_memory(x)
        for index, phase in enumerate(case.training.phases):
            draws = Draws(NoiseSource.from_seed(5), 0, server_round, 0, index)
            pair = [
                Oracle(problem, shard, [asked(mechanism)], draws)
                for mechanism in (case.mechanism, quiet)
            ]
            down = broadcast(phase, x)
            _, memory = case.training.update(
                phase.name, down, memory, Twin(*pair, seen), problem.manifold, draws
            )
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


def is_drawn(case, scale=1.0):
    """Whether every query's noise has the charged law, at a false-positive rate of 1e-6 each."""
    seen = added(case.name)
    stated = charged(case)
    assert set(seen) == set(stated)
    verdicts = []
    for label, squares in seen.items():
        dim = DIM * (DIM + 1) // 2 if label == "statistic" else DIM - 1
        tail = stats.chi2.cdf(sum(squares) / (scale * stated[label]) ** 2, len(squares) * dim)
        verdicts.append(5e-7 < tail < 1 - 5e-7)
    return all(verdicts)


@pytest.mark.statistical
@pytest.mark.parametrize("case", PRIVATE, ids=lambda case: case.name)
def test_every_query_carries_the_noise_it_is_charged_for(case):
    assert is_drawn(case)
    assert not is_drawn(case, 0.8)
    assert not is_drawn(case, 1.25)
