"""Each argument of `fit` and `fit_module` with many odd values: taken, or one line before round 1.

`fit` hands to `federate` what it is handed.
"""

import contextlib
import math

import numpy as np
import pytest
import torch
from torch import nn

import manifed
from manifed.algorithms import RSGD
from manifed.errors import ConfigError
from manifed.federation.stack import StackTransport
from manifed.manifolds import Sphere
from manifed.oracles.minibatch import Full
from manifed.problems import FrechetMean
from manifed.problems.module_checks import NotPrivate
from tests.federation.test_own_arrays import Frame

ROWS = np.eye(3)[np.arange(12) % 3]
LABELS = np.arange(12) % 2
STEPS = RSGD(step_size=0.1, minibatch=Full())


class Asked(StackTransport):
    """Knows whether a client was asked for anything."""

    is_asked = False

    def exchange(self, asked):
        Asked.is_asked = True
        return super().exchange(asked)


ODD = {
    "None": None,
    "a word": "word",
    "a number": 1.5,
    "a negative number": -1,
    "zero": 0,
    "NaN": math.nan,
    "infinity": math.inf,
    "True": True,
    "a list": [1.0, 2.0],
    "an empty list": [],
    "an empty tuple": (),
    "a dict": {"a": 1},
    "an array": np.ones((2, 3)),
    "an array of words": np.array(["a"]),
    "an array of NaN": np.full((2, 12, 3), np.nan),
    "a frame": Frame({"a": [1.0, 2.0], "b": [1.0, 2.0]}),
    "a frame of words": Frame({"a": ["x", "y"]}),
    "a tensor of another shape": torch.ones(2, 5, 7),
    "a complex tensor": torch.ones(2, 12, 3) + 0j,
    "a number as a tensor": torch.tensor(1.0),
    "an object": object(),
    "a class": FrechetMean,
    "a function": lambda *values: None,
    "a function that raises": lambda *values: {}["key"],
    "a generator": (row for row in ()),
}
NEW = {"held_out": None, "ledger": None, "resume": None, "device": "cpu", "callbacks": ()}
DOORS = {
    "fit": {
        "problem": FrechetMean(Sphere()), "shards": [ROWS, ROWS], "algorithm": STEPS,
        "rounds": 1, "privacy": None, "cohort": None, "seed": 0, "start": [1.0, 0, 0],
        "replies": None, "transport": Asked, "evaluate": None, **NEW,
    },
    "fit_module": {
        "model": nn.Linear(3, 2), "sites": [(ROWS, LABELS)] * 2, "loss": "cross-entropy",
        "rounds": 1, "privacy": None, "step_size": None, "local_steps": None, "batch_size": None,
        "strategy": None, "algorithm": None, "test": None, "metrics": None, "compute": "float64",
        "cohort": None, "seed": 0, "start": None, "replies": None, "transport": Asked,
        "evaluate": None, **NEW,
    },
}  # fmt: skip


def outcome(door, argument, value, folder):
    """What is said; None where the value is taken."""
    given = DOORS[door] | {argument: value}
    if argument == "metrics":
        given["test"] = (ROWS, LABELS)
    Asked.is_asked = False
    try:
        with contextlib.chdir(folder):
            getattr(manifed, door)(**given)
    except (ConfigError, NotPrivate, OSError) as error:
        if Asked.is_asked or "\n" in str(error):
            raise RuntimeError(f"late, or of two lines: {error}") from None
        return str(error)
    return None


@pytest.mark.parametrize(
    ("door", "argument"), [(door, argument) for door, given in DOORS.items() for argument in given]
)
def test_an_odd_value_is_taken_or_refused_in_one_line_that_names_the_argument(
    door, argument, tmp_path
):
    wrong = {}
    for number, (odd, value) in enumerate(ODD.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            said = outcome(door, argument, value, folder)
        except Exception as error:  # raw, or late
            wrong[odd] = f"{type(error).__name__}: {error}"[:300]
            continue
        if said is not None and argument not in said.partition(", got")[0]:
            wrong[odd] = f"does not name it: {said}"[:300]
    assert not wrong, "\n".join(f"{odd}: {what}" for odd, what in wrong.items())
