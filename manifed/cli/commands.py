"""The commands ``manifed ...`` but ``run`` and ``privacy``: configs, finished runs, a site."""

import logging
import os
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option, echo

from manifed.cli.options import (
    QUICKSTART,
    ConfigPath,
    DataDir,
    Sets,
    answer,
    print_json,
    print_table,
)
from manifed.errors import ConfigError, one_line
from manifed.runs.interrupt import Ended


def plan(
    config: ConfigPath = QUICKSTART,
    sets: Sets = None,
    out: Annotated[
        Path | None, Option(help="Where the config of the best method is written.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Predict what each method makes of the budget, best first; nothing is run or spent."""
    from manifed.experiment.load import parse, save, table_of
    from manifed.experiment.planner import planned, with_option
    from manifed.plan import plan_label

    table = table_of(config, tuple(sets or ()))
    found = planned(table, parse)
    made = [with_option(table, option) for option in found]
    rows = [
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
    kind = table["problem"]["kind"]
    lines = [
        f"nothing is predicted for problem.kind = {kind!r}: the safe default (docs/choosing.md)"
        if found[0].gap is None
        else "gap: (f(x) - f*) / |f*|, a mean over runs, for a guessed problem (docs/choosing.md)"
    ]
    best = parse(made[0])
    if out is not None:
        save(best, out)
        lines.append(f"config: {out}")
    methods = [
        row
        | {name: one.get(name) for name in ("training", "strategy")}
        | {"l2_norm_clip": option.clip}
        for row, one, option in zip(rows, made, found, strict=True)
    ]
    answer(plan_label(best.setting), {"methods": methods}, *lines, rows=rows)


def audit(
    config: ConfigPath = QUICKSTART,
    trials: Annotated[int, Option(min=40, help="Runs on each dataset.")] = 20000,
    sets: Sets = None,
    data_dir: DataDir = None,
) -> None:
    """Attack the mechanism: the epsilon that an attack proves, beside the one that is claimed."""
    from manifed.audit.bound import find_strongest
    from manifed.audit.of_config import attacks_of
    from manifed.cli.launch import checked_config
    from manifed.plan import plan_label

    experiment = checked_config(config, sets)
    best, found = find_strongest(attacks_of(experiment, trials))
    attacks = [finding.plain() for finding in found]
    lines = [f"{finding.line()}\n  {finding.audited.how}" for finding in found]
    answer(plan_label(experiment.setting), best.plain() | {"attacks": attacks}, *lines)
    if any(finding.verdict.is_violated for finding in found):
        raise Exit(1)


def sweep(
    config: ConfigPath,
    sets: Annotated[
        list[str] | None,
        Option("--set", metavar="A.B=V[,V...]", help="One value, or several; repeatable."),
    ] = None,
    seeds: Annotated[str, Option(help="Seeds of each setting: 0-4, or 1,7.")] = "0",
    jobs: Annotated[int, Option(min=1, max=256, help="Runs beside each other.")] = 1,
    out: Annotated[Path | None, Option(help="Where the runs go.")] = None,
    measure: Annotated[
        str | None, Option(help="The measured column that the table compares.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Run a config over several values and seeds; a table, curves, and on again if interrupted."""
    from manifed.cli import sweep as of_runs
    from manifed.flower.run_config import find

    of_runs.sweep(find(config), sets or (), seeds, jobs, out, measure)


def report(
    folders: Annotated[
        list[Path],
        Argument(
            metavar="RUN...", help="Run folders; of several, those that are none are skipped."
        ),
    ],
    out: Annotated[
        Path | None,
        Option(help="The folder for page and figures (one run: its own; several: ./report)."),
    ] = None,
    is_server_view: Annotated[
        bool,
        Option(
            "--server-view",
            help="Show what only the server may see; it voids the secrecy of the sample.",
        ),
    ] = False,
) -> None:
    """Write one page (report.html) and figures of runs, and print their table."""
    from manifed.durable import write_atomically
    from manifed.runs.export import viewed
    from manifed.runs.places import check_file, check_new
    from manifed.runs.report import curves_of, page_of, read, rows_of, write_figures

    kept: list[Path] = []
    for folder in folders:
        if not folder.exists():
            raise ConfigError(f"Expected a run folder, got {folder}, which is not there")
        if len(folders) == 1 or (folder / "manifest.json").is_file():
            kept.append(folder)
        else:
            echo(f"skipped: {one_line(str(folder), 300)} holds no manifest.json", err=True)
    runs = [viewed(read(one), is_server_view=is_server_view) for one in kept or folders]
    home = out or (folders[0] if len(folders) == 1 else Path("report"))
    page = home / "report.html"
    check_new("--out", home)
    content = page_of(runs, is_server_view=is_server_view).encode()
    home.mkdir(parents=True, exist_ok=True)
    check_file("--out", page)
    write_atomically(page, content)
    paths = [page, *write_figures(curves_of(runs), home)]
    print_table([row for _, row in rows_of(runs)])
    told = [(run.manifest.get("privacy") or {}).get("doubts", ()) for run in runs]
    notes = dict.fromkeys(f"note: {doubt}" for some in told for doubt in some)
    echo("\n".join([*notes, *map(str, paths)]))
    print_json({"files": paths, "is_server_view": is_server_view})


def export(
    directory: Annotated[Path, Argument(help="The folder of a finished run.")],
    out: Annotated[Path, Option(help="The folder to make.")],
) -> None:
    """Write what may be published of a run: no cohorts, no traffic, no checksum of the data."""
    from manifed.runs.export import export as write
    from manifed.runs.folder import RunFolder, json_object
    from manifed.runs.statement import label_in_manifest

    paths = write(directory, out)
    manifest = json_object(RunFolder(out).manifest_path)
    doubts = (manifest["privacy"] or {}).get("doubts", [])
    document = {"doubts": doubts, "files": [path.name for path in paths]}
    notes = (f"note: {doubt}" for doubt in doubts)
    answer(label_in_manifest(manifest), document, *notes, *map(str, paths))


_REHEARSAL = (
    "REHEARSAL: this site answers with noise that anybody can subtract. It protects nobody; use "
    "made-up data only."
)


def site(
    ledger: Annotated[
        Path, Option(help="The folder that names the data set and keeps its ledger.")
    ],
    partition: Annotated[int, Option(min=0, help="Which client of a federation this is.")],
    max_epsilon: Annotated[float, Option(help="What all answers together may cost.")],
    delta: Annotated[float, Option(help="At which delta.")],
    socket: Annotated[Path, Option(help="Where the SuperNode's user finds this process.")],
    data: Annotated[
        Path | None, Option(help="The site's own file; else the data set of the experiment.")
    ] = None,
    config: Annotated[
        list[Path] | None, Option(help="An experiment to answer: the site's own copy.")
    ] = None,
    allow_config: Annotated[
        list[str] | None, Option(help="Hash of an experiment to answer (config_sha256).")
    ] = None,
    num_examples: Annotated[
        int | None, Option(min=1, help="N_i, public, where the experiment names none.")
    ] = None,
    allow_user: Annotated[
        list[str] | None,
        Option(help="A user who may connect, beside this process's own (the SuperNode's)."),
    ] = None,
    socket_group: Annotated[
        str | None, Option(help="The group that the socket is given to.")
    ] = None,
    accept_changed_data: Annotated[
        bool, Option(help="The file changed and is the same people's.")
    ] = False,
    ledger_head: Annotated[
        list[str] | None, Option(help="A head that was printed earlier: detects a rollback.")
    ] = None,
    rehearsal: Annotated[
        bool, Option(help="Take seeded noise too, which protects nobody.")
    ] = False,
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
        raise Exit(0) from None
