"""Workers give the bits of one process, check what it checks, and may die; Ray is pretended here.

tests/federation/test_workers_on_ray.py has the real one.
"""

import sys

import pytest

from manifed.algorithms import rsgd
from manifed.cli.launch import check_parts
from manifed.errors import ConfigError, RoundFailed
from manifed.experiment import assembly
from manifed.experiment.assembly import client_side, outlined_side
from manifed.experiment.load import load, parse
from manifed.federation import workers
from manifed.federation.rounds import free
from manifed.federation.stack import Chunking
from manifed.privacy.random_numbers import Stream
from manifed.problems.own_files import FileData
from manifed.problems.pca import KPCA
from manifed.problems.problem import InvalidRecord
from manifed.runs.driver import cohort_transport
from tests.algorithms.gossip_runs import reports_of
from tests.conformance.federated_loop import broken
from tests.federation.pretended_ray import Pretended
from tests.fresh import QUICKSTART
from tests.tensors import assert_near

PRIVATE = {
    "kind": "example-level", "l2_norm_clip": 1.0, "delta": 1e-3,
    "noise": {"kind": "multiplier", "noise_multiplier": 2.0},
}  # fmt: skip
SUMMED = PRIVATE | {"trust": {"kind": "secure-sum", "collusion": 0}}
RSGD = {"kind": "rsgd", "step_size": 0.05, "local_steps": 2, "minibatch": {"kind": "full"}}
PROJECTED = {"kind": "projected", "step_size": 1e-3, "local_steps": 2}
SOME = {"cohort": {"kind": "fixed-size", "cohort_size": 7}}
LINES = {
    "problem": {"kind": "least-squares"},
    "data": {"kind": "synthetic-least-squares", "num_clients": 13, "rows": 5},
}
FAR = {**RSGD, "step_size": 1e-3}
HELD_OUT = {
    **LINES,
    "data": {**LINES["data"], "rows": 10},
    "evaluation": {"kind": "private", "hold_out": 0.4, "loss_range": [0.0, 10.0]},
}
FRAMES = {
    "problem": {"kind": "kpca", "num_components": 2},
    "data": {"kind": "synthetic-pca", "num_clients": 13, "rows": 6, "dimension": 9},
}


def table(parts, training, privacy=None, federation=None, **engine):
    """A config whose clients are stacked; ``parts`` are tables of it as they are."""
    return {
        "name": "workers",
        **parts,
        "federation": {
            "num_clients": 13, "num_rounds": 3, "partition": {"kind": "natural"},
            **(federation or {}),
        },
        "training": training,
        "privacy": privacy or {"kind": "none"},
        "engine": {"execution": "cohort", "chunk_clients": 2, **engine},
    }  # fmt: skip


CASES = {
    "least squares": (LINES, RSGD),
    "least squares, some of them": (LINES, RSGD, None, SOME),
    "private least squares, some of them": (LINES, RSGD, PRIVATE, SOME),
    "frames with memory": (FRAMES, PROJECTED),
    "private frames": (FRAMES, FAR, PRIVATE),
    "frames, each client's record at the server": (
        FRAMES, {**PROJECTED, "kind": "projected-partial"}, None, SOME,
    ),
    "two exchanges": (FRAMES, {"kind": "rfedsvrg", "step_size": 1e-3, "local_steps": 2}),
    "at client level": (
        LINES, RSGD, PRIVATE | {"kind": "client-level"},
        {"cohort": {"kind": "poisson", "sampling_probability": 0.5}},
    ),
    "a sum that nobody opens": (FRAMES, {**FAR, "local_steps": 1}, SUMMED),
    "a sum of clients": (FRAMES, FAR, SUMMED | {"kind": "client-level"}),
    "what hold-outs say": (HELD_OUT, RSGD, PRIVATE),
    "gossip": (LINES, {"kind": "gossip", "graph": {"kind": "ring"}, "step_size": 0.02}),
}  # fmt: skip


def played(*case, charge=free, **engine):
    config = parse(table(*case, **engine))
    with cohort_transport(config) as transport:
        return reports_of(config, transport=transport, charge=charge)


@pytest.fixture
def ray(monkeypatch):
    found = Pretended()
    monkeypatch.setitem(sys.modules, "ray", found)
    return found


def told(report):
    """(what it says in numbers, all else)."""
    return (report.state, report.held_out), report._replace(state={}, held_out=None)


def assert_same(found, expected):
    for mine, theirs in zip(map(told, found), map(told, expected), strict=True):
        assert_near(mine[0], theirs[0])
        assert mine[1] == theirs[1]


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize("case", CASES)
def test_one_two_and_four_workers_give_the_bits_of_one_process(case):
    expected = played(*CASES[case])
    for count in (1, 2, 4):
        assert_same(played(*CASES[case], workers=count), expected)


@pytest.mark.usefixtures("ray")
def test_an_upload_that_cannot_be_used_and_one_that_fails_are_their_clients_failures(monkeypatch):
    broken(monkeypatch, rsgd.RSGD, {3, 4, 11})
    broken(monkeypatch, rsgd.RSGD, {8}, RuntimeError("no factor"))
    expected = played(LINES, RSGD)
    assert {i: f.kind for i, f in expected[-1].failures.items()} == {
        3: "unusable", 4: "unusable", 8: "absent", 11: "unusable"
    }  # fmt: skip
    for count in (1, 2, 4):
        assert_same(played(LINES, RSGD, workers=count), expected)


@pytest.mark.usefixtures("ray")
def test_in_a_release_every_worker_draws_a_key_of_its_own_for_every_exchange(monkeypatch):
    plain = rsgd.RSGD.client
    drawn = set()
    at = {"stream": Stream.COHORT, "partition": 3, "server_round": 1, "attempt": 0}

    def client(*given):
        drawn.add(tuple(given[-1].draws.source.uniforms((2,), **at).tolist()))
        return plain(*given)

    monkeypatch.setattr(rsgd.RSGD, "client", client)
    reports = played(LINES, RSGD, PRIVATE | {"noise_source": "os"}, workers=2)
    assert all(report.noise_origins == {"os"} for report in reports)
    assert len(drawn) == 2 * 3  # one key an exchange and worker, one number of it


def with_policy(how, **more):
    return {"replies": {"on_failure": how, "min_fraction": 0.3, **more}}


@pytest.mark.parametrize(
    ("how", "taking_part"), [("retry", [13, 13, 13]), ("proceed", [13, 7, 13])]
)
def test_a_worker_that_dies_is_its_clients_failure_and_is_started_anew(
    ray, caplog, how, taking_part
):
    ray.dies[0] = ("exchange", 2)
    charged = []
    found = played(
        FRAMES,
        PROJECTED if how == "retry" else FAR,
        federation=with_policy(how),
        charge=lambda *attempt: charged.append(attempt[:2]),
        workers=2,
    )
    assert charged == [(1, 0), (2, 0), *[(2, 1)] * (how == "retry"), (3, 0)]
    assert [actor.starts for actor in ray.actors] == [2, 1]
    assert "Worker 0 died" in caplog.text
    assert [len(report.participants) for report in found] == taking_part
    assert {f.kind for f in found[1].failures.values()} == {"unavailable"}


def test_a_worker_without_room_is_waited_for_once_and_asked_when_it_is_up(ray):
    ray.dies[0] = ("exchange", 2)

    def charge(server_round, *_):
        if server_round == 2:
            ray.stuck |= {(0, "process")}
        if server_round == 5:
            ray.stuck.clear()

    five = with_policy("proceed") | {"num_rounds": 5}
    found = played(LINES, RSGD, federation=five, charge=charge, workers=2)
    assert [len(report.participants) for report in found] == [13, 7, 7, 7, 13]
    for report in found[1:4]:
        assert {f.kind for f in report.failures.values()} == {"unavailable"}
    assert ray.waits == [workers._AGAIN, 0.0]
    assert ray.actors[0].calls == ["process", "exchange", "exchange", "process", "exchange"]
    assert found[2].bytes_down * 13 == found[0].bytes_down * 7


@pytest.mark.parametrize(
    ("happens", "replies", "words"),
    [
        ({"stuck": {(1, "exchange")}}, {"timeout": 5.0}, "worker 1: no reply within 5 s"),
        ({"dies": {0: ("exchange", 2)}}, {}, "worker 0 died"),
    ],
)
def test_a_policy_that_aborts_ends_the_run_when_a_worker_is_late_or_dies(
    ray, happens, replies, words
):
    vars(ray).update(happens)
    with pytest.raises(RoundFailed, match=words):
        played(LINES, RSGD, federation=with_policy("abort", **replies), workers=2)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"workers": 8}, "expected at most 7, the number of chunks of 2 clients, got 8"),
        ({"workers": 2, "execution": "messages"}, "goes with engine.execution = 'cohort'"),
        ({"address": "auto"}, "expected engine.workers"),
        ({"workers": 2, "address": "somewhere"}, "engine.address"),
    ],
)
@pytest.mark.usefixtures("ray")
def test_what_cannot_be_shared_out_is_refused_in_one_line(engine, words):
    with pytest.raises(ConfigError, match=words):
        played(LINES, RSGD, **engine)


# -- what the driver reads -----------------------------------------------------------------------
OFF = {"evaluation": {"is_enabled": False}}


def at_sites(**federation):
    sets = ["engine.execution=cohort", "engine.workers=3", "engine.chunk_clients=1"]
    sites = QUICKSTART.parent / "examples" / "three_sites.toml"
    config = load(sites, [*sets, "evaluation.is_enabled=false"])
    changed = config.federation.model_copy(update=federation)
    return config.model_copy(update={"federation": changed})


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize(("given", "times"), [({}, 1), ({"num_examples": None}, 2)])
def test_files_are_opened_by_workers_and_once_more_where_nobody_says_how_long_they_are(
    monkeypatch, given, times
):
    plain = FileData.read
    read = []
    monkeypatch.setattr(FileData, "read", lambda *a: read.append(a[1].name) or plain(*a))
    monkeypatch.setattr(assembly, "load_shards", lambda _: pytest.fail("the driver loads data"))
    config = at_sites(**given)
    assembly.facts_of.cache_clear()
    check_parts(config)
    with cohort_transport(config) as transport:
        assert len(reports_of(config, transport=transport)) == 3
    assert sorted(read) == sorted(times * ["north.csv", "middle.csv", "south.csv"])


FOUR_BYTES = {**LINES, "data": {**LINES["data"], "rows": 500}}
CHUNKED = {name: OFF | table(*case, workers=2) for name, case in CASES.items()} | {
    "float32": table(FOUR_BYTES, RSGD, dtype="float32", workers=2) | OFF,
    "held out": table(HELD_OUT | FOUR_BYTES, RSGD, PRIVATE, workers=2),
}


@pytest.mark.parametrize("case", [*CHUNKED, "three sites"])
def test_sizes_alone_say_the_same_chunks_as_the_data(case):
    config = at_sites() if case == "three sites" else parse(CHUNKED[case])
    for budget in (1, 4, 64):
        known, full = (
            Chunking.of(side(config), "cpu", budget, None) for side in (outlined_side, client_side)
        )
        assert known == full


@pytest.mark.usefixtures("ray")
def test_a_record_that_nothing_may_be_computed_from_is_found_by_its_worker(monkeypatch):
    def check_records(*_):
        raise InvalidRecord("record 3: no number")

    monkeypatch.setattr(KPCA, "check_records", check_records)
    check_parts(parse(table(FRAMES, PROJECTED, workers=2)))
    with pytest.raises(ConfigError, match="client 0, record 3: no number"):
        played(FRAMES, PROJECTED, workers=2)
