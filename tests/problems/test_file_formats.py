"""Every format gives the same examples; whatever bytes a file holds, nothing in it is run."""

import io
import json
import os
import pickle
import socket
import struct
import zipfile
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from torch.utils.data import TensorDataset

from manifed.problems.file_formats import BadFile
from manifed.problems.own_files import FileData

X = np.array([[30, 20.5], [40, 21]])
Y = np.array([1, 0])
BYTES = X.tobytes()
DATA = FileData(
    examples="classification", columns=("age", "bmi"), array="x", label="dx", classes=(0, 1)
)
TABLE = DATA.model_copy(update={"has_intercept": True})


def write(path, x=X, y=Y):
    match path.suffix:
        case ".csv":
            rows = "".join(f"{a},{b},{c}\n" for (a, b), c in zip(x, y, strict=True))
            path.write_text(f"age,bmi,dx\n{rows}")
        case ".npz":
            np.savez(path, x=x, dx=y, other=np.array(["unread"], dtype=object))
        case ".safetensors":
            save_file({"x": x, "dx": y, "other": y}, path)
        case ".parquet":
            arrow = pytest.importorskip("pyarrow")
            import pyarrow.parquet

            columns = {"id": ["a", "b"], "dx": y, "bmi": x[:, 1], "age": x[:, 0]}
            pyarrow.parquet.write_table(arrow.table(columns), path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".safetensors", ".parquet"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_all_formats_give_the_same_examples(tmp_path, suffix, dtype):
    x = X.astype(dtype)
    found = TABLE.read(write(tmp_path / f"site{suffix}", x))
    assert found["feature"].tolist() == [[*row, 1.0] for row in x.astype(float).tolist()]
    assert found["feature"].dtype == torch.float64
    assert found["label"].tolist() == [1, -1]


def test_text_labels_are_read_from_every_format_that_has_text(tmp_path):
    data = DATA.model_copy(update={"classes": ("no", "yes")})
    for suffix in (".csv", ".npz"):
        path = write(tmp_path / f"site{suffix}", y=np.array(["yes", "no"]))
        assert data.read(path)["label"].tolist() == [1, -1]
    with pytest.raises(BadFile, match="expected text of shape"):
        data.read(write(tmp_path / "numbers.npz"))


# -- what is no such file -------------------------------------------------------------------------
class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('unpickled')",))


def npy(shape="(2, 2)", descr="'<f8'", body=BYTES, version=(1, 0)):
    head = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    size = struct.pack("<H" if version == (1, 0) else "<I", len(head))
    return b"\x93NUMPY" + bytes(version) + size + head + body


def pickled(array):
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


def zipped(**members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return out.getvalue()


def tensors(header, body=b"\0" * 32):
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + body


GOOD = zipped(x=npy(), dx=npy("(2,)", body=np.array([1.0, 0.0]).tobytes()))
SHAPED = {"dtype": "F64", "shape": [2, 2], "data_offsets": [0, 32]}
BAD = {
    ".npy": [
        pickled(np.array([Bomb(), Bomb()])),  # pickled npy
        pickle.dumps(Bomb()),  # a pickle alone
        npy(descr="[('a', '<f8')]"),  # fields of a structured array
        npy("(4, 1)"),  # another shape
        npy("(-2, -2)"),  # negative sizes
        npy("(1000000000, 2)"),  # a size beyond the file
        npy("(100000000000000000000, 2)"),  # a size beyond memory
        npy("(" + "1," * 40_000 + ")", version=(2, 0)),  # a long header
        npy("__import__('os').system('false')"),  # code as a header
        npy()[:-1],  # cut
        npy() + b"\0",  # more than it says
        npy(descr="'|b1'", body=b"\0" * 4),  # bools
        npy(descr="'<U2'"),  # text
        npy(descr="'<c16'", body=b"\0" * 64),  # complex numbers
        npy("(0, 2)", body=b""),  # no examples
        npy("(True, True)", body=b"\0" * 8),  # truth values as sizes
        npy(descr="'<U0'", body=b""),  # text of no length
        npy("(" + "1," * 70 + ")", body=b"\0" * 8),  # more sizes than numpy has
        npy(f"(0, {10**30})", body=b""),  # none of a size beyond numpy
        npy(f"(0, {2**62}, {2**62})", body=b""),  # none of sizes beyond numpy
        npy(version=(9, 0)),  # a version that numpy has not
        b"",  # empty npy
    ],
    ".npz": [
        zipped(x=npy(), dx=npy("(2,)", descr="'<U0'", body=b"")),  # a label of no length
        zipped(x=pickled(np.array([Bomb(), Bomb()])), dx=npy("(2,)")),  # pickled in npz
        zipped(x=npy()),  # no label
        zipped(x=npy(), dx=npy("(1,)", body=b"\0" * 8)),  # too few labels
        GOOD[:-30],  # cut npz
        GOOD.replace(GOOD[40:60], b"\xff" * 20),  # damaged npz
        b"",  # empty npz
        zipped(x=npy("(9000000000, 2)", body=b"\0" * 1_000_000), dx=npy("(2,)")),  # a bomb
    ],
    ".safetensors": [
        b"",  # empty safetensors
        b"\xff" * 7 + b"\x7f",  # a header beyond the file
        tensors(b"{nonsense"),  # no json
        tensors(  # offsets beyond the file
            {"x": SHAPED | {"data_offsets": [0, 1 << 40]}, "dx": SHAPED}),
        tensors({"x": SHAPED | {"dtype": "Q8"}, "dx": SHAPED}),  # another type
        tensors({"y": SHAPED}),  # no such tensor
    ],
    ".xlsx": [
        b"PK",  # no such format
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("suffix", "place"), [(suffix, i) for suffix, cases in BAD.items() for i in range(len(cases))]
)
def test_no_bytes_run_code_or_end_in_anything_but_one_line(tmp_path, suffix, place):
    path = tmp_path / f"site{suffix}"
    path.write_bytes(BAD[suffix][place])
    data = FileData(examples="rows", shape=(2,)) if suffix == ".npy" else DATA
    with pytest.raises(BadFile) as refused:
        data.read(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("suffix", [".csv", ".npy", ".npz", ".parquet", ".safetensors"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path, suffix):
    data = FileData(examples="rows", columns=("age", "bmi"))
    cases = {"device": "no regular file", "pipe": "no regular file", "socket": "no regular file",
             "folder": "a folder", "loop": "levels of symbolic links", "nowhere": "No such file",
             "a\0b": "a name that no file can have", "x" * 300: "name too long"}  # fmt: skip
    paths = {name: tmp_path / f"{name}{suffix}" for name in cases}
    os.mkfifo(paths["pipe"])
    paths["device"].symlink_to("/dev/null")
    paths["folder"].mkdir()
    paths["loop"].symlink_to(paths["loop"].name)
    paths["nowhere"].symlink_to("nothing")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(paths["socket"]))
        for name, expected in cases.items():
            with pytest.raises(BadFile, match=expected):
                data.read(paths[name])


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".safetensors", ".parquet"])
def test_a_damaged_file_is_read_or_refused(tmp_path, suffix):
    path = write(tmp_path / f"site{suffix}")
    whole = path.read_bytes()

    @given(at=st.integers(0, len(whole) - 1), byte=st.integers(0, 255), is_cut=st.booleans())
    @settings(max_examples=30, derandomize=True, deadline=None)
    def check(at, byte, is_cut):
        path.write_bytes(whole[:at] if is_cut else whole[:at] + bytes([byte]) + whole[at + 1 :])
        with suppress(BadFile):
            found = DATA.read(path)
            assert found["feature"].shape[1] == 2
            assert bool(torch.isfinite(found["feature"]).all())

    check()


def test_parquet_names_column_and_row_of_what_is_missing(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    def refused(**columns):
        path = tmp_path / "site.parquet"
        good = {"age": [1.0, 2], "bmi": [3, 4], "dx": [0, 1]}
        pyarrow.parquet.write_table(arrow.table(good | columns), path)
        with pytest.raises(BadFile) as caught:
            DATA.read(path)
        return str(caught.value)

    assert "row 2, column 'bmi': expected a finite number" in refused(bmi=[3, None])
    assert "row 1, column 'age': expected a finite" in refused(age=[np.nan, 2])
    assert "column 'age': expected integers or floats, got string" in refused(age=["1", "2"])
    assert "row 1, column 'dx': expected one of" in refused(dx=[None, 1])
    assert "row 2, column 'dx': expected one of" in refused(dx=[0, 2])


def test_without_pyarrow_a_parquet_file_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    (tmp_path / "site.parquet").write_bytes(b"PAR1")
    with pytest.raises(
        BadFile, match=r'pyarrow is not installed: pip install "manifed\[parquet\]"'
    ):
        DATA.read(tmp_path / "site.parquet")


# -- a function of one's own ----------------------------------------------------------------------
def as_mapping(path):
    return {"x": torch.tensor(X), "dx": Y, "other": path}


def as_dataset(path):
    return TensorDataset(torch.tensor(X), torch.tensor(Y))


def as_list(path):
    return [{"x": x, "dx": y} for x, y in zip(X, Y, strict=True)]


def as_tensor(path):
    return torch.tensor(X)


def failing(path):
    raise KeyError("patient 17")


def source(function, data=DATA):
    name = f"{function.__module__}:{function.__name__}"
    return FileData(**{**data.model_dump(), "source": name})


def test_a_function_returns_tensors_by_name_a_dataset_or_one_tensor_of_examples(tmp_path):
    for function in (as_mapping, as_dataset, as_list):
        found = source(function).read(tmp_path)
        assert found["feature"].tolist() == X.tolist()
        assert found["label"].tolist() == [1, -1]
    rows = source(as_tensor, FileData(examples="rows", shape=(2,)))
    assert rows.read(tmp_path)["z"].tolist() == X.tolist()


def test_what_a_function_raises_is_not_quoted(tmp_path):
    with pytest.raises(BadFile, match=r"raised KeyError \(test_file_formats.py:\d+\)") as refused:
        source(failing).read(tmp_path / "scans")
    assert "patient" not in str(refused.value)


def test_a_function_must_be_declared_to_look_at_one_record_at_a_time():
    assert "data.is_row_wise" in source(as_tensor).mixes_records()
    assert source(as_tensor).model_copy(update={"is_row_wise": True}).mixes_records() is None
    assert DATA.mixes_records() is None
