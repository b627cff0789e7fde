"""The commands ``manifed privacy ...``: prices, statements and ledgers; nothing is run."""

import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from manifed.graphs.graph import Graph
    from manifed.privacy.secldp import Correlated, Rounds

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
        proved = evidence_of(file.parent, key=key)
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
    from manifed.runs.report import picture

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


def series(
    config: Annotated[
        Path | None, typer.Argument(help="Schedules, C and noise (docs/time_varying.md).")
    ] = None,
    example: Annotated[int | None, typer.Option(help="1 or 2: the paper's own.")] = None,
    rounds: Annotated[int, typer.Option(min=1, max=10**7, help="K.")] = 100_000,
    delta: Annotated[float, typer.Option(help="Of Gaussian noise's epsilon.")] = 1e-5,
    as_json: Json = False,
) -> None:
    """Price rounds of distributed optimisation with growing samples.

    ``manifed privacy statement`` prices the rounds of an experiment; ``python -m
    reproduction.endless`` prices infinitely many rounds, and judges the theorems' conditions.
    """
    from pydantic import ValidationError

    from manifed.errors import ConfigError, one_line
    from manifed.experiment.load import read_toml
    from manifed.experiment.paths import fault
    from manifed.privacy.series import Releases, epsilon_of_rho
    from manifed.schedules.schedule import EXAMPLES

    if not 0 < delta < 1:
        fail(f"--delta: expected 0 < delta < 1, got {delta:g}")
    if (config is None) == (example is None):
        fail("expected either a CONFIG or --example")
    if config is None and example not in EXAMPLES:
        fail(f"--example: expected one of {', '.join(map(str, EXAMPLES))}, got {example}")
    try:
        if config is None:
            one = EXAMPLES[example or 0]
            releases = Releases(
                algorithm=one.algorithm, schedules=one.schedules, sensitivity=one.sensitivity
            )
        else:
            table = read_toml(config)
            table.pop("problem", None)
            releases = Releases.model_validate(table)
    except ConfigError as error:
        fail(str(error))
    except ValidationError as error:
        fail(one_line(f"{config}: {fault(error, Releases)}"))
    spent = releases.spent(rounds)
    found: dict[str, float] = {"rounds": rounds, "samples": releases.schedules.samples(rounds)}
    if releases.noise == "laplace":
        found["epsilon_K"] = spent
    else:
        found |= {"rho_K": spent, "delta": delta, "epsilon_K": epsilon_of_rho(spent, delta)}
    lines = [f"privacy: {PLANNED}", *(f"{name} {value:.6g}" for name, value in found.items())]
    sys.stdout.write("\n".join(lines) + "\n")
    if as_json:
        print_json({"label": PLANNED} | found)


_NAMES = ("I", "II", "III", "IV")
"""The paper's, of `manifed.privacy.events.OF_MASKS`."""
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
    from manifed.privacy.events import OF_MASKS
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
