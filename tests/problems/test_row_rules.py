"""What becomes of a row follows from the config and that row: no other row has a say."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manifed.manifolds.hyperbolic import Lorentz
from manifed.manifolds.spd import SPD
from manifed.problems.file_formats import BadFile
from manifed.problems.own_files import FileData
from manifed.problems.problem import check_points

BOUNDS = ((-1.0, 1.0), (0.0, 2.0), (-3.0, 3.0), (-0.5, 4.0))
vectors = partial(FileData, shape=(4,))
ROWS = vectors(examples="rows")
RULES = {
    "rows as they are": ROWS,
    "rows clipped": ROWS.model_copy(
        update={"range": BOUNDS, "rescale_to": (-1.0, 1.0), "row_norm": 1.0, "outside": "clip"}
    ),
    "rows on a sphere": ROWS.model_copy(update={"row_norm": 2.0, "outside": "project"}),
    "columns": vectors(examples="columns", range=(-1, 1), outside="clip"),
    "sphere points": vectors(examples="sphere-points", outside="project"),
    "long sphere points": FileData(examples="sphere-points", shape=(17,), outside="project"),
    "hyperbolic points": vectors(examples="hyperbolic-points", row_norm=2.0, outside="project"),
    "points of the hyperboloid": FileData(
        examples="hyperbolic-points",
        shape=(5,),
        coordinates="lorentz",
        row_norm=2.0,
        outside="project",
    ),
    "matrices": FileData(examples="spd-matrices", shape=(4, 4), outside="project"),
    "matrices in bounds": FileData(
        examples="spd-matrices", shape=(4, 4), range=(0.1, 10), outside="project"
    ),
    "signals": FileData(examples="signals", shape=(4, 4), range=(-2, 2), outside="clip"),
}


def read(folder, data, values):
    path = folder / "site.npy"
    np.save(path, values)
    return data.read(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rules")


@pytest.mark.parametrize("name", RULES)
@given(seed=st.integers(0, 10_000), size=st.sampled_from([0.3, 1.0, 50.0]))
@settings(max_examples=5, derandomize=True, deadline=None)
def test_no_row_has_a_say_in_what_becomes_of_another(folder, name, seed, size):
    data = RULES[name]
    rng = np.random.default_rng(seed)
    values = size * rng.standard_normal((300, *data.one_shape)) + 1.0
    order = rng.permutation(300)
    changed = size * rng.standard_normal(values.shape) - 2.0
    changed[7] = values[7]
    reordered, beside = (read(folder, data, rows) for rows in (values[order], changed))
    few = [read(folder, data, values[7 : 7 + n]) for n in (1, 2, 3, 5, 31, 64, 257)]
    for key, tensor in read(folder, data, values).tensors.items():
        assert torch.equal(reordered[key], tensor[order])
        assert torch.equal(beside[key][7], tensor[7])
        for found in few:
            assert torch.equal(found[key], tensor[7 : 7 + len(found)])


@pytest.mark.parametrize("scale", [1e-320, 1e-8, 1.0, 1e8, 1e200, 5e307])
def test_what_is_brought_inside_is_inside(folder, scale):
    values = scale * np.random.default_rng(0).standard_normal((50, 4))
    rows = read(folder, RULES["rows clipped"], values)["z"]
    assert float(rows.norm(dim=-1).max()) <= 1 + 1e-12
    assert float(rows.abs().max()) <= 1
    lengths = read(folder, RULES["rows on a sphere"], values)["z"].norm(dim=-1)
    assert torch.allclose(lengths, torch.full_like(lengths, 2.0), rtol=1e-12)
    points = read(folder, RULES["hyperbolic points"], values)["target"]
    check_points(Lorentz(), points)
    origin = Lorentz().origin(5)
    assert float(Lorentz().dist(origin, points).max()) <= 2 + 1e-9
    matrices = scale * np.random.default_rng(1).standard_normal((9, 4, 4))
    z = read(folder, RULES["matrices in bounds"], matrices)["z"]
    check_points(SPD(), z)
    spectrum = torch.linalg.eigvalsh(z)
    assert float(spectrum.min()) >= 0.1 - 1e-9
    assert float(spectrum.max()) <= 10 + 1e-9


def test_what_is_inside_stays_as_it_is(folder):
    rng = np.random.default_rng(2)
    rows = 0.2 * rng.standard_normal((5, 4))
    kept = vectors(examples="rows", range=(-9, 9), row_norm=9, outside="clip")
    assert torch.equal(read(folder, kept, rows)["z"], torch.tensor(rows))
    square = rng.standard_normal((5, 4, 4))
    z = square @ square.swapaxes(-1, -2) + np.eye(4)
    assert torch.equal(read(folder, RULES["matrices"], z)["z"], torch.tensor(z))


def test_a_signal_is_its_own_covariance_with_a_ridge(folder):
    x = np.random.default_rng(3).standard_normal((2, 3, 50))
    data = FileData(examples="signals", shape=(3, 50), ridge=0.1)
    z = read(folder, data, x)["z"][1].numpy()
    assert np.allclose(z, np.cov(x[1], bias=True) + 0.1 * np.eye(3), atol=1e-12)


HYPERBOLIC = vectors(examples="hyperbolic-points")
MATRICES = FileData(examples="spd-matrices", shape=(2, 2))
OUTSIDE = [
    (ROWS, {"range": BOUNDS}, [[0, 0, 0, 0], [0, 0, 9, 0]],
                 r"example 1, column 'entry \[2\]': expected a number inside data.range"),
    (ROWS, {"row_norm": 1.0}, [[1, 1, 0, 0]], "0: expected a row"),
    (RULES["sphere points"], {"outside": "refuse"}, [[1, 1, 0, 0]], "length 1"),
    (RULES["sphere points"], {}, [[0, 0, 0, 0]], "a row of zeros"),
    (HYPERBOLIC, {}, [[1, 1, 0, 0]], "poin"),
    (HYPERBOLIC, {"coordinates": "lorentz"}, [[1, 0.1, 0, 0]], "lorentz"),
    (HYPERBOLIC, {"row_norm": 1}, [[0.9, 0, 0, 0]], "row_norm"),
    (MATRICES, {}, [[[1, 2], [2, 1]]], "defin"),
    (MATRICES, {}, [[[2, 1], [0, 2]]], "symm"),
    (MATRICES, {"range": (1, 2)}, [[[3, 0], [0, 2]]], "data.range"),
    (FileData(examples="signals", shape=(1, 2)), {"range": (-1, 1)}, [[[0, 2]]],
                 "data.ran"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "more", "values", "expected"), OUTSIDE)
def test_a_row_outside_is_refused_by_its_place(folder, data, more, values, expected):
    with pytest.raises(BadFile, match=expected):
        read(folder, data.model_copy(update=more), values)


def rows(**given):
    return {"examples": "rows", "columns": ("a",), **given}


def labelled(**given):
    return rows(examples="classification", label="y", **given)


def matrices(**given):
    return {"examples": "spd-matrices", "shape": (2, 2), **given}


TWO = ("a", "b")
CONFIGS = [
    (rows(columns=()), "columns"),
    (rows(columns=("a", "a")), "each column once"),
    (
        rows(examples="regression", columns=("a", "y"), label="y"), "each column once"),
    (rows(columns=TWO, shape=(3,)), "a shape of 2 columns"),
    (matrices(shape=(4,)), r"shape \[m, m\]"),
    (matrices(shape=(4, 3)), r"shape \[m, m\]"),
    (rows(examples="classification"), "label: required"),
    (labelled(classes=("u", "v", "w")), "two classes"),
    (labelled(classes=("u", 1)), "texts or integers"),
    (rows(classes=("u", "v")), "classes: expected it together with label"),
    (rows(range=(1, 0)), "low < high"),
    (matrices(range=(0, 1)), "eigenvalues above 0"),
    (rows(range=()), "one for each column of .1., got 0"),
    (matrices(range=()), "one pair"),
    (matrices(range=((1, 2), (1, 2))), "one pair"),
    (rows(range=(float("-inf"), 1)), "finite"),
    (
        rows(range=(0, 1), rescale_to=(0, 1e308)), "rescale_to: expected"),
    (rows(columns=(*TWO, "c"), range=BOUNDS[:2]), "one pair, or one"),
    (rows(rescale_to=(0, 1)), "needs range"),
    (rows(outside="project"), "needs row_norm"),
    (rows(examples="sphere-points", columns=TWO, outside="clip"), "got 'clip'"),
    (
        rows(examples="hyperbolic-points", columns=TWO, query=(1.0,)), "query"),
    (rows(source="nowhere:read"), "can be imported"),
    (rows(source="pathlib:Path"), "a function"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "expected"), CONFIGS)
def test_a_config_that_does_not_fit_together_is_refused(fields, expected):
    with pytest.raises(ValueError, match=expected):
        FileData(**fields)


def test_what_overflows_is_refused_by_its_place(folder):
    signals = np.stack([np.eye(2), 1e200 * np.eye(2), np.eye(2)])
    with pytest.raises(
        BadFile, match=r"example 1: expected numbers that are finite, and their squares"
    ):
        read(folder, FileData(examples="signals", shape=(2, 2)), signals)
    rows = FileData(examples="rows", shape=(1,), range=(0, 1e-90), rescale_to=(-1e90, 1e90))
    assert np.isfinite(read(folder, rows, np.array([[0.0], [1e-90]]))["z"]).all()
