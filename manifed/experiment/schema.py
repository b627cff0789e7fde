"""The schema of an experiment: parsing a TOML table yields the frozen objects that run.

Every part is told by its ``kind``, and imported when a config names it (`plugins.Kinds`); problem,
data, partition, training and strategy may be plug-ins. Extra keys are refused. Cross-checks between
parts name the field, the value and the bound.
"""

import hashlib
import json
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from manifed.algorithms.algorithm import ClientUpdate, ServerUpdate
from manifed.experiment.paths import part
from manifed.experiment.plugins import Kinds, is_plugin, plugins_in, sha256_of
from manifed.fields import Document, Frozen, PositiveCount
from manifed.problems.data import DataSource, SiteData
from manifed.problems.problem import Problem, ProblemSource
from manifed.problems.shards import check_pair
from manifed.problems.synthetic import StreamData
from manifed.setting import (
    Engine,
    Evaluation,
    Federation,
    Judging,
    NoPrivacy,
    Privacy,
    Setting,
)

PROBLEMS = Kinds(
    ProblemSource,
    {
        "principal-eigenvector": "problems.pca:PrincipalEigenvector",
        "kpca": "problems.pca:KPCA",
        "frechet-mean": "problems.frechet:FrechetMean",
        "hyperbolic-prediction": "problems.frechet:HyperbolicPrediction",
        "least-squares": "problems.linear:LeastSquares",
        "logistic": "problems.linear:Logistic",
        "geometric-median": "problems.frechet:GeometricMedian",
        "nearest-mean": "problems.class_means:NearestMean",
        "moments": "problems.moments:Moments",
        "module": "problems.module_problem:ModuleSpec",
    },
)
DATA = Kinds(
    DataSource,
    {
        "file": "problems.own_files:FileData",
        "digits": "problems.real:Digits",
        "mnist": "problems.real:Mnist",
        "a9a": "problems.real:A9a",
        "breast-cancer": "problems.real:BreastCancer",
        "synthetic-pca": "problems.synthetic:SyntheticPCA",
        "spd-lognormal": "problems.synthetic:LogNormalSPD",
        "synthetic-least-squares": "problems.synthetic:SyntheticLeastSquares",
        "scaled-identities": "problems.synthetic:ScaledIdentities",
    },
)
_TRAINING = Kinds(
    ClientUpdate,
    {
        "rsgd": "algorithms.rsgd:RSGD",
        "scheduled-rsgd": "algorithms.rsgd:ScheduledRSGD",
        "rsvrg": "algorithms.rsvrg:RSVRG",
        "projected": "algorithms.projected:Projected",
        "projected-partial": "algorithms.projected:ProjectedPartial",
        "rfedprox": "algorithms.rfedprox:RFedProx",
        "rfedags": "algorithms.rfedags:RFedAGS",
        "rfedsvrg": "algorithms.rfedsvrg:RFedSVRG",
        "gossip": "algorithms.gossip:Gossip",
        "decor": "algorithms.decor:Decor",
        "growing-samples": "algorithms.growing_samples:GrowingSamples",
        "second-moment": "algorithms.one_shot:SecondMoment",
        "log-euclidean": "algorithms.one_shot:LogEuclidean",
    },
)
_STRATEGY = Kinds(
    ServerUpdate,
    {
        "tangent-mean": "algorithms.tangent_mean:TangentMean",
        "measured-steps": "algorithms.measured_steps:MeasuredSteps",
    },
)


class Output(Frozen):
    """Run folder, checkpoints and printing."""

    directory: str | None = None
    """The run folder. None: a new one below ``runs``."""
    checkpoint_every: PositiveCount | Literal["auto"] = "auto"
    """Rounds between checkpoints. "auto": at most 5 % of the run's time."""
    plain: bool = False
    """Plain lines in place of a progress bar."""
    quiet: bool = False
    """Do not print the statement. ``manifed run`` sets this."""
    trackers: tuple[Literal["tensorboard", "mlflow", "wandb"], ...] = ()
    """Where metrics are also sent during the run. A private run sends the columns that may be
    published."""
    is_server_view: bool = False
    """Send all columns to the trackers. They tell more than a private run may publish."""
    resume: bool = False
    """Resume the run in ``directory``. ``--resume`` sets this."""
    ledger_head: str | None = None
    """A printed ledger head that the ledger of the resumed run must contain."""


def _follow(table: Document, name: str, **keys: Any) -> None:
    """Put keys into a part of a table, below those that it has."""
    if isinstance(table.get(name), dict):
        table[name] = {**keys, **table[name]}


class Experiment(Frozen):
    """A whole experiment: a setting with its data, engine, evaluation and output."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    """Names the run folder and the figures. It changes no result."""
    description: str = ""
    """Free text for readers."""
    problem: Annotated[ProblemSource, PROBLEMS]
    """What is minimised, and on which manifold."""
    data: Annotated[DataSource, DATA]
    """Where examples come from."""
    federation: Federation
    """Clients, rounds, cohorts."""
    training: Annotated[ClientUpdate, _TRAINING]
    """The algorithm: what a client does in a round."""
    strategy: Annotated[ServerUpdate, _STRATEGY] | None = None
    """The server update, for a client update without its own. None: the tangent mean."""
    privacy: Privacy = NoPrivacy()
    """Who is protected, how much, and by which noise."""
    evaluation: Judging = Evaluation()
    """How a model is judged after a round."""
    engine: Engine = Engine()
    """What runs the rounds."""
    output: Output = Output()
    """What is written and printed."""

    if TYPE_CHECKING:  # pydantic hashes what is frozen; a type checker cannot see it

        def __hash__(self) -> int: ...

    @model_validator(mode="before")
    @classmethod
    def _what_follows(cls, table: Any) -> Any:
        """What one part needs to know of another, where the table does not say it itself.

        Where every client has its own file ``federation.partition`` is "natural". A graph knows its
        ``num_nodes``, and where its masks come from. ``training.participation`` of 'rfedags' is the
        cohort's p_i, where those differ; at client level the mechanism divides by the expected size
        of the cohort instead.
        """
        if not isinstance(table, dict):
            return table
        found = dict(table)
        _follow(found, "evaluation", kind="oracle")
        _follow(found, "strategy", kind="tangent-mean")
        if getattr(table.get("data"), "kind", part(table, "data").get("kind")) == "file":
            _follow(found, "federation", partition={"kind": "natural"})
        federation = part(table, "federation")
        training = part(table, "training")
        privacy = part(table, "privacy")
        kind = training.get("kind")
        if "graph" in training and "num_clients" in federation:
            _follow(found, "training", num_nodes=federation["num_clients"])
            has_masks = kind == "decor" or is_plugin(kind)
            if has_masks and privacy.get("kind") == "correlated":
                is_release = privacy.get("noise_source") == "os"
                _follow(found, "training", pair_keys="exchanged" if is_release else "seeded")
        cohort = part(federation, "cohort")
        is_each = cohort.get("kind") == "poisson-each" and "probabilities" in cohort
        if kind == "rfedags" and is_each and privacy.get("kind") != "client-level":
            _follow(found, "training", participation=cohort["probabilities"])
        return found

    @property
    def setting(self) -> Setting:
        """The part of the experiment that decides mechanisms, draws and prices."""
        return _setting_of(self)

    @property
    def minimised(self) -> Problem:
        """The problem of the records, which are persons where the data name them."""
        problem, rows = self.problem.build(), getattr(self.data, "rows_per_person", None)
        if rows is None:
            return problem
        from manifed.problems.persons import Persons

        return Persons(problem, rows)

    @property
    def server_update(self) -> ServerUpdate:
        """The server update: the algorithm's own, or ``strategy`` with the maps of training."""
        return self.setting.server_update

    @model_validator(mode="after")
    def _parts_fit(self) -> "Experiment":
        for said in chain(self._data_faults(), self._record_faults()):
            raise ValueError(said)
        if self.engine.kind != "inline" and self.engine.execution == "cohort":
            raise ValueError(
                "engine.execution: 'cohort' runs on engine.kind = 'inline' only, got "
                f"{self.engine.kind!r}"
            )
        return self

    def _data_faults(self) -> Iterator[str]:
        """A stream that is read otherwise than once, in order, and files that do not fit."""
        data = self.data
        sizes = self.federation.num_examples
        held = self.evaluation.kind
        is_stream = isinstance(data, StreamData)
        if is_stream and not self.training.is_in_order:
            yield (
                f"data.kind: {data.kind!r} is a stream whose records are read once; use "
                "training.kind = 'growing-samples' with samples = 'in-order' and "
                "on_exhausted = 'stop'"
            )
        if is_stream and held != "oracle":
            yield f"evaluation.kind: expected 'oracle' with a stream, got {held!r}"
        rule = self.federation.partition.kind
        if (is_stream or isinstance(data, SiteData)) and rule != "natural":
            yield (
                f"federation.partition.kind: expected 'natural' with data.kind = {data.kind!r}, "
                f"where every client has its own data, got {rule!r}"
            )
        if not isinstance(data, SiteData):
            if sizes is not None:
                yield (
                    "federation.num_examples: expected none with data.kind = "
                    f"{data.kind!r}, which the partition divides; remove it"
                )
            if held == "public":
                yield (
                    "evaluation.kind: 'public' reads a file as data.kind = 'file' says, got "
                    f"{data.kind!r}"
                )
            return
        check_pair(self.problem, data)
        clients = self.federation.num_clients
        for field, given in (("data.paths", data.paths), ("federation.num_examples", sizes)):
            if given and len(given) != clients:
                yield (
                    f"{field}: expected one for each of federation.num_clients = {clients}, got "
                    f"{len(given)}"
                )
        privacy = self.privacy
        is_target = privacy.kind == "example-level" and privacy.noise.kind == "target"
        if is_target and sizes is None and not data.paths:
            yield (
                "federation.num_examples: required with privacy.noise.kind = 'target', whose noise "
                "depends on every N_i; list them, or use 'multiplier'"
            )

    def _record_faults(self) -> Iterator[str]:
        """Parts that do not go together, and records that change one another when made."""
        self.setting.check()
        privacy = self.privacy
        problem = self.problem
        if privacy.kind == "none":
            return
        for field, made, maker, base in (
            ("data", self.data, "load", DataSource),
            ("problem", problem, "prepare", ProblemSource),
        ):
            if made is problem and privacy.unit == "client":
                continue
            is_own = not getattr(type(made), maker).__module__.startswith("manifed.")
            if is_own and type(made).mixes_records is base.mixes_records:
                yield (
                    f"{field}.kind: {made.kind!r} defines {maker}; with privacy it must also "
                    "define mixes_records(), which says whether a record can change another one "
                    "(None: it cannot)"
                )
            if (mixed := made.mixes_records()) is not None:
                yield mixed
        if (
            privacy.kind == "example-level"
            and problem.kind == "hyperbolic-prediction"
            and isinstance(self.data, SiteData)
            and privacy.neighboring_relation == "add-or-remove"
        ):
            yield (
                "privacy.neighboring_relation: an added row changes the kernel weights of all "
                "others of its client, expected 'replace-one' with problem.kind = "
                "'hyperbolic-prediction' on files, got 'add-or-remove'"
            )


@lru_cache(maxsize=8)
def _setting_of(config: Experiment) -> Setting:
    problem = config.minimised
    data = config.data
    return Setting(
        config.federation,
        config.training,
        problem.manifold,
        config.strategy,
        config.privacy,
        config.evaluation,
        config.engine,
        problem,
        config.problem.kind,
        isinstance(data, SiteData),
        not isinstance(data, SiteData) or bool(data.paths),
    )


def canonical(config: Experiment) -> str:
    """Writes all that decides the trajectory and the privacy of a run as JSON in ASCII.

    The source of plug-ins is part of it; where a simulation finds its files is not. `sha256` is the
    hash of this text, so that whoever knows the hash can check a text before reading it.
    """
    table = config.model_dump(mode="json", exclude={"output", "engine", "description"})
    if isinstance(config.data, SiteData):
        del table["data"]["paths"]
    privacy = table["privacy"]
    later = ("trust",) if privacy["kind"] == "client-level" else ("trust", "adaptive")
    for name in later:  # hashes are those of before there was one
        if privacy.get(name, "") is None:
            del privacy[name]
    if privacy["kind"] == "example-level" and privacy["unit"] == "example":
        del privacy["unit"], privacy["sites_per_person"]
    for part_name in ("data", "strategy"):
        for name in getattr(getattr(config, part_name), "later", ()):
            if table[part_name][name] in (None, [], False):
                del table[part_name][name]
    if config.engine.dtype != "float64":  # alone of the engine it decides the trajectory
        table["dtype"] = config.engine.dtype
    if config.evaluation.kind == "public":
        del table["evaluation"]["path"]
    if sources := {name: sha256_of(name) for _, name in plugins_in(table)}:
        table["plugins"] = sources
    return json.dumps(table, sort_keys=True, separators=(",", ":"))


def sha256(config: Experiment) -> str:
    """Hashes all that decides the trajectory and the privacy of a run (`canonical`)."""
    return hashlib.sha256(canonical(config).encode()).hexdigest()
