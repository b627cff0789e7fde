"""Every one-shot release is attacked on its own rows."""

import pytest

from manifed.audit.bound import find_all
from manifed.audit.of_config import attacks_of
from manifed.experiment.load import parse

CASES = {
    "second-moment": ({"kind": "principal-eigenvector"}, {"kind": "digits"}),
    "log-euclidean": (
        {"kind": "frechet-mean", "manifold": "spd-log-euclidean"},
        {"kind": "spd-lognormal", "num_examples": 300, "dimension": 3},
    ),
}


@pytest.mark.parametrize("relation", ["add-or-remove", "replace-one"])
@pytest.mark.parametrize("kind", CASES)
def test_an_audit_attacks_every_one_shot_release(kind, relation):
    problem, data = CASES[kind]
    config = parse(
        {
            "name": kind,
            "problem": problem,
            "data": data,
            "federation": {"num_clients": 3, "num_rounds": 1},
            "training": {"kind": kind},
            "privacy": {
                "kind": "example-level",
                "l2_norm_clip": 1.0,
                "delta": 1e-3,
                "neighboring_relation": relation,
                "noise_source": "seed",
                "noise": {"kind": "multiplier", "noise_multiplier": 0.5},
            },
        }
    )
    (found,) = find_all(attacks_of(config, 400))
    assert 0.5 < found.epsilon_lower_bound <= found.claimed_epsilon
