"""What a benchmark says: on the terminal, in a page beside the others, and as numbers."""

import argparse
import json
from pathlib import Path
from typing import Any


class Page:
    """Markdown that grows line by line, and the command line that says where it goes."""

    def __init__(self, doc: str | None, name: str, **defaults: float | Path) -> None:
        """An option for each of ``defaults``, beside --out and --json."""
        self.doc = doc or ""
        self.name = name
        self.parser = argparse.ArgumentParser(
            description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        for option, value in defaults.items():
            self.parser.add_argument(f"--{option}", type=type(value), default=value)
        self.parser.add_argument("--out", type=Path, help=f"folder of {name}")
        self.parser.add_argument("--json", action="store_true", help="numbers as the last line")
        self._said: list[str] = []

    def say(self, text: str) -> None:
        """Print some lines, and keep them."""
        print(text, flush=True)
        self._said.append(text)

    def explain(self) -> None:
        """Say what the script says of itself, after its usage."""
        self.say("\n" + self.doc.split("\n", 4)[4].strip())

    def save(self, given: argparse.Namespace, numbers: Any = None) -> None:
        """Write everything that was said, and print the numbers, where it was asked for."""
        if given.out is not None:
            given.out.mkdir(parents=True, exist_ok=True)
            text = "\n".join(self._said) + "\n"
            (given.out / self.name).write_text(text, encoding="utf-8")
        if given.json:
            print(json.dumps(numbers))
