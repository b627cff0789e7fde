"""A client's memory on disk: what is kept comes back bit for bit, and nothing else comes back."""

import errno
import hashlib
import logging
import os
from dataclasses import dataclass, replace

import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from manifed.algorithms.payloads import Memory
from manifed.federation import memory
from manifed.federation.exchange import Header
from manifed.federation.memory import Kept, MemoryStore, remembered


@dataclass(frozen=True)
class Two(Memory):
    u: Tensor
    seen: Tensor


MINE = Two(torch.tensor([[-0.0, 1e-310], [2.0, -3.5]]).double(), torch.tensor([7]))
BLANK = Two(0.0 * MINE.u, MINE.seen)
KEPT = Kept(Header("c" * 64, 4, 1, "train", 2), MINE.tensors())
HEADER = Header("c" * 64, 5, 0, "train", 2, last_accepted_round=4)
RUN = "../run\n/1"
CLIENT = 2


def kept(**changes):
    """What was kept, by another message."""
    return replace(KEPT, header=KEPT.header._replace(**changes))


@pytest.fixture
def store(tmp_path):
    made = MemoryStore(tmp_path / "state" / "memory")
    made.write(RUN, CLIENT, KEPT)
    return made


def mode(path):
    return os.stat(path).st_mode & 0o7777


def test_what_was_kept_comes_back_bit_for_bit_and_only_to_its_owner(store):
    found = store.read(RUN, CLIENT)
    assert replace(found, tensors={}) == replace(KEPT, tensors={})
    assert save(found.tensors) == save(KEPT.tensors)
    assert (mode(store.folder), mode(store.path(RUN, CLIENT))) == (0o700, 0o600)
    assert [path.parent for path in store.folder.iterdir()] == [store.folder]
    assert isinstance(remembered(BLANK, found, HEADER), Two)


def test_a_folder_that_others_could_enter_is_closed_before_anything_is_written(store):
    store.folder.chmod(0o755)
    store.write(RUN, CLIENT, kept(server_round=5))
    assert mode(store.folder) == 0o700
    assert store.read(RUN, CLIENT).header.server_round == 5
    assert len(list(store.folder.iterdir())) == 1


def flip_at(place):
    def flip(path):
        content = bytearray(path.read_bytes())
        content[place] ^= 1
        path.write_bytes(content)

    return flip


def link(path):
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def folder(path):
    path.unlink()
    path.mkdir()


def of(run, client):
    """The file of another owner in this place."""

    def move(path):
        other = MemoryStore(path.parent)
        other.write(run, client, kept(partition_id=client))
        other.path(run, client).replace(path)

    return move


def tagged(tag):
    """A whole file, its checksum right, with this for a tag."""

    def write(path):
        content = tag.encode() + b"\n" + save({"u": torch.zeros(2)})
        digest = hashlib.sha256(content).hexdigest().encode()
        path.write_bytes(b"manifed-memory-2 " + digest + b"\n" + content)

    return write


DAMAGE = {
    "a tag too deep": tagged("[" * 100_000),
    "a round beyond all numbers": tagged(
        '["run", {"config_sha256": "", "server_round": Infinity}]'
    ),
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "a bit of the numbers": flip_at(-1),
    "a bit of the tag": flip_at(100),
    "a bit of the checksum": flip_at(20),
    "not ours": lambda path: path.write_bytes(b"{}\n"),
    "a link": link,
    "a pipe": pipe,
    "a folder": folder,
    "others may write it": lambda path: path.chmod(0o666),
    "another client's": of(RUN, 1),
    "another run's": of("other", CLIENT),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_is_not_what_was_written_is_no_memory_and_the_log_says_so(
    store, caplog, damage
):
    DAMAGE[damage](store.path(RUN, CLIENT))
    with caplog.at_level(logging.WARNING, "manifed"):
        assert store.read(RUN, CLIENT) is None
    (line,) = caplog.messages
    assert line.startswith(f"client memory {store.path(RUN, CLIENT).name}: not used: ")
    assert "\n" not in line


def test_no_file_is_no_memory_and_nothing_to_say(tmp_path, caplog):
    assert MemoryStore(tmp_path / "none").read(RUN, CLIENT) is None
    assert not caplog.messages


def test_a_file_beyond_the_bound_is_not_read(store, monkeypatch, caplog):
    monkeypatch.setattr(memory, "MOST_BYTES", 10)
    assert store.read(RUN, CLIENT) is None
    assert "at most 10 bytes" in caplog.text


@pytest.fixture
def full(store, monkeypatch):
    def refuse(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(memory, "write_atomically", refuse)
    return store


def test_a_full_disk_leaves_the_old_file_and_a_line_in_the_log(full, caplog):
    full.write(RUN, CLIENT, kept(server_round=5))
    assert "not written: [Errno 28] No space left" in caplog.text
    old = full.read(RUN, CLIENT)
    assert old.header.server_round == 4
    assert remembered(BLANK, old, HEADER._replace(last_accepted_round=5)) is BLANK


def test_memory_that_lasts_is_on_disk_or_nothing_is_sent(full, caplog):
    """Else masks that were used once could be asked for again."""
    with pytest.raises(OSError, match="No space left"):
        full.write(RUN, CLIENT, KEPT, lasts=True)
    assert "not written" in caplog.text


def test_a_folder_that_cannot_be_made_leaves_a_line_in_the_log(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    MemoryStore(tmp_path / "file" / "memory").write(RUN, CLIENT, KEPT)
    assert "not written: " in caplog.text


def laid_out(**tensors):
    return "its tensors are not those", replace(KEPT, tensors=tensors)


@pytest.mark.parametrize(
    ("why", "kept"),
    [
        ("there is none", None),
        ("it is of another config", kept(config_sha256="d" * 64)),
        ("it is of round 3, attempt 0", kept(server_round=3, attempt=0)),
        ("it is of round 5, attempt 1", kept(server_round=5, attempt=1)),
        laid_out(u=KEPT.tensors["u"]),
        laid_out(**KEPT.tensors | {"u": torch.zeros(2).double()}),
        laid_out(**KEPT.tensors | {"u": torch.zeros(2, 2)}),
        laid_out(v=KEPT.tensors["u"], seen=KEPT.tensors["seen"]),
    ],
)
def test_memory_that_the_server_does_not_count_on_is_not_used_and_the_log_says_why(
    why, kept, caplog
):
    assert remembered(BLANK, kept, HEADER) is BLANK
    assert "client 2 starts round 5, attempt 0 from its initial memory" in caplog.text
    assert f"that of round 4, and {why}" in caplog.text


def test_memory_of_this_attempt_is_used_and_a_client_that_was_never_accepted_says_nothing(caplog):
    assert remembered(BLANK, kept(server_round=5, attempt=0), HEADER).u is KEPT.tensors["u"]
    assert remembered(BLANK, None, HEADER._replace(last_accepted_round=0)) is BLANK
    assert not caplog.messages


def test_a_folder_keeps_the_newest_files(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_MOST_RUNS", 3)
    store = MemoryStore(tmp_path)
    for i in range(5):
        store.write(f"run {i}", CLIENT, KEPT)
        os.utime(store.path(f"run {i}", CLIENT), (i, i))
    store.write("run 4", CLIENT, kept(server_round=9))
    assert [i for i in range(5) if store.read(f"run {i}", CLIENT) is not None] == [2, 3, 4]
    assert store.read("run 4", CLIENT).header.server_round == 9
