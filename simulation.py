"""Run one experiment: python simulation.py [CONFIG] [--set a.b=1] [--engine inline] [--out DIR]."""

import sys

from manifed.cli.main import simulation

if __name__ == "__main__":
    simulation(sys.argv[1:])
