"""A search that is paid for: the best of a random number of runs, and nothing else, is published.

    OUT/search.jsonl        its ledger: what was asked and drawn, which runs began, ended and won
    OUT/trials/1, 2, ...    a run folder each
    OUT/published/          model.safetensors, experiment.toml and statement.json of the best

The number K and a setting for each run are drawn once, from the operating system in a release, and
stand in the first line of the ledger before any run begins; the law of K and the list of settings
are public. The order of scores is public too, and equal scores are parted by the model's digest, so
that what wins is a function of what the runs put out alone.

Guarantees: the same command goes on with the same draw. A run that ended is never made again: its
score and the digests of what it may publish stand in the ledger, which alone decides what wins; one
whose folder was changed or is gone afterwards is refused, and so is one that the search never
began, and another result than was published before. A run that was gone on with cannot be rolled
back behind that. One that began once and whose own ledger is not there is charged whole and made
again. Nothing is published before all K runs ended and the price stands in the ledger. K is in
nothing that is published: the price is of the attempts that the config announces. Where a crash
made more of them, of the run with most, and the statement says that this may tell K.

Not guaranteed: whoever removes all of OUT can draw again, and this machine cannot tell; nor can it
tell a run that somebody made by hand in the place of one that began. A site's own ledger counts
every run.
"""

import hashlib
import json
import math
import secrets
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from manifed.durable import is_draft, make_folder, write_atomically
from manifed.errors import ConfigError, RoundFailed
from manifed.experiment.assembly import facts_of, initial_point, load_shards, made_up_examples
from manifed.experiment.evaluation import Judged
from manifed.experiment.load import sha256
from manifed.experiment.privacy import attempts_of
from manifed.experiment.schema import Experiment
from manifed.experiment.search_price import (
    check_searched,
    delta_of,
    source_of,
    to_public,
    to_server,
)
from manifed.privacy.account import ledger_key
from manifed.privacy.ledger import Head, Ledger, Verified, head_file
from manifed.privacy.odometer import NOTE, Odometer
from manifed.privacy.tuning import Search
from manifed.problems.dataset import SiteData
from manifed.runs.in_force import refused
from manifed.runs.pool import check_folder, run_all
from manifed.runs.reading import json_object, read_whole
from manifed.runs.run_folder import RunFolder, encode, is_fresh
from manifed.runs.statement import label_in, verdict
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
        ConfigError: in one line, for what `trials_of` or `check_searched` refuses, and for a score
            that no run would have.
    """
    measure = measure or SCORES[0]
    if measure not in SCORES:
        raise ConfigError(f"--measure: expected one of {', '.join(SCORES)}, got {measure!r}")
    settings = tuple(trials_of(path, sets, [seed], out / "settings"))
    check_searched([setting.config for setting in settings])
    for setting in settings:
        _check_scored(setting.config, measure)
    return Sought(settings, law, measure, out)


def _check_scored(config: Experiment, measure: str) -> None:
    """Refuse a search whose runs would have no score, or noise for one.

    Raises:
        ConfigError: naming the field.
    """
    held, rounds = config.evaluation, config.federation.num_rounds
    if held.kind == "private" and (
        held.every > rounds or (held.keep == "last" and not held.is_due(rounds))
    ):
        raise ConfigError(
            f"evaluation.every: expected rounds of which federation.num_rounds = {rounds} is a "
            f"multiple, so that the model which a run keeps has a score, got {held.every}"
        )
    if measure != SCORES[0]:
        is_named = not isinstance(config.data, SiteData)
        one = load_shards(config).examples[0].judged if is_named else made_up_examples(config)
        one = one.take(torch.zeros(1, dtype=torch.long))
        if facts_of(config).problem.correct(initial_point(config), one) is None:
            raise ConfigError(
                f"--measure: expected {SCORES[0]!r} of a problem without classes, got {measure!r}"
            )


# -- the ledger of a search ---------------------------------------------------------------------
_KEPT: Final = ("model", "experiment", "privacy")
"""What of a run may be published, by digest: two files, and what its manifest says of privacy."""


@dataclass(frozen=True)
class _End:
    """What a run put out."""

    head: Head
    """Of its ledger."""
    score: float | None
    """Less is better; None: it has none."""
    kept: Mapping[str, str | None]
    """SHA-256 of each of `_KEPT`; None: the run lost, and has no model."""

    @property
    def order(self) -> tuple[float, str]:
        """A total order on what runs with a model put out."""
        score, model = math.inf if self.score is None else self.score, self.kept["model"]
        assert model is not None
        assert self.score is None or math.isfinite(score)
        return score, model


@dataclass
class _Told:
    """What the ledger says."""

    drawn: list[int]
    begun: defaultdict[int, list[Head | None]] = field(
        default_factory=lambda: defaultdict[int, list[Head | None]](list)
    )
    """The heads of each run's ledger whenever it began or went on; None: there was no ledger."""
    ended: dict[int, _End] = field(default_factory=dict[int, _End])
    published: Mapping[str, Any] | None = None

    def take(self, body: Mapping[str, Any]) -> None:
        """One note."""
        if "begun" in body:
            head = body["head"]
            self.begun[body["begun"]].append(None if head is None else Head.parse(head))
        if "ended" in body:
            kept = {name: body[name] for name in _KEPT}
            self.ended[body["ended"]] = _End(Head.parse(body["head"]), body["score"], kept)
        if "published" in body:
            self.published = body

    def anchors(self, number: int) -> list[Head]:
        """Lines that the ledger of a run must have."""
        return [head for head in self.begun[number] if head is not None]


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
        make_folder(asked.out)
        torn = head_file(path)  # of a ledger that a crash cut off before its first line
        if left := [p.name for p in asked.out.iterdir() if p != torn and not is_draft(p)]:
            found = f"{', '.join(sorted(left))} without search.jsonl"
            raise refused(asked.out, "expected a new folder for a search", found)
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


def _ledger_of(trial: Numbered, anchors: Sequence[Head]) -> tuple[Verified, Odometer]:
    """A run's own ledger, and what it counts."""
    odometer = Odometer()
    path = trial.folder.ledger_path
    if not path.is_file():
        raise refused(trial.directory, "expected the ledger of a run of this search", "none")
    return Ledger.verify(path, key=ledger_key(), anchors=anchors, feed=odometer.feed), odometer


def _kept(trial: Numbered) -> dict[str, str | None]:
    """The digests of what a finished run may publish."""
    folder = trial.folder
    contents = (
        read_whole(folder.directory / "model.safetensors", "the model of a run that ended"),
        read_whole(folder.experiment_path, "the config of a run that ended"),
        encode(folder.manifest()["privacy"]),
    )
    digests = (hashlib.sha256(content).hexdigest() for content in contents)
    return dict(zip(_KEPT, digests, strict=True))


def _check(told: _Told, trials: Sequence[Numbered]) -> list[Odometer]:
    """What the runs' ledgers count; a run that is not what the search made of it is refused.

    Raises:
        ConfigError: a run that the search never began, that is a copy of another, or that ended and
            is not as it was then.
        LedgerDamaged: as `Ledger.verify`.
        FolderDamaged: a file of a run that ended is gone.
    """
    counted, seen = list[Odometer](), set[str | None]()
    for trial in trials:
        end, anchors = told.ended.get(trial.number), told.anchors(trial.number)
        if not told.begun[trial.number] and not is_fresh(trial.directory):
            raise refused(trial.directory, "expected a run that the search began", "another")
        if not (end or anchors or trial.has_ledger):
            counted.append(Odometer())
            continue
        found, odometer = _ledger_of(trial, [*anchors, end.head] if end else anchors)
        if found.run_id in seen:
            raise refused(trial.directory, "expected a run of its own", "a copy of another")
        if end is not None and found.head != end.head:
            raise refused(trial.directory, "expected a run as it ended", "one that went on")
        if end is not None and end.kept["model"] is not None and _kept(trial) != end.kept:
            what = "another model, config or privacy statement"
            raise refused(trial.directory, "expected a run as it ended", what)
        seen.add(found.run_id)
        counted.append(odometer)
    return counted


# -- scores -------------------------------------------------------------------------------------
def score_of(folder: RunFolder, config: Experiment, measure: str) -> float | None:
    """What a finished run is chosen by, less is better: that of the model it kept.

    None where it has none: all noise, or no number.
    """
    columns, held = folder.metrics(), config.evaluation
    rounds, losses = columns["round"], columns.get(SCORES[0], [])
    kept = folder.manifest()["final"]["rounds"]
    if held.kind != "oracle" and held.keep == "best":
        judged = Judged()
        for r, loss in zip(rounds, losses, strict=False):
            if r is not None and r % held.every == 0:
                judged = judged.after(int(r), loss)
        kept = judged.best_round or kept
    value = dict(zip(rounds, columns.get(measure, []), strict=False)).get(kept)
    if value is None or not math.isfinite(value):
        return None
    return -value if measure.endswith("accuracy") else value


def _is_lost(trial: Numbered) -> bool:
    """Whether a run ended without a model, by what it computed: it is not made again."""
    path = trial.folder.error_path
    return path.is_file() and json_object(path).get("is_computed") is True


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
        ConfigError: the folder holds another search, a run of it was changed or removed, or is
            none of it, or something else was published before.
        RoundFailed: a run was stopped, and the same command goes on; or no run has a model.
    """
    with _opened(asked) as (ledger, told):
        trials = [asked.trial(i + 1, setting) for i, setting in enumerate(told.drawn)]
        _check(told, trials)
        for trial in trials:
            if trial.number not in told.ended:
                check_folder(trial)
        stopped = list[str]()

        def note(body: dict[str, Any]) -> None:
            ledger.append(NOTE, body)
            told.take(body)

        def begin(trial: Numbered) -> None:
            head, anchors = None, told.anchors(trial.number)
            if trial.has_ledger or anchors:
                head = str(_ledger_of(trial, anchors)[0].head)
            note({"begun": trial.number, "head": head})

        def end(trial: Numbered, error: str | None) -> None:
            if error is not None and not _is_lost(trial):
                stopped.append(error)
                return
            found, _ = _ledger_of(trial, told.anchors(trial.number))
            score, kept = None, dict[str, str | None](dict.fromkeys(_KEPT))
            if error is None:
                score = score_of(trial.folder, trial.config, asked.measure)
                kept = _kept(trial)
            note({"ended": trial.number, "head": str(found.head), "score": score, **kept})
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
    odometers = _check(told, trials)
    models = [trial for trial in trials if told.ended[trial.number].kept["model"] is not None]
    if not models:
        raise RoundFailed("no run of the search has a model, so nothing is published")
    best = min(models, key=lambda trial: told.ended[trial.number].order)
    tries, total = _tries(asked.config, told, trials, odometers)
    origins = {o for trial in models for o in _privacy(trial).get("noise_origins", ())}
    price = to_public(asked.config, asked.law, tries)
    statement = _statement(asked, best, told.ended[best.number].score, price, origins)
    if any(often > attempts_of(asked.config) for often in tries):
        statement["epsilon_is"] = _OF_CRASHES
    note = {"published": best.number, "epsilon": price}
    if told.published not in (None, note):
        was = f"expected what was published, {json.dumps(told.published)}"
        raise refused(asked.out, was, json.dumps(note))
    if told.published is None:
        ledger.append(NOTE, note)
    out = asked.out / "published"
    make_folder(out)
    for name in ("model.safetensors", "experiment.toml"):
        write_atomically(out / name, (best.directory / name).read_bytes())
    write_atomically(out / "statement.json", encode(statement))
    return Found(out, statement, to_server(asked.config, total))


_ANNOUNCED: Final = "of the attempts that the config announces, however many runs there were"
_OF_CRASHES: Final = (
    "of the attempts of the run with most, crashes included; it may tell how many runs there were"
)


def _tries(
    config: Experiment, told: _Told, trials: Sequence[Numbered], odometers: Sequence[Odometer]
) -> tuple[list[int], list[int]]:
    """How often each round is priced in every run, and how often it was charged in all of them.

    The first is what the config announces, so that it does not depend on how many runs there were,
    or what the run that was charged most often was charged where a crash made it more.
    """
    each, announced = list[list[int]](), attempts_of(config)
    for trial, odometer in zip(trials, odometers, strict=True):
        again = max(0, told.begun[trial.number].count(None) - 1) * announced
        rounds = range(1, config.federation.num_rounds + 1)
        each.append([odometer.attempts(r) + again for r in rounds])
    most = [max(announced, *(one[r] for one in each)) for r in range(len(each[0]))]
    return most, [sum(one[r] for one in each) for r in range(len(each[0]))]


def _privacy(trial: Numbered) -> dict[str, Any]:
    return trial.folder.manifest()["privacy"]


def _statement(
    asked: Sought, best: Numbered, score: float | None, price: float, origins: set[str]
) -> dict[str, Any]:
    """What is said of the published model where no crash made more attempts than announced."""
    privacy = {**_privacy(best), "noise_origins": sorted(origins)}
    is_private = asked.config.evaluation.kind == "private"
    shown = None if score is None else -score if asked.measure.endswith("accuracy") else score
    return {
        "label": label_in(privacy),
        "verdict": verdict(privacy),
        "unit": privacy["unit"],
        "neighboring_relation": privacy["neighboring_relation"],
        "epsilon": price,
        "epsilon_is": _ANNOUNCED,
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
            f"{said['adversary']} ({said['reference']}); {said['epsilon_is']}",
            f"  not to be shown: epsilon {found.epsilon_of_server:.4g} against the server and the "
            "clients, who saw all runs; it tells how many there were",
            f"  not to be shown: {found.directory.parent / 'trials'}, {found.directory.parent}"
            "/search.jsonl, how long it took; whoever shows them voids the published bound",
        ]
    )
