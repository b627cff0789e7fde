"""The command ``manifed plan``: which method a budget should be spent on, from public numbers."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from manifed.cli.options import QUICKSTART, ConfigPath, DataDir, Sets, fail, use_data_dir
from manifed.runs.document import Json, print_json


def plan(
    config: ConfigPath = QUICKSTART,
    sets: Sets = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where the config of the best method is written.")
    ] = None,
    trials: Annotated[
        float | None,
        typer.Option("--trials", min=1, help="Price the best of so many runs on average."),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Predict what each method makes of the budget, best first; nothing is run or spent."""
    use_data_dir(data_dir)
    from manifed.cli.launch import guarded
    from manifed.experiment.load import parse, save, table_of
    from manifed.experiment.planning import (
        Option,
        auto_of,
        most_rounds,
        plan,
        stand_in,
        with_option,
    )
    from manifed.experiment.privacy import plan_label
    from manifed.experiment.search_price import check_searched, law_of, to_public

    def options() -> tuple[dict[str, Any], list[Option]]:
        table = table_of(config, tuple(sets or ()))
        auto, rounds = auto_of(table), most_rounds(table)
        return table, plan(parse(stand_in(table)), auto, rounds)

    table, found = guarded(options, fail)
    label = guarded(lambda: plan_label(parse(with_option(table, found[0]))), fail)
    sys.stdout.write(f"privacy: {label}\n")
    sys.stdout.write(
        "method                          predicted gap  rounds  step      multiplier  numbers up\n"
    )
    for option in found:
        step = option.settings().get("step_size")
        gap = "unknown" if option.gap is None else format(option.gap, ".3g")
        sys.stdout.write(
            f"{option.name:31s} {gap:14s} {option.num_rounds:<7d} "
            f"{'-' if step is None else format(step, 'g'):9s} {option.noise_multiplier:<11.4g} "
            f"{option.numbers_up}\n"
        )
    kind = table["problem"]["kind"]
    sys.stdout.write(
        f"nothing is predicted for problem.kind = {kind!r}: the safe default (docs/choosing.md)\n"
        if found[0].gap is None
        else "gap: (f(x) - f*) / |f*|, a mean over runs, for a guessed problem (docs/choosing.md)\n"
    )
    if trials is not None:

        def price() -> float:
            law = law_of(trials, "--trials")
            best = parse(with_option(table, found[0]))
            check_searched([best])
            return to_public(best, law)

        cost = guarded(price, fail)
        sys.stdout.write(
            f"best of K runs of the first, K geometric of mean {trials:g}: epsilon {cost:.4g} at "
            "the config's delta (Papernot and Steinke 2022)\n"
        )
    if out is not None:
        guarded(lambda: save(parse(with_option(table, found[0])), out), fail)
        sys.stdout.write(f"config: {out}\n")
    if as_json:
        print_json(
            {
                "label": label,
                "methods": [
                    {
                        "method": option.name,
                        "training": option.settings(),
                        "strategy": option.strategy(),
                        "l2_norm_clip": option.clip,
                        "num_rounds": option.num_rounds,
                        "noise_multiplier": option.noise_multiplier,
                        "numbers_up": option.numbers_up,
                        "predicted_gap": option.gap,
                    }
                    for option in found
                ],
            }
        )
