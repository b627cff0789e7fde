"""``manifed privacy series``: what rounds of growing samples cost."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from manifed.cli.options import Json, fail, print_json
from manifed.privacy.label import PLANNED


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
    from manifed.schedules.time_varying import EXAMPLES

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
