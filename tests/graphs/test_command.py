"""`manifed graph`: the constants of a graph, and a picture of it."""

import json
import struct

import numpy as np
import pytest
from typer.testing import CliRunner

from manifed.cli import commands
from manifed.cli.main import app
from manifed.graphs.constants import constants_of
from manifed.graphs.graph import Graph, algebraic_connectivity
from manifed.graphs.mixing import complete_mixing, metropolis_hastings
from manifed.graphs.specs import RandomRegular, Ring, Star, Torus

RING = ["graph", "--graph", "ring", "--nodes", "16"]


def run(*given: str):
    commands.register(app)
    return CliRunner().invoke(app, list(given))


def test_the_constants_are_the_papers():
    """Of 16 nodes: a, a_1, p, H, |W - J|^2 (spec 004, H4 and H5)."""
    known = {
        Ring(): (0.15224, 0.043705, 0.098919, 1 / 9, 4.3333),
        Torus(): (2.0, 1.65708, 0.64, 0.12, 2.2),
    }
    for spec, expected in known.items():
        graph = spec.build(16)
        found = constants_of(graph, metropolis_hastings(graph))
        made = (
            found.algebraic_connectivity, found.without[0].value, found.consensus_rate,
            found.heterogeneity, found.distance_to_mean,
        )  # fmt: skip
        assert made == pytest.approx(expected, rel=2e-5)
        assert all(less.is_exact for less in found.without)
    star = constants_of(Star().build(16), complete_mixing(16))
    assert (star.least_degree, star.greatest_degree, star.heterogeneity) == (1, 15, 0.0)
    assert star.without[0].value == 0.0


def test_a_single_node_and_a_graph_in_parts_have_constants():
    alone = constants_of(Graph(1, ()), np.ones((1, 1)))
    assert (alone.without, alone.consensus_rate) == ((), 1.0)
    parts = Graph.of(4, [(0, 1), (2, 3)])
    found = constants_of(parts, metropolis_hastings(parts))
    assert (found.components, found.algebraic_connectivity) == (2, 0.0)
    assert found.consensus_rate == pytest.approx(0.0, abs=1e-12)


def test_a_mixing_matrix_of_others_is_refused():
    with pytest.raises(ValueError, match="mixing matrix of 16 nodes, got 3"):
        constants_of(Ring().build(16), complete_mixing(3))
    with pytest.raises(ValueError, match="rows that sum to 1"):
        constants_of(Ring().build(3), 0.5 * complete_mixing(3))


def test_the_command_prints_constants_and_one_json_object():
    done = run(*RING, "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["nodes"], found["edges"], found["degrees"]) == (16, 16, [2] * 16)
    assert found["without"][1] == {"nodes_gone": 2, "value": 0.0, "is_exact": True}
    assert "a(G) = 0.152241, a_1(G) = 0.0437048, a_2(G) = 0" in done.stderr


def test_the_command_draws(tmp_path):
    edges = tmp_path / "edges.txt"
    edges.write_text("0 1\n1 2\n2 3\n0 3\n0 2\n")
    path = tmp_path / "graph.png"
    done = run("graph", "--graph", str(edges), "--nodes", "5", "--plot", "--out", str(path))
    assert done.exit_code == 0, done.stderr
    assert f"drawn: {path}" in done.stdout
    png = path.read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert min(struct.unpack(">II", png[16:24])) > 400


CONFIG = """
name = "on-a-graph"
problem = { kind = "least-squares", scaling = "sum" }
data = { kind = "scaled-identities", num_clients = 6 }
federation = { num_clients = 6, num_rounds = 1, partition = { kind = "natural" } }
[training]
kind = "gossip"
graph = { kind = "random-regular", degree = 3 }
graph_seed = 4
step_size = 0.1
minibatch = { kind = "full" }
mixing_weights = "complete"
"""


def test_a_config_is_measured_with_its_own_graph_and_mixing(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    done = run("graph", str(path), "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    graph = RandomRegular(degree=3).build(6, 4)
    assert found["algebraic_connectivity"] == pytest.approx(algebraic_connectivity(graph))
    assert (found["edges"], found["heterogeneity"]) == (9, 0.0)
    assert found["consensus_rate"] == pytest.approx(1.0)
    assert "on-a-graph: random-regular, 6 nodes" in done.stderr
    other = run(
        "graph", str(path), "--set", "training.mixing_weights=metropolis-hastings", "--json"
    )
    assert json.loads(other.stdout)["heterogeneity"] > 0
    star = run("graph", "configs/quickstart.toml")
    assert star.exit_code == 2
    assert "training.kind: expected one that trains on a graph" in star.stderr


def test_without_plot_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*RING).exit_code == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "given",
    [["graph"], ["graph", "--graph", "ring"], ["graph", "no-such.toml"],
     [*RING, "configs/quickstart.toml"], [*RING, "--set", "a.b=1"],
     ["graph", "--graph", "line", "--nodes", "3"], ["graph", "--graph", "torus", "--nodes", "5"],
     [*RING, "--plot", "--out", "no/such/folder/graph.png"]],
)  # fmt: skip
def test_bad_arguments_end_in_one_line(given):
    done = run(*given)
    assert done.exit_code == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("error: ")
