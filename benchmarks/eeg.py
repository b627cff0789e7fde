"""Classes of simulated EEG covariance matrices at three sites, beside pyriemann without privacy.

    pip install "manifed[peers]"
    python -m benchmarks.eeg --out benchmarks/results

Three sites have 40 persons each, with ten windows a person. `make_gaussian_blobs` of pyriemann
draws two classes of 4 x 4 matrices; each site and each person moves all of theirs by a congruence
A C A^T with A near the identity, as electrodes and sessions do. The test set has 20 other persons a
site. pyriemann's MDM and its tangent space with logistic regression see all windows in one place.
`PrivateMDM` sees each site's own, and protects each window, or each person with all ten; spread 3
is a public bound. Means and standard errors over seeds, in percent of test windows.
"""

import argparse
import importlib
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from manifed.sklearn import PrivateMDM

SITES, PERSONS, OTHERS, WINDOWS, SIZE = 3, 40, 20, 10, 4
EPSILONS = (0.5, 1.0, 2.0, 8.0)
_Array = NDArray[Any]


def drawn(seed: int) -> tuple[_Array, _Array, _Array, _Array]:
    """Returns matrices (n, m, m), classes, sites and persons; the last persons are for the test."""
    datasets = importlib.import_module("pyriemann.datasets")
    rng = np.random.default_rng(seed)
    each = SITES * (PERSONS + OTHERS)
    z, label = datasets.make_gaussian_blobs(
        n_matrices=each * WINDOWS // 2, n_dim=SIZE, class_sep=1.0, class_disp=0.7,
        random_state=seed, n_jobs=1,
    )  # fmt: skip
    order = rng.permutation(len(z))
    z, label = z[order], label[order]
    person = np.arange(len(z)) // WINDOWS
    site = person % SITES
    moves = np.eye(SIZE) + 0.15 * rng.standard_normal((SITES, SIZE, SIZE))
    own = np.eye(SIZE) + 0.1 * rng.standard_normal((each, SIZE, SIZE))
    a = own[person] @ moves[site]
    return a @ z @ a.swapaxes(1, 2), label, site, person


def measured(seed: int) -> dict[str, float]:
    """Returns the share of test windows that each method gets right, in percent."""
    riemann = importlib.import_module("pyriemann.classification")
    tangent = importlib.import_module("pyriemann.tangentspace")
    z, label, site, person = drawn(seed)
    is_train = person < SITES * PERSONS
    z_test, label_test = z[~is_train], label[~is_train]
    z, label, site, person = (one[is_train] for one in (z, label, site, person))
    lines = make_pipeline(tangent.TangentSpace(), LogisticRegression())
    found = {
        "pyriemann MDM": riemann.MDM().fit(z, label).score(z_test, label_test),
        "pyriemann tangent space": lines.fit(z, label).score(z_test, label_test),
    }
    for epsilon in EPSILONS:
        for unit in ("window", "person"):
            rows, persons = (WINDOWS, person) if unit == "person" else (None, None)
            model = PrivateMDM(epsilon=epsilon, classes=[0, 1], rows_per_person=rows)
            model.fit(z, label, sites=site, persons=persons)
            name = f"private, {unit}, epsilon {epsilon:g}"
            found[name] = model.score(z_test, label_test)
    return {name: 100 * share for name, share in found.items()}


def main() -> None:
    """Prints the table, or writes it as eeg.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    runs = [measured(seed) for seed in range(given.seeds)]
    lines = ["| method | accuracy % |", "|---|--:|"]
    for name in runs[0]:
        found = [run[name] for run in runs]
        error = stdev(found) / len(found) ** 0.5
        lines.append(f"| {name} | {mean(found):.1f} ± {error:.1f} |")
    text = "\n".join([f"# Simulated EEG at three sites, {given.seeds} seeds", "", *lines, ""])
    print(text)
    if given.out:
        (given.out / "eeg.md").write_text(text)


if __name__ == "__main__":
    main()
