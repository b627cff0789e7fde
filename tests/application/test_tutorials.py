"""The notebooks of docs/tutorials run without Jupyter, and hold what their cells last said."""

import json
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
SMALL = {
    "eeg": {"PARTICIPANTS": 6, "WINDOWS": 5},
    "own_module": {"ROUNDS": 2},
    "private_layers": {"ROUNDS": 2, "EPSILONS": (2.0,)},
    "what_epsilon_means": {"DRAWS": 20_000},
}


def notebook(name):
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))


def code(cells):
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_every_notebook_is_tested():
    assert sorted(SMALL) == sorted(path.stem for path in FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("name", SMALL)
def test_outputs_are_checked_in_and_one_is_a_picture(name):
    cells = code(notebook(name)["cells"])
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    data = [output.get("data", {}) for cell in cells for output in cell["outputs"]]
    assert any("image/png" in found for found in data)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_notebook_runs_and_its_cells_say_something_where_they_did(name):
    executed = runpy.run_path(str(FOLDER / "run.py"))["executed"]
    before = notebook(name)
    after = json.loads(json.dumps(before))
    executed(after, SMALL[name])
    for old, new in zip(code(before["cells"]), code(after["cells"]), strict=True):
        kinds = [[output["output_type"] for output in cell["outputs"]] for cell in (old, new)]
        assert kinds[0] == kinds[1]
