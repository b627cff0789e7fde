"""Small problems of one client for the checks that need other sizes than Figure 3's configs."""

from collections.abc import Mapping
from typing import Any

from manifed.experiment.load import parse
from manifed.experiment.schema import Experiment

DELTA = 1e-6
ONE = {"kind": "without-replacement", "batch_size": 1}
Pair = tuple[dict[str, Any], dict[str, Any]]
NOBODY = {"kind": "none"}


def pair(problem: Mapping[str, Any], data: str, **numbers: float) -> Pair:
    """The tables of a problem and of its data."""
    return dict(problem), {"kind": data, **numbers}


def spiked(num_examples: int, dimension: int = 20) -> Pair:
    """A leading eigenvector on the sphere: PL around it, gradients of norm below 1.3."""
    return pair(
        {"kind": "principal-eigenvector"},
        "reproduction.recipes:SpikedRows",
        num_examples=num_examples,
        dimension=dimension,
        squared_norm=1.0,
    )


def matrices(num_examples: int) -> Pair:
    """A Frechet mean of SPD matrices of side 4."""
    return pair(
        {"kind": "frechet-mean", "manifold": "spd"},
        "spd-lognormal",
        num_examples=num_examples,
        dimension=4,
        spread=0.5,
        condition=10.0,
    )


def cloud(num_examples: int, dimension: int) -> Pair:
    """A Frechet mean on the sphere S^(dimension - 1), strongly convex near the data."""
    return pair(
        {"kind": "frechet-mean", "manifold": "sphere"},
        "reproduction.recipes:SphereCloud",
        num_examples=num_examples,
        dimension=dimension,
        spread=0.3 / dimension**0.5,
    )


def example_level(epsilon: float, clip: float, correction_clip: float) -> dict[str, Any]:
    """Replace-one privacy at (epsilon, 1e-6) over the whole run."""
    return {
        "kind": "example-level",
        "l2_norm_clip": clip,
        "correction_l2_norm_clip": correction_clip,
        "neighboring_relation": "replace-one",
        "noise": {"kind": "target", "epsilon": epsilon, "delta": DELTA},
    }


def rsvrg(
    step_size: float, inner_steps: int, *, epochs: int = 1, output: str = "last-iterate"
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


def centrally(
    pair: Pair,
    training: Mapping[str, Any],
    rounds: int,
    privacy: Mapping[str, Any] = NOBODY,
) -> Experiment:
    """One client, ``rounds`` rounds of ``training``."""
    problem, data = pair
    return parse(
        {
            "name": "central",
            "problem": problem,
            "data": data,
            "federation": {"num_clients": 1, "num_rounds": rounds, "seed": 0},
            "training": training,
            "privacy": privacy,
            "evaluation": {"every": 1},
        }
    )
