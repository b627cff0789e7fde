"""Guarded Flower apps on Flower's own engines: SuperNodes over TLS, and ``flwr run .``."""

import re
from dataclasses import replace

import pytest
import torch

from app.credentials import found_or_made
from app.deployment import SuperNodes, link_options, node_configs
from app.processes import CONNECTION, free_ports, private_flower, stage
from app.superlink import start_superlink, submit
from manifed.privacy.statement import audit_ledger
from tests.deployment.test_flwr_run import ended
from tests.flower.foreign_apps import laid

NODES = 2
"""In place of the four that the apps are written for."""
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("leaves_nothing")]


def placed(kind, folder):
    """A guarded app, for so many nodes."""
    path = laid(kind, folder, is_guarded=True) / "mine" / "server_app.py"
    path.write_text(path.read_text().replace("population=4", f"population={NODES}"))
    return folder


def told(folder, name="ledger.jsonl", delta=1e-3):
    """What an auditor says of a ledger."""
    found = audit_ledger(folder / name, delta)
    assert found["label"] == "release"
    return found["charges"], {one["name"]: one["epsilon"] for one in found["adversaries"]}


@pytest.mark.deployment
@pytest.mark.one_week_in(2)
def test_two_guarded_apps_run_on_supernodes_over_tls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [placed(kind, tmp_path / kind) for kind in ("seeded_adam", "zero_d")]
    said = list[str]()
    with private_flower(folders[0]) as flower:
        tls = found_or_made(flower.home / "credentials", NODES)
        link, address = start_superlink(flower, link_options(tls))
        flower.connect(address, tls.ca_certificate)
        for key in tls.supernode_keys:
            flower.call("flwr", "supernode", "register", f"{key}.pub", CONNECTION)
        SuperNodes(flower, address, node_configs(NODES, None), tls, said.append)
        for rounds, folder in zip((2, 1), folders, strict=True):
            one = replace(flower, app=stage(folder, flower.home / folder.name))
            submit(one, {"num-server-rounds": rounds}, (), timeout=400.0, on_line=said.append,
                   check=link.check)  # fmt: skip
    charges, epsilons = told(tmp_path)
    assert charges == 2
    # guard's own statement, in the log of the run
    (line,) = [one for one in said if re.search(r"-DP against an outsider", one)][:1]
    assert f"({epsilons['client-level']:.4g}, 0.001)-DP" in line
    # the clients here share a folder, so a ledger
    charges, epsilons = told(tmp_path, "site-ledger.jsonl", 1e-5)
    assert (charges, {*epsilons}) == (2, {"server", "external"})
    state = torch.load(tmp_path / "final_model.pt")
    assert state["logit_scale"].isfinite()
    assert "1.0" not in str(state["logit_scale"].item())


@pytest.mark.ray
def test_guarded_apps_run_by_flwr_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", "FLWR_LOCAL_CONTROL_API_PORT")
    ports = dict(zip(names, map(str, free_ports(2)), strict=True))
    kinds = ("batch_norm", "zero_d")
    folders = [laid(kind, tmp_path / kind, is_guarded=True) for kind in kinds]
    with private_flower(folders[0], ports) as flower:
        for folder in folders:
            status, details, log = ended(
                flower,
                "flwr",
                "run",
                str(folder),
                "--federation-config",
                "num-supernodes=4",
                "--run-config",
                "num-server-rounds=1",
            )
            assert status == "finished:completed", details
            if folder.name == "zero_d":
                assert told(tmp_path, "site-ledger.jsonl", 1e-5)[0] == 2
                continue
            charges, epsilons = told(tmp_path)
            assert charges == 1
            assert f"({epsilons['client-level']:.4g}, 0.001)-DP against an outsider" in log
            state = torch.load(tmp_path / "final_model.pt")
            assert not state["1.running_mean"].any()  # the server's own statistics
            for file in tmp_path.glob("ledger.jsonl*"):
                file.rename(folder / file.name)
