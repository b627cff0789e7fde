"""Every shipped mechanism with its claim, and the faults that an audit must catch."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from manifed.algorithms.correlated import CorrelatedRSGD
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.rsvrg import RSVRG
from manifed.algorithms.second_moment import SecondMoment
from manifed.audit.attack import Audited
from manifed.audit.client_attacks import (
    SHORT_STEP,
    CorrectionAttack,
    ExampleAttack,
    FlippingAttack,
    direction,
)
from manifed.audit.correlated_attacks import CorrelatedAttack
from manifed.audit.coupled_attacks import one_state, shipped_coupling
from manifed.audit.server_attacks import ClientAttack, ParticipationAttack
from manifed.audit.statistic_attacks import MomentAttack
from manifed.oracles.minibatch import Full, Poisson, WithoutReplacement
from manifed.privacy import accountant
from manifed.privacy.correlation import BandedInverse
from manifed.privacy.events import NeighboringRelation
from manifed.privacy.mechanism import (
    AdaptiveClip,
    ClientMechanism,
    ExampleMechanism,
    PublishedNoise,
    RelativeNoise,
)
from manifed.privacy.noise import NoiseSource, Stream

CLIP, SIZE = 0.5, 20
LONG = 10 * CLIP


def _mechanism(
    multiplier: float, relation: NeighboringRelation = "add-or-remove"
) -> ExampleMechanism:
    return ExampleMechanism(
        l2_norm_clip=CLIP,
        neighboring_relation=relation,
        noise=RelativeNoise(multiplier=multiplier),
    )


def price(attack: ExampleAttack, num_rounds: int | None = None) -> Callable[[float], float]:
    """Epsilon, by delta, that the accountant charges for ``num_rounds`` (default: those run)."""
    count = attack.num_rounds if num_rounds is None else num_rounds
    releases = attack.training.releases(attack.mechanism, attack.size)
    scaled = [r.model_copy(update={"count": r.count * count}) for r in releases]
    return lambda delta: accountant.epsilon(scaled, delta)


def _attack(
    training: RSGD | RSVRG, mechanism: ExampleMechanism, source: NoiseSource, num_rounds: int = 1
) -> ExampleAttack:
    mirrored = -1.0 if mechanism.neighboring_relation == "replace-one" else None
    return ExampleAttack(training, mechanism, SIZE, LONG, mirrored, source, num_rounds)


def _moments(
    training: SecondMoment, mechanism: ExampleMechanism, source: NoiseSource
) -> MomentAttack:
    mirrored = -1.0 if mechanism.neighboring_relation == "replace-one" else None
    return MomentAttack(training, mechanism, SIZE, LONG, mirrored, source)


def _correlated(source: NoiseSource) -> CorrelatedAttack:
    """Noise over eight rounds, with a canary in all of them."""
    update = CorrelatedRSGD(step_size=SHORT_STEP, correlation=BandedInverse(bands=3))
    return CorrelatedAttack(update, _mechanism(6.0), SIZE, LONG, None, source, num_rounds=8)


def _likelihood(attack: ExampleAttack, rate: float) -> ExampleAttack:
    """The attack with the exact log likelihood ratio of Poisson-sampled updates of one step."""
    assert attack.mechanism.l2_norm_clip is not None
    (release,) = attack.training.releases(attack.mechanism, attack.size)
    pull, z = attack.mechanism.l2_norm_clip / (rate * attack.size), release.noise_multiplier

    def score(uploads: list[Tensor]) -> Tensor:
        y = torch.stack(uploads) @ direction() / pull
        return torch.log1p(rate * torch.expm1((2 * y - 1) / (2 * z * z))).sum(0)

    return replace(attack, score=score)


def example_mechanisms(source: NoiseSource) -> list[Audited]:
    """Client updates under example-level privacy, attacked by a constant gradient."""
    rgd = RSGD(step_size=SHORT_STEP, local_steps=1, minibatch=Full())
    steps = RSGD(step_size=SHORT_STEP, local_steps=4, minibatch=Full())
    sampled = RSGD(step_size=SHORT_STEP, minibatch=Poisson(batch_size=SIZE // 4))
    inside = RSGD(step_size=SHORT_STEP, local_steps=4, minibatch=Poisson(batch_size=SIZE // 2))
    subset = RSGD(step_size=SHORT_STEP, local_steps=2, minibatch=WithoutReplacement(batch_size=16))
    add, replaced = _mechanism(1.0), _mechanism(1.0, "replace-one")
    crowd = replace(_attack(subset, replaced, source), others_pull=True)
    rows = [
        ("rgd", _attack(rgd, add, source)),
        ("rgd-replace-one", _attack(rgd, replaced, source)),
        ("rgd-4-steps-2-rounds", _attack(steps, _mechanism(2.5), source, num_rounds=2)),
        (
            "rsgd-poisson-4-rounds",
            _likelihood(_attack(sampled, _mechanism(0.7), source, num_rounds=4), 0.25),
        ),
        ("rsgd-poisson-4-steps", _attack(inside, _mechanism(1.5), source)),
        ("rsgd-without-replacement", crowd),
    ]
    how = "canary gradient at the clip norm, present or not (replace-one: mirrored)"
    audited = [Audited(name, attack, price(attack), 40000, how) for name, attack in rows]
    how = "canary row with a moment at the clip norm, present or not (replace-one: orthogonal)"
    moments = [
        ("second-moment", _moments(SecondMoment(), add, source)),
        ("second-moment-replace-one", _moments(SecondMoment(), replaced, source)),
    ]
    audited += [Audited(name, one, price(one), 40000, how) for name, one in moments]
    correlated, how = _correlated(source), "canary gradient at the clip norm, in every round"
    return [
        *audited,
        Audited("correlated-8-rounds", correlated, correlated.claim, 20000, how),
        shipped_coupling(source),
    ]


def correction_mechanisms(source: NoiseSource) -> list[Audited]:
    """Variance reduction, attacked by a record whose gradient changes after the first step."""
    two = RSVRG(step_size=SHORT_STEP, inner_steps=8, minibatch=Poisson(batch_size=15))
    each = two.model_copy(update={"correction_clip": "each"})
    most = {"variant": "fresh", "minibatch": Poisson(batch_size=150)}
    fresh = each.model_copy(update=most)
    # As printed the record's reference works against its corrections: the smaller it is, the less.
    mostly_corrections = _mechanism(2.0).model_copy(
        update={"l2_norm_clip": 0.1 * CLIP, "correction_l2_norm_clip": CLIP}
    )
    rows = [
        ("rsvrg-reuse-difference", two, _mechanism(2.0), SIZE, 40000, "grows past the clip norm"),
        ("rsvrg-reuse-each", each, _mechanism(2.0), SIZE, 40000, "reverses"),
        ("rsvrg-fresh-each", fresh, mostly_corrections, 200, 16000, "reverses"),
    ]
    attacks = [
        (name, CorrectionAttack(training, mechanism, size, source), trials, change)
        for name, training, mechanism, size, trials, change in rows
    ]
    how = "a record whose gradient {} after the first step; every answer is seen"
    return [
        Audited(name, attack, attack.claim, trials, how.format(change))
        for name, attack, trials, change in attacks
    ]


def server_mechanisms(source: NoiseSource) -> list[Audited]:
    """Client-level privacy, and a sampled cohort before an external adversary."""
    plain = ClientMechanism(l2_norm_clip=1.0, noise_multiplier=1.0)
    adaptive = plain.model_copy(update={"adaptive": AdaptiveClip(quantile_noise_multiplier=1.5)})
    replaced = plain.model_copy(update={"neighboring_relation": "replace-one"})
    sampled = plain.model_copy(update={"noise_multiplier": 0.7})
    outsider = ParticipationAttack(source, _mechanism(1.0))
    rows = [
        ("client-level", ClientAttack(source, plain, None), "present or not"),
        ("client-level-replace-one", ClientAttack(source, replaced, None), "mirrored"),
        ("client-level-adaptive", ClientAttack(source, adaptive, None), "and the clip norm moves"),
        ("client-level-poisson", ClientAttack(source, sampled, 0.5), "in a Poisson cohort"),
    ]
    how = "canary upload ten times the clip norm, {}"
    return [
        *(
            Audited(name, attack, attack.claim, 12000, how.format(difference))
            for name, attack, difference in rows
        ),
        Audited(
            "external-adversary",
            outsider,
            outsider.claim,
            20000,
            "two far-apart clients, cohort of one: the output shows who took part (spec 000 §11)",
        ),
    ]


def mechanisms(source: NoiseSource) -> list[Audited]:
    """Everything that ships."""
    return example_mechanisms(source) + correction_mechanisms(source) + server_mechanisms(source)


# -- planted faults: the claim is the honest one, the code is broken --------------------------
class _StuckSteps(NoiseSource):
    """A source whose noise ignores the step and the round: a mask used twice."""

    def normals(
        self,
        shape: tuple[int, ...],
        *,
        stream: Stream,
        partition: int | Sequence[int],
        server_round: int | range,
        attempt: int = 0,
        step: int | range = 0,
        start: int = 0,
    ) -> Tensor:
        stuck = super().normals(
            shape, stream=stream, partition=partition, server_round=0, attempt=attempt, start=start
        )
        ranges = [len(each) for each in (server_round, step) if isinstance(each, range)]
        return stuck.expand(*ranges, *stuck.shape)


class _NeverApart(SecondMoment):
    """A row that is replaced moves a second moment as one that is removed."""

    apart = 1.0


def _difference(uploads: list[Tensor]) -> Tensor:
    """|first - second| along the canary: nothing but the canary where one mask serves both."""
    return ((uploads[0] - uploads[1]) @ direction()).abs()


def planted_faults(source: NoiseSource) -> list[Audited]:
    """Broken twins of shipped mechanisms; each audit must find a bound above the claim."""
    rgd = _attack(RSGD(step_size=SHORT_STEP, minibatch=Full()), _mechanism(1.0), source)
    honest = rgd.mechanism.stddev(rgd.mechanism.sensitivity(CLIP, float(SIZE)), SIZE)
    # The same noise, but a bound ten times as high: what a forgotten clip does.
    unclipped = ExampleMechanism(l2_norm_clip=LONG, noise=PublishedNoise(coefficient=honest * SIZE))
    sampled = RSGD(step_size=SHORT_STEP, minibatch=Poisson(batch_size=10))
    twice = _attack(sampled, _mechanism(2.0), source, num_rounds=2)
    stuck = _StuckSteps(source.key, is_release=source.is_release)
    reused = replace(twice, source=stuck, score=_difference)
    two_steps = _attack(
        RSGD(step_size=SHORT_STEP, local_steps=2, minibatch=Full()), _mechanism(1.0), source
    )
    moments = _moments(SecondMoment(), _mechanism(1.0, "replace-one"), source)
    understated = replace(moments, training=_NeverApart())
    correlated = _correlated(source)
    rows = [
        ("second-moment-sensitivity", understated, price(moments)),
        ("noise-halved", rgd.with_mechanism(_mechanism(0.5)), price(rgd)),
        ("clip-off", rgd.with_mechanism(unclipped), price(rgd)),
        ("mask-reused", reused, price(twice)),
        ("one-step-not-charged", two_steps, price(rgd)),
        ("correlated-one-participation", correlated, correlated.claim_of_one),
    ]
    found = [Audited(name, attack, claim, 20000, "as shipped") for name, attack, claim in rows]
    return [*found, one_state(source)]


# -- a published calibration that fails -------------------------------------------------------
def published_rsvrg(source: NoiseSource, trials: int = 60000) -> tuple[Audited, float]:
    """DP-RSVRG with the papers' calibration at (0.15, 1e-4), and the epsilon they claim for it."""
    size, steps, epsilon, delta = 250, 2, 0.15, 1e-4
    training = RSVRG(
        step_size=SHORT_STEP,
        epochs=1,
        inner_steps=steps,
        minibatch=WithoutReplacement(batch_size=1),
        variant="fresh",
        correction_clip="each",
    )
    coefficient = math.sqrt(steps * math.log(1 / delta)) / epsilon
    mechanism = ExampleMechanism(
        l2_norm_clip=1.0,
        neighboring_relation="replace-one",
        noise=PublishedNoise(coefficient=coefficient),
    )
    attack = FlippingAttack(training, mechanism, size, 1.0, None, source)
    audited = Audited(
        "published-dp-rsvrg",
        attack,
        lambda _: epsilon,
        trials,
        "one record replaced by one whose gradient flips after a step",
        deltas=(delta,),
    )
    return audited, epsilon
