"""What somebody with write access to the folder can do, and what finds them out."""

import hashlib
import json
import os
import random
import shutil
import time
import tracemalloc

import numpy as np
import pytest

from benchmarks.ledger import append
from manifed.privacy import chain
from manifed.privacy.account import Account
from manifed.privacy.chain import GENESIS
from manifed.privacy.charges import ClientReleases, Terms
from manifed.privacy.ledger import (
    Head,
    Ledger,
    LedgerDamaged,
    LedgerTorn,
    head_file,
    read_head,
    read_key,
    torn_file,
    write_head,
)
from manifed.privacy.odometer import Odometer
from manifed.privacy.statement import audit_ledger
from tests.privacy.test_spending import SMALL

KEY, OTHER = b"k" * 32, b"o" * 32
TERMS = Terms(population=3, updates=(ClientReleases(partitions=(0, 1, 2), releases=SMALL),))


def written(path, key=None, rounds=3):
    with Ledger.create(path, {"config": "abc"}, key=key) as ledger:
        account = Account(ledger, Odometer(), TERMS)
        for server_round in range(1, rounds + 1):
            account.charge(server_round, 0, (0, 1))
        account.settle()
    return path


def rewritten(path, change, *, drop_last=0, keep_tags=True):
    """The forger: every body changed, hashes and head made right again, tags as they were."""
    previous, lines = GENESIS, []
    old = [json.loads(line) for line in path.read_bytes().splitlines()]
    for found in old[: len(old) - drop_last]:
        tag = found.get("tag") if keep_tags else None
        body = change(found["body"])
        entry, line = chain.written(found["sequence"], found["kind"], body, previous)
        if tag is not None:
            line = line[:-2] + f',"tag":"{tag}"}}\n'.encode()
        lines.append(line)
        previous = entry.sha256
    path.write_bytes(b"".join(lines))
    head = read_head(path)
    tag = head[1] if keep_tags else None
    write_head(path, Head(len(lines) - 1, previous), tag)


def cheaper(body):
    return {**body, "cohort": ""} if "cohort" in body else body


def same(body):
    return body


def counted(path, **how):
    odometer = Odometer()
    found = Ledger.verify(path, feed=odometer.feed, **how)
    return odometer.participations, found.authenticity


# -- keys --------------------------------------------------------------------------------------
def test_a_keyed_ledger_is_verified_with_its_key_and_read_without(tmp_path):
    path = written(tmp_path / "ledger.jsonl", KEY)
    assert counted(path, key=KEY) == (3, "verified")
    assert counted(path) == (3, "not checked")
    assert counted(written(tmp_path / "plain.jsonl")) == (3, "unkeyed")
    header = Ledger.read(path)[0].body
    assert header["key_id"] == chain.key_id_of(KEY) != chain.key_id_of(OTHER)
    everything = path.read_bytes() + head_file(path).read_bytes()
    for secret in (KEY, KEY.hex().encode(), hashlib.sha256(KEY).hexdigest().encode()):
        assert secret not in everything
    with Ledger.open(path, key=KEY) as ledger:
        ledger.append("note", {})
    assert counted(path, key=KEY) == (3, "verified")


def test_a_wrong_a_missing_and_a_needless_key_are_refused(tmp_path):
    path, plain = written(tmp_path / "a.jsonl", KEY), written(tmp_path / "b.jsonl")
    with pytest.raises(LedgerDamaged, match=r"line 1: was keyed with key .* give the run's key"):
        Ledger.verify(path, key=OTHER)
    with pytest.raises(LedgerDamaged, match=r"line 1: .* this ledger is not keyed"):
        Ledger.verify(plain, key=KEY)
    before = path.read_bytes()
    for take in (Ledger.open, lambda p: Ledger.recover(p, charge={})):
        with pytest.raises(LedgerDamaged, match="no key was given"):
            take(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"  \n", b"x" * 15 + b"\n"])
def test_a_short_key_is_refused(tmp_path, content):
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(ValueError, match=r"at least 16 bytes .* openssl rand -hex 32"):
        read_key(tmp_path / "key")
    with pytest.raises(ValueError, match="at least 16 bytes"):
        Ledger.create(tmp_path / "ledger.jsonl", {}, key=content.strip())
    assert not (tmp_path / "ledger.jsonl").exists()


def test_a_consistent_rewrite_passes_unkeyed_and_fails_keyed(tmp_path):
    """The unkeyed chain detects accidents, not forgers; docs/privacy.md says so."""
    plain, keyed = written(tmp_path / "a.jsonl"), written(tmp_path / "b.jsonl", KEY)
    rewritten(plain, cheaper)
    assert counted(plain) == (0, "unkeyed")
    rewritten(keyed, cheaper)
    assert counted(keyed) == (0, "not checked")
    with pytest.raises(LedgerDamaged, match="line 2: was rewritten by somebody without the key"):
        Ledger.verify(keyed, key=KEY)


def test_no_rewrite_of_a_keyed_ledger_passes_with_the_key(tmp_path):
    good = written(tmp_path / "good.jsonl", KEY)
    lines = good.read_bytes().splitlines(keepends=True)

    def forged(name):
        shutil.copy(good, path := tmp_path / name)
        shutil.copy(head_file(good), head_file(path))
        return path

    def unkeyed(body):
        return {**body, "key_id": None} if "key_id" in body else cheaper(body)

    def rekeyed(body):
        return {**body, "key_id": chain.key_id_of(OTHER)} if "key_id" in body else body

    rewritten(forged("tags dropped"), cheaper, keep_tags=False)
    rewritten(forged("said to be unkeyed"), unkeyed, keep_tags=False)
    rewritten(forged("said to have another key"), rekeyed)
    rewritten(forged("cut, head made right"), same, drop_last=1)
    forged("line swapped for a later one").write_bytes(
        b"".join([lines[0], lines[2], lines[1], *lines[3:]])
    )
    other = written(tmp_path / "another run.jsonl", KEY)
    mixed = forged("lines of another run")
    mixed.write_bytes(b"".join([lines[0], *other.read_bytes().splitlines(keepends=True)[1:]]))
    forged("head of another run")
    shutil.copy(head_file(other), head_file(tmp_path / "head of another run"))
    assert counted(good, key=KEY) == (3, "verified")
    names = [p.name for p in tmp_path.iterdir() if not p.suffix and " " in p.name]
    assert len(names) == 7
    for name in names:
        with pytest.raises(LedgerDamaged):
            Ledger.verify(tmp_path / name, key=KEY)


# -- anchors -----------------------------------------------------------------------------------
def test_a_rolled_back_pair_is_found_by_an_anchor_and_by_nothing_else(tmp_path):
    for key in (None, KEY):
        path = written(tmp_path / f"{key is None}.jsonl", key)
        old = path.read_bytes(), head_file(path).read_bytes()
        earlier = Ledger.verify(path, key=key).head
        with Ledger.open(path, key=key) as ledger:
            ledger.append("note", {"text": "later"})
            anchor = ledger.head
        assert Ledger.verify(path, key=key, anchors=[earlier, anchor]).head == anchor
        path.write_bytes(old[0])
        head_file(path).write_bytes(old[1])
        assert Ledger.verify(path, key=key, anchors=[earlier]).head == earlier
        for take in (Ledger.verify, Ledger.open):
            with pytest.raises(LedgerDamaged, match=r"line 6: is missing: 6 lines .*rolled back"):
                take(path, key=key, anchors=[anchor])
        with pytest.raises(LedgerDamaged, match="rolled back"):
            Ledger.recover(path, charge={}, key=key, anchors=[anchor])


def test_an_anchor_of_another_run_is_refused_and_a_head_is_read_as_it_was_printed(tmp_path):
    one, two = written(tmp_path / "a.jsonl"), written(tmp_path / "b.jsonl")
    anchor = Ledger.verify(two).head
    assert Head.parse(f" {anchor}\n") == anchor
    assert Ledger.verify(one).run_id != Ledger.verify(two).run_id
    with pytest.raises(LedgerDamaged, match="line 5: is not the line that was written"):
        Ledger.verify(one, anchors=[anchor])
    for text in ("", "4", "4:abc", f"-1:{'0' * 64}", f"x:{'0' * 64}"):
        with pytest.raises(ValueError, match="Expected a ledger head"):
            Head.parse(text)


def test_verification_writes_nothing(tmp_path):
    path = written(tmp_path / "ledger.jsonl")
    path.write_bytes(path.read_bytes() + b"torn")
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.iterdir()}
    assert Ledger.verify(path).is_torn
    assert before == {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.iterdir()}


def test_a_newer_format_is_not_guessed_at(tmp_path):
    path = written(tmp_path / "ledger.jsonl")
    rewritten(path, lambda body: {**body, "format": 3} if "format" in body else body)
    with pytest.raises(LedgerDamaged, match="line 1: has format 3, known are 1 to 2"):
        Ledger.verify(path)


# -- crashes -----------------------------------------------------------------------------------
@pytest.mark.parametrize(("key", "block"), [(None, 1), (KEY, 3)])
def test_a_write_torn_at_every_byte_counts_all_that_was_acknowledged(tmp_path, key, block):
    """The last line cut at each of its bytes, the head before or after it."""
    path = tmp_path / "ledger.jsonl"
    account = Account(Ledger.create(path, {}, key=key), Odometer(), TERMS, block=block)
    head = head_file(path)
    account.charge(1, 0, (0, 1))
    for server_round in range(2, block + 1):
        account.charge(server_round, 0, (0,))
    acknowledged, before = path.read_bytes(), head.read_bytes()
    account.charge(block + 1, 0, (0, 2))
    whole, after = path.read_bytes(), head.read_bytes()
    account.ledger.close()
    real = np.array([block + 1, 1, 1])
    torn = []
    for length in range(len(acknowledged), len(whole) + 1, block):
        path.write_bytes(whole[:length])
        head.write_bytes(before)
        is_torn = Ledger.verify(path, key=key).is_torn
        assert is_torn == (len(acknowledged) < length < len(whole))
        torn += [length] * is_torn
    for length in (torn[0], torn[len(torn) // 2], torn[-1], len(acknowledged), len(whole)):
        path.write_bytes(whole[:length])
        head.write_bytes(before)
        resumed = Account.recover(path, TERMS, resumed_at=block + 1, key=key, block=block)
        resumed.ledger.close()
        found = resumed.odometer
        audited = Odometer()
        assert not Ledger.verify(path, key=key, feed=audited.feed).is_torn
        assert audited.spent(1e-5) == found.spent(1e-5)
        if length > len(acknowledged):
            assert found.attempts(block + 1) == 1
            assert (found.participations_by_client() >= real).all()
        torn_file(path).unlink(missing_ok=True)
    path.write_bytes(whole[:-1])
    head.write_bytes(after)
    with pytest.raises(LedgerDamaged, match="is missing") as caught:
        Ledger.verify(path, key=key)
    assert not isinstance(caught.value, LedgerTorn)


def test_an_append_is_bounded_in_memory_and_bytes_at_ten_thousand_clients(tmp_path, monkeypatch):
    """Half of 10 000 clients, drawn anew: 98 kB and 0.55 MB of memory a round before."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    clients, rng = 10_000, random.Random(0)
    terms = Terms(
        population=clients,
        updates=(ClientReleases(partitions=tuple(range(clients)), releases=SMALL),),
    )
    path = tmp_path / "ledger.jsonl"
    with Ledger.create(path, {}) as ledger:
        account = Account(ledger, Odometer(), terms)
        drawn = [rng.sample(range(clients), clients // 2) for _ in range(4)]
        account.charge(1, 0, drawn[0])
        tracemalloc.start()
        account.charge(2, 0, drawn[1])
        begun, size = tracemalloc.get_traced_memory()[0], path.stat().st_size
        for server_round in range(3, 33):
            account.charge(server_round, 0, drawn[server_round % 4])
        grown = tracemalloc.get_traced_memory()[0] - begun
        tracemalloc.stop()
    assert (path.stat().st_size - size) / 30 < 2_200
    assert grown < 100_000


@pytest.mark.slow
def test_two_thousand_rounds_of_a_thousand_clients_are_audited_in_three_seconds(
    tmp_path, monkeypatch
):
    """With pricing; 25 s before (benchmarks/ledger.py)."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    path = tmp_path / "append.jsonl"
    append(path, 1000, 2000)
    begun = time.process_time()
    found = audit_ledger(path, 1e-5)
    assert time.process_time() - begun < 3
    assert found["charges"] == found["consumed"] == 2010
    assert [one["name"] for one in found["adversaries"]] == ["server", "external"]


@pytest.mark.parametrize(
    ("kind", "body", "is_charged"),
    [
        ("note", {"noise_origins": ["os"], "server_round": 1}, False),
        ("consumed", {"upto": 1}, False),
        ("reserved", {"attempt": 0, "cohort": "0", "rounds": [2, 2]}, True),
    ],
)
def test_a_torn_line_is_charged_unless_it_is_seen_to_cost_nothing(tmp_path, kind, body, is_charged):
    whole = tmp_path / "whole.jsonl"
    with Ledger.create(whole, {}) as ledger:
        before = whole.read_bytes()
        ledger.append(kind, body)
    line = whole.read_bytes()[len(before) :]
    shown = len(b'{"body":{"') + len(min(body)) + 1
    for length in (5, shown, shown + 1, len(line) - 1):
        path = tmp_path / f"{length}.jsonl"
        with Ledger.create(path, {}):
            pass
        path.write_bytes(path.read_bytes() + line[:length])
        with Ledger.recover(path, charge={"attempt": 0}) as ledger:
            kinds = [entry.kind for entry in ledger.entries]
        # Until its first key is whole, a line may be anything, and counts.
        expected = is_charged or length < shown
        assert kinds == ["header", "recovered"] if expected else kinds == ["header"], length
