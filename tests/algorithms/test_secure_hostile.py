"""Whoever breaks the rules of a secure sum is named or refused, and no secret leaves a node."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import example, given, settings
from hypothesis import strategies as st

from manifed.algorithms.payloads import PerClient, tensor_of
from manifed.algorithms.secure_node import OutOfOrder
from manifed.algorithms.secure_sum import packed
from manifed.errors import RoundFailed
from manifed.federation.client import Seat, run_update
from manifed.federation.exchange import Asked, BadMessage, Header
from manifed.flower.records import HEADER, PAYLOAD, read_tensors
from manifed.plan import plan
from manifed.privacy import secret_shares
from manifed.privacy.ledger import Ledger
from manifed.privacy.masks import signing_in
from manifed.privacy.random_numbers import NoiseSource
from manifed.privacy.secret_shares import SHARE_BYTES, Secrets
from tests.algorithms.test_secure_mean import PHASES, D, Run, counted, keys_in, setting_of

N = 10
FOREIGN = Secrets(b"\1" * 32, b"\2" * 32, b"\3" * 32)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return keys_in(tmp_path_factory.mktemp("keys"), N)


class Played(Run):
    """A run in which a server, or nodes, change what is sent in one exchange."""

    def __init__(self, monkeypatch, keys, path, *, server=None, nodes=None, **trust):
        parts = {"max_dropped": 3, "collusion": 1, **keys, **trust}
        super().__init__(
            setting_of(N, **parts), monkeypatch, ledger=Ledger.create(path / "ledger", {})
        )
        self.path = path / "ledger"
        self.server, self.nodes = server or {}, nodes or {}
        self.secrets = set()

    def relayed(self, asked):
        rows = asked.down
        if not isinstance(rows, PerClient):
            each = len(asked.partitions)
            rows = PerClient(type(rows)(*[t.expand(each, *t.shape) for t in vars(rows).values()]))
        asked = asked._replace(down=rows)
        for (phase, name, node), change in self.server.items():
            if phase == asked.phase.name:
                rows = changed(rows.rows, name, asked.partitions.index(node), change, node, self)
                rows = PerClient(rows)
                asked = asked._replace(down=rows)
        return asked

    def replied(self, came):
        memories = {i: s.memory for i, s in self.transport.stacks.items() if s.memory}
        self.secrets |= {bytes(row.numpy()) for m in memories.values() for row in m["secrets"]}
        self.secrets -= {bytes(32)}
        left = b"".join(bytes(row.numpy()) for t in vars(came.uploads).values() for row in t)
        assert not any(secret in left for secret in self.secrets)
        for (phase, name, node), change in self.nodes.items():
            if phase == self.course.now.phase.name:
                row = came.partitions.index(node)
                came = came._replace(uploads=changed(came.uploads, name, row, change, node, self))
        return came

    def failing(self, match):
        """The round fails, and costs nothing."""
        with pytest.raises(RoundFailed, match=match):
            self.round()
        self.account.settle()
        assert not self.opened
        assert counted(self.path).rounds_counted == 0

    def exact(self, report, out):
        """The sum of all but ``out`` was opened, and they alone are charged."""
        members = [i for i in range(N) if i not in out]
        (total,) = self.opened
        assert np.array_equal(total.astype("i4"), self.sum_of(members).astype("i4"))
        self.account.settle()
        charged = counted(self.path).participations_by_client().tolist()
        assert charged == [int(i in members) for i in range(N)]
        return {i: failure.text for i, failure in report.failures.items()}


def changed(payload, name, row, change, node, run):
    """A stack of payloads with one field of one row changed."""
    whole = vars(payload)[name].clone()
    whole[row] = change(whole[row].clone(), node, run)
    return replace(payload, **{name: whole})


def flipped(at):
    def change(row, node, run):
        row.view(-1)[at] ^= 1
        return row

    return change


def blank(row, node, run):
    return torch.zeros_like(row)


def offer_of(run_id=None, signing=None, secrets=FOREIGN):
    """An offer of the server's own making, or of another run."""

    def change(row, node, run):
        ctx = secret_shares.context(run_id or run.plan.training.run, 1, 0)
        made = secret_shares.offer(secrets, ctx, node, signing and signing(node, run))
        return tensor_of(made) if row.dim() == 1 else torch.cat([tensor_of(made)[None], row[1:]])

    return change


def own_key(node, run):
    return signing_in(run.plan.training, node)


def without(*gone):
    return lambda row, node, run: packed([i for i in range(N) if i not in gone], N)


# -- nodes that do not follow ------------------------------------------------------------------
BY_NODES = {
    "an offer of small order": (("offer", "offer", 2), blank, {2}, {2: "small order"}),
    "an offer that is not signed": (("offer", "offer", 2), offer_of(), {2}, {2: "not signed"}),
    "an offer of another run": (
        ("offer", "offer", 2), offer_of(b"another", own_key), {2}, {2: "not signed for this"}
    ),
    "a share that it did not commit to": (
        ("deal", "boxes", 2), flipped(4 * secret_shares.BOX_BYTES + 140), {2, 5},
        {2: "cannot open its boxes", 5: "cannot open the boxes of clients [2]"},
    ),
    "a complaint about everybody": (
        ("send", "unopened", 2), lambda row, node, run: torch.ones_like(row), {2},
        {2: "cannot open the boxes of clients [0, 1, 3, 4, 5]"},
    ),
    "a complaint about one": (
        ("send", "unopened", 2), flipped(4), {2, 5},
        {2: "cannot open the boxes of clients [5]", 5: "clients [2] cannot open its boxes"},
    ),
    "a refusal of sound offers": (
        ("deal", "flaws", 2), flipped(4), {2}, {2: "refuses the offers relayed as those of clients"}
    ),
    "no signature": (("confirm", "by", 2), blank, set(), {2: "does not sign this list"}),
    "a share that was not dealt": (
        ("reveal", "shares", 2), flipped(0), set(),
        {2: "of client 0's secret a share is not the one"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_NODES)
def test_a_node_that_breaks_a_rule_is_named_and_the_sum_is_of_the_others(
    monkeypatch, keys, tmp_path, name
):
    at, change, out, why = BY_NODES[name]
    run = Played(monkeypatch, keys, tmp_path, nodes={at: change})
    told = run.exact(run.round(), out)
    assert told.keys() == why.keys()
    for node, text in why.items():
        assert text in told[node]


def test_two_nodes_with_one_key_are_both_left_out(monkeypatch, keys, tmp_path):
    twins = {("offer", "offer", i): offer_of(None, own_key) for i in (2, 3)}
    run = Played(monkeypatch, keys, tmp_path, nodes=twins)
    told = run.exact(run.round(), {2, 3})
    assert all("another client's too" in told[i] for i in (2, 3))


def test_a_dealer_whom_nobody_can_open_ends_the_attempt_and_is_named(
    monkeypatch, keys, tmp_path, caplog
):
    run = Played(monkeypatch, keys, tmp_path, nodes={("deal", "boxes", 2): blank})
    run.failing("got 0; client 0: it cannot open the boxes of clients \\[2\\]")
    assert "client 2 is dropped (unusable): clients [0, 1, 3, 4, 5] cannot open" in caplog.text


def test_a_dealer_of_shares_of_another_secret_is_named(monkeypatch, keys, tmp_path):
    run = Played(monkeypatch, keys, tmp_path)
    deal = secret_shares.deal

    def other(secrets, node, *more):
        wrong = secrets._replace(seed=FOREIGN.seed) if node == 2 else secrets
        return deal(wrong, node, *more)

    monkeypatch.setattr(secret_shares, "deal", other)
    with pytest.raises(RoundFailed, match="Client 2 dealt shares of no secret that it offered"):
        run.round()
    assert counted(run.path).rounds_counted == 1, "what was revealed is paid for"


def test_an_own_share_that_is_wrong_does_no_harm_beside_enough_others(monkeypatch, keys, tmp_path):
    run = Played(monkeypatch, keys, tmp_path, nodes={("reveal", "own", 2): flipped(3)})
    run.exact(run.round(), ())


def test_an_upload_that_no_node_makes_by_the_rules_ends_the_round(monkeypatch, keys, tmp_path):
    far = lambda row, node, run: row + 2**29  # noqa: E731
    run = Played(monkeypatch, keys, tmp_path, nodes={("send", "total", 2): far})
    with pytest.raises(RoundFailed, match="some client did not follow"):
        run.round()
    assert counted(run.path).rounds_counted == 1


@pytest.mark.parametrize(
    ("kind", "size"), [("i8", D), ("f4", D), ("u4", D), ("i4", D - 1), ("i4", 0)]
)
def test_integers_of_another_type_or_length_are_unreadable(kind, size, keys):
    up = plan(setting_of(N, max_dropped=3, **keys), (5,) * N).training.phases[2].up
    record = ArrayRecord()
    record["total"] = Array(np.zeros(size, dtype=kind))
    record["unopened"] = Array(np.zeros(N - 1, dtype=np.uint8))
    content = RecordDict({HEADER: ConfigRecord(), PAYLOAD: record})
    with pytest.raises(BadMessage, match="Expected total of "):
        read_tensors(content, up, (D,), torch.float64)


# -- a server that does not follow -------------------------------------------------------------
RELAYED = {
    "a key of its own": (("deal", "offers", 4), offer_of(), "refuses the offers relayed"),
    "a key of small order": (("deal", "offers", 4), blank, "refuses the offers relayed"),
    "a changed box": (("send", "boxes", 4), flipped(9), "cannot open the boxes of clients [0]"),
    "no box at all": (("send", "boxes", 4), blank, "cannot open the boxes of clients [0, 1, 2, 3"),
    "offers without this node": (("deal", "members", 4), without(4), "OutOfOrder"),
    "offers of a few alone": (
        ("deal", "members", 4), without(*range(5, 10), 0, 1, 2), "max_dropped, collusion"
    ),
    "another hash of all offers": (("deal", "digest", 4), flipped(0), "cannot open the boxes"),
    "another list of who dealt": (("send", "members", 4), without(9), "does not sign this list"),
    "fewer that dealt than are said to be in the sum": (
        ("send", "members", 4), without(8), "OutOfOrder"
    ),
    "a list of who dealt without this node": (("send", "members", 4), without(4), "OutOfOrder"),
    "too short a list of who dealt": (
        ("send", "members", 4), without(0, 1, 2, 3), "OutOfOrder: Expected a list of at least 7"
    ),
    "another model": (
        ("send", "x", 4), lambda row, node, run: -row, "does not sign this list of survivors"
    ),
    "survivors without this node": (("confirm", "alive", 4), without(4), "OutOfOrder"),
    "too few survivors": (("confirm", "alive", 4), without(0, 1, 2, 3), "OutOfOrder"),
    "another list of survivors": (
        ("confirm", "alive", 4), without(8, 9), "does not sign this list"
    ),
    "others to open than were signed": (
        ("reveal", "alive", 4), without(8, 9), "survivors that this node signed, got others"
    ),
    "a quorum of the wrong signatures": (
        ("reveal", "signatures", 4), flipped(0), "Expected 6 signatures of this list, got 5"
    ),
    "too few signatures": (
        ("reveal", "signers", 4), without(*range(5, 10)), "Expected 6 signatures of this list, got"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RELAYED)
def test_a_node_that_is_told_what_is_wrong_tells_nothing(monkeypatch, keys, tmp_path, caplog, name):
    at, change, why = RELAYED[name]
    run = Played(monkeypatch, keys, tmp_path, server={at: change})
    run.silent = {"send": [9]}
    with suppress(RoundFailed):  # a server may always end a round
        run.round()
    (line,) = [line for line in caplog.text.splitlines() if "client 4 is dropped" in line]
    assert why in line
    phase = line.split("phase ")[1].split(":")[0]
    came = run.ups[phase]
    if "(absent)" in line:
        assert 4 not in came.partitions
    elif phase in ("deal", "send"):
        assert not bool(came.uploads.point[came.partitions.index(4)].any()), "no box, no integers"
    else:
        assert phase == "confirm"


def asked_of(run, phase, who, rows):
    """The replies of these nodes to a message that only a hostile server would send."""
    header = Header(run.plan.config_sha256, 1, 0, phase, -1)
    kind = next(one for one in run.plan.training.phases if one.name == phase)
    down = PerClient(rows.take(torch.tensor(who)))
    return run.transport.exchange(Asked(header, kind, down, who, {}))


def up_to(run, phase):
    while run.course.opened().phase.name != phase:
        run.exchange()


def test_two_lists_of_survivors_open_nothing(monkeypatch, keys, tmp_path):
    """Each list is signed by those who were told it, and neither by a quorum."""
    run = Played(monkeypatch, keys, tmp_path)
    up_to(run, "confirm")
    who = tuple(range(1, 9))
    alive = torch.stack([without(9 if i < 5 else 0)(None, i, run) for i in range(N)])
    *_, confirm, reveal = run.plan.training.phases
    came = asked_of(run, "confirm", who, confirm.down(alive))
    assert came.partitions == who
    again = asked_of(run, "confirm", who, confirm.down(alive))
    assert not again.partitions
    assert all("got 'confirm'" in one.text for one in again.failures.values())
    most = dict(reveal.down.of_bytes)["signatures"][0]
    shown = came.uploads.by[:most].expand(N, -1, -1)
    signers = packed(who[:most], N).expand(N, -1)
    left = asked_of(run, "reveal", who, reveal.down(alive, signers, shown))
    assert not left.partitions
    assert all("Expected 6 signatures" in one.text for one in left.failures.values())


def test_of_one_node_one_half_is_given_and_never_the_other(monkeypatch, keys, tmp_path):
    run = Played(monkeypatch, keys, tmp_path)
    run.silent = {"send": [3]}
    up_to(run, "reveal")
    held = {i: stack.memory["shares"].clone() for i, stack in run.transport.stacks.items()}
    run.exchange()
    for i, row in zip(run.ups["reveal"].partitions, run.ups["reveal"].uploads.shares, strict=True):
        for place, j in enumerate(j for j in range(N) if j != i):
            half = slice(SHARE_BYTES, None) if j == 3 else slice(SHARE_BYTES)
            assert torch.equal(row[place], held[i][place, half])
    down = run.downs["reveal"].rows
    for again in (down, replace(down, alive=without(5)(None, 0, run).expand(9, -1))):
        assert not asked_of(run, "reveal", tuple(range(9)), again).partitions
    for stack in run.transport.stacks.values():
        kept = {name: t for name, t in vars(stack.memory).items() if name != "stage"}
        assert stack is run.transport.stacks[3] or not any(bool(t.any()) for t in kept.values())


def test_without_pins_the_list_of_who_sent_is_still_checked(monkeypatch, tmp_path):
    at = ("reveal", "alive", 4)
    run = Played(monkeypatch, {}, tmp_path, server={at: without(0, 1, 2, 3)})
    report = run.round()
    assert "OutOfOrder" in report.failures[4].text
    assert run.plan.training.exchanges == ("offer", "deal", "send", "reveal")


# -- the order of exchanges --------------------------------------------------------------------
@pytest.fixture(scope="module")
def transcript(keys, tmp_path_factory):
    """What an honest server sends in attempt 0 to nodes whose source begins again with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NoiseSource, "fresh", lambda source: source)
        run = Played(patch, keys, tmp_path_factory.mktemp("honest"))
        run.round()
        return run


NEXT = ("next", 0)
MOVES = st.just(NEXT) | st.tuples(st.sampled_from(PHASES), st.integers(0, 2))


def test_an_attempt_that_a_node_forgot_cannot_be_joined_to_what_others_sent_in_it(transcript):
    """Its keys are fresh, so no box of the others opens, and it sends nothing of its records."""
    run = transcript
    memory = run.plan.training.initial_memory(run.course.state["x"])
    for phase in ("offer", "deal", "send"):
        up, memory, _ = run_update(
            run.side.setup, Seat(0, 1, 0, phase), run.downs[phase].rows.take(0), memory,
            run.side.shards[0], 5, run.side.source.fresh(),
        )  # fmt: skip
        if phase == "offer":
            assert not torch.equal(up.offer, run.ups[phase].uploads.offer[0])
    assert int(up.unopened.sum()) == run.plan.training.clients - 1
    assert not bool(up.total.any())
    assert not any(bool(t.any()) for name, t in vars(memory).items() if name != "stage")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(moves=st.lists(MOVES, max_size=12))
@example(moves=[NEXT] * 5 + [("reveal", 0), ("offer", 0), ("offer", 1), ("reveal", 0)])
def test_a_node_answers_each_exchange_once_in_order_and_attempts_in_order(transcript, moves):
    run = transcript
    memory = run.plan.training.initial_memory(run.course.state["x"])
    last, due = -1, 0
    for move in moves:
        phase, attempt = (PHASES[due % len(PHASES)], max(last, 0)) if move is NEXT else move
        begins = phase == "offer" and attempt > last
        follows = attempt == last and due == PHASES.index(phase) > 0
        row = run.downs[phase].rows.take(0)
        seat = Seat(0, 1, attempt, phase)
        try:
            up, memory, _ = run_update(
                run.side.setup, seat, row, memory, run.side.shards[0], 5, run.side.source
            )
        except OutOfOrder:
            is_refused = True
        else:
            is_refused = False
        assert is_refused != (begins or follows), (phase, attempt)
        if is_refused:
            continue
        last, due = attempt, 1 if begins else due + 1
        if phase == "deal" and attempt > 0:  # which are signed for attempt 0
            assert bool(up.flaws.any())
            assert not bool(up.boxes.any())
            due = len(PHASES)
