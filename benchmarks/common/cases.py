"""The experiments that the engine benchmarks run: five problems, any number of clients."""

from collections.abc import Callable, Iterator
from typing import Any

from manifed.experiment.assembly import client_side, initial_point, plan_of
from manifed.experiment.load import parse
from manifed.experiment.schema import Experiment
from manifed.federation.plan import Plan, RoundReport
from manifed.federation.rounds import run_rounds
from manifed.federation.stack import StackTransport

POINTS = 20
Table = dict[str, Any]


def _case(
    name: str, problem: Table, data: Table, step_size: float, kind: str = "rsgd"
) -> Callable[[int, int], Table]:
    """A function of clients and rounds; data that say how many clients there are are split so."""

    def table(clients: int, rounds: int) -> Table:
        is_natural = "rows" in data
        count = {"num_clients": clients} if is_natural else {"num_examples": POINTS * clients}
        partition = {"partition": {"kind": "natural"}} if is_natural else {}
        return {
            "name": name,
            "problem": problem,
            "data": data | count,
            "federation": {"num_clients": clients, "num_rounds": rounds, **partition},
            "training": {
                "kind": kind,
                "step_size": step_size,
                "local_steps": 10,
                "minibatch": {"kind": "full"},
            },
            "evaluation": {"is_enabled": False},
            "output": {"plain": True, "quiet": True, "checkpoint_every": 1000},
        }

    return table


_KPCA = {"kind": "kpca", "num_components": 5}
_BLOCKS = {"kind": "synthetic-pca", "rows": 100}
CASES = {
    "least_squares_d10": _case(
        "least_squares_d10",
        {"kind": "least-squares"},
        {"kind": "synthetic-least-squares", "rows": POINTS},
        0.05,
    ),
    "lorentz_d10": _case(
        "lorentz_d10",
        {"kind": "frechet-mean", "manifold": "lorentz"},
        {"kind": "reproduction.recipes:HyperbolicCloud"},
        0.1,
    ),
    "spd_10": _case("spd_10", {"kind": "frechet-mean"}, {"kind": "spd-lognormal"}, 0.1),
    "kpca_100x5": _case("kpca_100x5", _KPCA, _BLOCKS | {"dimension": 100}, 1e-5, "projected"),
    "kpca_784x5": _case("kpca_784x5", _KPCA, _BLOCKS | {"dimension": 784}, 1e-5, "projected"),
}
"""Tables by clients and rounds: ten local steps of full batches, twenty points or rows a client.

Principal components have a hundred rows a client, and projected steps with drift correction.
"""


def experiment(case: str, clients: int, rounds: int, **engine: Any) -> Experiment:
    """The frozen experiment of a case."""
    return parse(CASES[case](clients, rounds) | {"engine": engine})


def rounds_of(config: Experiment) -> tuple[Plan, Iterator[RoundReport]]:
    """The plan of a config, and its rounds as they are made: all clients in a stack, no ledger."""
    plan = plan_of(config)
    start = plan.server_update.start(initial_point(config))
    transport = StackTransport(client_side(config), at_once=None, memory_budget_mb=1024)
    return plan, run_rounds(plan, start, transport, num_rounds=config.federation.num_rounds)
