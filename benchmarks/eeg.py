"""Classes of EEG covariance matrices at three sites, beside pyriemann without privacy.

    pip install "manifed[peers]"
    python -m benchmarks.eeg --out benchmarks/results
    pip install moabb; python -m benchmarks.eeg --moabb BNCI2014_001

Simulated: three sites have 40 persons each, with ten windows a person. `make_gaussian_blobs` of
pyriemann draws two classes of 4 x 4 matrices; each site and each person moves all of theirs by a
congruence A C A^T with A near the identity, as electrodes and sessions do. The test set has 20
other persons a site. ``--moabb`` takes two classes of motor imagery of a data set of MOABB that
this machine holds or can load: a person is a subject, subjects are dealt to three sites, windows
are `Covariances("oas")` of trials, and the last session of each is the test set.

pyriemann's MDM and its tangent space with logistic regression see all windows in one place. The
private estimators see each site's own, and protect each window, or each person with all windows;
spread 3 is a public bound. "recentred" is `PrivateTangentSpace` at a private mean of each site and
`PrivateLogisticRegression` on its vectors, with half of epsilon each. Means and standard errors
over seeds, in percent of test windows.
"""

import importlib
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from benchmarks.common.page import Page
from benchmarks.common.stopwatch import circumstances, table
from manifed.sklearn import PrivateLogisticRegression, PrivateMDM, PrivateTangentSpace

SITES, PERSONS, OTHERS, WINDOWS, SIZE = 3, 40, 20, 10, 4
EPSILONS = (0.5, 1.0, 2.0, 8.0)
_Array = NDArray[Any]


@dataclass(frozen=True)
class Windows:
    """Matrices (n, m, m), and the class, the site and the person of each; some are for the test."""

    z: _Array
    label: _Array
    site: _Array
    person: _Array
    is_train: _Array


def simulated(seed: int) -> Windows:
    """Returns windows of three sites; the last persons are for the test."""
    datasets = importlib.import_module("pyriemann.datasets")
    rng = np.random.default_rng(seed)
    each = SITES * (PERSONS + OTHERS)
    z, label = datasets.make_gaussian_blobs(
        n_matrices=each * WINDOWS // 2, n_dim=SIZE, class_sep=1.0, class_disp=0.7,
        random_state=seed, n_jobs=1,
    )  # fmt: skip
    order = rng.permutation(len(z))
    person = np.arange(len(z)) // WINDOWS
    site = person % SITES
    moves = np.eye(SIZE) + 0.15 * rng.standard_normal((SITES, SIZE, SIZE))
    own = np.eye(SIZE) + 0.1 * rng.standard_normal((each, SIZE, SIZE))
    a = own[person] @ moves[site]
    z = a @ z[order] @ a.swapaxes(1, 2)
    return Windows(z, label[order], site, person, person < SITES * PERSONS)


def recorded(name: str, seed: int) -> Windows:
    """Returns windows of a data set of MOABB; a seed deals its subjects to sites."""
    windows = loaded(name)
    dealt = np.random.default_rng(seed).permutation(windows.person.max() + 1) % SITES
    return replace(windows, site=dealt[windows.person])


@cache
def loaded(name: str) -> Windows:
    """Returns windows of a data set of MOABB at one site.

    The unit is a public constant of the amplifier: here the median trace over the test windows.
    """
    covariances = importlib.import_module("pyriemann.estimation").Covariances("oas")
    paradigm = importlib.import_module("moabb.paradigms").LeftRightImagery()
    data = getattr(importlib.import_module("moabb.datasets"), name)()
    signals, label, of = paradigm.get_data(data, data.subject_list)
    z = covariances.transform(np.asarray(signals, float))
    person = np.unique(of["subject"], return_inverse=True)[1]
    is_train = np.asarray(of["session"] != of.groupby("subject")["session"].transform("max"))
    z /= np.median(np.trace(z[~is_train], axis1=1, axis2=2)) / z.shape[1]
    return Windows(z, np.asarray(label), np.zeros_like(person), person, is_train)


def measured(w: Windows) -> dict[str, float]:
    """Returns the share of test windows that each method gets right, in percent."""
    riemann = importlib.import_module("pyriemann.classification")
    tangent = importlib.import_module("pyriemann.tangentspace")
    is_train = w.is_train
    z, label = w.z[is_train], w.label[is_train]
    z_test, label_test = w.z[~is_train], w.label[~is_train]
    lines = make_pipeline(tangent.TangentSpace(), LogisticRegression())
    found = {
        "pyriemann MDM": riemann.MDM().fit(z, label).score(z_test, label_test),
        "pyriemann tangent space": lines.fit(z, label).score(z_test, label_test),
    }
    for epsilon in EPSILONS:
        for unit in ("window", "person"):
            of: dict[str, Any] = {"sites": w.site[is_train]}
            rows = None
            if unit == "person":
                of["persons"] = w.person[is_train]
                rows = int(np.bincount(of["persons"]).max())
            mdm = PrivateMDM(epsilon=epsilon, classes=np.unique(w.label), rows_per_person=rows)
            half = {"epsilon": epsilon / 2, "delta": mdm.delta / 2, "rows_per_person": rows}
            space = PrivateTangentSpace(**half)
            linear = PrivateLogisticRegression(**half, row_norm=3.0, classes=mdm.classes)
            flat = space.fit_transform(z, groups=of["sites"], **of)
            flat_test = space.transform(z_test, groups=w.site[~is_train])
            name = f"{unit}, epsilon {epsilon:g}"
            found[f"private MDM, {name}"] = mdm.fit(z, label, **of).score(z_test, label_test)
            linear.fit(flat, label, **of)
            found[f"private recentred, {name}"] = linear.score(flat_test, label_test)
    return {name: 100 * share for name, share in found.items()}


def main() -> None:
    """Prints the table; --out writes eeg.md."""
    page = Page(__doc__, "eeg.md", seeds=20)
    page.parser.add_argument("--moabb", help="a data set of moabb.datasets, as BNCI2014_001")
    given = page.parser.parse_args()
    draw = partial(recorded, given.moabb) if given.moabb else simulated
    runs = [measured(draw(seed)) for seed in range(given.seeds)]
    title = f"EEG at three sites: {given.moabb or 'simulated'}, {given.seeds} seeds"
    page.say(f"# {title}\n\n{circumstances()}\n")
    lines = []
    for name in runs[0]:
        found = [run[name] for run in runs]
        error = np.std(found) / max(len(found) - 1, 1) ** 0.5
        lines.append([name, f"{np.mean(found):.1f} ± {error:.1f}"])
    page.say(table(["method", "accuracy %"], lines))
    page.save(given, lines)


if __name__ == "__main__":
    main()
