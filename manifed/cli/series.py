"""``manifed privacy series``: what growing samples cost, in K rounds and for ever."""

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manifed.cli.options import fail
from manifed.runs.document import Json, print_json

if TYPE_CHECKING:
    from manifed.algorithms.growing_samples import GrowingSamples
    from manifed.algorithms.scheduled import ScheduledProjected, ScheduledRSGD
    from manifed.privacy.series import Releases
    from manifed.schedules.conditions import Check, ProblemConstants

_MOST = 10**7


def series(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="Schedules, C and noise (docs/time_varying.md), or an experiment with schedules."
        ),
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
    star: Star | None = None
    if config is not None:
        releases, constants, star, own_rounds = _read(config)
        rounds = rounds or own_rounds
        if algorithm not in {None, releases.algorithm}:
            fail(f"--algorithm: expected {releases.algorithm!r} of {config}, got {algorithm!r}")
    else:
        releases, printed = _example(example, algorithm)
    found = priced(releases, constants, rounds or 100_000, budget, delta, star)
    if printed is not None:
        found["in_the_text"] = printed
    sys.stdout.write(_shown(found, releases))
    if as_json:
        print_json(found)


@dataclass(frozen=True)
class Star:
    """Clients of one server whose step, noise and batch follow schedules."""

    training: "ScheduledRSGD | ScheduledProjected"
    num_examples: int

    def checks(self) -> "list[Check]":
        """What makes such rounds converge at a finite price.

        Raises:
            ValueError: naming a schedule that is no power law.
        """
        from manifed.schedules.conditions import growing_star
        from manifed.schedules.schedule import Constant

        one, t = Constant(value=1.0), self.training
        batches = t.batch_sizes if t.minibatch.kind != "full" else None
        return growing_star(t.step_sizes or one, batches or one, t.noise_multipliers or one)

    def samples(self, rounds: int) -> int:
        """How many gradients a client takes, where batches stop growing at all its examples."""
        sizes = (
            self.training.in_round(r).minibatch.expected_size(self.num_examples)
            for r in range(1, rounds + 1)
        )
        return round(self.training.local_steps * sum(sizes))


def priced(
    releases: "Releases",
    constants: "ProblemConstants | None",
    rounds: int,
    budget: float | None,
    delta: float,
    star: Star | None = None,
) -> dict[str, Any]:
    """Checks, K rounds, all rounds, the paper's formula, and the round in which a budget ends."""
    from manifed.privacy.series import epsilon_of_rho, printed_epsilon
    from manifed.schedules.conditions import checks

    try:
        conditions = star.checks() if star else checks(
            releases.schedules, releases.algorithm, constants
        )  # fmt: skip
    except ValueError:  # no power laws: the theorems say nothing
        conditions = []
    found: dict[str, Any] = {
        "algorithm": star.training.kind if star else releases.algorithm,
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
        "samples": star.samples(rounds) if star else releases.schedules.samples(rounds),
    }
    whole = releases.series(rounds)
    if releases.noise == "laplace":
        found |= {
            "epsilon_K": whole.partial,
            "epsilon_infinite": whole.total,
            "epsilon_infinite_at_least": whole.total_low,
            "tail_bound": whole.tail,
            "printed": printed_epsilon(releases, rounds).total,
            **_with_delta(releases, rounds, delta),
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
    if star is None and releases.num_examples is None:
        cost = releases.once(rounds)
        is_pure = releases.noise == "laplace"
        found["epsilon_once_K"] = cost if is_pure else epsilon_of_rho(cost, delta)
    if budget is not None:
        found |= {"budget": budget, "rounds_within_budget": _within(releases, budget)}
    return found


def _with_delta(releases: "Releases", rounds: int, delta: float) -> dict[str, float]:
    """The Laplace releases as zCDP: finite where pure epsilon is not."""
    from manifed.privacy.series import epsilon_of_zcdp

    rho, pure = releases.zcdp(rounds), releases.series(rounds)
    return {
        "rho_K": rho.partial,
        "rho_infinite": rho.total,
        "delta": delta,
        "epsilon_K_at_delta": min(epsilon_of_zcdp(rho.partial, delta), pure.partial),
        "epsilon_infinite_at_delta": min(epsilon_of_zcdp(rho.total, delta), pure.total),
    }


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


def _read(path: Path) -> "tuple[Releases, ProblemConstants | None, Star | None, int | None]":
    from pydantic import ValidationError

    from manifed.errors import ConfigError
    from manifed.experiment.toml_files import read_toml
    from manifed.privacy.series import Releases
    from manifed.schedules.conditions import ProblemConstants

    try:
        table = read_toml(path)
    except ConfigError as error:
        fail(str(error))
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
        return releases, None, None, None
    try:
        return releases, ProblemConstants(**constants), None, None
    except TypeError as error:
        fail(f"{path}: problem: {error}")


def _of_experiment(path: Path) -> "tuple[Releases, None, Star | None, int]":
    """What the smallest node of an experiment with schedules releases, and its rounds."""
    from manifed.algorithms.growing_samples import GrowingSamples
    from manifed.algorithms.scheduled import ScheduledProjected, ScheduledRSGD
    from manifed.cli.launch import Request, guarded, load_or_exit
    from manifed.experiment.assembly import facts_of
    from manifed.experiment.privacy import example_mechanism

    config = load_or_exit(Request(str(path), ()), fail)
    training = config.training
    if not isinstance(training, GrowingSamples | ScheduledRSGD | ScheduledProjected):
        fail(
            "training.kind: expected 'growing-samples', 'scheduled-rsgd' or 'scheduled-projected', "
            f"got {training.kind!r}"
        )
    if config.privacy.kind != "example-level":
        fail(f"privacy.kind: expected 'example-level', got {config.privacy.kind!r}")
    if config.privacy.noise.kind == "published":
        fail(
            "privacy.noise.kind: expected 'multiplier' or 'target', got 'published', whose noise "
            "does not follow what a schedule releases"
        )
    if config.evaluation.kind == "private":
        fail(
            "evaluation.kind: expected 'oracle' or 'public', got 'private': evaluations are "
            "charged with one noise for ever, so that no number of epsilon is that of all rounds; "
            "`manifed privacy statement` prices the rounds of a config with them"
        )
    sizes = guarded(lambda: facts_of(config).sizes, fail)
    mechanism = guarded(lambda: example_mechanism(config, sizes), fail)
    noise, rounds = mechanism.stddev(1.0, min(sizes)), config.federation.num_rounds
    if isinstance(training, GrowingSamples):
        found = _of_graph(training, noise, min(sizes), is_laplace=mechanism.is_laplace)
        return found, None, None, rounds
    return _of_star(training, noise), None, Star(training, min(sizes)), rounds


def _of_graph(
    training: "GrowingSamples", noise: float, num_examples: int, *, is_laplace: bool
) -> "Releases":
    from manifed.privacy.series import Releases

    return Releases(
        algorithm=training.perturbation,
        schedules=training.schedules,
        sensitivity=1 / noise,
        noise="laplace" if is_laplace else "gaussian",
        lipschitz=training.lipschitz or 0.0,
        num_examples=num_examples if training.on_exhausted == "recycle" else None,
    )


def _of_star(training: "ScheduledRSGD | ScheduledProjected", noise: float) -> "Releases":
    """Gaussian releases of multiplier noise * z_r, ``local_steps`` a round, in units of C.

    The noise is that of a sum, so neither step nor batch enters; a star has no mixing.
    """
    from manifed.privacy.series import Releases
    from manifed.schedules.schedule import Constant
    from manifed.schedules.time_varying import TimeVarying

    one = Constant(value=1.0)
    schedules = TimeVarying(
        step_size=one, mixing=Constant(value=0.5), sample_size=one,
        noise_scale=training.noise_multipliers or one,
    )  # fmt: skip
    return Releases(
        algorithm="gradient", schedules=schedules, noise="gaussian",
        sensitivity=math.sqrt(training.local_steps) / noise,
    )  # fmt: skip


def _shown(found: dict[str, Any], releases: "Releases") -> str:
    """The lines a person reads."""
    what = found["algorithm"]
    what += " perturbation" if what == releases.algorithm else ""
    lines = [f"{what}, {found['noise']} noise, "
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
    if "epsilon_once_K" in found:
        lines.append(
            f"epsilon{at if 'rho_K' in found and 'epsilon_K_at_delta' not in found else ''} after "
            "K rounds of a record that one round alone uses (samples = 'in-order'): "
            f"{found['epsilon_once_K']:.6g}"
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
