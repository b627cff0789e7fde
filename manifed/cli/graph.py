"""``manifed graph``: the communication graph of a config, drawn and measured."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from manifed.cli.correlated import MOST_NODES, built
from manifed.cli.options import Sets, fail
from manifed.runs.document import Json, print_json

if TYPE_CHECKING:
    from manifed.graphs.constants import Constants
    from manifed.graphs.graph import Graph
    from manifed.graphs.mixing import Weights


def graph(
    config: Annotated[
        str | None, typer.Argument(help="A TOML file whose training has a graph.")
    ] = None,
    sets: Sets = None,
    spec: Annotated[
        str | None,
        typer.Option(
            "--graph", help="ring, torus, complete, star, exponential, or a file of edges."
        ),
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=1, max=MOST_NODES, help="n.")] = None,
    collusion: Annotated[
        int, typer.Option(min=0, max=20, help="q: connectivity when so many nodes have left.")
    ] = 2,
    plot: Annotated[bool, typer.Option("--plot", help="Draw it too.")] = False,
    out: Annotated[Path, typer.Option(help="The PNG that --plot writes.")] = Path("graph.png"),
    as_json: Json = False,
) -> None:
    """What a graph is to DECOR: degrees, connectivities, the rate of mixing, what masks leave.

    Of a config, or of --graph and --nodes.
    """
    from manifed.durable import write_atomically
    from manifed.graphs.constants import constants_of

    if (config is None) == (spec is None) or (spec is None) != (nodes is None):
        fail("CONFIG, --graph, --nodes: expected a config, or both options and no config")
    if sets and config is None:
        fail("--set: expected a config beside it, got none")
    if plot and (out.is_dir() or not out.resolve().parent.is_dir()):
        fail(f"--out: expected a file in a folder that is there, got {str(out)!r}")
    if config is not None:
        name, made, weights = _of_config(config, tuple(sets or ()))
    else:
        assert spec is not None
        assert nodes is not None
        name, made, weights = _of_name(spec, nodes)
    found = constants_of(made, weights, collusion)
    sys.stdout.write(shown(name, found))
    if plot:
        from manifed.graphs.drawing import png_of

        write_atomically(out, png_of(made, weights, shown(name, found).strip()))
        sys.stdout.write(f"drawn: {out}\n")
    if as_json:
        print_json({"graph": name, **asdict(found), "degrees": list(made.degrees)})


def _of_name(spec: str, nodes: int) -> "tuple[str, Graph, Weights]":
    from manifed.graphs.mixing import metropolis_hastings

    made = built(spec, nodes)
    return f"{spec}, {nodes} nodes", made, metropolis_hastings(made)


def _of_config(config: str, sets: tuple[str, ...]) -> "tuple[str, Graph, Weights]":
    """The graph on which a config trains, and its own mixing; no data set is read."""
    from manifed.algorithms.gossip import OnGraph
    from manifed.cli.launch import Request, load_or_exit

    experiment = load_or_exit(Request(config, sets), fail)
    training = experiment.training
    if not isinstance(training, OnGraph):
        fail(
            f"training.kind: expected one that trains on a graph ('gossip'), got "
            f"{training.kind!r}, whose clients all talk to the server"
        )
    network = training.network
    name = f"{experiment.name}: {training.graph.kind}, {network.graph.num_nodes} nodes"
    return name, network.graph, network.weights


def shown(name: str, found: "Constants") -> str:
    """The constants in words, a few lines."""
    degrees = f"{found.least_degree}"
    if found.greatest_degree != found.least_degree:
        degrees += f" to {found.greatest_degree}"
    parts = "" if found.components == 1 else f", {found.components} components"
    text = (
        f"{name}: {found.edges} edges, degree {degrees}{parts}\n"
        f"algebraic connectivity a(G) = {found.algebraic_connectivity:.6g}"
    )
    for less in found.without:
        sign = "=" if less.is_exact else ">="
        text += f", a_{less.nodes_gone}(G) {sign} {less.value:.6g}"
    return text + (
        f"\nmixing: p = {found.consensus_rate:.6g}, H_G(W) = {found.heterogeneity:.6g}, "
        f"|W - 11^T/n|^2 = {found.distance_to_mean:.6g}\n"
    )
