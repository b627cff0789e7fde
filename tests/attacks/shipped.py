"""Every shipped mechanism under attack, and the faults that an attack must catch.

python -m tests.attacks.shipped [--out tests/robustness/results]
"""

import argparse
import math
import sys
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

import torch

from manifed.algorithms.decor import Decor
from manifed.algorithms.one_shot import SecondMoment
from manifed.algorithms.rsgd import RSGD, ScheduledRSGD
from manifed.algorithms.rsvrg import RSVRG
from manifed.audit import attacks
from manifed.audit.attacks import SHORT_STEP, ClientAttack, ExampleAttack, MaskedAttack, worst_case
from manifed.audit.bound import Attack, Audited, find_all
from manifed.federation.cohorts import Everyone, FixedSize, PoissonCohort
from manifed.graphs import Ring
from manifed.manifolds.sphere import Sphere
from manifed.oracles.minibatch import Full, Poisson, WithoutReplacement
from manifed.privacy import epsilon_bounds
from manifed.privacy.mechanism import AdaptiveClip, ClientMechanism, ExampleMechanism, Noise
from manifed.privacy.random_numbers import NoiseSource
from manifed.privacy.secldp import Correlated
from manifed.problems.examples import PERSON
from manifed.problems.persons import Persons
from manifed.schedules import Geometric
from reproduction.checks_004.engines import messages_under_attack
from reproduction.judged import sha256_of
from tests.attacks.corrections import POLE, PULL, CorrectionAttack, FlippingAttack, rows_of

CLIP = 0.5
SIZE = 20
ROWS_OF_PERSON = 5


def mechanism_of(multiplier, relation="add-or-remove"):
    """Noise of so many sensitivities for examples that are clipped at `CLIP`."""
    return ExampleMechanism(
        l2_norm_clip=CLIP,
        neighboring_relation=relation,
        noise=Noise(multiplier=multiplier),
    )


def as_a(cls, attack, **changed):
    """The same attack with what a subclass does differently."""
    return cls(**{f.name: getattr(attack, f.name) for f in fields(attack)} | changed)


def crowd(attack):
    """All others are the canary's mirror image.

    Where the canary is in a subset of fixed size it takes one of their places, and only then does
    it move a mean by two clip norms.
    """
    return replace(attack, shard=rows_of(attack.canaries[1]["z"].repeat(len(attack.shard), 1)))


def moments(mechanism, source):
    """The worst case of a one-shot release of second moments; all other rows are zero.

    The canary is e_2 times what makes its moment ten clip norms long; under replace-one e_1 stands
    in its place: the two moments are orthogonal, which is as far apart as two positive semidefinite
    matrices of one length can be.
    """
    attack = worst_case(RSGD(step_size=SHORT_STEP), mechanism, SIZE, source)
    rows = tuple({"z": (10 * CLIP) ** 0.5 * row} for row in (PULL, POLE))
    shard = rows_of(torch.zeros(SIZE, 4, dtype=torch.float64))
    return replace(attack, training=SecondMoment(), shard=shard, canaries=rows)


class Likelihood(ExampleAttack):
    """The exact log likelihood ratio of Poisson-sampled updates of one step."""

    def score(self, uploads):
        assert self.mechanism.l2_norm_clip is not None
        (release,), size = (
            self.training.releases(self.mechanism, SIZE),
            self.training.minibatch.batch_size,
        )
        rate = size / SIZE
        z = release.noise_multiplier
        y = torch.stack(uploads) @ PULL / SHORT_STEP / (self.mechanism.l2_norm_clip / size)
        return torch.log1p(rate * torch.expm1((2 * y - 1) / (2 * z * z))).sum(0)


@dataclass(frozen=True)
class ParticipationAttack(Attack):
    """Two clients, a cohort of one: the outsider sees from the model who took part."""

    source: NoiseSource
    mechanism: ExampleMechanism

    @property
    def _local(self):
        training = RSGD(step_size=SHORT_STEP, minibatch=Full())
        return worst_case(training, self.mechanism, SIZE, self.source)

    def claim(self, delta):
        """Epsilon of one round against the outsider: the participation mixture."""
        releases = self._local.training.releases(self.mechanism, SIZE)
        return epsilon_bounds.external_epsilon(((releases, 0.5, 1),), delta)

    at_once = 10_000

    def run(self, trials, *, is_present):
        """The local score where the attacked client took part, else a score below all others."""
        cohort = FixedSize(cohort_size=1)
        took_part = [cohort.draw(2, 1 + trial, 0, self.source) == (0,) for trial in trials]
        local = self._local.run(trials, is_present=is_present)
        return local.where(torch.tensor(took_part), -1e9)


def example_mechanisms(source):
    """Client updates under example-level privacy, attacked by a constant gradient."""
    rgd = RSGD(step_size=SHORT_STEP, minibatch=Full())
    falling = Geometric(scale=1.0, ratio=0.5)
    steps = ScheduledRSGD(
        step_size=SHORT_STEP, local_steps=4, minibatch=Full(), noise_multipliers=falling
    )
    sampled = RSGD(step_size=SHORT_STEP, minibatch=Poisson(batch_size=SIZE // 4))
    inside = RSGD(step_size=SHORT_STEP, local_steps=4, minibatch=Poisson(batch_size=SIZE // 2))
    subset = RSGD(step_size=SHORT_STEP, local_steps=2, minibatch=WithoutReplacement(batch_size=16))
    add = mechanism_of(1.0)
    replaced = mechanism_of(1.0, "replace-one")
    poisson = worst_case(sampled, mechanism_of(0.7), SIZE, source, 4)
    rows = [
        ("rgd", worst_case(rgd, add, SIZE, source)),
        ("rgd-replace-one", worst_case(rgd, replaced, SIZE, source)),
        ("rgd-4-steps-falling", worst_case(steps, mechanism_of(4.0), SIZE, source, 2)),
        ("rsgd-poisson-4-rounds", as_a(Likelihood, poisson)),
        ("rsgd-poisson-4-steps", worst_case(inside, mechanism_of(1.5), SIZE, source)),
        ("rsgd-without-replacement", crowd(worst_case(subset, replaced, SIZE, source))),
        ("second-moment", moments(add, source)),
        ("second-moment-replace-one", moments(replaced, source)),
    ]
    return [Audited(name, attack, 40000, name) for name, attack in rows]


def correction_mechanisms(source):
    """Variance reduction, attacked by a record whose gradient changes after the first step."""
    two = RSVRG(step_size=SHORT_STEP, inner_steps=8, minibatch=Poisson(batch_size=15))
    each = two.model_copy(update={"correction_clip": "each"})
    most = {"variant": "fresh", "minibatch": Poisson(batch_size=150)}
    fresh = each.model_copy(update=most)
    # As printed the record's reference works against its corrections: the smaller it is, the less.
    mostly_corrections = mechanism_of(2.0).model_copy(
        update={"l2_norm_clip": 0.1 * CLIP, "correction_l2_norm_clip": CLIP}
    )
    rows = [
        ("rsvrg-reuse-difference", two, mechanism_of(2.0), SIZE, 40000),
        ("rsvrg-reuse-each", each, mechanism_of(2.0), SIZE, 40000),
        ("rsvrg-fresh-each", fresh, mostly_corrections, 200, 16000),
    ]
    return [
        Audited(name, CorrectionAttack(training, mechanism, size, source), trials, name)
        for name, training, mechanism, size, trials in rows
    ]


def of_persons(attack):
    """The same attack on persons of five rows; the canary has seven equal ones (five count)."""
    problem = Persons(attack.problem, ROWS_OF_PERSON)

    def grouped(rows, each):
        whose = torch.arange(len(rows)).repeat_interleave(each)
        return problem.widened(rows.take(whose).beside(PERSON, whose))

    canaries = []
    for canary in attack.canaries:
        record = grouped(rows_of(canary["z"][None]), 7)
        canaries.append({key: tensor[0] for key, tensor in record.tensors.items()})
    shard = grouped(attack.shard, ROWS_OF_PERSON)
    return replace(attack, problem=problem, shard=shard, canaries=tuple(canaries))


def person_mechanisms(source):
    """Persons as the unit: all rows of the canary are one row."""
    step = RSGD(step_size=SHORT_STEP, minibatch=Full())
    drawn = RSGD(step_size=SHORT_STEP, minibatch=Poisson(batch_size=SIZE // 4))
    one = mechanism_of(1.0)
    sampled = worst_case(drawn, mechanism_of(0.5), SIZE, source)
    rows = [
        ("person", of_persons(worst_case(step, one, SIZE, source))),
        ("person-at-two-sites", at_two_sites(source)),
        ("person-poisson", of_persons(as_a(Likelihood, sampled))),
        ("person-second-moment", of_persons(moments(one, source))),
    ]
    return [Audited(name, attack, 12000, name) for name, attack in rows]


def at_two_sites(source):
    """A person with all her rows at each of two clients, whose uploads are seen and charged."""
    step = RSGD(step_size=SHORT_STEP, minibatch=Full())
    twice = mechanism_of(1.0).model_copy(update={"sites_per_person": 2})
    return of_persons(worst_case(step, twice, SIZE, source))


def server_mechanisms(source):
    """Client-level privacy, and a sampled cohort before an external adversary."""
    plain = ClientMechanism(l2_norm_clip=1.0, noise_multiplier=1.0)
    adaptive = plain.model_copy(update={"adaptive": AdaptiveClip(quantile_noise_multiplier=1.5)})
    replaced = plain.model_copy(update={"neighboring_relation": "replace-one"})
    sampled = plain.model_copy(update={"noise_multiplier": 0.7})
    half = PoissonCohort(sampling_probability=0.5)
    rows = [
        ("client-level", plain, Everyone()),
        ("client-level-replace-one", replaced, Everyone()),
        ("client-level-adaptive", adaptive, Everyone()),
        ("client-level-poisson", sampled, half),
    ]
    # of two far-apart clients, cohort of one, the output shows who took part
    outside = ParticipationAttack(source, mechanism_of(1.0))
    return [
        *(
            Audited(name, ClientAttack(source, mechanism, cohort, Sphere(), POLE), 12000, name)
            for name, mechanism, cohort in rows
        ),
        Audited("external-adversary", outside, 20000, "external-adversary"),
    ]


def mechanisms(source):
    """Everything that ships."""
    return [
        *example_mechanisms(source),
        *correction_mechanisms(source),
        *person_mechanisms(source),
        *server_mechanisms(source),
    ]


# -- planted faults: the claim is the honest one, the code is broken --------------------------
class _StuckSteps(NoiseSource):
    """A source whose noise ignores the step and the round: a mask used twice."""

    def normals(self, shape, **address):
        return super().normals(shape, **{**address, "server_round": 0, "step": 0})


class RowByRow(ExampleAttack):
    """Each row of a person is clipped by itself: she moves a sum by as many clip norms."""

    @cached_property
    def neighbours(self):
        present, absent, move = super().neighbours
        last = len(present) - 1
        places = torch.arange(last + ROWS_OF_PERSON).clamp_max(last)
        return present.take(places), absent, move


class _NeverApart(SecondMoment):
    """A row that is replaced moves a second moment as one that is removed."""

    apart = 1.0


class Difference(ExampleAttack):
    """|first - second| along the canary: nothing but the canary where one mask serves both."""

    def score(self, uploads):
        return ((uploads[0] - uploads[1]) @ PULL).abs()


def planted_faults(source):
    """Broken twins of shipped mechanisms; each audit must find a bound above the claim."""
    rgd = worst_case(RSGD(step_size=1.0, minibatch=Full()), mechanism_of(1.0), SIZE, source)
    honest = rgd.mechanism.noise.stddev(rgd.mechanism.sensitivity(CLIP, float(SIZE)), SIZE)
    # The same noise, but a bound ten times as high: what a forgotten clip does.
    loose = {"l2_norm_clip": 10 * CLIP, "noise": Noise(coefficient=honest * SIZE)}
    sampled = RSGD(step_size=SHORT_STEP, minibatch=Poisson(batch_size=10))
    twice = worst_case(sampled, mechanism_of(2.0), SIZE, source, 2)
    stuck = _StuckSteps(source.key, origin=source.origin)
    two_steps = rgd.training.model_copy(update={"local_steps": 2})
    person = of_persons(replace(rgd, mechanism=mechanism_of(1.0)))
    both = at_two_sites(source)
    whole = moments(mechanism_of(1.0, "replace-one"), source)
    of_rows = [
        ("second-moment-sensitivity", replace(whole, training=_NeverApart()), whole.claim),
        ("noise-halved", replace(rgd, mechanism=mechanism_of(0.5)), rgd.claim),
        ("clip-off", replace(rgd, mechanism=rgd.mechanism.model_copy(update=loose)), rgd.claim),
        ("mask-reused", as_a(Difference, twice, source=stuck), twice.claim),
        ("one-step-not-charged", replace(rgd, training=two_steps), rgd.claim),
    ]
    of_person = [
        ("rows-of-a-person-apart", as_a(RowByRow, person), person.claim),
        ("second-site-not-charged", both, replace(both, mechanism=mechanism_of(1.0)).claim),
    ]
    return [
        Audited(name, attack, trials, "as shipped", claim)
        for rows, trials in ((of_rows, 20000), (of_person, 3000))
        for name, attack, claim in rows
    ]


# -- a published calibration that fails -------------------------------------------------------
def published_rsvrg(source, trials=60000):
    """DP-RSVRG with the papers' calibration at (0.15, 1e-4), which they claim for it."""
    size = 250
    steps = 2
    epsilon = 0.15
    delta = 1e-4
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
        noise=Noise(coefficient=coefficient),
    )
    return Audited(
        "published-dp-rsvrg",
        as_a(FlippingAttack, worst_case(training, mechanism, size, source)),
        trials,
        "one record replaced by one whose gradient flips after a step",
        lambda at: epsilon if at == delta else math.inf,
    )


# -- masks --------------------------------------------------------------------------------------
NOISE = Correlated(1.0, 2.0)
RING = Ring().build(8)
MASKED_TRIALS = 4000
MASKED_FAULT_TRIALS = 2000


def masked_mechanisms(source):
    """DECOR as it ships, against the adversaries I, II and III."""
    attacks = messages_under_attack(source).items()
    return [Audited(name, one, MASKED_TRIALS, name) for name, one in attacks]


class _Repeated(Decor):
    """The fault of the paper's public code: masks drawn once, and used in every round."""

    def masked_now(self, *given, **named):
        shape, memory, draws, *rest = given
        return super().masked_now(shape, memory, draws._replace(server_round=1), *rest, **named)


class MasksUsedTwice(MaskedAttack):
    """The difference of two messages: the victim's gradient is reversed in the second."""

    algorithm = _Repeated

    def run(self, trials, *, is_present):
        first = 1 + 2 * trials[0]
        one = self.seen(first, is_present=is_present)
        other = self.seen(first + 1, is_present=not is_present)
        return (one - other)[: len(trials), self.victim]


class MasksLeftOut(MaskedAttack):
    """The victim's messages alone, which are not masked."""

    def run(self, trials, *, is_present):
        return self.seen(1 + trials[0], is_present=is_present)[: len(trials), self.victim]


def masked_faults(source):
    """Broken twins of the above; each audit must find a bound above the claim."""
    ring = MaskedAttack(RING, Correlated(1.0, 4.0), source)
    twice = as_a(MasksUsedTwice, ring, num_rounds=2)
    known = replace(ring, coalition=(1, 3))
    rows = [
        ("masks-used-twice", twice, twice.claim, "the difference of two messages"),
        ("masks-known-to-colluders", known, ring.claim, "charged as if nobody knew a mask"),
        (
            "masks-left-out",
            as_a(MasksLeftOut, ring, noise=Correlated(1.0, 0.0)),
            ring.claim,
            "sent without masks",
        ),
    ]
    return [Audited(name, one, MASKED_FAULT_TRIALS, how, claim) for name, one, claim, how in rows]


def everything(source):
    """Shipped mechanisms, planted faults and the published DP-RSVRG."""
    shipped = [*mechanisms(source), *masked_mechanisms(source)]
    faults = [*planted_faults(source), *masked_faults(source)]
    return shipped, faults, published_rsvrg(source)


def measured_sha256():
    """The SHA-256 of the source of the attacks: another one makes the table stale."""
    return sha256_of([Path(__file__), *Path(attacks.__file__).parent.glob("*.py")])


def main():
    """Print a line a mechanism; 1 where one does not hold or a fault is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for audits.md")
    given = parser.parse_args()
    shipped, faults, published = everything(NoiseSource.from_seed(0))
    wrong = 0
    lines = [f"# Audits of all mechanisms\n\nSource {measured_sha256()}.\n"]
    for i, found in enumerate(find_all([*shipped, *faults, published])):
        lines.append("    " + found.line())
        print(lines[-1], flush=True)
        wrong += found.is_violated != (i >= len(shipped))
    lines.append(f"\nwrong: {wrong}\n")
    if given.out is not None:
        (given.out / "audits.md").write_text("\n".join(lines), encoding="utf-8")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
