"""All checks that the options of ``manifed doctor`` ask for, one after the other."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from manifed.doctor import link, machine, records
from manifed.doctor.finding import Finding
from manifed.doctor.machine import LINK_PORT, NODE_PORT


@dataclass(frozen=True)
class Wanted:
    """What is to be examined beside the machine itself."""

    config: Path | None = None
    data: Path | None = None
    superlink: link.Address | None = None
    root_certificates: Path | None = None
    key: Path | None = None
    site_socket: Path | None = None
    partition: int | None = None
    folder: Path = Path("runs")
    """Where runs would be written."""


def examine(wanted: Wanted) -> Iterator[Finding]:
    """One finding a check, in a fixed order; nothing is left behind."""
    is_node = wanted.superlink is not None
    yield from machine.examine((NODE_PORT,) if is_node else (LINK_PORT, NODE_PORT), wanted.folder)
    if wanted.root_certificates is not None:
        yield from link.root_certificates(wanted.root_certificates)
    if wanted.superlink is not None:
        yield from link.examine(wanted.superlink, wanted.root_certificates)
    if wanted.key is not None:
        yield link.private_key(wanted.key)
    config = None
    if wanted.config is not None:
        config, finding = records.config_at(wanted.config)
        yield finding
    if wanted.data is not None:
        yield from records.data_file(config, wanted.data, wanted.partition)
    if wanted.site_socket is not None:
        yield records.site_socket(config, wanted.site_socket)
