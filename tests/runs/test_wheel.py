"""The wheel, installed beside what it depends on, in a folder that has packages of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import tomli_w

from app.processes import free_ports, private_flower
from manifed.privacy.composition import gaussian_epsilon
from manifed.privacy.statement import audit_ledger
from tests.deployment.test_flwr_run import ended
from tests.experiment.test_extending import PAGES, written
from tests.fresh import QUICKSTART, ROOT
from tests.runs.test_callbacks import in_events

OWN = ("app", "clients", "configs", "strategies", "privacy", "runs")
PINNED = ["OMP_NUM_THREADS", "PATH", "HOME", "LANG", "TMPDIR"]


def _python(interpreter, *words, cwd):
    """What a program of this interpreter says, without our repository on its path."""
    done = subprocess.run(
        [interpreter, "-W", "ignore", *words],
        cwd=cwd,
        env={name: os.environ[name] for name in PINNED if name in os.environ},
        check=False,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


def wheel_of(source, folder):
    words = ["wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, source]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, cwd=folder)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return wheel_of(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """(interpreter, site-packages) of an environment that has the wheel, and our dependencies."""
    folder = tmp_path_factory.mktemp("environment")
    venv.EnvBuilder(with_pip=False).create(folder)
    (packages,) = folder.glob("lib/python3*/site-packages")
    assert list(packages.iterdir()) == []
    python = folder / "bin" / "python"
    subprocess.run(
        [
            sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps",
            "--no-index", wheel,
        ],
        check=True,
    )  # fmt: skip
    assert {path.name for path in packages.iterdir()} == {
        "manifed",
        f"manifed-{_version()}.dist-info",
    }
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return python, packages


@pytest.fixture
def folder(tmp_path):
    """A user's own folder, whose packages have names that a library might have taken."""
    for name in OWN:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"MINE = {name!r}\n")
    (tmp_path / "app" / "engines.py").write_text("ENGINES = {}\n")
    table = tomllib.loads(QUICKSTART.read_text())
    table["federation"] |= {"num_rounds": 2}
    (tmp_path / "own.toml").write_text(tomli_w.dumps(table))
    return tmp_path


def _version():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.mark.slow
def test_the_wheel_holds_the_library_and_says_that_it_is_typed(wheel):
    names = ZipFile(wheel).namelist()
    info = f"manifed-{_version()}.dist-info"
    assert {name.split("/")[0] for name in names} == {"manifed", info}
    found = [p for p in (ROOT / "manifed").rglob("*") if p.suffix in {".py", ".html", ".typed"}]
    in_tree = {p.relative_to(ROOT).as_posix() for p in found}
    for door in ("strategies", "clients"):
        in_tree |= {f"manifed/flower/{door}/{p.name}" for p in (ROOT / door).glob("*.py")}
    assert {name for name in names if name.startswith("manifed/")} == in_tree
    assert {"manifed/py.typed", "manifed/runs/page.html"} <= in_tree


@pytest.mark.slow
def test_a_wheel_from_the_sdist_is_the_wheel_from_the_tree(wheel, tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", tmp_path],
        check=True,
        cwd=ROOT,
    )
    (sdist,) = tmp_path.glob("manifed-*.tar.gz")
    assert sdist.name == f"manifed-{_version()}.tar.gz"
    found = ZipFile(wheel_of(sdist, tmp_path))
    expected = ZipFile(wheel)
    assert found.namelist() == expected.namelist()
    assert all(found.read(name) == expected.read(name) for name in expected.namelist())


@pytest.mark.slow
def test_the_library_works_beside_packages_of_ones_own(installed, folder):
    python, packages = installed
    program = (
        "import json, sys, manifed.flower.apps, manifed.cli.main\n"
        f"own = [__import__(name).MINE for name in {OWN!r}]\n"
        "print(json.dumps([own, manifed.__file__, sys.path]))"
    )
    code, out, err = _python(python, "-c", program, cwd=folder)
    assert (code, err) == (0, "")
    own, where, path = json.loads(out)
    assert own == list(OWN)
    assert where == str(packages / "manifed" / "__init__.py")
    assert str(ROOT) not in path


@pytest.mark.slow
def test_two_algorithms_are_overlaid_in_a_pdf(installed, folder):
    """A researcher's walk from a clean environment."""
    python, _ = installed
    command = str(python.parent / "manifed")
    svrg = "training={kind='rsvrg',step_size=0.2,epochs=1,inner_steps=1,minibatch={kind='full'}}"
    for out, sets in (("a", []), ("b", ["--set", svrg])):
        code, _, err = _python(python, command, "run", "own.toml", "--out", out, *sets, cwd=folder)
        assert code == 0, err
    words = ["a", "b", "--label", "DP-RSGD", "--label", "DP-RSVRG", "--pdf", "overlay.pdf"]
    code, out, err = _python(python, command, "report", *words, cwd=folder)
    assert code == 0, err
    assert out.splitlines()[-2:] == ["report/report.html", "overlay.pdf"]
    assert all(f"<td>{name}</td>" in (folder / "report/report.html").read_text()
               for name in ("DP-RSGD", "DP-RSVRG"))  # fmt: skip
    assert (folder / "overlay.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.slow
def test_its_command_needs_no_clone_but_for_flowers_engines(installed, folder):
    python, _ = installed
    command = str(python.parent / "manifed")
    assert _python(python, "-m", "manifed", "--help", cwd=folder)[0] == 0
    target = ["--target-epsilon", "1", "--target-delta", "1e-5", "--steps", "10"]
    code, out, _ = _python(python, command, "privacy", "calibrate", *target, cwd=folder)
    assert code == 0
    assert out.splitlines()[1].startswith("noise multiplier ")
    code, out, err = _python(python, command, "run", "own.toml", "--json", cwd=folder)
    assert code == 0, err
    last = json.loads(out.splitlines()[-1])
    assert last["rounds"] == 2
    assert Path(last["directory"]).parent == folder / "runs"
    before = sorted(folder.rglob("*"))
    for engine in ("ray", "deployment"):
        code, out, err = _python(python, command, "run", "own.toml", "--engine", engine, cwd=folder)
        assert (code, out) == (2, "")
        assert err == (
            f"error: engine.kind: {engine!r} runs the Flower application, which the installed "
            "library does not hold; run it from a clone: python simulation.py CONFIG --engine "
            f"{engine}\n"
        )
    assert sorted(folder.rglob("*")) == before


def app_of_the_page(folder):
    """The folder that docs/flower.md writes."""
    (folder / "meanapp").mkdir(parents=True)
    (folder / "meanapp" / "__init__.py").write_text("")
    page = (ROOT / "docs" / "flower.md").read_text()
    fence = r"^```(?:python|toml)\n# (\S+)\n(.*?)^```$"
    for name, text in re.findall(fence, page, re.MULTILINE | re.DOTALL):
        (folder / name).write_text(text)
    return folder


@pytest.mark.ray
@pytest.mark.slow
def test_the_app_of_the_page_runs_from_the_wheel_by_flowers_own_commands(
    installed, tmp_path, monkeypatch
):
    python, packages = installed
    for flower in Path(sys.executable).parent.glob("fl*w*r*"):  # flwr, flower-superlink, ...
        lines = flower.read_text().split("\n")
        script = python.parent / flower.name
        script.write_text("\n".join([f"#!{python}", *lines[1:]]))
        script.chmod(0o755)
    folder = app_of_the_page(tmp_path / "meanapp")
    monkeypatch.chdir(folder)
    names = ("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", "FLWR_LOCAL_CONTROL_API_PORT")
    own = dict(zip(names, map(str, free_ports(2)), strict=True))
    own |= {"PATH": f"{python.parent}:{os.environ['PATH']}", "PYTHONPATH": ""}
    with private_flower(ROOT, own) as flower:
        where = flower.call(str(python), "-c", "import manifed; print(manifed.__file__)")
        assert where.strip() == str(packages / "manifed" / "__init__.py")
        flower.call("flwr", "build")
        (bundle,) = folder.glob("you.meanapp.1-0-0.*.fab")
        assert set(ZipFile(bundle).namelist()) >= {"meanapp/server_app.py", "pyproject.toml"}
        assert "meanapp" in flower.call("flwr", "install", str(bundle))
        status, details, log = ended(flower, "flwr", "run", ".")
        assert status == "finished:completed", details
    (ledger,) = folder.glob("ledger-*.jsonl")
    (server, *_) = audit_ledger(ledger, 1e-5)["adversaries"]
    assert 1.5 < server["epsilon"] <= 2.0
    assert f"({server['epsilon']:.4g}, 1e-05)-DP against the server" in log
    (model,) = map(np.load, folder.glob("model-*.npy"))
    assert np.linalg.norm(model) == pytest.approx(1.0)
    assert model == pytest.approx([3**-0.5] * 3, abs=0.4)


CELLS = [
    "import numpy as np\n"
    "import manifed\n"
    "from manifed.algorithms import RSGD\n"
    "from manifed.problems import Logistic\n"
    "rng = np.random.default_rng(0)\n"
    "feature = rng.normal(size=(4, 300, 3))\n"
    "label = np.sign(feature @ [1.0, -2.0, 0.5])",
    "shards = [{'feature': x, 'label': y} for x, y in zip(feature, label)]\n"
    "privacy = manifed.ExampleLevel(epsilon=2, delta=1e-4, noise_source='seed')\n"
    "found = manifed.fit(Logistic(), shards, RSGD(step_size=1.0), rounds=20, privacy=privacy)\n"
    "found",
    "print(manifed.__file__)\nprint(np.mean(found.predict(feature[0]).numpy() == label[0]))",
]
NOTEBOOK = {
    "nbformat": 4, "nbformat_minor": 5, "metadata": {},
    "cells": [{"cell_type": "code", "metadata": {}, "source": [cell]} for cell in CELLS],
}  # fmt: skip
EXECUTE = """
import json, pathlib, runpy, sys
path = pathlib.Path("own.ipynb")
notebook = json.loads(path.read_text())
runpy.run_path(sys.argv[1])["executed"](notebook)
path.write_text(json.dumps(notebook))
"""


@pytest.mark.slow
def test_a_notebook_with_numpy_shards_runs_from_the_wheel(installed, tmp_path):
    python, packages = installed
    (tmp_path / "own.ipynb").write_text(json.dumps(NOTEBOOK))
    runner = str(ROOT / "docs" / "tutorials" / "run.py")
    assert _python(python, "-c", EXECUTE, runner, cwd=tmp_path) == (0, "", "")
    _, fitted, predicted = json.loads((tmp_path / "own.ipynb").read_text())["cells"]
    (shown,) = fitted["outputs"][0]["data"]["text/plain"]
    assert shown.startswith("<Result: 20 rounds, model (3,), ")
    where, right = predicted["outputs"][0]["text"]
    assert where.strip() == str(packages / "manifed" / "__init__.py")
    assert float(right) > 0.9


@pytest.mark.slow
def test_a_plug_in_outside_of_the_repository_runs_by_the_command_of_the_wheel(installed, tmp_path):
    python, _ = installed
    written(tmp_path, PAGES)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = str(python.parent / "manifed")
    words = ["run", "../config.toml", "--json", "--set", "engine.execution=cohort"]
    code, out, err = _python(python, command, *words, cwd=elsewhere)
    assert code == 0, err
    manifest = json.loads(
        (Path(json.loads(out.splitlines()[-1])["directory"]) / "manifest.json").read_text()
    )
    assert manifest["plugin_folders"]
    (server,) = [one for one in manifest["privacy"]["adversaries"] if one["name"] == "server"]
    assert server["epsilon"] == pytest.approx(gaussian_epsilon(1e-5, mu=5**0.5 / 8), rel=1e-4)
    assert manifest["config"]["training"]["kind"].startswith("orchard.")


DATA_SETS = """
import os, signal, torch
from torch.utils.data import TensorDataset
import manifed
from manifed.callbacks import tensorboard

feature = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
label = (feature[:, 0] > 0).long()
sites = [TensorDataset(feature[i::3], label[i::3]) for i in range(3)]
noise = manifed.Multiplier(noise_multiplier=1.0)
privacy = manifed.ExampleLevel(l2_norm_clip=1.0, noise=noise, delta=1e-4)

def kill(curves, model):
    if curves["round"][-1] == 4 and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

found = manifed.fit_module(
    torch.nn.Linear(4, 2), sites, rounds=8, test=TensorDataset(feature, label), resume="fit",
    privacy=privacy, callbacks=[tensorboard("curves"), kill],
)
print(manifed.__file__, *map(int, found.curves["round"]), found.curves["test_accuracy"][-1] > 0.8)
"""


@pytest.mark.slow
def test_torch_data_sets_are_tracked_and_a_killed_fit_goes_on(installed, tmp_path):
    python, packages = installed
    assert _python(python, "-c", DATA_SETS, cwd=tmp_path)[0] == -signal.SIGKILL
    code, out, err = _python(python, "-c", DATA_SETS, cwd=tmp_path)
    assert code == 0, err
    assert out.split() == [str(packages / "manifed" / "__init__.py"), *"12345678", "True"]
    assert {*range(4, 9)} <= {step for step, *_ in in_events(tmp_path / "curves")["test_loss"]}
