"""What a run left in its folder, read and judged before it is gone on with.

Reading writes nothing: a refusal leaves every byte of the folder as it was. The order in which a
run writes decides what a crash can leave: experiment.toml, ledger.jsonl, manifest.json, then each
round's charge, row and checkpoint. So a folder without a manifest has released nothing, and one
with a manifest has a ledger.

More rounds (runs/extend.py) are one entry of the ledger and nothing else: the config in force is
experiment.toml, which stays as it was, with the ledger's amendments (runs/in_force.py).
"""

import shlex
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manifed.durable import held, is_draft
from manifed.experiment.assembly import initial_point
from manifed.experiment.load import sha256
from manifed.experiment.schema import Experiment
from manifed.federation.rounds import CLIP
from manifed.privacy.label import PLANNED
from manifed.privacy.ledger import head_file, torn_file
from manifed.privacy.odometer import Odometer
from manifed.runs import checkpoint
from manifed.runs.checkpoint import Checkpoint
from manifed.runs.evidence import Evidence, judged
from manifed.runs.in_force import configs_of, refused
from manifed.runs.manifest import FORMAT, LIBRARY
from manifed.runs.reading import FolderDamaged, check_regular, is_there
from manifed.runs.run_folder import RunFolder
from manifed.runs.tally import Tally


@dataclass(frozen=True)
class Past:
    """A run, whole and of this config."""

    has_begun: bool
    """Whether its manifest is there; before that nothing was released."""
    has_ledger: bool
    odometer: Odometer
    """It took all of the ledger."""
    checkpoint: Checkpoint | None
    label: str = PLANNED
    """Whether the noise so far protects anybody."""
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
    earlier = configs_of(folder.ledger_path)[:-1]
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
    evidence = _evidence(folder, config, manifest)
    saved, odometer, rounds = evidence.checkpoint, evidence.odometer, config.federation.num_rounds
    if saved is not None:
        like = _state_of(config, saved.tensors)
        checkpoint.check(folder.checkpoint_path, saved, like, config.federation.num_clients)
        if saved.server_round > rounds:
            found = f"{saved.server_round}"
            raise refused(directory, f"expected a checkpoint of a round <= {rounds}", found)
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
        label=evidence.label,
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
    ledger = _evidence(folder, config, {}).ledger
    if ledger is not None and ledger.head.sequence > 0:
        raise refused(folder.directory, "expected manifest.json", "a ledger with entries but none")
    return Past(has_begun=False, has_ledger=has_ledger, odometer=Odometer(), checkpoint=None)


def _evidence(folder: RunFolder, config: Experiment, manifest: Mapping[str, Any]) -> Evidence:
    """What the folder proves; it must be of this config, and keyed by the key that is given."""
    kept = config.output.ledger_head
    found = judged(folder, config, manifest, heads=() if kept is None else (kept,))
    if not found.is_of_config:
        theirs = configs_of(folder.ledger_path)[-1]
        raise refused(folder.directory, "expected a ledger of this config", f"one of {theirs}")
    if found.ledger is not None and found.ledger.authenticity == "not checked":
        key = found.ledger.key_id
        raise refused(folder.directory, f"expected the ledger's key {key}", "no key was given")
    return found


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
