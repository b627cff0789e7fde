"""The commands ``manifed privacy ...``: prices, statements and ledgers; nothing is run."""

import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from manifed.cli.options import (
    QUICKSTART,
    ConfigPath,
    DataDir,
    Json,
    Sets,
    fail,
    print_json,
    use_data_dir,
)
from manifed.privacy.label import AUTHENTICITY, PLANNED

_MOST = 10**9
"""Rounds, clients and steps that the accountants count to."""


def _check(option: str, value: float, expected: str, is_met: bool) -> None:
    """End with one line unless ``is_met``; NaN meets nothing."""
    if not is_met:
        fail(f"{option}: expected {expected}, got {value:g}")


def compare(
    local_epsilon: Annotated[float, typer.Option(help="Epsilon of one local training.")],
    local_delta: Annotated[float, typer.Option(help="Delta of one.")],
    clients: Annotated[int, typer.Option(min=1, max=_MOST, help="N.")],
    cohort_size: Annotated[int, typer.Option(min=1, help="s, drawn without replacement.")],
    rounds: Annotated[int, typer.Option(min=1, max=_MOST, help="T.")],
    slack_delta: Annotated[float, typer.Option(help="delta-hat.")] = 1e-3,
    as_json: Json = False,
) -> None:
    """Theorem 4.2 of PriRFed beside what holds at record level, at the published delta."""
    if cohort_size > clients:
        fail(f"--cohort-size: expected at most --clients = {clients}, got {cohort_size}")
    _check("--local-epsilon", local_epsilon, "0 < local_epsilon <= 700", 0 < local_epsilon <= 700)
    _check("--local-delta", local_delta, "0 <= local_delta < 1", 0 <= local_delta < 1)
    _check("--slack-delta", slack_delta, "0 < slack_delta < 1", 0 < slack_delta < 1)
    from manifed.privacy.published import Claim

    claim = Claim(local_epsilon, local_delta, clients, cohort_size, slack_delta)
    found = claim.compared(rounds)
    sys.stdout.write(f"privacy: {PLANNED}\n")
    remarks = {
        "published": "Theorem 4.2 as printed; UNSOUND at record level",
        "parallel": "the same with parallel composition; still UNSOUND at record level",
        "external": "sound: models seen, cohorts not",
        "server": "sound: every upload seen; a priori, a quantile of rounds a client",
    }
    for name, price_of in found.items():
        sys.stdout.write(
            f"{name:10s} epsilon {price_of['epsilon']:<10.4g} delta {price_of['delta']:<9.3g} "
            f"{remarks[name]}\n"
        )
    if as_json:
        print_json({"label": PLANNED} | found)


def statement(
    config: ConfigPath = QUICKSTART,
    sets: Sets = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """The privacy statement that a config's whole run would end with, everybody invited always."""
    use_data_dir(data_dir)
    from manifed.cli.launch import checked_config
    from manifed.experiment.assembly import facts_of
    from manifed.plan import planned_statement
    from manifed.runs.statement import statement_of

    experiment = checked_config(config, sets)
    plan = planned_statement(experiment.setting, facts_of(experiment).sizes)
    sys.stdout.write(statement_of(plan) + "\n")
    if as_json:
        print_json(plan)


def ledger(
    path: Annotated[Path, typer.Argument(help="A ledger.jsonl, or a folder (run, site) with it.")],
    delta: Annotated[
        float | None, typer.Option(help="At which delta; a site's ledger names its own.")
    ] = None,
    ledger_key: Annotated[
        Path | None, typer.Option(help="The file of its key ($MANIFED_LEDGER_KEY_FILE).")
    ] = None,
    head: Annotated[
        list[str] | None,
        typer.Option(help="A head that was printed earlier and must be in the chain."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Verify a ledger's chain and price everything in it, for every adversary (for an auditor)."""
    from manifed.privacy.account import anchors_of
    from manifed.privacy.account import ledger_key as key_in
    from manifed.privacy.statement import audit_ledger
    from manifed.runs.evidence import evidence_of
    from manifed.runs.folder import check_regular, is_there
    from manifed.runs.places import real

    if delta is not None:
        _check("--delta", delta, "0 <= delta <= 1", 0 <= delta <= 1)

    place = real("PATH", path)
    file = place / "ledger.jsonl" if place.is_dir() else path
    check_regular(file, "a ledger", most=1 << 40)
    key = key_in(ledger_key)
    found = audit_ledger(file, delta, key=key, anchors=anchors_of(head or ()))
    if any(is_there(file.with_name(name)) for name in ("manifest.json", "experiment.toml")):
        proved = evidence_of(file.parent, key)
        found |= {"label": proved.label, "doubts": list(proved.doubts)}
    delta = found["delta"]
    consumed = "" if found["consumed"] is None else f" ({found['consumed']} consumed for certain)"
    sys.stdout.write(
        f"privacy: {found['label']}\n"
        f"chain intact: {found['entries']} entries, {found['charges']} charges{consumed}\n"
        f"ledger head: {found['head']}\n{AUTHENTICITY[found['authenticity']]}\n"
    )
    for doubt in found.get("doubts", ()):
        if not doubt.endswith(AUTHENTICITY[found["authenticity"]]):  # said already
            sys.stdout.write(f"note: {doubt}\n")
    for one in found["adversaries"]:
        certain = one["epsilon_consumed"]
        shown = "" if certain is None else f" (consumed for certain: epsilon {certain:.6g})"
        sys.stdout.write(
            f"{one['name']}: ({one['epsilon']:.6g}, {delta:g})-DP, unit {one['unit']}, "
            f"{one['neighboring_relation']}, against {one['text']}{shown}\n"
        )
    if limits := found.get("limits"):
        sys.stdout.write(f"site's limit: epsilon {limits['epsilon']:g} at {limits['delta']:g}\n")
    if as_json:
        print_json(found)


def reconcile(
    run_dir: Annotated[Path, typer.Argument(help="The folder of a run, at the server.")],
    site_dir: Annotated[Path, typer.Argument(help="The ledger folder of a site.")],
    run: Annotated[
        str | None, typer.Option(help="Flower's number of the run, if its config ran twice.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Whether a run's ledger and a site's agree on the rounds that both saw (for an auditor)."""
    from manifed.site.account import compared

    found = compared(run_dir / "ledger.jsonl", site_dir / "ledger.jsonl", run)
    said = "agree" if found.is_whole else "DISAGREE"
    sys.stdout.write(
        f"client {found.partition}: the ledgers {said}: {len(found.both)} rounds charged alike, "
        f"{len(found.differing)} otherwise, {len(found.only_site)} by the site alone, "
        f"{len(found.only_server)} by the server alone (lost, refused or absent)\n"
    )
    if as_json:
        print_json(asdict(found) | {"is_whole": found.is_whole})
    if not found.is_whole:
        raise typer.Exit(1)


def calibrate(
    target_epsilon: Annotated[float, typer.Option(help="Epsilon of all steps together.")],
    target_delta: Annotated[float, typer.Option(help="Delta of all steps together.")],
    steps: Annotated[int, typer.Option(min=1, max=_MOST, help="Noised gradients (or rounds).")],
    sampling_probability: Annotated[
        float, typer.Option(help="Poisson rate of a step; 1 takes everybody.")
    ] = 1.0,
    as_json: Json = False,
) -> None:
    """The least noise multiplier for a target, add-or-remove, erring on the private side."""
    from manifed.privacy.calibration import for_steps

    finite = 0 < target_epsilon < math.inf
    _check("--target-epsilon", target_epsilon, "0 < target_epsilon < inf", finite)
    _check("--target-delta", target_delta, "0 < target_delta < 1", 0 < target_delta < 1)
    _check(
        "--sampling-probability",
        sampling_probability,
        "0 < sampling_probability <= 1",
        0 < sampling_probability <= 1,
    )
    found = for_steps(target_epsilon, target_delta, steps, sampling_probability)
    sys.stdout.write(
        f"privacy: {PLANNED}\n"
        f"noise multiplier {found['noise_multiplier']:.6g} (noise over sensitivity) costs "
        f"({found['epsilon']:.6g}, {target_delta:g}) over {steps} steps\n"
    )
    if as_json:
        print_json({"label": PLANNED} | found)


def curve(
    config: ConfigPath = QUICKSTART,
    plot: Annotated[Path | None, typer.Option(help="Where the figure goes (PNG).")] = None,
    sets: Sets = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Epsilon against rounds against every adversary of a config."""
    use_data_dir(data_dir)
    import numpy as np

    from manifed.cli.launch import checked_config
    from manifed.durable import write_atomically
    from manifed.experiment.assembly import facts_of
    from manifed.plan import plan_label, planned_curve
    from manifed.runs.places import check_file
    from manifed.runs.report.figures import picture

    if plot is not None:
        check_file("--plot", plot)
    experiment = checked_config(config, sets)
    rows = planned_curve(experiment.setting, facts_of(experiment).sizes)
    label = plan_label(experiment.setting)
    sys.stdout.write(f"privacy: {label}\n")
    for row in rows:
        shown = "  ".join(f"{k} {v:.4g}" for k, v in row.items() if k != "round")
        sys.stdout.write(f"round {row['round']:<6d} {shown}\n")
    if plot is not None:
        names = {name: f"{name} (unsound)" if name == "published" else name for name in rows[0]}
        rounds = np.array([row["round"] for row in rows], dtype=np.float64)
        lines = {
            words: (rounds, np.array([[row[name] for row in rows]], dtype=np.float64))
            for name, words in names.items()
            if name != "round"
        }
        drawn = picture(lines, "round", "epsilon", title=f"{experiment.name}: {label}")
        write_atomically(plot, drawn)
        sys.stdout.write(f"figure: {plot}\n")
    if as_json:
        print_json({"label": label, "curve": rows})
