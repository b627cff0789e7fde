"""Estimators of scikit-learn that are trained across sites with differential privacy.

    from manifed.sklearn import PrivateLogisticRegression
    model = PrivateLogisticRegression(epsilon=2.0, delta=1e-5).fit(X, y, sites=clinic)
    model.predict(X_new), model.epsilon_, print(model.statement_)

``sites`` names the site of each row. Each site adds its own noise, so no site needs to trust
another. The method is the one that ``manifed plan`` chooses. What stands in the constructor is
public: choose bounds from domain knowledge and never from the data. Rows beyond a bound are moved
inside it.
"""

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from manifed.experiment.load import parse
from manifed.manifolds.linalg import LOG, expm, packed, sym_function
from manifed.manifolds.spd import SPD
from manifed.problems.class_means import ClassMeans
from manifed.problems.file_points import directions
from manifed.runs.fit import fit_as_planned

_Array = NDArray[Any]
_named = dataclass(kw_only=True, eq=False, repr=False)


def _inside(x: _Array, bound: float) -> _Array:
    """Rows over the bound of their length; longer ones are scaled down to it."""
    unit, length = directions(x)
    return np.where(length[:, None] > bound, unit, x / bound)


def _each(name: str, given: Any, count: int) -> _Array:
    """What an argument gives each of so many rows; without it all have 0.

    Raises:
        ValueError: not one for each.
    """
    given = np.zeros(count, int) if given is None else np.asarray(given)
    if given.shape != (count,):
        raise ValueError(f"{name}: expected one for each of {count} rows")
    return given


@_named
class _Private(BaseEstimator):
    """Base of the private estimators: bounds, the plan, and what a fit promises."""

    epsilon: float = 1.0
    delta: float = 1e-5
    rows_per_person: int | None = None
    noise_source: str = "os"

    def __sklearn_tags__(self) -> Any:
        """A release is random, so two of them differ."""
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.noise_source == "os"
        return tags

    def _read(self, x: Any, *y: Any, **rules: Any) -> Any:
        """What scikit-learn makes of the arguments of a method."""
        return validate_data(self, x, *y, dtype=np.float64, **rules)

    def _train(
        self,
        problem: dict[str, Any],
        examples: str,
        clip: float,
        columns: dict[str, _Array],
        sites: Any,
        persons: Any,
    ) -> _Array:
        """Trains across the sites; returns the model, and keeps ``epsilon_`` and ``statement_``."""
        first, *_ = columns.values()
        count, shape = len(first), first.shape[1:]
        of_site = _each("sites", sites, count)
        is_person = self.rows_per_person is not None
        if is_person != (persons is not None):
            raise ValueError("Expected persons= and rows_per_person= together, got one of them")
        if is_person:
            columns = {**columns, "person": _each("persons", persons, count)}
        shards = [
            {name: column[of_site == site] for name, column in columns.items()}
            for site in np.unique(of_site)
        ]
        key = "person" if is_person else next(iter(columns))
        sizes = [len(np.unique(one[key]) if is_person else one[key]) for one in shards]
        data = {"kind": "file", "examples": examples, "shape": [*shape]}
        if len(columns) > 1 + is_person:
            data["label"] = "y"
            if examples != "regression":
                data["classes"] = [*range(problem.get("num_classes", 2))]
        if is_person:
            data |= {"person": "person", "rows_per_person": self.rows_per_person}
        plan = parse(
            {
                "name": "sklearn",
                "problem": problem,
                "data": data,
                "federation": {"num_clients": len(shards), "num_examples": sizes},
                "training": {"kind": "auto"},
                "privacy": {
                    "kind": "example-level",
                    "unit": "person" if is_person else "example",
                    "l2_norm_clip": clip,
                    "epsilon": self.epsilon,
                    "delta": self.delta,
                    "noise_source": self.noise_source,
                },
                "evaluation": {"is_enabled": False},
            }
        )
        found = fit_as_planned(plan, shards)
        self.statement_ = found.text
        self.epsilon_ = found.statement["adversaries"][0]["epsilon"]
        return found.model.numpy()


@_named
class _OfRows(_Private):
    """Base of the linear models of rows, whose length is bounded."""

    row_norm: float = 1.0
    fit_intercept: bool = True

    def _columns(self, x: _Array) -> _Array:
        """What a model is trained on: rows of length 1 at most, and a constant 1 if asked."""
        return np.hstack([_inside(x, self.row_norm), np.ones((len(x), int(self.fit_intercept)))])

    def _rows(self, x: Any) -> _Array:
        """Rows to be scored, longer ones scaled down to the bound."""
        check_is_fitted(self)
        return _inside(self._read(x, reset=False), self.row_norm) * self.row_norm


@_named
class PrivateLogisticRegression(ClassifierMixin, _OfRows):
    """Logistic regression of two classes, private for each row or each person.

    Args:
        epsilon, delta: what the whole fit may cost each of them, at every site.
        row_norm: public bound of a row's length; longer rows are scaled down to it.
        classes: the public pair of classes; None takes it from ``y``, which publishes it.
        fit_intercept: whether a constant stands beside each row.
        rows_per_person: how many rows of one person count; None: rows are protected.
        noise_source: "os" for a release, "seed" for a rehearsal without protection.
    """

    classes: Any = None

    def __sklearn_tags__(self) -> Any:
        """Two classes, and no accuracy is promised."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.poor_score = True
        return tags

    def fit(self, X: Any, y: Any, *, sites: Any = None, persons: Any = None) -> Self:
        """Trains on rows (n, d) and labels (n,); ``sites`` and ``persons`` name those of each."""
        x, y = self._read(X, y)
        check_classification_targets(y)
        kind = type_of_target(y, input_name="y", raise_unknown=True)
        if kind != "binary":
            raise ValueError(
                f"Only binary classification is supported. The type of the target is {kind}."
            )
        self.classes_ = np.unique(y if self.classes is None else self.classes)
        if len(self.classes_) != 2 or not np.isin(y, self.classes_).all():
            raise ValueError(f"Expected labels of two classes, got {len(self.classes_)} class")
        columns = {
            "feature": self._columns(x),
            "label": np.where(y == self.classes_[1], 1.0, -1.0),
        }
        clip = math.sqrt(1.0 + self.fit_intercept)
        w = self._train({"kind": "logistic"}, "classification", clip, columns, sites, persons)
        self.coef_ = w[None, : x.shape[1]] / self.row_norm
        self.intercept_ = w[x.shape[1] :] if self.fit_intercept else np.zeros(1)
        return self

    def decision_function(self, X: Any) -> _Array:
        """Scores (n,): positive for the second class."""
        return self._rows(X) @ self.coef_[0] + self.intercept_[0]

    def predict_proba(self, X: Any) -> _Array:
        """Probabilities (n, 2) of both classes."""
        p = 1 / (1 + np.exp(-np.clip(self.decision_function(X), -700, 700)))
        return np.stack([1 - p, p], axis=1)

    def predict(self, X: Any) -> _Array:
        """The class of each row."""
        is_second = self.decision_function(X) > 0
        return self.classes_[is_second.astype(int)]


@_named
class PrivateRidge(RegressorMixin, _OfRows):
    """Linear regression, private for each row or each person; arguments as of the logistic one.

    Args:
        target_norm: public bound of |y|; larger targets are moved to it.
        alpha: weight of |w|^2 / 2 beside the mean squared error / 2, of scaled rows.
    """

    target_norm: float = 1.0
    alpha: float = 0.0

    def __sklearn_tags__(self) -> Any:
        """No accuracy is promised."""
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags

    def fit(self, X: Any, y: Any, *, sites: Any = None, persons: Any = None) -> Self:
        """Trains on rows (n, d) and targets (n,); ``sites`` and ``persons`` name those of each."""
        x, y = self._read(X, y, y_numeric=True)
        bound = self.target_norm
        columns = {"feature": self._columns(x), "target": np.clip(y, -bound, bound) / bound}
        problem = {"kind": "least-squares", "ridge": self.alpha, "start": {"kind": "origin"}}
        clip = 2 * math.sqrt(1.0 + self.fit_intercept)
        w = bound * self._train(problem, "regression", clip, columns, sites, persons)
        self.coef_ = w[: x.shape[1]] / self.row_norm
        self.intercept_ = float(w[-1]) if self.fit_intercept else 0.0
        return self

    def predict(self, X: Any) -> _Array:
        """Predicted targets (n,)."""
        return self._rows(X) @ self.coef_ + self.intercept_


@_named
class _OfMatrices(_Private):
    """Base of the estimators on SPD matrices, whose spread is bounded."""

    spread: float = 3.0

    def __sklearn_tags__(self) -> Any:
        """Matrices, and no rows."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        return tags

    def _matrices(self, x: Any) -> torch.Tensor:
        """Matrices of which something is asked once there is a mean."""
        check_is_fitted(self)
        return torch.from_numpy(self._read(x, allow_nd=True, reset=False))


@_named
class PrivateMDM(ClassifierMixin, _OfMatrices):
    """Classes of SPD matrices (n, m, m) by the nearest private Fréchet mean.

    As pyriemann's ``MDM``, and after its ``Covariances`` in a pipeline. All means together cost
    what one mean costs.

    Args:
        spread: public bound of the affine-invariant distance of a matrix from where means may be;
            it bounds what one matrix moves.
        classes: the public classes; None takes them from ``y``, which publishes them.
    """

    classes: Any = None

    def fit(self, X: Any, y: Any, *, sites: Any = None, persons: Any = None) -> Self:
        """Trains on matrices (n, m, m) and labels (n,); ``sites`` and ``persons`` name theirs."""
        x, y = self._read(X, y, allow_nd=True)
        self.classes_ = np.unique(y if self.classes is None else self.classes)
        if len(self.classes_) < 2 or not np.isin(y, self.classes_).all():
            raise ValueError(f"Expected labels of two classes or more, got {len(self.classes_)}")
        columns = {"z": x, "label": np.searchsorted(self.classes_, y).astype(float)}
        problem = {"kind": "nearest-mean", "num_classes": len(self.classes_)}
        self.means_ = self._train(problem, "spd-matrices", 2 * self.spread, columns, sites, persons)
        return self

    def predict(self, X: Any) -> _Array:
        """The class of each matrix."""
        x = self._matrices(X)
        nearest = ClassMeans(SPD(), len(self.classes_)).predict(torch.from_numpy(self.means_), x)
        return self.classes_[nearest.numpy()]


@_named
class PrivateTangentSpace(TransformerMixin, _OfMatrices):
    """SPD matrices (n, m, m) as vectors (n, m (m + 1) / 2) in the tangent space at a private mean.

    As pyriemann's ``TangentSpace``. With ``groups=``, each laboratory or session has a mean of its
    own, so that its vectors are about its own centre (recentring). A row is in one group, and so
    must a person be: all means together cost what the dearest costs.

    Args:
        spread: public bound of the affine-invariant distance of a matrix from where means may be.
    """

    def fit(
        self, X: Any, y: Any = None, *, sites: Any = None, persons: Any = None, groups: Any = None
    ) -> Self:
        """Trains on matrices; ``sites``, ``persons`` and ``groups`` name those of each.

        Attributes ``means_`` (one a group), ``epsilon_`` and ``statement_`` are set.
        """
        x = self._read(X, allow_nd=True)
        sites, groups = _each("sites", sites, len(x)), _each("groups", groups, len(x))
        if persons is not None:
            persons = _each("persons", persons, len(x))
            pairs = {*zip(persons, groups, strict=True)}
            if len(pairs) > len({person for person, _ in pairs}):
                raise ValueError("groups: expected all rows of a person in one group")
        problem = {"kind": "frechet-mean", "manifold": "spd", "start": {"kind": "origin"}}
        means, spent, said = {}, [], []
        for group in np.unique(groups):
            is_in = groups == group
            of = persons if persons is None else persons[is_in]
            means[group] = torch.from_numpy(
                self._train(
                    problem, "spd-matrices", 2 * self.spread, {"z": x[is_in]}, sites[is_in], of
                )
            )
            spent.append(self.epsilon_)
            said.append(f"Group {group}\n{self.statement_}")
        self.means_, self.epsilon_, self.statement_ = means, max(spent), "\n".join(said)
        return self

    def fit_transform(self, X: Any, y: Any = None, **named: Any) -> _Array:
        """`fit`, then `transform` of the same matrices in the same groups."""
        return self.fit(X, y, **named).transform(X, groups=named.get("groups"))

    def transform(self, X: Any, *, groups: Any = None) -> _Array:
        """Coordinates of log(M^-1/2 C M^-1/2), C at the mean M of its group."""
        x = self._matrices(X)
        root = {name: expm(sym_function(mean, LOG) / -2) for name, mean in self.means_.items()}
        names = _each("groups", groups, len(x))
        if unknown := {*names} - {*root}:
            known, got = (", ".join(map(str, some)) for some in (root, unknown))
            raise ValueError(f"groups: expected some of {known}; got {got}")
        of_each = torch.stack([root[name] for name in names])
        return packed(sym_function(of_each @ x @ of_each, LOG)).numpy()


@_named
class PrivatePCA(TransformerMixin, _Private):
    """Principal components about a public centre, private for each row or each person.

    Args:
        n_components: how many; at most the number of columns.
        row_norm: public bound of the length of a row less the centre.
        centre: public point that is subtracted from each row, a number or one for each column.
    """

    n_components: int = 1
    row_norm: float = 1.0
    centre: Any = 0.0

    def fit(self, X: Any, y: Any = None, *, sites: Any = None, persons: Any = None) -> Self:
        """Trains on rows (n, d); ``sites`` and ``persons`` name those of each."""
        x = self._read(X)
        if x.shape[1] < 2 or not 1 <= self.n_components <= x.shape[1]:
            raise ValueError(
                "Expected at least 2 features and 1 <= n_components <= their number, got "
                f"n_features = {x.shape[1]}, n_components = {self.n_components}"
            )
        columns = {"z": _inside(x - self.centre, self.row_norm)}
        problem = {"kind": "kpca", "num_components": self.n_components}
        self.components_ = self._train(problem, "rows", 1.0, columns, sites, persons).T
        return self

    def transform(self, X: Any) -> _Array:
        """Coordinates (n, n_components) of rows less the centre."""
        check_is_fitted(self)
        return (self._read(X, reset=False) - self.centre) @ self.components_.T

    def inverse_transform(self, X: Any) -> _Array:
        """The rows (n, d) that these coordinates describe."""
        return np.asarray(X) @ self.components_ + self.centre
