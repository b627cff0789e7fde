"""One case per client half: adding an algorithm means adding a case."""

from dataclasses import dataclass

import torch

from clients.local_training import LocalTraining
from clients.minibatch import Full, Poisson, WithoutReplacement
from clients.rsgd import RSGD
from clients.rsvrg import RSVRG
from clients.turn import ClientHalf
from privacy.mechanism import ExampleLens, RelativeNoise
from problems.base import Examples
from problems.linear import with_squared_norms
from problems.pca import PrincipalEigenvector


@dataclass(frozen=True)
class ClientCase:
    """A half, with a lens that it is charged for."""

    name: str
    training: LocalTraining
    lens: ExampleLens


_PLAIN = ExampleLens()
_ADD = ExampleLens(l2_norm_clip=0.5, noise=RelativeNoise(multiplier=0.7))
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
        "rsgd-random-output",
        RSGD(step_size=0.1, local_steps=4, minibatch=Full(), output="random-output"),
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
]
SIZES = (12, 9, 7)


def half_of(case: ClientCase) -> ClientHalf:
    return ClientHalf(PrincipalEigenvector(), case.training, case.lens)


def shards(dim: int = 6) -> list[Examples]:
    generator = torch.Generator().manual_seed(7)
    made = []
    for size in SIZES:
        z = torch.randn(size, dim, generator=generator, dtype=torch.float64)
        rows = Examples({"z": z / z.norm(dim=1, keepdim=True)}, {"z": 1})
        made.append(with_squared_norms(rows, "z"))
    return made


def start(dim: int = 6) -> torch.Tensor:
    x = torch.randn(dim, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return x / x.norm()
