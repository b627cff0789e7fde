"""What a benchmark says: on the terminal, and in a page beside the others."""

from pathlib import Path


class Page:
    """Markdown that grows line by line."""

    def __init__(self) -> None:
        self._said: list[str] = []

    def say(self, text: str) -> None:
        """Print some lines, and keep them."""
        print(text, flush=True)
        self._said.append(text)

    def save(self, folder: Path | None, name: str) -> None:
        """Write everything that was said to ``folder``/``name``; None: nowhere."""
        if folder is not None:
            (folder / name).write_text("\n".join(self._said) + "\n", encoding="utf-8")
