"""A run whose nodes forward to sites: the same as one in memory, and nothing else comes through."""

import os
import socket
import threading
from contextlib import ExitStack, contextmanager, suppress

import pytest
import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from manifed.errors import ConfigError
from manifed.experiment.assembly import client_side, initial_point, plan_of
from manifed.experiment.load import load, save
from manifed.experiment.schema import sha256
from manifed.federation.rounds import free, run_rounds
from manifed.federation.stack import StackTransport
from manifed.flower.client import SITE_SOCKET, client_app_of
from manifed.flower.grids import InlineGrid
from manifed.flower.handshake import meet
from manifed.flower.records import CODE_SHA256, CONFIG_SHA256, HEADER
from manifed.privacy.charging import opened as accounted
from manifed.privacy.epsilon_bounds import epsilon
from manifed.privacy.statement import audit_ledger
from manifed.runs.manifest import code_sha256
from manifed.site import process
from manifed.site.account import Limits, SiteAccount, compared
from manifed.site.process import opened
from manifed.site.site import Wanted
from tests.privacy.forging import entries_of
from tests.site.sites import CONFIG, DELTA, ROUND, SEEDED, write


@contextmanager
def served(folder, path, partition, **more):
    """A site that answers at a socket, in this process."""
    home = folder / f"site-{partition}"
    home.mkdir(mode=0o750, exist_ok=True)
    wanted = Wanted(home / "ledger", partition, 50.0, DELTA, home / "socket", configs=(path,),
                    is_rehearsal=True, **more)  # fmt: skip
    with opened(wanted) as site:
        door = process.listening(wanted.socket, None)

        def answers():
            with suppress(OSError):
                process.serve(site, door, {os.geteuid()}, 10.0)

        thread = threading.Thread(target=answers, daemon=True)
        thread.start()
        yield wanted.socket
        door.shutdown(socket.SHUT_RDWR)
        door.close()
        thread.join()


def grid_of(config, sockets):
    return InlineGrid(
        client_app_of(lambda _: config),
        config.federation.num_clients,
        {},
        lambda i: {SITE_SOCKET: str(sockets[i])} if i in sockets else {},
    )


def last(plan, config, transport, charge=free, first=1, num_rounds=3):
    start = plan.server_update.start(initial_point(config))
    rounds = run_rounds(plan, start, transport, charge, num_rounds=num_rounds, first_round=first)
    return plan.server_update.output(list(rounds)[-1].state, plan.manifold)


SUMMED = """
[strategy]
kind = "tangent-mean"
weights = "num-examples"
[privacy.trust]
kind = "secure-sum"
collusion = 0
"""


@pytest.mark.parametrize("kind", ["rsgd", "projected", "secure-sum"])
def test_a_rehearsal_through_sites_is_the_run_in_memory(kind, tmp_path):
    text = SEEDED + SUMMED if kind == "secure-sum" else SEEDED
    if kind == "projected":  # two clients go on with what they remembered, one has no site
        text = text.replace('"principal-eigenvector"', '"kpca"')
        text = text.replace('kind = "rsgd"', 'kind = "projected"')
    path = write(tmp_path, text)
    config = load(path)
    plan = plan_of(config)
    with ExitStack() as stack:
        sockets = {i: stack.enter_context(served(tmp_path, path, i)) for i in range(2)}
        found = last(plan, config, meet(grid_of(config, sockets), plan))
    assert torch.equal(found, last(plan, config, StackTransport(client_side(config))))


@pytest.mark.parametrize("unit", ["example", "client"])
def test_sites_pay_the_floor_of_a_sum_before_they_send_and_go_on_after_a_restart(unit, tmp_path):
    text = (CONFIG + SUMMED).replace("example-level", f"{unit}-level").replace("= 0\n", "= 1\n")
    path = write(tmp_path, text)
    config = load(path, ["federation.num_clients=5", "privacy.trust.max_dropped=1"])
    save(config, path)
    plan, server = plan_of(config), tmp_path / "server.jsonl"
    ledgers = [tmp_path / f"site-{i}" / "ledger" / "ledger.jsonl" for i in range(5)]
    header = {"config_sha256": plan.config_sha256}
    with accounted(server, plan.promise, last_round=2, header=header) as account:
        for now in (1, 2):
            with ExitStack() as stack:
                sockets = {i: stack.enter_context(served(tmp_path, path, i)) for i in range(5)}
                wire = meet(grid_of(config, sockets), plan)
                last(plan, config, wire, account.charge, now, now)
    one = ROUND.model_copy(update={"unit": unit, "count": 2})
    asked = epsilon([one], DELTA)
    for ledger in ledgers:
        paid = [e.said["place"]["phase"] for e in entries_of(ledger) if e.reserves]
        assert paid == [2, 2]
        found = compared(server, ledger)
        assert (found.is_whole, found.both) == (True, [(1, 0), (2, 0)])
        told = {one["name"]: one["epsilon"] for one in audit_ledger(ledger, DELTA)["adversaries"]}
        assert told["coalition"] == pytest.approx(asked, rel=1e-9)
        assert told["server"] < told["coalition"] < told["everybody"]
        with SiteAccount(ledger.parent, Limits(50.0, DELTA)) as own:
            assert own.spent == pytest.approx(asked, rel=1e-9)


def test_what_a_site_refuses_is_an_absent_node_and_no_other_client_s_matter(tmp_path):
    path = write(tmp_path, SEEDED)
    config = load(path)
    other = load(path, ["federation.seed=1"])
    query = RecordDict({HEADER: ConfigRecord({CODE_SHA256: code_sha256()})})
    with served(tmp_path, path, 0) as place:
        for meant in (config, other):
            first, second = sorted(
                grid_of(meant, {0: place, 1: tmp_path / "nobody"}).send_and_receive(
                    [Message(query, dst_node_id=n, message_type=MessageType.QUERY) for n in (2, 3)]
                ),
                key=lambda reply: reply.metadata.src_node_id,
            )
            assert second.error.reason.startswith("Absent: this node is absent; its own log")
            if meant is config:
                assert first.content[HEADER][CONFIG_SHA256] == sha256(config)
            else:
                assert first.error.reason == second.error.reason


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_socket_lies_in_no_folder_of_another_user(tmp_path):
    folder = tmp_path / "doors"
    folder.mkdir(mode=0o750)
    os.chown(folder, 54321, -1)
    with pytest.raises(ConfigError, match="expected a folder of this user or root"):
        process.listening(folder / "site.sock", None)
