"""Data at home, as small as can be: rows in a .npy file each."""

import numpy as np

from manifed.experiment.load import parse

SIZES = (12, 9, 15)


def rows(count, seed):
    """Unit rows, the first ones alike for any count."""
    drawn = np.random.default_rng(seed).normal(size=(40, 4))[:count]
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def write(folder, sizes=SIZES):
    """One file a site."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, size in enumerate(sizes):
        np.save(folder / f"site-{i}.npy", rows(size, i))
    return tuple(folder / f"site-{i}.npy" for i in range(len(sizes)))


def config_of(sizes=SIZES, paths=(), **parts):
    """A private principal component over three sites."""
    table = {
        "name": "sites",
        "problem": {"kind": "principal-eigenvector"},
        "data": {"kind": "file", "examples": "rows", "shape": [4], "paths": list(map(str, paths))},
        "federation": {"num_clients": 3, "num_rounds": 2, "seed": 5},
        "training": {
            "kind": "rsgd", "step_size": 0.2, "local_steps": 2, "minibatch": {"kind": "full"},
        },
        "privacy": {
            "kind": "example-level", "l2_norm_clip": 1.0, "delta": 1e-3,
            "noise": {"kind": "multiplier", "noise_multiplier": 2.0},
        },
        "output": {"quiet": True},
    }  # fmt: skip
    if sizes is not None:
        table["federation"]["num_examples"] = list(sizes)
    for name, part in parts.items():
        table[name] = table.get(name, {}) | part
    return parse(table)
