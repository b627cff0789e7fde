"""The command ``manifed``."""

import sys

from manifed.errors import Missing, optional


def check_typer() -> None:
    """Ends a program in one line, exit code 2, where typer, an optional package, is missing."""
    try:
        with optional():
            __import__("typer")  # before click, which comes with it
    except Missing as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(Missing.exit_code)
