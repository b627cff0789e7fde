"""The experiments that the engine benchmarks run: five problems, any number of clients."""

from collections.abc import Callable, Iterator
from typing import Any

from manifed.experiment.assembly import client_side, initial_point, plan_of
from manifed.experiment.load import parse
from manifed.experiment.schema import Experiment
from manifed.federation.plan import Plan, RoundReport
from manifed.federation.rounds import run_rounds
from manifed.federation.stack import StackTransport

STEPS = 10
ROWS = {"kpca_784x5": 100, "kpca_100x5": 100}
POINTS = 20


def _base(name: str, clients: int, rounds: int) -> dict[str, Any]:
    return {
        "name": name,
        "federation": {"num_clients": clients, "num_rounds": rounds},
        "evaluation": {"is_enabled": False},
        "output": {"plots": False, "plain": True, "quiet": True, "checkpoint_every": 1000},
    }


def _rsgd(step_size: float) -> dict[str, Any]:
    return {
        "kind": "rsgd",
        "step_size": step_size,
        "local_steps": STEPS,
        "minibatch": {"kind": "full"},
    }


def least_squares(clients: int, rounds: int) -> dict[str, Any]:
    """Least squares in ten dimensions, twenty rows a client."""
    table = _base("least_squares_d10", clients, rounds)
    table["problem"] = {"kind": "least-squares"}
    table["data"] = {"kind": "synthetic-least-squares", "num_clients": clients, "rows": POINTS}
    table["federation"]["partition"] = {"kind": "natural"}
    return table | {"training": _rsgd(0.05)}


def lorentz(clients: int, rounds: int) -> dict[str, Any]:
    """The Fréchet mean on H^10, twenty points a client."""
    table = _base("lorentz_d10", clients, rounds)
    table["problem"] = {"kind": "frechet-mean", "manifold": "lorentz"}
    table["data"] = {
        "kind": "reproduction.recipes:HyperbolicCloud",
        "num_examples": POINTS * clients,
    }
    return table | {"training": _rsgd(0.1)}


def spd(clients: int, rounds: int) -> dict[str, Any]:
    """The Fréchet mean of 10 x 10 SPD matrices, twenty a client."""
    table = _base("spd_10", clients, rounds)
    table["problem"] = {"kind": "frechet-mean"}
    table["data"] = {"kind": "spd-lognormal", "num_examples": POINTS * clients}
    return table | {"training": _rsgd(0.1)}


def _kpca(name: str, dimension: int, clients: int, rounds: int) -> dict[str, Any]:
    table = _base(name, clients, rounds)
    table["problem"] = {"kind": "kpca", "num_components": 5}
    table["data"] = {
        "kind": "synthetic-pca",
        "num_clients": clients,
        "rows": ROWS[name],
        "dimension": dimension,
    }
    table["federation"]["partition"] = {"kind": "natural"}
    training = _rsgd(1e-5) | {"kind": "projected"}
    return table | {"training": training}


def kpca_100(clients: int, rounds: int) -> dict[str, Any]:
    """Five components of 100 x 100 blocks, projected steps with drift correction."""
    return _kpca("kpca_100x5", 100, clients, rounds)


def kpca_784(clients: int, rounds: int) -> dict[str, Any]:
    """Five components of 100 x 784 blocks, projected steps with drift correction."""
    return _kpca("kpca_784x5", 784, clients, rounds)


CASES: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "least_squares_d10": least_squares,
    "lorentz_d10": lorentz,
    "spd_10": spd,
    "kpca_100x5": kpca_100,
    "kpca_784x5": kpca_784,
}


def experiment(case: str, clients: int, rounds: int, **engine: Any) -> Experiment:
    """The frozen experiment of a case."""
    return parse(CASES[case](clients, rounds) | {"engine": engine})


def rounds_of(config: Experiment) -> tuple[Plan, Iterator[RoundReport]]:
    """The plan of a config, and its rounds as they are made: all clients in a stack, no ledger."""
    plan = plan_of(config)
    start = plan.server_update.start(initial_point(config))
    transport = StackTransport(client_side(config), at_once=None, memory_budget_mb=1024)
    return plan, run_rounds(plan, start, transport, num_rounds=config.federation.num_rounds)
