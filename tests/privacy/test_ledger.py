"""The ledger never forgets: damage is found by line, forgers by key, crashes never under-report."""

import hashlib
import json
import os
import random
import shutil
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest

from manifed.errors import ConfigError
from manifed.privacy.charging import Account, opened
from manifed.privacy.ledger import (
    Entry,
    Head,
    Ledger,
    LedgerDamaged,
    Settles,
    ledger_key,
)
from manifed.privacy.odometer import Odometer
from manifed.privacy.statement import Promise, audit_ledger
from manifed.privacy.tariff import ClientReleases, Tariff, Terms
from tests.privacy.forging import OLDER, entries_of, head_file, rewritten, write_older
from tests.privacy.test_spending import SMALL, reserved

KEY = b"k" * 32
OTHER = b"o" * 32
TERMS = Terms(population=3, updates=(ClientReleases(partitions=(0, 1, 2), releases=SMALL),))
PROMISE = Promise(Tariff((TERMS,)), 100)


def entry(server_round):
    return reserved(server_round, (0, 2), terms=TERMS if server_round == 1 else None)


def written(path, count=3, key=None):
    with Ledger.create(path, {"config": "abc"}, key=key) as ledger:
        for server_round in range(1, count + 1):
            ledger.append(entry(server_round))
    return path


def recovered(path, **how):
    """Opened as a run does that was to charge round 4."""
    Ledger.recover(path, pays=lambda: entry(4), **how).close()


def appended(path, more, **how):
    with Ledger.recover(path, **how) as ledger:
        return ledger.append(more)


def charged_rounds(path):
    return [one.reserves.first for one in entries_of(path)[1:]]


def refused(path, said, take=recovered, **how):
    with pytest.raises(LedgerDamaged, match=said) as caught:
        take(path, **how)
    return caught.value


@pytest.fixture
def path(tmp_path):
    return written(tmp_path / "ledger.jsonl")


def counted(path, **how):
    odometer = Odometer()
    found = Ledger.verify(path, feed=odometer.feed, **how)
    return odometer.participations, found.authenticity


# -- accidents ---------------------------------------------------------------------------------
def test_what_was_appended_is_read_back_in_order_and_chained(path):
    entries = entries_of(path)
    assert entries[0].said["config"] == "abc"
    assert [one.reserves.first for one in entries[1:]] == [1, 2, 3]
    assert entries[1].terms == TERMS
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["previous"] == "0" * 64
    assert all(b["previous"] == a["sha256"] for a, b in pairwise(lines))
    more = appended(path, entry(4))
    assert entries_of(path) == (*entries, more)


def test_any_changed_byte_is_found_at_its_line(path):
    good = path.read_bytes()
    starts = [0, *[i + 1 for i, byte in enumerate(good) if byte == 10]]
    for position in range(0, len(good) - 1, 7):
        if good[position] == 10:
            continue
        path.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        line = sum(start <= position for start in starts)
        assert refused(path, f"line {line}:").line == line
    path.write_bytes(good)
    recovered(path)
    assert path.read_bytes() == good


def test_removed_and_swapped_lines_a_cut_and_a_rewritten_end_are_found(path):
    lines = path.read_bytes().splitlines(keepends=True)
    for line in (1, 2, 3):
        path.write_bytes(b"".join([*lines[: line - 1], *lines[line:]]))
        refused(path, f"line {line}:")
        path.write_bytes(b"".join(lines[:line]))
        refused(path, rf"line {line + 1}: is missing: 4 lines")
    path.write_bytes(b"".join([lines[1], lines[0], *lines[2:]]))
    refused(path, "line 1:", Ledger.verify)
    other = written(path.with_name("other.jsonl"), 2)
    appended(other, entry(99))
    path.write_bytes(other.read_bytes())
    refused(path, "line 4: is not the line that was written", Ledger.verify)


def test_a_ledger_without_its_head_or_without_lines_is_refused_and_none_is_made(path):
    with pytest.raises(FileNotFoundError):
        recovered(path.with_name("none.jsonl"))
    head_file(path).unlink()
    refused(path, r"its head ledger\.jsonl\.head is missing")
    path.write_bytes(b"")
    refused(path, "line 1: the header is missing")


def test_two_runs_cannot_hold_one_ledger(path):
    with Ledger.recover(path):
        with pytest.raises(LedgerDamaged, match="another process"):
            recovered(path)
        assert len(entries_of(path)) == 4
    recovered(path)


def test_a_ledger_is_never_overwritten_and_an_interrupted_creation_is_done_again(path):
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match="exists"):
        Ledger.create(path, {})
    assert path.read_bytes() == before
    path.unlink()
    for head in (None, b'{"sequence": 3, "sha256": "' + b"0" * 64 + b'"}', b"?"):
        if head is not None:
            head_file(path).write_bytes(head)
        refused(path, "only its head is left", Ledger.create, header={})
    Head(0, "1" * 64).write(path, "0" * 64)  # of a creation that was interrupted
    Ledger.create(path, {"a": 1}).close()
    assert entries_of(path)[0].said["a"] == 1


def test_what_is_no_json_is_refused_and_the_ledger_goes_on(path):
    with Ledger.recover(path) as ledger:
        for said in ({"x": float("nan")}, {"x": object()}):
            with pytest.raises((ValueError, TypeError)):
                ledger.append(Entry(said=said))
        ledger.append(entry(4))
    assert len(entries_of(path)) == 5


def test_after_a_failed_write_nothing_more_is_taken(path, monkeypatch):
    with Ledger.recover(path) as ledger:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
            with pytest.raises(OSError, match="disk full"):
                ledger.append(entry(4))
        with pytest.raises(LedgerDamaged, match="an earlier write failed"):
            ledger.append(entry(4))
    appended(path, entry(4))


def test_append_returns_after_the_line_and_then_the_head_are_synced(path, monkeypatch):
    synced = []
    real = os.fsync

    def fsync(descriptor):
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor).st_size))
        assert Head.read(path).least == 3 + (len(synced) > 1)
        real(descriptor)

    with Ledger.recover(path) as ledger:
        monkeypatch.setattr(os, "fsync", fsync)
        ledger.append(entry(4))
    files = (path, head_file(path))
    assert synced == [(str(file), file.stat().st_size) for file in files]


# -- heads -------------------------------------------------------------------------------------
@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("count", [9, 10])
def test_a_head_torn_at_any_byte_is_the_one_before_and_its_line_is_missed(tmp_path, key, count):
    """Of sequences of as many digits, and of one more."""
    path = written(tmp_path / "ledger.jsonl", count, key)
    with Ledger.recover(path, key=key) as ledger:
        ledger.append(entry(count + 1))
        before = head_file(path).read_bytes()
        lines = path.read_bytes()
        ledger.append(entry(count + 2))
    after, whole = head_file(path).read_bytes(), path.read_bytes()
    changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    assert changed[-1] - changed[0] < 256
    for upto in range(changed[0] + 1, changed[-1] + 1):
        head_file(path).write_bytes(after[:upto] + before[upto:])
        path.write_bytes(whole)
        assert Ledger.verify(path, key=key).head.sequence == count + 2
        path.write_bytes(lines)
        refused(path, rf"line {count + 3}: is missing", key=key)
    path.write_bytes(whole)
    appended(path, entry(count + 3), key=key)
    assert Head.read(path).least == Ledger.verify(path, key=key).head.sequence == count + 3


def test_a_place_of_a_head_that_went_bad_is_refused(path):
    good = head_file(path).read_bytes()
    for bad in (good[:300], good[:4096] + b"\0" * 256):  # the newer one, as a crash may leave it
        head_file(path).write_bytes(bad)
        assert Ledger.verify(path).head.sequence == Head.read(path).least == 3
    head_file(path).write_bytes(b"\0" * 256 + good[256:])
    refused(path, r"line 5: is missing, for which its head .* was torn")
    for bad in (b"", b"\0" * len(good), good + b" "):
        head_file(path).write_bytes(bad)
        refused(path, "is no head of format 3")


def test_the_head_of_one_place_that_earlier_versions_wrote_is_read(path):
    head = Head.read(path).head
    one = {"format": 3, "sequence": head.sequence, "sha256": head.sha256}
    head_file(path).write_text(json.dumps(one) + "\n")
    assert Head.read(path) == (head, 3, ((head, None, "head"),))
    cut = path.read_bytes()
    path.write_bytes(b"".join(cut.splitlines(keepends=True)[:-1]))
    refused(path, "line 4: is missing: 4 lines")
    path.write_bytes(cut)
    appended(path, entry(4))
    assert head_file(path).stat().st_size == 4096 + 256


def test_a_head_that_was_replaced_by_its_copy_stops_the_ledger(path):
    with Ledger.recover(path) as ledger:
        shutil.copy(head_file(path), path.with_name("copy"))
        path.with_name("copy").replace(head_file(path))
        with pytest.raises(LedgerDamaged, match=r"its head .* was changed while"):
            ledger.append(entry(4))


# -- formats -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("content", "named"),
    [
        (OLDER, "has format 2"),
        (OLDER.replace(b'"format":2,', b""), "has format 1"),
        (OLDER.replace(b'"format":2', b'"format":4'), "has format 4"),
        (OLDER.replace(b"body", b"said"), "has format 2"),
    ],
)
def test_a_ledger_of_another_format_is_refused_by_name_and_left_as_it_is(tmp_path, content, named):
    path = tmp_path / "ledger.jsonl"
    before = write_older(path, content)
    for take in (Ledger.verify, recovered, lambda p: audit_ledger(p, 1e-5)):
        refused(path, rf"line 1: {named}, .* format 3 alone; go on with", take)
    with pytest.raises(LedgerDamaged, match=named):
        opened(path, PROMISE, last_round=3, header={}, resumed_at=1).__enter__()
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == before


def test_a_head_of_another_format_is_refused_by_name(path):
    head = {"sequence": 3, "sha256": Head.read(path).head.sha256}
    for changed in ({**head, "format": 2}, head):
        head_file(path).write_text(json.dumps(changed))
        refused(path, "is no head of format 3")


# -- torn lines --------------------------------------------------------------------------------
def test_a_torn_last_line_is_told_apart_and_paid_for(path):
    whole = path.read_bytes()
    for cut in (1, 20, 100):
        path.write_bytes(whole + b'{"previous":"4' * 5 + b"x" * cut)
        refused(path, r"line 5: was never finished .* resume the run", audit_ledger, delta=1e-5)
    torn = path.read_bytes()[len(whole) :]
    with Ledger.recover(path, pays=lambda: entry(4)) as ledger:
        assert bytes.fromhex(entries_of(path)[-1].said["torn"]) == torn
        ledger.append(entry(5))
    assert charged_rounds(path) == [1, 2, 3, 4, 5]


def test_a_recovery_that_was_interrupted_still_pays(path, monkeypatch):
    """Killed before, between and after its writes: the torn line is paid once or more."""
    whole = path.read_bytes()
    for interrupted in ("pwrite", "fsync", "ftruncate"):
        path.write_bytes(path.read_bytes() + b"torn" * 300)
        Ledger.verify(path, feed=(before := []).append)
        paid = sum(one.reserves is not None for one in before)
        with monkeypatch.context() as patch:

            def die(*_):
                raise KeyboardInterrupt

            patch.setattr(os, interrupted, die)
            with pytest.raises(KeyboardInterrupt):
                recovered(path)
        if interrupted == "pwrite":  # after it the new end is whole, and longer than the torn one
            assert Ledger.verify(path).is_torn
        recovered(path)
        assert sum(one.reserves is not None for one in entries_of(path)) > paid
    assert path.read_bytes().startswith(whole)


@pytest.mark.parametrize(
    ("lost", "is_charged"),
    [
        (Entry(said={"noise_origins": ["os"]}), False),
        (Entry(settles=Settles(upto=1)), False),
        (entry(2), True),
        (reserved(2, (0,), settles=Settles(upto=1)), True),
    ],
)
def test_a_torn_line_is_charged_unless_it_is_seen_to_cost_nothing(tmp_path, lost, is_charged):
    whole = written(tmp_path / "whole.jsonl", 1)
    before = len(whole.read_bytes())
    appended(whole, lost)
    line = whole.read_bytes()[before:]
    shown = len(b'{"previous":"') + 64 + len(b'","s')
    for length in (5, shown - 1, shown, len(line) - 1):
        path = written(tmp_path / f"{length}.jsonl", 1)
        path.write_bytes(path.read_bytes() + line[:length])
        with Ledger.recover(path, pays=lambda: entry(2)):
            # Until the key after the hash is seen, a line may be anything, and counts.
            assert len(entries_of(path)) == 2 + (is_charged or length < shown), length


@pytest.mark.parametrize(("key", "block"), [(None, 1), (KEY, 3)])
def test_a_write_torn_at_every_byte_counts_all_that_was_acknowledged(
    tmp_path, monkeypatch, key, block
):
    """The last line cut at each of its bytes, the head before or after it."""
    path = tmp_path / "ledger.jsonl"
    if key is not None:
        (tmp_path / "key").write_bytes(key)
        monkeypatch.setenv("MANIFED_LEDGER_KEY_FILE", str(tmp_path / "key"))
    account = Account(PROMISE, Ledger.create(path, {}, key=key), block=block)
    account.charge(1, 0, (0, 1))
    for server_round in range(2, block + 1):
        account.charge(server_round, 0, (0,))
    acknowledged = path.read_bytes()
    before = head_file(path).read_bytes()
    account.charge(block + 1, 0, (0, 2))
    whole = path.read_bytes()
    after = head_file(path).read_bytes()
    account.ledger.close()
    torn = []
    for length in range(len(acknowledged), len(whole) + 1, block):
        path.write_bytes(whole[:length])
        head_file(path).write_bytes(before)
        is_torn = Ledger.verify(path, key=key).is_torn
        assert is_torn == (len(acknowledged) < length < len(whole))
        torn += [length] * is_torn
    for length in (torn[0], torn[len(torn) // 2], torn[-1], len(acknowledged), len(whole)):
        path.write_bytes(whole[:length])
        head_file(path).write_bytes(before)
        ahead = {"resumed_at": block + 1, "block": block}
        with opened(path, PROMISE, last_round=99, header={}, **ahead) as resumed:
            found = resumed.odometer
        audited = Odometer()
        assert not Ledger.verify(path, key=key, feed=audited.feed).is_torn
        assert audited.spent(1e-5) == found.spent(1e-5)
        if length > len(acknowledged):
            assert found.attempts(block + 1) == 1
            assert (found.participations_by_client() >= np.array([block + 1, 1, 1])).all()
    path.write_bytes(whole[:-1])
    head_file(path).write_bytes(after)
    refused(path, "is missing", Ledger.verify, key=key)


def test_a_resumed_run_charges_a_torn_line_for_everybody(path):
    path.write_bytes(path.read_bytes() + b"{")
    with opened(path, PROMISE, last_round=5, header={}, block=8, resumed_at=4) as account:
        assert account.odometer.participations_by_client().tolist() == [5, 2, 5]
        assert [account.attempts(r) for r in (3, 4, 5, 6)] == [1, 1, 1, 0]


# -- keys --------------------------------------------------------------------------------------
def cheaper(found):
    if "reserves" in found:
        return {**found, "reserves": {**found["reserves"], "cohort": ""}}
    return found


def saying(found, **said):
    return (
        {**found, "said": {**found["said"], **said}} if "format" in found.get("said", {}) else found
    )


def key_id_in(path):
    return entries_of(path)[0].said["key_id"]


def test_a_keyed_ledger_is_verified_with_its_key_and_read_without(tmp_path):
    path = written(tmp_path / "ledger.jsonl", key=KEY)
    assert counted(path, key=KEY) == (3, "verified")
    assert counted(path) == (3, "not checked")
    assert counted(written(tmp_path / "plain.jsonl")) == (3, "unkeyed")
    assert key_id_in(path) != key_id_in(written(tmp_path / "other.jsonl", key=OTHER))
    everything = path.read_bytes() + head_file(path).read_bytes()
    for secret in (KEY, KEY.hex().encode(), hashlib.sha256(KEY).hexdigest().encode()):
        assert secret not in everything
    appended(path, Entry(said={"text": "free"}), key=KEY)
    assert counted(path, key=KEY) == (3, "verified")


def test_a_wrong_a_missing_and_a_needless_key_are_refused(tmp_path):
    path = written(tmp_path / "a.jsonl", key=KEY)
    refused(path, "line 1: was keyed with key .* give the run's key", Ledger.verify, key=OTHER)
    plain = written(tmp_path / "b.jsonl")
    refused(plain, r"line 1: .* this ledger is not keyed", Ledger.verify, key=KEY)
    before = path.read_bytes()
    refused(path, "no key was given")
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"  \n", b"x" * 15 + b"\n"])
def test_a_short_key_is_refused(tmp_path, content):
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(ConfigError, match=r"at least 16 bytes .* openssl rand -hex 32"):
        ledger_key(tmp_path / "key")
    with pytest.raises(ValueError, match="at least 16 bytes"):
        Ledger.create(tmp_path / "ledger.jsonl", {}, key=content.strip())
    assert not (tmp_path / "ledger.jsonl").exists()


def test_no_rewrite_of_a_keyed_ledger_passes_with_the_key(tmp_path):
    good = written(tmp_path / "good.jsonl", key=KEY)
    lines = good.read_bytes().splitlines(keepends=True)

    def forged(name):
        shutil.copy(good, path := tmp_path / name)
        shutil.copy(head_file(good), head_file(path))
        return path

    rewritten(kept := forged("tags kept"), cheaper, keep_tags=True)
    assert counted(kept) == (0, "not checked")  # the chain detects accidents, not forgers
    refused(kept, "line 2: was rewritten by somebody without the key", Ledger.verify, key=KEY)
    rewritten(forged("tags dropped"), cheaper)
    unkeyed = lambda found: saying(cheaper(found), key_id=None)  # noqa: E731
    rewritten(forged("said to be unkeyed"), unkeyed)
    rekeyed_by = written(tmp_path / "other key.jsonl", key=OTHER)
    rekeyed = lambda found: saying(found, key_id=key_id_in(rekeyed_by))  # noqa: E731
    rewritten(forged("said to have another key"), rekeyed, keep_tags=True)
    cut = lambda found: found if found["sequence"] < 3 else None  # noqa: E731
    rewritten(forged("cut, head made right"), cut, keep_tags=True)
    forged("line swapped for a later one").write_bytes(
        b"".join([lines[0], lines[2], lines[1], *lines[3:]])
    )
    other = written(tmp_path / "another run.jsonl", key=KEY)
    mixed = forged("lines of another run")
    mixed.write_bytes(b"".join([lines[0], *other.read_bytes().splitlines(keepends=True)[1:]]))
    forged("head of another run")
    shutil.copy(head_file(other), head_file(tmp_path / "head of another run"))
    older = forged("cut by a line, the older head in both places")
    older.write_bytes(b"".join(lines[:-1]))
    newer = head_file(good).read_bytes()
    one = newer[:256] if b'"sequence": 2' in newer[:256] else newer[4096:]
    head_file(older).write_bytes(one.ljust(4096) + one)
    single = forged("cut by a line, the older head as earlier versions wrote it")
    single.write_bytes(b"".join(lines[:-1]))
    head_file(single).write_bytes(one.partition(b', "check"')[0] + b"}\n")
    assert counted(good, key=KEY) == (3, "verified")
    names = [p.name for p in tmp_path.iterdir() if not p.suffix and " " in p.name]
    assert len(names) == 10
    for name in names:
        refused(tmp_path / name, None, Ledger.verify, key=KEY)


# -- anchors -----------------------------------------------------------------------------------
@pytest.mark.parametrize("key", [None, KEY])
def test_a_rolled_back_pair_is_found_by_an_anchor_and_by_nothing_else(tmp_path, key):
    path = written(tmp_path / "ledger.jsonl", key=key)
    old = path.read_bytes(), head_file(path).read_bytes()
    earlier = Ledger.verify(path, key=key).head
    with Ledger.recover(path, key=key) as ledger:
        ledger.append(Entry(said={"text": "later"}))
        anchor = ledger.head
    assert Ledger.verify(path, key=key, anchors=[earlier, anchor]).head == anchor
    path.write_bytes(old[0])
    head_file(path).write_bytes(old[1])
    assert Ledger.verify(path, key=key, anchors=[earlier]).head == earlier
    for take in (Ledger.verify, recovered):
        said = r"line 5: is missing: 5 lines .*rolled back"
        refused(path, said, take, key=key, anchors=[anchor])


def test_an_anchor_of_another_run_is_refused_and_a_head_is_read_as_it_was_printed(tmp_path):
    one = written(tmp_path / "a.jsonl")
    two = written(tmp_path / "b.jsonl")
    anchor = Ledger.verify(two).head
    assert Head.parse(f" {anchor}\n") == anchor
    assert Ledger.verify(one).header["run_id"] != Ledger.verify(two).header["run_id"]
    said = "line 4: is not the line that was written"
    refused(one, said, Ledger.verify, anchors=[anchor])
    for text in ("", "4", "4:abc", f"-1:{'0' * 64}", f"x:{'0' * 64}"):
        with pytest.raises(ValueError, match="ledger head: expected one"):
            Head.parse(text)


def test_verification_writes_nothing(path):
    path.write_bytes(path.read_bytes() + b"torn")
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in path.parent.iterdir()}
    assert Ledger.verify(path).is_torn
    assert before == {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in path.parent.iterdir()}


# -- sizes -------------------------------------------------------------------------------------
def test_an_append_is_bounded_in_memory_and_bytes_at_ten_thousand_clients(tmp_path, monkeypatch):
    """Half of 10 000 clients, drawn anew: 98 kB and 0.55 MB of memory a round before."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    clients = 10_000
    rng = random.Random(0)
    own = (ClientReleases(partitions=tuple(range(clients)), releases=SMALL),)
    promise = Promise(Tariff((Terms(population=clients, updates=own),)), 100)
    path = tmp_path / "ledger.jsonl"
    with Ledger.create(path, {}) as ledger:
        account = Account(promise, ledger)
        drawn = [rng.sample(range(clients), clients // 2) for _ in range(4)]
        account.charge(1, 0, drawn[0])
        tracemalloc.start()
        account.charge(2, 0, drawn[1])
        begun = tracemalloc.get_traced_memory()[0]
        size = path.stat().st_size
        for server_round in range(3, 33):
            account.charge(server_round, 0, drawn[server_round % 4])
        grown = tracemalloc.get_traced_memory()[0] - begun
        tracemalloc.stop()
    assert (path.stat().st_size - size) / 30 < 2_200
    assert grown < 100_000
