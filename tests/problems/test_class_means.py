"""One mean a class: who moves which, what is predicted, and what a wrong label does."""

import pytest
import torch

from manifed.manifolds.spd import SPD
from manifed.problems.class_means import ClassMeans
from manifed.problems.examples import Examples
from manifed.problems.problem import InvalidRecord
from tests.conformance.manifold_cases import float64
from tests.privacy.test_clip_bound import one_client
from tests.problems.conftest import CASES

CASE = CASES["class-means"]


def test_the_nearest_mean_names_the_class():
    centres = torch.stack([torch.eye(2) * scale for scale in (1.0, 4.0)]).double()
    z = torch.stack([torch.eye(2) * scale for scale in (0.5, 1.9, 2.1, 9.0)]).double()
    examples = Examples({"z": z, "label": torch.tensor([0.0, 1.0, 1.0, 1.0])})
    assert ClassMeans(SPD(), 2).correct(centres, examples).tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize("label", [float("nan"), float("inf"), -1.0, 3.0, 0.5])
def test_a_record_of_no_class_is_refused_and_counts_for_nothing(label):
    x = CASE.point(0)
    labels = float64([0.0, label, 1.0, 2.0])
    wrong = Examples({"z": CASE.examples(0, 4)["z"], "label": labels})
    with pytest.raises(InvalidRecord, match="record 1: expected a class number"):
        CASE.problem.check_records(wrong)
    kept = 4 * one_client(CASE.problem, wrong, 0.1).gradient(x)
    rest = wrong.take(torch.tensor([0, 2, 3]))
    alone = 3 * one_client(CASE.problem, rest, 0.1).gradient(x)
    assert torch.allclose(kept, alone, rtol=0, atol=1e-12)
