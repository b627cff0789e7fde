"""What one record, or one client, moves before noise: at most what is priced.

Records lie within an ulp of a kink, where the last bit of a product decides; as many as move
together when products of all rows are computed by the number of rows.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from manifed.algorithms.payloads import Point
from manifed.experiment.assembly import client_side
from manifed.experiment.load import parse
from manifed.federation.replies import Header
from manifed.federation.stack import Asked, StackTransport
from manifed.oracles.minibatch import Ask, Query
from manifed.oracles.oracle import Draws, Oracle
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.noise import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.module_problem import ModuleProblem
from manifed.problems.problem import Problem

HIDDEN = 1
WIDTH = 21
DRAWS = Draws(NoiseSource.from_seed(7), 0, 1)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def off(rows: Tensor, axes: Tensor) -> Tensor:
    """The rows (n, d) less what they have along ``axes`` (k, d), to an ulp or so."""
    basis = torch.linalg.qr(axes.mT)[0]
    for _ in range(3):
        rows = rows - (rows @ basis) @ basis.mT
    return rows


def labelled(key: str, rows: Tensor, labels: Tensor) -> Examples:
    return Examples({key: rows, "label": labels}, {key: 1, "label": 0})


def summed(problem: Problem, x: Tensor, examples: Examples, clip: float = 1.0) -> Tensor:
    """The clipped sum of a full batch, in clips."""
    mechanism = ExampleMechanism(l2_norm_clip=clip, noise=Noise(multiplier=0.0))
    query = Query.of(mechanism, Ask(), 1)
    return Oracle(problem, examples, [[query]], DRAWS).gradient(x) / clip


def worst_move(
    make: Callable[[int], tuple[Problem, Tensor, Examples]],
    found: Callable[[Problem, Tensor, Examples], Tensor],
    neighbours: Callable[[Examples], Examples],
    seeds: int,
) -> float:
    """The largest change that the last record makes."""
    moves = list[float]()
    for seed in range(seeds):
        problem, x, examples = make(seed)
        apart = found(problem, x, examples) - found(problem, x, neighbours(examples))
        moves.append(float(apart.norm()))
    return max(moves)


def with_bad_label(examples: Examples) -> Examples:
    """The last record has no class, and torch's own loss fails."""
    labels = examples["label"].clone()
    labels[-1] = 99
    return Examples({**examples.tensors, "label": labels}, examples.feature_ndim)


def without_last(examples: Examples) -> Examples:
    return examples.take(torch.arange(len(examples) - 1))


def picky_cross_entropy(output: Tensor, label: Tensor) -> Tensor:
    return functional.cross_entropy(output, label.long())


def near_kinks(count: int, axes: Tensor, seed: int) -> Tensor:
    """Rows of nearly one direction, at the kinks of all units: those that flip move as one."""
    width = axes.shape[1]
    common = 30 * normal(1, width, seed=seed + 2000)
    return off(common + normal(count, width, seed=seed + 1000), axes)


def relu_module(count: int) -> Callable[[int], tuple[Problem, Tensor, Examples]]:
    def make(seed: int) -> tuple[Problem, Tensor, Examples]:
        first = nn.Linear(WIDTH, HIDDEN, bias=False)
        last = nn.Linear(HIDDEN, 2, bias=False)
        with torch.no_grad():
            first.weight.copy_(normal(HIDDEN, WIDTH, seed=seed))
            last.weight.copy_(normal(2, HIDDEN, seed=seed + 1))
        rows = near_kinks(count, first.weight.detach().double(), seed)
        network = nn.Sequential(first, nn.ReLU(), last)
        problem = ModuleProblem(network, picky_cross_entropy)
        problem.is_classifier = True
        return problem, problem.start, labelled("feature", rows, torch.zeros(count).long())

    return make


def test_a_record_more_moves_a_clipped_sum_behind_a_kink_by_one_clip():
    assert worst_move(relu_module(64), summed, without_last, 12) <= 1 + 1e-9


@pytest.mark.parametrize("count", [67, 131])
def test_a_record_that_fails_moves_a_clipped_sum_behind_a_kink_by_one_clip(count):
    assert worst_move(relu_module(count), summed, with_bad_label, 4) <= 1 + 1e-9


CHAOS = {
    "name": "chaos",
    "problem": {"kind": "principal-eigenvector"},
    "data": {"kind": "digits"},
    "federation": {"num_clients": 3, "num_rounds": 1},
    "training": {"kind": "rsgd", "step_size": 3.0, "local_steps": 400},
    "privacy": {
        "kind": "client-level", "l2_norm_clip": 1.0, "delta": 1e-5,
        "noise": {"kind": "multiplier", "noise_multiplier": 1.0},
    },
    "engine": {"execution": "cohort"},
}  # fmt: skip
"""So long a step that 400 of them make any difference of a last bit."""


def test_a_client_moves_no_other_clients_upload_however_many_steps_they_take():
    side = client_side(parse(CHAOS))
    start = functional.normalize(torch.ones(30).double(), dim=0)

    def upload(*others: int) -> Tensor:
        """That of the first client beside others with so many records each."""
        shards = [Examples({"z": normal(n, 30, seed=n)}, {"z": 1}) for n in (37, *others)]
        own = replace(side, shards=shards, num_examples=[37, *others], point_shape=(30,))
        cohort = StackTransport(own, at_once=None, memory_budget_mb=64)
        header = Header("c", 1, 0, "train", -1)
        phase = own.setup.training.phases[0]
        replies = cohort.exchange(Asked(header, phase, Point(start), (0, 1, 2), {}))
        return next(iter(replies.uploads.tensors().values()))[0]

    alone = upload(20, 20)
    for others in ((37, 37), (36, 20), (50, 61), (3, 400)):
        assert torch.equal(upload(*others), alone), others
