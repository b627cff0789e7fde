"""What a run left in its folder, read and judged before it is gone on with.

Reading writes nothing: a refusal leaves every byte of the folder as it was. The order in which a
run writes decides what a crash can leave: experiment.toml, ledger.jsonl, manifest.json, then each
round's charge, row and checkpoint. So a folder without a manifest has released nothing, and one
with a manifest has a ledger.
"""

import hashlib
import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from manifed.durable import held, is_draft
from manifed.errors import ConfigError
from manifed.experiment.assembly import initial_point, plan_of
from manifed.experiment.load import sha256
from manifed.experiment.schema import Experiment
from manifed.privacy.account import anchors_of, ledger_key
from manifed.privacy.ledger import RESTORE, Ledger, LedgerDamaged, head_file, torn_file
from manifed.privacy.odometer import Odometer
from manifed.runs import checkpoint
from manifed.runs.checkpoint import Checkpoint
from manifed.runs.manifest import FORMAT
from manifed.runs.reading import FolderDamaged, check_regular, is_there
from manifed.runs.run_folder import RunFolder
from manifed.runs.tally import Tally


@dataclass(frozen=True)
class Past:
    """An unfinished run, whole and of this config."""

    has_begun: bool
    """Whether its manifest is there; before that nothing was released."""
    has_ledger: bool
    covered: int
    """Rounds 1..covered are in its ledger."""
    checkpoint: Checkpoint | None

    @property
    def last_round(self) -> int:
        """The round after which the run goes on; 0 before the first checkpoint."""
        return self.checkpoint.server_round if self.checkpoint else 0


def read_past(directory: Path, config: Experiment) -> Past:
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
    _check_manifest(folder, manifest, config)
    if not folder.ledger_path.is_file():
        name = folder.ledger_path.name
        raise refused(directory, f"expected the run's {name}", "none; restore it")
    saved = checkpoint.load(folder.checkpoint_path) if folder.checkpoint_path.is_file() else None
    run_id = manifest.get("ledger_run_id")
    if saved is not None:
        checkpoint.check(
            folder.checkpoint_path, saved, _state_of(config), config.federation.num_clients
        )
        _check_checkpoint(directory, config, saved, run_id)
    covered = _ledger_past(folder, config, run_id, saved).covered
    if config.privacy.kind != "none" and saved is not None and covered < saved.server_round:
        raise refused(
            directory,
            f"expected rounds 1 to {saved.server_round} in the ledger",
            f"1 to {covered}; restore it",
        )
    if saved is not None:
        _check_rows(folder, metrics.get("round", []), Tally.of(saved).told)
    return Past(has_begun=True, has_ledger=True, covered=covered, checkpoint=saved)


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
    return ConfigError(f"--resume {str(directory)!r}: {expected}, got {found}")


def experiment_digest(content: bytes) -> str:
    """What the manifest remembers of experiment.toml."""
    return hashlib.sha256(content).hexdigest()


def _before_the_manifest(folder: RunFolder, config: Experiment) -> Past:
    """A run that ended before it released anything: it can be started again in its place."""
    for path in (folder.metrics_path, folder.checkpoint_path):
        if path.exists():
            raise refused(folder.directory, "expected manifest.json beside it", path.name)
    has_ledger = folder.ledger_path.is_file()
    if has_ledger and _ledger_past(folder, config, None, None).entries > 1:
        raise refused(folder.directory, "expected manifest.json", "a ledger with entries but none")
    return Past(has_begun=False, has_ledger=has_ledger, covered=0, checkpoint=None)


def _check_manifest(folder: RunFolder, manifest: Mapping[str, Any], config: Experiment) -> None:
    directory, found = folder.directory, manifest.get("format", 1)
    if "final" in manifest:
        raise refused(directory, "expected an unfinished run", "a finished one")
    if found != FORMAT:
        raise refused(
            directory, f"expected a run folder of format {FORMAT}",
            f"format {found}; reports and audits read it, but start a new run",
        )  # fmt: skip
    if manifest.get("config_sha256") != sha256(config):
        raise refused(
            directory, f"expected the config of the run ({manifest.get('config_sha256')})",
            f"{sha256(config)}; resume with the same settings",
        )  # fmt: skip
    if experiment_digest(folder.experiment_path.read_bytes()) != manifest.get("experiment_sha256"):
        raise refused(
            directory, "expected experiment.toml as the run wrote it", "an edited one; restore it"
        )


def _check_checkpoint(
    directory: Path, config: Experiment, saved: Checkpoint, run_id: str | None
) -> None:
    theirs, run = saved.meta.get("config_sha256"), saved.meta.get("ledger_run_id")
    if theirs != sha256(config):
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
        folder.checkpoint_path, folder.directory / "model.safetensors",
    ]  # fmt: skip
    for path in [*named, *filter(is_draft, folder.directory.iterdir())]:
        if is_there(path):
            check_regular(path, "a regular file", most=1 << 40)


def _state_of(config: Experiment) -> Mapping[str, Tensor]:
    """The tensors of a state of the run, for their names, types and shapes."""
    plan = plan_of(config)
    return plan.server_update.initial(initial_point(config)).tensors


def _check_rows(folder: RunFolder, rounds: Sequence[float | None], told: int) -> None:
    """Every row up to the checkpoint's newest was on disk before the checkpoint."""
    if told not in rounds:
        found = f"rows up to {int(rounds[-1] or 0)}" if rounds else "no row"
        raise FolderDamaged(folder.metrics_path, f"the row of round {told}", f"{found}; restore it")


@dataclass(frozen=True)
class _Ledger:
    covered: int
    entries: int


def _ledger_past(
    folder: RunFolder, config: Experiment, run_id: str | None, saved: Checkpoint | None
) -> _Ledger:
    """How far the ledger goes, verified without a write, with every head known to belong to it."""
    path, directory = folder.ledger_path, folder.directory
    named = _header(path)
    theirs, run = named.get("config_sha256"), named.get("run_id")
    if theirs != sha256(config):
        raise refused(directory, "expected a ledger of this config", f"one of {theirs}")
    if run_id is not None and run != run_id:
        raise refused(directory, f"expected the ledger of run {run_id}", f"that of {run}")
    heads = [config.output.ledger_head, saved.meta.get("ledger_head") if saved else None]
    anchors = anchors_of(head for head in heads if head is not None)
    odometer = Odometer()
    found = Ledger.verify(path, key=ledger_key(), anchors=anchors, feed=odometer.feed)
    if found.authenticity == "not checked":
        raise refused(directory, f"expected the ledger's key {found.key_id}", "no key was given")
    return _Ledger(odometer.covered, found.head.sequence + 1)


def _header(path: Path) -> Mapping[str, Any]:
    """What the first line says, for a clearer refusal than a broken chain; verified later."""
    with path.open("rb") as file:
        first = file.readline()
    try:
        body = json.loads(first)["body"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise LedgerDamaged(path, 1, "was changed", RESTORE) from None
    return body if isinstance(body, dict) else {}
