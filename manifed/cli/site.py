"""The command ``manifed site``: a site's own process."""

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from manifed.cli.options import Json, fail, print_json
from manifed.errors import ConfigError, one_line
from manifed.runs.interrupt import Ended

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
    from manifed.privacy.ledger import LedgerDamaged
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
        process.run(wanted, print_json if as_json else lambda _: None)
    except (ConfigError, LedgerDamaged) as error:
        fail(one_line(str(error), 1500))
    except Ended:  # how a service is stopped
        raise typer.Exit(0) from None
