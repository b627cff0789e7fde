"""Estimators of scikit-learn: its own checks, bounds that hold, and what a fit promises."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from manifed.errors import ConfigError
from manifed.sklearn import (
    PrivateLogisticRegression,
    PrivateMDM,
    PrivatePCA,
    PrivateRidge,
    PrivateTangentSpace,
)

ROWS = (PrivateLogisticRegression, PrivateRidge, PrivatePCA)
TWICE = (
    "check_classifier_data_not_an_array", "check_regressor_data_not_an_array",
    "check_supervised_y_2d", "check_fit_idempotent", "check_regressors_int",
    "check_transformer_data_not_an_array", "check_transformer_general",
)  # fmt: skip
"""Checks that compare two fits, which differ where each is a release."""


@pytest.mark.slow
@pytest.mark.one_week_in(3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ROWS)
def test_scikit_learn_finds_nothing_where_noise_is_drawn_from_a_seed(kind):
    check_estimator(kind(noise_source="seed"))


@pytest.mark.slow
@pytest.mark.one_week_in(3)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_finds_of_a_release_only_that_two_differ():
    check_estimator(
        PrivateRidge(), expected_failed_checks=dict.fromkeys(TWICE, "two releases differ")
    )


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


def power(x, function):
    w, v = np.linalg.eigh(x)
    return (v * function(w)[..., None, :]) @ v.swapaxes(-1, -2)


def test_tangent_vectors_are_logarithms_at_the_private_mean_of_their_group():
    z, _ = covariances(600, 0)
    session = np.array(["first", "second"])[np.arange(600) // 300]
    shift = np.diag([1.0, 3.0, 0.5, 2.0])
    z[300:] = shift @ z[300:] @ shift
    model = PrivateTangentSpace(epsilon=4.0)
    found = model.fit_transform(z, groups=session, sites=np.arange(600) % 2)
    i, j = np.triu_indices(4)
    for name, mean in model.means_.items():
        root = power(mean.numpy(), lambda w: w**-0.5)
        log = power(root @ z[session == name] @ root, np.log)[:, i, j]
        expected = log * np.where(i == j, 1.0, 2**0.5)
        assert np.abs(found[session == name] - expected).max() < 1e-12
    apart = [np.linalg.norm(found[session == name].mean(0)) for name in model.means_]
    assert max(apart) < 0.5, "each session about its own centre"
    assert np.linalg.norm(PrivateTangentSpace(epsilon=4.0).fit_transform(z)[300:].mean(0)) > 1
    assert 3.9 < model.epsilon_ <= 4.0, "a row is in one group"
    assert model.statement_.count("unit: one example") == 2


def test_a_mean_of_too_few_persons_is_a_matrix_however_loud_the_noise():
    z, _ = covariances(80, 0)
    persons = np.arange(80) // 40
    for _ in range(3):
        model = PrivateTangentSpace(epsilon=0.2, rows_per_person=40).fit(z, persons=persons)
        assert np.isfinite(model.transform(z)).all()


def test_groups_that_share_a_person_or_are_unknown_are_refused():
    z, _ = covariances(40, 0)
    model = PrivateTangentSpace(rows_per_person=4)
    groups = np.arange(40) % 2
    with pytest.raises(ValueError, match="groups: expected all rows of a person in one group"):
        model.fit(z, persons=np.arange(40) // 4, groups=groups)
    with pytest.raises(ValueError, match="sites: expected one for each of 40 rows"):
        model.fit(z, persons=np.arange(40) // 4, sites=[0])
    assert not hasattr(model, "epsilon_")
    model.fit(z, persons=np.arange(40) % 10, groups=groups)
    with pytest.raises(ValueError, match="groups: expected some of 0, 1; got 2"):
        model.transform(z, groups=np.full(40, 2))
    with pytest.raises(ValueError, match="groups: expected one for each of 40 rows"):
        model.transform(z, groups=[0])


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
