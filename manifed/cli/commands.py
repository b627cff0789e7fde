"""The commands of ``manifed`` beside ``run``: privacy, engines, report."""

import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from manifed.cli.graph import graph
from manifed.cli.options import QUICKSTART, ConfigPath, DataDir, Sets, fail, use_data_dir
from manifed.cli.plan import plan
from manifed.cli.reproduce import reproduce
from manifed.cli.site import site
from manifed.cli.sweep import sweep
from manifed.errors import ConfigError
from manifed.privacy.label import AUTHENTICITY, PLANNED
from manifed.runs.document import Json, print_json

privacy = typer.Typer(help="Price privacy without running anything.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands to ``manifed``, once."""
    if app.registered_groups:
        return
    from manifed.cli import operations
    from manifed.cli.correlated import secldp
    from manifed.cli.series import series
    from manifed.runs.report.__main__ import report

    privacy.command("secldp")(secldp)
    privacy.command("series")(series)
    app.add_typer(privacy, name="privacy")
    app.command("audit")(audit)
    app.command("engines")(engines)
    app.command("export")(export)
    app.command("graph")(graph)
    app.command("doctor")(operations.doctor)
    app.command("extend")(operations.extend)
    app.command("status")(operations.status)
    app.command("watch")(operations.watch)
    app.command("plan")(plan)
    app.command("report")(report)
    app.command("site")(site)
    app.command("sweep")(sweep)
    app.command("reproduce")(reproduce)


_MOST = 10**9
"""Rounds, clients and steps that the accountants count to."""


def _check(option: str, value: float, expected: str, is_met: bool) -> None:
    """End with one line unless ``is_met``; NaN meets nothing."""
    if not is_met:
        fail(f"{option}: expected {expected}, got {value:g}")


@privacy.command("compare")
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
    from manifed.privacy.published import compare as price

    found = price(
        local_epsilon=local_epsilon,
        local_delta=local_delta,
        num_clients=clients,
        cohort_size=cohort_size,
        num_rounds=rounds,
        slack_delta=slack_delta,
    )
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


@privacy.command("statement")
def statement(
    config: ConfigPath = QUICKSTART,
    sets: Sets = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """The privacy statement that a config's whole run would end with, everybody invited always."""
    use_data_dir(data_dir)
    from manifed.cli.launch import Request, guarded, load_or_exit
    from manifed.experiment.assembly import facts_of
    from manifed.experiment.privacy import planned_statement
    from manifed.runs.statement import statement_of

    experiment = load_or_exit(Request(config, tuple(sets or ())), fail)
    plan = guarded(lambda: planned_statement(experiment, facts_of(experiment).sizes), fail)
    sys.stdout.write(statement_of(plan) + "\n")
    if as_json:
        print_json(plan)


@privacy.command("ledger")
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
    from manifed.cli.launch import guarded
    from manifed.privacy.account import anchors_of
    from manifed.privacy.account import ledger_key as key_in
    from manifed.privacy.statement import audit_ledger
    from manifed.runs.places import real

    if delta is not None:
        _check("--delta", delta, "0 <= delta <= 1", 0 <= delta <= 1)
    from manifed.runs.evidence import evidence_of
    from manifed.runs.reading import check_regular, is_there
    from manifed.site.audit import limits_in

    def audited() -> dict[str, Any]:
        place = real("PATH", path)
        file = place / "ledger.jsonl" if place.is_dir() else path
        check_regular(file, "a ledger", most=1 << 40)
        limits = limits_in(file)
        at = delta if limits is None or delta is not None else limits.delta
        if at is None:
            raise ConfigError("--delta: required for the ledger of a run, but not given")
        key = key_in(ledger_key)
        found = audit_ledger(file, at, key=key, anchors=anchors_of(head or ()))
        if any(is_there(file.with_name(name)) for name in ("manifest.json", "experiment.toml")):
            proved = evidence_of(file.parent, key)
            found |= {"label": proved.label, "doubts": list(proved.doubts)}
        return found | ({} if limits is None else {"limits": asdict(limits)})

    found = guarded(audited, fail)
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


@privacy.command("reconcile")
def reconcile(
    run_dir: Annotated[Path, typer.Argument(help="The folder of a run, at the server.")],
    site_dir: Annotated[Path, typer.Argument(help="The ledger folder of a site.")],
    run: Annotated[
        str | None, typer.Option(help="Flower's number of the run, if its config ran twice.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Whether a run's ledger and a site's agree on the rounds that both saw (for an auditor)."""
    from manifed.cli.launch import guarded
    from manifed.site.audit import compared

    found = guarded(
        lambda: compared(run_dir / "ledger.jsonl", site_dir / "ledger.jsonl", run), fail
    )
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


@privacy.command("calibrate")
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
    from manifed.cli.launch import guarded
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
    found = guarded(
        lambda: for_steps(target_epsilon, target_delta, steps, sampling_probability), fail
    )
    sys.stdout.write(
        f"privacy: {PLANNED}\n"
        f"noise multiplier {found['noise_multiplier']:.6g} (noise over sensitivity) costs "
        f"({found['epsilon']:.6g}, {target_delta:g}) over {steps} steps\n"
    )
    if as_json:
        print_json({"label": PLANNED} | found)


@privacy.command("curve")
def curve(
    config: ConfigPath = QUICKSTART,
    plot: Annotated[Path | None, typer.Option(help="Where the figure goes (PNG).")] = None,
    sets: Sets = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Epsilon against rounds against every adversary of a config."""
    use_data_dir(data_dir)
    from manifed.cli.launch import Request, guarded, load_or_exit
    from manifed.experiment.assembly import facts_of
    from manifed.experiment.privacy import plan_label, planned_curve
    from manifed.runs.places import check_file
    from manifed.runs.report.curve import draw_curve

    if plot is not None:
        guarded(lambda: check_file("--plot", plot), fail)
    experiment = load_or_exit(Request(config, tuple(sets or ())), fail)
    rows = guarded(lambda: planned_curve(experiment, facts_of(experiment).sizes), fail)
    label = plan_label(experiment)
    sys.stdout.write(f"privacy: {label}\n")
    for row in rows:
        shown = "  ".join(f"{k} {v:.4g}" for k, v in row.items() if k != "round")
        sys.stdout.write(f"round {row['round']:<6d} {shown}\n")
    if plot is not None:
        guarded(lambda: draw_curve(rows, plot, title=f"{experiment.name}: {label}"), fail)
        sys.stdout.write(f"figure: {plot}\n")
    if as_json:
        print_json({"label": label, "curve": rows})


def audit(
    config: ConfigPath = QUICKSTART,
    everything: Annotated[
        bool, typer.Option("--all", help="Every shipped mechanism, and the planted faults.")
    ] = False,
    trials: Annotated[int, typer.Option(min=40, help="Runs on each dataset (one config).")] = 20000,
    seed: Annotated[int, typer.Option(min=0, help="Of the audit's own runs.")] = 0,
    sets: Sets = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Attack the mechanism: the epsilon that an attack proves, beside the one that is claimed."""
    use_data_dir(data_dir)
    from manifed.audit.report import audit_all, find_strongest, line, plain
    from manifed.cli.launch import Request, guarded, load_or_exit
    from manifed.experiment.privacy import plan_label

    def show(finding: Any) -> None:
        sys.stdout.write(line(finding.audited.name, finding.verdict) + "\n")
        sys.stdout.flush()

    if everything:
        label = PLANNED
        sys.stdout.write(f"privacy: {label}\n")
        result = guarded(lambda: audit_all(seed, on_finding=show), fail)
        is_bad = result["violations"] > 0
        is_bad |= result["planted_faults_caught"] < result["planted_faults"]
    else:
        from manifed.audit.of_config import attacks_of

        experiment = load_or_exit(Request(config, tuple(sets or ())), fail)
        label = plan_label(experiment)
        sys.stdout.write(f"privacy: {label}\n")
        best, found = guarded(lambda: find_strongest(attacks_of(experiment, trials)), fail)
        for finding in found:
            show(finding)
            sys.stdout.write(f"  {finding.audited.how}\n")
        result = plain(best) | {"attacks": [plain(finding) for finding in found]}
        is_bad = any(finding.verdict.is_violated for finding in found)
    if as_json:
        print_json({"label": label} | result)
    if is_bad:
        raise typer.Exit(1)


def engines(
    config: ConfigPath = QUICKSTART,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds on each engine.")] = 10,
    clients: Annotated[
        int | None, typer.Option(min=1, help="Clients, if not the config's.")
    ] = None,
    sets: Sets = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Run inline, ray and deployment on one seed and compare the final models."""
    use_data_dir(data_dir)
    from manifed.cli.comparison import compare_engines
    from manifed.cli.launch import guarded

    more = [f"federation.num_clients={clients}"] if clients is not None else []
    overrides = [*(sets or ()), *more, f"federation.num_rounds={rounds}"]
    result = guarded(lambda: compare_engines(config, overrides), fail)
    for name, seconds in result["seconds"].items():
        sys.stdout.write(f"{name:11s} {seconds:8.2f} s\n")
    sys.stdout.write(f"largest difference between final models: {result['max_difference']:.3g}\n")
    if as_json:
        print_json(result)


def export(
    directory: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    as_json: Json = False,
) -> None:
    """Write what may be published of a run: no cohorts, no traffic, no checksum of the data."""
    from manifed.cli.launch import guarded
    from manifed.errors import one_line
    from manifed.runs.reading import json_object
    from manifed.runs.report.public import export as write
    from manifed.runs.run_folder import RunFolder
    from manifed.runs.statement import label_in_manifest

    def written() -> list[Path]:
        try:
            return write(directory, out)
        except (OSError, ValueError) as error:
            fail(one_line(str(error), 1500))

    paths = guarded(written, fail)
    manifest = json_object(RunFolder(out).manifest_path)
    label, doubts = label_in_manifest(manifest), (manifest["privacy"] or {}).get("doubts", [])
    lines = [f"privacy: {label}", *(f"note: {doubt}" for doubt in doubts), *map(str, paths)]
    sys.stdout.write("\n".join(lines) + "\n")
    if as_json:
        files = [path.name for path in paths]
        print_json({"label": label, "doubts": doubts, "files": files})
