"""The commands ``manifed privacy ...``, which price and check. None of them runs an experiment."""

import math
import os
from pathlib import Path
from typing import Annotated, Any

import click
from typer import Argument, Exit, Option, echo

from manifed.cli.options import QUICKSTART, ConfigPath, DataDir, Sets, answer, print_json
from manifed.errors import ConfigError, named_by


class _Number(click.FloatRange):
    """The type of an option that is a number between two bounds; NaN is refused."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number; an error names the option, the number and its bounds."""
        found = super().convert(value, param, ctx)
        return self.fail(f"{value} is no number", param, ctx) if math.isnan(found) else found


_POSITIVE = _Number(0, math.inf, min_open=True, max_open=True)
_SHARE = _Number(0, 1, min_open=True, max_open=True)
_MOST = 10**9
"""Rounds, clients and steps that the accountants count to."""
_Delta = Annotated[float, Option(click_type=_SHARE, help="Delta of the whole price.")]


def statement(
    config: ConfigPath = QUICKSTART,
    sets: Sets = None,
    data_dir: DataDir = None,
) -> None:
    """Print the privacy statement that a whole run would end with.

    It assumes that every client can be drawn in every round. Nothing is run.
    """
    from manifed.cli.launch import checked_config
    from manifed.experiment.assembly import facts_of
    from manifed.plan import planned_statement
    from manifed.runs.statement import statement_of

    experiment = checked_config(config, sets)
    plan = planned_statement(experiment.setting, facts_of(experiment).sizes)
    echo(statement_of(plan))
    print_json(plan)


def ledger(
    path: Annotated[
        Path, Argument(help="A ledger.jsonl, or the folder (of a run or site) that holds it.")
    ],
    delta: Annotated[
        float | None,
        Option(
            click_type=_Number(0, 1), help="Delta of the price. A site's ledger states its own."
        ),
    ] = None,
    ledger_key: Annotated[
        Path | None, Option(help="Key file of the ledger (default: $MANIFED_LEDGER_KEY_FILE).")
    ] = None,
    head: Annotated[
        list[str] | None,
        Option(help="Head that was printed earlier and must be in the chain. Repeatable."),
    ] = None,
) -> None:
    """Verify the chain of a ledger and price all of it.

    It prints epsilon for every adversary.
    """
    from manifed.privacy import ledger
    from manifed.privacy.events import AUTHENTICITY
    from manifed.privacy.statement import audit_ledger
    from manifed.runs.evidence import evidence_of
    from manifed.runs.folder import check_regular
    from manifed.runs.places import real

    place = real("PATH", path)
    file = place / "ledger.jsonl" if place.is_dir() else path
    check_regular(file, "a ledger", most=1 << 40)
    key = ledger.ledger_key(ledger_key)
    found = audit_ledger(file, delta, key=key, anchors=map(ledger.Head.parse, head or ()))
    if any(os.path.lexists(file.with_name(name)) for name in ("manifest.json", "experiment.toml")):
        proved = evidence_of(file.parent, key=key)
        found |= {"label": proved.label, "doubts": list(proved.doubts)}
    delta = found["delta"]
    authenticity = AUTHENTICITY[found["authenticity"]]
    echo(
        f"privacy: {found['label']}\n"
        f"chain intact: {found['entries']} entries, {found['charges']} charges\n"
        f"ledger head: {found['head']}\n{authenticity}"
    )
    for doubt in found.get("doubts", ()):
        if not doubt.endswith(authenticity):  # said already
            echo(f"note: {doubt}")
    for one in found["adversaries"]:
        echo(
            f"{one['name']}: ({one['epsilon']:.6g}, {delta:g})-DP, unit {one['unit']}, "
            f"{one['neighboring_relation']}, against {one['text']}"
        )
    if limits := found.get("limits"):
        echo(f"site's limit: epsilon {limits['epsilon']:g} at {limits['delta']:g}")
    print_json(found)


def app(
    path: Annotated[
        Path | None,
        Argument(help="Folder of a Flower app (default: this one). It is read, never imported."),
    ] = None,
    wrapper: Annotated[
        str | None,
        Option(
            click_type=click.Choice(["fixed", "adaptive", "local", "opacus"]),
            help="Price the settings that --set gives to this wrapper, without an app.",
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        Option("--set", metavar="NAME=VALUE", help="One setting, for example num_rounds=20."),
    ] = None,
    sampling: Annotated[
        str | None,
        Option(
            click_type=click.Choice(["own", "poisson", "fixed-size"]),
            help="How secret coins draw cohorts, which are cheaper for an outsider; own: none do.",
        ),
    ] = None,
    population: Annotated[
        int | None, Option(min=1, max=_MOST, help="Number of clients that cohorts are drawn from.")
    ] = None,
    inner: Annotated[str | None, Option(help="Name of the strategy that is wrapped.")] = None,
) -> None:
    """Price what the privacy settings of a Flower app really buy.

    It prints epsilon for each adversary, and findings with a place and a remedy. The exit code is 1
    if there is a finding.
    """
    from manifed.cli.app import audited

    found = audited(
        path, wrapper, sets or (), sampling=sampling, population=population, inner=inner
    )
    read = [
        ", ".join(f"{name}={value}" for name, value in one.items()) for one in found["wrappers"]
    ]
    lines = [f"{one['code']} {one['place']}: {one['text']}" for one in found["findings"]]
    answer(found, *read, *lines, rows=found["prices"])
    if lines:
        raise Exit(1)


def reconcile(
    run_dir: Annotated[Path, Argument(help="Run folder of the server.")],
    site_dir: Annotated[Path, Argument(help="Ledger folder of a site.")],
    run: Annotated[
        str | None, Option(help="Flower's number of the run, if its config ran more than once.")
    ] = None,
) -> None:
    """Compare the ledger of a run with that of a site.

    It prints whether they agree on the rounds that both charged.
    """
    from manifed.site.account import compared

    found = compared(run_dir / "ledger.jsonl", site_dir / "ledger.jsonl", run)
    said = "agree" if found.is_whole else "DISAGREE"
    by_one = f"{len(found.only_site)} by the site alone, {len(found.only_server)} by the server"
    echo(
        f"client {found.partition}: the ledgers {said}: {len(found.both)} rounds charged alike, "
        f"{len(found.differing)} otherwise, {by_one} alone (lost, refused or absent)"
    )
    print_json(found._asdict() | {"is_whole": found.is_whole})
    if not found.is_whole:
        raise Exit(1)


def calibrate(
    target_epsilon: Annotated[
        float, Option(click_type=_POSITIVE, help="Epsilon of all steps together.")
    ],
    target_delta: _Delta,
    steps: Annotated[int, Option(min=1, max=_MOST, help="Number of noised gradients (or rounds).")],
    sampling_probability: Annotated[
        float,
        Option(
            click_type=_Number(0, 1, min_open=True),
            help="Poisson sampling rate of a step. 1: all examples.",
        ),
    ] = 1.0,
) -> None:
    """Find the least noise multiplier for a target.

    Neighbours are add-or-remove. The result never exceeds the target.
    """
    from manifed.privacy.epsilon_bounds import epsilon, least_multiplier
    from manifed.privacy.events import PoissonSampled, Release

    def cost(multiplier: float) -> float:
        release = Release(
            unit="example",
            neighboring_relation="add-or-remove",
            noise_multiplier=multiplier,
            sampling=PoissonSampled(sampling_probability=sampling_probability),
            count=steps,
        )
        return epsilon([release], target_delta)

    with named_by("calibrate", ValueError):
        found = least_multiplier(cost, target_epsilon)
    spent = cost(found)
    answer(
        {"noise_multiplier": found, "epsilon": spent, "delta": target_delta},
        f"noise multiplier {found:.6g} (noise over sensitivity) costs "
        f"({spent:.6g}, {target_delta:g}) over {steps} steps",
    )


def curve(
    config: ConfigPath = QUICKSTART,
    plot: Annotated[Path | None, Option(help="File for the figure (PNG).")] = None,
    sets: Sets = None,
    data_dir: DataDir = None,
) -> None:
    """Compute epsilon by round for every adversary."""
    import numpy as np

    from manifed.cli.launch import checked_config
    from manifed.durable import write_atomically
    from manifed.experiment.assembly import facts_of
    from manifed.plan import planned_curve
    from manifed.runs.places import check_file
    from manifed.runs.report import picture

    if plot:
        check_file("--plot", plot)
    experiment = checked_config(config, sets)
    rows = planned_curve(experiment.setting, facts_of(experiment).sizes)
    label = experiment.setting.plan_label
    lines = list[str]()
    if plot:
        columns = {name: np.array([row[name] for row in rows], dtype=float) for name in rows[0]}
        rounds = columns.pop("round")
        curves = {
            f"{name} (unsound)" if name == "published" else name: (rounds, column[None])
            for name, column in columns.items()
        }
        write_atomically(
            plot, picture(curves, "round", "epsilon", title=f"{experiment.name}: {label}")
        )
        lines.append(f"figure: {plot}")
    answer({"curve": rows}, *lines, rows=rows, label=label)


def secldp(
    graph: Annotated[
        str, Option(help="Graph: ring, torus, complete, star, exponential, or a file of edges.")
    ],
    nodes: Annotated[int, Option(min=1, max=5000, help="Number of nodes, n.")],
    sigma_cdp: Annotated[
        float, Option(click_type=_POSITIVE, help="Standard deviation of a node's own noise.")
    ],
    sigma_cor: Annotated[
        float,
        Option(
            click_type=_Number(0, math.inf, max_open=True),
            help="Standard deviation of one pairwise mask.",
        ),
    ],
    clip: Annotated[float, Option(click_type=_POSITIVE, help="L2 bound of a gradient, C.")] = 1.0,
    collusion: Annotated[int, Option(min=0, help="Number of colluding nodes, q.")] = 0,
    rounds: Annotated[int, Option(min=1, max=_MOST, help="Number of rounds, T.")] = 1,
    delta: _Delta = 1e-5,
) -> None:
    """Price masks that cancel along a graph (DECOR).

    It prints the Renyi slope of one round against q colluding nodes (Algorithm 3; exact where
    `is_exact`), Theorem 6's bound, and the price of all rounds for the adversaries I to IV.
    """
    if collusion >= nodes:
        raise ConfigError(f"--collusion: expected less than --nodes = {nodes}, got {collusion}")
    from pydantic import ValidationError

    from manifed.algorithms.decor import Decor
    from manifed.experiment.paths import fault
    from manifed.privacy.events import OF_MASKS
    from manifed.privacy.secldp import Correlated, theorem_bound, worst

    named = {"kind": "edges", "path": graph} if Path(graph).is_file() else {"kind": graph}
    try:
        network = Decor.model_validate(
            {"step_size": 1.0, "num_nodes": nodes, "graph": named}
        ).secret_graph
    except ValueError as error:
        said = fault(error, Decor) if isinstance(error, ValidationError) else error
        raise ConfigError(f"--graph: {said}") from None
    noise = Correlated(sigma_cdp, sigma_cor)
    slope = 2 * clip**2
    met = worst(network, noise, collusion)
    bound = slope * theorem_bound(network, noise, collusion)
    kind = 3 if collusion == nodes - 1 else min(collusion, 2)
    names = ("I", "II", "III", "IV")  # the paper's
    adversary = names[kind]
    text = OF_MASKS[kind].text
    totals = dict[str, dict[str, Any]]()
    for name, size in zip(names, (0, 1, max(2, collusion), nodes - 1), strict=True):
        if size < nodes:
            against = worst(network, noise, size)
            totals[name] = {
                "collusion": size,
                "epsilon": against.epsilon(delta, rounds, 2 * clip),
                "is_exact": against.is_exact,
            }
    answer(
        {
            "epsilon_step": slope * met.precision,
            "theorem_bound": bound,
            "worst_node": met.node,
            "coalition": met.coalition,
            "is_exact": met.is_exact,
            "adversary": adversary,
            "adversary_text": text,
            "rounds": rounds,
            "delta": delta,
            "totals": totals,
        },
        f"adversary {adversary}: {text}",
        f"one round: Renyi slope {slope * met.precision:.6g} "
        f"({'exact' if met.is_exact else 'a proved upper bound'}), Theorem 6: {bound:.6g}",
        f"{rounds} rounds, delta {delta:g}:",
        rows=[{"adversary": name} | total for name, total in totals.items()],
    )


def secure_sum(
    nodes: Annotated[int, Option(min=2, max=10**5, help="Number of nodes, n.")],
    rounds: Annotated[int, Option(min=1, max=_MOST, help="Number of rounds, T.")],
    epsilon: Annotated[
        float, Option(click_type=_POSITIVE, help="Epsilon of all rounds against the coalition.")
    ],
    delta: _Delta = 1e-5,
    examples: Annotated[
        int | None, Option(min=1, max=_MOST, help="Examples of all nodes, unless --client-level.")
    ] = None,
    dropped: Annotated[
        float,
        Option(
            click_type=_Number(0, math.inf, max_open=True),
            help="Nodes that may fall silent in a round: a number, or below 1 a share.",
        ),
    ] = 0.0,
    collusion: Annotated[int, Option(min=0, help="Number of colluding nodes, c.")] = 0,
    dimension: Annotated[int, Option(min=1, max=_MOST, help="Integers of an upload, d.")] = 64,
    client_level: Annotated[bool, Option("--client-level", help="Protect every client.")] = False,
    replace_one: Annotated[
        bool, Option("--replace-one", help="Neighbours differ in one unit, none is missing.")
    ] = False,
) -> None:
    """Plan sums that nobody opens alone.

    It prints the noise multiplier z, the integers (b bits, norm B, variance sigma^2 a node), the
    bytes of a node by exchange (points in float64, keys pinned), and epsilon by adversary.
    """
    from bisect import bisect_left

    import torch

    from manifed.algorithms.rsgd import RSGD
    from manifed.algorithms.secure_mean import SecureMean
    from manifed.algorithms.tangent_mean import TangentMean
    from manifed.manifolds.euclidean import Euclidean
    from manifed.privacy import epsilon_bounds
    from manifed.privacy.events import Release
    from manifed.privacy.mechanism import ExampleMechanism, Noise

    if not client_level and (examples or 0) < nodes:
        raise ConfigError(
            f"--examples: expected at least --nodes = {nodes} without --client-level, got "
            f"{examples}"
        )
    relation = "replace-one" if replace_one else "add-or-remove"

    def price(multiplier: float) -> float:
        release = Release(
            unit="example", neighboring_relation=relation, noise_multiplier=multiplier, count=rounds
        )
        return epsilon_bounds.epsilon([release], delta)

    z = bisect_left(range(10**15), x=True, key=lambda step: price(step / 1e9) <= epsilon) / 1e9
    if price(z) > epsilon:
        raise ConfigError(f"--epsilon: {epsilon:g} takes a noise multiplier over 1e6; raise it")
    with named_by("--dropped, --collusion, --epsilon", ValueError):
        made = SecureMean(
            client_update=RSGD(step_size=1.0),
            server_update=TangentMean(),
            unit="client" if client_level else "example",
            sizes=(1 if client_level else (examples or 0) - nodes + 1, *[1] * (nodes - 1)),
            rates=(1.0,) * nodes,
            max_dropped=dropped,
            collusion=collusion,
            pinned_keys="/",
            signing_keys="/",
            is_seeded=False,
            mechanism=ExampleMechanism(
                l2_norm_clip=1.0, neighboring_relation=relation, noise=Noise(multiplier=z)
            ),
        )
        made._manifold = Euclidean()
        numbers = made.numbers
        coding = numbers.of(nodes, dimension)
        phases = made.phases
    silent = numbers.dropped(nodes)
    known = {"coalition": collusion, "server": 0, "one-node": 1, "everybody": nodes - 1}

    def against(name: str, gone: int) -> float:
        return price(coding.multiplier(max(1, nodes - gone - known[name])))

    exchanges = {
        phase.name: {
            way: sum(
                math.prod(size) * dtype.itemsize
                for size, dtype in kind.layout((dimension,), torch.float64).values()
            )
            for way, kind in (("down", phase.down), ("up", phase.up))
        }
        for phase in phases
    }
    prices = [
        {
            "adversary": name,
            "epsilon": against(name, 0),
            "epsilon_with_silent_nodes": against(name, silent),
        }
        for name in known
    ]
    facts = {
        "bits": coding.bits,
        "bound": coding.bound,
        "variance": coding.variance,
        "delta": delta,
    }
    answer(
        {"noise_multiplier": z, **facts, "silent": silent, "neighbours": made.degree,
         "bytes": exchanges, "adversaries": prices},
        f"noise multiplier {z:.8g}; integers of {coding.bits} bits and of norm at most "
        f"{coding.bound}; a share of variance {coding.variance} from each node",
        "bytes of a node down and up: "
        + ", ".join(f"{k} {one['down']} and {one['up']}" for k, one in exchanges.items()),
        f"epsilon of {rounds} rounds at delta {delta:g}, with nobody and with {silent} silent:",
        rows=prices,
    )  # fmt: skip
