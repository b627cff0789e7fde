"""Every shipped mechanism with its claim, and the faults that an audit must catch."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from app.audit.server_worlds import ClientWorlds, ParticipationWorlds
from app.audit.worlds import SHORT_STEP, ExampleWorlds, Scores, direction, pole
from clients.minibatch import Full, Poisson, WithoutReplacement
from clients.rsgd import RSGD
from clients.rsvrg import RSVRG
from privacy import accountant
from privacy.mechanism import ExampleLens, PublishedNoise, RelativeNoise
from privacy.noise import NoiseSource
from problems.base import Examples
from problems.linear import with_squared_norms

CLIP, SIZE = 0.5, 20
LONG = 10 * CLIP


@dataclass(frozen=True)
class Audited:
    """A mechanism, the scores an attacker gets in both worlds, and what is claimed for it."""

    name: str
    scores: Callable[[int, bool], Scores]
    claim: Callable[[float], float]
    delta: float
    trials: int
    attack: str


def _lens(multiplier: float, relation: str = "add-or-remove") -> ExampleLens:
    return ExampleLens(
        l2_norm_clip=CLIP,
        neighboring_relation=relation,  # type: ignore[arg-type]
        noise=RelativeNoise(multiplier=multiplier),
    )


def price(worlds: ExampleWorlds, turns: int | None = None) -> Callable[[float], float]:
    """Epsilon that the accountant charges for ``turns`` turns (default: as many as are run)."""
    count = worlds.turns if turns is None else turns
    releases = worlds.training.releases(worlds.lens, worlds.size)
    scaled = [r.model_copy(update={"count": r.count * count}) for r in releases]
    return lambda delta: accountant.epsilon(scaled, delta)


def _example(
    name: str, worlds: ExampleWorlds, *, delta: float, trials: int, attack: str
) -> Audited:
    return Audited(
        name,
        lambda n, is_present: worlds.scores(n, is_present=is_present),
        price(worlds),
        delta,
        trials,
        attack,
    )


def _worlds(
    training: RSGD | RSVRG, lens: ExampleLens, source: NoiseSource, turns: int = 1
) -> ExampleWorlds:
    mirrored = -1.0 if lens.neighboring_relation == "replace-one" else None
    return ExampleWorlds(training, lens, SIZE, LONG, mirrored, source, turns)


def example_mechanisms(source: NoiseSource) -> list[Audited]:
    """The client halves under example-level privacy."""
    small = Poisson(batch_size=5)
    rgd = RSGD(step_size=SHORT_STEP, local_steps=1, minibatch=Full())
    steps = RSGD(step_size=SHORT_STEP, local_steps=4, minibatch=Full())
    sampled = RSGD(step_size=SHORT_STEP, local_steps=4, minibatch=small)
    subset = RSGD(step_size=SHORT_STEP, local_steps=2, minibatch=WithoutReplacement(batch_size=5))
    reuse = RSVRG(step_size=SHORT_STEP, epochs=2, inner_steps=2, minibatch=small)
    each = reuse.model_copy(update={"correction_clip": "each"})
    fresh = RSVRG(
        step_size=SHORT_STEP,
        epochs=1,
        inner_steps=2,
        minibatch=small,
        variant="fresh",
        correction_clip="each",
    )
    add, replaced = _lens(1.0), _lens(1.0, "replace-one")
    rows = [
        ("rgd", _worlds(rgd, add, source), 0.05),
        ("rgd-replace-one", _worlds(rgd, replaced, source), 0.05),
        ("rgd-4-steps-2-turns", _worlds(steps, _lens(2.5), source, turns=2), 0.05),
        ("rsgd-poisson", _worlds(sampled, _lens(0.7), source), 0.02),
        ("rsgd-without-replacement", _worlds(subset, replaced, source), 0.02),
        ("rsvrg-reuse-difference", _worlds(reuse, add, source), 0.02),
        ("rsvrg-reuse-each", _worlds(each, add, source), 0.02),
        ("rsvrg-fresh-each", _worlds(fresh, add, source), 0.02),
    ]
    attack = "canary gradient at the clip norm, present or not (replace-one: mirrored)"
    return [
        _example(name, worlds, delta=delta, trials=20000, attack=attack)
        for name, worlds, delta in rows
    ]


def server_mechanisms(source: NoiseSource) -> list[Audited]:
    """Client-level privacy, and the external view of a sampled cohort."""
    everyone, sampled = ClientWorlds(source, 1.0, None), ClientWorlds(source, 0.7, 0.25)
    outsider = ParticipationWorlds(source, _lens(1.0))
    return [
        Audited(
            "client-level",
            lambda n, p: everyone.scores(n, is_present=p),
            everyone.claim,
            0.05,
            12000,
            "canary upload ten times the clip norm, present or not",
        ),
        Audited(
            "client-level-poisson",
            lambda n, p: sampled.scores(n, is_present=p),
            sampled.claim,
            0.02,
            12000,
            "the same, in a Poisson cohort",
        ),
        Audited(
            "external-view",
            lambda n, p: outsider.scores(n, is_present=p),
            outsider.claim,
            0.01,
            20000,
            "two far-apart clients, cohort of one: the output shows who took part (spec 000 §11)",
        ),
    ]


def mechanisms(source: NoiseSource) -> list[Audited]:
    """Everything that ships."""
    return example_mechanisms(source) + server_mechanisms(source)


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
    rgd = _worlds(RSGD(step_size=SHORT_STEP, minibatch=Full()), _lens(1.0), source)
    honest = rgd.lens.stddev(rgd.lens.sensitivity(CLIP, float(SIZE)), SIZE)
    # The same noise, but a bound ten times as high: what a forgotten clip does.
    unclipped = ExampleLens(l2_norm_clip=LONG, noise=PublishedNoise(coefficient=honest * SIZE))
    sampled = RSGD(step_size=SHORT_STEP, minibatch=Poisson(batch_size=10))
    twice = _worlds(sampled, _lens(2.0), source, turns=2)
    stuck = _StuckSteps(source.key, is_release=source.is_release)
    reused = replace(twice, source=stuck, score=_difference)
    two_steps = _worlds(
        RSGD(step_size=SHORT_STEP, local_steps=2, minibatch=Full()), _lens(1.0), source
    )
    rows = [
        ("noise-halved", rgd.with_lens(_lens(0.5)), price(rgd)),
        ("clip-off", rgd.with_lens(unclipped), price(rgd)),
        ("mask-reused", reused, price(twice)),
        ("one-step-not-charged", two_steps, price(rgd)),
    ]
    return [
        Audited(
            name, lambda n, p, w=worlds: w.scores(n, is_present=p), claim, 0.05, 20000, "as shipped"
        )
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
        assert self.lens.l2_norm_clip is not None
        pull = math.sqrt(self.lens.l2_norm_clip) * (pole() + direction())
        rows = pull.expand(self.size, -1).clone()
        if is_present:
            margin = SHORT_STEP * self.lens.l2_norm_clip / 2
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
    lens = ExampleLens(
        l2_norm_clip=1.0,
        neighboring_relation="replace-one",
        noise=PublishedNoise(coefficient=coefficient),
    )
    worlds = FlippingWorlds(training, lens, size, 1.0, None, source)
    audited = Audited(
        "published-dp-rsvrg",
        lambda n, p: worlds.scores(n, is_present=p),
        lambda _: epsilon,
        delta,
        trials,
        "one record replaced by one whose gradient flips after a step",
    )
    return audited, epsilon
