"""One case per client update: adding an algorithm means adding a case."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from manifed.algorithms.algorithm import ClientUpdate, Memory, Phase
from manifed.algorithms.one_shot import SecondMoment
from manifed.algorithms.payloads import MeanGradient, Payload, Point, PointAndDisplacement
from manifed.algorithms.projected import Projected, ProjectedPartial
from manifed.algorithms.rfedags import RFedAGS
from manifed.algorithms.rfedprox import RFedProx
from manifed.algorithms.rfedsvrg import RFedSVRG
from manifed.algorithms.rsgd import RSGD, ScheduledRSGD
from manifed.algorithms.rsvrg import RSVRG
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.oracles.minibatch import Ask, Full, Minibatch, Poisson, Query, WithoutReplacement
from manifed.oracles.oracle import Asked, Draws
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.noise import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.pca import PrincipalEigenvector
from manifed.schedules import Geometric


@dataclass(frozen=True)
class ClientCase:
    """A client update, with a mechanism that it is charged for."""

    name: str
    training: ClientUpdate
    mechanism: ExampleMechanism
    space: Literal["tangent", "ambient"] = "tangent"


_PLAIN = ExampleMechanism()
_ADD = ExampleMechanism(l2_norm_clip=0.5, noise=Noise(multiplier=0.7))
_REPLACE = _ADD.model_copy(update={"neighboring_relation": "replace-one"})
_TWO_CLIPS = _ADD.model_copy(update={"correction_l2_norm_clip": 0.2})

CASES = [
    ClientCase("rgd", RSGD(step_size=0.1, minibatch=Full()), _PLAIN),
    ClientCase(
        "rsgd-poisson", RSGD(step_size=0.1, local_steps=3, minibatch=Poisson(batch_size=4)), _ADD
    ),
    ClientCase(
        "rsgd-without-replacement",
        RSGD(step_size=0.1, local_steps=2, minibatch=WithoutReplacement(batch_size=5)),
        _REPLACE,
    ),
    ClientCase(
        "rsgd-random-iterate",
        RSGD(step_size=0.1, local_steps=4, minibatch=Full(), output="random-iterate"),
        _ADD,
    ),
    ClientCase(
        "scheduled-rsgd",
        ScheduledRSGD(
            step_size=0.1, minibatch=Full(), noise_multipliers=Geometric(scale=1.0, ratio=1.05)
        ).in_round(3),
        _ADD,
    ),
    ClientCase(
        "rsvrg-reuse",
        RSVRG(step_size=0.05, epochs=2, inner_steps=3, minibatch=Poisson(batch_size=4)),
        _TWO_CLIPS,
    ),
    ClientCase(
        "rsvrg-fresh",
        RSVRG(
            step_size=0.05,
            epochs=2,
            inner_steps=3,
            minibatch=WithoutReplacement(batch_size=1),
            variant="fresh",
            correction_clip="each",
        ),
        _REPLACE,
    ),
    ClientCase(
        "rsvrg-reuse-each",
        RSVRG(
            step_size=0.05,
            epochs=2,
            inner_steps=3,
            minibatch=WithoutReplacement(batch_size=1),
            correction_clip="each",
            output="random-iterate",
        ),
        _REPLACE,
    ),
    ClientCase("projected", Projected(step_size=0.1, local_steps=4), _PLAIN, "ambient"),
    ClientCase(
        "projected-private",
        Projected(step_size=0.1, local_steps=3, minibatch=Poisson(batch_size=4)),
        _ADD,
        "ambient",
    ),
    ClientCase(
        "projected-partial",
        ProjectedPartial(step_size=0.1, local_steps=3, minibatch=WithoutReplacement(batch_size=5)),
        _REPLACE,
        "ambient",
    ),
    ClientCase("rsgd-retraction", RSGD(step_size=0.1, local_steps=3, maps="retraction"), _ADD),
    ClientCase("rfedprox", RFedProx(step_size=0.1, local_steps=3, penalty_weight=2.0), _PLAIN),
    ClientCase(
        "rfedprox-retraction",
        RFedProx(step_size=0.1, local_steps=3, penalty_weight=2.0, maps="retraction"),
        _ADD,
    ),
    ClientCase("rfedags", RFedAGS(step_size=0.1, local_steps=3), _PLAIN),
    ClientCase(
        "rfedags-private",
        RFedAGS(step_size=0.1, local_steps=3, minibatch=Poisson(batch_size=4), maps="retraction"),
        _ADD,
    ),
    ClientCase("rfedsvrg", RFedSVRG(step_size=0.1, local_steps=3), _PLAIN),
    ClientCase("rfedsvrg-full-private", RFedSVRG(step_size=0.1, local_steps=3), _ADD),
    ClientCase(
        "rfedsvrg-minibatch-private",
        RFedSVRG(step_size=0.1, local_steps=3, minibatch=Poisson(batch_size=4), maps="retraction"),
        _ADD,
    ),
    ClientCase("second-moment", SecondMoment(), _PLAIN, "ambient"),
    ClientCase("second-moment-private", SecondMoment(), _ADD, "ambient"),
    ClientCase("second-moment-replace-one", SecondMoment(), _REPLACE, "ambient"),
]
SIZES = (12, 9, 7)


def setup_of(case: ClientCase) -> ClientSetup:
    return ClientSetup(PrincipalEigenvector(), case.training, case.mechanism)


def shards(dim: int = 6) -> list[Examples]:
    generator = torch.Generator().manual_seed(7)
    made = []
    for size in SIZES:
        z = torch.randn(size, dim, generator=generator, dtype=torch.float64)
        rows = Examples({"z": z / z.norm(dim=1, keepdim=True)}, {"z": 1})
        made.append(rows)
    return made


def start(dim: int = 6) -> torch.Tensor:
    x = torch.randn(dim, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return x / x.norm()


def batch(scheme: Minibatch, sizes: Sequence[int], draws: Draws, step: int = 0):
    """A batch as the oracle draws it, for clients of these public sizes."""
    queries = [Query.of(ExampleMechanism(), Ask(scheme), size) for size in sizes]
    rows = torch.tensor(sizes[0] if isinstance(draws.partition, int) else sizes)
    return Asked.of(queries, draws).batch(rows, max(sizes), draws, step)


@dataclass(frozen=True)
class Round:
    """What went up in all phases of one round, and how often the oracle was asked."""

    up: dict[str, torch.Tensor]
    queries: Counter[str]
    memory: Memory | None


def broadcast(phase: Phase, x: torch.Tensor) -> Payload:
    """Something to send down in a phase, with a second matrix where there is one."""
    other = torch.linspace(-0.3, 0.2, x.shape[-1], dtype=x.dtype).expand_as(x)
    if phase.down is MeanGradient:
        return MeanGradient(other - (other * x).sum(-1, keepdim=True) * x)
    if phase.down is PointAndDisplacement:
        return PointAndDisplacement(x, other)
    return Point(x)


def play(
    case: ClientCase,
    partition: int | tuple[int, ...],
    x: torch.Tensor,
    examples: Examples,
    sizes: int | Sequence[int],
    source: NoiseSource,
    server_round: int,
    attempt: int = 0,
    memory: Memory | None = None,
) -> Round:
    """All phases of one round."""
    if memory is None:
        memory = case.training.initial_memory(x)
    up: dict[str, torch.Tensor] = {}
    queries: Counter[str] = Counter()
    for phase in case.training.phases:
        seat = Seat(partition, server_round, attempt, phase.name)
        down = broadcast(phase, x)
        done = run_update(setup_of(case), seat, down, memory, examples, sizes, source)
        up |= {f"{phase.name}.{name}": u for name, u in done.up.tensors().items()}
        queries.update(done.queries)
        memory = done.memory
    return Round(up, queries, memory)
