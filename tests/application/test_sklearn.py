"""Estimators of scikit-learn: its own checks, bounds that hold, and what a fit promises."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from manifed.errors import ConfigError
from manifed.sklearn import PrivateLogisticRegression, PrivateMDM, PrivatePCA, PrivateRidge

ROWS = (PrivateLogisticRegression, PrivateRidge, PrivatePCA)
TWICE = (
    "check_classifier_data_not_an_array", "check_regressor_data_not_an_array",
    "check_supervised_y_2d", "check_fit_idempotent", "check_regressors_int",
    "check_transformer_data_not_an_array", "check_transformer_general",
)  # fmt: skip
"""Checks that compare two fits, which differ where each is a release."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ROWS)
def test_scikit_learn_finds_nothing_where_noise_is_drawn_from_a_seed(kind):
    check_estimator(kind(noise_source="seed"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ROWS)
def test_scikit_learn_finds_of_a_release_only_that_two_differ(kind):
    check_estimator(kind(), expected_failed_checks=dict.fromkeys(TWICE, "two releases differ"))


def cancer():
    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x = ((x - x.mean(0)) / x.std(0))[order]
    return x, y[order]


def covariances(count, seed):
    rng = np.random.default_rng(seed)
    side = rng.integers(0, 2, count)
    gain = np.ones((count, 4))
    gain[np.arange(count), side] = 2.5
    x = gain[:, :, None] * rng.standard_normal((count, 4, 64))
    return x @ x.swapaxes(1, 2) / 64, np.array(["left", "right"])[side]


def test_a_classifier_learns_across_sites_and_says_what_it_costs():
    x, y = cancer()
    model = PrivateLogisticRegression(epsilon=2.0, row_norm=8.0)
    model.fit(x[:400], y[:400], sites=np.arange(400) % 4)
    assert model.score(x[400:], y[400:]) > 0.85
    assert 1.9 < model.epsilon_ <= 2.0
    assert "RELEASE" in model.statement_
    assert "unit: one example" in model.statement_
    shown = model.predict_proba(x[400:])
    assert np.allclose(shown.sum(1), 1)
    assert ((shown[:, 1] > 0.5) == model.predict(x[400:])).all()


def test_two_releases_differ_and_a_rehearsal_repeats():
    x, y = cancer()
    release = PrivateLogisticRegression(row_norm=8.0)
    first = release.fit(x, y).coef_
    assert not np.array_equal(first, clone(release).fit(x, y).coef_)
    rehearsal = PrivateLogisticRegression(row_norm=8.0, noise_source="seed")
    assert np.array_equal(rehearsal.fit(x, y).coef_, clone(rehearsal).fit(x, y).coef_)


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_a_row_beyond_the_bound_is_the_row_at_the_bound(scale):
    x, y = cancer()
    at_bound = 8.0 * x / np.linalg.norm(x, axis=1, keepdims=True)
    model = PrivateLogisticRegression(row_norm=8.0, noise_source="seed")
    near, far = (clone(model).fit(z, y) for z in (at_bound, scale * 1.5 * at_bound))
    assert np.allclose(near.coef_, far.coef_, rtol=1e-9)
    assert np.allclose(near.decision_function(at_bound), near.decision_function(2 * at_bound))


def test_a_regression_and_components_are_on_the_scale_of_the_data():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(3000, 3)) * [5.0, 1.0, 1.0]
    y = 2.0 * x[:, 0] - x[:, 1] + rng.normal(size=3000)
    ridge = PrivateRidge(epsilon=8.0, row_norm=20.0, target_norm=40.0).fit(x, y)
    assert ridge.score(x, y) > 0.9
    centre = np.array([1.0, 0.0, 0.0])
    found = PrivatePCA(epsilon=8.0, row_norm=20.0, centre=centre).fit(x + centre)
    assert abs(found.components_[0, 0]) > 0.99
    rebuilt = found.inverse_transform(found.transform(x + centre))
    assert np.abs(rebuilt - x - centre)[:, 0].mean() < 0.3


def test_matrices_are_classified_by_persons_in_a_pipeline():
    z, side = covariances(400, 0)
    persons = np.arange(400) // 4
    model = PrivateMDM(epsilon=2.0, rows_per_person=4)
    pipe = make_pipeline(FunctionTransformer(validate=False), model)
    pipe.fit(z, side, privatemdm__persons=persons, privatemdm__sites=persons % 2)
    assert pipe.score(*covariances(300, 1)) > 0.9
    assert "unit: one person" in model.statement_


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        (PrivateLogisticRegression(), {"sites": [0, 1]}, "sites: expected one for each of 569"),
        (PrivateLogisticRegression(), {"persons": range(569)}, "persons= and rows_per_person="),
        (PrivateLogisticRegression(classes=[0, 2]), {}, "Expected labels of two classes"),
        (PrivateLogisticRegression(delta=0.5), {}, "delta"),
        (PrivateLogisticRegression(rows_per_person=2),
         {"persons": [0] * 569, "sites": np.arange(569) % 2}, "sites_per_person"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(model, more, said):
    x, y = cancer()
    with pytest.raises((ValueError, ConfigError), match=said):
        model.fit(x, y, **more)
