import subprocess
import sys
from pathlib import Path

import numpy as np

from manifed.runs.manifest import manifest_of
from manifed.runs.report import figures
from manifed.runs.report.__main__ import main
from manifed.runs.report.figures import FIGURES, draw, figures_of
from manifed.runs.report.runs import curves_of, read
from manifed.runs.report.tables import HEADER, table_of
from manifed.runs.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
DRAWN = {
    "cost-by-round.png",
    "relative-cost-gap-by-round.png",
    "relative-cost-gap-by-epsilon.png",
    "gradient-norm-by-round.png",
    "gradient-norm-by-epsilon.png",
}
PNG = b"\x89PNG\r\n\x1a\n"
SLOW_TO_IMPORT = {
    "dp_accounting", "jinja2", "matplotlib", "networkx", "numpy.f2py.crackfortran", "pandas", "ray",
    "scipy.linalg", "scipy.ndimage", "scipy.optimize", "scipy.stats", "sklearn", "sympy",
    "torch._dynamo", "torch._inductor", "torch.onnx",
}  # fmt: skip
"""What a run without figures, other graphs than its own and files of others does without."""


def write_run(
    directory, *, name="rsgd", seed=1, epsilon=2.0, rounds=5, is_finished=True, gap=1.0, sent=1
):
    manifest = manifest_of(
        {
            "name": name,
            "federation": {"seed": seed, "num_rounds": rounds},
            "output": {"directory": str(directory)},
        },
        "00",
        ["simulation.py"],
        name=name,
        engine="inline",
        seed=seed,
        randomness_source="seed",
        data_checksums={},
        privacy=None,
    )
    folder = RunFolder.create(directory, manifest)
    for server_round in range(rounds + 1):
        spent = None if epsilon is None else epsilon * server_round / rounds
        cost_gap = gap * seed * 0.5**server_round
        folder.append_metrics(
            {
                "round": server_round,
                "cost": cost_gap - 2.0,
                "cost_gap": cost_gap,
                "relative_cost_gap": cost_gap / 2.0,
                "gradient_norm": 2 * cost_gap,
                "epsilon": spent,
                "uploads": sent * server_round,
                "bytes_up": 1000,
                "bytes_down": 400,
                "seconds": 0.25,
            }
        )
    if is_finished:
        delta = None if epsilon is None else 1e-5
        final = {"label": None, "relative_cost_gap": cost_gap / 2, "gradient_norm": 2 * cost_gap}
        folder.finish(
            {**final, "epsilon": epsilon, "delta": delta, "rounds": rounds, "seconds": 1.5}
        )
    return directory


def test_a_private_run_has_every_figure(tmp_path):
    assert set(figures_of(curves_of([read(write_run(tmp_path / "run", sent=2))]))) == set(FIGURES)


def test_uploads_are_an_axis_only_where_they_are_not_rounds(tmp_path):
    one = read(write_run(tmp_path / "one", name="one"))
    assert not [x for _, x in figures_of(curves_of([one])) if x == "uploads"]
    two = read(write_run(tmp_path / "two", name="two", sent=2))
    shown = figures_of(curves_of([one, two]))["gradient_norm", "uploads"]
    assert [list(curve.values("uploads", "cost")[0]) for _, curve in shown] == [
        [0, 1, 2, 3, 4, 5],
        [0, 2, 4, 6, 8, 10],
    ]


def test_without_privacy_no_figure_has_an_epsilon_axis(tmp_path):
    runs = [read(write_run(tmp_path / "run", epsilon=None))]
    assert set(figures_of(curves_of(runs))) == {(y, x) for y, x in FIGURES if x == "round"}


def test_an_infinite_epsilon_is_not_drawn(tmp_path):
    runs = [read(write_run(tmp_path / "run", epsilon=np.inf))]
    assert set(figures_of(curves_of(runs))) == {(y, x) for y, x in FIGURES if x == "round"}


def test_a_private_and_a_public_run_meet_on_the_round_axis_only(tmp_path):
    runs = [
        read(write_run(tmp_path / "public", name="public", epsilon=None)),
        read(write_run(tmp_path / "private", name="private")),
    ]
    shown = figures_of(curves_of(runs))
    assert [i for i, _ in shown["gradient_norm", "round"]] == [0, 1]
    assert [i for i, _ in shown["gradient_norm", "epsilon"]] == [1]


def test_a_run_that_is_at_the_optimum_still_draws_its_cost(tmp_path):
    assert set(figures_of(curves_of([read(write_run(tmp_path / "run", gap=0.0))]))) == {
        ("cost", "round")
    }


def test_a_run_without_rows_draws_nothing(tmp_path):
    folder = RunFolder.create(tmp_path / "run", {"name": "failed"})
    assert draw([read(folder.directory)], tmp_path / "out") == []
    assert not (tmp_path / "out").exists()


def test_figures_come_from_the_folder_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "FIGURES", [("gradient_norm", "epsilon")])

    def bytes_of(directory, out):
        (path,) = draw([read(directory)], tmp_path / out)
        return path.read_bytes()

    directory = write_run(tmp_path / "run")
    first = bytes_of(directory, "one")
    assert first == bytes_of(directory.rename(tmp_path / "moved"), "two")
    metrics = tmp_path / "moved" / "metrics.csv"
    metrics.write_text(metrics.read_text().replace(",0.5,", ",0.7,"))
    assert first != bytes_of(tmp_path / "moved", "three")


def test_seeds_of_one_configuration_become_one_curve_with_their_mean(tmp_path):
    runs = [read(write_run(tmp_path / str(seed), seed=seed)) for seed in (1, 2, 3)]
    (curve,) = curves_of(runs)
    assert curve.label == "rsgd, mean of 3"
    x, y = curve.values("epsilon", "relative_cost_gap")
    np.testing.assert_allclose(x, [0.0, 0.4, 0.8, 1.2, 1.6, 2.0], rtol=1e-15)
    np.testing.assert_allclose(y.mean(axis=0), 1.0 * 0.5 ** np.arange(6), rtol=1e-15)


def test_configurations_of_one_name_are_told_apart_by_the_keys_that_differ(tmp_path):
    runs = [read(write_run(tmp_path / f"r{n}", rounds=n)) for n in (4, 6)]
    runs.append(read(write_run(tmp_path / "again", rounds=6, seed=2)))
    labels = [curve.label for curve in curves_of(runs)]
    assert labels == ["rsgd, num_rounds=4", "rsgd, num_rounds=6, mean of 2"]
    told = [line.split("  ")[0] for line in table_of(runs).splitlines()[2:]]
    assert told == [
        "rsgd, num_rounds=4",
        "rsgd, num_rounds=6, seed 1",
        "rsgd, num_rounds=6, seed 2",
    ]


def test_a_label_names_no_folder_for_its_name_may_hold_a_seed(tmp_path):
    runs = [read(write_run(tmp_path / f"seed-{s}", seed=s)) for s in (4711, 815)]
    for k, run in enumerate(runs):
        run.manifest["config"]["training"] = dict.fromkeys("abcd", k)
    assert [curve.label for curve in curves_of(runs)] == ["rsgd (run 1)", "rsgd (run 2)"]


def test_curves_of_unequal_length_are_averaged_over_the_common_rounds(tmp_path):
    directories = [write_run(tmp_path / str(seed), seed=seed, is_finished=False) for seed in (1, 2)]
    metrics = directories[1] / "metrics.csv"
    metrics.write_text("\n".join(metrics.read_text().splitlines()[:4]) + "\n")
    (curve,) = curves_of([read(directory) for directory in directories])
    x, y = curve.values("round", "gradient_norm")
    np.testing.assert_array_equal(x, [0, 1, 2])
    assert y.shape == (2, 3)


def test_runs_stand_side_by_side_in_a_table(tmp_path):
    runs = [
        read(write_run(tmp_path / "a", name="private")),
        read(write_run(tmp_path / "b", name="free", epsilon=None)),
        read(write_run(tmp_path / "c", name="no-noise", epsilon=np.inf)),
    ]
    header, _, private, free, no_noise = table_of(runs).splitlines()
    assert header.split("  ")[0] == "run"
    assert " ".join(private.split()) == "private 5 0.01562 0.0625 unknown 2 1e-05 6 000 2 400 1.5"
    assert " ".join(free.split()) == "free 5 0.01562 0.0625 not private - - 6 000 2 400 1.5"
    assert " ".join(no_noise.split()).startswith("no-noise 5 0.01562 0.0625 unknown infinity 1e-05")


def test_an_unfinished_run_shows_its_newest_row_and_says_so(tmp_path):
    run = read(write_run(tmp_path / "a", is_finished=False))
    line = " ".join(table_of([run]).splitlines()[2].split())
    assert line == "rsgd (unfinished) 5 0.01562 0.0625 unknown 2 - 6 000 2 400 1.5"


def test_the_markdown_table_has_one_cell_per_column(tmp_path):
    run = read(write_run(tmp_path / "a", name="a|b"))
    lines = table_of([run], markdown=True).splitlines()
    assert {line.count("|") for line in lines} == {len(HEADER) + 1}


def test_the_command_draws_into_the_folder_of_a_single_run(tmp_path, capsys):
    directory = write_run(tmp_path / "run")
    assert main([str(directory)]) == 0
    drawn = {path.name: path.read_bytes() for path in directory.glob("*.png")}
    assert set(drawn) == DRAWN
    assert all(content.startswith(PNG) for content in drawn.values())
    assert "rsgd" in capsys.readouterr().out


def test_the_command_refuses_a_folder_that_is_no_run_in_one_line(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: Expected a run folder")
    assert error.count("\n") == 1


def test_what_takes_long_to_import_is_imported_only_when_used():
    used = "manifed.runs.report.__main__, manifed.runs.report.figures, manifed.runs.progress"
    run = (
        "manifed.cli.launch, manifed.experiment.privacy, manifed.runs.driver, "
        "strategies.of_config, manifed.flower.apps, manifed.flower.client, manifed.flower.inline"
    )
    code = (
        f"import sys, {used}; print(*sys.modules); import {run}; import torch; "
        "from manifed.manifolds.euclidean import Euclidean; "
        "Euclidean().from_coords(torch.zeros(2, 3), torch.zeros(3)); print(*sys.modules); "
        "import geoopt.optim.mixin; print(geoopt.optim.RiemannianSGD.__mro__[1].__name__); "
        "waits = [name for name, found in sys.modules.items() if type(found).__name__ == 'Deferred'"
        "]; print(*sorted(waits)); import geoopt, numpy; "
        "geoopt.Lorentz().dist0(geoopt.Lorentz().origin(3)); "
        "geoopt.PoincareBall().dist(torch.zeros(2), torch.ones(2) / 4); numpy.f2py.get_include(); "
        "print(*(name for name in waits if type(sys.modules[name]).__name__ == 'Deferred'))"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    report, whole, mixin, waiting, still = done.stdout.splitlines()
    assert not {"matplotlib", "rich", "flwr", "torch"} & set(report.split())
    assert not SLOW_TO_IMPORT & set(whole.split())
    assert mixin == "OptimMixin"
    assert waiting.split() == [
        "geoopt.manifolds.lorentz.math",
        "geoopt.manifolds.stereographic.math",
        "geoopt.samplers",
        "numpy.f2py",
    ]
    assert still == "geoopt.samplers"
