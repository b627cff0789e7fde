"""What an examination finds: one line a check, with what to do where something is wrong."""

from dataclasses import dataclass
from typing import Literal

from manifed.errors import one_line

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str
    level: Level
    found: str
    do: str = ""
    """What mends it; empty where all is well."""

    def line(self) -> str:
        """For a person: one line of any terminal."""
        mend = f"; {self.do}" if self.do else ""
        return one_line(f"{self.level:<4} {self.check}: {self.found}{mend}", 1500)


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check, "ok", found)


def warn(check: str, found: str, do: str) -> Finding:
    """A run is possible, and somebody should know."""
    return Finding(check, "warn", found, do)


def fail(check: str, found: str, do: str) -> Finding:
    """A run would fail or would not be safe."""
    return Finding(check, "fail", found, do)
