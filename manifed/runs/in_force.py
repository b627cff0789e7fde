"""The config in force of a run: experiment.toml, as it was written, with the ledger's amendments.

Nothing is verified here but experiment.toml itself: whoever believes what the ledger says verifies
it (runs/evidence.py).
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from manifed.errors import ConfigError, one_line
from manifed.experiment.load import dump, load, parse
from manifed.experiment.schema import Experiment
from manifed.privacy.charges import AMENDED, Amendment
from manifed.privacy.ledger import RESTORE, LedgerDamaged
from manifed.runs.reading import read_whole
from manifed.runs.run_folder import RunFolder

_AMENDS: Final = f'"kind":"{AMENDED}"'.encode()
"""What the line of an amendment holds."""


def amended(config: Experiment, rounds: int, noise_multiplier: float | None) -> Experiment:
    """The config with more rounds; noise that a target was calibrated to is kept.

    Raises:
        ConfigError: for more rounds than there can be.
    """
    table = dump(config)
    table["federation"]["num_rounds"] = rounds
    if noise_multiplier is not None:
        table["privacy"]["noise"]["noise_multiplier"] = noise_multiplier
    return parse(table)


def in_force(config: Experiment, directory: Path) -> Experiment:
    """The config of experiment.toml with the amendments of the ledger beside it.

    Nothing is verified here: `read_past` compares the result with the verified ledger.

    Raises:
        LedgerDamaged: the ledger holds an amendment that none is.
    """
    path = RunFolder(directory).ledger_path
    if path.is_file():
        for number, body in _amendments(path):
            try:
                found = Amendment.model_validate(body)
                config = amended(config, found.num_rounds[1], found.noise_multiplier)
            except (ValueError, LookupError, TypeError) as error:
                what = f"is no amendment: {one_line(str(error), 200)}"
                raise LedgerDamaged(path, number, what, RESTORE) from None
    return config


def saved_config(directory: Path, plugins: Collection[str] | None = None) -> Experiment:
    """The config in force of the run in a folder; ``plugins`` as of `load`.

    Raises:
        ConfigError: with the file; LedgerDamaged: as `in_force`.
    """
    path = RunFolder(directory).experiment_path
    if not path.is_file():
        raise refused(directory, "expected a run folder", "no experiment.toml in it")
    try:
        return in_force(load(path, plugins=plugins), directory)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def experiment_digest(content: bytes) -> str:
    """What the manifest remembers of experiment.toml."""
    return hashlib.sha256(content).hexdigest()


def check_unedited(folder: RunFolder, digest: str | None) -> None:
    """Refuse an experiment.toml that is not the one of ``digest``, which the manifest remembers."""
    if experiment_digest(read_whole(folder.experiment_path, "the run's config")) != digest:
        raise refused(
            folder.directory,
            "expected experiment.toml as the run wrote it", "an edited one; restore it",
        )  # fmt: skip


def refused(directory: Path, expected: str, found: str) -> ConfigError:
    """The one line that says why a run is not gone on with."""
    return ConfigError(f"run folder {str(directory)!r}: {expected}, got {found}")


def header_of(path: Path) -> Mapping[str, Any]:
    """What the first line says, for a clearer refusal than a broken chain; verified later."""
    with path.open("rb") as file:
        first = file.readline()
    try:
        body = json.loads(first)["body"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise LedgerDamaged(path, 1, "was changed", RESTORE) from None
    return body if isinstance(body, dict) else {}


def _amendments(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The number and the body of every line that says that it amends; verified later."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if _AMENDS not in line or not line.endswith(b"\n"):
                continue
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                raise LedgerDamaged(path, number, "was changed", RESTORE) from None
            if isinstance(found, dict) and found.get("kind") == AMENDED:
                yield number, found["body"] if isinstance(found.get("body"), dict) else {}


def configs_of(path: Path) -> list[str]:
    """The hashes of the configs that were in force, that of now last; verified later."""
    if not path.is_file():
        return []
    named = [header_of(path), *(body for _, body in _amendments(path))]
    return [str(body.get("config_sha256")) for body in named]
