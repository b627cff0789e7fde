"""A private module on many manifolds for 200 rounds: inline and Ray agree, and nothing drifts off.

    python -m tests.robustness.module_rounds --out tests/robustness/results

The package of the module lies outside the repository. Distances from the manifolds are relative,
as in `manifed.manifolds.base`.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import geoopt

from manifed.cli.launch import Request, launch
from manifed.durable import write_atomically
from manifed.experiment.assembly import initial_point
from manifed.experiment.load import load
from manifed.problems.module_layout import manifold_of
from manifed.torch import ModuleProblem
from tests.experiment.own_nets import FACTORY
from tests.experiment.test_own_module import CONFIG
from tests.robustness import many_manifolds

BOUND = 1e-10
ENGINES = ("inline", "ray")
SETS = ("data.num_examples=300", "training.step_size=1.0")


def main() -> int:
    """Exit code 1 when the engines differ or a parameter has left its manifold by the bound."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for module_rounds.md")
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    ends, seconds = [], []
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        shutil.copy(many_manifolds.__file__, folder / "nets_outside.py")
        os.environ |= {"MANIFED_PLUGINS": "nets_outside", "PYTHONPATH": root}
        sys.path.insert(0, root)
        path = folder / "module.toml"
        path.write_text(CONFIG.replace(FACTORY, "nets_outside:network"))
        sets = (*SETS, f"federation.num_rounds={args.rounds}")
        for engine in ENGINES:
            began = time.perf_counter()
            ran = launch(Request(str(path), sets, engine, folder / engine, plain=True))
            seconds.append(time.perf_counter() - began)
            ends.append(ran.load_tensors("model")["x"])
        start = initial_point(load(path, sets))
    model = many_manifolds.network()
    layout = ModuleProblem(model).layout
    first, inline, ray = (layout.unpack(x) for x in (start, *ends))
    rows, worst = [], 0.0
    for name, parameter in model.named_parameters():
        manifold = manifold_of(parameter, name)
        is_curved = isinstance(parameter, geoopt.ManifoldParameter)
        kind = type(parameter.manifold).__name__ if is_curved else manifold.name
        off = [float(manifold.membership_defect(end[name]).max()) for end in (inline, ray)]
        gap = float((inline[name] - ray[name]).abs().max())
        moved = float((inline[name] - first[name]).abs().max())
        worst = max(worst, gap, *off)
        rows.append(f"| {name} | {kind} | {moved:.2g} | {off[0]:.1e} | {off[1]:.1e} | {gap:.1e} |")
    table = [
        "# A private module on many manifolds",
        "",
        f"Three clients, {args.rounds} rounds; {ENGINES[0]} took {seconds[0]:.0f} s and "
        f"{ENGINES[1]} {seconds[1]:.0f} s. How far the largest entry of a",
        "parameter moved, how far it lies off its manifold at the end (relative), and the largest",
        f"difference between the engines. Bound of the last three: {BOUND:g}.",
        "`python -m tests.robustness.module_rounds --out tests/robustness/results`",
        "",
        "| parameter | manifold | moved | off, inline | off, Ray | engines differ |",
        "|---|---|---|---|---|---|",
        *rows,
    ]
    print("\n".join(table))
    if args.out is not None:
        write_atomically(args.out / "module_rounds.md", ("\n".join(table) + "\n").encode())
    return int(not worst <= BOUND)


if __name__ == "__main__":
    sys.exit(main())
