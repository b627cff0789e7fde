"""What a run left in its folder, read and judged before it is gone on with.

Reading writes nothing: a refusal leaves every byte of the folder as it was. The order in which a
run writes decides what a crash can leave: experiment.toml, ledger.jsonl, manifest.json, then each
round's charge, row and checkpoint. So a folder without a manifest has released nothing, and one
with a manifest has a ledger.

More rounds (runs/extend.py) are one entry of the ledger and nothing else: the config in force is
experiment.toml, which stays as it was, with the ledger's amendments (`in_force`).
"""

import json
import shlex
import sys
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from manifed.durable import held, is_draft
from manifed.errors import ConfigError, one_line
from manifed.experiment.assembly import initial_point
from manifed.experiment.load import dump, load, parse, sha256
from manifed.experiment.schema import Experiment
from manifed.federation.rounds import CLIP
from manifed.privacy.account import anchors_of, ledger_key
from manifed.privacy.charges import AMENDED, Amendment
from manifed.privacy.ledger import RESTORE, Ledger, LedgerDamaged, head_file, torn_file
from manifed.privacy.odometer import Odometer
from manifed.runs import checkpoint
from manifed.runs.checkpoint import Checkpoint
from manifed.runs.manifest import FORMAT, LIBRARY
from manifed.runs.reading import FolderDamaged, check_regular, is_there
from manifed.runs.run_folder import RunFolder
from manifed.runs.tally import Tally

_AMENDS: Final = f'"kind":"{AMENDED}"'.encode()
"""What the line of an amendment holds."""


@dataclass(frozen=True)
class Past:
    """A run, whole and of this config."""

    has_begun: bool
    """Whether its manifest is there; before that nothing was released."""
    has_ledger: bool
    odometer: Odometer
    """It took all of the ledger."""
    checkpoint: Checkpoint | None
    is_finished: bool = False
    is_amended: bool = False
    """Whether its manifest was written before the newest amendment."""

    @property
    def covered(self) -> int:
        """Rounds 1..covered are in its ledger."""
        return self.odometer.covered

    @property
    def declared(self) -> tuple[int, ...]:
        """N_i that the sites declared and the ledger was charged for."""
        return () if self.odometer.terms is None else self.odometer.terms.num_examples

    @property
    def last_round(self) -> int:
        """The round after which the run goes on; 0 before the first checkpoint."""
        return self.checkpoint.server_round if self.checkpoint else 0


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


def saved_config(directory: Path) -> Experiment:
    """The config in force of the run in a folder.

    Raises:
        ConfigError: with the file; LedgerDamaged: as `in_force`.
    """
    path = RunFolder(directory).experiment_path
    if not path.is_file():
        raise refused(directory, "expected a run folder", "no experiment.toml in it")
    try:
        return in_force(load(path), directory)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def read_past(directory: Path, config: Experiment, *, may_be_finished: bool = False) -> Past:
    """The past of the run in ``directory``, which the caller holds (`manifed.durable.held`).

    Raises:
        ConfigError: it is no run folder, or the run is finished, of another config, or edited.
        CheckpointError, LedgerDamaged: its checkpoint or ledger cannot be trusted.
    """
    folder = RunFolder(directory)
    if not folder.experiment_path.is_file():
        raise refused(directory, "expected a run folder", "no experiment.toml in it")
    _check_kinds(folder)
    if not folder.manifest_path.is_file():
        return _before_the_manifest(folder, config)
    manifest, metrics = folder.manifest(), folder.metrics()
    earlier = _configs(folder.ledger_path)[:-1]
    is_amended = manifest.get("config_sha256") in earlier
    is_finished = "final" in manifest and not is_amended
    if is_finished and not may_be_finished:
        raise refused(
            directory, "expected an unfinished run",
            "a finished one; it goes on after: manifed extend "
            f"{shlex.quote(str(directory))} --rounds N",
        )  # fmt: skip
    _check_manifest(folder, manifest, config, is_amended=is_amended)
    if not folder.ledger_path.is_file():
        name = folder.ledger_path.name
        raise refused(directory, f"expected the run's {name}", "none; restore it")
    saved = checkpoint.load(folder.checkpoint_path) if folder.checkpoint_path.is_file() else None
    run_id = manifest.get("ledger_run_id")
    if saved is not None:
        like = _state_of(config, saved.tensors)
        checkpoint.check(folder.checkpoint_path, saved, like, config.federation.num_clients)
        _check_checkpoint(directory, config, saved, run_id, earlier)
    odometer = _ledger_past(folder, config, run_id, saved).odometer
    covered = odometer.covered
    if config.privacy.kind != "none" and saved is not None and covered < saved.server_round:
        raise refused(
            directory,
            f"expected rounds 1 to {saved.server_round} in the ledger",
            f"1 to {covered}; restore it",
        )
    if saved is not None:
        _check_rows(folder, metrics.get("round", []), Tally.of(saved).told)
    return Past(
        has_begun=True,
        has_ledger=True,
        odometer=odometer,
        checkpoint=saved,
        is_finished=is_finished,
        is_amended=is_amended,
    )


@contextmanager
def held_or_refused(directory: Path) -> Generator[None, None, None]:
    """Hold the folder for this process.

    Raises:
        ConfigError: there is none, or another process runs in it.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(held(directory))
        except BlockingIOError:
            raise refused(
                directory, "expected a run that nobody runs", "one that another process holds"
            ) from None
        except OSError as error:
            raise refused(directory, "expected a run folder", str(error.strerror)) from None
        yield


def refused(directory: Path, expected: str, found: str) -> ConfigError:
    """The one line that says why a run is not gone on with."""
    return ConfigError(f"run folder {str(directory)!r}: {expected}, got {found}")


def to_go_on(words: str) -> str:
    """The command that goes on with a run: the one that was used, where that can be known."""
    is_clone = (LIBRARY.parent / "simulation.py").is_file()
    is_installed = Path(sys.argv[0]).name == "manifed" or not is_clone
    return f"{'manifed run' if is_installed else 'python simulation.py'} {words}"


def _before_the_manifest(folder: RunFolder, config: Experiment) -> Past:
    """A run that ended before it released anything: it can be started again in its place."""
    for path in (folder.metrics_path, folder.checkpoint_path):
        if path.exists():
            raise refused(folder.directory, "expected manifest.json beside it", path.name)
    has_ledger = folder.ledger_path.is_file()
    if has_ledger and _ledger_past(folder, config, None, None).entries > 1:
        raise refused(folder.directory, "expected manifest.json", "a ledger with entries but none")
    return Past(has_begun=False, has_ledger=has_ledger, odometer=Odometer(), checkpoint=None)


def _check_manifest(
    folder: RunFolder, manifest: Mapping[str, Any], config: Experiment, *, is_amended: bool
) -> None:
    directory, found = folder.directory, manifest.get("format", 1)
    if found != FORMAT:
        raise refused(
            directory, f"expected a run folder of format {FORMAT}",
            f"format {found}; reports and audits read it, but start a new run",
        )  # fmt: skip
    if not is_amended and manifest.get("config_sha256") != sha256(config):
        raise refused(
            directory, f"expected the config of the run ({manifest.get('config_sha256')})",
            f"{sha256(config)}; resume with the same settings",
        )  # fmt: skip
    folder.check_unedited(manifest.get("experiment_sha256"))


def _check_checkpoint(
    directory: Path,
    config: Experiment,
    saved: Checkpoint,
    run_id: str | None,
    earlier: Collection[str],
) -> None:
    theirs, run = saved.meta.get("config_sha256"), saved.meta.get("ledger_run_id")
    if theirs not in (sha256(config), *earlier):
        raise refused(directory, "expected a checkpoint of this config", f"one of {theirs}")
    if run != run_id:
        raise refused(directory, f"expected a checkpoint of run {run_id}", f"one of run {run}")
    rounds = config.federation.num_rounds
    if saved.server_round > rounds:
        raise refused(
            directory, f"expected a checkpoint of a round <= {rounds}", f"{saved.server_round}"
        )


def _check_kinds(folder: RunFolder) -> None:
    """Refuse what no write of a run can replace or remove: a folder, a pipe, a link to nothing."""
    named = [
        folder.experiment_path, folder.manifest_path, folder.metrics_path, folder.ledger_path,
        head_file(folder.ledger_path), torn_file(folder.ledger_path),
        folder.checkpoint_path, folder.directory / "model.safetensors", folder.error_path,
    ]  # fmt: skip
    for path in [*named, *filter(is_draft, folder.directory.iterdir())]:
        if is_there(path):
            check_regular(path, "a regular file", most=1 << 40)


def _state_of(config: Experiment, saved: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The tensors of a state of the run, for their names, types and shapes."""
    tensors = dict(config.server_update.initial(initial_point(config)).tensors)
    privacy = config.privacy
    if CLIP in saved and privacy.kind == "client-level" and privacy.adaptive is not None:
        tensors[CLIP] = torch.zeros((), dtype=torch.float64)  # a round before this one adapted it
    return tensors


def _check_rows(folder: RunFolder, rounds: Sequence[float | None], told: int) -> None:
    """Every row up to the checkpoint's newest was on disk before the checkpoint."""
    if told not in rounds:
        found = f"rows up to {int(rounds[-1] or 0)}" if rounds else "no row"
        raise FolderDamaged(folder.metrics_path, f"the row of round {told}", f"{found}; restore it")


@dataclass(frozen=True)
class _Ledger:
    odometer: Odometer
    entries: int


def _ledger_past(
    folder: RunFolder, config: Experiment, run_id: str | None, saved: Checkpoint | None
) -> _Ledger:
    """How far the ledger goes, verified without a write, with every head known to belong to it."""
    path, directory = folder.ledger_path, folder.directory
    run = _header(path).get("run_id")
    if (theirs := _configs(path)[-1]) != sha256(config):
        raise refused(directory, "expected a ledger of this config", f"one of {theirs}")
    if run_id is not None and run != run_id:
        raise refused(directory, f"expected the ledger of run {run_id}", f"that of {run}")
    heads = [config.output.ledger_head, saved.meta.get("ledger_head") if saved else None]
    anchors = anchors_of(head for head in heads if head is not None)
    odometer = Odometer()
    found = Ledger.verify(path, key=ledger_key(), anchors=anchors, feed=odometer.feed)
    if found.authenticity == "not checked":
        raise refused(directory, f"expected the ledger's key {found.key_id}", "no key was given")
    return _Ledger(odometer, found.head.sequence + 1)


def _header(path: Path) -> Mapping[str, Any]:
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


def _configs(path: Path) -> list[str]:
    """The hashes of the configs that were in force, that of now last; verified later."""
    if not path.is_file():
        return []
    named = [_header(path), *(body for _, body in _amendments(path))]
    return [str(body.get("config_sha256")) for body in named]
