"""A search that is paid for: the best of a random number of runs, and nothing else, is published.

    OUT/search.jsonl        its ledger: what was asked and drawn, which runs began, ended and won
    OUT/trials/1, 2, ...    a run folder each
    OUT/published/          model.safetensors, experiment.toml and statement.json of the best

The number K and a setting for each run are drawn once, from the operating system in a release, and
stand in the first line of the ledger before any run begins; the law of K and the list of settings
are public. The order of scores is public too, and equal scores are parted by the model's digest, so
that what wins is a function of what the runs put out alone.

Guarantees: the same command goes on with the same draw. A run that ended is never made again; one
whose folder was changed or is gone afterwards is refused. One that began and whose own ledger is
not there is charged whole and made again. Nothing is published before all K runs ended and the
price stands in the ledger. K is in nothing that is published.

Not guaranteed: whoever removes all of OUT can draw again, and this machine cannot tell; a site's
own ledger counts every run.
"""

import hashlib
import json
import math
import secrets
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from manifed.durable import make_folder, write_atomically
from manifed.errors import ConfigError, RoundFailed
from manifed.experiment.load import sha256
from manifed.experiment.schema import Experiment
from manifed.experiment.search_price import (
    check_searched,
    delta_of,
    source_of,
    to_public,
    to_server,
)
from manifed.privacy.account import ledger_key
from manifed.privacy.ledger import Head, Ledger
from manifed.privacy.odometer import NOTE, Odometer
from manifed.privacy.tuning import Search
from manifed.runs.pool import check_folder, run_all
from manifed.runs.reading import json_object
from manifed.runs.resume import refused
from manifed.runs.run_folder import RunFolder, encode
from manifed.runs.statement import verdict
from manifed.runs.sweep import Trial, label_of, trials_of

SCORES: Final = ("held_out_loss", "held_out_accuracy")
_BITS: Final = 53


@dataclass(frozen=True)
class Numbered(Trial):
    """One run of a search."""

    number: int

    @property
    def folder(self) -> RunFolder:
        """Where it is."""
        return RunFolder(self.directory)

    @property
    def has_ledger(self) -> bool:
        """Whether it has charged anything."""
        return self.folder.ledger_path.is_file()


OnEnd = Callable[[Numbered, str | None], None]
Play = Callable[[Sequence[Numbered], int, OnEnd, Callable[[Numbered], None]], object]
"""Runs what is not finished; hears of each before it starts and after it ended (`pool.run_all`)."""


@dataclass(frozen=True)
class Sought:
    """A search that was asked for and checked."""

    settings: tuple[Trial, ...]
    """The public list."""
    law: Search
    measure: str
    out: Path

    @property
    def config(self) -> Experiment:
        """Of the first setting; all release alike."""
        return self.settings[0].config

    @property
    def question(self) -> dict[str, Any]:
        """What decides the search."""
        return {
            "mean": self.law.mean,
            "measure": self.measure,
            "settings": [sha256(setting.config) for setting in self.settings],
        }

    def drawn(self) -> list[int]:
        """A setting for each of K runs, none of it from data: by the system, or by the seed."""
        if source_of(self.config) == "os":
            count = self.law.draw((secrets.randbits(_BITS) + 0.5) / 2**_BITS)
            return [secrets.randbelow(len(self.settings)) for _ in range(count)]
        rng = np.random.default_rng([self.config.federation.seed, len(self.settings)])
        count = self.law.draw((int(rng.integers(2**_BITS)) + 0.5) / 2**_BITS)
        return [int(rng.integers(len(self.settings))) for _ in range(count)]

    def trial(self, number: int, setting: int) -> Numbered:
        """A run with that setting."""
        chosen = self.settings[setting]
        return Numbered(
            chosen.source, chosen.overrides, self.out / "trials" / str(number), chosen.config,
            chosen.setting, chosen.seed, number,
        )  # fmt: skip


def sought(
    path: Path, sets: Sequence[str], seed: int, law: Search, measure: str | None, out: Path
) -> Sought:
    """The search that was asked for; nothing is written.

    Raises:
        ConfigError: in one line, for what `trials_of` or `check_searched` refuses.
    """
    measure = measure or SCORES[0]
    if measure not in SCORES:
        raise ConfigError(f"--measure: expected one of {', '.join(SCORES)}, got {measure!r}")
    settings = tuple(trials_of(path, sets, [seed], out / "settings"))
    check_searched([setting.config for setting in settings])
    return Sought(settings, law, measure, out)


# -- the ledger of a search ---------------------------------------------------------------------
@dataclass
class _Told:
    """What the ledger says."""

    drawn: list[int]
    begun: Counter[int] = field(default_factory=Counter[int])
    """How often each run began with no charge of its own behind it."""
    ended: dict[int, tuple[Head, float | None]] = field(
        default_factory=dict[int, tuple[Head, float | None]]
    )
    """The head of the run's ledger at its end, and its score; None: it has none."""

    def take(self, body: Mapping[str, Any]) -> None:
        """One note."""
        if "begun" in body:
            self.begun[body["begun"]] += bool(body["is_fresh"])
        if "ended" in body:
            self.ended[body["ended"]] = Head.parse(body["head"]), body["score"]


@contextmanager
def _opened(asked: Sought) -> Generator[tuple[Ledger, _Told], None, None]:
    """The ledger of the search, new or gone on with.

    Raises:
        ConfigError: another search was begun here.
        LedgerDamaged: as `Ledger.recover`.
    """
    path, key = asked.out / "search.jsonl", ledger_key()
    if path.exists():
        ledger = Ledger.recover(path, charge={"of": "a note of a search"}, key=key)
    else:
        if (asked.out / "trials").exists():
            raise refused(asked.out, "expected a new folder for a search", "runs without a ledger")
        make_folder(asked.out)
        drawn = asked.drawn()
        ledger = Ledger.create(path, {"search": asked.question, "drawn": drawn}, key=key)
    with ledger:
        if ledger.header.get("search") != asked.question:
            raise refused(
                asked.out,
                "expected the search that was begun here",
                "other settings, another law or another score",
            )
        told = _Told(list(ledger.header["drawn"]))
        for entry in ledger.entries:
            if entry.kind == NOTE:
                told.take(entry.body)
        yield ledger, told


def _head_of(trial: Numbered, anchors: Sequence[Head] = ()) -> tuple[Head, Odometer]:
    """The head of a run's own ledger, and what it counts."""
    odometer = Odometer()
    path = trial.folder.ledger_path
    if not path.is_file():
        raise refused(trial.directory, "expected the ledger of a run of this search", "none")
    found = Ledger.verify(path, key=ledger_key(), anchors=anchors, feed=odometer.feed)
    return found.head, odometer


def _check_ended(trial: Numbered, head: Head) -> Odometer:
    """Refuse a run that ended and is not as it was then.

    Raises:
        ConfigError: its folder is gone, or was gone on with.
        LedgerDamaged: as `Ledger.verify`.
    """
    found, odometer = _head_of(trial, [head])
    if found != head:
        raise refused(trial.directory, "expected a run as it ended", "one that was gone on with")
    return odometer


# -- scores -------------------------------------------------------------------------------------
def score_of(folder: RunFolder, config: Experiment, measure: str) -> float | None:
    """What a run is chosen by, less is better: that of the model it kept; None: all noise."""
    columns, held = folder.metrics(), config.evaluation
    losses, values = columns.get(SCORES[0], []), columns.get(measure, [])
    rows = [(a, b) for a, b in zip(losses, values, strict=False) if a is not None and b is not None]
    if not rows:
        return None
    is_best = held.kind != "oracle" and held.keep == "best"
    kept = min(rows, key=lambda row: row[0]) if is_best else rows[-1]
    return -kept[1] if measure.endswith("accuracy") else kept[1]


def _order(trial: Numbered, score: float | None) -> tuple[float, str]:
    """A total order on what runs put out."""
    model = (trial.directory / "model.safetensors").read_bytes()
    return math.inf if score is None else score, hashlib.sha256(model).hexdigest()


def _is_lost(trial: Numbered) -> bool:
    """Whether a run ended without a model, by what it computed: it is not made again."""
    path = trial.folder.error_path
    return path.is_file() and json_object(path).get("what", "").startswith(RoundFailed.__name__)


# -- the search ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class Found:
    """What came of a search."""

    directory: Path
    """What may be shown."""
    statement: dict[str, Any]
    """With it."""
    epsilon_of_server: float
    """It tells how many runs there were, so it is not published."""


def conduct(asked: Sought, jobs: int, told_of: Callable[[], object], play: Play = run_all) -> Found:
    """Make the runs that are left, and publish the best of all.

    Raises:
        ConfigError: the folder holds another search, or a run of it was changed or removed.
        RoundFailed: a run was stopped, and the same command goes on; or no run has a model.
    """
    with _opened(asked) as (ledger, told):
        trials = [asked.trial(i + 1, setting) for i, setting in enumerate(told.drawn)]
        for trial in trials:
            if trial.number in told.ended:
                _check_ended(trial, told.ended[trial.number][0])
            else:
                check_folder(trial)
        stopped = list[str]()

        def note(body: dict[str, Any]) -> None:
            ledger.append(NOTE, body)
            told.take(body)

        def begin(trial: Numbered) -> None:
            note({"begun": trial.number, "is_fresh": not trial.has_ledger})

        def end(trial: Numbered, error: str | None) -> None:
            if error is not None and not _is_lost(trial):
                stopped.append(error)
                return
            head, _ = _head_of(trial)
            score = None
            if error is None:
                score = score_of(trial.folder, trial.config, asked.measure)
            note({"ended": trial.number, "head": str(head), "score": score})
            told_of()

        for trial in trials:
            if trial.number not in told.ended and _is_lost(trial):
                end(trial, "before an interruption")
        play([trial for trial in trials if trial.number not in told.ended], jobs, end, begin)
        if stopped:
            raise RoundFailed(f"a run was stopped ({stopped[0]}); the same command goes on")
        return _published(asked, ledger, told, trials)


def _published(asked: Sought, ledger: Ledger, told: _Told, trials: Sequence[Numbered]) -> Found:
    """The best run's model and the price of them all; the price is in the ledger before."""
    odometers = [_check_ended(trial, told.ended[trial.number][0]) for trial in trials]
    models = [trial for trial in trials if trial.is_finished]
    if not models:
        raise RoundFailed("no run of the search has a model, so nothing is published")
    best = min(models, key=lambda trial: _order(trial, told.ended[trial.number][1]))
    most, total = _tries(asked.config, told, trials, odometers)
    origins = {o for trial in models for o in _privacy(trial).get("noise_origins", ())}
    price = to_public(asked.config, asked.law, most)
    statement = _statement(asked, best, told.ended[best.number][1], price, origins)
    ledger.append(NOTE, {"published": best.number, "epsilon": price})
    out = asked.out / "published"
    make_folder(out)
    for name in ("model.safetensors", "experiment.toml"):
        write_atomically(out / name, (best.directory / name).read_bytes())
    write_atomically(out / "statement.json", encode(statement))
    return Found(out, statement, to_server(asked.config, total))


def _tries(
    config: Experiment, told: _Told, trials: Sequence[Numbered], odometers: Sequence[Odometer]
) -> tuple[list[int], list[int]]:
    """How often each round was charged: in the run that was charged most, and in all of them."""
    each = list[list[int]]()
    for trial, odometer in zip(trials, odometers, strict=True):
        again = max(0, told.begun[trial.number] - 1)
        rounds = range(1, config.federation.num_rounds + 1)
        each.append([odometer.attempts(r) + again for r in rounds])
    most = [max(1, *(one[r] for one in each)) for r in range(len(each[0]))]
    return most, [sum(one[r] for one in each) for r in range(len(each[0]))]


def _privacy(trial: Numbered) -> dict[str, Any]:
    return trial.folder.manifest()["privacy"]


def _statement(
    asked: Sought, best: Numbered, score: float | None, price: float, origins: set[str]
) -> dict[str, Any]:
    """What is said of the published model; nothing in it depends on how many runs there were."""
    privacy = {**_privacy(best), "noise_origins": sorted(origins)}
    is_private = asked.config.evaluation.kind == "private"
    shown = None if score is None else -score if asked.measure.endswith("accuracy") else score
    return {
        "verdict": verdict(privacy),
        "unit": privacy["unit"],
        "neighboring_relation": privacy["neighboring_relation"],
        "epsilon": price,
        "delta": delta_of(asked.config),
        "adversary": "whoever sees this folder alone, and not how many runs were made",
        "law": {"kind": "geometric", "mean": asked.law.mean},
        "settings": [label_of(one.setting, one.config.name) for one in asked.settings],
        "chosen": label_of(best.setting, best.config.name),
        "measure": asked.measure,
        "score": shown,
        "score_is": (
            "private: every run released it under noise, and it is in the price"
            if is_private
            else "public: of records that anybody may have, and free"
        ),
        "reference": "Papernot and Steinke 2022, Theorem 2",
    }


def text_of(found: Found) -> str:
    """The statement and what may not be shown, for the terminal."""
    said = found.statement
    return "\n".join(
        [
            "search statement",
            f"  {said['verdict']}",
            f"  unit: one {said['unit']}; neighbours: {said['neighboring_relation']}",
            f"  chosen: {said['chosen']}, the best {said['measure']} of a random number of runs "
            f"(geometric, {said['law']['mean']:g} on average), each with one of "
            f"{len(said['settings'])} settings",
            f"  score: {json.dumps(said['score'])}, {said['score_is']}",
            f"  published: ({said['epsilon']:.4g}, {said['delta']:g})-DP against "
            f"{said['adversary']} ({said['reference']})",
            f"  not to be shown: epsilon {found.epsilon_of_server:.4g} against the server and the "
            "clients, who saw all runs; it tells how many there were",
            f"  not to be shown: {found.directory.parent / 'trials'}, {found.directory.parent}"
            "/search.jsonl, how long it took; whoever shows them voids the published bound",
        ]
    )
