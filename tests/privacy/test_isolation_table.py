"""What one record, or one client, moves before noise: at most what is priced.

Records lie within an ulp of a kink, where the last bit of a product decides; as many as move
together when products of all rows are computed by the number of rows.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from manifed.algorithms.payloads import Point
from manifed.experiment.assembly import client_side
from manifed.experiment.load import parse
from manifed.federation.exchange import Asked, Header
from manifed.federation.stack import StackTransport
from manifed.oracles.minibatch import Ask, Query
from manifed.oracles.noisy_oracle import Draws, Oracle
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.module_problem import ModuleProblem
from tests.conformance.isolation_cases import orthogonal_to
from tests.tensors import normals

WIDTH = 21
DRAWS = Draws(NoiseSource.from_seed(7), 0, 1)
QUERY = Query.of(ExampleMechanism(l2_norm_clip=1.0), Ask(), 1)


def picky_cross_entropy(output, label):
    return functional.cross_entropy(output, label.long())


def near_kinks(count, axis, seed):
    """Rows of nearly one direction, at the kink of the unit: those that flip move as one."""
    common = 30 * normals(seed + 2000, 1, WIDTH)
    return orthogonal_to(axis, common + normals(seed + 1000, count, WIDTH))


def with_bad_label(rows, labels):
    """The last record has no class, and torch's own loss fails."""
    return rows, torch.cat([labels[:-1], torch.tensor([99])])


def without_last(rows, labels):
    return rows[:-1], labels[:-1]


@pytest.mark.parametrize(
    ("count", "neighbours", "seeds"),
    [(64, without_last, 12), (67, with_bad_label, 4), (131, with_bad_label, 4)],
)
def test_a_record_moves_a_clipped_sum_behind_a_kink_by_one_clip(count, neighbours, seeds):
    for seed in range(seeds):
        first = nn.Linear(WIDTH, 1, bias=False)
        last = nn.Linear(1, 2, bias=False)
        with torch.no_grad():
            first.weight.copy_(normals(seed, 1, WIDTH))
            last.weight.copy_(normals(seed + 1, 2, 1))
        problem = ModuleProblem(nn.Sequential(first, nn.ReLU(), last), picky_cross_entropy)
        problem.is_classifier = True
        whole = near_kinks(count, first.weight.detach().double(), seed), torch.zeros(count).long()
        one, other = (
            Oracle(
                problem, Examples({"feature": rows, "label": labels}),
                [[QUERY]], DRAWS,
            ).gradient(problem.start)
            for rows, labels in (whole, neighbours(*whole))
        )  # fmt: skip
        assert (one - other).norm() <= 1 + 1e-9


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

    def upload(*others):
        """That of the first client beside others with so many records each."""
        shards = [Examples({"z": normals(n, n, 30)}) for n in (37, *others)]
        own = replace(side, shards=shards, num_examples=[37, *others], point_shape=(30,))
        cohort = StackTransport(own, at_once=None, memory_budget_mb=64)
        header = Header("c", 1, 0, "train", -1)
        phase = own.setup.training.phases[0]
        replies = cohort.exchange(Asked(header, phase, Point(start), (0, 1, 2), {}))
        return next(iter(replies.uploads.tensors().values()))[0]

    alone = upload(20, 20)
    for others in ((37, 37), (36, 20), (50, 61), (3, 400)):
        assert torch.equal(upload(*others), alone), others
