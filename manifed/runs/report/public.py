"""What of a run may be published: an allow-list of its manifest, metrics and model.

A run folder is the server's. ``ledger.jsonl`` lists the cohorts; bytes, participants, failures and
seconds of a round show who replied; a checksum of the data tells whether a guessed data set is the
one; the server's realised epsilon counts the rounds of the unluckiest client; numbers of the
simulation oracle look at all data without noise. None of that is in the public part of a private
run. It holds what follows from the config, the releases themselves, and epsilons that are priced
from the ledger's terms *before* any cohort is known.

Guarantee: what stands here is the config, the code that ran, the model, metrics computed from it
where an oracle was declared (``evaluation.is_simulated_oracle``, or a simulation whose noise comes
from the seed and protects nobody), and how many rounds and draws were made; nothing else is copied.
Two things tell of replies all the same. Under masks a node that stays silent makes a round dearer,
so epsilon is that of what was charged. And the curves of a private evaluation are left out whole
where one evaluation had no answer that is told from none.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manifed.durable import write_atomically
from manifed.errors import ConfigError
from manifed.experiment.evaluation import HELD_OUT
from manifed.experiment.load import parse, without_paths
from manifed.experiment.older import in_todays_keys
from manifed.experiment.plugins import look_as_noted
from manifed.experiment.privacy import filter_of, is_scheduled, reporting_delta
from manifed.experiment.schema import Experiment
from manifed.privacy.account import ledger_key
from manifed.privacy.adversaries import OF_MASKS, Adversary, named
from manifed.privacy.filter import Draw, a_priori
from manifed.privacy.ledger import Entry, Ledger
from manifed.privacy.odometer import Odometer
from manifed.runs.evidence import Evidence, evidence_of, is_private, with_evidence
from manifed.runs.places import check_new
from manifed.runs.reading import FolderDamaged
from manifed.runs.report.runs import Run, read
from manifed.runs.run_folder import Cell, RunFolder, encode, with_label
from manifed.runs.statement import label_in_manifest, statement_of

MANIFEST = (
    "format",
    "format_version",
    "name",
    "engine",
    "randomness_source",
    "privacy",
    "work",
    "config_sha256",
    "config",
    "git",
    "versions",
    "stopped",
    "final",
)
"""Keys of a private run's manifest that may be published; some of them in part (below)."""
CONFIG = (
    "name",
    "description",
    "problem",
    "data",
    "federation",
    "training",
    "strategy",
    "privacy",
    "evaluation",
)
PRIVACY = (
    "label",
    "kind",
    "noise_source",
    "noise_origins",
    "kept_noise",
    "is_declared",
    "unit",
    "neighboring_relation",
    "released",
    "mechanism",
    "floating_point",
    "doubts",
)
ADVERSARY = ("name", "text", "delta")
COLUMNS = ("round", "uploads", "consensus_distance")
ORACLE = (
    "cost",
    "cost_gap",
    "relative_cost_gap",
    "gradient_norm",
    "principal_angle",
    "angle_to_truth",
    "distance_to_optimum",
    "distance_to_truth",
    "worst_node_cost",
    "optimum_distance",
)
"""Columns that the simulation oracle computes on all data."""
_NOTES = (
    "shard sizes, the config and the number of rounds are public",
    "epsilons are those before any cohort is drawn, for all draws that were planned",
)


def public_run(run: Run) -> Run:
    """What may be shown of ``run``; all of it when the run has no privacy.

    Raises:
        FileNotFoundError: a private run without its ledger.
        ConfigError, LedgerDamaged, CheckpointError: as `manifed.runs.evidence.evidence_of`.
    """
    evidence = evidence_of(run.directory)
    if not is_private(run.manifest):
        return run
    if evidence.ledger is None:
        raise FileNotFoundError(f"Expected {run.directory / 'ledger.jsonl'}, got no file")
    config = _config_of(run)
    manifest = _manifest(run, config, evidence)
    oracle = ORACLE if _shows_oracle(config) else ()
    shown = [*COLUMNS, *_held_out(run, config), *oracle, *_epsilon(config)]
    columns = {key: values for key, values in run.columns.items() if key in shown}
    return replace(run, manifest=manifest, columns=columns)


def config_of(run: Run) -> Experiment:
    """The config in the manifest; its plug-ins are found as the run found them (plugins.py).

    Raises:
        ConfigError: today's schema does not read it.
    """
    look_as_noted(RunFolder(run.directory).manifest_path)
    return parse(in_todays_keys(run.manifest.get("config") or {}))


def server_run(run: Run) -> Run:
    """All of ``run``, its statement as its folder proves it; errors as `public_run`."""
    evidence = evidence_of(run.directory)
    if not is_private(run.manifest):
        return run
    return replace(run, manifest=with_evidence(run.manifest, evidence))


def _config_of(run: Run) -> Experiment:
    """The config in the manifest, which has to be that of a private run."""
    path, privacy = RunFolder(run.directory).manifest_path, run.manifest["privacy"]
    try:
        config = config_of(run)
        reporting_delta(config)
    except ConfigError as error:
        raise FolderDamaged(path, "the config of the run", str(error)) from None
    if config.privacy.kind != privacy["kind"]:
        expected = f"a config with privacy.kind {privacy['kind']!r}"
        raise FolderDamaged(path, expected, repr(config.privacy.kind))
    own = {"client-level"}
    if privacy["kind"] == "example-level":
        own = {"server", "external", "published"}
    if privacy["kind"] == "correlated":
        own = {adversary.name for adversary in OF_MASKS}
    names = [one["name"] for one in privacy.get("adversaries", ())]
    if not names or not set(names) <= own:
        raise FolderDamaged(path, f"for privacy.adversaries some of {sorted(own)}", str(names))
    return config


def _manifest(run: Run, config: Experiment, evidence: Evidence) -> dict[str, Any]:
    manifest = {key: run.manifest[key] for key in MANIFEST if key in run.manifest}
    if _draws_by_seed(config):
        manifest.pop("config_sha256", None)
    manifest["config"] = _config(config)
    said = with_evidence(run.manifest, evidence)["privacy"]
    privacy = _privacy(said, config, evidence.odometer)
    manifest["privacy"] = privacy
    if "final" in manifest:
        final, has_oracle = manifest["final"], _shows_oracle(config)
        manifest["final"] = {
            "label": privacy["label"],
            "relative_cost_gap": final["relative_cost_gap"] if has_oracle else None,
            "gradient_norm": final["gradient_norm"] if has_oracle else None,
            "epsilon": privacy["adversaries"][0]["epsilon"],
            "delta": final["delta"],
            "rounds": final["rounds"],
            "seconds": None,
        }
    return manifest


def _draws_by_seed(config: Experiment) -> bool:
    """Whether the config's hash would let somebody try seeds until the cohorts are found."""
    return config.federation.cohort.kind != "all"


def _config(config: Experiment) -> dict[str, Any]:
    """The config without where it ran; without the seed in a release, and where it drew cohorts."""
    table = without_paths(config).model_dump(mode="json", include=set(CONFIG))
    is_release = config.privacy.kind != "none" and config.privacy.noise_source == "os"
    if is_release or _draws_by_seed(config):
        del table["federation"]["seed"]
    return table


def _privacy(privacy: Mapping[str, Any], config: Experiment, odometer: Odometer) -> dict[str, Any]:
    delta = reporting_delta(config)
    assert delta is not None
    planned = _planned(config, odometer)
    rows: list[dict[str, Any]] = []
    for one in privacy["adversaries"]:
        shown = {key: one[key] for key in ADVERSARY}
        if one["name"] == "published":
            rows.append(shown | {"epsilon": one["epsilon"], "remark": one["remark"]})
            continue
        adversary = named(one["name"])
        cost = _price(config, odometer, adversary, planned)
        if not adversary.sees_cohorts:  # it depends on no cohort: never less than was charged
            cost = max(cost, odometer.epsilon(adversary, delta))
        remark = f"before any cohort is drawn, {planned} draws"
        if _is_as_charged(config):
            remark = (
                f"as charged for {odometer.covered} rounds; it may tell of nodes that were silent"
            )
        rows.append(shown | {"epsilon": cost, "remark": remark})
    notes: list[str] = [*_NOTES[: 1 if _is_as_charged(config) else None]]
    if _shows_oracle(config):
        notes.append(
            "cost, gap and gradient norm were computed on all data without noise; with real data "
            "they void this guarantee"
        )
    return {key: privacy[key] for key in PRIVACY if key in privacy} | {
        "adversaries": rows,
        "notes": notes,
    }


def _planned(config: Experiment, odometer: Odometer) -> int:
    """The cohort draws that are priced: those that were planned, and never less than were made."""
    if is_scheduled(config):
        return odometer.rounds_counted
    if odometer.terms is None:  # a run that charged nothing made no draw and never will
        return 0
    return max(filter_of(config, odometer.terms).planned_draws, odometer.rounds_counted)


def _is_as_charged(config: Experiment) -> bool:
    """Whether only the ledger knows the price: everybody is in every cohort, and some may drop."""
    return config.privacy.kind == "correlated"


def _price(config: Experiment, odometer: Odometer, adversary: Adversary, draws: int) -> float:
    """Epsilon of so many draws before any cohort is known; under masks of what was charged."""
    delta = reporting_delta(config)
    assert delta is not None
    if _is_as_charged(config):  # a silent node's masks are told, and make its round dearer
        return odometer.epsilon(adversary, delta)
    if is_scheduled(config):  # each round has its own price
        return odometer.of_everybody().epsilon(adversary, delta)
    draw = Draw(1.0) if odometer.terms is None else Draw.of(odometer.terms)
    return a_priori(draw, adversary, draws, delta)


_POINTS = 5
"""Of a curve of spending where each round has its own price: one point takes seconds."""


def spending_of(run: Run, points: int = 20) -> list[Mapping[str, float]]:
    """Epsilon after some rounds against each adversary of a private run, as `public_run` prices it.

    Rows of "round" and the adversaries' names, the last as in the published statement. All rounds
    that the config plans are priced, also those that a run has yet to make; where each round has a
    price of its own, those that were paid for, with all that was charged for a round in its row.
    """
    if not is_private(run.manifest):
        return []
    config, path = _config_of(run), run.directory / "ledger.jsonl"
    total = config.federation.num_rounds
    is_by_round = is_scheduled(config) or _is_as_charged(config)
    points = min(points, _POINTS) if is_by_round else points
    picks = sorted({max(1, round(total * k / points)) for k in range(1, points + 1)})
    whole = _odometer(path)
    statement = _privacy(run.manifest["privacy"], config, whole)["adversaries"]
    last = {one["name"]: one["epsilon"] for one in statement if one["name"] != "published"}
    rows: list[Mapping[str, float]] = [{"round": 0.0} | dict.fromkeys(last, 0.0)]
    if not is_by_round:
        for r in picks[:-1]:
            draws = math.ceil(_planned(config, whole) * r / total)
            rows.append({"round": r} | {n: _price(config, whole, named(n), draws) for n in last})
        return [*rows, {"round": total} | last]
    grown, at = Odometer(), dict[int, Odometer]()

    def feed(entry: Entry) -> None:
        grown.feed(entry)
        if grown.covered in picks and grown.covered < whole.covered:
            at[grown.covered] = grown.copied()  # a round may be charged again

    Ledger.verify(path, key=ledger_key(), feed=feed)
    for r, then in at.items():
        rows.append({"round": r} | {n: _price(config, then, named(n), 0) for n in last})
    before = [row for row in rows if row["round"] < whole.covered]
    return [*before, {"round": whole.covered} | last]


def _odometer(path: Path) -> Odometer:
    """What the ledger at ``path`` holds, its chain verified."""
    odometer = Odometer()
    Ledger.verify(path, key=ledger_key(), feed=odometer.feed)
    return odometer


def _shows_oracle(config: Experiment) -> bool:
    if config.evaluation.kind != "oracle":
        return False
    declared = config.evaluation.is_simulated_oracle
    is_seeded = config.privacy.kind == "none" or config.privacy.noise_source == "seed"
    return declared is True or (is_seeded and declared is None)


def _held_out(run: Run, config: Experiment) -> tuple[str, ...]:
    """The columns of an evaluation, but for what says how many replied.

    The ends of an interval do: the noise on a sum is known for each reply. An empty cell says that
    nobody did, or too few; a silent site fails no round, so no config rules that out.
    """
    held = config.evaluation
    if held.kind != "private":
        return HELD_OUT
    shown = tuple(name for name in HELD_OUT if not name.endswith(("_low", "_high")))
    due = np.array([held.is_due(int(r)) for r in run.columns.get("round", ())], dtype=bool)
    values = [run.columns[name][due] for name in shown if name in run.columns]
    return () if any(np.isnan(value).any() for value in values) else shown


def _epsilon(config: Experiment) -> tuple[str, ...]:
    """The column of epsilon, where it depends on no coin and on no failure."""
    federation = config.federation
    has_coins = federation.cohort.kind != "all" or federation.replies.on_failure == "retry"
    return () if has_coins and config.privacy.kind != "client-level" else ("epsilon",)


def export(directory: Path, out: Path) -> list[Path]:
    """Write the public part of a finished run into the new or empty folder ``out``.

    Raises:
        FileNotFoundError, ValueError: ``directory`` is no finished run, or is damaged.
        ConfigError: ``out`` holds something already, or cannot be made.
        OSError: the disk refused; nothing is left in ``out``.
    """
    run = read(directory)
    if not run.final:
        raise ValueError(f"Expected a finished run, got {directory}; resume it first")
    check_new("--out", out, lambda path: not any(path.iterdir()))
    public = public_run(run)
    source = RunFolder.open(directory)
    x = _model(source)
    try:
        statement = statement_of(public.manifest["privacy"] or {"kind": "none"}) + "\n"
    except KeyError as error:
        raise FolderDamaged(source.manifest_path, f"for privacy {error}", "none") from None
    is_made, folder = not out.exists(), RunFolder(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for row in _rows(public):
            folder.append_metrics(row)
        write_atomically(out / "statement.txt", statement.encode())
        folder.save_tensors("model", {"x": x})
        write_atomically(folder.manifest_path, encode(public.manifest))
        for path in out.iterdir():  # to be published: whoever may enter the folder may read
            path.chmod(out.stat().st_mode & 0o666)
    except OSError:
        for path in out.iterdir():
            path.unlink(missing_ok=True)
        if is_made:
            out.rmdir()
        raise
    return sorted(out.iterdir())


def _model(folder: RunFolder) -> Tensor:
    tensors = folder.load_tensors("model")
    path = folder.directory / "model.safetensors"
    if set(tensors) != {"x"}:
        raise FolderDamaged(path, "one tensor x", f"the names {sorted(tensors)}")
    x = tensors["x"]
    if not x.is_floating_point() or not bool(torch.isfinite(x).all()):
        raise FolderDamaged(
            path, "a finite model of real numbers", f"{x.dtype} of {tuple(x.shape)}"
        )
    return x


def _rows(run: Run) -> list[dict[str, Cell]]:
    count = len(next(iter(run.columns.values()), ()))
    return [
        with_label(
            {key: _cell(key, values[i]) for key, values in run.columns.items()},
            label_in_manifest(run.manifest),
        )
        for i in range(count)
    ]


def _cell(key: str, value: float) -> float | int | None:
    if math.isnan(value):
        return None
    return int(value) if key in COLUMNS else float(value)
