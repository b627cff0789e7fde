"""What a federation works on, as configuration: a problem, a data set and a partition.

Three unions of frozen models, each discriminated on ``kind``. A data set says what its examples
are (``provides``) and a problem what it ``needs``; ``check_pair`` compares them before anything is
read.
"""

from typing import Annotated

from pydantic import Field

from manifed.problems.files import FileData
from manifed.problems.hyperbolic_data import (
    HyperbolicCloud,
    HyperbolicTree,
    WordnetEmbedding,
    WordnetMammals,
)
from manifed.problems.module_spec import ModuleSpec
from manifed.problems.partition_specs import DirichletSpec, EqualSpec, NaturalSpec, SortedSpec
from manifed.problems.problem_specs import (
    FrechetMeanSpec,
    GeometricMedianSpec,
    HyperbolicPredictionSpec,
    KPCASpec,
    LeastSquaresSpec,
    LogisticSpec,
    MatrixCompletionSpec,
    MLPSpec,
    NearestMeanSpec,
    PrincipalEigenvectorSpec,
)
from manifed.problems.real_data import A9a, BreastCancer, Digits, Mnist, SamplePhotos
from manifed.problems.streams import RegressionStream
from manifed.problems.synthetic_data import (
    ClassMixture,
    LogNormalSPD,
    ScaledIdentities,
    SPDClasses,
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
    | MatrixCompletionSpec
    | GeometricMedianSpec
    | NearestMeanSpec
    | MLPSpec
    | ModuleSpec,
    Field(discriminator="kind"),
]

DataSpec = Annotated[
    FileData
    | Digits
    | Mnist
    | SamplePhotos
    | A9a
    | BreastCancer
    | WordnetEmbedding
    | WordnetMammals
    | HyperbolicTree
    | HyperbolicCloud
    | SyntheticEigengap
    | SyntheticPCA
    | SpikedRows
    | Wishart
    | LogNormalSPD
    | SPDClasses
    | SphereCloud
    | SyntheticLeastSquares
    | ScaledIdentities
    | SyntheticLogistic
    | SyntheticLowRank
    | ClassMixture
    | RegressionStream,
    Field(discriminator="kind"),
]

PartitionSpec = Annotated[
    EqualSpec | SortedSpec | DirichletSpec | NaturalSpec, Field(discriminator="kind")
]


def check_pair(problem: ProblemSpec, data: DataSpec) -> None:
    """Refuses a data set whose examples the problem cannot read."""
    if data.provides not in problem.reads:
        raise ValueError(
            f"Problem {problem.kind!r} needs {problem.needs}, but data {data.kind!r} provides "
            f"{data.provides}; choose another data.kind"
        )
    if not isinstance(data, FileData):
        return
    if isinstance(problem, NearestMeanSpec | MLPSpec) and problem.num_classes != len(data.classes):
        raise ValueError(
            f"problem.num_classes: expected len(data.classes) = {len(data.classes)}, got "
            f"{problem.num_classes}"
        )
    if isinstance(problem, HyperbolicPredictionSpec) and not data.query:
        raise ValueError("data.features, data.query: required by 'hyperbolic-prediction'")
