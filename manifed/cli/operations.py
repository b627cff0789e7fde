"""The commands for the days of a run: doctor before it, status and watch in it, extend after it."""

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from manifed.cli.options import DataDir, fail, use_data_dir
from manifed.runs.document import Json, print_json

RunDir = Annotated[Path, typer.Argument(help="The folder of a run.", metavar="RUN_DIR")]


def extend(
    directory: RunDir,
    rounds: Annotated[int, typer.Option(min=1, max=10**9, help="Of the whole run, past included.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Give a run more rounds: an entry of its ledger, refused beyond the budget."""
    use_data_dir(data_dir)
    from manifed.cli.launch import guarded
    from manifed.runs.extend import extend as extended

    found = guarded(lambda: extended(directory, rounds), fail)
    sys.stdout.write(found.text() + "\n")
    if as_json:
        print_json(found.data())


def status(
    directory: RunDir,
    watch: Annotated[
        float | None, typer.Option(min=0.1, help="Look again every so many seconds.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show where a run is: round, who is missing, spending, last error, what to do next."""
    from manifed.cli.launch import guarded
    from manifed.runs.status import status_of

    while True:
        found = guarded(lambda: status_of(directory), fail)
        if as_json:
            print_json(found.data())
        else:
            sys.stdout.write(found.text() + "\n")
        sys.stdout.flush()
        if watch is None or found.state != "running":
            return
        time.sleep(watch)
        if not as_json:
            sys.stdout.write("\n")


def watch(
    directory: RunDir,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    is_server_view: Annotated[
        bool, typer.Option("--server-view", help="Also who answered, who failed, what was spent.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Watch a run in another process: curves, clients and budget, until it ends."""
    from manifed.cli.launch import guarded
    from manifed.runs.interrupt import Ended
    from manifed.runs.progress import is_screen
    from manifed.runs.watching import View, rendered, view_of

    def look() -> View:
        return guarded(lambda: view_of(directory, is_server_view=is_server_view), fail)

    view = look()
    try:
        if is_screen(sys.stdout) and not as_json:
            from rich.console import Console
            from rich.live import Live

            with Live(rendered(view), console=Console(), auto_refresh=False) as live:
                while view.state == "running":
                    time.sleep(every)
                    view = look()
                    live.update(rendered(view), refresh=True)
            return
        told = None
        for doubt in () if as_json else view.doubts:
            sys.stdout.write(f"note: {doubt}\n")
        while True:
            if (view.state, view.round) != told:
                print_json(view.data()) if as_json else sys.stdout.write(view.line() + "\n")
                sys.stdout.flush()
            told = view.state, view.round
            if view.state != "running":
                return
            time.sleep(every)
            view = look()
    except Ended as ended:  # who has seen enough
        raise typer.Exit(ended.code) from None


def doctor(
    config: Annotated[Path | None, typer.Argument(help="The TOML file of the run.")] = None,
    data: Annotated[Path | None, typer.Option(help="This site's own file.")] = None,
    superlink: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The SuperLink that nodes will ask.")
    ] = None,
    root_certificates: Annotated[
        Path | None, typer.Option(help="The authority's certificate, ca.crt.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="This SuperNode's private key.")] = None,
    site_socket: Annotated[Path | None, typer.Option(help="The site's own process.")] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Which client this site is; else any N_i fits.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Examine this machine before the day of a run: each line ok, warn or fail, with what to do."""
    from manifed.doctor.examine import Wanted, examine
    from manifed.doctor.link import Address

    try:
        address = None if superlink is None else Address.parse(superlink)
    except ValueError as error:
        fail(f"--superlink: {error}")
    if config is not None and not config.is_file():
        fail(f"CONFIG: expected a file, got {str(config)!r}, which is none")
    wanted = Wanted(config, data, address, root_certificates, key, site_socket, partition)
    findings = []
    for finding in examine(wanted):
        findings.append(finding)
        if not as_json:
            sys.stdout.write(finding.line() + "\n")
            sys.stdout.flush()
    is_bad = any(finding.level == "fail" for finding in findings)
    if as_json:
        print_json({"is_ready": not is_bad, "findings": [asdict(one) for one in findings]})
    if is_bad:
        raise typer.Exit(1)
