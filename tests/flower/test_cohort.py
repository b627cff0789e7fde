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
from manifed.federation.replies import Header
from manifed.federation.stack import Asked
from tests.conformance.federated_loop import broken, stacked

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


def assert_alike(one, two):
    x, y = (folder.load_tensors("model")["x"] for folder in (one, two))
    assert float((x - y).abs().max()) <= 1e-10
    for column in ("round", "bytes_up", "bytes_down"):
        assert one.metrics()[column] == two.metrics()[column]
    return x


@pytest.mark.parametrize("case", CASES)
def test_every_benchmark_case_runs_alike_on_both_paths(tmp_path, case):
    table = CASES[case](4, 3)
    if case == "kpca_784x5":
        table["data"]["rows"] = 10
    save(parse(table), tmp_path / "case.toml")
    assert_alike(*both(tmp_path, tmp_path / "case.toml"))


def test_a_one_shot_release_of_a_frame_runs_alike_on_both_paths(tmp_path):
    """Noise on coordinates of a matrix, where a point is a matrix of another shape."""
    one, two = both(
        tmp_path, CONFIGS / "examples" / "best_pca.toml", "federation.num_rounds=1",
        "problem={kind='kpca',num_components=2,scaling='mean'}",
    )  # fmt: skip
    assert assert_alike(one, two).shape == (64, 2)
    assert one.manifest()["privacy"] == two.manifest()["privacy"]


def side_of(clients=8):
    return client_side(parse(CASES["least_squares_d10"](clients, 3)))


def exchange(transport, partitions, clients=8):
    header = Header("", 1, 0, "train", -1)
    phase = RSGD(step_size=0.1).phases[0]
    x = torch.zeros(10).double()
    return transport.exchange(Asked(header, phase, Point(x), partitions, {}))


def test_one_client_that_breaks_a_batched_kernel_is_isolated(monkeypatch):
    broken(monkeypatch, RSGD, {2}, torch.linalg.LinAlgError("no factor"))
    replies = exchange(stacked(side_of()), (0, 1, 2, 5))
    assert replies.partitions == (0, 1, 5)
    assert list(replies.failures) == [2]
    assert "no factor" in replies.failures[2].text
    assert replies.uploads.u.shape == (3, 10)


@pytest.mark.gpu
def test_a_gpu_gives_the_same_uploads():
    side = side_of()
    cpu, gpu = (exchange(stacked(side, device=d), tuple(range(8))) for d in ("cpu", "cuda"))
    torch.testing.assert_close(gpu.uploads.u.cpu(), cpu.uploads.u, rtol=0, atol=1e-10)
