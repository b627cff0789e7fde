"""Data at home: the server knows shapes and public sizes, and each node opens its own file."""

import json

import pytest
import torch

from manifed.audit.of_config import attacks_of
from manifed.cli.launch import check_parts
from manifed.errors import ConfigError
from manifed.experiment import assembly
from manifed.experiment.assembly import client_side, facts_of, own_node
from manifed.experiment.load import from_toml, to_toml
from manifed.experiment.plugins import VARIABLE
from manifed.experiment.schema import sha256
from manifed.federation.stack import StackTransport
from manifed.flower.apps import run
from manifed.flower.client import client_app_of
from manifed.flower.grids import InlineGrid
from manifed.flower.handshake import HandshakeFailed
from manifed.flower.run_config import SIMULATION, experiment_of, run_config_of
from manifed.plan import planned_statement
from manifed.privacy.statement import audit_ledger
from manifed.runs import driver
from manifed.runs.folder import RunFolder
from tests.experiment.own_rows import SIZES, config_of, write

ABSENT = "this node is absent; its own log says why"


class Sites(InlineGrid):
    """Nodes with a node config of their own each: the path, and N_i where a site declares one."""

    def __init__(self, config, folder, sizes=SIZES, declared=None):
        super().__init__(client_app_of(lambda _: config), len(sizes), {})
        self.paths = write(folder, sizes)
        for i, context in enumerate(self._contexts.values()):
            context.node_config["data-path"] = str(self.paths[i])
            if declared is not None:
                context.node_config["num-examples"] = declared[i]


def placed(config, folder, **more):
    output = config.output.model_copy(update={"directory": str(folder), **more})
    return config.model_copy(update={"output": output})


def ran(config, folder, **sites):
    return run(Sites(config, folder / "homes", **sites), placed(config, folder / "run"))


def model(folder):
    return folder.load_tensors("model")["x"]


@pytest.fixture
def blind(monkeypatch):
    """A server with no folder of data sets, which loads no data at all."""
    monkeypatch.delenv("MANIFED_DATA", raising=False)
    monkeypatch.setattr(assembly, "load_shards", lambda _: pytest.fail("data were loaded"))
    return monkeypatch


def test_a_server_without_data_runs_what_one_process_with_all_files_runs(tmp_path, blind):
    config = config_of()
    folder = ran(config, tmp_path)
    said = folder.experiment_path.read_text() + json.dumps(folder.manifest()["config"])
    assert "homes" not in said
    assert list(folder.manifest()["data_checksums"].values()) == [None]
    blind.undo()
    simulated = config_of(paths=write(tmp_path / "homes"))
    assert sha256(simulated) == sha256(config)
    check_parts(simulated)
    side = client_side(simulated)
    other = driver.run(
        placed(simulated, tmp_path / "other"), driver.rounds_over(StackTransport(side))
    )
    assert torch.equal(model(folder), model(other))


def test_sites_declare_their_sizes_before_anything_is_priced(tmp_path, blind):
    config = config_of(sizes=None)
    with pytest.raises(ConfigError, match="every site declares its own"):
        planned_statement(config.setting, facts_of(config).sizes)
    folder = ran(config, tmp_path, declared=SIZES)
    assert "N_i as every site declares it (12, 9, 15)" in folder.manifest()["privacy"]["released"]
    (terms,) = [
        entry["terms"]
        for entry in map(json.loads, folder.ledger_path.read_text().splitlines())
        if entry.get("terms")
    ]
    assert terms["num_examples"] == list(SIZES)
    known = ran(config_of(), tmp_path / "known", declared=SIZES)
    assert torch.equal(model(folder), model(known))
    ours, theirs = (audit_ledger(one.ledger_path, 1e-3)["adversaries"] for one in (folder, known))
    assert ours == theirs


def test_a_client_that_later_declares_another_size_is_refused(tmp_path, blind):
    config = config_of(sizes=None, federation={"replies": {"timeout": 0.3}})

    class Interrupted(Sites):
        def send_and_receive(self, messages, *, timeout=None):
            if RunFolder(tmp_path / "run").ledger_path.read_text().count('"reserves"') > 1:
                raise KeyboardInterrupt
            return super().send_and_receive(messages, timeout=timeout)

    with pytest.raises(KeyboardInterrupt):
        run(
            Interrupted(config, tmp_path / "homes", declared=SIZES),
            placed(config, tmp_path / "run"),
        )
    before = RunFolder(tmp_path / "run").ledger_path.read_bytes()
    others = Sites(config, tmp_path / "homes", declared=(12, 10, 15))
    with pytest.raises(HandshakeFailed, match="declares 10 examples, the accounting uses 9"):
        run(others, placed(config, tmp_path / "run", resume=True))
    assert RunFolder(tmp_path / "run").ledger_path.read_bytes() == before


@pytest.mark.parametrize("node", [{"num-examples": 8}, {"num-examples": True}, {}])
def test_a_size_that_nobody_or_somebody_else_says_is_refused_at_the_node(tmp_path, node):
    config = config_of() if node else config_of(sizes=None)
    path = write(tmp_path)[1]
    with pytest.raises((ConfigError, ValueError), match="num-examples of this node"):
        own_node(config, 1, path, node.get("num-examples"))


def test_what_is_wrong_with_a_file_stays_in_the_log_of_its_site(tmp_path, blind, caplog):
    config = config_of(federation={"replies": {"timeout": 0.3}})
    grid = Sites(config, tmp_path)
    grid._contexts[3].node_config["data-path"] = str(tmp_path / "secret-name.npy")
    with pytest.raises(HandshakeFailed, match=ABSENT) as failed:
        run(grid, placed(config, tmp_path / "run"))
    assert "secret-name" not in str(failed.value)
    assert "secret-name" in caplog.text
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_only_under_replace_one_may_a_site_say_that_it_disagrees(tmp_path):
    paths = write(tmp_path, (12, 10, 15))
    assert own_node(config_of(), 1, paths[1]).num_examples == 9
    replaced = config_of(privacy={"neighboring_relation": "replace-one"})
    with pytest.raises(ConfigError, match="client 1: expected the declared 9 examples, got 10"):
        own_node(replaced, 1, paths[1])


def test_no_run_config_names_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "tests")
    config = config_of(paths=write(tmp_path))
    sent = run_config_of(config)
    assert str(tmp_path) not in str(sent)
    whole = {**sent, "resolved": to_toml(config)}
    assert experiment_of(whole) == experiment_of(sent) == config_of()
    monkeypatch.setenv(SIMULATION, "1")
    assert experiment_of(run_config_of(config, is_simulation=True)) == config
    assert from_toml(to_toml(config)) == config


def test_the_audit_of_a_config_needs_no_data(blind):
    assert [attack.how[:4] for attack in attacks_of(config_of(), 10)] == ["own ", "wors"]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"federation": {"num_examples": [3]}}, "one for each of .* = 3, got 1"),
        (
            {"sizes": None, "privacy": {"noise": {"kind": "target", "epsilon": 1, "delta": 1e-3}}},
            "federation.num_examples: required with",
        ),
    ],
)
def test_a_config_that_cannot_be_is_refused(parts, words):
    with pytest.raises(ConfigError, match=words):
        config_of(**parts)


def leaving(folder, sizes, **parts):
    """Every message that leaves the clients, by node and content; client 1 has so many rows."""
    config = config_of(**parts)
    kept = []

    class Watched(Sites):
        def _deliver(self, message):
            reply = super()._deliver(message)
            kept.append((message.metadata.dst_node_id, reply.content))
            return reply

    run(Watched(config, folder / "homes", sizes), placed(config, folder / "run"))
    return kept


def parts_of(content):
    """What a reply says in configs, and what its arrays are, apart from their numbers."""
    return (
        {key: dict(record) for key, record in content.config_records.items()},
        {
            key: [(name, array.dtype, tuple(array.shape), len(array.data))
                  for name, array in record.items()]
            for key, record in content.array_records.items()
        },
    )  # fmt: skip


def raw(content):
    return [a.data for record in content.array_records.values() for a in record.values()]


def test_of_a_row_more_only_the_noised_payload_tells(tmp_path, blind):
    evaluation = {"kind": "private", "hold_out": 0.3, "loss_range": [-1.0, 0.0]}
    found = [
        leaving(tmp_path / str(rows), (12, rows, 15), evaluation=evaluation) for rows in (9, 10)
    ]
    assert len(found[0]) == len(found[1]) == 3 + 2 * 2 * 3
    changed = 0
    for (node, before), (other, after) in zip(*found, strict=True):
        assert node == other
        assert parts_of(before) == parts_of(after)
        changed += raw(before) != raw(after)
    assert changed > 0


def test_a_public_file_at_the_server_judges_the_model(tmp_path):
    (test,) = write(tmp_path / "public", (40,))
    held = {"kind": "public", "path": str(test), "keep": "best"}
    config = config_of(evaluation=held, federation={"num_rounds": 3})
    folder = ran(config, tmp_path)
    losses = folder.metrics()["held_out_loss"]
    z = config.data.read(test)["z"]
    assert min(losses[1:]) == pytest.approx(-float((z @ model(folder)).square().mean()), rel=1e-9)
    assert sha256(config) == sha256(
        config_of(evaluation=held | {"path": "/elsewhere"}, federation={"num_rounds": 3})
    )
    gone = config_of(evaluation=held | {"path": str(tmp_path / "none.npy")})
    with pytest.raises(ConfigError, match=r"evaluation\.path"):
        ran(gone, tmp_path / "gone")
    assert not (tmp_path / "gone" / "run" / "ledger.jsonl").exists()
