"""The command ``manifed plan``: which method a budget should be spent on, from public numbers."""

import sys
from pathlib import Path
from typing import Annotated

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


def plan(
    config: ConfigPath = QUICKSTART,
    sets: Sets = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where the config of the best method is written.")
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

    def options() -> tuple[dict[str, object], list[Option]]:
        table = table_of(config, tuple(sets or ()))
        auto, rounds = auto_of(table), most_rounds(table)
        return table, plan(parse(stand_in(table)), auto, rounds)

    table, found = guarded(options, fail)
    sys.stdout.write("method         predicted gap  rounds  step      multiplier  numbers up\n")
    for option in found:
        step = option.settings().get("step_size")
        sys.stdout.write(
            f"{option.training.kind:14s} {option.gap:<14.3g} {option.num_rounds:<7d} "
            f"{'-' if step is None else format(step, 'g'):9s} {option.noise_multiplier:<11.4g} "
            f"{option.numbers_up}\n"
        )
    sys.stdout.write(
        "gap: (f(x) - f*) / |f*|, a mean over runs, for a guessed spectrum (training.decay)\n"
    )
    if out is not None:
        guarded(lambda: save(parse(with_option(table, found[0])), out), fail)
        sys.stdout.write(f"config: {out}\n")
    if as_json:
        print_json(
            {
                "methods": [
                    {
                        "training": option.settings(),
                        "num_rounds": option.num_rounds,
                        "noise_multiplier": option.noise_multiplier,
                        "numbers_up": option.numbers_up,
                        "predicted_gap": option.gap,
                    }
                    for option in found
                ]
            }
        )
