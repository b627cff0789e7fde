"""Real data are what the files hold; whatever bytes a file holds, it is read or named in a line."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifed.problems import real
from manifed.problems.data import build, checksum
from manifed.problems.real import DataDamaged, DataMissing

A9A = b"-1 1:1 123:1 \n+1 2:1 \n-1 5:1 7:1 \n"


@st.composite
def damaged(draw, whole):
    """``whole`` with a few bytes changed, cut, doubled or inserted."""
    found = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(found) - 1, 0)))
        match draw(st.sampled_from(["change", "cut", "insert", "double"])):
            case "change" if found:
                found[at] = draw(st.integers(0, 255))
            case "cut":
                del found[at:]
            case "insert":
                found[at:at] = draw(st.binary(min_size=1, max_size=8))
            case _:
                found[at:at] = found[at : at + 16]
    return bytes(found)


def sound_or_refused(read, *names):
    try:
        read()
    except (DataDamaged, DataMissing) as error:
        line = str(error)
        assert "\n" not in line
        assert any(name in line for name in names)


FUZZ = settings(max_examples=120, deadline=None, derandomize=True)


MNIST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array):
    header = b"\x00\x00\x08" + bytes([array.ndim])
    return header + b"".join(int(n).to_bytes(4, "big") for n in array.shape) + array.tobytes()


def images(count=4, side=3):
    return idx(np.arange(count * side * side, dtype=np.uint8).reshape(count, side, side))


def labels(count=4, top=9):
    return idx((np.arange(count) % (top + 1)).astype(np.uint8))


def put(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def mnist(folder, image_bytes, label_bytes, end=""):
    put(folder, f"mnist/{MNIST[0]}{end}", image_bytes)
    put(folder, f"mnist/{MNIST[1]}{end}", label_bytes)
    return load_mnist(folder)


def load_mnist(folder):
    return real.Mnist(is_unit_norm=False).load(folder, 0)


def load_a9a(folder):
    return real.A9a(has_intercept=False).load(folder, 0)


# -- what the files hold --------------------------------------------------------------------------
def test_the_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    found = real.Digits(is_unit_norm=False).load(None, 0)
    theirs = load_digits()
    assert (found.examples["z"].numpy() * 16 == theirs.data).all()
    assert (found.labels == theirs.target).all()
    assert found.labels.dtype == np.int64
    zeros = real.Digits(digit=0).load(None, 0)
    assert (len(zeros.examples), set(zeros.labels.tolist())) == (178, {0})


@pytest.mark.parametrize("end", ["", ".gz"])
def test_idx_files_are_read_plain_or_gzipped_and_the_training_set_is_preferred(tmp_path, end):
    pack = gzip.compress if end else bytes
    found = mnist(tmp_path, pack(images()), pack(labels()), end)
    assert found.meta == {"split": "test"}
    assert np.array_equal(found.examples["z"], np.arange(36).reshape(4, 9) / 255.0)
    assert found.labels.tolist() == list(range(4))
    put(tmp_path, f"mnist/train-images-idx3-ubyte{end}", pack(images(5)))
    with pytest.raises(DataMissing, match="train-labels"):
        load_mnist(tmp_path)
    put(tmp_path, f"mnist/train-labels-idx1-ubyte{end}", pack(labels(5)))
    found = load_mnist(tmp_path)
    assert (found.meta["split"], len(found.examples)) == ("train", 5)


def test_a9a_is_parsed_from_libsvm_lines(tmp_path):
    put(tmp_path, "a9a/a9a", b"-1 1:1 123:0.5 \n+1 2:1 \n1\n")
    found = load_a9a(tmp_path)
    features = found.examples["feature"]
    assert features.shape == (3, 123)
    assert np.flatnonzero(features[0]).tolist() == [0, 122]
    assert features[0, 122] == 0.5
    assert found.labels.tolist() == [-1, 1, 1]


@pytest.mark.parametrize("read", [load_mnist, load_a9a])
def test_a_missing_file_names_path_and_variable(tmp_path, read):
    (tmp_path / "a9a" / "a9a").mkdir(parents=True)  # a folder in its place
    with pytest.raises(DataMissing, match=f"{tmp_path}.*MANIFED_DATA"):
        read(tmp_path)
    with pytest.raises(DataMissing, match=r"no data folder was named.*MANIFED_DATA"):
        read(None)
    assert issubclass(DataMissing, FileNotFoundError)


def test_checksums_see_values_shapes_and_types():
    a = np.arange(6.0)
    assert checksum(a) == checksum(a.copy())
    others = [a + 1e-16 + 1, a.reshape(2, 3), a.astype(np.float32)]
    assert len({checksum(x) for x in [a, *others]}) == 4
    with pytest.raises(ValueError, match="finite numbers in 'z'"):
        build({"z": np.array([[1.0, np.nan]])})


@pytest.mark.data
def test_the_downloaded_files_are_as_stated():
    folder = Path(os.environ["MANIFED_DATA"])
    found = load_mnist(folder)
    assert len(found.examples) == {"train": 60000, "test": 10000}[found.meta["split"]]
    found = load_a9a(folder)
    features = found.examples["feature"]
    assert features.shape == (32561, 123)
    assert (found.labels == 1).mean() == pytest.approx(0.2408, abs=1e-4)
    assert features.sum(1).mean() == pytest.approx(13.87, abs=0.01)


# -- what they must not hold ----------------------------------------------------------------------
ZIPPED = gzip.compress(images(), mtime=0)
ZIPS = {
    "truncated gz": ZIPPED[:-9],
    "cut gz header": ZIPPED[:5],
    "no gz at all": images(),
    "wrong crc": ZIPPED[:-8] + b"1234" + ZIPPED[-4:],
}
IMAGES = {
    "wrong magic": b"\x00\x00\x0d" + images()[3:],
    "empty": b"",
    "header cut": images()[:9],
    "rows cut": images()[:-1],
    "rows too many": images() + b"\0",
    "absurd sizes": b"\x00\x00\x08\x03" + b"\xff" * 12,
    "255 dimensions": b"\x00\x00\x08\xff" + b"\0" * 2000,
    "no dimensions": b"\x00\x00\x08\x00\x01",
    "flat images": labels(),
}
CASES = {
    **{name: (raw, gzip.compress(labels()), ".gz", "images") for name, raw in ZIPS.items()},
    **{name: (raw, labels(), "", "images") for name, raw in IMAGES.items()},
    "no images": (images(0), labels(0), "", "images"),
    "more labels than images": (images(), labels(5), "", "labels"),
    "fewer labels than images": (images(), labels(3), "", "labels"),
    "labels that are no digits": (images(16), labels(16, top=11), "", "labels"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_damaged_mnist_names_the_file(tmp_path, case):
    image_bytes, label_bytes, end, culprit = CASES[case]
    with pytest.raises(DataDamaged) as caught:
        mnist(tmp_path, image_bytes, label_bytes, end)
    assert culprit in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bomb_is_not_unpacked(tmp_path):
    path = put(tmp_path, "bomb.gz", gzip.compress(bytes(1 << 22)))
    with pytest.raises(DataDamaged, match=r"bomb\.gz: expected at most 1000 bytes unpacked"):
        real.content(path, most=1000)


@pytest.mark.parametrize(
    "text",
    [
        b"-1 1:1 \nnan 2:1 \n", b"1:1 2:1\n", b"-1 1:inf\n", b"-1 1:\n", b"-1 0:1\n", b"",
        b"+1 1:1\n+1 1:1 2:1 x\n", b"2 1:1\n", b"-1 1:1\n-1 \xff\n", b"-1 3:1 2:1\n",
        b"-1 " + b"9" * 5000 + b":1\n", "-1 \u0661:1\n".encode(), b"+1 1:1\n-1 124:1\n",
    ],
)  # fmt: skip
def test_a_damaged_a9a_is_refused_without_its_text(tmp_path, text):
    put(tmp_path, "a9a/a9a", text)
    with pytest.raises(DataDamaged, match=r"a9a/a9a: expected lines"):
        load_a9a(tmp_path)


@FUZZ
@given(damaged(images()), st.booleans())
def test_any_damage_to_images_is_read_or_named(tmp_path_factory, raw, is_zipped):
    folder = tmp_path_factory.mktemp("mnist")
    raw = ZIPPED[: len(raw)] if is_zipped and len(raw) < len(ZIPPED) else raw
    end = ".gz" if is_zipped else ""
    label_bytes = gzip.compress(labels()) if is_zipped else labels()
    sound_or_refused(lambda: mnist(folder, raw, label_bytes, end), *MNIST)


@FUZZ
@given(damaged(A9A))
def test_any_damage_to_a9a_is_read_or_named(tmp_path_factory, raw):
    folder = tmp_path_factory.mktemp("a9a")
    put(folder, "a9a/a9a", raw)
    sound_or_refused(lambda: load_a9a(folder), "a9a/a9a")
