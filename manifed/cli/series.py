"""``manifed privacy series``: what growing samples cost, in K rounds and for ever."""

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manifed.cli.options import Json, fail, print_json

if TYPE_CHECKING:
    from manifed.privacy.series import Releases
    from manifed.schedules.conditions import ProblemConstants

_MOST = 10**7


def series(
    config: Annotated[
        Path | None,
        typer.Argument(help="Schedules, C and noise (docs/time_varying.md), or an experiment."),
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="output or gradient: what is perturbed.")
    ] = None,
    example: Annotated[int | None, typer.Option(help="1 or 2: the paper's own.")] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, max=_MOST, help="K; default: the experiment's, else 10^5.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="Say in which round this epsilon (or rho) is spent.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Of Gaussian noise's epsilon.")] = 1e-5,
    as_json: Json = False,
) -> None:
    """Price the rounds of distributed optimisation with growing samples.

    Prints the conditions of the theorems one by one, the cost of K rounds, that of all rounds with
    the bound of its tail, and what the paper's own formula says.
    """
    if not 0 < delta < 1:
        fail(f"--delta: expected 0 < delta < 1, got {delta:g}")
    if budget is not None and not 0 <= budget < math.inf:
        fail(f"--budget: expected a finite number >= 0, got {budget:g}")
    if (config is None) == (example is None):
        fail("expected either a CONFIG or --example")
    constants: ProblemConstants | None = None
    printed: float | None = None
    if config is not None:
        releases, constants, own_rounds = _read(config)
        rounds = rounds or own_rounds
        if algorithm not in {None, releases.algorithm}:
            fail(f"--algorithm: expected {releases.algorithm!r} of {config}, got {algorithm!r}")
    else:
        releases, printed = _example(example, algorithm)
    found = priced(releases, constants, rounds or 100_000, budget, delta)
    if printed is not None:
        found["in_the_text"] = printed
    sys.stdout.write(_shown(found, releases))
    if as_json:
        print_json(found)


def priced(
    releases: "Releases",
    constants: "ProblemConstants | None",
    rounds: int,
    budget: float | None,
    delta: float,
) -> dict[str, Any]:
    """Checks, K rounds, all rounds, the paper's formula, and the round in which a budget ends."""
    from manifed.privacy.series import epsilon_of_rho, printed_epsilon
    from manifed.schedules.conditions import checks

    try:
        conditions = checks(releases.schedules, releases.algorithm, constants)
    except ValueError:  # no power laws: the theorems say nothing
        conditions = []
    found: dict[str, Any] = {
        "algorithm": releases.algorithm,
        "noise": releases.noise,
        "rounds": rounds,
        "checks": [
            {
                "source": one.source,
                "claim": one.claim,
                "holds": one.holds,
                "margin": one.margin,
                "fails": [c.text for c in one.failing],
                **({} if one.rate is None else {"rate": one.rate}),
            }
            for one in conditions
        ],
        "exponents": conditions[0].exponents if conditions else {},
        "samples": releases.schedules.samples(rounds),
    }
    whole = releases.series(rounds)
    if releases.noise == "laplace":
        found |= {
            "epsilon_K": whole.partial,
            "epsilon_infinite": whole.total,
            "epsilon_infinite_at_least": whole.total_low,
            "tail_bound": whole.tail,
            "printed": printed_epsilon(releases, rounds).total,
        }
    else:
        found |= {
            "rho_K": whole.partial,
            "rho_infinite": whole.total,
            "tail_bound": whole.tail,
            "delta": delta,
            "epsilon_K": epsilon_of_rho(whole.partial, delta),
            "epsilon_infinite": epsilon_of_rho(whole.total, delta),
        }
    if budget is not None:
        found |= {"budget": budget, "rounds_within_budget": _within(releases, budget)}
    return found


def _within(releases: "Releases", budget: float) -> int | None:
    try:
        return releases.rounds_within(budget)
    except ValueError as error:
        fail(f"--{error}")


def _example(number: int | None, algorithm: str | None) -> "tuple[Releases, float]":
    from manifed.privacy.series import Releases
    from manifed.schedules.time_varying import EXAMPLES

    if number not in EXAMPLES:
        fail(f"--example: expected one of {', '.join(map(str, EXAMPLES))}, got {number}")
    one = EXAMPLES[number]
    if algorithm not in {None, "output", "gradient"}:
        fail(f"--algorithm: expected output or gradient, got {algorithm!r}")
    if algorithm not in {None, one.algorithm}:
        fail(f"--algorithm: expected {one.algorithm!r} for example {number}, got {algorithm!r}")
    return Releases(
        algorithm=one.algorithm, schedules=one.schedules, sensitivity=one.sensitivity
    ), one.printed


def _read(path: Path) -> "tuple[Releases, ProblemConstants | None, int | None]":
    import tomllib

    from pydantic import ValidationError

    from manifed.privacy.series import Releases
    from manifed.schedules.conditions import ProblemConstants

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        fail(f"{path}: cannot be read ({error})")
    if "training" in table:
        return _of_experiment(path)
    constants = table.pop("problem", None)
    try:
        releases = Releases.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        fail(f"{path}: {place + ': ' if place else ''}{first['msg']}")
    if constants is None:
        return releases, None, None
    try:
        return releases, ProblemConstants(**constants), None
    except TypeError as error:
        fail(f"{path}: problem: {error}")


def _of_experiment(path: Path) -> "tuple[Releases, None, int]":
    """What the smallest node of an experiment with growing samples releases, and its rounds."""
    from manifed.algorithms.growing_samples import GrowingSamples
    from manifed.cli.launch import Request, guarded, load_or_exit
    from manifed.experiment.assembly import facts_of
    from manifed.experiment.privacy import example_mechanism
    from manifed.privacy.series import Releases

    config = load_or_exit(Request(str(path), ()), fail)
    training = config.training
    if not isinstance(training, GrowingSamples):
        fail(f"training.kind: expected 'growing-samples', got {training.kind!r}")
    if config.privacy.kind != "example-level":
        fail(f"privacy.kind: expected 'example-level', got {config.privacy.kind!r}")
    sizes = guarded(lambda: facts_of(config).sizes, fail)
    mechanism = guarded(lambda: example_mechanism(config, sizes), fail)
    is_recycled = training.on_exhausted == "recycle"
    releases = Releases(
        algorithm=training.perturbation,
        schedules=training.schedules,
        sensitivity=1 / mechanism.stddev(1.0, min(sizes)),
        noise="gaussian",
        lipschitz=training.lipschitz or 0.0,
        num_examples=min(sizes) if is_recycled else None,
    )
    return releases, None, config.federation.num_rounds


def _shown(found: dict[str, Any], releases: "Releases") -> str:
    """The lines a person reads."""
    lines = [f"{found['algorithm']} perturbation, {found['noise']} noise, "
             f"C = {releases.sensitivity:g}, {found['rounds']} rounds: {found['samples']} "
             "gradients a node"]  # fmt: skip
    for one in found["checks"]:
        verdict = f"holds, margin {one['margin']:.4g}" if one["holds"] else "FAILS"
        rate = f", rate k^-{one['rate']:g}" if one.get("rate", 0) > 0 and one["holds"] else ""
        why = "".join(f"; not {text}" for text in one["fails"])
        lines.append(f"{one['source']} ({one['claim']}): {verdict}{rate}{why}")
    if not found["checks"]:
        lines.append("no power laws: the theorems' conditions say nothing")
    at = f" at delta {found['delta']:g}" if "delta" in found else ""
    if "rho_K" in found:
        lines.append(
            f"rho after K rounds {found['rho_K']:.6g}, after all {found['rho_infinite']:.6g}"
        )
    lines.append(
        f"epsilon{at} after K rounds {found['epsilon_K']:.6g}, after all rounds "
        f"{found['epsilon_infinite']:.6g} (tail at most {found['tail_bound']:.3g})"
    )
    if "printed" in found:
        text = f"; the text says {found['in_the_text']:g}" if "in_the_text" in found else ""
        lines.append(f"the paper's formula, too low: {found['printed']:.6g}{text}")
    if "budget" in found:
        within = found["rounds_within_budget"]
        lines.append(f"budget {found['budget']:g}: " + (
            "never spent" if within is None else f"{within} rounds fit, round {within + 1} does not"
        ))  # fmt: skip
    return "\n".join(lines) + "\n"
