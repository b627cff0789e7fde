"""Run one experiment: python simulation.py [CONFIG] [--set a.b=1] [--engine inline] [--out DIR]."""

import sys
from typing import TYPE_CHECKING

from manifed.cli.main import simulation

if TYPE_CHECKING:
    from manifed.flower.strategy import ManifoldStrategy
    from manifed.runs.driver import Job


def strategy(job: "Job") -> "ManifoldStrategy":
    """The application's strategy of a run, imported once there is one."""
    from strategies.of_config import strategy_of

    return strategy_of(job)


if __name__ == "__main__":
    simulation(sys.argv[1:], strategy)
