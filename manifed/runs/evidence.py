"""What a folder of a run proves of its epsilon: one check, which every reader makes.

A run writes the same facts in several files. The config is in experiment.toml and in the manifest,
and its hash in the ledger, the manifest and every checkpoint; manifest and checkpoint hold heads of
the ledger; the terms that the ledger was charged under follow from the config. Whoever changes one
file alone is refuted by the others, and a reader refuses the folder with what contradicts what.

What cannot be excluded is said: whoever can write the folder can rewrite all of an unkeyed one
consistently (manifed/privacy/ledger.py). `Evidence.doubts` has a sentence for each such thing, and
every reader shows them beside the label of the run (manifed/privacy/events.py).
"""

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from manifed.errors import ConfigError, one_line
from manifed.experiment.load import dump, load, parse
from manifed.experiment.plugins import allowed_here, packages_in
from manifed.experiment.schema import Experiment, sha256
from manifed.plan import is_scheduled, promise_of
from manifed.privacy import events
from manifed.privacy.account import anchors_of, ledger_key
from manifed.privacy.composition import NoValidBound
from manifed.privacy.events import named
from manifed.privacy.ledger import RESTORE, Entry, Head, Ledger, LedgerDamaged, Verified
from manifed.privacy.odometer import Odometer
from manifed.privacy.statement import Promise
from manifed.privacy.tariff import Terms
from manifed.runs import checkpoint
from manifed.runs.checkpoint import Checkpoint
from manifed.runs.folder import FolderDamaged, RunFolder, check_regular

_ALIKE: Final = 1e-3
_PRICED: Final = 1e-2
"""Relative; another machine or version may calibrate a noise, and price it, so much otherwise."""


@dataclass(frozen=True)
class Evidence:
    """What the files of a folder say together, none of it contradicted by another."""

    readable: Experiment | str
    """The config, or why it cannot be read."""
    manifest: Mapping[str, Any]
    """{} before the run has begun; until then nothing was released."""
    label: str
    """Whether the noise protects anybody (`manifed.privacy.events`)."""
    doubts: tuple[str, ...]
    """What this reader cannot exclude, in sentences."""
    odometer: Odometer
    """What all of the ledger's entries spent."""
    ledger: Verified | None
    checkpoint: Checkpoint | None

    @property
    def config(self) -> Experiment:
        """The config.

        Raises:
            ConfigError: this machine cannot read it.
        """
        if isinstance(self.readable, str):
            raise ConfigError(self.readable)
        return self.readable

    @property
    def declared(self) -> tuple[int, ...]:
        """N_i that the sites declared and the ledger was charged for."""
        return () if self.odometer.terms is None else self.odometer.terms.num_examples

    @property
    def last_round(self) -> int:
        """The round after which the run goes on; 0 before the first checkpoint."""
        return self.checkpoint.server_round if self.checkpoint else 0


def evidence_of(
    directory: Path, config: Experiment | None = None, key: bytes | None = None
) -> Evidence:
    """What the run folder ``directory`` proves.

    ``config`` is what the run is to go on with, and must be the run's; None: experiment.toml is
    read, if this machine can. ``key`` is the ledger's, if not the environment's.

    Raises:
        ConfigError, FolderDamaged, LedgerDamaged: a file is damaged, or one
            contradicts another; one line.
    """
    folder, doubts, is_given, why = RunFolder(directory), list[str](), config is not None, ""
    path = folder.ledger_path
    manifest = folder.manifest() if os.path.lexists(folder.manifest_path) else {}
    if os.path.lexists(folder.experiment_path) and manifest.get("experiment_sha256") is not None:
        folder.check_unedited(manifest["experiment_sha256"])
    try:
        config = config or saved_config(directory, allowed_here())
    except ConfigError as error:
        why = one_line(str(error), 300)
        doubts.append(f"nothing was compared with the config, which cannot be read here: {why}")
    saved = (
        checkpoint.load(folder.checkpoint_path) if os.path.lexists(folder.checkpoint_path) else None
    )
    kept = config and config.output.ledger_head, saved and saved.meta.ledger_head
    anchors = anchors_of(head for head in (*kept, manifest.get("ledger_head")) if head)
    charged, found, digest = _Charged(config, anchors), None, None
    if os.path.lexists(path):
        check_regular(path, "a ledger", most=1 << 40)
        found = Ledger.verify(path, key=key or ledger_key(), feed=charged.feed)
        digest = str(found.header.get("config_sha256"))
    elif manifest.get("ledger_run_id") is not None and is_private(manifest):
        raise refused(directory, f"expected the run's {path.name}", "none; restore it")
    is_of_config = config is not None and digest in (None, sha256(config))
    if config is not None and not is_of_config:
        if is_given:
            raise refused(
                directory, f"expected the config that its ledger names ({digest})",
                f"{sha256(config)}; resume with the same settings",
            )  # fmt: skip
        doubts.append(
            "the config is not the one that the run's hash names: it was changed, or this version "
            "of manifed or of a plug-in reads it otherwise"
        )
    _check_names(folder, config, manifest, saved, found)
    charged.check_anchors(path)
    if config is not None and config.privacy.kind != "none" and found is not None:
        doubts += _unlike(folder, config, manifest, charged) if is_of_config else []
        if "final" in manifest and manifest.get("config_sha256") == digest:
            _check_numbers(folder, manifest, charged.odometer)
    if "final" in manifest and saved is None:
        doubts.append("no checkpoint of this run is there, which would hold a head of the ledger")
    if found is not None:
        doubts.append(f"the ledger is {events.AUTHENTICITY[found.authenticity]}")
    word = _label(config, manifest, charged.odometer)
    if word == events.RELEASE and not is_of_config:
        word = events.UNKNOWN
    told = () if word == events.NOT_PRIVATE else tuple(doubts)
    return Evidence(config or why, manifest, word, told, charged.odometer, found, saved)


def _label(config: Experiment | None, manifest: Mapping[str, Any], odometer: Odometer) -> str:
    privacy = config and config.privacy
    return events.label_of(
        getattr(privacy, "noise_source", None),
        odometer.noise_origins,
        is_charged=odometer.rounds_counted > 0,
        is_private=is_private(manifest) if privacy is None else privacy.kind != "none",
    )


def with_evidence(manifest: Mapping[str, Any], found: Evidence) -> dict[str, Any]:
    """A private manifest with what the folder proves, and what it cannot exclude."""
    said = {key: value for key, value in manifest["privacy"].items() if key != "label"}
    said["noise_origins"] = sorted(found.odometer.noise_origins or said.get("noise_origins", ()))
    said["doubts"] = list(found.doubts)
    return {**manifest, "privacy": {"label": found.label, **said}}


def is_private(manifest: Mapping[str, Any]) -> bool:
    """Whether the run promises anything to anybody."""
    return (manifest.get("privacy") or {"kind": "none"})["kind"] != "none"


# -- the config -----------------------------------------------------------------------------------
def experiment_in(directory: Path) -> Path:
    """The experiment.toml of a run folder.

    Raises:
        ConfigError: there is none.
    """
    path = RunFolder(directory).experiment_path
    if not path.is_file():
        raise refused(directory, "expected a run folder", "no experiment.toml in it")
    return path


def saved_config(directory: Path, plugins: Collection[str] | None = None) -> Experiment:
    """The config of experiment.toml; ``plugins`` as of `load`.

    Raises:
        ConfigError: with the file.
    """
    path = experiment_in(directory)
    try:
        return load(path, plugins=plugins)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def refused(directory: Path, expected: str, found: str) -> ConfigError:
    """The one line that says why a run is not gone on with."""
    return ConfigError(f"run folder {str(directory)!r}: {expected}, got {found}")


# -- what the files say of each other --------------------------------------------------------------
def _agree(path: Path, fact: str, found: object, known: Iterable[object], where: str) -> None:
    """Refuse a fact in the file ``path`` that is none of those ``known`` from elsewhere."""
    if found not in (known := tuple(known)):
        expected = f"for {fact} {' or '.join(map(repr, known))}, as {where} says"
        raise FolderDamaged(path, expected, repr(found))


def _check_names(
    folder: RunFolder,
    config: Experiment | None,
    manifest: Mapping[str, Any],
    saved: Checkpoint | None,
    ledger: Verified | None,
) -> None:
    """Refuse files of another run, or of another config, than the others are of.

    Raises:
        FolderDamaged: with the first fact that another file contradicts.
    """
    path = folder.manifest_path
    if ledger is not None:
        digest = str(ledger.header.get("config_sha256"))
        for fact, said in (("config_sha256", digest), ("ledger_run_id", ledger.run_id)):
            known = (said,)
            if manifest.get(fact) is not None:
                _agree(path, fact, manifest[fact], known, "the ledger")
            if saved is not None:
                found = getattr(saved.meta, fact)
                _agree(folder.checkpoint_path, fact, found, known, "the ledger")
    if config is None or manifest.get("config") is None:
        return
    try:
        own = sha256(parse(manifest["config"], packages_in(dump(config))))
    except ConfigError as error:
        raise FolderDamaged(path, "the config of the run", str(error)) from None
    _agree(path, "the hash of config", own, (sha256(config),), "experiment.toml")
    told, privacy = manifest.get("privacy") or {"kind": "none"}, config.privacy
    for name in ("kind",) if privacy.kind == "none" else ("kind", "noise_source"):
        known = getattr(privacy, name)
        _agree(path, f"privacy.{name}", told.get(name), (known,), "the config")


# -- what was charged ------------------------------------------------------------------------------
class _Charged:
    """What a ledger was charged, and under which terms, entry by entry."""

    def __init__(self, config: Experiment | None, anchors: Sequence[Head]) -> None:
        """``config`` says whether terms depend on the round."""
        self.odometer = Odometer()
        self.found: dict[tuple[int, int, int], tuple[Terms, int]] = {}
        """Terms and the first line with them, by their number and, where it matters, rounds."""
        self._is_by_round = config is not None and is_scheduled(config.setting)
        self._left = set(anchors)
        self._number, self._before = 0, (-1, -1)

    def feed(self, entry: Entry) -> None:
        """Take the next entry; errors as `Odometer.feed`."""
        self.odometer.feed(entry)
        self._left.discard(Head(entry.sequence, entry.sha256))
        self._number += entry.terms is not None
        if entry.reserves is None:
            return
        first, last = entry.reserves.first, entry.reserves.last
        attempt = (first, entry.reserves.attempt)
        if attempt == self._before:  # masks of silent nodes, paid besides the round itself
            return
        self._before = attempt
        assert self.odometer.terms is not None
        key = (self._number, first, last) if self._is_by_round else (self._number, 0, 0)
        self.found.setdefault(key, (self.odometer.terms, entry.sequence + 1))

    def check_anchors(self, path: Path) -> None:
        """Refuse a ledger without a head that was kept elsewhere: rolled back, or another's.

        Raises:
            LedgerDamaged: with the line of the head.
        """
        for head in self._left:
            what = "is not the line that was written, or is missing (rolled back?)"
            raise LedgerDamaged(path, head.sequence + 1, what, RESTORE)


def _unlike(
    folder: RunFolder, config: Experiment, manifest: Mapping[str, Any], charged: _Charged
) -> list[str]:
    """Refuse charges under other terms than the config's; a doubt where they cannot be compared.

    Raises:
        LedgerDamaged: with the first line that was charged under other terms.
    """
    sizes, last = _sizes(config, manifest, charged.odometer), config.federation.num_rounds
    why = "the manifest does not say how many examples each client has"
    try:
        promise = None if sizes is None else _promise(config, sizes)
    except ConfigError as error:
        promise, why = None, str(error)
    if promise is None:
        return [f"the ledger's terms were not compared with the config: {why}"]
    for (_, first, end), (terms, line) in charged.found.items():
        for server_round in range(first, min(end, last) + 1):
            if not _alike(_bare(terms), _bare(promise.tariff.of(server_round))):
                what = "was charged under other terms than those of the run's config"
                raise LedgerDamaged(folder.ledger_path, line, what, RESTORE)
    return []


def _sizes(
    config: Experiment, manifest: Mapping[str, Any], odometer: Odometer
) -> tuple[int, ...] | None:
    """N_i of every client, all public, from the config, the ledger's terms, or the manifest."""
    runs, declared = manifest.get("num_examples") or (), config.federation.num_examples
    if declared is None and odometer.terms is not None:
        declared = odometer.terms.num_examples
    if not declared and sum(times for _, times in runs) == config.federation.num_clients:
        declared = tuple(size for size, times in runs for _ in range(times))
    return declared or None


@lru_cache(maxsize=8)
def _promise(config: Experiment, sizes: tuple[int, ...]) -> Promise:
    return promise_of(config.setting, sizes)


def _bare(terms: Terms) -> dict[str, Any]:
    """Terms without how many draws were planned."""
    return terms.model_dump(mode="json") | {"planned_draws": 0}


def _alike(one: Any, other: Any) -> bool:
    """Whether two bodies say the same, numbers to within `_ALIKE`."""
    match one, other:
        case dict(), dict():
            return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
        case list(), list():
            return len(one) == len(other) and all(map(_alike, one, other))
        case float(), float():
            return math.isclose(one, other, rel_tol=_ALIKE)
        case _:
            return one == other


def _check_numbers(folder: RunFolder, manifest: Mapping[str, Any], odometer: Odometer) -> None:
    """Refuse a finished run's statement that the ledger contradicts."""
    said, path = manifest["privacy"], folder.manifest_path
    if origins := sorted(odometer.noise_origins):
        found = sorted({*said.get("noise_origins", ())})
        _agree(path, "privacy.noise_origins", found, (origins,), "its ledger")
    for one in said["adversaries"]:
        if one["name"] == "published":
            continue
        try:
            priced = odometer.epsilon(named(one["name"]), one["delta"])
        except NoValidBound as error:
            raise ConfigError(f"{folder.ledger_path}: {error}") from None
        if not math.isclose(float(one["epsilon"]), priced, rel_tol=_PRICED):
            expected = f"against {one['name']} epsilon {priced:.6g}, as its ledger says"
            raise FolderDamaged(path, expected, str(one["epsilon"]))
