"""What a site answers, what it charges, and what it refuses before anything."""

import errno
import hashlib
import json
import os
import shutil
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

from manifed.errors import ConfigError
from manifed.experiment.load import load, parse
from manifed.experiment.schema import canonical, sha256
from manifed.privacy import epsilon_bounds
from manifed.privacy.ledger import LedgerDamaged
from manifed.privacy.statement import audit_ledger
from manifed.site import process
from manifed.site.account import Limits, Place, Refused, SiteAccount
from manifed.site.protocol import Introduction, Question, Refusal, Update, about
from manifed.site.site import claim
from tests.command import invoke
from tests.privacy.forging import entries_of, write_older
from tests.site.sites import (
    CONFIG,
    DELTA,
    ROUND,
    SEEDED,
    UNREAD,
    Peer,
    charges,
    never,
    peer_of,
    price,
    site_of,
    write,
)

OWN_FILE = CONFIG.replace(
    '{ kind = "digits" }',
    '{ kind = "file", examples = "rows", columns = ["a", "b", "c"], row_norm = 1.0 }',
)


def own_rows(folder):
    data = folder / "own.csv"
    data.write_text("a,b,c\n" + "0.1,0.2,0.3\n" * 5)
    return data


def canonical_of(text):
    return canonical(parse(tomllib.loads(text)))


def ledger_bytes(tmp_path):
    return (tmp_path / "site" / "ledger.jsonl").read_bytes()


def test_a_site_answers_as_often_as_its_limit_admits_over_all_runs_and_attempts(tmp_path):
    limit = price(3) + 1e-9
    with peer_of(tmp_path, epsilon=limit) as peer:
        told = [peer.ask(1), peer.ask(1, 1), peer.ask(1, run="another"), peer.ask(2)]
        told += [peer.ask(r, a, run=run) for r in (3, 4) for a in (0, 5) for run in ("7", "new")]
        answered = [isinstance(reply, Update) for reply, _ in told]
        assert answered == [True] * 3 + [False] * (len(told) - 3)
        assert peer.site.account.spent == pytest.approx(price(3), abs=1e-12)
    assert charges(tmp_path) == 3
    audited = audit_ledger(tmp_path / "site" / "ledger.jsonl", DELTA)
    assert [one["epsilon"] for one in audited["adversaries"]] == pytest.approx([price(3)] * 2)
    with peer_of(tmp_path, epsilon=limit) as peer:  # a restart forgets nothing
        assert isinstance(peer.ask(5, run="later")[0], Refusal)


def test_an_address_is_answered_once_and_order_goes_forward_also_after_a_restart(tmp_path):
    with peer_of(tmp_path) as peer:
        assert peer.is_answered(2)
        before = ledger_bytes(tmp_path)
        for again in ((2, 0), (1, 0), (1, 9)):
            assert "nothing is answered twice" in peer.refusal(*again)
        assert ledger_bytes(tmp_path) == before
    with peer_of(tmp_path) as peer:
        assert "nothing is answered twice" in peer.refusal(2)
        assert peer.is_answered(2, 1)


def test_seeded_noise_is_drawn_once_whatever_run_or_config_the_question_names(tmp_path):
    path = write(tmp_path, SEEDED)
    other = write(tmp_path, SEEDED.replace("step_size = 0.5", "step_size = 0.1"), "other.toml")
    with site_of(tmp_path, path, other, is_rehearsal=True) as site:
        first = Peer(site, path)
        second = Peer(site, other)
        assert first.is_answered(1)
        x = first.x.roll(1, 0)
        for peer in (first, second):
            for run in ("7", "a lie"):
                assert isinstance(peer.ask(1, run=run, x=x)[0], Refusal)
        assert second.is_answered(2)
    with site_of(tmp_path, path, is_rehearsal=True) as site:
        assert isinstance(Peer(site, path).ask(2, x=x)[0], Refusal)
        assert Peer(site, path).is_answered(3, x=x)


def test_a_round_of_several_phases_is_paid_with_the_first_and_goes_through_them_in_order(tmp_path):
    def charge(account, phase, now=1):
        account.charge(Place("7", "a" * 64, 0, now, 0, phase), () if phase else (ROUND,))

    folder = tmp_path / "site"
    limits = Limits(price(2) + 1e-9, DELTA)
    folder.mkdir()
    with SiteAccount(folder, limits) as account:
        for phase, taken in zip((1, 0, 2, 1, 1, 0), "-+-+--", strict=True):
            with nullcontext() if taken == "+" else pytest.raises(Refused):
                charge(account, phase)
    with SiteAccount(folder, limits) as account:
        with pytest.raises(Refused):
            charge(account, 1)
        charge(account, 2)
        with pytest.raises(Refused, match="the earlier phases of the round first"):
            charge(account, 1, now=2)
        assert account.spent == pytest.approx(price(1), abs=1e-12)
        charge(account, 0, now=2)
        with pytest.raises(Refused, match="this site's limit"):
            charge(account, 0, now=3)
    assert charges(tmp_path) == 2


BAD = {
    "off the manifold": {"x": lambda x: 2 * x},
    "not finite": {"x": lambda x: x * float("nan")},
    "another shape": {"x": lambda x: x[:-1]},
    "another type": {"x": lambda x: x.float()},
    "a phase that there is not": {"phase": "steal"},
    "a round too many": {"server_round": 7},
    "a round before the first": {"server_round": 0},
    "a round below zero": {"server_round": -1},
    "an attempt without noise": {"attempt": 1 << 16},
    "an attempt below zero": {"attempt": -1},
    "another client": {"partition_id": 1},
    "a config inside that is not the one outside": {"config_sha256": "0" * 64},
}


@pytest.fixture(scope="module")
def answering(tmp_path_factory):
    folder = tmp_path_factory.mktemp("answering")
    with peer_of(folder) as peer:
        yield folder, peer


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_refused_before_it_is_charged_and_before_a_record_is_used(
    what, answering, monkeypatch
):
    folder, peer = answering
    monkeypatch.setattr("manifed.federation.client.run_update", never)
    more = dict(BAD[what])
    if "x" in more:
        more["x"] = more["x"](peer.x)
    before = ledger_bytes(folder)
    reply, up = peer.ask(**more)
    assert isinstance(reply, Refusal)
    assert not up
    assert ledger_bytes(folder) == before


def test_no_more_is_read_than_what_comes_down_needs(answering):
    _, peer = answering
    longer = peer.x.repeat(20, 1)
    assert longer.nbytes > peer.x.nbytes + (1 << 13)
    assert peer.ask(x=longer)[0] == Refusal(UNREAD)
    assert peer.send(about(peer.config), {"x": longer})[0] == Refusal(UNREAD)
    assert peer.ask(7, x=longer)[0] != Refusal(UNREAD)  # of no round: nothing is read at all


def test_experiments_that_are_not_on_the_list_are_refused_unread(tmp_path):
    path = write(tmp_path)
    other = load(write(tmp_path, CONFIG.replace("4.0", "0.01"), "other.toml"))
    with site_of(tmp_path, path) as site:
        reply, _ = Peer(site, path).send(about(other), {})
        assert reply == Refusal("this experiment is not on this site's list")
    own = load(path)
    with site_of(tmp_path, hashes=(sha256(own),)) as site:  # the site has no copy, and reads it
        assert isinstance(Peer(site, path).send(about(own), {})[0], Introduction)


@pytest.mark.parametrize("text", ["import os", "", canonical_of(CONFIG.replace("4.0", "0.01")),
                                  ".".join(["a"] * 25_000) + " = 1"])  # fmt: skip
def test_a_text_that_is_not_on_the_list_is_not_parsed(text, tmp_path, monkeypatch):
    path = write(tmp_path)
    with site_of(tmp_path, hashes=(sha256(load(path)),)) as site:
        peer = Peer(site, path)
        monkeypatch.setattr("manifed.site.site.table_of_canonical", never)
        reply, _ = peer.send(Question(peer.digest, text), {})
    assert "experiment's text" in reply.reason if not text else "not that of" in reply.reason


LISTED = {
    "planning": ({"training": {"kind": "auto"}}, "training.kind: expected a method"),
    "a graph": (
        {"federation": {"num_clients": 30_000}, "training": {"graph": {"kind": "complete"}}},
        "needs a local copy at this site",
    ),
    "a plug-in": ({"training": {"kind": "evil:Update"}}, "plug-in that this node allows"),
    "a huge number": ({"name": int("9" * 40)}, "expected an integer below 2^63"),
    "depth": ({"data": json.loads('{"a":' * 40 + "1" + "}" * 40)}, "nested at most 32 deep"),
    "output": ({"output": {"quiet": True}}, "reads another experiment from the text"),
    "an engine": ({"engine": {"kind": "ray"}}, "reads another experiment from the text"),
    "a list": ([1, 2], "Expected a table"),
}


@pytest.mark.parametrize("what", LISTED)
def test_a_text_that_is_listed_is_refused_and_nothing_of_it_planned_built_or_imported(
    what, tmp_path, monkeypatch
):
    """Its hash stands on the list of the site's owner."""
    part, said = LISTED[what]
    monkeypatch.setattr("manifed.experiment.planner.planned", never)
    if what == "a graph":
        monkeypatch.setattr("manifed.site.site.parse", never)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil.py").write_text("raise AssertionError('imported')\n")
    whole = json.loads(canonical_of(CONFIG))
    text = json.dumps(whole | part if isinstance(part, dict) else part, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    with site_of(tmp_path, hashes=(digest,)) as site:
        assert said in Peer(site, write(tmp_path)).send(Question(digest, text), {})[0].reason


def test_while_one_experiment_is_read_others_are_answered(tmp_path, monkeypatch):
    begun = threading.Event()
    answered = threading.Event()
    real = parse

    def slowly(*given):
        begun.set()
        assert answered.wait(20)
        return real(*given)

    path = write(tmp_path)
    other = write(tmp_path, CONFIG.replace("4.0", "5.0"), "other.toml")
    monkeypatch.setattr("manifed.site.site.parse", slowly)
    with site_of(tmp_path, path, hashes=(sha256(load(other)),)) as site:
        with ThreadPoolExecutor(3) as pool:
            slow = [pool.submit(Peer(site, other).ask, i) for i in (1, 2)]
            assert begun.wait(60)
            assert isinstance(pool.submit(Peer(site, path).ask, 1).result(60)[0], Update)
            assert not any(task.done() for task in slow)
            answered.set()
        assert Peer(site, other).is_answered(3)


def test_an_experiment_too_long_to_be_sent_takes_a_copy_at_the_site(tmp_path):
    clients = 12_000
    sizes = f"num_clients = {clients}, num_examples = {[10_000] * clients}"
    path = write(tmp_path, OWN_FILE.replace("num_clients = 3", sizes))
    question = about(load(path))
    assert question.config == ""
    data = own_rows(tmp_path)
    digest = question.config_sha256
    with site_of(tmp_path, path, data=data) as site:
        assert isinstance(Peer(site, path).send(question, {})[0], Introduction)
    with site_of(tmp_path, hashes=(digest,), data=data) as site:
        assert (
            "for a longer one give this site a copy"
            in Peer(site, path).send(question, {})[0].reason
        )


def test_a_file_that_a_text_names_is_not_opened(tmp_path):
    data = own_rows(tmp_path)
    plain = write(tmp_path, OWN_FILE, "plain.toml")
    paths = f'paths = ["{tmp_path}/theirs.csv", "b.csv", "c.csv"], '
    path = write(tmp_path, OWN_FILE.replace('{ kind = "file", ', '{ kind = "file", ' + paths))
    question = about(load(path))
    assert "theirs.csv" not in question.config
    for folder, own in ((tmp_path, {"hashes": (question.config_sha256,)}), (tmp_path / "copy", {})):
        configs = () if own else (path,)  # with the files of a simulation
        with site_of(folder, *configs, data=data, num_examples=5, **own) as site:
            reply, _ = Peer(site, plain).send(question, {})
        assert (reply.partition, reply.num_examples) == (0, 5)
    required = pytest.raises(ConfigError, match="--data: required")
    with required, site_of(tmp_path, path, num_examples=5):
        pass


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (CONFIG[: CONFIG.index("[privacy]")], "privacy.kind"),
        (CONFIG.replace('"example-level"', '"client-level"'), "privacy.kind"),
        (SEEDED, "privacy.noise_source"),
    ],
)
def test_experiments_without_a_site_s_own_noise_are_refused_even_if_listed(text, field, tmp_path):
    path = write(tmp_path, text)
    with site_of(tmp_path, hashes=(sha256(load(path)),)) as site:
        assert field in Peer(site, path).refusal(1)


def test_a_release_that_counts_on_masks_of_others_is_refused_unpaid(tmp_path, monkeypatch):
    masked = ROUND.model_copy(update={"to_server": 9.0, "to_one": 9.0, "to_coalition": 9.0})
    monkeypatch.setattr("manifed.federation.client.ClientSetup.releases", lambda *_: (masked,))
    with peer_of(tmp_path) as peer:
        reply, up = peer.ask(1)
        assert "independent noise of the site" in reply.reason
        assert not up
        assert peer.site.account.spent == 0


def test_different_mechanisms_are_priced_together_and_relations_are_not_mixed_up(tmp_path):
    path = write(tmp_path)
    text = CONFIG.replace("noise_multiplier = 4.0", "noise_multiplier = 2.0")
    louder = write(tmp_path, text, "louder.toml")
    other = write(tmp_path, CONFIG.replace("add-or-remove", "replace-one"), "replace.toml")
    with site_of(tmp_path, path, louder, other) as site:
        assert Peer(site, path).is_answered(1)
        assert "neighbouring relation" in Peer(site, other).refusal(1)
        assert Peer(site, louder).is_answered(1)
        both = [ROUND, ROUND.model_copy(update={"noise_multiplier": 2.0})]
        assert site.account.spent == pytest.approx(epsilon_bounds.epsilon(both, DELTA), abs=1e-12)


def test_a_full_disk_refuses_and_a_restart_goes_on(tmp_path, monkeypatch):
    real = os.write
    with peer_of(tmp_path) as peer:

        def half(descriptor, data):
            real(descriptor, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as full:
            full.setattr("manifed.durable.os.write", half)
            assert peer.ask(1)[0] == Refusal("this site's ledger cannot be written")
        assert isinstance(peer.ask(1)[0], Refusal)
    with peer_of(tmp_path) as peer:
        assert peer.is_answered(1)
        assert peer.site.account.spent == pytest.approx(price(1), abs=1e-12)
    assert len(audit_ledger(tmp_path / "site" / "ledger.jsonl", DELTA)["adversaries"]) == 2


def test_the_charge_is_on_disk_before_a_record_is_used_and_no_log_line_quotes_one(
    tmp_path, monkeypatch, caplog
):
    seen = []

    def update(*_, **__):
        seen.append(charges(tmp_path))
        raise ValueError("17.390625 is a record")

    with peer_of(tmp_path) as peer, caplog.at_level("DEBUG"):
        monkeypatch.setattr("manifed.federation.client.run_update", update)
        assert peer.refusal(1) == "this site is absent; its own log says why"
    assert seen == [1]
    assert "ValueError at test_site.py" in caplog.text
    assert "17.39" not in caplog.text


def test_a_second_process_has_no_place_on_a_folder(tmp_path):
    elsewhere = pytest.raises(ConfigError, match="another process answers")
    with peer_of(tmp_path), elsewhere, peer_of(tmp_path):
        pass
    limits = Limits(1.0, DELTA)
    held = pytest.raises(LedgerDamaged, match="another process")
    with SiteAccount(tmp_path / "site", limits), held:
        SiteAccount(tmp_path / "site", limits)


@pytest.mark.parametrize(
    ("option", "more"),
    [
        ("--max-epsilon", {"epsilon": float("nan")}),
        ("--max-epsilon", {"epsilon": float("inf")}),
        ("--allow-config", {"hashes": ("abc",)}),
        ("--config, --allow-config", {}),
        ("ledger head", {"hashes": ("ab" * 32,), "heads": ("41",)}),
        ("--data", {"hashes": ("ab" * 32,), "data": Path("/nowhere/site.csv")}),
    ],
)
def test_an_option_that_cannot_be_is_one_line(option, more, tmp_path):
    with pytest.raises(ConfigError, match=f"^{option}"), site_of(tmp_path, **more):
        pass


def test_a_folder_whose_ledger_is_gone_begins_no_new_one(tmp_path, caplog):
    """Also where no data file and no memory of a client is beside it."""
    folder = tmp_path / "site"
    heads = ()
    for is_new in (True, False):
        caplog.clear()
        with peer_of(tmp_path, epsilon=50.0 + is_new) as peer:
            assert ("NEW LEDGER" in caplog.text) is is_new
            heads = (str(peer.site.account.head),)
    stated = [e.said["limits"]["epsilon"] for e in entries_of(folder / "ledger.jsonl")
              if "limits" in e.said]  # fmt: skip
    assert stated == [51.0, 50.0]
    for file in folder.glob("ledger.jsonl*"):
        file.unlink()
    (begun,) = [file for file in folder.iterdir() if file.is_file()]
    with pytest.raises(ConfigError, match=r"answered before .*restore it"), peer_of(tmp_path):
        pass
    begun.unlink()
    with pytest.raises(ConfigError, match="restore it"), peer_of(tmp_path, heads=heads):
        pass
    (folder / "data.json").write_text('{"sha256": "0"}')
    with pytest.raises(ConfigError, match="restore it"), peer_of(tmp_path):
        pass
    assert not list(folder.glob("ledger.jsonl*"))


def cut(path):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def cut_in_the_middle(path):
    first, _, *others = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([first, *others]))


def copied_over(path):
    """The bytes of an earlier ledger, head included, in the files that the site holds."""
    for name in ("ledger.jsonl", "ledger.jsonl.head"):
        path.with_name(name).write_bytes(path.with_name(f"old-{name}").read_bytes())


def replaced(path):
    for name in ("ledger.jsonl", "ledger.jsonl.head"):
        path.with_name(f"old-{name}").rename(path.with_name(name))


def of_the_same_length(path):
    data = path.read_bytes()
    path.write_bytes(data[:-40] + bytes(reversed(data[-40:])))


MOVES = {
    "moved": lambda path: path.rename(path.with_name("elsewhere")),
    "removed": Path.unlink,
    "cut": cut,
    "cut in the middle": cut_in_the_middle,
    "emptied": lambda path: path.write_bytes(b""),
    "replaced by a copy": lambda path: Path(shutil.copy(path, path.with_name("c"))).rename(path),
    "replaced by an older one": replaced,
    "overwritten by an older one": copied_over,
    "overwritten at its end": of_the_same_length,
    "appended to": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "without its head": lambda path: path.with_name("ledger.jsonl.head").unlink(),
    "with an older head": lambda path: path.with_name("old-ledger.jsonl.head").rename(
        path.with_name("ledger.jsonl.head")
    ),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_a_ledger_that_is_not_in_its_place_stops_the_site_before_the_next_answer(
    move, tmp_path, caplog
):
    ledger = tmp_path / "site" / "ledger.jsonl"

    def files():
        return {file: file.read_bytes() for file in ledger.parent.glob("*") if file.is_file()}

    with peer_of(tmp_path) as peer:
        assert peer.is_answered(1)
        for name in ("ledger.jsonl", "ledger.jsonl.head"):
            shutil.copy(ledger.with_name(name), ledger.with_name(f"old-{name}"))
        assert peer.is_answered(2)
        spent = peer.site.account.spent
        move(ledger)
        left = files()
        for server_round in (3, 4):
            assert peer.ask(server_round)[0] == Refusal("this site's ledger cannot be written")
        assert peer.site.account.spent == spent
        assert files() == left  # nothing went into a file that is no longer the ledger
    assert "ledger.jsonl, line 5: " in caplog.text
    assert "takes nothing more until a restart" in caplog.text


def test_a_swapped_file_is_noticed_and_its_digest_stays_in_the_folder(tmp_path):
    folder = tmp_path / "site"
    data = tmp_path / "site.csv"
    folder.mkdir()
    data.write_text("1,2\n")
    assert not claim(folder, data, is_accepted=False)
    assert not claim(folder, data, is_accepted=False)
    data.write_text("1,3\n")
    with pytest.raises(ConfigError, match="is not the file"):
        claim(folder, data, is_accepted=False)
    assert claim(folder, data, is_accepted=True)
    assert not claim(folder, data, is_accepted=False)
    assert list(json.loads((folder / "data.json").read_text())) == ["sha256"]


def test_the_one_document_of_a_site_says_what_its_ready_line_says(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "serve", lambda *_: None)  # as if it were stopped at once
    words = ["site", "--config", write(tmp_path), "--ledger", tmp_path / "site", "--partition", 0]
    more = ["--max-epsilon", 50, "--delta", DELTA, "--socket", tmp_path / "socket", "--json"]
    done = invoke(*words, *more)
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["socket"] == str(tmp_path / "socket")
    assert (document["epsilon"], document["max_epsilon"], document["delta"]) == (0.0, 50.0, DELTA)
    ready, stopped = done.stderr.splitlines()[-2:]
    assert ready.startswith("ready: ")
    assert stopped == f"stopped: ledger head {document['ledger_head']}"


@pytest.mark.parametrize("left", ["ledger", "head"])
def test_a_site_opens_no_new_ledger_over_or_beside_an_older_one(tmp_path, left):
    (tmp_path / "site").mkdir()
    path = tmp_path / "site" / "ledger.jsonl"
    before = write_older(path)
    if left == "head":
        path.unlink()
    with pytest.raises(LedgerDamaged, match=r"has format 2|only its head is left"):
        SiteAccount(path.parent, Limits(1.0, 1e-5))
    found = {one.name: one.read_bytes() for one in path.parent.iterdir()}
    assert found == {name: before[name] for name in found}
    assert len(found) == 1 + (left == "ledger")
