"""``manifed privacy secldp``: what correlated noise on a graph costs, for each adversary."""

import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manifed.cli.options import Json, fail, print_json
from manifed.privacy.label import PLANNED

if TYPE_CHECKING:
    from manifed.graphs.graph import Graph
    from manifed.privacy.secldp import Correlated, Rounds

_MOST = 10**9
_NAMES = ("I", "II", "III", "IV")
"""The paper's, of `manifed.privacy.adversaries.OF_MASKS`."""
MOST_NODES = 5000


def secldp(
    graph: Annotated[
        str, typer.Option(help="ring, torus, complete, star, exponential, or a file of edges.")
    ],
    nodes: Annotated[int, typer.Option(min=1, max=MOST_NODES, help="n.")],
    sigma_cdp: Annotated[float, typer.Option(help="Deviation of a node's own noise.")],
    sigma_cor: Annotated[float, typer.Option(help="Deviation of one pairwise mask.")],
    clip: Annotated[float, typer.Option(help="C, the L2 bound of a gradient.")] = 1.0,
    collusion: Annotated[
        int, typer.Option(min=0, help="q: how many honest-but-curious nodes collude.")
    ] = 0,
    rounds: Annotated[int | None, typer.Option(min=1, max=_MOST, help="T, for totals.")] = None,
    delta: Annotated[float | None, typer.Option(help="Of the totals.")] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="b: protect examples, Poisson-sampled, not nodes.")
    ] = None,
    examples: Annotated[int | None, typer.Option(min=1, help="m, the examples of a node.")] = None,
    as_json: Json = False,
) -> None:
    """Price masks that cancel along the edges of a graph (DECOR), round by round and in total.

    A round against q colluding nodes: its Renyi slope by Algorithm 3 (exact where `is_exact`), and
    Theorem 6's bound. With --rounds and --delta: what the run costs for the adversaries I to IV.
    """
    for option, value in (("--sigma-cdp", sigma_cdp), ("--clip", clip)):
        if not 0 < value < math.inf:
            fail(f"{option}: expected a finite number > 0, got {value:g}")
    if not 0 <= sigma_cor < math.inf:
        fail(f"--sigma-cor: expected a finite number >= 0, got {sigma_cor:g}")
    if collusion >= nodes:
        fail(f"--collusion: expected less than --nodes = {nodes}, got {collusion}")
    if (rounds is None) != (delta is None):
        fail("--rounds, --delta: expected both or neither")
    if delta is not None and not 0 < delta < 1:
        fail(f"--delta: expected 0 < delta < 1, got {delta:g}")
    if (batch is None) != (examples is None) or (batch or 0) > (examples or 0):
        fail("--batch, --examples: expected both, batch at most examples, or neither")
    from manifed.privacy.secldp import Correlated, Rounds

    sensitivity, rate = 2 * clip, None
    if batch is not None and examples is not None:
        sensitivity, rate = clip / batch, batch / examples
    noise = Correlated(sigma_cdp, sigma_cor)
    whole = None if rounds is None else Rounds(rounds, sensitivity, rate)
    found = priced(built(graph, nodes), noise, clip / (batch or 1), collusion, whole, delta)
    sys.stdout.write(f"privacy: {PLANNED}\n{_shown(found, delta)}")
    if as_json:
        print_json({"label": PLANNED} | found)


def built(name: str, nodes: int) -> "Graph":
    """The graph of a name or a file of edges; one line and exit code 2 where there is none."""
    from pathlib import Path

    from manifed.experiment.paths import nearest
    from manifed.graphs import specs

    kinds = (specs.Ring, specs.Torus, specs.Complete, specs.Star, specs.Exponential)
    known = {kind.model_fields["kind"].default: kind for kind in kinds}
    try:
        if name in known:
            return known[name]().build(nodes)
        if Path(name).is_file():
            return specs.EdgeList(path=Path(name)).build(nodes)
    except ValueError as error:
        fail(f"--graph: {error}")
    meant = nearest(name, known)
    hint = f"; did you mean {meant!r}?" if meant else ""
    return fail(f"--graph: expected {', '.join(known)} or a file of edges, got {name!r}{hint}")


def priced(
    graph: "Graph",
    noise: "Correlated",
    clip: float,
    collusion: int,
    whole: "Rounds | None" = None,
    delta: float | None = None,
) -> dict[str, Any]:
    """One round against so many colluding nodes, and the whole run against everybody.

    ``clip`` is half of what replacing somebody's data moves a message by: C at user level, C / b at
    example level.
    """
    from manifed.privacy.adversaries import OF_MASKS
    from manifed.privacy.secldp import theorem_bound, worst

    n, slope = graph.num_nodes, 2 * clip**2
    met = worst(graph, noise, collusion)
    kind = 3 if collusion == n - 1 else min(collusion, 2)
    found: dict[str, Any] = {
        "epsilon_step": slope * met.precision,
        "theorem_bound": slope * theorem_bound(graph, noise, collusion),
        "worst_node": met.node,
        "coalition": met.coalition,
        "is_exact": met.is_exact,
        "adversary": _NAMES[kind],
        "adversary_text": OF_MASKS[kind].text,
    }
    if whole is None or delta is None:
        return found
    totals: dict[str, Any] = {}
    for name, size in zip(_NAMES, (0, 1, max(2, collusion), n - 1), strict=True):
        if size < n:
            against = worst(graph, noise, size)
            totals[name] = {
                "collusion": size,
                "epsilon": whole.epsilon(against, delta),
                "is_exact": against.is_exact,
            }
    return {**found, "rounds": whole.count, "delta": delta, "totals": totals}


def _shown(found: dict[str, Any], delta: float | None) -> str:
    kind = "exact" if found["is_exact"] else "a proved upper bound"
    text = (
        f"adversary {found['adversary']}: {found['adversary_text']}\n"
        f"one round: Renyi slope {found['epsilon_step']:.6g} ({kind}), "
        f"Theorem 6: {found['theorem_bound']:.6g}\n"
    )
    for name, total in found.get("totals", {}).items():
        text += (
            f"{found['rounds']} rounds, adversary {name} (q = {total['collusion']}): "
            f"({total['epsilon']:.6g}, {delta:g})\n"
        )
    return text
