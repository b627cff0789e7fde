"""Growing samples on an engine, and the plain loop that it must be."""

import numpy as np

from manifed.cli.launch import Request, launch
from manifed.experiment.load import to_toml
from manifed.runs import checkpoint
from tests.algorithms import test_growing_samples as plain


def largest_gap(engine, nodes, case, folder, monkeypatch, rounds=plain.ROUNDS):
    """Between what the nodes showed last, in the run's checkpoint, and the plain loop's."""
    monkeypatch.setattr(plain, "NODES", nodes)
    config = plain.experiment(case, rounds)
    path = folder / "growing.toml"
    path.write_text(to_toml(config))
    is_insecure = engine == "deployment"  # keys are tested elsewhere, and cost 2 s of CPU a node
    ran = launch(
        Request(
            str(path), (), engine, folder / engine, plain=True,
            is_insecure=is_insecure,
        )
    )  # fmt: skip
    shown = checkpoint.load(ran.checkpoint_path).tensors["x"].numpy()
    assert shown.shape == (nodes, 4)
    expected = plain.shown_in_numpy(config)
    assert np.abs(expected - expected.mean(0)).max() > 1e-3
    return np.abs(shown - expected).max()
