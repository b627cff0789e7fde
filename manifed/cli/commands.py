"""The commands ``manifed ...`` but ``run`` and ``privacy``: configs, finished runs, a site."""

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from manifed.cli.options import (
    QUICKSTART,
    ConfigPath,
    DataDir,
    Json,
    Sets,
    print_json,
    print_table,
)
from manifed.errors import ConfigError, one_line
from manifed.runs.interrupt import Ended


def plan(
    config: ConfigPath = QUICKSTART,
    sets: Sets = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where the config of the best method is written.")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Predict what each method makes of the budget, best first; nothing is run or spent."""
    from manifed.experiment.load import parse, save, table_of
    from manifed.experiment.planner import planned, with_option
    from manifed.plan import plan_label

    table = table_of(config, tuple(sets or ()))
    found = planned(table, parse)
    made = [with_option(table, option) for option in found]
    label = plan_label(parse(made[0]).setting)
    shown = [
        {
            "method": option.name,
            "predicted_gap": option.gap,
            "num_rounds": option.num_rounds,
            "step_size": getattr(option.training, "step_size", None),
            "noise_multiplier": option.noise_multiplier,
            "numbers_up": option.numbers_up,
        }
        for option in found
    ]
    typer.echo(f"privacy: {label}")
    print_table(shown)
    kind = table["problem"]["kind"]
    typer.echo(
        f"nothing is predicted for problem.kind = {kind!r}: the safe default (docs/choosing.md)"
        if found[0].gap is None
        else "gap: (f(x) - f*) / |f*|, a mean over runs, for a guessed problem (docs/choosing.md)"
    )
    if out is not None:
        save(parse(made[0]), out)
        typer.echo(f"config: {out}")
    parts = [
        {"training": one["training"], "strategy": one.get("strategy"), "l2_norm_clip": option.clip}
        for one, option in zip(made, found, strict=True)
    ]
    methods = [row | part for row, part in zip(shown, parts, strict=True)]
    print_json({"label": label, "methods": methods})


def audit(
    config: ConfigPath = QUICKSTART,
    trials: Annotated[int, typer.Option(min=40, help="Runs on each dataset.")] = 20000,
    sets: Sets = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Attack the mechanism: the epsilon that an attack proves, beside the one that is claimed."""
    from manifed.audit.bound import find_strongest
    from manifed.audit.of_config import attacks_of
    from manifed.cli.launch import checked_config
    from manifed.plan import plan_label

    experiment = checked_config(config, sets)
    label = plan_label(experiment.setting)
    typer.echo(f"privacy: {label}")
    best, found = find_strongest(attacks_of(experiment, trials))
    for finding in found:
        typer.echo(f"{finding.line()}\n  {finding.audited.how}")
    attacks = [finding.plain() for finding in found]
    print_json({"label": label} | best.plain() | {"attacks": attacks})
    if any(finding.verdict.is_violated for finding in found):
        raise typer.Exit(1)


def sweep(
    config: ConfigPath,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=V[,V...]", help="One value, or several; repeatable."),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds of each setting: 0-4, or 1,7.")] = "0",
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Runs beside each other.")] = 1,
    out: Annotated[Path | None, typer.Option("--out", help="Where the runs go.")] = None,
    measure: Annotated[
        str | None, typer.Option(help="The measured column that the table compares.")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Run a config over several values and seeds; a table, curves, and on again if interrupted."""
    from manifed.cli import sweep as of_runs
    from manifed.flower.run_config import find

    of_runs.sweep(find(config), sets or (), seeds, jobs, out, measure)


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Run folders; of several, those that are none are skipped."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The folder for page and figures (one run: its own; several: ./report)."),
    ] = None,
    is_server_view: Annotated[
        bool,
        typer.Option(
            "--server-view",
            help="Show what only the server may see; it voids the secrecy of the sample.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write one page (report.html) and figures of runs, and print their table."""
    from manifed.durable import write_atomically
    from manifed.runs.export import viewed
    from manifed.runs.places import check_file, check_new
    from manifed.runs.report import HEADER, curves_of, page_of, read, rows_of, write_figures

    kept = [one for one in folders if len(folders) == 1 or (one / "manifest.json").is_file()]
    for folder in folders:
        if not folder.exists():
            raise ConfigError(f"Expected a run folder, got {folder}, which is not there")
        if folder not in kept:
            skipped = one_line(str(folder), 300)
            typer.echo(f"skipped: {skipped} holds no manifest.json", err=True)
    runs = [viewed(read(one), is_server_view=is_server_view) for one in kept or folders]
    home = out or (folders[0] if len(folders) == 1 else Path("report"))
    page = home / "report.html"
    check_new("--out", home)
    content = page_of(runs, is_server_view=is_server_view).encode()
    home.mkdir(parents=True, exist_ok=True)
    check_file("--out", page)
    write_atomically(page, content)
    paths = [page, *write_figures(curves_of(runs), home)]
    print_table([dict(zip(HEADER, row, strict=True)) for row in rows_of(runs)])
    told = [(run.manifest.get("privacy") or {}).get("doubts", ()) for run in runs]
    notes = dict.fromkeys(f"note: {doubt}" for some in told for doubt in some)
    typer.echo("\n".join([*notes, *map(str, paths)]))
    print_json({"files": [str(path) for path in paths], "is_server_view": is_server_view})


def export(
    directory: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    as_json: Json = False,
) -> None:
    """Write what may be published of a run: no cohorts, no traffic, no checksum of the data."""
    from manifed.runs.export import export as write
    from manifed.runs.folder import RunFolder, json_object
    from manifed.runs.statement import label_in_manifest

    paths = write(directory, out)
    manifest = json_object(RunFolder(out).manifest_path)
    label, doubts = label_in_manifest(manifest), (manifest["privacy"] or {}).get("doubts", [])
    lines = [f"privacy: {label}", *(f"note: {doubt}" for doubt in doubts), *map(str, paths)]
    typer.echo("\n".join(lines))
    print_json({"label": label, "doubts": doubts, "files": [path.name for path in paths]})


_REHEARSAL = (
    "REHEARSAL: this site answers with noise that anybody can subtract. It protects nobody; use "
    "made-up data only."
)


def site(
    ledger: Annotated[
        Path, typer.Option(help="The folder that names the data set and keeps its ledger.")
    ],
    partition: Annotated[int, typer.Option(min=0, help="Which client of a federation this is.")],
    max_epsilon: Annotated[float, typer.Option(help="What all answers together may cost.")],
    delta: Annotated[float, typer.Option(help="At which delta.")],
    socket: Annotated[Path, typer.Option(help="Where the SuperNode's user finds this process.")],
    data: Annotated[
        Path | None, typer.Option(help="The site's own file; else the data set of the experiment.")
    ] = None,
    config: Annotated[
        list[Path] | None, typer.Option(help="An experiment to answer: the site's own copy.")
    ] = None,
    allow_config: Annotated[
        list[str] | None, typer.Option(help="Hash of an experiment to answer (config_sha256).")
    ] = None,
    num_examples: Annotated[
        int | None, typer.Option(min=1, help="N_i, public, where the experiment names none.")
    ] = None,
    allow_user: Annotated[
        list[str] | None,
        typer.Option(help="A user who may connect, beside this process's own (the SuperNode's)."),
    ] = None,
    socket_group: Annotated[
        str | None, typer.Option(help="The group that the socket is given to.")
    ] = None,
    accept_changed_data: Annotated[
        bool, typer.Option(help="The file changed and is the same people's.")
    ] = False,
    ledger_head: Annotated[
        list[str] | None, typer.Option(help="A head that was printed earlier: detects a rollback.")
    ] = None,
    rehearsal: Annotated[
        bool, typer.Option(help="Take seeded noise too, which protects nobody.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Own one file, its budget and its noise; answer a SuperNode over a Unix socket."""
    from manifed.site import process
    from manifed.site.site import Wanted

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    if rehearsal:
        process.say(_REHEARSAL)
    os.umask(0o077)
    wanted = Wanted(
        folder=ledger,
        partition=partition,
        max_epsilon=max_epsilon,
        delta=delta,
        socket=socket,
        data=data,
        configs=tuple(config or ()),
        hashes=tuple(allow_config or ()),
        num_examples=num_examples,
        users=tuple(allow_user or ()),
        group=socket_group,
        is_changed_data_accepted=accept_changed_data,
        heads=tuple(ledger_head or ()),
        is_rehearsal=rehearsal,
    )
    try:
        process.run(wanted, print_json)
    except Ended:  # how a service is stopped
        raise typer.Exit(0) from None
