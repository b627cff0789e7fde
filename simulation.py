"""Run one experiment: python simulation.py [CONFIG] [--set a.b=1] [--engine inline] [--out DIR]."""

import sys

from manifed.cli import check_typer

if __name__ == "__main__":
    check_typer()
    from manifed.cli.main import simulation

    simulation(sys.argv[1:])
