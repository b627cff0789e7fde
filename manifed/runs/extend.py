"""More rounds for a run: one entry of its ledger, priced and judged before it is written.

``federation.num_rounds`` changes and nothing else. The noise of past rounds stays, and so does that
of the rounds to come: where a target was calibrated, the multiplier that was used is kept and
recorded. What the whole costs, past and future, is priced anew, and refused beyond the budget.

The entry is all that is written; `manifed.runs.resume.in_force` reads it, so a crash right after it
loses nothing. The config in force has another hash: whoever pinned the old one has to allow it.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manifed.algorithms.interface import setup_phases_of
from manifed.errors import ConfigError
from manifed.experiment.assembly import facts_of
from manifed.experiment.load import sha256
from manifed.experiment.privacy import kept_multiplier, promise_of
from manifed.experiment.schema import Experiment
from manifed.privacy.account import Account, ledger_key
from manifed.privacy.charges import AMENDED, Amendment
from manifed.privacy.filter import Made, a_priori
from manifed.privacy.odometer import Odometer
from manifed.privacy.statement import Promise
from manifed.runs.in_force import amended, refused, saved_config
from manifed.runs.places import real
from manifed.runs.resume import Past, held_or_refused, read_past, to_go_on
from manifed.runs.run_folder import RunFolder


@dataclass(frozen=True)
class Extended:
    """What an extension did, for who has to say it to others."""

    directory: Path
    amendment: Amendment | None
    """None: the run has these rounds already, and nothing was written."""
    num_rounds: int
    last_round: int
    """The run goes on after it."""
    label: str
    """Of the run so far: the word before every epsilon."""
    epsilons: dict[str, tuple[float, float]]
    """Of each adversary: what the run was planned to cost, and what the whole costs now."""
    delta: float | None
    ledger_head: str | None = None
    is_finished: bool = False

    def text(self) -> str:
        """What a person has to know and do."""
        go_on = to_go_on(f"--resume {shlex.quote(str(self.directory))}")
        if self.amendment is None:
            left = "it is finished" if self.is_finished else f"go on: {go_on}"
            return f"nothing to do: the run has {self.num_rounds} rounds already; {left}"
        rows = [
            f"privacy: {self.label}",
            f"rounds: {self.amendment.num_rounds[0]} -> {self.num_rounds}",
        ]
        rows += [
            f"{name}: epsilon {was:.6g} -> {now:.6g} at delta {self.delta:g}, whoever is drawn"
            for name, (was, now) in self.epsilons.items()
        ]
        if self.amendment.noise_multiplier is not None:
            rows.append(f"noise multiplier: {self.amendment.noise_multiplier:.6g}, kept")
        return "\n".join([
            *rows,
            f"ledger head: {self.ledger_head}",
            f"config: {self.amendment.config_sha256} (was {self.amendment.amends})",
            "nodes and sites that are pinned to the old config have to allow the new one first",
            f"go on after round {self.last_round}: {go_on}",
        ])  # fmt: skip

    def data(self) -> dict[str, Any]:
        """The same as data."""
        return {
            "label": self.label,
            "directory": str(self.directory),
            "amendment": self.amendment and self.amendment.model_dump(mode="json"),
            "num_rounds": self.num_rounds,
            "last_round": self.last_round,
            "epsilons": {name: list(both) for name, both in self.epsilons.items()},
            "delta": self.delta,
            "ledger_head": self.ledger_head,
        }


def extend(directory: Path, num_rounds: int) -> Extended:
    """Give the run in ``directory`` more rounds.

    Raises:
        ConfigError: it cannot have so many, costs more than its budget, or is running.
        CheckpointError, LedgerDamaged, FolderDamaged: the folder cannot be trusted.
    """
    directory = real("RUN_DIR", directory)
    try:
        with held_or_refused(directory):
            return _extended(directory, num_rounds)
    except ConfigError as error:
        raise ConfigError(str(error).replace("--resume ", "extend ", 1)) from None


def _extended(directory: Path, num_rounds: int) -> Extended:
    folder = RunFolder(directory)
    config = saved_config(directory)
    past, before = read_past(directory, config, may_be_finished=True), config.federation.num_rounds
    label = past.label
    sizes = past.declared or facts_of(config).sizes
    if num_rounds == before:
        none = dict[str, tuple[float, float]]()
        return Extended(
            directory,
            None,
            before,
            past.last_round,
            label,
            none,
            None,
            is_finished=past.is_finished,
        )
    _check(directory, config, past, num_rounds)
    if config.privacy.kind == "correlated" and config.privacy.target is not None:
        raise ConfigError(
            "privacy.target: more rounds would find other masks; give the noise_stddev and "
            "mask_stddev of a run that is to be extended"
        )
    kept = kept_multiplier(config, sizes)
    longer = amended(config, num_rounds, kept)
    old, promise = promise_of(config, sizes), promise_of(longer, sizes)
    amendment = Amendment(
        amends=sha256(config),
        config_sha256=sha256(longer),
        num_rounds=(before, num_rounds),
        planned_draws=promise.terms.planned_draws,
        noise_multiplier=kept,
    )
    _check_price(promise, past.odometer, past.last_round, num_rounds)
    account = Account.recover(
        folder.ledger_path, old.terms, resumed_at=past.last_round + 1, key=ledger_key()
    )
    with account.ledger as ledger:
        # a line that a crash tore was paid for just now
        _check_price(promise, account.odometer, past.last_round, num_rounds)
        account.odometer.amend(amendment)
        ledger.append(AMENDED, amendment.model_dump(mode="json"))
        head = str(ledger.head)
    was = _stated(old, past.odometer, past.last_round, before)
    now = _stated(promise, past.odometer, past.last_round, num_rounds)
    epsilons = {name: (was[name], now[name]) for name in was}
    return Extended(
        directory, amendment, num_rounds, past.last_round, label, epsilons, promise.delta, head
    )


def _check(directory: Path, config: Experiment, past: Past, num_rounds: int) -> None:
    """Refuse fewer rounds, and a run that could not go on."""
    before = config.federation.num_rounds
    if num_rounds < before:
        raise refused(directory, f"expected --rounds above {before}, which it has", f"{num_rounds}")
    if not past.has_begun or past.checkpoint is None:
        raise refused(
            directory, "expected a run with a checkpoint", "none; start it anew with more rounds"
        )
    if setup_phases_of(config.training):
        raise refused(
            directory,
            "expected an algorithm without exchanges before round 1",
            f"{config.training.kind!r}, whose clients would go on without what they learnt there; "
            "start a new run",
        )


def _check_price(promise: Promise, odometer: Odometer, last_round: int, num_rounds: int) -> None:
    """Refuse rounds that the budget does not pay on top of all that is charged already.

    Raises:
        ConfigError: with what they would cost, and how many rounds are possible.
    """
    promise.check_ledger(odometer)
    budget, low, high = promise.filter.budget, last_round, num_rounds

    def is_paid(rounds: int) -> bool:
        return promise.filter.pays(_draws(promise, odometer, last_round, rounds))

    if budget is None or is_paid(num_rounds):
        return
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_paid(middle) else (low, middle)
    cost = promise.filter.cost(budget, _draws(promise, odometer, last_round, num_rounds))
    raise ConfigError(
        f"extend: {num_rounds} rounds would cost epsilon {cost:.4g} against the "
        f"{budget.adversary.name} adversary with the {odometer.rounds_counted} cohort draws that "
        f"are charged already, the budget ({budget.field}) is {budget.epsilon:g}; at most {low} "
        "rounds are possible, and nothing was written"
    )


def _draws(promise: Promise, odometer: Odometer, last_round: int, rounds: int) -> Made:
    """All draws of a run that goes on after ``last_round``: those charged, and one a round to come.

    What was charged counts as often as it was; a round that is redone counts again.
    """
    made = promise.filter.made(odometer)
    if isinstance(made, int):
        return made + max(0, rounds - last_round)
    length = max(len(made), rounds)
    before = (*made, *[0] * (length - len(made)))
    return tuple(n + (last_round <= i < rounds) for i, n in enumerate(before))


def _stated(promise: Promise, odometer: Odometer, last_round: int, rounds: int) -> dict[str, float]:
    """Epsilon of the whole run against each adversary; all planned draws against who sees none."""
    found = dict[str, float]()
    for adversary in promise.adversaries if promise.delta is not None else ():
        draws = _draws(promise, odometer, last_round, rounds)
        if isinstance(draws, int) and not adversary.sees_cohorts:
            draws = max(draws, promise.terms.planned_draws)
        assert promise.delta is not None
        found[adversary.name] = a_priori(promise.filter.draw, adversary, draws, promise.delta)
    return found
