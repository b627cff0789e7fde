"""Whatever bytes a data file holds, a reader returns data or names the file (and the line)."""

import gzip
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifed.problems import readers
from manifed.problems.readers import DataDamaged, DataMissing

MNIST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
A9A = b"-1 1:1 123:1 \n+1 2:1 \n-1 5:1 7:1 \n"
MAMMALS = b"a.n.01\ta.n.01\t1\ncat.n.01\ta.n.01\t1\ndog.n.01\ta.n.01\t1\n"


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
    return readers.mnist(folder)


ZIPPED = gzip.compress(images(), mtime=0)
CASES = {
    "truncated gz": (ZIPPED[:-9], gzip.compress(labels()), ".gz", "images"),
    "cut gz header": (ZIPPED[:5], gzip.compress(labels()), ".gz", "images"),
    "no gz at all": (images(), gzip.compress(labels()), ".gz", "images"),
    "wrong crc": (ZIPPED[:-8] + b"1234" + ZIPPED[-4:], gzip.compress(labels()), ".gz", "images"),
    "wrong magic": (b"\x00\x00\x0d" + images()[3:], labels(), "", "images"),
    "empty": (b"", labels(), "", "images"),
    "header cut": (images()[:9], labels(), "", "images"),
    "rows cut": (images()[:-1], labels(), "", "images"),
    "rows too many": (images() + b"\0", labels(), "", "images"),
    "absurd sizes": (b"\x00\x00\x08\x03" + b"\xff" * 12, labels(), "", "images"),
    "255 dimensions": (b"\x00\x00\x08\xff" + b"\0" * 2000, labels(), "", "images"),
    "no dimensions": (b"\x00\x00\x08\x00\x01", labels(), "", "images"),
    "no images": (images(0), labels(0), "", "images"),
    "flat images": (labels(), labels(), "", "images"),
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


def test_labels_missing_beside_training_images_are_named_though_a_test_set_is_there(tmp_path):
    mnist(tmp_path, images(), labels())
    put(tmp_path, "mnist/train-images-idx3-ubyte", images())
    with pytest.raises(DataMissing, match="train-labels"):
        readers.mnist(tmp_path)


def test_a_bomb_is_not_unpacked(tmp_path):
    path = put(tmp_path, "bomb.gz", gzip.compress(bytes(1 << 22)))
    with pytest.raises(DataDamaged, match=r"bomb\.gz: expected at most 1000 bytes unpacked"):
        readers.content(path, most=1000)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (2, b"-1 1:1 \nnan 2:1 \n"), (1, b"1:1 2:1\n"), (2, b"-1 1:1\n\n+1 2:1\n"),
        (1, b"-1 1:inf\n"), (1, b"-1 1:\n"), (1, b"-1 0:1\n"), (2, b"+1 1:1\n+1 1:1 2:1 x\n"),
        (1, b"2 1:1\n"), (1, b"-1 1:1e5\n"), (3, b"-1 1:1\n-1 1:1\n-1 \xff\n"),
        (1, b"-1 " + b"9" * 5000 + b":1\n"), (None, b""), (None, b"-1 3:1 2:1\n"),
        (None, b"-1 124:1\n"),
    ],
)  # fmt: skip
def test_a_damaged_a9a_names_the_line(tmp_path, line, text):
    put(tmp_path, "a9a/a9a", text)
    with pytest.raises(DataDamaged, match=r"a9a/a9a" if line is None else f"a9a/a9a, line {line}:"):
        readers.a9a(tmp_path)


@pytest.mark.parametrize(
    ("line", "text"),
    [(1, b"cat\n"), (2, b"cat\tmammal\n\tmammal\n"), (2, b"a\tb\nc\t\n"), (2, b"a\tb\n\xfe\tb\n"),
     (None, b""), (None, b"a\ta\n")],
)  # fmt: skip
def test_a_damaged_closure_names_the_line(tmp_path, line, text):
    put(tmp_path, "wordnet_mammals/wordnet_mammals.tsv", text)
    with pytest.raises(DataDamaged, match=r"tsv: " if line is None else f"tsv, line {line}:"):
        readers.wordnet_mammals(tmp_path)


def embedding(**arrays):
    """An archive of a few names, features and points."""
    whole = {"names": np.array(["a.n.01", "b.n.01"]), "features": np.eye(2),
             "poincare": np.full((2, 2), 0.5)}  # fmt: skip
    file = io.BytesIO()
    np.savez(file, **(whole | arrays))
    return file.getvalue()


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"", "arrays names"),
        (embedding(names=np.array(["a"])), "for each name"),
        (embedding(names=np.array([1, 2])), "for each name"),
        (embedding(features=np.array(["x", "y"], dtype=object)), "arrays names"),
        (embedding(features=np.array([[np.nan], [0.0]])), "finite features"),
        (embedding(poincare=np.ones((2, 2))), "inside the unit disk"),
        (embedding(poincare=np.full((2, 2), np.nan)), "inside the unit disk"),
    ],
)
def test_a_damaged_embedding_says_what_it_lacks(tmp_path, raw, told):
    put(tmp_path, "wordnet_hsp/wordnet_hsp.npz", raw)
    with pytest.raises(DataDamaged, match=f"npz: .*{told}"):
        readers.wordnet_embedding(tmp_path)


def test_a_folder_in_place_of_a_file_is_missing(tmp_path):
    (tmp_path / "a9a" / "a9a").mkdir(parents=True)
    with pytest.raises(DataMissing):
        readers.a9a(tmp_path)


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
    sound_or_refused(lambda: readers.a9a(folder), "a9a/a9a")


@FUZZ
@given(damaged(MAMMALS))
def test_any_damage_to_the_closure_is_read_or_named(tmp_path_factory, raw):
    folder = tmp_path_factory.mktemp("wordnet")
    put(folder, "wordnet_mammals/wordnet_mammals.tsv", raw)
    sound_or_refused(lambda: readers.wordnet_mammals(folder), ".tsv")


@FUZZ
@given(damaged(embedding()))
def test_any_damage_to_the_embedding_is_read_or_named(tmp_path_factory, raw):
    folder = tmp_path_factory.mktemp("embedding")
    put(folder, "wordnet_hsp/wordnet_hsp.npz", raw)
    sound_or_refused(lambda: readers.wordnet_embedding(folder), ".npz")
