"""What this product did before its house was halved, recorded through the command alone.

    python tests/golden/house/record.py WHAT [--engines] [--only NAME] [--write]

Runs the product on `sys.path` (so `PYTHONPATH=CHECKOUT` records another checkout) and compares with
what stands in this folder, or writes it with --write. ``models``: the tensors of every config of
``configs/`` after its rounds, by messages, as stacked cohort and, with --engines, on two Ray
workers, Flower's simulation and a deployment. ``refusals`` and ``prices``: what
`manifed privacy statement` says of a config with one value overridden. MANIFED_RECORDED names
another folder with configs and recordings, as extras/tests/house.
"""

import argparse
import contextlib
import hashlib
import io
import json
import math
import os
import platform
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file

HOUSE = Path(__file__).resolve().parent
HERE = Path(os.environ.get("MANIFED_RECORDED", HOUSE))
"""Configs, and what was recorded of them; those of the plug-ins are in extras/tests/house."""
CONFIGS = {path.stem: path for path in sorted((HERE / "configs").glob("*.toml"))}
ENGINES = {
    "messages": ["engine.execution=messages"],
    "cohort": ["engine.execution=cohort"],
    "workers": ["engine.execution=cohort", "engine.workers=2", "engine.chunk_clients=2"],
    "ray": ["engine.kind=ray"],
    "deployment": ["engine.kind=deployment"],
}
QUICK = ("messages", "cohort")
ON_NODES = ("quickstart", "decor-ring", "rfedsvrg")
ALSO = {
    "workers": (*ON_NODES, "growing-cnn", "client-level"),
    "ray": ON_NODES,
    "deployment": ("quickstart", "decor-ring"),
}
"""Configs that are recorded on engines other than the quick ones."""
SHOWN = 64
"""Numbers of a tensor that are written; all of them enter its hash and its norm."""
ROUNDED = 1e-12
"""Relative difference where a numerical path was deleted."""
MOVED = {
    **dict.fromkeys(
        ("client-level", "completion", "completion-rfedsvrg", "control-variates", "growing-stiefel",
         "manifold-gossip", "projected", "rfedavg", "rfedprox", "rfedsvrg"),
        "products of frames that were fused, or multiplied by numpy (manifed/manifolds/linalg.py)",
    ),
    **dict.fromkeys(
        ("hyperbolic-mean", "hyperbolic-prediction"),
        "formulas of few points over numpy's arrays (manifed/manifolds/arrays.py)",
    ),
    **dict.fromkeys(
        ("median", "spd-frechet", "spd-rsvrg", "t2-spd"),
        "the exponential of many short SPD steps by a polynomial (manifed/manifolds/spd.py)",
    ),
    "nearest-mean": "logarithms in the eigenbasis of a point (manifed/manifolds/spd.py)",
    "stationary-decor": "draws of several rounds in one call (manifed/privacy/random_numbers.py)",
}  # fmt: skip
"""Configs whose last digits moved since they were recorded, and the path that was deleted."""
LOOSE = 1e-9
"""Relative difference between processors, for tensors recorded on another one."""
LOOSE_IN_FLOAT32 = {"growing-cnn": 1e-7}
"""The same for configs whose network computes in float32."""
LOOSE_PRICE = 1e-10
"""Relative difference of epsilons between processors."""


def machine():
    """The digits of sums depend on it."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.is_file() else []
    told = {line.split(":")[0].strip(): line.split(":")[1].strip() for line in lines if ":" in line}
    # processors of one name differ in the kernels that a library picks for them
    names = [told[key] for key in ("model name", "cpu family", "model", "stepping") if key in told]
    return f"{' '.join(names) or platform.processor()}, {torch.backends.cpu.get_cpu_capability()}"


def command(*arguments):
    """(exit code, standard output, standard error) of `manifed ...` in this process."""
    from manifed.cli.main import main

    out = io.StringIO()
    err = io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(list(arguments))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return code, out.getvalue(), err.getvalue()


def sets(values):
    """The options that override them."""
    return [part for value in values for part in ("--set", value)]


def model_of(name, engine):
    """Each tensor of a run's model: its hash, its norm, its first numbers."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/run"
        quiet = ["output.quiet=true", *ENGINES[engine]]
        extra = ["--insecure"] if engine == "deployment" else []
        code, _, err = command("run", str(CONFIGS[name]), "--out", out, *extra, *sets(quiet))
        if code:
            return {"exit code": code, "line": err.strip().splitlines()[-1]}
        return {
            key: {
                "shape": list(tensor.shape),
                "sha256": hashlib.sha256(tensor.tobytes()).hexdigest(),
                "norm": float(np.linalg.norm(tensor)).hex(),
                "first": [float(one).hex() for one in tensor.ravel()[:SHOWN]],
            }
            for key, tensor in sorted(load_file(f"{out}/model.safetensors").items())
        }


def models(engines, only):
    """By config and engine."""
    return {
        name: {
            engine: model_of(name, engine)
            for engine in engines
            if engine in QUICK or name in ALSO[engine]
        }
        for name in CONFIGS
        if not only or name in only
    }


def difference(before, now, ignored):
    """0 up to what is ignored, otherwise the greatest relative difference; inf for other shapes."""
    if before.keys() != now.keys() or "exit code" in before:
        return 0.0 if before == now else math.inf
    worst = 0.0
    for key, was in before.items():
        found = now[key]
        if was["shape"] != found["shape"]:
            return math.inf
        if was["sha256"] != found["sha256"]:
            pairs = zip([was["norm"], *was["first"]], [found["norm"], *found["first"]], strict=True)
            scale = max(float.fromhex(was["norm"]), 1e-300) / math.sqrt(len(was["first"]))
            gaps = [abs(float.fromhex(a) - float.fromhex(b)) / scale for a, b in pairs]
            worst = max(worst, *gaps, 1e-300)
    return worst if worst > ignored else 0.0


OVERRIDES = (HOUSE / "overrides.txt").read_text().splitlines()
"""One value each, over every config."""


def statement_of(name, override):
    """The prices of a config, or the line that refuses it."""
    arguments = ["privacy", "statement", str(CONFIGS[name]), "--json", *sets([override])]
    code, out, err = command(*arguments)
    if code:
        return {"exit code": code, "line": err.strip().splitlines()[-1] if err.strip() else ""}
    said = json.loads(out.strip().splitlines()[-1])
    found = [(one["name"], one["epsilon"], one["delta"]) for one in said["adversaries"]]
    prices = [[n, None if e is None else float(e).hex(), d] for n, e, d in found]
    return {"prices": prices, "mechanism": said.get("mechanism")}


def everything_said(only):
    """(refusals, prices), one pair of config and override for each that is new."""
    refusals = {}
    prices = {}
    lines = set()
    for name in CONFIGS:
        if only and name not in only:
            continue
        for override in OVERRIDES:
            said = statement_of(name, override)
            text = json.dumps(said)
            if text not in lines:
                lines.add(text)
                (refusals if "line" in said else prices)[f"{name} | {override}"] = said
    return refusals, prices


def said_again(recorded):
    """What is said now of each recorded pair of config and override."""
    return {pair: statement_of(*pair.split(" | ", 1)) for pair in recorded}


def read(kind):
    """A recording of this folder."""
    return json.loads((HERE / f"{kind}.json").read_text())


def write(kind, found, only):
    """Write a recording of this folder, one entry a line; other configs' stay where some are."""
    found = read(kind) | found if only else found
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items()]
    (HERE / f"{kind}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def same_price(before, now, within):
    """Whether every epsilon agrees, to a relative difference."""
    if before.get("mechanism") != now.get("mechanism"):
        return False
    pairs = list(zip(before["prices"], now["prices"], strict=False))
    return len(before["prices"]) == len(now["prices"]) and all(
        (a[0], a[2]) == (b[0], b[2]) and _close(a[1], b[1], within) for a, b in pairs
    )


def _close(a, b, within):
    if a is None or b is None:
        return a == b
    return math.isclose(float.fromhex(a), float.fromhex(b), rel_tol=within)


def main():
    """Write, or compare and say what differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["models", "refusals", "prices", "all"])
    parser.add_argument("--engines", action="store_true", help="Ray and a deployment, too")
    parser.add_argument("--only", action="append", default=[], help="this config; repeatable")
    parser.add_argument("--write", action="store_true", help="record instead of comparing")
    given = parser.parse_args()
    engines = list(ENGINES) if given.engines else list(QUICK)
    differ = []
    if given.what in ("models", "all"):
        found = models(engines, given.only)
        if given.write:
            write("models", {"machine": machine(), **found}, given.only)
        else:
            differ += differing_models(found)
    if given.what in ("refusals", "prices", "all"):
        if given.write:
            refusals, prices = everything_said(given.only)
            write("refusals", refusals, given.only)
            write("prices", prices, given.only)
        else:
            differ += differing_words(given.only, given.what)
    print(*differ, sep="\n")
    print(f"{len(differ)} differ")
    return bool(differ)


def differing_models(found):
    """A line for each that is no longer the same."""
    recorded = read("models")
    is_same_machine = recorded["machine"] == machine()
    return [
        f"model {name} {engine}: {gap:.1e} {now.get('line', '')}"
        for name, engines in found.items()
        for engine, now in engines.items()
        if (
            gap := difference(
                recorded[name][engine],
                now,
                0.0 if is_same_machine else LOOSE_IN_FLOAT32.get(name, LOOSE),
            )
        )
        > (ROUNDED if name in MOVED else 0.0)
    ]


def differing_words(only, what):
    """A line for each refusal and price that is no longer the same."""
    return [
        line
        for kind in ("refusals", "prices")
        if what in (kind, "all")
        for line in differing(
            {p: said for p, said in read(kind).items() if not only or p.split(" | ")[0] in only}
        )
    ]


def differing(recorded):
    """A line for each of these that is no longer said."""
    within = ROUNDED if read("models")["machine"] == machine() else LOOSE_PRICE
    return [
        f"{pair}\n    before {was}\n    now    {now}"
        for (pair, was), now in zip(recorded.items(), said_again(recorded).values(), strict=True)
        if not (was == now if "line" in now or "line" in was else same_price(was, now, within))
    ]


if __name__ == "__main__":
    sys.exit(main())
