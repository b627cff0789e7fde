"""Cohort execution is the message path without the envelopes, for every algorithm and problem."""

from pathlib import Path

import pytest
import torch

from benchmarks.common.cases import CASES
from manifed.algorithms.payloads import Point
from manifed.algorithms.rsgd import RSGD
from manifed.cli.launch import Request, launch
from manifed.experiment.assembly import client_side
from manifed.experiment.load import parse, save
from manifed.federation.header import Header
from manifed.federation.stacked import StackedTransport
from reproduction.experiments import experiment_path

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SETS = (
    "federation.num_rounds=3",
    "evaluation.is_enabled=false",
    "output.plots=false",
)


def both(tmp_path, config, *sets):
    folders = []
    for execution in ("messages", "cohort"):
        request = Request(
            str(config), (*SETS, *sets, f"engine.execution={execution}"), out=tmp_path / execution
        )
        folders.append(launch(request))
    return folders


@pytest.mark.parametrize("case", CASES)
def test_every_benchmark_case_runs_alike_on_both_paths(tmp_path, case):
    table = CASES[case](4, 3)
    if case == "kpca_784x5":
        table["data"]["rows"] = 10
    save(parse(table), tmp_path / "case.toml")
    one, two = both(tmp_path, tmp_path / "case.toml")
    x, y = (folder.load_tensors("model")["x"] for folder in (one, two))
    assert float((x - y).abs().max()) <= 1e-10
    for column in ("round", "bytes_up", "bytes_down"):
        assert one.metrics()[column] == two.metrics()[column]


PAPERS = [
    "000_1_col2-eps-0.15",
    "000_1_col3-eps-0.15",
    "000_3_wishart-rsvrg-N-20",
    "000_5_tree-dp-rsgd",
]


@pytest.mark.parametrize("name", PAPERS)
def test_private_experiments_run_alike_on_both_paths(tmp_path, name):
    one, two = both(tmp_path, experiment_path(name))
    x, y = (folder.load_tensors("model")["x"] for folder in (one, two))
    assert float((x - y).abs().max()) <= 1e-10
    assert one.manifest()["privacy"] == two.manifest()["privacy"]


def test_a_one_shot_release_of_a_frame_runs_alike_on_both_paths(tmp_path):
    """Noise on coordinates of a matrix, where a point is a matrix of another shape."""
    config = CONFIGS / "examples" / "best_pca.toml"
    one, two = both(
        tmp_path, config, "federation.num_rounds=1",
        "problem={kind='kpca',num_components=2,scaling='mean'}",
    )  # fmt: skip
    x, y = (folder.load_tensors("model")["x"] for folder in (one, two))
    assert x.shape == (64, 2)
    assert float((x - y).abs().max()) <= 1e-10
    assert one.manifest()["privacy"] == two.manifest()["privacy"]
    assert one.metrics()["bytes_up"] == two.metrics()["bytes_up"]


def side_of(clients=8):
    return client_side(parse(CASES["least_squares_d10"](clients, 3)))


def exchange(transport, partitions, clients=8):
    header, phase = Header("", 1, 0, "train", -1), RSGD(step_size=0.1).phases[0]
    return transport.exchange(header, phase, Point(torch.zeros(10).double()), partitions, {})


def test_chunks_do_not_change_the_uploads():
    side = side_of()
    whole = exchange(StackedTransport(side, device="cpu", memory_budget_mb=64), tuple(range(8)))
    small = StackedTransport(side, device="cpu", memory_budget_mb=64, chunk_clients=3)
    parts = exchange(small, tuple(range(8)))
    assert parts.partitions == whole.partitions
    torch.testing.assert_close(parts.uploads.u, whole.uploads.u, rtol=0, atol=1e-12)


def test_the_chunk_obeys_the_memory_budget():
    side = side_of()
    tiny = StackedTransport(side, device="cpu", memory_budget_mb=16)
    shard = sum(t.numel() * t.element_size() for t in side.shards[0].tensors.values())
    assert 1 <= tiny.chunk_size * 2 * shard <= 16 * 2**20


def test_one_client_that_breaks_a_batched_kernel_is_isolated(monkeypatch):
    from manifed.algorithms import rsgd

    plain = rsgd.RSGD.update

    def breaks_with_client_2(self, phase, down, memory, oracle, manifold, draws):
        if 2 in draws.partition:
            raise torch.linalg.LinAlgError("no factor")
        return plain(self, phase, down, memory, oracle, manifold, draws)

    monkeypatch.setattr(rsgd.RSGD, "update", breaks_with_client_2)
    replies = exchange(StackedTransport(side_of(), device="cpu", memory_budget_mb=64), (0, 1, 2, 5))
    assert replies.partitions == (0, 1, 5)
    assert list(replies.failures) == [2]
    assert "no factor" in replies.failures[2].text
    assert replies.uploads.u.shape == (3, 10)


@pytest.mark.gpu
def test_a_gpu_gives_the_same_uploads():
    side = side_of()
    cpu = exchange(StackedTransport(side, device="cpu", memory_budget_mb=64), tuple(range(8)))
    gpu = exchange(StackedTransport(side, device="cuda", memory_budget_mb=64), tuple(range(8)))
    torch.testing.assert_close(gpu.uploads.u.cpu(), cpu.uploads.u, rtol=0, atol=1e-10)
