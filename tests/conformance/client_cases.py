"""One case per client update: adding an algorithm means adding a case."""

from collections import Counter
from dataclasses import dataclass

import torch

from manifed.algorithms.algorithm import ClientUpdate
from manifed.algorithms.one_shot import SecondMoment
from manifed.algorithms.payloads import MeanGradient, Memory, Point, PointAndDisplacement
from manifed.algorithms.projected import Projected, ProjectedPartial
from manifed.algorithms.rfedags import RFedAGS
from manifed.algorithms.rfedprox import RFedProx
from manifed.algorithms.rfedsvrg import RFedSVRG
from manifed.algorithms.rsgd import RSGD, ScheduledRSGD
from manifed.algorithms.rsvrg import RSVRG
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.oracles.minibatch import Ask, Full, Poisson, Query, WithoutReplacement
from manifed.oracles.noisy_oracle import Asked
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.problems.examples import Examples
from manifed.problems.pca import PrincipalEigenvector
from manifed.schedules import Geometric
from tests.tensors import normals


@dataclass(frozen=True)
class ClientCase:
    """A client update, with a mechanism that it is charged for."""

    name: str
    training: ClientUpdate
    mechanism: ExampleMechanism


_PLAIN = ExampleMechanism()
_ADD = ExampleMechanism(l2_norm_clip=0.5, noise=Noise(multiplier=0.7))
_REPLACE = _ADD.model_copy(update={"neighboring_relation": "replace-one"})
_TWO_CLIPS = _ADD.model_copy(update={"correction_l2_norm_clip": 0.2})

_FOUR = {"minibatch": Poisson(batch_size=4)}
_FIVE = {"minibatch": WithoutReplacement(batch_size=5)}
_RETRACTED = {"maps": "retraction"}
_STEPS = {"step_size": 0.1, "local_steps": 3}
_ONE = {"step_size": 0.1, "minibatch": Full()}
_EPOCHS = {"step_size": 0.05, "epochs": 2, "inner_steps": 3,
           "minibatch": WithoutReplacement(batch_size=1)}  # fmt: skip
_EACH = {**_EPOCHS, "correction_clip": "each"}
_PULLED = {**_STEPS, "penalty_weight": 2.0}
_GROWN = {**_ONE, "noise_multipliers": Geometric(scale=1.0, ratio=1.05)}
_ROWS = [
    ("rgd", RSGD, _ONE, _PLAIN),
    ("rsgd-poisson", RSGD, _STEPS | _FOUR, _ADD),
    ("rsgd-without-replacement", RSGD, _STEPS | _FIVE | {"local_steps": 2}, _REPLACE),
    ("rsgd-random-iterate", RSGD, _ONE | {"local_steps": 4, "output": "random-iterate"}, _ADD),
    ("scheduled-rsgd", ScheduledRSGD, _GROWN, _ADD),
    ("rsvrg-reuse", RSVRG, _EPOCHS | _FOUR, _TWO_CLIPS),
    ("rsvrg-fresh", RSVRG, _EACH | {"variant": "fresh"}, _REPLACE),
    ("rsvrg-reuse-each", RSVRG, _EACH | {"output": "random-iterate"}, _REPLACE),
    ("projected", Projected, _STEPS | {"local_steps": 4}, _PLAIN),
    ("projected-private", Projected, _STEPS | _FOUR, _ADD),
    ("projected-partial", ProjectedPartial, _STEPS | _FIVE, _REPLACE),
    ("rsgd-retraction", RSGD, _STEPS | _RETRACTED, _ADD),
    ("rfedprox", RFedProx, _PULLED, _PLAIN),
    ("rfedprox-retraction", RFedProx, _PULLED | _RETRACTED, _ADD),
    ("rfedags", RFedAGS, _STEPS, _PLAIN),
    ("rfedags-private", RFedAGS, _STEPS | _FOUR | _RETRACTED, _ADD),
    ("rfedsvrg", RFedSVRG, _STEPS, _PLAIN),
    ("rfedsvrg-full-private", RFedSVRG, _STEPS, _ADD),
    ("rfedsvrg-minibatch-private", RFedSVRG, _STEPS | _FOUR | _RETRACTED, _ADD),
    ("second-moment", SecondMoment, {}, _PLAIN),
    ("second-moment-private", SecondMoment, {}, _ADD),
    ("second-moment-replace-one", SecondMoment, {}, _REPLACE),
]
CASES = [ClientCase(name, kind(**said).in_round(3), by) for name, kind, said, by in _ROWS]
SIZES = (12, 9, 7)


def setup_of(case):
    return ClientSetup(PrincipalEigenvector(), case.training, case.mechanism)


def shards(dim=6):
    generator = torch.Generator().manual_seed(7)
    made = []
    for size in SIZES:
        z = torch.randn(size, dim, generator=generator, dtype=torch.float64)
        made.append(Examples({"z": z / z.norm(dim=1, keepdim=True)}))
    return made


def start(dim=6):
    x = normals(3, dim)
    return x / x.norm()


def batch(scheme, sizes, draws, step=0):
    """A batch as the oracle draws it, for clients of these public sizes."""
    queries = [Query.of(ExampleMechanism(), Ask(scheme), size) for size in sizes]
    rows = torch.tensor(sizes[0] if isinstance(draws.partition, int) else sizes)
    return Asked.of(tuple(queries), draws.device).batch(rows, max(sizes), draws, step)


@dataclass(frozen=True)
class Round:
    """What went up in all phases of one round, and how often the oracle was asked."""

    up: dict[str, torch.Tensor]
    queries: Counter[str]
    memory: Memory | None


def broadcast(phase, x):
    """Something to send down in a phase, with a second matrix where there is one."""
    other = torch.linspace(-0.3, 0.2, x.shape[-1], dtype=x.dtype).expand_as(x)
    if phase.down is MeanGradient:
        return MeanGradient(other - (other * x).sum(-1, keepdim=True) * x)
    if phase.down is PointAndDisplacement:
        return PointAndDisplacement(x, other)
    return Point(x)


def play(
    case,
    partition,
    x,
    examples,
    sizes,
    source,
    server_round,
    attempt=0,
    memory=None,
):
    """All phases of one round."""
    if memory is None:
        memory = case.training.initial_memory(x)
    up = {}
    queries = Counter()
    for phase in case.training.phases:
        seat = Seat(partition, server_round, attempt, phase.name)
        down = broadcast(phase, x)
        done = run_update(setup_of(case), seat, down, memory, examples, sizes, source)
        up |= {f"{phase.name}.{name}": u for name, u in done.up.tensors().items()}
        queries.update(done.queries)
        memory = done.memory
    return Round(up, queries, memory)
