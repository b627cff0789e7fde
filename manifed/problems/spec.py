"""What a federation works on, as configuration: a problem, a data set and a partition.

Three unions of frozen models, each discriminated on ``kind``. A data set says what its examples
are (``provides``) and a problem what it ``needs``; ``check_pair`` compares them before anything is
read.
"""

from typing import Annotated

from pydantic import Field

from manifed.problems.hyperbolic_data import HyperbolicCloud, HyperbolicTree, WordnetMammals
from manifed.problems.partition_specs import DirichletSpec, EqualSpec, NaturalSpec, SortedSpec
from manifed.problems.problem_specs import (
    FrechetMeanSpec,
    HyperbolicPredictionSpec,
    KPCASpec,
    LeastSquaresSpec,
    LogisticSpec,
    MatrixCompletionSpec,
    PrincipalEigenvectorSpec,
)
from manifed.problems.real_data import A9a, Digits, Mnist, SamplePhotos
from manifed.problems.synthetic_data import (
    LogNormalSPD,
    ScaledIdentities,
    SphereCloud,
    SpikedRows,
    SyntheticEigengap,
    SyntheticLeastSquares,
    SyntheticLogistic,
    SyntheticLowRank,
    SyntheticPCA,
    Wishart,
)

ProblemSpec = Annotated[
    PrincipalEigenvectorSpec
    | KPCASpec
    | FrechetMeanSpec
    | HyperbolicPredictionSpec
    | LeastSquaresSpec
    | LogisticSpec
    | MatrixCompletionSpec,
    Field(discriminator="kind"),
]

DataSpec = Annotated[
    Digits
    | Mnist
    | SamplePhotos
    | A9a
    | WordnetMammals
    | HyperbolicTree
    | HyperbolicCloud
    | SyntheticEigengap
    | SyntheticPCA
    | SpikedRows
    | Wishart
    | LogNormalSPD
    | SphereCloud
    | SyntheticLeastSquares
    | ScaledIdentities
    | SyntheticLogistic
    | SyntheticLowRank,
    Field(discriminator="kind"),
]

PartitionSpec = Annotated[
    EqualSpec | SortedSpec | DirichletSpec | NaturalSpec, Field(discriminator="kind")
]


def check_pair(problem: ProblemSpec, data: DataSpec) -> None:
    """Refuses a data set whose examples the problem cannot read."""
    if problem.needs != data.provides:
        raise ValueError(
            f"Problem {problem.kind!r} needs {problem.needs}, but data {data.kind!r} provides "
            f"{data.provides}; choose another data.kind"
        )
