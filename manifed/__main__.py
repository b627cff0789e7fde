"""Runs the command ``manifed`` as ``python -m manifed``."""

import sys
from importlib import import_module
from typing import NoReturn

from manifed.errors import Missing, optional


def main() -> NoReturn:
    """The entry point of the command; it needs typer, an optional package."""
    try:
        with optional():
            import_module("typer")  # before click, which comes with it
            from manifed.cli.main import main as command
    except Missing as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(Missing.exit_code)
    command()


if __name__ == "__main__":
    main()
