"""A run whose messages are masked leaves a folder that everything can read."""

import itertools

from manifed.cli.launch import Request
from manifed.runs.report import read
from reproduction.trials import run_silently


def test_a_masked_run_ends_and_names_its_four_adversaries(tmp_path):
    sets = ("federation.num_rounds=2", "output.plots=false")
    out = tmp_path / "run"
    run_silently(Request("configs/examples/decor_ring.toml", sets, out=out, plain=True))
    found = read(out)
    told = found.manifest["privacy"]["adversaries"]
    assert [one["name"] for one in told] == ["server", "one-node", "coalition", "everybody"]
    epsilons = [one["epsilon"] for one in told]
    assert all(a <= b * (1 + 1e-9) for a, b in itertools.pairwise(epsilons))
    assert found.final["rounds"] == 2
