"""What a run left in its folder, read and judged before it is gone on with.

Reading writes nothing: a refusal leaves every byte of the folder as it was. The order in which a
run writes decides what a crash can leave: experiment.toml, ledger.jsonl, manifest.json, then each
round's charge, row and checkpoint. So a folder without a manifest has released nothing, and one
with a manifest has a ledger.
"""

import os
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from manifed.durable import held, is_draft
from manifed.errors import ConfigError
from manifed.experiment.assembly import initial_point
from manifed.experiment.schema import Experiment
from manifed.federation.rounds import CLIP
from manifed.privacy.ledger import head_file
from manifed.runs import checkpoint
from manifed.runs.evidence import Evidence, evidence_of, experiment_in, refused
from manifed.runs.folder import FolderDamaged, RunFolder, check_regular
from manifed.runs.manifest import LIBRARY


def read_past(directory: Path, config: Experiment) -> Evidence:
    """The past of the run in ``directory``, which the caller holds (`manifed.durable.held`).

    Raises:
        ConfigError: it is no run folder, or the run is finished, of another config, or edited.
        FolderDamaged, LedgerDamaged: a file of it cannot be trusted.
    """
    folder, path = RunFolder(directory), experiment_in(directory)
    named = [
        path, folder.manifest_path, folder.metrics_path, folder.ledger_path,
        head_file(folder.ledger_path),
        folder.checkpoint_path, folder.directory / "model.safetensors", folder.error_path,
    ]  # fmt: skip
    for one in [*named, *filter(is_draft, directory.iterdir())]:
        if os.path.lexists(
            one
        ):  # no write of a run can replace a folder, a pipe, a link to nothing
            check_regular(one, "a regular file", most=1 << 40)
    past, rows = evidence_of(directory, config), folder.metrics().get("round", [])
    saved, ledger, covered = past.checkpoint, past.ledger, past.odometer.covered
    config = past.config
    if not past.manifest:
        if rows or saved or (ledger is not None and ledger.head.sequence > 0):
            raise refused(directory, "expected the manifest.json of what was released", "none")
        return past
    if "final" in past.manifest:
        raise refused(directory, "expected an unfinished run", "a finished one")
    if ledger is None:
        name = folder.ledger_path.name
        raise refused(directory, f"expected the run's {name}", "none; restore it")
    if saved is not None:
        last, rounds = saved.server_round, config.federation.num_rounds
        if config.training.setup_phases:
            raise ConfigError(
                "output.resume: expected a run without exchanges before round 1, got "
                f"training.kind = {config.training.kind!r}, which has some: its clients would go "
                "on without what they learnt there; start a new run"
            )
        like = config.server_update.start(initial_point(config))
        if CLIP in saved.tensors and getattr(config.privacy, "adaptive", None) is not None:
            like[CLIP] = torch.zeros((), dtype=torch.float64)  # a round before this adapted it
        checkpoint.check(folder.checkpoint_path, saved, like, config.federation.num_clients)
        if last > rounds:
            raise refused(directory, f"expected a checkpoint of a round <= {rounds}", f"{last}")
        if config.privacy.kind != "none" and covered < last:
            expected, found = f"expected rounds 1 to {last} in the ledger", f"1 to {covered}"
            raise refused(directory, expected, f"{found}; restore it")
        if (told := saved.meta.tally.told) not in rows:  # it is older than the checkpoint
            found = f"rows up to {int(rows[-1] or 0)}" if rows else "no row"
            expected = f"the row of round {told}"
            raise FolderDamaged(folder.metrics_path, expected, f"{found}; restore it")
    return past


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
