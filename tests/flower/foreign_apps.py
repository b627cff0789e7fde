"""Eight kinds of Flower apps, as they are written and as they are guarded (tests/foreign_apps).

Each is what ``flwr new`` makes (``common``), with the files of ``KIND/plain`` in place of some; the
guarded app has those of ``KIND/guarded`` besides.
"""

import difflib
import shutil
import tomllib
from pathlib import Path

APPS = Path(__file__).resolve().parents[1] / "foreign_apps"
KINDS = sorted(path.name for path in APPS.iterdir() if (path / "guarded").is_dir())


def laid(kind, folder, *, is_guarded):
    """The folder with the app."""
    for layer in ("common", f"{kind}/plain", f"{kind}/guarded")[: 2 + is_guarded]:
        if (APPS / layer).is_dir():
            shutil.copytree(
                APPS / layer,
                folder,
                dirs_exist_ok=True,
                ignore=shutil.ignore_patterns("__pycache__"),
            )
    return folder


def config_of(folder):
    """The run config of its pyproject.toml."""
    return tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


def lines_changed(kind, folder):
    """How many lines the guarded app adds, and how many it leaves out."""
    plain = laid(kind, folder / "plain", is_guarded=False)
    guarded = laid(kind, folder / "guarded", is_guarded=True)
    assert {p.relative_to(plain) for p in plain.rglob("*")} == {
        p.relative_to(guarded) for p in guarded.rglob("*")
    }
    marks = [
        line[:2]
        for file in guarded.rglob("*.*")
        for line in difflib.ndiff(
            (plain / file.relative_to(guarded)).read_text().splitlines(),
            file.read_text().splitlines(),
        )
    ]
    return marks.count("+ "), marks.count("- ")
