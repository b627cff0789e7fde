"""How the library hangs together: imports go one way, and a round takes a straight way."""

import grimp
import networkx
import pytest

from tests import fresh
from tests.fresh import ROOT
from tests.runs.calls import measure

CEILINGS = {
    "round": {"calls": 100, "modules": 25, "frames": 292},
    "update": {"calls": 18, "modules": 10, "frames": 56},
}
"""What one round of the quickstart and one client update take; only ever lowered."""


def test_a_round_and_a_client_update_go_through_no_more_modules_than_they_need(tmp_path):
    for name, window in measure(tmp_path / "run").items():
        found = window.numbers()
        assert window.crossings, f"no function {window.name!r} was called {window.number} times"
        within = all(found[what] <= most for what, most in CEILINGS[name].items())
        assert within, (name, found, window.crossings.most_common())


@pytest.mark.parametrize("package", ["manifed", "app", "reproduction"])
def test_no_modules_import_each_other_in_a_circle_also_not_within_functions(package):
    graph = grimp.build_graph(package, cache_dir=None)
    imports = {m: list(graph.find_modules_directly_imported_by(m)) for m in graph.modules}
    assert max(map(len, networkx.strongly_connected_components(networkx.DiGraph(imports)))) == 1


def test_the_tests_that_take_seconds_are_there():
    for line in (ROOT / "tests" / "seconds.txt").read_text().splitlines():
        if not line.startswith("#"):
            path, name = line.split("::")
            assert f"def {name}(" in (ROOT / path).read_text(), line


SCRIPTS = [
    *([str(path.relative_to(ROOT))] for path in sorted((ROOT / "benchmarks").glob("*.py"))),
    ["-m", "reproduction"],
    ["-m", "tests.attacks.shipped"],
    *(
        ["-m", f"tests.robustness.{name}"]
        for name in ("growing_engines", "guard_kills", "hostile_replies", "kills")
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda words: words[-1])
def test_every_script_beside_the_product_explains_itself(script):
    done = fresh.python(*script, "--help")
    assert done.returncode == 0, done.stderr
    assert "--json" in done.stdout or "--out" in done.stdout
