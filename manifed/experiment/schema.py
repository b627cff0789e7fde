"""The schema of an experiment: parsing a TOML table yields the frozen objects that run.

No registry and no factory: every part is a discriminated union on ``kind``. Extra keys are refused.
Problem, data, partition, training and strategy may also be plug-ins (plugins.py).
Cross-checks between parts name the field, the value and the bound.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from manifed.algorithms.held_out import PrivateEvaluation, PublicEvaluation
from manifed.algorithms.interface import ClientUpdate, ServerUpdate
from manifed.algorithms.pair_masks import Masking
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.rsvrg import RSVRG
from manifed.algorithms.tangent_mean import TangentMean
from manifed.experiment.limits import (
    AnyTraining,
    check_average,
    check_correlated,
    check_graph,
    check_laplace,
    check_limits,
    check_manifold,
    check_masks,
    check_own_models,
    check_participation,
    check_private,
    check_sampling,
    check_statistic,
    check_steepness,
    check_strategy,
    check_stream_data,
    check_streams,
    server_update,
)
from manifed.experiment.plugins import OrPlugin, says_nothing_of_mixing
from manifed.federation.cohorts import Cohort, Everyone, check_probabilities
from manifed.federation.replies import ReplyPolicy
from manifed.privacy.adversaries import AdversaryName
from manifed.privacy.events import Frozen, NeighboringRelation, PrivacyUnit
from manifed.privacy.mechanism import AdaptiveClip
from manifed.problems.dataset import DataSource, SiteData
from manifed.problems.files import FileData
from manifed.problems.partition_specs import PartitionRule
from manifed.problems.problem_specs import HyperbolicPredictionSpec, ProblemSource
from manifed.problems.spec import DataSpec, EqualSpec, PartitionSpec, ProblemSpec, check_pair
from manifed.problems.streams import StreamData

Training = Annotated[
    AnyTraining,
    Field(discriminator="kind"),
    OrPlugin(ClientUpdate, or_both=ServerUpdate),
]
Strategy = Annotated[TangentMean, OrPlugin(ServerUpdate)]


# -- privacy ---------------------------------------------------------------------------------
class Multiplier(Frozen):
    """Noise given as a multiple of the sensitivity."""

    kind: Literal["multiplier"] = "multiplier"
    noise_multiplier: float = Field(gt=0)
    """Deviation of the noise over the sensitivity."""


class Target(Frozen):
    """Noise found from what the *whole run* may cost, (epsilon, delta) against one adversary."""

    kind: Literal["target"] = "target"
    epsilon: float = Field(gt=0)
    """Of the whole run, against ``adversary``."""
    delta: float = Field(gt=0, lt=1)
    """At which ``epsilon`` holds; less than one over the number of examples."""
    adversary: AdversaryName = "server"
    """Who looks."""
    noise_multiplier: float | None = Field(default=None, gt=0)
    """Kept where more rounds were added later (``manifed extend``); None: found from the target."""


class Published(Frozen):
    """Noise by the papers' formulas, per local-training call; priced by the sound accountant."""

    kind: Literal["published"] = "published"
    local_epsilon: float = Field(gt=0)
    """Of one local-training call."""
    local_delta: float = Field(gt=0, lt=1)
    """Of one local-training call."""
    slack_delta: float = Field(default=1e-3, gt=0, lt=1)
    """What advanced composition adds to delta."""
    constant: float = Field(default=1.0, gt=0)
    """o_i of the papers; they set it to one, which is too small (spec 000 §7.3)."""


Noise = Annotated[Multiplier | Target | Published, Field(discriminator="kind")]
NoiseSourceName = Literal["seed", "os"]
NoisePrecision = Literal["single", "summed"]


class NoPrivacy(Frozen):
    """Nothing is noised; clipping is still possible (the papers' non-private baselines)."""

    kind: Literal["none"] = "none"
    l2_norm_clip: float | None = Field(default=None, gt=0)
    """Clip each example's gradient, without noise; None: no clip."""
    correction_l2_norm_clip: float | None = Field(default=None, gt=0)
    """Of the variance-reduced part of ``rsvrg``; None: ``l2_norm_clip``."""


class Protection(Frozen):
    """What a short form makes of ``epsilon`` and ``delta``: a release under a target."""

    if TYPE_CHECKING:  # a type checker cannot see the short form

        def __init__(self, **fields: Any) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, table: Any) -> Any:
        """``epsilon`` and ``delta`` alone: noise for that target, keyed by the operating system.

        The clip is 1 where none is given: of the gradient of an example, or of an upload.
        """
        if not isinstance(table, dict) or "epsilon" not in table:
            return table
        rest = {key: value for key, value in table.items() if key not in ("epsilon", "delta")}
        if "noise" in rest or table.get("delta") is None:
            raise ValueError(
                "privacy.epsilon: the short form is epsilon with delta and without noise, got "
                f"{sorted(table)}; say more with noise = Target(...)"
            )
        for key in ("epsilon", "delta"):
            if isinstance(table[key], bool) or not isinstance(table[key], int | float):
                raise ValueError(f"privacy.{key}: expected a number, got {table[key]!r}")
        noise = Target(epsilon=table["epsilon"], delta=table["delta"])
        return {"l2_norm_clip": 1.0, "noise_source": "os", **rest, "noise": noise}


class ExampleLevel(Protection):
    """Every example is protected: clients clip and noise their gradients.

    ``ExampleLevel(epsilon=2, delta=1e-5)`` is short for a release under that target.
    """

    kind: Literal["example-level"] = "example-level"
    l2_norm_clip: float = Field(gt=0)
    """Largest norm of an example's gradient; longer ones are scaled down."""
    correction_l2_norm_clip: float | None = Field(default=None, gt=0)
    """Of the variance-reduced part of ``rsvrg``; None: ``l2_norm_clip``."""
    l1_norm_clip: float | None = Field(default=None, gt=0)
    """Clip in L1 and draw Laplace noise (``training.kind = "growing-samples"``); it takes the place
    of ``l2_norm_clip``, which it bounds."""
    neighboring_relation: NeighboringRelation = "add-or-remove"
    """One more or fewer, or one replaced; a replaced one moves a mean up to twice as far."""
    noise: Noise
    """How much noise, as a multiplier, from a target, or by the papers' formula."""
    delta: float | None = Field(default=None, gt=0, lt=1)
    """At which delta epsilon is reported; None takes the noise's own."""
    noise_source: NoiseSourceName = "seed"
    """"seed": a rehearsal, which protects nobody; "os": a release."""
    noise_precision: NoisePrecision = "single"
    """"summed" adds four normals a draw, against attacks on the low bits of float64 (slower)."""
    max_epsilon: float | None = Field(default=None, gt=0)
    """Budget; None: a target's own epsilon, else none. When a run stops: privacy/filter.py."""

    @model_validator(mode="before")
    @classmethod
    def _bounds_both_norms(cls, table: Any) -> Any:
        if not isinstance(table, dict) or table.get("l1_norm_clip") is None:
            return table
        length = table["l1_norm_clip"]
        if table.get("l2_norm_clip", length) != length:
            raise ValueError(
                f"privacy.l2_norm_clip: l1_norm_clip = {length} takes its place, got "
                f"{table['l2_norm_clip']}; leave it out"
            )
        return {**table, "l2_norm_clip": length}


class ClientLevel(Protection):
    """Every client is protected: uploads are clipped and the server's average is noised.

    ``ClientLevel(epsilon=2, delta=1e-5)`` is short for a release under that target.
    """

    kind: Literal["client-level"] = "client-level"
    l2_norm_clip: float = Field(gt=0)
    """Largest norm of a client's upload; longer ones are scaled down."""
    adaptive: AdaptiveClip | None = None
    """Let the clip norm follow a private quantile; ``l2_norm_clip`` is where it starts."""
    neighboring_relation: NeighboringRelation = "add-or-remove"
    """One more or fewer, or one replaced; a replaced one moves a mean up to twice as far."""
    noise: Annotated[Multiplier | Target, Field(discriminator="kind")]
    """How much noise, as a multiplier or from a target."""
    delta: float | None = Field(default=None, gt=0, lt=1)
    """At which delta epsilon is reported; None takes the noise's own."""
    noise_source: NoiseSourceName = "seed"
    """"seed": a rehearsal, which protects nobody; "os": a release."""
    noise_precision: NoisePrecision = "single"
    """"summed" adds four normals a draw, against attacks on the low bits of float64 (slower)."""
    max_epsilon: float | None = Field(default=None, gt=0)
    """Budget; None: a target's own epsilon, else none."""


class GivenNoise(Frozen):
    """Noise given by its standard deviations."""

    kind: Literal["stddev"] = "stddev"


class MaskTarget(Frozen):
    """Masks found from what the *whole run* may cost, (epsilon, delta) against one adversary."""

    kind: Literal["target"] = "target"
    epsilon: float = Field(gt=0)
    """Of the whole run, against ``adversary``."""
    delta: float = Field(gt=0, lt=1)
    """At which ``epsilon`` holds; less than one over the number of examples."""
    adversary: Literal["server", "one-node", "coalition"] = "server"
    """Who looks."""
    noise_ratio: float = Field(default=1.25, gt=1)
    """A node's own noise over the least that any masks could complete (the CDP baseline's)."""
    noise_multiplier: None = None
    """No key of a target: masks have two deviations."""


class CorrelatedNoise(Frozen):
    """Every node noises its own message, in part by masks that cancel between neighbours (DECOR).

    Either ``noise_stddev`` and ``mask_stddev``, on the scale of a message (a mean gradient), or a
    ``target`` that finds both.
    """

    kind: Literal["correlated"] = "correlated"
    unit: PrivacyUnit = "client"
    """"client": a node's data are replaced, its whole gradient is clipped. "example": one example
    comes or goes, and each example's gradient is clipped."""
    l2_norm_clip: float = Field(gt=0)
    """Largest norm of what ``unit`` protects: a gradient of a node or of an example."""
    noise_stddev: float | None = Field(default=None, gt=0)
    """Sigma_cdp, of a node's own noise."""
    mask_stddev: float | None = Field(default=None, ge=0)
    """Sigma_cor, of the mask of one pair; 0: the LDP baseline."""
    target: MaskTarget | None = None
    """Finds both deviations; None: they are given."""
    collusion: int = Field(default=2, ge=1)
    """How many nodes collude as adversary III, the worst ones."""
    coalition: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """They themselves, where they are known."""
    delta: float | None = Field(default=None, gt=0, lt=1)
    """At which delta epsilon is reported; None takes the target's own."""
    noise_source: NoiseSourceName = "seed"
    """"seed": a rehearsal, which protects nobody; "os": a release."""
    noise_precision: NoisePrecision = "single"
    """"summed" adds four normals a draw, against attacks on the low bits of float64 (slower)."""
    max_epsilon: float | None = Field(default=None, gt=0)
    """Budget; None: a target's own epsilon, else none."""

    @model_validator(mode="after")
    def _says_how_much(self) -> "CorrelatedNoise":
        given = (self.noise_stddev is not None, self.mask_stddev is not None)
        if given not in ((True, True), (False, False)) or given[0] == (self.target is not None):
            raise ValueError(
                "privacy: expected noise_stddev and mask_stddev, or a target that finds them"
            )
        own, masks = self.noise_stddev or 1.0, self.mask_stddev or 0.0
        if masks > LARGEST_MASK * own:
            raise ValueError(
                f"privacy.mask_stddev: expected at most {LARGEST_MASK:g} noise_stddev = "
                f"{LARGEST_MASK * own:g}, beside which float64 keeps a node's own noise, got "
                f"{masks:g}"
            )
        if self.target is None and self.delta is None:
            raise ValueError("privacy.delta: required without a target")
        return self

    @property
    def noise(self) -> GivenNoise | MaskTarget:
        """How the noise is said."""
        return self.target or GivenNoise()

    @property
    def neighboring_relation(self) -> NeighboringRelation:
        """A whole client's data are replaced; an example comes or goes."""
        return "replace-one" if self.unit == "client" else "add-or-remove"


Privacy = Annotated[
    NoPrivacy | ExampleLevel | ClientLevel | CorrelatedNoise, Field(discriminator="kind")
]


LARGEST_MASK = 1e8
"""In units of a node's own noise, which float64 rounds beside its masks."""
MASKED = ("decor", "masked-mean", "stationary-decor")
"""Kinds of training that mask what they send."""
MOST_EXAMPLES = 10**12
"""N_i that is declared: more is refused before anything is priced."""


# -- the rest --------------------------------------------------------------------------------
class Federation(Frozen):
    """Clients, rounds, shards, cohorts, and what happens when a reply is missing."""

    num_clients: int = Field(ge=1)
    """All clients, whether they take part in a round or not."""
    num_rounds: int = Field(ge=1)
    """Rounds of the whole run; the noise of a target depends on it."""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Of data, partition, cohorts, start, and of seeded noise."""
    partition: Annotated[PartitionSpec, OrPlugin(PartitionRule)] = Field(default_factory=EqualSpec)
    """How one data set becomes shards."""
    cohort: Cohort = Everyone()
    """Who takes part in a round."""
    replies: ReplyPolicy = ReplyPolicy()
    """When a round goes on without everybody."""
    reserve_rounds: Annotated[int, Field(ge=1)] | None = None
    """Rounds that one line of the ledger pays for before their messages leave; None: one. A crash
    then counts up to so many, for everybody; where rounds cost different amounts, each counts as
    the dearest of its line, by at most 1 % of noise."""
    num_examples: tuple[Annotated[int, Field(ge=1, le=MOST_EXAMPLES)], ...] | None = None
    """N_i, public constants, with data that every site has at home; None: each site declares its
    own (``num-examples`` of its node config)."""


class Evaluation(Frozen):
    """Simulation only: the cost and gradient on all data, which no deployment could see."""

    kind: Literal["oracle"] = "oracle"
    every: int = Field(default=1, ge=1)
    """Rounds between two looks."""
    is_enabled: bool = True
    """False: nothing is measured."""
    is_simulated_oracle: bool | None = None
    """Whether all data may be looked at, without noise, to print cost, gap and gradient norm.

    None: yes in a simulation whose noise comes from the seed, or that has no privacy; no with
    ``privacy.noise_source = "os"`` and in a deployment. True there says that the data are not real,
    or that nobody else will see the numbers: they void the guarantee.
    """

    @model_validator(mode="after")
    def _is_consistent(self) -> "Evaluation":
        if self.is_simulated_oracle and not self.is_enabled:
            raise ValueError(
                "evaluation.is_simulated_oracle: true needs evaluation.is_enabled = true, got false"
            )
        return self


AnyEvaluation = Annotated[
    Evaluation | PublicEvaluation | PrivateEvaluation, Field(discriminator="kind")
]


class Engine(Frozen):
    """Which engine runs the app, and how."""

    kind: Literal["inline", "ray", "deployment"] = "inline"
    execution: Literal["messages", "cohort"] = "messages"
    """Inline only: one Flower message a client, or one stacked call a cohort."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where tensors live."""
    dtype: Literal["float64", "float32"] = "float64"
    """Of points, vectors and records; noise is drawn, and clipped sums are made, in float64."""
    memory_budget_mb: int = Field(default=1024, ge=16)
    """Of the stacked cohort: shards, memory, uploads and temporaries, of all workers together."""
    chunk_clients: int | None = Field(default=None, ge=1)
    """Of the stacked cohort: at most so many clients in one call; None: as many as fit."""
    workers: int | None = Field(default=None, ge=1)
    """Of the stacked cohort: processes that Ray runs; None: this one alone."""
    address: str | None = Field(default=None, pattern=r"^(local|auto|ray://\S+)$")
    """Where workers run: "local" (None), "auto" (this machine's cluster), or "ray://HOST:PORT"."""
    timeout: float = Field(default=3600.0, gt=0)
    """Of the whole run on Ray or a deployment."""

    @property
    def server_device(self) -> str:
        """Where the server's part is computed: here, where workers have the device."""
        return "cpu" if self.workers else self.device

    @model_validator(mode="after")
    def _workers_run_cohorts(self) -> "Engine":
        if (self.workers or self.chunk_clients) and self.execution != "cohort":
            name = "workers" if self.workers else "chunk_clients"
            raise ValueError(
                f"{name}: goes with engine.execution = 'cohort', got {self.execution!r}"
            )
        if self.address is not None and self.workers is None:
            raise ValueError(
                f"address: expected engine.workers, how many run at {self.address!r}, got none"
            )
        return self


class Output(Frozen):
    """Where the run folder goes, how often a checkpoint is written, and what is printed."""

    directory: str | None = None
    """The run folder; None: a new one below ``runs``."""
    checkpoint_every: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Rounds between checkpoints; "auto" saves as often as 5 % of the run's time allows."""
    plots: bool = True
    """Draw figures once the run is finished and its statement printed."""
    plain: bool = False
    """Plain lines in place of a progress bar."""
    quiet: bool = False
    """Print neither statement nor folder nor figures."""
    draws_later: bool = False
    """Leave the figures to whoever started the run; what ``manifed run`` sets."""
    resume: bool = False
    """Go on in ``directory``; what ``--resume`` sets."""
    ledger_head: str | None = None
    """An anchor: a resumed run's ledger must hold this head, which an earlier part printed."""


class Experiment(Frozen):
    """One experiment, whole."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    """Of the run folder, the figures and the bundle's run; no part of the science."""
    description: str = ""
    """For readers."""
    problem: Annotated[ProblemSpec, OrPlugin(ProblemSource)]
    """What is minimised, and on which manifold."""
    data: Annotated[DataSpec, OrPlugin(DataSource)]
    """Where examples come from."""
    federation: Federation
    """Clients, rounds, cohorts."""
    training: Training
    """The algorithm: what a client does in a round."""
    strategy: Strategy | None = None
    """The server update of a client update that has none of its own; None: the tangent mean."""
    privacy: Privacy = NoPrivacy()
    """Who is protected, how much, and by which noise; left out: nobody."""
    evaluation: AnyEvaluation = Evaluation()
    """How a model is judged after a round."""
    engine: Engine = Engine()
    """What runs the rounds."""
    output: Output = Output()
    """What is written and printed."""

    if TYPE_CHECKING:  # pydantic hashes what is frozen; a type checker cannot see it

        def __hash__(self) -> int: ...

    @model_validator(mode="before")
    @classmethod
    def _a_file_is_a_shard(cls, table: Any) -> Any:
        """``federation.partition`` is "natural" where every client has its own file."""
        if not isinstance(table, dict):
            return table
        data, federation = table.get("data"), table.get("federation")
        is_file = isinstance(data, FileData) or (
            isinstance(data, dict) and data.get("kind") == "file"
        )
        if not is_file or not isinstance(federation, dict) or "partition" in federation:
            return table
        return {**table, "federation": {**federation, "partition": {"kind": "natural"}}}

    @model_validator(mode="before")
    @classmethod
    def _a_node_is_a_client(cls, table: Any) -> Any:
        """What a graph needs to know of the rest: ``num_nodes``, and where its masks come from."""
        if not isinstance(table, dict):
            return table
        training, federation = table.get("training"), table.get("federation")
        if not (isinstance(training, dict) and isinstance(federation, dict)):
            return table
        if "graph" not in training or "num_clients" not in federation:
            return table
        found = {"num_nodes": federation["num_clients"]}
        privacy = table.get("privacy")
        if isinstance(privacy, dict) and training.get("kind") in MASKED:
            is_release = privacy.get("noise_source") == "os"
            found["pair_keys"] = "exchanged" if is_release else "seeded"
        return {**table, "training": {**found, **training}}

    @model_validator(mode="before")
    @classmethod
    def _a_cohort_says_its_probabilities(cls, table: Any) -> Any:
        """``training.participation`` of 'rfedags' is the cohort's p_i, where those differ.

        At client level the mechanism divides by the expected size of the cohort instead.
        """
        if not isinstance(table, dict):
            return table
        training, federation = table.get("training"), table.get("federation")
        if not (isinstance(training, dict) and isinstance(federation, dict)):
            return table
        cohort, privacy = federation.get("cohort"), table.get("privacy")
        is_of_clients = isinstance(privacy, dict) and privacy.get("kind") == "client-level"
        if (
            training.get("kind") != "rfedags"
            or is_of_clients
            or not isinstance(cohort, dict)
            or cohort.get("kind") != "poisson-each"
            or "probabilities" not in cohort
        ):
            return table
        return {**table, "training": {"participation": cohort["probabilities"], **training}}

    @model_validator(mode="after")
    def _parts_fit(self) -> "Experiment":
        cohort, clients = self.federation.cohort, self.federation.num_clients
        if cohort.kind == "fixed-size" and cohort.cohort_size > clients:
            raise ValueError(
                f"federation.cohort.cohort_size: expected at most federation.num_clients = "
                f"{clients}, got {cohort.cohort_size}"
            )
        check_probabilities(cohort, clients)
        if isinstance(self.data, FileData):
            check_pair(self.problem, self.data)
            if self.federation.partition.kind != "natural":
                raise ValueError(
                    "federation.partition: with data.kind = 'file' every client has a file of its "
                    f"own, expected kind 'natural', got {self.federation.partition.kind!r}"
                )
            if self.data.paths and len(self.data.paths) != clients:
                raise ValueError(
                    f"data.paths: expected federation.num_clients = {clients} files, got "
                    f"{len(self.data.paths)}"
                )
        check_limits(
            self.training,
            num_clients=clients,
            num_rounds=self.federation.num_rounds,
            max_attempts=self.federation.replies.max_attempts,
        )
        check_graph(self.training, clients)
        check_participation(self.training, self.privacy.kind, cohort, clients)
        check_strategy(self.training, self.strategy, cohort)
        problem = self.problem.build()
        check_manifold(self.training, problem.manifold)
        check_statistic(self.training, problem, self.problem.kind)
        check_steepness(self.training, problem, self.problem.kind)
        if isinstance(self.data, StreamData):
            partition, held = self.federation.partition.kind, self.evaluation.kind
            check_stream_data(self.training, self.data.kind, partition, held)
        check_average(self.server_update, self.federation.num_rounds, problem.manifold)
        self._check_output_rules()
        self._check_privacy()
        self._check_sites()
        self._check_evaluation()
        if self.engine.kind != "inline" and self.engine.execution == "cohort":
            raise ValueError(
                "engine.execution: 'cohort' runs on engine.kind = 'inline' only, got "
                f"{self.engine.kind!r}"
            )
        return self

    @property
    def server_update(self) -> ServerUpdate:
        """What the server does: the algorithm's own part, or ``strategy`` with training's maps."""
        return server_update(self.training, self.strategy)

    @property
    def is_at_sites(self) -> bool:
        """Whether every site has its data at home."""
        return isinstance(self.data, SiteData)

    @property
    def has_all_data(self) -> bool:
        """Whether the config names the data of everybody."""
        return not isinstance(self.data, SiteData) or bool(self.data.paths)

    @property
    def _has_random_output(self) -> bool:
        training = self.training
        return isinstance(training, RSGD | RSVRG) and training.output == "random-output"

    def _check_output_rules(self) -> None:
        server = self.server_update
        if not isinstance(server, TangentMean):
            return
        if self._has_random_output and server.output_rule != "uniform":
            raise ValueError(
                "training.output: 'random-output' (Option 2 as its proof needs it) goes with "
                f"strategy.output_rule = 'uniform', got {server.output_rule!r}"
            )

    def _mixes_records(self) -> str | None:
        """What lets a record change another one, or leaves open whether it can; None: nothing."""
        parts: list[tuple[str, DataSpec | ProblemSpec, str, type]] = [
            ("data", self.data, "load", DataSource)
        ]
        privacy = self.privacy
        is_of_examples = privacy.kind == "correlated" and privacy.unit == "example"
        if privacy.kind == "example-level" or is_of_examples:
            parts.append(("problem", self.problem, "prepare", ProblemSource))
        for field, part, maker, base in parts:
            if says_nothing_of_mixing(part, maker, base):
                return (
                    f"{field}.kind: {part.kind!r} has a {maker} of its own; with privacy it needs "
                    "mixes_records() too, which says whether a record can change another there "
                    "(None: it cannot)"
                )
            if (mixed := part.mixes_records()) is not None:
                return mixed
        return None

    def _check_evaluation(self) -> None:
        held, privacy = self.evaluation, self.privacy
        if held.kind == "public" and not self.is_at_sites:
            raise ValueError(
                "evaluation.kind: 'public' reads a file as data.kind = 'file' says, got "
                f"{self.data.kind!r}"
            )
        if held.kind != "private":
            return
        if privacy.kind != "example-level":
            raise ValueError(
                "evaluation.kind: 'private' is charged as releases about examples, expected "
                f"privacy.kind = 'example-level', got {privacy.kind!r}"
            )
        if privacy.noise.kind == "published" and held.noise_multiplier is None:
            raise ValueError(
                "evaluation.noise_multiplier: required with privacy.noise.kind = 'published', "
                "whose noise is relative to nothing"
            )

    def _check_sites(self) -> None:
        """What data that every site has at home need, and what nothing else takes."""
        data, federation = self.data, self.federation
        sizes, clients = federation.num_examples, federation.num_clients
        if not isinstance(data, SiteData):
            if sizes is not None:
                raise ValueError(
                    "federation.num_examples: expected none with data that the config names (the "
                    f"partition says who has how many), got them with data.kind = {data.kind!r}"
                )
            return
        if sizes is not None and len(sizes) != clients:
            raise ValueError(
                "federation.num_examples: expected one for each of federation.num_clients = "
                f"{clients}, got {len(sizes)}"
            )
        privacy = self.privacy
        is_target = privacy.kind == "example-level" and privacy.noise.kind == "target"
        if sizes is None and is_target and not data.paths:
            raise ValueError(
                "federation.num_examples: required with privacy.noise.kind = 'target', whose noise "
                "depends on every N_i; list them, or use 'multiplier'"
            )

    def _check_privacy(self) -> None:
        privacy, training = self.privacy, self.training
        if isinstance(training, Masking) and privacy.kind != "correlated":
            raise ValueError(
                f"privacy.kind: expected 'correlated' with training.kind = {training.kind!r}, got "
                f"{privacy.kind!r}; 'gossip' is the same without masks"
            )
        if privacy.kind == "none":
            return
        if self.engine.device != "cpu":
            raise ValueError(
                f"engine.device: expected 'cpu' with privacy.kind = {privacy.kind!r}, got "
                f"{self.engine.device!r}: whether a record's numbers there have the same bits "
                "whatever is computed beside it has not been tested; set privacy.kind = 'none'"
            )
        check_private(training, privacy.kind, privacy.noise.kind)
        check_correlated(training, privacy.kind, self.federation.cohort)
        if privacy.kind == "correlated":
            cohort = self.federation.cohort
            check_masks(training, privacy.noise_source, privacy.coalition, cohort, privacy.unit)
            check_streams(
                training,
                is_found=privacy.target is not None,
                on_failure=self.federation.replies.on_failure,
                relation_unit=privacy.unit,
            )
        if (mixed := self._mixes_records()) is not None:
            raise ValueError(mixed)
        if privacy.kind == "client-level":
            self.federation.replies.check_client_level()
            if self._has_random_output:
                raise ValueError(
                    "training.output: client-level privacy noises one upload a client, got "
                    "'random-output', which uploads two"
                )
            return
        if privacy.kind == "correlated":
            if privacy.unit == "example":
                check_sampling(training, privacy.neighboring_relation, privacy.l2_norm_clip)
            return
        check_sampling(training, privacy.neighboring_relation, privacy.l2_norm_clip)
        check_laplace(training, privacy.l1_norm_clip)
        check_own_models(training, self.engine.dtype)
        if (
            isinstance(self.problem, HyperbolicPredictionSpec)
            and isinstance(self.data, SiteData)
            and privacy.neighboring_relation == "add-or-remove"
        ):
            raise ValueError(
                "privacy.neighboring_relation: one row more changes the kernel weights of all "
                "others of its client, expected 'replace-one' with problem.kind = "
                "'hyperbolic-prediction' on files, got 'add-or-remove'"
            )
        if privacy.noise.kind == "target" and privacy.noise.adversary == "client-level":
            raise ValueError(
                "privacy.noise.adversary: 'client-level' needs privacy.kind = 'client-level', got "
                "'example-level'"
            )
