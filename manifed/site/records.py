"""The records of a site: whose file they are, and what an experiment makes of them."""

import hashlib
import json
import os
from pathlib import Path
from typing import Final

from manifed.durable import write_atomically
from manifed.errors import ConfigError
from manifed.experiment.assembly import own_node
from manifed.experiment.load import without_paths
from manifed.experiment.schema import Experiment
from manifed.federation.client import Node
from manifed.problems.dataset import SiteData

IDENTITY: Final = "data.json"
"""In the site's own folder, for nobody else: the digest of the file is a membership test."""


def node_of(
    config: Experiment, partition: int, path: Path | None, num_examples: int | None
) -> Node:
    """The node of an experiment on a site's records.

    Files that an experiment names for simulations are none of a site's: a text that came could name
    any, because the hash does not cover them.

    Raises:
        ConfigError: for the owner of the data: a file that cannot be used, an invalid record, an
            option that does not fit the experiment.
    """
    data, clients = config.data, config.federation.num_clients
    if partition >= clients:
        raise ConfigError(f"--partition: expected one of 0..{clients - 1}, got {partition}")
    if isinstance(data, SiteData) and path is None:
        raise ConfigError("--data: required by an experiment on files, but not given")
    if not isinstance(data, SiteData) and path is not None:
        raise ConfigError(
            f"--data: expected none with data.kind = {data.kind!r}, which the experiment names, "
            f"got {str(path)!r}"
        )
    return own_node(without_paths(config), partition, path, num_examples)


def claim(folder: Path, path: Path, *, is_accepted: bool) -> bool:
    """Make the file this folder's data set; whether it took the place of another file.

    A new folder takes any file. The digest is kept beside the ledger.

    Raises:
        ConfigError: it is another file than before, and nobody ``is_accepted`` it.
    """
    before = _digest_in(folder)
    if before is None or is_accepted:
        now = file_sha256(path)
        if now != before:
            content = json.dumps({"sha256": now}).encode() + b"\n"
            write_atomically(folder / IDENTITY, content)
        return before not in (None, now)
    check_same(folder, path)
    return False


def check_same(folder: Path, path: Path) -> None:
    """Refuse a file that is not the one this folder accounts for.

    Raises:
        ConfigError: with what to do.
    """
    if file_sha256(path) != _digest_in(folder):
        raise ConfigError(
            f"--data: {str(path)!r} is not the file that {str(folder)!r} accounts for; for the "
            "same people with rows mended or added say --accept-changed-data (what was spent stays "
            "spent), for other people use a ledger folder of their own"
        )


def _digest_in(folder: Path) -> str | None:
    """The digest that the folder keeps; None in a new one.

    Raises:
        ConfigError: the file that keeps it cannot be read.
    """
    identity = folder / IDENTITY
    try:
        return str(json.loads(identity.read_text())["sha256"]) if identity.exists() else None
    except (OSError, ValueError, LookupError, TypeError):
        raise ConfigError(
            f"{str(identity)!r}: expected the digest of this folder's data; restore it, or remove "
            "it if the file is certainly the same"
        ) from None


def file_sha256(path: Path) -> str:
    """Digest of a regular file.

    Raises:
        ConfigError: it is none, or cannot be read.
    """
    try:
        if not path.is_file():
            raise ConfigError(f"--data: expected a file, got {str(path)!r}")
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                digest.update(part)
        return digest.hexdigest()
    except OSError as error:
        raise ConfigError(f"--data: {str(path)!r}: {os.strerror(error.errno or 0)}") from None
