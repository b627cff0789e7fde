"""Streams: each record a function of its address, never kept, and read once whatever happens."""

import gc

import pytest
import torch

from manifed.errors import ConfigError
from manifed.experiment.assembly import client_side, load_shards
from manifed.experiment.load import load
from manifed.federation.stack import StackTransport
from manifed.oracles import noisy_oracle
from manifed.privacy.charging import Account
from manifed.problems.examples import Examples, Stream
from manifed.runs.driver import _Run, rounds_over, run

CONFIG = "configs/examples/long_stream.toml"
NODES = 3
BLOCK = 256
LATE = (  # as from round 10^4 on, so that rounds cost about the same
    "training.schedules.sample_size={kind='ceil-polynomial',scale=1.0,offset=1e4,exponent=0.35}",
    "training.schedules.noise_scale={kind='polynomial',scale=1.0,offset=1e4,exponent=0.2}",
)


def config_of(*sets, rounds=300, folder=None):
    named = () if folder is None else (f"output.directory={folder}",)
    return load(
        CONFIG,
        [f"federation.num_clients={NODES}", f"federation.num_rounds={rounds}",
         f"evaluation.every={rounds}", "output.quiet=true", *named, *sets],
    )  # fmt: skip


def shards(*sets):
    return load_shards(config_of(*sets)).examples


def test_a_record_depends_on_its_seed_its_client_and_its_place_alone():
    first, second, _ = shards()
    run = first.take(torch.arange(3 * BLOCK))
    mixed = torch.tensor([2 * BLOCK + 1, 0, BLOCK, 5])
    again = first.take(mixed)
    for name, tensor in again.tensors.items():
        assert torch.equal(tensor, run[name][mixed])
    assert len(torch.unique(run["target"])) == 3 * BLOCK
    assert not torch.equal(second.take(mixed)["feature"], again["feature"])
    other = shards("federation.seed=1")
    assert not torch.equal(other[0].take(mixed)["feature"], again["feature"])
    assert not torch.isin(first.judged["target"], run["target"]).any()


def test_a_cohort_reads_what_its_clients_read():
    each = shards()
    stacked = Examples.stack(each)
    at = torch.tensor([[0, 300], [7, 8], [BLOCK, 1]])
    found = stacked.take(at)
    for i, shard in enumerate(each):
        for name, tensor in shard.take(at[i]).tensors.items():
            assert torch.equal(found[name][i], tensor)
    two = stacked.of_clients(torch.tensor([0, 2])).take(at[[0, 2]])
    assert torch.equal(two["target"], found["target"][[0, 2]])
    narrow = each[1].to(torch.float32).take(at[1])
    assert narrow["feature"].dtype == torch.float32
    assert torch.equal(narrow["feature"], found["feature"][1].float())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.samples=subsets", "records are read once; use"),
        ("training.on_exhausted=recycle", "and on_exhausted = 'stop'"),
        ("federation.partition={kind='equal'}", "every client has its own data"),
        (f"data.num_examples={2**47 + 1}", "less than or equal to 140737488355328"),
    ],
)
def test_a_stream_is_read_in_order_or_not_at_all(override, message):
    with pytest.raises(ConfigError, match=message):
        config_of(override)


class Dies(StackTransport):
    """Ends in the middle of a round."""

    until = None

    def exchange(self, asked):
        made = super().exchange(asked)
        if asked.header.server_round == self.until:
            raise KeyboardInterrupt
        return made


def test_a_run_that_dies_and_goes_on_reads_no_record_twice(tmp_path, monkeypatch):
    read = []

    def noted(records, client, positions):
        read.extend((client, int(j)) for j in positions)
        return found(records, client, positions)

    found = Stream._rows
    monkeypatch.setattr(Stream, "_rows", noted)
    monkeypatch.setattr(_Run, "_keep_the_newest", lambda _: None)  # as after kill -9
    settle = Account.settle
    sets = (*LATE, "output.checkpoint_every=10", "federation.reserve_rounds=20")
    for resume, until in (("false", 17), ("true", 14), ("true", None)):
        config = config_of(*sets, f"output.resume={resume}", rounds=24, folder=tmp_path / "run")
        transport = Dies(client_side(config))
        transport.until = until
        monkeypatch.setattr(Account, "settle", settle if until is None else lambda _: None)
        try:
            folder = run(config, rounds_over(transport))
        except KeyboardInterrupt:
            assert until is not None
    assert folder.manifest()["final"]["rounds"] == 24
    schedules = config.training.schedules
    made = [*range(17), *range(10, 14), *range(10, 24)]  # rounds after the checkpoint, again
    assert len(read) == NODES * sum(schedules.size(k) for k in made)
    assert len(set(read)) == len(read)


def test_a_long_run_writes_little_and_holds_what_a_short_one_holds(tmp_path, monkeypatch):
    """At most 50 bytes of ledger a round, no list of all records, no object a round."""
    monkeypatch.setattr(noisy_oracle, "_all_present", lambda *_: pytest.fail("listed all records"))
    rounds = 300
    config = config_of(*LATE, "engine.execution=cohort", rounds=rounds, folder=tmp_path / "run")
    transport = StackTransport(client_side(config), at_once=None, memory_budget_mb=64)
    held = {}

    def watched(job):
        for report in rounds_over(transport)(job):
            yield report
            if report.server_round in {100, 280}:
                gc.collect()
                held[report.server_round] = len(gc.get_objects())

    folder = run(config, watched)
    assert folder.ledger_path.stat().st_size <= 50 * rounds
    assert held[280] - held[100] < 180 / 4
