"""Runs the command ``manifed`` as ``python -m manifed``."""

from typing import NoReturn

from manifed.cli import check_typer


def main() -> NoReturn:
    """The entry point of the command; it needs typer, an optional package."""
    check_typer()
    from manifed.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
