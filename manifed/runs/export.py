"""The public part of a run: an allow-list of its manifest, metrics and model.

A run folder is the server's. ``ledger.jsonl`` lists the cohorts; bytes, participants, failures and
seconds of a round show who replied; a checksum of the data tells whether a guessed data set is the
one; the server's realised epsilon counts the rounds of the unluckiest client; numbers of the
simulation oracle look at all data without noise. None of that is in the public part of a private
run. It holds what follows from the config, the releases themselves, and epsilons that are priced
from the ledger's terms *before* any cohort is known.

Guarantee: what stands here is the config, the code that ran, the model, metrics computed from it
where an oracle was declared (``evaluation.is_simulated_oracle``, or a simulation whose noise comes
from the seed and protects nobody), and how many rounds and draws were made; nothing else is copied.
One thing tells of replies all the same: the curves of a private evaluation are left out whole
where one evaluation had no answer that is told from none.
"""

from dataclasses import replace
from pathlib import Path

from manifed.durable import write_atomically
from manifed.errors import ConfigError
from manifed.experiment.evaluation import published
from manifed.experiment.load import parse, without_paths
from manifed.experiment.plugins import look_as_noted
from manifed.experiment.schema import Experiment
from manifed.fields import Document, Values
from manifed.privacy.events import named
from manifed.privacy.odometer import Odometer
from manifed.privacy.tariff import Tariff
from manifed.runs.evidence import Evidence, evidence_of, is_private
from manifed.runs.folder import FolderDamaged, RunFolder, encode, with_label
from manifed.runs.places import check_new
from manifed.runs.predict import card, model_in
from manifed.runs.report import Run, read
from manifed.runs.statement import statement_of

_MANIFEST = (
    "format", "name", "engine", "randomness_source", "privacy", "config_sha256", "config", "git",
    "versions", "stopped", "final",
)  # fmt: skip
"""Keys of a private run's manifest that may be published; some of them in part (below)."""


def viewed(run: Run, *, is_server_view: bool = False) -> Run:
    """Returns what a report may show of ``run``: all without privacy, else its public part.

    With ``is_server_view`` all of it, its statement as its folder proves it: whoever shows that
    gives up the secrecy of the sample.

    Raises:
        FileNotFoundError: a private run without its ledger.
        ConfigError, LedgerDamaged: as `manifed.runs.evidence.evidence_of`.
    """
    evidence = evidence_of(run.directory)
    if not is_private(run.manifest):
        return run
    if is_server_view:
        return replace(run, manifest=evidence.stated_in(run.manifest))
    if evidence.ledger is None:
        raise FileNotFoundError(f"Expected {run.directory / 'ledger.jsonl'}, got no file")
    path = RunFolder(run.directory).manifest_path
    try:
        look_as_noted(path)
        config = parse(run.manifest["config"])
        manifest = _manifest(run, config, evidence)
    except (ConfigError, KeyError, IndexError) as error:
        raise FolderDamaged(path, "the manifest of a private run", str(error)) from None
    return replace(run, manifest=manifest, columns=published(config.setting, run.columns))


def _manifest(run: Run, config: Experiment, evidence: Evidence) -> Document:
    manifest = {key: run.manifest[key] for key in _MANIFEST if key in run.manifest}
    parts = {
        "name", "description", "problem", "data", "federation", "training", "strategy", "privacy",
        "evaluation",
    }  # fmt: skip
    table = without_paths(config).model_dump(mode="json", include=parts)
    draws_by_seed = config.federation.cohort.kind != "all"
    is_release = config.privacy.noise_source == "os"
    if draws_by_seed:  # the hash would let somebody try seeds until the cohorts are found
        manifest.pop("config_sha256", None)
    if is_release or draws_by_seed:
        del table["federation"]["seed"]
    privacy = _privacy(evidence.stated_in(run.manifest)["privacy"], config, evidence.odometer)
    manifest |= {"config": table, "privacy": privacy}
    if (final := manifest.get("final")) is not None:
        is_shown = config.setting.has_oracle()
        manifest["final"] = {
            "label": privacy["label"],
            "relative_cost_gap": final["relative_cost_gap"] if is_shown else None,
            "gradient_norm": final["gradient_norm"] if is_shown else None,
            "epsilon": privacy["adversaries"][0]["epsilon"],
            "delta": final["delta"],
            "rounds": final["rounds"],
        }
    return manifest


def _privacy(privacy: Values, config: Experiment, odometer: Odometer) -> Document:
    """The statement with epsilons before any cohort is known; under masks of what was charged."""
    delta = config.setting.reporting_delta
    is_as_charged = config.privacy.kind == "correlated"
    assert delta is not None
    draws = odometer.rounds_counted
    tariff = None
    if odometer.terms is not None and not config.setting.is_scheduled:
        draws = max(odometer.terms.planned_draws, draws)
        tariff = Tariff((odometer.terms,))
    remark = f"before any cohort is drawn, {draws} draws"
    notes = ["shard sizes, the config and the number of rounds are public"]
    if is_as_charged:
        remark = f"as charged for {odometer.covered} rounds"
    else:
        notes.append("epsilons are those before any cohort is drawn, for all planned draws")
    rows = list[Document]()
    for one in privacy["adversaries"]:
        shown = {k: one[k] for k in ("name", "text", "delta", "epsilon", "remark") if k in one}
        if one["name"] != "published":
            adversary = named(one["name"])
            cost = odometer.epsilon(adversary, delta)
            if not is_as_charged:
                ahead = (
                    odometer.of_everybody().epsilon(adversary, delta)
                    if tariff is None
                    else tariff.ahead(adversary, (draws,), delta)
                )  # what depends on no cohort is never less than was charged
                cost = ahead if adversary.sees_cohorts else max(cost, ahead)
            shown |= {"epsilon": cost, "remark": remark}
        rows.append(shown)
    if config.setting.has_oracle():
        notes.append(
            "cost, gap and gradient norm were computed on all data without noise; with real data "
            "they void this guarantee"
        )
    kept = (
        "label", "kind", "noise_source", "noise_origins", "kept_noise", "is_declared", "unit",
        "neighboring_relation", "released", "mechanism", "floating_point", "doubts",
    )  # fmt: skip
    shown = {key: privacy[key] for key in kept if key in privacy}
    return shown | {"adversaries": rows, "notes": notes}


def export(directory: Path, out: Path) -> list[Path]:
    """Writes the public part of a finished run into the new or empty folder ``out``.

    Raises:
        FileNotFoundError, FolderDamaged: ``directory`` is no run, or damaged.
        ConfigError: it is not finished; ``out`` holds something already, or cannot be made.
        OSError: the disk refused; nothing is left in ``out``.
    """
    run = read(directory)
    source = RunFolder(directory)
    folder = RunFolder(out)
    if not run.final:
        raise ConfigError(f"Expected a finished run, got {directory}; resume it first")
    check_new("--out", out, lambda path: not any(path.iterdir()))
    public = viewed(run)
    x = model_in(source)
    statement = statement_of(public.manifest["privacy"]) + "\n"
    is_made = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        for row in source.rows():
            folder.append_metrics(
                with_label({key: row[key] for key in public.columns}, public.label)
            )
        write_atomically(out / "statement.txt", statement.encode())
        write_atomically(out / "card.md", card(public.manifest).encode())
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
