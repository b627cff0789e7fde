"""What a run left in its folder, read and judged before it is gone on with.

Reading writes nothing: a refusal leaves every byte of the folder as it was. The order in which a
run writes decides what a crash can leave: experiment.toml, ledger.jsonl, manifest.json, then each
round's charge, row and checkpoint. So a folder without a manifest has released nothing, and one
with a manifest has a ledger.

More rounds are one entry of the ledger and nothing else, and so a crash right after the entry loses
nothing (`manifed.runs.evidence`).
"""

import os
import shlex
import sys
from bisect import bisect_left
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from pathlib import Path

import torch

from manifed.durable import held, is_draft
from manifed.errors import ConfigError
from manifed.experiment.assembly import facts_of, initial_point
from manifed.experiment.schema import Experiment, sha256
from manifed.federation.rounds import CLIP
from manifed.plan import kept_multiplier, promise_of
from manifed.privacy.account import opened
from manifed.privacy.ledger import Amendment, Entry, head_file
from manifed.privacy.odometer import Odometer
from manifed.privacy.statement import Promise
from manifed.privacy.tariff import Made
from manifed.runs import checkpoint
from manifed.runs.evidence import (
    Evidence,
    amended,
    evidence_of,
    experiment_in,
    refused,
    saved_config,
)
from manifed.runs.folder import FolderDamaged, RunFolder, check_regular
from manifed.runs.manifest import LIBRARY
from manifed.runs.places import real


def read_past(directory: Path, config: Experiment, *, may_be_finished: bool = False) -> Evidence:
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
    if "final" in past.manifest and not past.is_amended and not may_be_finished:
        raise refused(
            directory, "expected an unfinished run",
            "a finished one; it goes on after: manifed run --resume "
            f"{shlex.quote(str(directory))} --rounds N",
        )  # fmt: skip
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


# -- more rounds -----------------------------------------------------------------------------------
def extend(directory: Path, num_rounds: int) -> str:
    """Give the run in a folder ``num_rounds`` rounds in all; what a person has to know of it.

    The noise of past rounds and of those to come stays: where a target was calibrated, the
    multiplier that was used is kept and recorded. The whole, past and future, is priced anew.

    Raises:
        ConfigError: fewer rounds, a run that cannot go on, or rounds that the budget does not pay.
        LedgerDamaged, FolderDamaged: the folder cannot be trusted.
    """
    directory = real("--resume", directory)
    with held_or_refused(directory):
        past = read_past(directory, saved_config(directory), may_be_finished=True)
        config = past.config
        before, path = config.federation.num_rounds, RunFolder(directory).ledger_path
        if num_rounds == before:
            return "nothing to do: the run has these rounds already"
        if num_rounds < before:
            expected = f"expected --rounds above {before}, which it has"
            raise refused(directory, expected, f"{num_rounds}")
        if past.checkpoint is None:
            remedy = "none; start it anew with more rounds"
            raise refused(directory, "expected a run with a checkpoint", remedy)
        if config.privacy.kind == "correlated" and config.privacy.target is not None:
            raise ConfigError(
                "privacy.target: more rounds would find other masks; give the noise_stddev and "
                "mask_stddev of a run that is to be extended"
            )
        sizes = past.declared or facts_of(config).sizes
        kept = kept_multiplier(config.setting, sizes)
        longer = amended(config, num_rounds, kept)
        old, promise = promise_of(config.setting, sizes), promise_of(longer.setting, sizes)
        amendment = Amendment(
            amends=sha256(config),
            config_sha256=sha256(longer),
            num_rounds=(before, num_rounds),
            planned_draws=promise.terms.planned_draws,
            noise_multiplier=kept,
        )
        last = past.last_round
        _check_price(promise, past.odometer, last, num_rounds)
        with opened(path, old, last_round=before, header={}, resumed_at=last + 1) as account:
            # a line that a crash tore was paid for just now
            _check_price(promise, account.odometer, last, num_rounds)
            account.write(Entry(amends=amendment))
            head = account.ledger.head
    told = [f"privacy: {past.label}", f"rounds: {before} -> {num_rounds}"]
    for one in promise.adversaries:
        assert promise.delta is not None
        draws = _draws(promise, past.odometer, last, num_rounds)
        if not (promise.tariff.is_by_round or one.sees_cohorts):
            draws = (max(*draws, promise.terms.planned_draws),)
        epsilon = promise.tariff.ahead(one, draws, promise.delta)
        told.append(f"{one.name}: epsilon {epsilon:.6g} at delta {promise.delta:g} for the whole")
    told += [] if kept is None else [f"noise multiplier: {kept:.6g}, kept"]
    told += [
        f"ledger head: {head}",
        f"config: {amendment.config_sha256} (was {amendment.amends})",
        "nodes and sites that are pinned to the old config have to allow the new one first",
    ]
    return "\n".join(told)


def _check_price(promise: Promise, odometer: Odometer, last_round: int, num_rounds: int) -> None:
    """Refuse rounds that the budget does not pay on top of all that is charged already."""
    budget = promise.budget

    def is_dear(rounds: int) -> bool:
        return not promise.pays(_draws(promise, odometer, last_round, rounds))

    if budget is None or not is_dear(num_rounds):
        return
    cost = promise.cost(budget, _draws(promise, odometer, last_round, num_rounds))
    most = bisect_left(range(num_rounds), x=True, lo=last_round, key=lambda r: is_dear(r + 1))
    raise ConfigError(
        f"--rounds: {num_rounds} rounds would cost epsilon {cost:.4g} against the "
        f"{budget.adversary.name} adversary with the {odometer.rounds_counted} cohort draws that "
        f"are charged already, the budget ({budget.field}) is {budget.epsilon:g}; at most {most} "
        "rounds are possible, and nothing was written"
    )


def _draws(promise: Promise, odometer: Odometer, last_round: int, rounds: int) -> Made:
    """All draws of a run that goes on after ``last_round``: those charged, and one a round to come.

    What was charged counts as often as it was; a round that is redone counts again.
    """
    to_come = [(last_round + 1, rounds, 1)] if rounds > last_round else []
    both = zip_longest(promise.made(odometer), promise.tariff.counted(to_come), fillvalue=0)
    return tuple(map(sum, both))
