"""DP-RSVRG's variants: what each draws, what it is charged for, and that it is Algorithm 11."""

import math
from collections import Counter

import pytest
import torch

from manifed.algorithms.rsvrg import RSVRG
from manifed.manifolds import Sphere
from manifed.oracles.minibatch import Full, Poisson, WithoutReplacement
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.random_numbers import NoiseSource, Stream
from manifed.problems.pca import PrincipalEigenvector
from tests.conformance.client_cases import ClientCase, play, shards, start
from tests.tensors import assert_near

EPOCHS = 3
INNER = 4
SIZE = 12
SOURCE = NoiseSource.from_seed(3)
ONE = WithoutReplacement(batch_size=1)
TWICE = {"step_size": 0.05, "epochs": EPOCHS, "inner_steps": INNER, "minibatch": ONE}
EACH = {**TWICE, "variant": "fresh", "correction_clip": "each"}
VARIANTS = {
    "fresh": (RSVRG(**EACH), "replace-one"),
    "reuse": (RSVRG(**TWICE, correction_clip="each"), "replace-one"),
    "diffclip": (RSVRG(**TWICE, variant="fresh"), "replace-one"),
    "poisson": (RSVRG(**{**EACH, "minibatch": Poisson(batch_size=4)}), "add-or-remove"),
}
REFERENCES = {"fresh": INNER * EPOCHS, "reuse": EPOCHS, "diffclip": 12, "poisson": 12}


def mechanism_of(relation, multiplier=1.5):
    return ExampleMechanism(
        l2_norm_clip=0.5,
        correction_l2_norm_clip=0.1,
        neighboring_relation=relation,
        noise=Noise(multiplier=multiplier),
    )


def turn_of(training, mechanism, source=SOURCE):
    """What client 0 sends in round 1."""
    case = ClientCase("rsvrg", training, mechanism)
    return play(case, 0, start(), shards()[0], SIZE, source, 1).up["train.u"]


class Watched(NoiseSource):
    """Counts at which steps gradient noise is drawn."""

    def normals(self, shape, **address):
        if address["stream"] is Stream.GRADIENT_NOISE:
            STEPS.update([address["step"]])
        return super().normals(shape, **address)


STEPS = Counter()


def drawn_noise(training, mechanism):
    """How many gradient noise vectors left the source of randomness during one update."""
    STEPS.clear()
    turn_of(training, mechanism, Watched(bytes(32), origin="seed"))
    assert set(STEPS.values()) <= {1}
    return len(STEPS)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_draws_what_it_is_charged_for(name):
    """S full-gradient releases are right where S were drawn, and m S where one covers each step."""
    training, relation = VARIANTS[name]
    reference, correction = training.releases(mechanism_of(relation), SIZE)
    assert (reference.count, correction.count) == (REFERENCES[name], INNER * EPOCHS)
    covers_both = training.variant == "fresh"
    expected = correction.count if covers_both else correction.count + reference.count
    assert drawn_noise(training, mechanism_of(relation)) == expected


def share_of(reference, correction):
    """Of one variance, what the reference is charged with."""
    return reference.stddev**2 / (reference.stddev**2 + correction.stddev**2)


def test_the_default_share_is_the_papers_for_equal_clips():
    mechanism = mechanism_of("replace-one").model_copy(update={"correction_l2_norm_clip": 0.5})
    share = share_of(*VARIANTS["fresh"][0].queries(mechanism, SIZE))
    assert share == pytest.approx((math.sqrt(14) - 1) / 13)


@pytest.mark.parametrize("minibatch", [ONE, WithoutReplacement(batch_size=5), Full()])
def test_the_share_costs_least_by_the_formula_it_minimises(minibatch):
    """(3): count * (Delta_0 / sigma_1)^2 + count * factor * (rate Delta_1 / sigma_2)^2."""
    mechanism = mechanism_of("replace-one")
    rate = minibatch.expected_size(SIZE) / SIZE
    factor = 3.5 if rate < 1 else 1.0

    training = VARIANTS["fresh"][0].model_copy(update={"minibatch": minibatch})
    reference, correction = training.queries(mechanism, SIZE)

    def cost(share):
        there = reference.sensitivity**2 / share
        here = (rate * correction.sensitivity) ** 2 / (1 - share)
        return (there + factor * here) / correction.drawn**2

    first, second = (one.noise_multiplier for one in training.releases(mechanism, SIZE))
    best = share_of(reference, correction)
    assert cost(best) == pytest.approx(first**-2 + factor * (rate / second) ** 2)
    assert cost(best) < min(cost(best * 0.98), cost(min(best * 1.02, 0.999)))


def test_one_example_steps_follow_the_printed_update():
    """Algorithm 11 line by line, with i_t read off the same draws."""
    training = RSVRG(
        step_size=0.3, epochs=2, inner_steps=2, minibatch=ONE, variant="fresh",
        correction_clip="each",
    )  # fmt: skip
    mechanism = ExampleMechanism(l2_norm_clip=0.5, correction_l2_norm_clip=0.2)
    sphere = Sphere()
    problem = PrincipalEigenvector()
    shard = shards()[0]

    def clip(u, bound):
        return u * min(1.0, bound / float(u.norm()))

    w = start()
    for step in (1, 2, 4, 5):  # each reference counts as one
        if step in (1, 4):
            anchor = w
            each = problem.rgrads(anchor, shard)
            g = torch.stack([clip(u, 0.5) for u in each]).mean(0)  # line 4
        keys = SOURCE.uniforms(
            (SIZE,), stream=Stream.MINIBATCH, partition=0, server_round=1, step=step
        )
        i = int(keys.argmin())  # line 6
        now = clip(problem.rgrads(w, shard)[i], 0.2)
        back = clip(each[i], 0.2) - g
        w = sphere.expmap(w, -0.3 * (now - sphere.transp(anchor, w, back)))  # lines 7, 8
    found = sphere.expmap(start(), turn_of(training, mechanism))
    assert_near(found, w, 1e-12)
