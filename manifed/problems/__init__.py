"""Losses, per-example Riemannian gradients and data, imported when they are asked for."""

from typing import TYPE_CHECKING

from manifed.lazy import lazily

if TYPE_CHECKING:
    from manifed.problems.class_means import ClassMeans
    from manifed.problems.examples import Examples
    from manifed.problems.frechet import FrechetMean, GeometricMedian, HyperbolicPrediction
    from manifed.problems.linear import LeastSquares, Logistic
    from manifed.problems.module_problem import ModuleProblem
    from manifed.problems.pca import KPCA, PrincipalEigenvector
    from manifed.problems.persons import Persons
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
    "Persons",
    "PrincipalEigenvector",
    "Problem",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "class_means": ["ClassMeans"],
        "examples": ["Examples"],
        "frechet": ["FrechetMean", "GeometricMedian", "HyperbolicPrediction"],
        "linear": ["LeastSquares", "Logistic"],
        "module_problem": ["ModuleProblem"],
        "pca": ["KPCA", "PrincipalEigenvector"],
        "persons": ["Persons"],
        "problem": ["Problem"],
    },
)
