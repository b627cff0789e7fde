"""Arguments of ``python -m app...``: what is wrong with them is one line, as everywhere."""

import argparse
import sys
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """argparse's, which ends in a line and exit code 2, without the usage above it."""

    def error(self, message: str) -> NoReturn:
        """End."""
        sys.stderr.write(f"error: {' '.join(message.split())}; {self.prog} --help explains\n")
        raise SystemExit(2)
