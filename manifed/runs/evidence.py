"""What a folder of a run proves of its epsilon: one check, which every reader makes.

A run writes the same facts in several files. The config is in experiment.toml and in the manifest,
and its hash in the ledger, the manifest and every checkpoint; manifest and checkpoint hold heads of
the ledger; the terms that the ledger was charged under follow from the config. Whoever changes one
file alone is refuted by the others, and a reader refuses the folder with what contradicts what.

What cannot be excluded is said: whoever can write the folder can rewrite all of an unkeyed one
consistently (manifed/privacy/ledger.py). `Evidence.doubts` has a sentence for each such thing, and
every reader shows them beside the label of the run (manifed/privacy/label.py).
"""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from manifed.errors import ConfigError, one_line
from manifed.experiment.load import dump, load, parse
from manifed.experiment.plugins import allowed_here, packages_in
from manifed.experiment.schema import Experiment, sha256
from manifed.plan import is_scheduled, promise_of
from manifed.privacy import label
from manifed.privacy.account import anchors_of, ledger_key
from manifed.privacy.accountant import NoValidBound
from manifed.privacy.events import named
from manifed.privacy.ledger import RESTORE, Amendment, Entry, Ledger, LedgerDamaged, Verified
from manifed.privacy.odometer import Odometer
from manifed.privacy.statement import Promise
from manifed.privacy.tariff import Terms
from manifed.runs import checkpoint
from manifed.runs.checkpoint import Checkpoint
from manifed.runs.folder import FolderDamaged, RunFolder, check_regular, is_there

_ALIKE: Final = 1e-3
_PRICED: Final = 1e-2
"""Relative; another machine or version may calibrate a noise, and price it, so much otherwise."""


@dataclass(frozen=True)
class Evidence:
    """What the files of a folder say together, none of it contradicted by another."""

    label: str
    """Whether the noise protects anybody (`manifed.privacy.label`)."""
    doubts: tuple[str, ...]
    """What this reader cannot exclude, in sentences."""
    odometer: Odometer
    """What all of the ledger's entries spent."""
    ledger: Verified | None
    checkpoint: Checkpoint | None
    is_of_config: bool = True
    """Whether this version reads the config that the run's hash names."""


def evidence_of(directory: Path, key: bytes | None = None) -> Evidence:
    """What the run folder ``directory`` proves; ``key`` is the ledger's, if not the environment's.

    Raises:
        ConfigError, FolderDamaged, LedgerDamaged: a file is damaged, or one
            contradicts another; one line.
    """
    folder = RunFolder(directory)
    manifest = folder.manifest() if is_there(folder.manifest_path) else {}
    try:
        config = (
            saved_config(directory, allowed_here())
            if is_there(folder.experiment_path)
            else _config_in(manifest, allowed_here())
        )
    except ConfigError as error:
        return judged(folder, None, manifest, key=key, doubt=one_line(str(error), 300))
    return judged(folder, config, manifest, key=key)


def judged(
    folder: RunFolder,
    config: Experiment | None,
    manifest: Mapping[str, Any],
    *,
    key: bytes | None = None,
    heads: Sequence[str] = (),
    doubt: str = "",
) -> Evidence:
    """As `evidence_of`, where the config in force and the manifest were read already.

    ``heads`` are heads of the ledger that were kept elsewhere; ``doubt`` says why there is no
    config.
    """
    path, configs, doubts = folder.ledger_path, configs_of(folder.ledger_path), list[str]()
    if is_there(folder.experiment_path) and manifest.get("experiment_sha256") is not None:
        folder.check_unedited(manifest["experiment_sha256"])
    if config is None:
        doubts.append(f"nothing was compared with the config, which cannot be read here: {doubt}")
    else:
        _check_said(folder, config, manifest, configs)
    saved = checkpoint.load(folder.checkpoint_path) if is_there(folder.checkpoint_path) else None
    charged = _Charged(config)
    found: Verified | None = None
    if is_there(path):
        _check_names(folder, manifest, saved, configs)
        kept = [*heads, manifest.get("ledger_head"), saved.meta["ledger_head"] if saved else None]
        anchors = anchors_of(head for head in kept if head is not None)
        used = key or ledger_key()
        found = Ledger.verify(path, key=used, anchors=anchors, feed=charged.feed)
    elif manifest.get("ledger_run_id") is not None and is_private(manifest):
        raise refused(folder.directory, f"expected the run's {path.name}", "none; restore it")
    is_of_config = config is not None and configs[-1:] in ([], [sha256(config)])
    if config is not None and not is_of_config:
        doubts.append(
            "the config is not the one that the run's hash names: it was changed, or this version "
            "of manifed or of a plug-in reads it otherwise"
        )
    if config is not None and config.privacy.kind != "none" and found is not None:
        doubts += _unlike(folder, config, manifest, charged) if is_of_config else []
        if "final" in manifest and manifest.get("config_sha256") == configs[-1]:
            _check_numbers(folder, manifest, charged.odometer)
    if "final" in manifest and saved is None:
        doubts.append("no checkpoint of this run is there, which would hold a head of the ledger")
    if found is not None:
        doubts.append(f"the ledger is {label.AUTHENTICITY[found.authenticity]}")
    word = _label(config, manifest, charged.odometer)
    if word == label.RELEASE and not is_of_config:
        word = label.UNKNOWN
    told = () if word == label.NOT_PRIVATE else tuple(doubts)
    return Evidence(word, told, charged.odometer, found, saved, is_of_config)


def with_evidence(manifest: Mapping[str, Any], found: Evidence) -> dict[str, Any]:
    """A private manifest with what the folder proves, and what it cannot exclude."""
    said = {key: value for key, value in manifest["privacy"].items() if key != "label"}
    said["noise_origins"] = sorted(found.odometer.noise_origins or said.get("noise_origins", ()))
    said["doubts"] = list(found.doubts)
    return {**manifest, "privacy": {"label": found.label, **said}}


def is_private(manifest: Mapping[str, Any]) -> bool:
    """Whether the run promises anything to anybody."""
    return (manifest.get("privacy") or {"kind": "none"})["kind"] != "none"


def _label(config: Experiment | None, manifest: Mapping[str, Any], odometer: Odometer) -> str:
    source, is_promised = None, is_private(manifest)
    if config is not None:
        privacy = config.privacy
        is_promised = privacy.kind != "none"
        source = privacy.noise_source if privacy.kind != "none" else None
    return label.label_of(
        source,
        odometer.noise_origins,
        is_charged=odometer.rounds_counted > 0,
        is_private=is_promised,
    )


# -- the config in force --------------------------------------------------------------------------
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


def refused(directory: Path, expected: str, found: str) -> ConfigError:
    """The one line that says why a run is not gone on with."""
    return ConfigError(f"run folder {str(directory)!r}: {expected}, got {found}")


def header_of(path: Path) -> Mapping[str, Any]:
    """What the first line says, for a clearer refusal than a broken chain; verified later."""
    with path.open("rb") as file:
        first = file.readline()
    try:
        found = json.loads(first)
        body = found["said" if "said" in found else "body"]  # the latter in older formats
    except (ValueError, KeyError, TypeError, RecursionError):
        raise LedgerDamaged(path, 1, "was changed", RESTORE) from None
    return body if isinstance(body, dict) else {}


def _amendments(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The number and the body of every line that says that it amends; verified later."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if b'"amends":{' not in line or not line.endswith(b"\n"):
                continue
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                raise LedgerDamaged(path, number, "was changed", RESTORE) from None
            if isinstance(found, dict) and isinstance(found.get("amends"), dict):
                yield number, found["amends"]


def configs_of(path: Path) -> list[str]:
    """The hashes of the configs that were in force, that of now last; verified later."""
    if not path.is_file():
        return []
    named = [header_of(path), *(body for _, body in _amendments(path))]
    return [str(body.get("config_sha256")) for body in named]


# -- what the files say of each other --------------------------------------------------------------
def _check_said(
    folder: RunFolder, config: Experiment, manifest: Mapping[str, Any], configs: Sequence[str]
) -> None:
    """Refuse a manifest with another config than the run's, or the statement of another one."""
    if manifest.get("config") is None:
        return
    try:
        own = sha256(_config_in(manifest, packages_in(dump(config))))
    except ConfigError as error:
        raise FolderDamaged(folder.manifest_path, "the config of the run", str(error)) from None
    if own not in (sha256(config), *configs[:-1]):
        raise FolderDamaged(folder.manifest_path, "the config of experiment.toml", "another one")
    said, privacy = manifest.get("privacy") or {"kind": "none"}, config.privacy
    pairs = [("kind", privacy.kind)]
    if privacy.kind != "none":
        pairs.append(("noise_source", privacy.noise_source))
    for name, value in pairs:
        if said.get(name) != value:
            expected = f"for privacy.{name} {value!r}, as the config has it"
            raise FolderDamaged(folder.manifest_path, expected, repr(said.get(name)))


def _config_in(manifest: Mapping[str, Any], plugins: Collection[str]) -> Experiment:
    return parse(manifest.get("config") or {}, plugins)


def _check_names(
    folder: RunFolder,
    manifest: Mapping[str, Any],
    saved: Checkpoint | None,
    configs: Sequence[str],
) -> None:
    """Refuse a ledger or a checkpoint of another run, or of another config than the manifest's."""
    directory = folder.directory
    check_regular(folder.ledger_path, "a ledger", most=1 << 40)
    run, known = manifest.get("ledger_run_id"), manifest.get("config_sha256")
    if known is not None and known not in configs:
        raise refused(directory, "expected a ledger of this config", f"one of {configs[-1]}")
    theirs = header_of(folder.ledger_path).get("run_id")
    if run is not None and theirs != run:
        raise refused(directory, f"expected the ledger of run {run}", f"that of {theirs}")
    if saved is None:
        return
    if (of := saved.meta["config_sha256"]) not in configs:
        raise refused(directory, "expected a checkpoint of this config", f"one of {of}")
    if saved.meta["ledger_run_id"] != theirs:
        other = saved.meta["ledger_run_id"]
        raise refused(directory, f"expected a checkpoint of run {theirs}", f"one of run {other}")


# -- what was charged ------------------------------------------------------------------------------
class _Charged:
    """What a ledger was charged, and under which terms, entry by entry."""

    def __init__(self, config: Experiment | None) -> None:
        """``config`` says whether terms depend on the round, and how many rounds there are."""
        self.odometer = Odometer()
        self.found: dict[tuple[int, int], tuple[Terms, int]] = {}
        """Terms and the first line with them, by their number and, where that matters, round."""
        self._is_by_round = config is not None and is_scheduled(config.setting)
        self._last = 0 if config is None else config.federation.num_rounds
        self._number, self._before = 0, (-1, -1)

    def feed(self, entry: Entry) -> None:
        """Take the next entry; errors as `Odometer.feed`."""
        self.odometer.feed(entry)
        self._number += entry.terms is not None
        if entry.reserves is None:
            return
        first, last = entry.reserves.first, entry.reserves.last
        attempt = (first, entry.reserves.attempt)
        if attempt == self._before:  # masks of silent nodes, paid besides the round itself
            return
        self._before = attempt
        assert self.odometer.terms is not None
        rounds = range(first, min(last, self._last) + 1) if self._is_by_round else (first,)
        for r in rounds:
            key = self._number, r if self._is_by_round else 0
            self.found.setdefault(key, (self.odometer.terms, entry.sequence + 1))


def _unlike(
    folder: RunFolder, config: Experiment, manifest: Mapping[str, Any], charged: _Charged
) -> list[str]:
    """Refuse charges under other terms than the config's; a doubt where they cannot be compared.

    Raises:
        LedgerDamaged: with the first line that was charged under other terms.
    """
    path, why = folder.ledger_path, ""
    sizes = _sizes(config, manifest, charged.odometer)
    if sizes is None:
        why = "the manifest does not say how many examples each client has"
    else:
        try:
            promise = _promise(config, sizes)
        except ConfigError as error:
            why = str(error)
        else:
            for (_, server_round), (terms, line) in charged.found.items():
                if not _alike(_bare(terms), _bare(promise.tariff.of(server_round))):
                    what = "was charged under other terms than those of the run's config"
                    raise LedgerDamaged(path, line, what, RESTORE)
    return [f"the ledger's terms were not compared with the config: {why}"] if why else []


def _sizes(
    config: Experiment, manifest: Mapping[str, Any], odometer: Odometer
) -> tuple[int, ...] | None:
    """N_i of every client, all public, from the config, the ledger's terms, or the manifest."""
    declared = config.federation.num_examples
    terms = odometer.terms
    if declared is None and terms is not None and terms.num_examples:
        declared = terms.num_examples
    if declared is None and manifest.get("num_examples"):
        runs = manifest["num_examples"]
        if sum(times for _, times in runs) == config.federation.num_clients:
            declared = tuple(size for size, times in runs for _ in range(times))
    return declared


@lru_cache(maxsize=8)
def _promise(config: Experiment, sizes: tuple[int, ...]) -> Promise:
    return promise_of(config.setting, sizes)


def _bare(terms: Terms) -> dict[str, Any]:
    """Terms without how many draws were planned, which more rounds change."""
    return terms.model_dump(mode="json") | {"planned_draws": 0}


def _alike(one: Any, other: Any) -> bool:
    """Whether two bodies say the same, numbers to within `_ALIKE`."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_ALIKE)
    return one == other


def _check_numbers(folder: RunFolder, manifest: Mapping[str, Any], odometer: Odometer) -> None:
    """Refuse a finished run's statement that the ledger contradicts."""
    said = manifest["privacy"]
    origins, path = set(said.get("noise_origins", ())), folder.manifest_path
    if odometer.noise_origins and odometer.noise_origins ^ origins:
        expected = f"for privacy.noise_origins {sorted(odometer.noise_origins)}, as its ledger says"
        raise FolderDamaged(path, expected, str(sorted(origins)))
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
