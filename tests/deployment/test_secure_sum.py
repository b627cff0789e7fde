"""A secure sum over three SuperNodes with TLS and pinned keys, one of which is silent."""

import pytest

from manifed.cli.launch import Request, launch
from manifed.privacy.odometer import OFFERED
from tests.algorithms.test_secure_mean import keys_in
from tests.fresh import ROOT
from tests.privacy.forging import entries_of

SETS = (
    "federation.num_clients=3", "federation.num_rounds=1", "privacy.noise_source=os",
    "privacy.trust.max_dropped=0.34", "privacy.trust.collusion=0",
)  # fmt: skip
pytestmark = [pytest.mark.deployment, pytest.mark.slow]


@pytest.mark.usefixtures("leaves_nothing")
def test_two_of_three_nodes_open_their_sum_when_the_third_is_silent(tmp_path):
    keys = keys_in(tmp_path, 3)
    (tmp_path / "2.key").unlink()  # its node fails before it offers anything
    sets = [f"privacy.trust.{name}={path}" for name, path in keys.items()]
    config = str(ROOT / "configs" / "examples" / "secure_sum.toml")
    asked = Request(config, (*SETS, *sets), "deployment", out=tmp_path / "run", plain=True)
    folder = launch(asked)
    manifest = folder.manifest()
    assert manifest["privacy"]["label"] == "release"
    assert "keys are pinned; it holds whoever falls silent" in manifest["privacy"]["mechanism"]
    assert set(manifest["replies"]["missed"]) == {"2"}
    assert [e.said[OFFERED] for e in entries_of(folder.ledger_path) if OFFERED in e.said] == [0, 2]
