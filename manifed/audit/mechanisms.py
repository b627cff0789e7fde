"""Every shipped mechanism with its claim, and the faults that an audit must catch."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.rsvrg import RSVRG
from manifed.audit.server_worlds import ClientWorlds, ParticipationWorlds
from manifed.audit.worlds import (
    SHORT_STEP,
    CorrectionWorlds,
    ExampleWorlds,
    Scores,
    direction,
    pole,
)
from manifed.oracles.minibatch import Full, Poisson, WithoutReplacement
from manifed.privacy import accountant
from manifed.privacy.audit import DELTAS
from manifed.privacy.mechanism import (
    AdaptiveClip,
    ClientMechanism,
    ExampleMechanism,
    PublishedNoise,
    RelativeNoise,
)
from manifed.privacy.noise import NoiseSource
from manifed.problems.base import Examples
from manifed.problems.linear import with_squared_norms

CLIP, SIZE = 0.5, 20
LONG = 10 * CLIP


@dataclass(frozen=True)
class Audited:
    """A mechanism, the scores an attacker gets in both worlds, and what is claimed for it."""

    name: str
    scores: Callable[[int, bool], Scores]
    claim: Callable[[float], float]
    trials: int
    attack: str
    deltas: tuple[float, ...] = DELTAS
    """Where the claim is made."""


def _mechanism(multiplier: float, relation: str = "add-or-remove") -> ExampleMechanism:
    return ExampleMechanism(
        l2_norm_clip=CLIP,
        neighboring_relation=relation,  # type: ignore[arg-type]
        noise=RelativeNoise(multiplier=multiplier),
    )


def price(worlds: ExampleWorlds, turns: int | None = None) -> Callable[[float], float]:
    """Epsilon that the accountant charges for ``turns`` turns (default: as many as are run)."""
    count = worlds.turns if turns is None else turns
    releases = worlds.training.releases(worlds.mechanism, worlds.size)
    scaled = [r.model_copy(update={"count": r.count * count}) for r in releases]
    return lambda delta: accountant.epsilon(scaled, delta)


def _example(name: str, worlds: ExampleWorlds, *, trials: int, attack: str) -> Audited:
    return Audited(
        name,
        lambda n, is_present: worlds.scores(n, is_present=is_present),
        price(worlds),
        trials,
        attack,
    )


def _worlds(
    training: RSGD | RSVRG, mechanism: ExampleMechanism, source: NoiseSource, turns: int = 1
) -> ExampleWorlds:
    mirrored = -1.0 if mechanism.neighboring_relation == "replace-one" else None
    return ExampleWorlds(training, mechanism, SIZE, LONG, mirrored, source, turns)


def _likelihood(worlds: ExampleWorlds, rate: float) -> ExampleWorlds:
    """The worlds with the exact log likelihood ratio of Poisson-sampled turns of one step."""
    assert worlds.mechanism.l2_norm_clip is not None
    (release,) = worlds.training.releases(worlds.mechanism, worlds.size)
    pull, z = worlds.mechanism.l2_norm_clip / (rate * worlds.size), release.noise_multiplier

    def score(uploads: list[Tensor]) -> Tensor:
        y = torch.stack(uploads) @ direction() / pull
        return torch.log1p(rate * torch.expm1((2 * y - 1) / (2 * z * z))).sum(0)

    return replace(worlds, score=score)


def example_mechanisms(source: NoiseSource) -> list[Audited]:
    """The client halves under example-level privacy, attacked by a constant gradient."""
    rgd = RSGD(step_size=SHORT_STEP, local_steps=1, minibatch=Full())
    steps = RSGD(step_size=SHORT_STEP, local_steps=4, minibatch=Full())
    sampled = RSGD(step_size=SHORT_STEP, minibatch=Poisson(batch_size=SIZE // 4))
    inside = RSGD(step_size=SHORT_STEP, local_steps=4, minibatch=Poisson(batch_size=SIZE // 2))
    subset = RSGD(step_size=SHORT_STEP, local_steps=2, minibatch=WithoutReplacement(batch_size=16))
    add, replaced = _mechanism(1.0), _mechanism(1.0, "replace-one")
    crowd = replace(_worlds(subset, replaced, source), others_pull=True)
    rows = [
        ("rgd", _worlds(rgd, add, source)),
        ("rgd-replace-one", _worlds(rgd, replaced, source)),
        ("rgd-4-steps-2-turns", _worlds(steps, _mechanism(2.5), source, turns=2)),
        (
            "rsgd-poisson-4-turns",
            _likelihood(_worlds(sampled, _mechanism(0.7), source, turns=4), 0.25),
        ),
        ("rsgd-poisson-4-steps", _worlds(inside, _mechanism(1.5), source)),
        ("rsgd-without-replacement", crowd),
    ]
    attack = "canary gradient at the clip norm, present or not (replace-one: mirrored)"
    return [_example(name, worlds, trials=40000, attack=attack) for name, worlds in rows]


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
        ("rsvrg-reuse-each", each, _mechanism(2.0), SIZE, 40000, "turns round"),
        ("rsvrg-fresh-each", fresh, mostly_corrections, 200, 16000, "turns round"),
    ]
    return [
        _correction(name, CorrectionWorlds(training, mechanism, size, source), trials, change)
        for name, training, mechanism, size, trials, change in rows
    ]


def _correction(name: str, worlds: CorrectionWorlds, trials: int, change: str) -> Audited:
    return Audited(
        name,
        lambda n, is_present: worlds.scores(n, is_present=is_present),
        worlds.claim,
        trials,
        f"a record whose gradient {change} after the first step; every answer is seen",
    )


def server_mechanisms(source: NoiseSource) -> list[Audited]:
    """Client-level privacy, and the external view of a sampled cohort."""
    plain = ClientMechanism(l2_norm_clip=1.0, noise_multiplier=1.0)
    adaptive = plain.model_copy(update={"adaptive": AdaptiveClip(quantile_noise_multiplier=1.5)})
    replaced = plain.model_copy(update={"neighboring_relation": "replace-one"})
    sampled = plain.model_copy(update={"noise_multiplier": 0.7})
    outsider = ParticipationWorlds(source, _mechanism(1.0))
    rows = [
        ("client-level", ClientWorlds(source, plain, None), "present or not"),
        ("client-level-replace-one", ClientWorlds(source, replaced, None), "mirrored"),
        ("client-level-adaptive", ClientWorlds(source, adaptive, None), "and the clip norm moves"),
        ("client-level-poisson", ClientWorlds(source, sampled, 0.5), "in a Poisson cohort"),
    ]
    return [
        Audited(
            name,
            lambda n, p, w=worlds: w.scores(n, is_present=p),
            worlds.claim,
            12000,
            f"canary upload ten times the clip norm, {how}",
        )
        for name, worlds, how in rows
    ] + [
        Audited(
            "external-view",
            lambda n, p: outsider.scores(n, is_present=p),
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

    def normals(self, shape: tuple[int, ...], **address: object) -> Tensor:  # type: ignore[override]
        return super().normals(shape, **{**address, "step": 0, "server_round": 0})  # type: ignore[arg-type]


def _difference(uploads: list[Tensor]) -> Tensor:
    """|first - second| along the canary: nothing but the canary where one mask serves both."""
    return ((uploads[0] - uploads[1]) @ direction()).abs()


def planted_faults(source: NoiseSource) -> list[Audited]:
    """Broken twins of shipped mechanisms; each audit must find a bound above the claim."""
    rgd = _worlds(RSGD(step_size=SHORT_STEP, minibatch=Full()), _mechanism(1.0), source)
    honest = rgd.mechanism.stddev(rgd.mechanism.sensitivity(CLIP, float(SIZE)), SIZE)
    # The same noise, but a bound ten times as high: what a forgotten clip does.
    unclipped = ExampleMechanism(l2_norm_clip=LONG, noise=PublishedNoise(coefficient=honest * SIZE))
    sampled = RSGD(step_size=SHORT_STEP, minibatch=Poisson(batch_size=10))
    twice = _worlds(sampled, _mechanism(2.0), source, turns=2)
    stuck = _StuckSteps(source.key, is_release=source.is_release)
    reused = replace(twice, source=stuck, score=_difference)
    two_steps = _worlds(
        RSGD(step_size=SHORT_STEP, local_steps=2, minibatch=Full()), _mechanism(1.0), source
    )
    rows = [
        ("noise-halved", rgd.with_mechanism(_mechanism(0.5)), price(rgd)),
        ("clip-off", rgd.with_mechanism(unclipped), price(rgd)),
        ("mask-reused", reused, price(twice)),
        ("one-step-not-charged", two_steps, price(rgd)),
    ]
    return [
        Audited(name, lambda n, p, w=worlds: w.scores(n, is_present=p), claim, 20000, "as shipped")
        for name, worlds, claim in rows
    ]


# -- a published calibration that fails -------------------------------------------------------
@dataclass(frozen=True)
class FlippingWorlds(ExampleWorlds):
    """DP-RSVRG as printed: a record whose gradient flips between the anchor and the next iterate.

    All other rows pull along e_2 with the full clip norm; the canary's gradient points one way at
    the anchor and, one step later, the other way: its correction is two clip norms long, and with
    one sample a step nothing averages it away (spec 000 §7.3).
    """

    def scores(self, trials: int, *, is_present: bool) -> Scores:
        """Displacement along e_2 after two inner steps."""
        assert self.mechanism.l2_norm_clip is not None
        pull = math.sqrt(self.mechanism.l2_norm_clip) * (pole() + direction())
        rows = pull.expand(self.size, -1).clone()
        if is_present:
            margin = SHORT_STEP * self.mechanism.l2_norm_clip / 2
            rows[0] = (direction() - margin * pole()) * math.sqrt(100.0 / SHORT_STEP)
        examples = with_squared_norms(Examples({"z": rows}, {"z": 1}), "z")
        found: list[Tensor] = []
        for start in range(0, trials, 2000):
            size = min(2000, trials - start)
            offset = start if is_present else start + trials
            found.append(self._run(examples, size, offset))
        return torch.cat(found).numpy()


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
    worlds = FlippingWorlds(training, mechanism, size, 1.0, None, source)
    audited = Audited(
        "published-dp-rsvrg",
        lambda n, p: worlds.scores(n, is_present=p),
        lambda _: epsilon,
        trials,
        "one record replaced by one whose gradient flips after a step",
        deltas=(delta,),
    )
    return audited, epsilon
