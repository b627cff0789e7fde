"""The ledger never forgets: damage is found by line, crashes never under-report."""

import json
import multiprocessing
import os
import random
import signal
import time
from itertools import pairwise

import pytest

import manifed.privacy.ledger as ledger_module
from manifed.privacy.chain import RECOVERED, LedgerDamaged, LedgerLocked, LedgerTorn
from manifed.privacy.charges import Charge, charges
from manifed.privacy.ledger import Head, Ledger, head_file, write_head

BODY = {"server_round": 1, "attempt": 0, "partitions": [0, 2]}


def written(path, count=3):
    with Ledger.create(path, {"config": "abc"}) as ledger:
        for server_round in range(1, count + 1):
            ledger.append("charge", {**BODY, "server_round": server_round})
    return path


@pytest.fixture
def path(tmp_path):
    return written(tmp_path / "ledger.jsonl")


def test_what_was_appended_is_read_back_in_order(path):
    with Ledger.open(path) as ledger:
        assert [e.kind for e in ledger.entries] == ["header", "charge", "charge", "charge"]
        assert ledger.entries[0].body["config"] == "abc"
        assert [e.body["server_round"] for e in ledger.entries[1:]] == [1, 2, 3]
        ledger.append("charge", {**BODY, "server_round": 4})
        assert ledger.entries == Ledger.read(path)
    assert len(path.read_text().splitlines()) == 5


def test_every_line_is_chained_to_the_one_before(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["previous"] == "0" * 64
    assert all(b["previous"] == a["sha256"] for a, b in pairwise(lines))


def test_any_changed_byte_is_found_at_its_line(path):
    good = path.read_bytes()
    starts = [0, *[i + 1 for i, byte in enumerate(good) if byte == 10]]
    for position in range(0, len(good) - 1, 7):
        if good[position] == 10:
            continue
        path.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        line = sum(start <= position for start in starts)
        with pytest.raises(LedgerDamaged, match=f"line {line}:") as caught:
            Ledger.open(path)
        assert caught.value.line == line
    path.write_bytes(good)
    Ledger.open(path).close()


@pytest.mark.parametrize("line", [1, 2, 3])
def test_a_removed_line_is_found(path, line):
    lines = path.read_bytes().splitlines(keepends=True)
    del lines[line - 1]
    path.write_bytes(b"".join(lines))
    with pytest.raises(LedgerDamaged, match=f"line {line}:"):
        Ledger.open(path)


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_an_end_that_was_cut_off_is_found(path, kept):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:kept]))
    with pytest.raises(LedgerDamaged, match=rf"line {kept + 1}: is missing: 4 lines") as caught:
        Ledger.open(path)
    assert not isinstance(caught.value, LedgerTorn)
    with pytest.raises(LedgerDamaged, match="is missing"):
        Ledger.recover(path, charge=BODY)


def test_swapped_lines_and_a_rewritten_end_are_found(path):
    first, second, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([second, first, *rest]))
    with pytest.raises(LedgerDamaged, match="line 1:"):
        Ledger.open(path)
    other = written(path.with_name("other.jsonl"), 2)
    with Ledger.open(other) as ledger:
        ledger.append("charge", {**BODY, "server_round": 99})
    path.write_bytes(other.read_bytes())
    with pytest.raises(LedgerDamaged, match="line 4: is not the line that was written"):
        Ledger.open(path)


def test_a_ledger_without_its_head_or_without_lines_is_refused(path):
    head_file(path).unlink()
    with pytest.raises(LedgerDamaged, match="head"):
        Ledger.open(path)
    path.write_bytes(b"")
    with pytest.raises(LedgerDamaged, match="line 1: the header is missing"):
        Ledger.open(path)


def test_a_torn_last_line_is_told_apart_and_paid_for(path):
    whole = path.read_bytes()
    for cut in (1, 20, 100):
        path.write_bytes(whole + b'{"body":{"server_round":4' * 5 + b"x" * cut)
        with pytest.raises(LedgerTorn, match=r"line 5: was never finished .* Ledger.recover"):
            Ledger.open(path)
        with pytest.raises(LedgerTorn):
            Ledger.read(path)
    torn = path.read_bytes()[len(whole) :]
    with Ledger.recover(path, charge={**BODY, "server_round": 4}) as ledger:
        assert ledger.entries[-1].kind == RECOVERED
        assert bytes.fromhex(ledger.entries[-1].body["torn"]) == torn
        ledger.append("charge", {**BODY, "server_round": 5})
    assert [c.server_round for c in charges(Ledger.read(path))] == [1, 2, 3, 4, 5]


def test_a_recovery_that_was_interrupted_can_be_done_again(path, monkeypatch):
    whole = path.read_bytes()
    for interrupted in ("append_durably", "_forget_torn"):
        path.write_bytes(path.read_bytes() + b"torn")
        with monkeypatch.context() as patch:

            def die(*_):
                raise KeyboardInterrupt

            patch.setattr(ledger_module, interrupted, die)
            with pytest.raises(KeyboardInterrupt):
                Ledger.recover(path, charge=BODY)
        with pytest.raises(LedgerTorn):
            Ledger.open(path)
        Ledger.recover(path, charge=BODY).close()
        recovered = [e for e in Ledger.read(path) if e.kind == RECOVERED]
        assert bytes.fromhex(recovered[-1].body["torn"]) == b"torn"
    assert len(recovered) == 2
    assert path.read_bytes().startswith(whole)


def test_recovering_a_sound_ledger_changes_nothing(path):
    before = path.read_bytes()
    Ledger.recover(path, charge=BODY).close()
    assert path.read_bytes() == before


def test_two_runs_cannot_hold_one_ledger(path):
    with Ledger.open(path):
        for take in (Ledger.open, lambda p: Ledger.recover(p, charge=BODY)):
            with pytest.raises(LedgerLocked, match="another process"):
                take(path)
        assert len(Ledger.read(path)) == 4
    Ledger.open(path).close()


def test_a_ledger_is_never_overwritten(path):
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match="exists"):
        Ledger.create(path, {})
    assert path.read_bytes() == before
    path.unlink()
    with pytest.raises(LedgerDamaged, match="only its head is left"):
        Ledger.create(path, {})


def test_creation_that_was_interrupted_can_be_done_again(tmp_path):
    path = tmp_path / "ledger.jsonl"
    write_head(path, Head(0, "0" * 64))
    Ledger.create(path, {"a": 1}).close()
    assert Ledger.read(path)[0].body["a"] == 1


def test_a_missing_ledger_is_not_created(tmp_path):
    with pytest.raises(FileNotFoundError):
        Ledger.open(tmp_path / "none.jsonl")


def test_a_body_that_is_no_json_is_refused_and_the_ledger_goes_on(path):
    with Ledger.open(path) as ledger:
        for body in ({"x": float("nan")}, {"x": object()}):
            with pytest.raises((ValueError, TypeError)):
                ledger.append("charge", body)
        ledger.append("charge", BODY)
    assert len(Ledger.read(path)) == 5


def test_after_a_failed_write_nothing_more_is_taken(path, monkeypatch):
    with Ledger.open(path) as ledger:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
            with pytest.raises(OSError, match="disk full"):
                ledger.append("charge", BODY)
        with pytest.raises(LedgerDamaged, match="an earlier write failed"):
            ledger.append("charge", BODY)
    with Ledger.open(path) as ledger:
        ledger.append("charge", BODY)


def test_append_returns_after_the_line_the_head_and_the_directory_are_synced(path, monkeypatch):
    synced = []
    real = os.fsync

    def fsync(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    with Ledger.open(path) as ledger:
        monkeypatch.setattr(os, "fsync", fsync)
        ledger.append("charge", BODY)
    assert synced[0] == str(path)
    assert synced[1].startswith(str(path.parent / f".{head_file(path).name}"))
    assert synced[2] == str(path.parent)


def write_until_killed(path, witness):
    """Appends charges; writes to `witness` what it was told is on disk."""
    ledger = Ledger.recover(path, charge=BODY)
    number = len(ledger.entries)
    with open(witness, "ab", buffering=0) as released:
        while True:
            number += 1
            ledger.append("charge", {**BODY, "server_round": number, "pad": "x" * 3000})
            released.write(b"%d\n" % number)


def test_a_killed_writer_never_leaves_a_ledger_that_under_reports(tmp_path):
    path, witness = tmp_path / "ledger.jsonl", tmp_path / "witness"
    Ledger.create(path, {}).close()
    witness.touch()
    moments = random.Random(1)
    context = multiprocessing.get_context("fork")
    for _ in range(12):
        process = context.Process(target=write_until_killed, args=(path, witness))
        process.start()
        time.sleep(moments.uniform(0.01, 0.08))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        with Ledger.recover(path, charge=BODY) as ledger:
            paid = {c.server_round for c in charges_of(ledger)}
        assert {int(n) for n in witness.read_text().split()} <= paid
    assert len(paid) > 12


def charges_of(ledger):
    bodies = [e.body if e.kind == "charge" else e.body["charge"] for e in ledger.entries[1:]]
    without_pad = [{k: v for k, v in body.items() if k != "pad"} for body in bodies]
    return [Charge.model_validate(body) for body in without_pad]
