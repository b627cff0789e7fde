"""A file of one's own: what it gives, and one line that names file, line and column otherwise."""

import numpy as np
import pytest
import torch

from manifed.problems.file_formats import BadFile
from manifed.problems.own_files import FileData

ROWS = FileData(examples="rows", columns=("age", "bmi"))
CLASSES = FileData(
    examples="classification", columns=("age", "bmi"), label="dx", classes=("no", "yes")
)
NUMBERS = FileData(examples="regression", columns=("age", "bmi"), label="y")
GAPS = FileData(examples="columns", columns=("a", "b", "c"))


def written(folder, text, name="site.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_columns_are_taken_by_name_in_the_order_of_the_config(tmp_path):
    text = 'id,bmi,"age",dx\r\nA,"20.5",30,yes\r\n\r\nB,21,4e1, no\r\n'
    path = written(tmp_path, b"\xef\xbb\xbf" + text.encode())
    assert ROWS.read(path)["z"].tolist() == [[30, 20.5], [40, 21]]
    found = CLASSES.read(path)
    assert found["feature"].tolist() == [[30, 20.5], [40, 21]]
    assert found["label"].tolist() == [1, -1]
    assert found["label"].dtype == torch.float64


def test_what_is_not_seen_where_columns_are_completed_is_an_empty_cell_or_nan(tmp_path):
    path = tmp_path / "site.npy"
    np.save(path, [[1, np.nan, 3], [np.nan, 2, np.nan]])
    for found in (GAPS.read(path), GAPS.read(written(tmp_path, "a,b,c\n1,,3\n,2,\n"))):
        assert found["column"].tolist() == [[1, 0, 3], [0, 2, 0]]
        assert found["mask"].tolist() == [[1, 0, 1], [0, 1, 0]]


BAD = {
    ROWS: {
        "": "an empty file",
        "age,bmi\n": "at least one example, got none",
        "age,weight\n1,2\n": "'bmi': expected one column of this name, got 0",
        "age,bmi,bmi\n1,2,3\n": "'bmi': expected one column of this name, got 2",
        "63.25,2\n1,2\n": "column 'age'",
        "age;bmi\n1;2\n": "is data.delimiter right?",
        "age,bmi\n1,2\n3,secret\n": "line 3, column 'bmi': expected a number",
        "age,bmi\n1_000,3\n": "line 2, column 'age': expected a",
        "age,bmi\n1,\u0662\n": "line 2, column 'bmi': expected a number",
        "age,bmi\n1,2\n,2\n": "line 3, column 'age': expected a finite number",
        "age,bmi\n1,nan\n": "line 2, column 'bmi': expected a finite number",
        "age,bmi\n\n1,2\n1,1e999\n": "line 4, column 'bmi': expected a finite",
        "age,bmi\n1,2,5\n": "line 2: expected 2 cells as in the header, got 3",
        "age,bmi\n1,2\n1\n": "line 3: expected 2 cells as in the header, got 1",
        'age,bmi\n1,"2\n3,4\n': "expected csv",
        'age,bmi\n1,"' + "2" * 140_000 + '"\n': "expected csv",
        "age,bmi\n1,2\x00\n": "line 2",
        "age,bmi\n1,2\n\xe4,1\n".encode("latin-1"): "line 3: expected UTF-8",
    },
    GAPS: {
        "a,b,c\n1,,inf\n": "line 2, column 'c': expected a finite",
        "a,b,c\n,,\n": "line 2: expected at least one entry",
    },
    CLASSES: {
        "age,bmi,dx\n1,2,secret\n": "line 2, column 'dx': expected one of",
        "age,bmi,dx\n1,2,\n": "line 2, column 'dx': expected one of",
    },
    NUMBERS: {
        "age,bmi,y\n1,2,secret\n": "line 2, column 'y': expected a number",
        "age,bmi,y\n1,2,1_0\n": "line 2, column 'y': expected a",
        "age,bmi,y\n1,2,nan\n": "line 2, column 'y': expected a finite",
    },
}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        pytest.param(data, text, id=f"{data.examples}: {text[:30]!r}")
        for data, cases in BAD.items()
        for text in cases
    ],
)
def test_a_bad_csv_is_refused_with_line_and_column_and_without_its_values(tmp_path, data, text):
    path = written(tmp_path, text)
    with pytest.raises(BadFile) as refused:
        data.read(path)
    said = str(refused.value)
    assert said.startswith(str(path))
    assert BAD[data][text] in said
    assert "\n" not in said
    assert not any(value in said for value in ("secret", "63.25", "ä"))


@pytest.mark.parametrize("data", [ROWS, CLASSES, NUMBERS, GAPS], ids=lambda d: d.examples)
def test_a_blank_example_has_the_shapes_and_types_of_a_read_one(tmp_path, data):
    text = "age,bmi,dx,y,a,b,c\n1,2,no,0.5,1,2,3\n4,5,yes,0.5,1,,3\n"
    blank = data.blank()
    found = data.read(written(tmp_path, text))
    assert len(blank) == 1
    assert blank.feature_ndim == found.feature_ndim
    for key, tensor in found.tensors.items():
        assert blank[key].shape[1:] == tensor.shape[1:]
        assert blank[key].dtype == tensor.dtype


def test_each_file_of_a_simulation_is_one_source(tmp_path):
    paths = tuple(str(written(tmp_path, "age,bmi\n" + "1,2\n" * n, f"{n}.csv")) for n in (2, 3))
    found = ROWS.model_copy(update={"paths": paths}).load(None, 0)
    assert np.array_equal(found.sources, [0, 0, 1, 1, 1])
    assert len(found.examples) == 5
