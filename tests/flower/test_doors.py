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


@pytest.mark.slow
@pytest.mark.parametrize("order", [LIBRARY + CHECKOUT, CHECKOUT + LIBRARY])
def test_an_editable_install_has_one_class_by_either_name(order):
    done = python("-c", order + SAME)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_bundle_of_flower_has_both_doors(tmp_path):
    from flwr.cli.build import build_fab_from_disk

    (tmp_path / "app.fab").write_bytes(build_fab_from_disk(ROOT))
    ZipFile(tmp_path / "app.fab").extractall(tmp_path / "app")
    place = tmp_path / "app"
    here = f"import manifed\nassert manifed.__file__.startswith({str(place)!r})\n"
    ran(here + CHECKOUT + LIBRARY + SAME, place)
    ran(f"{here}from app.server_app import app\nfrom app.client_app import app", place)
