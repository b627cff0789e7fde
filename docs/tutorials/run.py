"""Executes the notebooks of this folder and keeps what their cells say and draw.

    python docs/tutorials/run.py [--out DIR]

A notebook is JSON (nbformat 4); its cells need nothing but the library, so they run without Jupyter
as well. What a cell prints, and its last value, are its outputs; figures are PNG.
"""

import argparse
import ast
import base64
import contextlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def executed(notebook: dict[str, Any], settings: Mapping[str, object] | None = None) -> None:
    """Run all code cells in order, in one namespace, and store their outputs.

    ``settings`` replace names once the cell with the tag "parameters" has run.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    number = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        number += 1
        cell["execution_count"] = number
        cell["outputs"] = _outputs("".join(cell["source"]), names, number)
        if "parameters" in cell["metadata"].get("tags", ()):
            names.update(settings or {})


def _outputs(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    tree, said, value = ast.parse(source), io.StringIO(), None
    last = tree.body[-1] if tree.body else None
    with contextlib.redirect_stdout(said):
        if isinstance(last, ast.Expr):
            tree.body.pop()
        exec(compile(tree, f"<cell {number}>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"<cell {number}>", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if said.getvalue():
        lines = said.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines})
    if value is not None:
        data: dict[str, Any] = {"text/plain": [repr(value)[:2000]]}
        if hasattr(value, "savefig"):
            content = io.BytesIO()
            value.savefig(content, format="png", dpi=110, metadata={"Software": None})
            data = {
                "image/png": base64.b64encode(content.getvalue()).decode("ascii"),
                "text/plain": ["<Figure>"],
            }
        outputs.append(
            {
                "output_type": "execute_result",
                "execution_count": number,
                "metadata": {},
                "data": data,
            }
        )
    return outputs


def main() -> None:
    """Every notebook of the folder, in place or into --out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=HERE)
    out = parser.parse_args().out
    for path in sorted(HERE.glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        executed(notebook)
        text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
        (out / path.name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
