"""Checks what the files of a run folder prove of its epsilon; every reader uses this check.

A run writes the same facts in several files. The config is in experiment.toml and in the manifest,
and its hash in the ledger, the manifest and every checkpoint; manifest and checkpoint hold heads of
the ledger; the terms that the ledger was charged under follow from the config. Whoever changes one
file alone is refuted by the others, and a reader refuses the folder with what contradicts what.

What cannot be excluded is said: whoever can write the folder can rewrite all of an unkeyed one
consistently (manifed/privacy/ledger.py). `Evidence.doubts` has a sentence for each such thing, and
every reader shows them beside the label of the run (manifed/privacy/events.py).

A run that is gone on with is judged by the same check and by a few more (`read_past`). Reading
writes nothing: a refusal leaves every byte of the folder as it was. The order in which a run writes
decides what a crash can leave: experiment.toml, ledger.jsonl, manifest.json, then each round's
charge, row and checkpoint. So a folder without a manifest has released nothing, and one with a
manifest has a ledger.
"""

import math
import os
import sys
from collections.abc import Collection, Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from manifed.algorithms.payloads import State
from manifed.durable import held, is_draft, make_folder
from manifed.errors import ConfigError, named_by, one_line
from manifed.experiment.assembly import initial_point
from manifed.experiment.load import dump, load, parse
from manifed.experiment.plugins import allowed_here, packages_in
from manifed.experiment.schema import Experiment, sha256
from manifed.federation.rounds import CLIP
from manifed.fields import Document, Values
from manifed.plan import Sizes, promise_of
from manifed.privacy.composition import NoValidBound
from manifed.privacy.events import AUTHENTICITY, Label, label_of, named
from manifed.privacy.ledger import Entry, Head, Ledger, LedgerDamaged, Verified, ledger_key
from manifed.privacy.odometer import OFFERED, Odometer
from manifed.privacy.tariff import Terms, decode
from manifed.runs import checkpoint
from manifed.runs.checkpoint import Checkpoint
from manifed.runs.folder import FolderDamaged, RunFolder, check_regular
from manifed.runs.manifest import LIBRARY
from manifed.setting import Setting

_ALIKE = 1e-3
_PRICED = 1e-2
"""Relative; another machine or version may calibrate a noise, and price it, so much otherwise."""


class Evidence(NamedTuple):
    """The facts that the files of a run folder state together without a contradiction."""

    manifest: Values
    """{} before the run has begun; until then nothing was released."""
    label: str
    """Whether the noise protects anybody (`manifed.privacy.events`)."""
    doubts: tuple[str, ...]
    """What this reader cannot exclude, in sentences."""
    odometer: Odometer
    """What all of the ledger's entries spent."""
    ledger: Verified | None
    checkpoint: Checkpoint | None

    def stated_in(self, manifest: Values) -> Document:
        """Returns a private manifest with the epsilon proved, and what cannot be excluded."""
        said = manifest["privacy"]
        origins = self.odometer.noise_origins or said.get("noise_origins", ())
        proved = {"noise_origins": sorted(origins), "doubts": list(self.doubts)}
        return {**manifest, "privacy": {**said, "label": self.label, **proved}}


def evidence_of(
    directory: Path, config: Experiment | None = None, key: bytes | None = None
) -> Evidence:
    """Reads and checks the run folder ``directory``.

    ``config`` is what the run is to go on with, and must be the run's; None: experiment.toml is
    read, if this machine can. ``key`` is the ledger's, if not the environment's.

    Raises:
        ConfigError, FolderDamaged, LedgerDamaged: a file is damaged, or one
            contradicts another; one line.
    """
    folder, doubts, is_given = RunFolder(directory), list[str](), bool(config)
    path, found, digest = folder.ledger_path, None, None
    manifest = folder.manifest() if os.path.lexists(folder.manifest_path) else {}
    if os.path.lexists(folder.experiment_path) and manifest.get("experiment_sha256") is not None:
        folder.check_unedited(manifest["experiment_sha256"])
    try:
        config = config or saved_config(directory, allowed_here())
    except ConfigError as error:
        why = one_line(str(error), 300)
        doubts.append(f"nothing was compared with the config, which cannot be read here: {why}")
    at = folder.checkpoint_path
    saved = checkpoint.load(at) if os.path.lexists(at) else None
    kept = config and config.output.ledger_head, saved and saved.meta.ledger_head
    anchors = tuple(Head.parse(head) for head in (*kept, manifest.get("ledger_head")) if head)
    charged = _Charged(is_by_round=bool(config and config.setting.is_scheduled))
    left, odometer = set(anchors), charged.odometer

    def feed(entry: Entry) -> None:
        charged.feed(entry)
        left.discard(Head(entry.sequence, entry.sha256))

    if os.path.lexists(path):
        check_regular(path, "a ledger", most=1 << 40)
        found = Ledger.verify(path, key=key or ledger_key(), feed=feed)
        digest = str(found.header.get("config_sha256"))
    elif manifest.get("ledger_run_id") is not None and is_private(manifest):
        raise refused(directory, "expected the run's ledger.jsonl", "none; restore it")
    is_of_config = config and digest in (None, sha256(config))
    if config and not is_of_config:
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
    for head in left:  # rolled back, or another's
        raise LedgerDamaged(
            path,
            head.sequence + 1,
            "is not the line that was written, or is missing (rolled back?)",
        )
    promises = config.privacy.kind != "none" if config else is_private(manifest)
    if config and promises and found:
        doubts += _unlike(path, config, manifest, charged) if is_of_config else []
        if "final" in manifest and manifest.get("config_sha256") == digest:
            _check_numbers(folder, manifest, odometer)
    if "final" in manifest and not saved:
        doubts.append("no checkpoint of this run is there, which would hold a head of the ledger")
    if found:
        doubts.append(f"the ledger is {AUTHENTICITY[found.authenticity]}")
    source = config and getattr(config.privacy, "noise_source", None)
    is_charged = odometer.rounds_counted > 0
    word = label_of(source, odometer.noise_origins, is_charged=is_charged, is_private=promises)
    if word == Label.RELEASE and not is_of_config:
        word = Label.UNKNOWN
    told = () if word == Label.NOT_PRIVATE else tuple(doubts)
    return Evidence(manifest, word, told, odometer, found, saved)


def is_private(manifest: Values) -> bool:
    """Whether the run promises anything to anybody."""
    return bool(manifest) and manifest["privacy"]["kind"] != "none"


# -- the config ------------------------------------------------------------------------------------
def experiment_in(directory: Path) -> Path:
    """Reads the experiment.toml of a run folder.

    Raises:
        ConfigError: there is none.
    """
    path = RunFolder(directory).experiment_path
    if not path.is_file():
        raise refused(directory, "expected a run folder", "no experiment.toml in it")
    return path


def saved_config(directory: Path, plugins: Collection[str] | None = None) -> Experiment:
    """Reads the config of experiment.toml; ``plugins`` as of `load`.

    Raises:
        ConfigError: with the file.
    """
    path = experiment_in(directory)
    with named_by(path, ConfigError):
        return load(path, plugins=plugins)


def refused(directory: Path, expected: str, found: str) -> ConfigError:
    """Makes the one-line error that says why a run is not resumed."""
    return ConfigError(f"run folder {str(directory)!r}: {expected}, got {found}")


# -- what the files say of each other --------------------------------------------------------------
def _agree(path: Path, fact: str, found: object, known: object, where: str) -> None:
    """Refuse a fact in the file ``path`` that is another elsewhere."""
    if found != known:
        raise FolderDamaged(path, f"for {fact} {known!r}, as {where} says", repr(found))


def _check_names(
    folder: RunFolder,
    config: Experiment | None,
    manifest: Values,
    saved: Checkpoint | None,
    ledger: Verified | None,
) -> None:
    """Refuse files of another run, or of another config, than the others are of.

    Raises:
        FolderDamaged: with the first fact that another file contradicts.
    """
    path = folder.manifest_path
    if ledger:
        digest = str(ledger.header.get("config_sha256"))
        for fact, known in (
            ("config_sha256", digest),
            ("ledger_run_id", ledger.header.get("run_id")),
        ):
            if manifest.get(fact) is not None:
                _agree(path, fact, manifest[fact], known, "the ledger")
            if saved:
                _agree(folder.checkpoint_path, fact, getattr(saved.meta, fact), known, "the ledger")
    if not config or not manifest:
        return
    try:
        own = sha256(parse(manifest["config"], packages_in(dump(config))))
    except ConfigError as error:
        raise FolderDamaged(path, "the config of the run", str(error)) from None
    _agree(path, "the hash of config", own, sha256(config), "experiment.toml")
    told, privacy = manifest["privacy"], config.privacy
    for name in ("kind",) if privacy.kind == "none" else ("kind", "noise_source"):
        _agree(path, f"privacy.{name}", told.get(name), getattr(privacy, name), "the config")


# -- what was charged ------------------------------------------------------------------------------
class _Charged:
    """What a ledger was charged, and under which terms, entry by entry."""

    def __init__(self, *, is_by_round: bool) -> None:
        """``is_by_round``: whether the terms that a config asks for depend on the round."""
        self.odometer = Odometer()
        self.found: dict[tuple[Any, ...], tuple[Terms, int]] = {}
        """Terms and the first line with them, by their number, where it matters rounds, and of a
        sum that was opened how many clients could be in it and are."""
        self._is_by_round, self._number = is_by_round, 0

    def feed(self, entry: Entry) -> None:
        """Take the next entry; errors as `Odometer.feed`."""
        self.odometer.feed(entry)
        self._number += bool(entry.terms)
        paid, terms = entry.reserves, self.odometer.terms
        if paid and terms:
            first, last = (paid.first, paid.last) if self._is_by_round else (0, 0)
            counts = None
            if entry.said.get(OFFERED):
                counts = (int(entry.said[OFFERED]), len(decode(paid.cohort, terms.population)))
            place = (self._number, first, last, counts)
            self.found.setdefault(place, (terms, entry.sequence + 1))


def _unlike(path: Path, config: Experiment, manifest: Values, charged: _Charged) -> list[str]:
    """Refuse charges under other terms than the config's; a doubt where they cannot be compared.

    Raises:
        LedgerDamaged: with the first line that was charged under other terms.
    """
    sizes, last = _sizes(config, manifest, charged.odometer), config.federation.num_rounds
    why = "the manifest does not say how many examples each client has"
    try:
        promise = promise_of(config.setting, sizes) if sizes else None
    except ConfigError as error:
        promise, why = None, str(error)
    if not promise:
        return [f"the ledger's terms were not compared with the config: {why}"]
    for (_, first, end, counts), (terms, line) in charged.found.items():
        for server_round in range(first, min(end, last) + 1):
            meant = promise.tariff.of(server_round)
            if counts is not None and promise.realised is not None:
                meant = promise.realised(server_round, counts)
            if not _alike(_bare(terms), _bare(meant)):
                raise LedgerDamaged(
                    path, line, "was charged under other terms than those of the run's config"
                )
    return []


def _sizes(config: Experiment, manifest: Values, odometer: Odometer) -> Sizes:
    """N_i of every client, all public, from the config, the ledger's terms, or the manifest."""
    runs, declared = manifest.get("num_examples") or (), config.federation.num_examples
    if odometer.terms:
        declared = declared or odometer.terms.num_examples
    if not declared and sum(times for _, times in runs) == config.federation.num_clients:
        declared = tuple(size for size, times in runs for _ in range(times))
    return declared or ()


def _bare(terms: Terms) -> Document:
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


def _check_numbers(folder: RunFolder, manifest: Values, odometer: Odometer) -> None:
    """Refuse a finished run's statement that the ledger contradicts."""
    said, path = manifest["privacy"], folder.manifest_path
    if origins := sorted(odometer.noise_origins):
        _agree(
            path,
            "privacy.noise_origins",
            sorted({*said.get("noise_origins", ())}),
            origins,
            "its ledger",
        )
    for one in said["adversaries"]:
        if one["name"] == "published":
            continue
        with named_by(folder.ledger_path, NoValidBound):
            priced = odometer.epsilon(named(one["name"]), one["delta"])
        if not math.isclose(float(one["epsilon"]), priced, rel_tol=_PRICED):
            raise FolderDamaged(
                path,
                f"against {one['name']} epsilon {priced:.6g}, as its ledger says",
                str(one["epsilon"]),
            )


# -- a run that is gone on with --------------------------------------------------------------------
def read_past(directory: Path, config: Experiment) -> Evidence:
    """Reads the past of the run in ``directory``, which the caller has locked.

    Raises:
        ConfigError: it is no run folder, or the run is finished, of another config, or edited.
        FolderDamaged, LedgerDamaged: a file of it cannot be trusted.
    """
    folder = RunFolder(experiment_in(directory).parent)
    written = {
        "experiment.toml", "manifest.json", "metrics.csv", "ledger.jsonl", "ledger.jsonl.head",
        "checkpoint.safetensors", "model.safetensors", "error.json",
    }  # fmt: skip
    for one in directory.iterdir():
        if one.name in written or is_draft(one):  # no write can replace a folder, a pipe
            check_regular(one, "a regular file", most=1 << 40)
    past, rows = evidence_of(directory, config), folder.metrics().get("round", [])
    saved, ledger = past.checkpoint, past.ledger
    if not past.manifest:
        if rows or saved or (ledger and ledger.head.sequence > 0):
            raise refused(directory, "expected the manifest.json of this run", "none")
        return past
    if "final" in past.manifest:
        raise refused(directory, "expected an unfinished run", "a finished one")
    if not ledger:
        raise refused(directory, "expected the run's ledger.jsonl", "none; restore it")
    _check_saved(folder, past, config.setting, config.server_update.start(initial_point(config)))
    return past


def _check_saved(folder: RunFolder, past: Evidence, setting: Setting, like: State) -> None:
    """Refuse a checkpoint that a run of ``setting``, whose first state is ``like``, never wrote.

    Raises:
        ConfigError, FolderDamaged: as `read_past`.
    """
    if not (saved := past.checkpoint):
        return
    rows, rounds = folder.metrics().get("round", []), setting.federation.num_rounds
    directory, last, covered = folder.directory, saved.server_round, past.odometer.covered
    if setting.training.setup_phases:
        raise ConfigError(
            "output.resume: expected a run without exchanges before round 1, got "
            f"training.kind = {setting.training.kind!r}: its clients would resume without the "
            "results of these exchanges; start a new run"
        )
    if CLIP in saved.tensors and getattr(setting.privacy, "adaptive", None) is not None:
        # a round before this adapted it
        like = {**like, CLIP: torch.zeros((), dtype=torch.float64)}
    checkpoint.check(folder.checkpoint_path, saved, like, setting.federation.num_clients)
    if last > rounds:
        raise refused(directory, f"expected a checkpoint of a round <= {rounds}", f"{last}")
    if setting.privacy.kind != "none" and covered < last:
        found = f"1 to {covered}; restore it"
        raise refused(directory, f"expected rounds 1 to {last} in the ledger", found)
    if (told := saved.meta.tally.told) not in rows:  # it is older than the checkpoint
        found = f"rows up to {int(rows[-1] or 0)}" if rows else "no row"
        raise FolderDamaged(folder.metrics_path, f"the row of round {told}", f"{found}; restore it")


@contextmanager
def own_past(
    directory: Path, setting: Setting, said: Mapping[str, str], like: State
) -> Generator[Evidence | None]:
    """Holds the folder of a fit, made if need be, and yields what it proves; None: it is new.

    Args:
        directory: of a fit, or a new one.
        setting: of the fit that goes on.
        said: a hash of each part of it, which the header of the ledger must hold.
        like: its first state.

    Raises:
        ConfigError: it holds something else, a finished fit, or one of another setting.
        FolderDamaged, LedgerDamaged: a file of it cannot be trusted.
    """
    make_folder(directory)
    with held_or_refused(directory):
        names = {one.name for one in directory.iterdir() if not is_draft(one)}
        past = None
        if not names <= {"ledger.jsonl.head"}:
            past, where = evidence_of(directory), f"resume: {str(directory)!r}: expected"
            known = past.ledger and past.ledger.header.get("fit")
            if not isinstance(known, dict) or "statement.json" in names:
                found = "a finished one" if known else "other files"
                raise ConfigError(f"{where} a new folder or an unfinished fit, got {found}")
            for name in {**said, **known}:
                if said.get(name) != known.get(name):
                    raise ConfigError(
                        f"{where} {name} of the fit there, got another; name a new one"
                    )
            _check_saved(RunFolder(directory), past, setting, like)
        yield past


@contextmanager
def held_or_refused(directory: Path) -> Generator[None]:
    """Locks the folder for this process; refuses one that another process holds.

    Raises:
        ConfigError: there is none, or another process runs in it.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(held(directory))
        except BlockingIOError:
            raise refused(
                directory, "expected a run that no process holds", "one that another process holds"
            ) from None
        except OSError as error:
            raise refused(directory, "expected a run folder", str(error.strerror)) from None
        yield


def to_go_on(words: str) -> str:
    """Returns the command that resumes a run: the one that was used, if it can be known."""
    is_clone = (LIBRARY.parent / "simulation.py").is_file()
    is_script = is_clone and Path(sys.argv[0]).name != "manifed"
    return f"{'python simulation.py' if is_script else 'manifed run'} {words}"
