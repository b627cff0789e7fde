"""Cohort execution is the message path without the envelopes, for every algorithm and problem."""

import pytest
import torch

from benchmarks.common.cases import CASES
from manifed.algorithms.payloads import Point
from manifed.algorithms.rsgd import RSGD
from manifed.cli.launch import Request, launch
from manifed.errors import ConfigError
from manifed.experiment.assembly import client_side
from manifed.experiment.load import load, parse, save
from manifed.federation.exchange import Asked, Header
from manifed.flower.records import tensors_from_record, tensors_to_record
from tests.conformance.federated_loop import stacked
from tests.fresh import ROOT
from tests.golden.house import record
from tests.tensors import assert_near

SETS = ("federation.num_rounds=3", "evaluation.is_enabled=false")


def alike(tmp_path, config, *sets):
    """The folders of a config's runs on both paths, whose models and bytes are compared."""
    one, two = (
        launch(Request(str(config), (*SETS, *sets, f"engine.execution={way}"), out=tmp_path / way))
        for way in ("messages", "cohort")
    )
    models = [folder.load_tensors("model")["x"] for folder in (one, two)]
    assert_near(*models, atol=1e-10)
    for column in ("round", "bytes_up", "bytes_down"):
        assert one.metrics()[column] == two.metrics()[column]
    return one, two


@pytest.mark.parametrize("case", CASES)
def test_every_benchmark_case_runs_alike_on_both_paths(tmp_path, case):
    table = CASES[case](4, 3)
    if case == "kpca_784x5":
        table["data"]["rows"] = 10
    save(parse(table), tmp_path / "case.toml")
    alike(tmp_path, tmp_path / "case.toml")


def test_a_one_shot_release_of_a_frame_runs_alike_on_both_paths(tmp_path):
    """Noise on coordinates of a matrix, where a point is a matrix of another shape."""
    one, two = alike(
        tmp_path, ROOT / "configs" / "examples" / "best_pca.toml", "federation.num_rounds=1",
        "problem={kind='kpca',num_components=2,scaling='mean'}",
    )  # fmt: skip
    assert one.load_tensors("model")["x"].shape == (64, 2)
    assert one.manifest()["privacy"] == two.manifest()["privacy"]


@pytest.mark.parametrize("source", ["seed", "os"])
def test_a_sum_that_nobody_opens_runs_alike_on_both_paths(tmp_path, source):
    file = ROOT / "configs" / "examples" / "secure_sum.toml"
    if source == "seed":
        one, two = alike(tmp_path, file)
        assert torch.equal(*[folder.load_tensors("model")["x"] for folder in (one, two)])
        return
    said = []
    for way in ("messages", "cohort"):
        sets = (*SETS, "privacy.noise_source=os", f"engine.execution={way}")
        said.append(launch(Request(str(file), sets, out=tmp_path / way)).manifest())
    assert [one["privacy"]["label"] for one in said] == ["release"] * 2
    assert said[0]["privacy"] == said[1]["privacy"]


def test_a_number_in_a_sum_s_memory_stays_one_in_a_record():
    found = tensors_from_record(tensors_to_record({"one": torch.tensor(1.0)}))
    assert found["one"].shape == ()


FEW = ("quickstart", "rsvrg-poisson", "decor-ring", "growing-samples", "spd-frechet")
THREADS = ("engine.workers=3", "engine.address=threads")


@pytest.mark.parametrize(
    "name",
    [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in sorted(record.CONFIGS)],
)
def test_threads_change_no_bit(tmp_path, name):
    config, models = load(record.CONFIGS[name]), []
    sets = ("evaluation.is_enabled=false", "engine.execution=cohort", "engine.chunk_clients=2")
    if "evaluation" in name:
        sets = sets[1:]
    is_alone = not config.setting.problem.allows_threads or config.training.memory_is_required
    for place, more in (("one", ()), ("three", THREADS)):
        request = Request(str(record.CONFIGS[name]), (*sets, *more), out=tmp_path / place)
        if more and is_alone:
            with pytest.raises(ConfigError, match=r"engine\.address: expected none with"):
                launch(request)
            return
        models.append(launch(request).load_tensors("model")["x"])
    assert torch.equal(*models)


@pytest.mark.gpu
def test_a_gpu_gives_the_same_uploads():
    side = client_side(parse(CASES["least_squares_d10"](8, 3)))
    header = Header("", 1, 0, "train", -1)
    x = torch.zeros(10).double()
    asked = Asked(header, RSGD(step_size=0.1).phases[0], Point(x), tuple(range(8)), {})
    cpu, gpu = (stacked(side, device=d).exchange(asked) for d in ("cpu", "cuda"))
    assert_near(gpu.uploads.u.cpu(), cpu.uploads.u, 1e-10)
