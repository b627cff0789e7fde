"""What becomes of a row follows from the config and that row: no other row has a say."""

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
ROWS = FileData(examples="rows", shape=(4,))
RULES = {
    "rows as they are": ROWS,
    "rows clipped": ROWS.model_copy(
        update={"range": BOUNDS, "rescale_to": (-1.0, 1.0), "row_norm": 1.0, "outside": "clip"}
    ),
    "rows on a sphere": ROWS.model_copy(update={"row_norm": 2.0, "outside": "project"}),
    "columns": FileData(examples="columns", shape=(4,), range=(-1, 1), outside="clip"),
    "sphere points": FileData(examples="sphere-points", shape=(4,), outside="project"),
    "hyperbolic points": FileData(
        examples="hyperbolic-points", shape=(4,), row_norm=2.0, outside="project"
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


@pytest.mark.parametrize("name", list(RULES))
@given(seed=st.integers(0, 10_000), size=st.sampled_from([0.3, 1.0, 50.0]))
@settings(max_examples=5, derandomize=True, deadline=None)
def test_no_row_has_a_say_in_what_becomes_of_another(folder, name, seed, size):
    data = RULES[name]
    rng = np.random.default_rng(seed)
    values = size * rng.standard_normal((7, *data.one_shape)) + 1.0
    together = read(folder, data, values)
    order = rng.permutation(7)
    changed = values.copy()
    changed[1:] = size * rng.standard_normal((6, *data.one_shape)) - 2.0
    for key, tensor in together.tensors.items():
        assert torch.equal(read(folder, data, values[order])[key], tensor[order])
        assert torch.equal(read(folder, data, changed)[key][0], tensor[0])
        assert torch.equal(read(folder, data, values[:1])[key][0], tensor[0])


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
    kept = FileData(examples="rows", shape=(4,), range=(-9, 9), row_norm=9, outside="clip")
    assert torch.equal(read(folder, kept, rows)["z"], torch.tensor(rows))
    square = rng.standard_normal((5, 4, 4))
    z = square @ square.swapaxes(-1, -2) + np.eye(4)
    assert torch.equal(read(folder, RULES["matrices"], z)["z"], torch.tensor(z))


def test_a_signal_is_its_own_covariance_with_a_ridge(folder):
    x = np.random.default_rng(3).standard_normal((2, 3, 50))
    data = FileData(examples="signals", shape=(3, 50), ridge=0.1)
    z = read(folder, data, x)["z"][1].numpy()
    assert np.allclose(z, np.cov(x[1], bias=True) + 0.1 * np.eye(3), atol=1e-12)


HYPERBOLIC = FileData(examples="hyperbolic-points", shape=(4,))
MATRICES = FileData(examples="spd-matrices", shape=(2, 2))
OUTSIDE = {
    "a number": (ROWS, {"range": BOUNDS}, [[0, 0, 0, 0], [0, 0, 9, 0]],
                 r"example 1, column 'entry \[2\]': expected a number inside data.range"),
    "a length": (ROWS, {"row_norm": 1.0}, [[1, 1, 0, 0]], "0: expected a row"),
    "a direction": (RULES["sphere points"], {"outside": "refuse"}, [[1, 1, 0, 0]], "length 1"),
    "no direction": (RULES["sphere points"], {}, [[0, 0, 0, 0]], "a row of zeros"),
    "off the ball": (HYPERBOLIC, {}, [[1, 1, 0, 0]], "poin"),
    "off the hyperboloid": (HYPERBOLIC, {"coordinates": "lorentz"}, [[1, 0.1, 0, 0]], "lorentz"),
    "too far out": (HYPERBOLIC, {"row_norm": 1}, [[0.9, 0, 0, 0]], "row_norm"),
    "not definite": (MATRICES, {}, [[[1, 2], [2, 1]]], "defin"),
    "not symmetric": (MATRICES, {}, [[[2, 1], [0, 2]]], "symm"),
    "an eigenvalue": (MATRICES, {"range": (1, 2)}, [[[3, 0], [0, 2]]], "data.range"),
    "a signal": (FileData(examples="signals", shape=(1, 2)), {"range": (-1, 1)}, [[[0, 2]]],
                 "data.ran"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(OUTSIDE))
def test_a_row_outside_is_refused_by_its_place(folder, name):
    data, more, values, expected = OUTSIDE[name]
    with pytest.raises(BadFile, match=expected):
        read(folder, FileData(**data.model_dump() | more), np.array(values, dtype=np.float64))


def rows(**given):
    return {"examples": "rows", "columns": ("a",), **given}


def labelled(**given):
    return rows(examples="classification", label="y", **given)


def matrices(**given):
    return {"examples": "spd-matrices", "shape": (2, 2), **given}


TWO = ("a", "b")
CONFIGS = {
    "neither columns nor shape": (rows(columns=()), "columns"),
    "a column twice": (rows(columns=("a", "a")), "each column once"),
    "the label among the columns": (
        rows(examples="regression", columns=("a", "y"), label="y"), "each column once"),
    "another shape": (rows(columns=TWO, shape=(3,)), "a shape of 2 columns"),
    "no matrices": (matrices(shape=(4,)), r"shape \[m, m\]"),
    "not square": (matrices(shape=(4, 3)), r"shape \[m, m\]"),
    "no label": (rows(examples="classification"), "label: required"),
    "three classes": (labelled(classes=("u", "v", "w")), "two classes"),
    "texts and integers": (labelled(classes=("u", 1)), "texts or integers"),
    "classes of rows": (rows(classes=("u", "v")), "needs label"),
    "low above high": (rows(range=(1, 0)), "low < high"),
    "eigenvalues of zero": (matrices(range=(0, 1)), "eigenvalues above 0"),
    "no range": (rows(range=()), "one for each column of .1., got 0"),
    "no range of matrices": (matrices(range=()), "one pair"),
    "ranges of matrices": (matrices(range=((1, 2), (1, 2))), "one pair"),
    "no end": (rows(range=(float("-inf"), 1)), "finite"),
    "ends whose squares overflow": (
        rows(range=(0, 1), rescale_to=(0, 1e308)), "rescale_to: expected"),
    "two ranges of three": (rows(columns=(*TWO, "c"), range=BOUNDS[:2]), "one pair, or one"),
    "rescale without range": (rows(rescale_to=(0, 1)), "needs range"),
    "project without a radius": (rows(outside="project"), "needs row_norm"),
    "clip points": (rows(examples="sphere-points", columns=TWO, outside="clip"), "got 'clip'"),
    "query without features": (
        rows(examples="hyperbolic-points", columns=TWO, query=(1.0,)), "query"),
    "no such source": (rows(source="nowhere:read"), "can be imported"),
    "a source that is no function": (rows(source="pathlib:Path"), "a function"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CONFIGS))
def test_a_config_that_does_not_fit_together_is_refused(name):
    fields, expected = CONFIGS[name]
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
