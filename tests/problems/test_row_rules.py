"""What becomes of a row follows from the config and that row: no other row has a say."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manifed.manifolds.hyperbolic import Lorentz
from manifed.manifolds.spd import SPD
from manifed.problems.file_formats import BadFile
from manifed.problems.files import FileData
from manifed.problems.records import check_points

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
    data, rng = RULES[name], np.random.default_rng(seed)
    values = size * rng.standard_normal((7, *data.one_shape)) + 1.0
    together, order = read(folder, data, values), rng.permutation(7)
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


OUTSIDE = {
    "a number": (ROWS.model_copy(update={"range": BOUNDS}), [[0, 0, 0, 0], [0, 0, 9, 0]],
                 r"example 1, column 'entry \[2\]': expected a number inside data.range"),
    "a length": (ROWS.model_copy(update={"row_norm": 1.0}), [[1, 1, 0, 0]], "0: expected a row"),
    "a direction": (FileData(examples="sphere-points", shape=(4,)), [[1, 1, 0, 0]], "length 1"),
    "no direction": (RULES["sphere points"], [[0, 0, 0, 0]], "a row of zeros"),
    "off the ball": (FileData(examples="hyperbolic-points", shape=(4,)), [[1, 1, 0, 0]], "poin"),
    "off the hyperboloid": (
        FileData(examples="hyperbolic-points", shape=(4,), coordinates="lorentz"),
        [[1, 0.1, 0, 0]], "lorentz"),
    "too far out": (FileData(examples="hyperbolic-points", shape=(4,), row_norm=1),
                    [[0.9, 0, 0, 0]], "row_norm"),
    "not definite": (FileData(examples="spd-matrices", shape=(2, 2)), [[[1, 2], [2, 1]]], "defin"),
    "not symmetric": (FileData(examples="spd-matrices", shape=(2, 2)), [[[2, 1], [0, 2]]], "symm"),
    "an eigenvalue": (FileData(examples="spd-matrices", shape=(2, 2), range=(1, 2)),
                      [[[3, 0], [0, 2]]], "data.range"),
    "a signal": (FileData(examples="signals", shape=(1, 2), range=(-1, 1)), [[[0, 2]]], "data.ran"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(OUTSIDE))
def test_a_row_outside_is_refused_by_its_place(folder, name):
    data, values, expected = OUTSIDE[name]
    with pytest.raises(BadFile, match=expected):
        read(folder, data, np.array(values, dtype=np.float64))


CONFIGS = {
    "neither columns nor shape": ({"examples": "rows"}, "columns"),
    "a column twice": ({"columns": ("a", "a")}, "each column once"),
    "the label among the columns": (
        {"examples": "regression", "columns": ("a", "y"), "label": "y"}, "each column once"),
    "another shape": ({"columns": ("a", "b"), "shape": (3,)}, "a shape of 2 columns"),
    "no matrices": ({"examples": "spd-matrices", "shape": (4,)}, r"shape \[m, m\]"),
    "not square": ({"examples": "spd-matrices", "shape": (4, 3)}, "square"),
    "no label": ({"examples": "classification", "columns": ("a",)}, "label: required"),
    "three classes": (
        {"examples": "classification", "columns": ("a",), "label": "y", "classes": ("u", "v", "w")},
        "two classes"),
    "texts and integers": (
        {"examples": "classification", "columns": ("a",), "label": "y", "classes": ("u", 1)},
        "texts or integers"),
    "classes of rows": ({"columns": ("a",), "classes": ("u", "v")}, "needs label"),
    "low above high": ({"columns": ("a",), "range": (1, 0)}, "low < high"),
    "eigenvalues of zero": (
        {"examples": "spd-matrices", "shape": (2, 2), "range": (0, 1)}, "eigenvalues above 0"),
    "no range": ({"columns": ("a",), "range": ()}, "one for each column of .1., got 0"),
    "no range of matrices": (
        {"examples": "spd-matrices", "shape": (2, 2), "range": ()}, "one pair"),
    "ranges of matrices": (
        {"examples": "spd-matrices", "shape": (2, 2), "range": ((1, 2), (1, 2))}, "one pair"),
    "no end": ({"columns": ("a",), "range": (float("-inf"), 1)}, "finite"),
    "ends whose squares overflow": (
        {"columns": ("a",), "range": (0, 1), "rescale_to": (0, 1e308)}, "rescale_to: expected"),
    "two ranges of three": ({"columns": ("a", "b", "c"), "range": BOUNDS[:2]}, "one pair, or one"),
    "rescale without range": ({"columns": ("a",), "rescale_to": (0, 1)}, "needs range"),
    "project without a radius": ({"columns": ("a",), "outside": "project"}, "needs row_norm"),
    "clip points": (
        {"examples": "sphere-points", "columns": ("a", "b"), "outside": "clip"}, "got 'clip'"),
    "query without features": (
        {"examples": "hyperbolic-points", "columns": ("a", "b"), "query": (1.0,)}, "query"),
    "a mask of rows": ({"columns": ("a",), "mask": "m"}, "mask"),
    "no such source": ({"columns": ("a",), "source": "nowhere:read"}, "can be imported"),
    "a source that is no function": ({"columns": ("a",), "source": "pathlib:Path"}, "a function"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CONFIGS))
def test_a_config_that_does_not_fit_together_is_refused(name):
    fields, expected = CONFIGS[name]
    with pytest.raises(ValueError, match=expected):
        FileData(**{"examples": "rows", **fields})


def test_what_overflows_is_refused_by_its_place(folder):
    signals = np.stack([np.eye(2), 1e200 * np.eye(2), np.eye(2)])
    with pytest.raises(BadFile, match=r"example 1: expected numbers whose squares are finite"):
        read(folder, FileData(examples="signals", shape=(2, 2)), signals)
    rows = FileData(examples="rows", shape=(1,), range=(0, 1e-90), rescale_to=(-1e90, 1e90))
    assert np.isfinite(read(folder, rows, np.array([[0.0], [1e-90]]))["z"]).all()
