"""The Flower application: its two apps, and the engines that run them from the command line."""

from manifed.cli import check_typer

check_typer()
