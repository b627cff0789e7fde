"""A site's ledger is audited on its own, and against the server's."""

import pytest

from manifed.errors import ConfigError
from manifed.experiment.assembly import load_shards
from manifed.experiment.load import load
from manifed.experiment.schema import sha256
from manifed.plan import promise_of
from manifed.privacy.charging import opened
from manifed.privacy.statement import audit_ledger
from manifed.site.account import compared
from tests.site.sites import CONFIG, DELTA, Peer, site_of, write

ROUNDS = [(1, 0), (2, 0), (2, 1), (4, 0)]


def server_ledger(path, config, rounds, header=None):
    promise = promise_of(config.setting, load_shards(config).sizes)
    named = {"config_sha256": header or sha256(config)}
    with opened(path, promise, last_round=6, header=named) as account:
        for server_round, attempt in rounds:
            account.charge(server_round, attempt, (0, 1))
    return path


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("both")
    path = write(folder)
    with site_of(folder, path, epsilon=7.0) as site:
        for now in ROUNDS:
            assert Peer(site, path).is_answered(*now)
    return folder, load(path), folder / "site" / "ledger.jsonl"


def test_ledgers_agree_on_the_rounds_that_both_saw(both):
    folder, config, site = both
    found = compared(server_ledger(folder / "all.jsonl", config, [*ROUNDS, (3, 0)]), site)
    assert found.is_whole
    assert (found.partition, found.both, found.only_server) == (0, ROUNDS, [(3, 0)])
    few = compared(server_ledger(folder / "few.jsonl", config, ROUNDS[:2]), site)
    assert (few.only_site, few.is_whole) == (ROUNDS[2:], False)


def test_answers_that_somebody_else_got_for_a_listed_experiment_are_found(tmp_path):
    path = write(tmp_path)
    with site_of(tmp_path, path, epsilon=7.0) as site:
        for now, run in (((1, 0), "7"), ((2, 0), "7"), ((1, 0), "beside"), ((3, 0), "beside")):
            assert Peer(site, path).is_answered(*now, run=run)
    server = server_ledger(tmp_path / "run.jsonl", load(path), [(1, 0), (2, 0)])
    own = tmp_path / "site" / "ledger.jsonl"
    found = compared(server, own)
    assert (found.differing, found.only_site) == ([(1, 0)], [(3, 0)])
    assert not found.is_whole
    assert compared(server, own, "7").is_whole


def test_a_round_at_another_price_is_found(both):
    folder, config, site = both
    other = load(write(folder, CONFIG.replace("4.0", "5.0"), "cheaper.toml"))
    path = server_ledger(folder / "cheap.jsonl", other, ROUNDS, sha256(config))
    assert compared(path, site).differing == ROUNDS
    with pytest.raises(ConfigError, match="expected answers as one client"):
        compared(server_ledger(folder / "other.jsonl", other, ROUNDS), site)
    with pytest.raises(ConfigError, match="got 0 clients"):
        compared(path, site, run="8")


def test_a_site_s_ledger_names_its_limits(both):
    assert audit_ledger(both[2], None)["limits"] == {"epsilon": 7.0, "delta": DELTA}
    run = server_ledger(both[0] / "run.jsonl", both[1], [(1, 0)])
    assert "limits" not in audit_ledger(run, DELTA)
    with pytest.raises(ConfigError, match="--delta: required for the ledger of a run"):
        audit_ledger(run, None)
