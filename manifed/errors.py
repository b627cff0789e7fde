"""The errors of the library; each is one line with field, value and bound."""

import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EXTRAS = {
    "flwr": "flower",
    "matplotlib": "plot",
    "mlflow": "mlflow",
    "pyarrow": "parquet",
    "ray": "ray",
    "sklearn": "data",
    "tensorboard": "tensorboard",
    "typer": "cli",
    "wandb": "wandb",
}
"""An optional package and the extra of manifed that installs it."""
_LONGEST = 2000
"""Characters of an error, whatever was handed in; one that names what to do has a few hundred."""


def one_line(text: str, most: int = 600) -> str:
    """Puts ``text`` on one line of any terminal, and cuts the middle if it is long."""
    if len(text) > 20 * most:  # what is left out need not be looked at
        text = f"{text[: 10 * most]} ... {text[-10 * most :]}"
    flat = " ".join(text.split())
    flat = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in flat)
    return flat if len(flat) <= most else f"{flat[: most // 2]} ... {flat[-most // 3 :]}"


def short(value: object) -> str:
    """Shows a value in an error, in at most 80 characters on one line."""
    if isinstance(value, int) and abs(value) >= 10**18:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, dict | list):
        return f"a {'table' if isinstance(value, dict) else 'list'} of {len(value)}"
    if isinstance(value, str | bytes):
        value = value[:_LONGEST]  # whoever sends it chooses how long it is
    return one_line(repr(value), 80)


def described(error: BaseException, most: int = 200) -> str:
    """Says on one line of which class an error is, and its text."""
    return one_line(f"{type(error).__name__}: {error}", most)


def raised_at(error: BaseException) -> str:
    """Names file and line at which an error was raised."""
    (last,) = traceback.extract_tb(error.__traceback__)[-1:]
    return f"{Path(last.filename).name}:{last.lineno}"


class ConfigError(ValueError):
    """Error: input that cannot run; one line of bounded length naming field, value and bound."""

    exit_code = 2
    """The exit code of a command that ends with this error; unforeseen errors have none."""

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text, _LONGEST))


@contextmanager
def named_by(place: object, *kinds: type[Exception]) -> Generator[None]:
    """Makes errors of these kinds a `ConfigError` that says first where the fault is."""
    try:
        yield
    except kinds as error:
        raise ConfigError(f"{place}: {error}") from None


def check_kind(name: str, value: object, kind: Any, words: str) -> None:
    """Refuses an argument that is of no class of ``kind``.

    Raises:
        ConfigError: with its name, the expected ``words``, and the value.
    """
    if not isinstance(value, kind):
        raise ConfigError(f"{name}: expected {words}, got {short(value)}")


def check_linux(what: str) -> None:
    """Refuse, on another platform, a part that reads Linux's /proc or asks a socket for its peer.

    Raises:
        ConfigError: the platform is another one.
    """
    if sys.platform != "linux":
        raise ConfigError(f"{what}: expected Linux, got {sys.platform!r}; use a Linux machine")


class Missing(ImportError):
    """An optional package that is not installed; one line with the command that installs it."""

    exit_code = 2

    def __init__(self, package: str) -> None:
        command = f'pip install "manifed[{EXTRAS[package]}]"'
        super().__init__(f"{package} is not installed: {command}", name=package)


@contextmanager
def optional() -> Generator[None]:
    """Name the extra of an optional package whose import fails in the block.

    Raises:
        Missing: the package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in EXTRAS:
            raise
        raise Missing(package) from None


class RoundFailed(RuntimeError):
    """Error: a round has no result; the text names the clients and their reasons."""

    exit_code = 1

    def __init__(self, text: str, *, is_computed: bool = False) -> None:
        super().__init__(text)
        self.is_computed = is_computed
        """Whether what was computed is at fault and no outage: going on would not help."""


class BudgetExhausted(RuntimeError):
    """Error: the next round would exceed ``privacy.max_epsilon``; the last paid model stands."""

    noise_origins: frozenset[str] = frozenset()
    """Where noise of that round's attempts before came from; they were paid, and are seen."""


class EngineFailed(Exception):
    """Error: a run of Flower did not end as ``finished:completed``.

    Attributes:
        status: Flower's own status (``finished:failed``, ``finished:stopped``), or
            ``timeout``, ``not-started``, ``stopped`` where Flower has none.
        details: the exception text of the ServerApp, or the last lines of a log.
    """

    exit_code = 1

    def __init__(self, status: str, details: str) -> None:
        super().__init__(f"Expected run status finished:completed, got {status}: {details}")
        self.status = status
        self.details = details


class RunEnded(Exception):
    """Error: a command was stopped before its end; the text says how to go on."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code
