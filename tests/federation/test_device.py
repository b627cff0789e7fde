"""`fit`, `fit_module` and `federate` on a GPU give what they give on the CPU."""

import pytest
import torch

import manifed
from manifed.problems import ModuleProblem
from tests.federation.test_door import fitted
from tests.federation.test_module_door import Frame, sites, trained
from tests.tensors import assert_near

pytestmark = pytest.mark.gpu
FREE = {"privacy": None, "seed": 0}


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
@pytest.mark.parametrize("fit", [fitted, trained], ids=["fit", "fit_module"])
def test_a_fit_on_a_gpu_is_that_of_the_cpu(fit, device):
    gpu, cpu = (fit(device=where, **FREE) for where in (device, "cpu"))
    assert gpu.model.device.type == "cpu"
    assert_near(gpu.model, cpu.model, 1e-10)
    last = {name: values[-1] for name, values in cpu.curves.items()}
    assert {name: values[-1] for name, values in gpu.curves.items()} == pytest.approx(last)


def test_a_loop_on_a_gpu_goes_on_there_and_on_the_cpu(tmp_path):
    def loop(device, folder):
        problem = ModuleProblem(Frame())
        return manifed.federate(problem, sites(), rounds=3, device=device, resume=tmp_path / folder)

    first = loop("cuda", "gpu")
    assert next(first).state["x"].device.type == "cuda"
    first.close()
    models = [[*loop(*where)][-1].model for where in (("cuda", "gpu"), ("cpu", "cpu"))]
    assert_near(*models, 1e-10)


def test_a_private_fit_keeps_to_the_cpu():
    with pytest.raises(manifed.errors.ConfigError, match="device: expected 'cpu' with privacy"):
        fitted(device="cuda")
    assert torch.cuda.is_available()
