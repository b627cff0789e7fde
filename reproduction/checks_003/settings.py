"""Small problems of one client for the checks that need other sizes than Figure 3's configs."""

from collections.abc import Mapping
from typing import Any, Literal

from manifed.experiment.load import parse
from manifed.experiment.schema import Experiment

DELTA = 1e-6
ONE = {"kind": "without-replacement", "batch_size": 1}
Pair = tuple[dict[str, Any], dict[str, Any]]
Output = Literal["last-iterate", "random-iterate"]


def spiked(num_examples: int, dimension: int = 20) -> Pair:
    """A leading eigenvector on the sphere: PL around it, gradients of norm below 1.3."""
    rows = {"num_examples": num_examples, "dimension": dimension, "squared_norm": 1.0}
    return {"kind": "principal-eigenvector"}, {"kind": "reproduction.recipes:SpikedRows", **rows}


def matrices(num_examples: int, dimension: int = 4) -> Pair:
    """A Frechet mean of SPD matrices."""
    law = {"num_examples": num_examples, "dimension": dimension, "spread": 0.5, "condition": 10.0}
    return {"kind": "frechet-mean", "manifold": "spd"}, {"kind": "spd-lognormal", **law}


def cloud(num_examples: int, dimension: int = 10) -> Pair:
    """A Frechet mean on the sphere S^(dimension - 1), strongly convex near the data."""
    law = {"num_examples": num_examples, "dimension": dimension, "spread": 0.3 / dimension**0.5}
    return {"kind": "frechet-mean", "manifold": "sphere"}, {
        "kind": "reproduction.recipes:SphereCloud",
        **law,
    }


def example_level(
    epsilon: float, clip: float, correction_clip: float | None = None
) -> dict[str, Any]:
    """Replace-one privacy at (epsilon, 1e-6) over the whole run."""
    table = {
        "kind": "example-level",
        "l2_norm_clip": clip,
        "neighboring_relation": "replace-one",
        "noise": {"kind": "target", "epsilon": epsilon, "delta": DELTA},
    }
    return (
        table if correction_clip is None else table | {"correction_l2_norm_clip": correction_clip}
    )


def rsvrg(
    step_size: float,
    inner_steps: int,
    *,
    epochs: int = 1,
    output: Output = "last-iterate",
) -> dict[str, Any]:
    """Algorithm 11 as printed, Output I or II, one example a step."""
    return {
        "kind": "rsvrg",
        "step_size": step_size,
        "epochs": epochs,
        "inner_steps": inner_steps,
        "minibatch": ONE,
        "variant": "fresh",
        "correction_clip": "each",
        "output": output,
    }


def rsgd(step_size: float, local_steps: int) -> dict[str, Any]:
    """DP-RSGD, one example a step."""
    return {
        "kind": "rsgd", "step_size": step_size, "local_steps": local_steps, "minibatch": ONE,
    }  # fmt: skip


def centrally(
    pair: Pair,
    training: Mapping[str, Any],
    rounds: int,
    privacy: Mapping[str, Any] | None = None,
    *,
    every: int = 1,
) -> Experiment:
    """One client, ``rounds`` rounds of ``training``, measured ``every`` so many."""
    problem, data = pair
    return parse(
        {
            "name": "central",
            "problem": problem,
            "data": data,
            "federation": {"num_clients": 1, "num_rounds": rounds, "seed": 0},
            "training": training,
            "privacy": {"kind": "none"} if privacy is None else privacy,
            "evaluation": {"every": every},
        }
    )
