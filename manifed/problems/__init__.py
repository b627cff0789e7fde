"""Losses, per-example Riemannian gradients and data, imported when they are asked for."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manifed.problems.class_means import ClassMeans
    from manifed.problems.examples import Examples
    from manifed.problems.frechet import FrechetMean, GeometricMedian, HyperbolicPrediction
    from manifed.problems.linear import LeastSquares, Logistic
    from manifed.problems.module_problem import ModuleProblem
    from manifed.problems.pca import KPCA, PrincipalEigenvector
    from manifed.problems.problem import Problem

__all__ = [
    "KPCA",
    "ClassMeans",
    "Examples",
    "FrechetMean",
    "GeometricMedian",
    "HyperbolicPrediction",
    "LeastSquares",
    "Logistic",
    "ModuleProblem",
    "PrincipalEigenvector",
    "Problem",
]

_HOME = {
    "ClassMeans": "class_means",
    "Examples": "examples",
    "ModuleProblem": "module_problem",
    "Problem": "problem",
    **dict.fromkeys(("FrechetMean", "GeometricMedian", "HyperbolicPrediction"), "frechet"),
    **dict.fromkeys(("LeastSquares", "Logistic"), "linear"),
    **dict.fromkeys(("KPCA", "PrincipalEigenvector"), "pca"),
}


def __getattr__(name: str) -> object:
    """Imports a problem when it is asked for (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """The names that are imported when they are asked for."""
    return __all__
