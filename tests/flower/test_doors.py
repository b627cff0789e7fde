"""One source, two doors: `strategies` and `manifed.flower.strategies` are one class everywhere."""

import subprocess
import sys
from zipfile import ZipFile

import pytest

from tests.fresh import ROOT, python

LIBRARY = (
    "from manifed.flower.strategies.tangent_mean import TangentMean as library\n"
    "from manifed.flower.clients.local_training import client_app as own\n"
)
CHECKOUT = (
    "from strategies.tangent_mean import TangentMean as checkout\n"
    "import strategies.gossip, clients.local_training\n"
)
SAME = (
    "import manifed.flower.strategies.gossip\n"
    "assert library is checkout\n"
    "assert library.__module__ == 'manifed.flower.strategies.tangent_mean'\n"
    "assert strategies.gossip is manifed.flower.strategies.gossip\n"
    "assert clients.local_training.client_app is own\n"
)


def ran(code, cwd):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"import sys; sys.path.insert(0, '.')\n{code}"],
        cwd=cwd, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("order", [LIBRARY + CHECKOUT, CHECKOUT + LIBRARY])
def test_an_editable_install_has_one_class_by_either_name(order):
    done = python("-c", order + SAME)
    assert done.returncode == 0, done.stderr


def built(folder, kind):
    """The files of a wheel or an sdist of this checkout, unpacked."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (found,) = folder.iterdir()
    return found


@pytest.mark.slow
def test_a_wheel_from_the_tree_and_from_an_sdist_has_the_library_s_door(tmp_path):
    for name in ("wheel", "sdist", "unpacked", "again"):
        (tmp_path / name).mkdir()
    wheel = built(tmp_path / "wheel", "wheel")
    sdist = built(tmp_path / "sdist", "sdist")
    words = ["wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    again = tmp_path / "again"
    subprocess.run([sys.executable, "-m", "pip", *words, "-w", again, sdist], check=True)
    for number, made in enumerate((wheel, *again.glob("*.whl"))):
        place = tmp_path / "unpacked" / str(number)
        ZipFile(made).extractall(place)
        assert not (place / "strategies").exists()
        ran(f"import manifed\n{LIBRARY}assert manifed.__file__.startswith({str(place)!r})", place)


@pytest.mark.slow
def test_a_bundle_of_flower_has_both_doors(tmp_path):
    from flwr.cli.build import build_fab_from_disk

    (tmp_path / "app.fab").write_bytes(build_fab_from_disk(ROOT))
    ZipFile(tmp_path / "app.fab").extractall(tmp_path / "app")
    place = tmp_path / "app"
    here = f"import manifed\nassert manifed.__file__.startswith({str(place)!r})\n"
    ran(here + CHECKOUT + LIBRARY + SAME, place)
    ran(f"{here}from app.server_app import app\nfrom app.client_app import app", place)
