"""The `Setting` of a run, which a config, a fit and a Flower strategy each write.

`manifed.plan.plan` checks a setting, prices it, and says what each side does and releases.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from manifed.algorithms.algorithm import ClientUpdate, ServerUpdate, asked_of
from manifed.algorithms.tangent_mean import TangentMean
from manifed.errors import ConfigError, described, short
from manifed.experiment.plugins import Kinds, is_plugin
from manifed.federation.cohorts import Cohort, Everyone
from manifed.federation.exchange import ReplyPolicy
from manifed.federation.held_out import PrivateEvaluation, PublicEvaluation
from manifed.fields import (
    BY_KIND,
    Fraction,
    Frozen,
    KeyFiles,
    NonNegative,
    Positive,
    PositiveCount,
    Seed,
    WholeNumber,
)
from manifed.manifolds.base import Manifold
from manifed.privacy import mechanism
from manifed.privacy.events import (
    AdversaryName,
    Label,
    NeighboringRelation,
    PrivacyUnit,
    label_of,
)
from manifed.privacy.mechanism import AdaptiveClip, RisingClip
from manifed.privacy.random_numbers import BITS, NoiseSource, Precision
from manifed.problems.data import Equal, PartitionRule
from manifed.problems.problem import Problem

MOST_EXAMPLES = 10**12
"""N_i that is declared: more is refused before anything is priced."""


# -- privacy ---------------------------------------------------------------------------------
class Multiplier(Frozen):
    """The amount of noise, as a multiple of the sensitivity."""

    kind: Literal["multiplier"] = "multiplier"
    noise_multiplier: Positive
    """Standard deviation of the noise over the sensitivity."""


class _Goal(Frozen):
    """What the *whole run* may cost, (epsilon, delta) against one adversary."""

    kind: Literal["target"] = "target"
    epsilon: float = Field(gt=0, strict=True)
    """Epsilon of the whole run."""
    delta: float = Field(gt=0, lt=1, strict=True)
    """Delta of the whole run, less than one over the number of examples."""
    noise_multiplier: None = None
    """Not allowed: a target finds the noise."""


class Target(_Goal):
    """The amount of noise that a whole run needs for (epsilon, delta) against one adversary."""

    adversary: AdversaryName = "server"
    """The adversary of the target."""


class _Published(Frozen):
    """Noise by the papers' formulas per local-training call. The sound accountant prices it."""

    kind: Literal["published"] = "published"
    local_epsilon: Positive
    """Epsilon of one local-training call."""
    local_delta: Fraction
    """Delta of one local-training call."""
    slack_delta: Fraction = 1e-3
    """What advanced composition adds to delta."""
    constant: Positive = 1.0
    """The constant o_i of the papers. They set it to 1, which is too small."""


Noise = Annotated[Multiplier | Target | _Published, BY_KIND]


class _GivenNoise(Frozen):
    """Noise given by its standard deviations, or none."""

    kind: Literal["stddev"] = "stddev"


def _named_trust(value: Any) -> Any:
    """The table of a kind that is given by its name alone."""
    return {"kind": value} if isinstance(value, str) else value


class NoPrivacy(Frozen):
    """No noise. Clipping is possible, for baselines."""

    kind: Literal["none"] = "none"
    unit: ClassVar[PrivacyUnit] = "example"
    noise: ClassVar = _GivenNoise()
    noise_source: ClassVar = "seed"
    noise_precision: ClassVar[Precision] = "single"
    trust: ClassVar = None
    l2_norm_clip: Positive | None = None
    """Clip of each example's gradient. None: no clip."""
    correction_l2_norm_clip: Positive | None = None
    """Clip of the correction of ``rsvrg``. None: ``l2_norm_clip``."""


class SecureSum(KeyFiles):
    """Trust in nobody: clients add shares of one noise, and only all together open their sum."""

    where = "privacy.trust"
    kind: Literal["secure-sum"] = "secure-sum"
    max_dropped: NonNegative = 0.0
    """Most nodes that may fall silent in a round: a number, or below 1 a share of the cohort."""
    collusion: WholeNumber = 1
    """Number of nodes that may tell each other, and the server, all they know."""


class _Released(Frozen):
    """How noise is drawn, and what may be spent."""

    delta: Fraction | None = None
    """The delta of the reported epsilon. None: that of the noise or its target."""
    noise_source: Literal["seed", "os"] = "seed"
    """"seed": a rehearsal without protection. "os": a release."""
    noise_precision: Precision = "single"
    """"summed" adds four normals per draw, against attacks on the low bits of float64 (slower)."""
    max_epsilon: Positive | None = None
    """Budget. The run ends before a round that would exceed it. None: the target's epsilon, if any.
    """


class _Protection(_Released):
    """What a short form makes of ``epsilon`` and ``delta``: a release under a target."""

    l2_norm_clip: Positive
    """Largest norm of an example's gradient (or of a client's upload). Longer ones are scaled down.
    """
    neighboring_relation: NeighboringRelation = "add-or-remove"
    """One record more or fewer, or one replaced. Replacing moves a mean up to twice as far."""
    trust: Annotated[SecureSum | None, BeforeValidator(_named_trust)] = None
    """``"secure-sum"``: clients share one noise and nobody opens a single upload. None: each client
    noises its own uploads, or at client level the server noises their mean."""

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
                "privacy.epsilon: expected delta beside it and no noise, got "
                f"{sorted(table)}; for other targets use noise = Target(...)"
            )
        noise = {"kind": "target", "epsilon": table["epsilon"], "delta": table["delta"]}
        return {"l2_norm_clip": 1.0, "noise_source": "os", **rest, "noise": noise}


class ExampleLevel(_Protection):
    """Protects every example. Clients clip and noise their gradients.

    ``ExampleLevel(epsilon=2, delta=1e-5)`` is short for a release under that target.
    """

    kind: Literal["example-level"] = "example-level"
    unit: Literal["example", "person"] = "example"
    """"example": neighbours differ in one record. "person": in all rows of one person, whom
    ``data.person`` names; her rows are clipped and drawn as one record."""
    sites_per_person: PositiveCount = 1
    """Number of clients at which one person may have rows. All their releases are charged to her.
    """
    correction_l2_norm_clip: Positive | None = None
    """Clip of the correction of ``rsvrg``. None: ``l2_norm_clip``."""
    l1_norm_clip: Positive | None = None
    """L1 clip with Laplace noise, in place of ``l2_norm_clip``, for ``training.kind =
    "growing-samples"``."""
    adaptive: RisingClip | None = None
    """Lets the clip rise to a private quantile of gradient norms. ``l2_norm_clip`` is then the
    largest that it may be. None: the clip is fixed."""
    noise: Noise
    """Amount of noise."""

    @model_validator(mode="before")
    @classmethod
    def _bounds_both_norms(cls, table: Any) -> Any:
        if not isinstance(table, dict) or table.get("l1_norm_clip") is None:
            return table
        length = table["l1_norm_clip"]
        if not isinstance(length, int | float):
            raise ValueError(f"privacy.l1_norm_clip: expected a number, got {short(length)}")
        if table.get("l2_norm_clip", length) != length:
            raise ValueError(
                f"privacy.l2_norm_clip: expected none, since l1_norm_clip = {length} takes its "
                f"place, got {table['l2_norm_clip']}; leave it out"
            )
        return {**table, "l2_norm_clip": length}


class ClientLevel(_Protection):
    """Protects every client. The server noises the mean of clipped uploads.

    ``ClientLevel(epsilon=2, delta=1e-5)`` is short for a release under that target.
    """

    kind: Literal["client-level"] = "client-level"
    unit: ClassVar[PrivacyUnit] = "client"
    adaptive: AdaptiveClip | None = None
    """Lets the clip follow a private quantile, starting from ``l2_norm_clip``."""
    noise: Annotated[Multiplier | Target, BY_KIND]
    """Amount of noise."""


class _MaskTarget(_Goal):
    """Noise and masks calibrated to (epsilon, delta) of the whole run against one adversary."""

    adversary: Literal["server", "one-node", "coalition"] = "server"
    """The adversary of the target."""
    noise_ratio: float = Field(default=1.25, gt=1)
    """A node's own noise over that of the CDP baseline."""


class CorrelatedNoise(_Released):
    """For DECOR: nodes add noise and masks shared with neighbours.

    Either ``noise_stddev`` and ``mask_stddev``, on the scale of a message (a mean gradient), or a
    ``target`` that finds both.
    """

    kind: Literal["correlated"] = "correlated"
    trust: ClassVar = None
    unit: PrivacyUnit = "client"
    """"client": all data of a node are replaced; its gradient is clipped. "example": one example is
    added or removed; each gradient is clipped."""
    l2_norm_clip: Positive
    """Clip of the gradient of a node or of an example, by ``unit``."""
    noise_stddev: Positive | None = None
    """Standard deviation sigma_cdp of a node's own noise."""
    mask_stddev: NonNegative | None = None
    """Standard deviation sigma_cor of the mask of one pair. 0: the LDP baseline."""
    target: _MaskTarget | None = None
    """Finds both standard deviations. None: they are given."""
    collusion: PositiveCount = 2
    """Number of colluding nodes of adversary III (the worst choice)."""
    coalition: tuple[WholeNumber, ...] = ()
    """The colluding nodes, where they are known."""

    @model_validator(mode="after")
    def _says_how_much(self) -> "CorrelatedNoise":
        given = (self.noise_stddev is not None, self.mask_stddev is not None)
        if given not in ((True, True), (False, False)) or given[0] == (self.target is not None):
            raise ValueError(
                "privacy: expected noise_stddev and mask_stddev, or a target that finds them"
            )
        own = self.noise_stddev or 1.0
        masks = self.mask_stddev or 0.0
        if masks > 1e8 * own:
            raise ValueError(
                f"privacy.mask_stddev: expected at most 1e+08 noise_stddev = "
                f"{1e8 * own:g}, beside which float64 keeps a node's own noise, got "
                f"{masks:g}"
            )
        if self.target is None and self.delta is None:
            raise ValueError("privacy.delta: required without a target")
        return self

    @property
    def noise(self) -> _GivenNoise | _MaskTarget:
        """How the size of the noise is stated."""
        return self.target or _GivenNoise()

    @property
    def neighboring_relation(self) -> NeighboringRelation:
        """A whole client's data are replaced; an example comes or goes."""
        return "replace-one" if self.unit == "client" else "add-or-remove"


Privacy = Annotated[NoPrivacy | ExampleLevel | ClientLevel | CorrelatedNoise, BY_KIND]


PARTITIONS = Kinds(
    PartitionRule,
    {
        "equal": "problems.data:Equal",
        "sorted": "problems.data:Sorted",
        "dirichlet": "problems.data:Dirichlet",
        "natural": "problems.data:Natural",
    },
)


class Federation(Frozen):
    """Clients, rounds, cohorts, and the policy for missing replies."""

    num_clients: PositiveCount
    """Number of clients."""
    num_rounds: PositiveCount
    """Rounds of the whole run. The noise of a target depends on it."""
    seed: Seed = 0
    """Seed of data, partition, cohorts, start and seeded noise."""
    partition: Annotated[PartitionRule, PARTITIONS] = Field(default_factory=Equal)
    """How a data set is divided among clients."""
    cohort: Cohort = Everyone()
    """Who takes part in a round."""
    replies: ReplyPolicy = ReplyPolicy()
    """When a round goes on with missing replies."""
    reserve_rounds: PositiveCount | None = None
    """Rounds that one line of the ledger reserves. None: one. A crash counts all of them for every
    client. Rounds of one line are charged as the dearest; their noise differs by at most 1 %."""
    num_examples: tuple[Annotated[int, Field(ge=1, le=MOST_EXAMPLES)], ...] | None = None
    """The public N_i of sites. None: each site declares its own (``num-examples`` of its node
    config)."""


class Evaluation(Frozen):
    """Cost and gradient on all data of a simulation. No deployment can compute them."""

    kind: Literal["oracle"] = "oracle"
    every: PositiveCount = 1
    """Rounds between evaluations."""
    is_enabled: bool = True
    """False: nothing is measured."""
    is_simulated_oracle: bool | None = None
    """Whether cost, gap and gradient norm may be computed from all data, without noise.

    None: yes in a simulation with seeded noise or without privacy; no with
    ``privacy.noise_source = "os"`` and in a deployment. True there declares that the data are not
    real, or that nobody else will see the numbers. Otherwise they void the guarantee.
    """

    @model_validator(mode="after")
    def _is_consistent(self) -> "Evaluation":
        if self.is_simulated_oracle and not self.is_enabled:
            raise ValueError(
                "evaluation.is_simulated_oracle: true needs evaluation.is_enabled = true, got false"
            )
        return self


Judging = Annotated[Evaluation | PublicEvaluation | PrivateEvaluation, BY_KIND]


class Engine(Frozen):
    """Runs the rounds in this process."""

    kind: Literal["inline", "ray", "deployment"] = "inline"
    execution: Literal["messages", "cohort"] = "messages"
    """"messages": one Flower message per client. "cohort": one stacked call per cohort (inline
    only)."""
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:[0-9]{1,3})?)$")
    """Device of the tensors: "cpu", "cuda", or one of several GPUs by its number, "cuda:1"."""
    dtype: Literal["float64", "float32"] = "float64"
    """Type of points, vectors and records. Noise and clipped sums are float64."""
    memory_budget_mb: int = Field(default=1024, ge=16)
    """MiB for a stacked cohort, all workers together."""
    chunk_clients: PositiveCount | None = None
    """Most clients of one stacked call. None: as many as fit."""
    workers: PositiveCount | None = None
    """Ray processes, or threads, of a stacked cohort. None: one thread of this process."""
    address: str | None = Field(default=None, pattern=r"^(local|auto|threads|ray://\S+)$")
    """Where workers run: "local" (None), "auto" (the cluster of this machine), "ray://HOST:PORT",
    or "threads" of this process."""
    timeout: Positive = 3600.0
    """Seconds that a whole run on Ray or a deployment may take."""

    @property
    def server_device(self) -> str:
        """The device of the server's part: the CPU where processes have the device."""
        return "cpu" if self.processes else self.device

    @property
    def processes(self) -> int | None:
        """How many processes of Ray there are; None: none."""
        return None if self.address == "threads" else self.workers

    def check_device(self, field: str) -> None:
        """Refuses a device that this machine has not.

        Raises:
            ConfigError: with ``field``.
        """
        if self.device == "cpu":
            return
        import torch

        number = int(self.device.partition(":")[2] or 0)
        if number >= (found := torch.cuda.device_count()):
            raise ConfigError(
                f"{field}: expected a CUDA device for {self.device!r}, got "
                f"{found or 'none'} on this machine; use 'cpu'"
            )

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


@dataclass(frozen=True)
class Setting:
    """All that decides what a run does, releases and costs, except its data."""

    federation: Federation
    training: ClientUpdate
    """What clients run."""
    manifold: Manifold = field(compare=False)
    strategy: ServerUpdate | None = None
    """What the server runs where the client update is not both; None: the tangent mean."""
    privacy: Privacy = field(default_factory=NoPrivacy)
    evaluation: Judging = field(default_factory=partial(Evaluation, is_enabled=False))
    engine: Engine = field(default_factory=Engine)
    problem: Problem | None = field(default=None, compare=False)
    """What is minimised, where this side knows it."""
    problem_kind: str = ""
    """How messages call it; "": its class."""
    is_at_sites: bool = False
    """Whether every site has its data at home, so that N_i is declared and not counted."""
    has_all_data: bool = True
    """Whether this process could read the data of everybody."""

    def __post_init__(self) -> None:
        """Puts what moves the clip around the algorithm, where there is an adaptive clip."""
        privacy = self.privacy
        if privacy.kind != "example-level" or privacy.adaptive is None:
            return
        from manifed.algorithms.adaptive_clip import AdaptiveClip

        if isinstance(self.training, AdaptiveClip):
            return
        made = AdaptiveClip(
            kind=self.training.kind,
            client_update=self.training,
            server_update=self.server_update,
            rule=privacy.adaptive,
        )
        object.__setattr__(self, "training", made)
        object.__setattr__(self, "strategy", None)
        del self.__dict__["server_update"]  # it was that of the algorithm inside

    @property
    def problem_name(self) -> str:
        """The problem's name in messages."""
        return self.problem_kind or type(self.problem).__name__

    @cached_property
    def server_update(self) -> ServerUpdate:
        """The server update: the algorithm's own part if it has one, else ``strategy``.

        A tangent mean moves by the maps of the client update, whose uploads it undoes.
        """
        training = self.training
        strategy = self.strategy or TangentMean()
        if isinstance(training, ServerUpdate):
            return training
        if not isinstance(strategy, TangentMean):
            return strategy
        maps = training.server_maps or strategy.maps or "exact"
        return strategy.model_copy(update={"maps": maps})

    @property
    def held_out(self) -> PrivateEvaluation | None:
        """The evaluation on records that training does not use; None if there is none."""
        return self.evaluation if self.evaluation.kind == "private" else None

    @property
    def is_scheduled(self) -> bool:
        """Whether what a client releases depends on the round."""
        held = self.held_out
        return self.training.is_scheduled or (held is not None and held.every > 1)

    @property
    def reporting_delta(self) -> float | None:
        """The delta at which epsilon is reported; None without privacy.

        Raises:
            ConfigError: when the config names none.
        """
        privacy = self.privacy
        if privacy.kind == "none":
            return None
        if privacy.delta is not None:
            return privacy.delta
        if privacy.noise.kind == "target":
            return privacy.noise.delta
        if privacy.noise.kind == "published":
            return privacy.noise.local_delta
        raise ConfigError(
            "privacy.delta: required with privacy.noise.kind = 'multiplier', but not given; "
            "epsilon is reported at this delta"
        )

    @property
    def plan_label(self) -> str:
        """The label before every epsilon of a setting that was only planned."""
        if self.privacy.kind == "none":
            return Label.NOT_PRIVATE
        return label_of(self.privacy.noise_source, (), is_charged=False)

    def source(self) -> NoiseSource:
        """Makes the source of noise, from the seed or with a key from the operating system."""
        precision = self.privacy.noise_precision
        if self.privacy.noise_source == "os":
            return NoiseSource.from_os(precision=precision)
        return NoiseSource.from_seed(self.federation.seed, precision=precision)

    def has_oracle(self, *, is_deployment: bool = False) -> bool:
        """Whether a run may print numbers that are computed on all data without noise.

        Guarantees: with noise keyed by the operating system, in a deployment, and where every site
        has its data at home, only if ``evaluation.is_simulated_oracle`` is true.
        """
        evaluation = self.evaluation
        if evaluation.kind != "oracle" or not evaluation.is_enabled:
            return False
        if evaluation.is_simulated_oracle is not None:
            return evaluation.is_simulated_oracle
        if not self.has_all_data:
            return False
        is_deployment = is_deployment or self.engine.kind == "deployment"
        return not (is_deployment or self.privacy.noise_source == "os")

    def check(self) -> None:
        """Refuses parts that do not go together, and privacy that nothing enforces or prices.

        Raises:
            ConfigError: naming field, value and what is expected.
        """
        try:
            said = next(chain(_part_faults(self), _privacy_faults(self)), None)
        except ValueError as error:  # by an algorithm's own check
            said = str(error)
        if said is not None:
            raise ConfigError(said)

    def check_sizes(self, sizes: tuple[int, ...]) -> None:
        """Refuses a minibatch that is larger than the smallest shard.

        Raises:
            ConfigError: with both.
        """
        least = min(sizes) if self.held_out is None else self.held_out.trained_on(min(sizes))
        several = getattr(self.privacy, "sites_per_person", 1) > 1 and len({*sizes}) > 1
        for batch in (ask.batch for ask in self.training.asks()):
            if several and batch.kind != "full":  # rates differ, and no client is the worst for all
                raise ConfigError(
                    "training.minibatch.kind: expected 'full' with privacy.sites_per_person > 1 "
                    f"and clients of different sizes, got {batch.kind!r}"
                )
            if batch.kind != "full" and batch.batch_size > least:
                raise ConfigError(
                    f"training.minibatch.batch_size: expected at most the smallest shard's {least} "
                    f"examples, got {batch.batch_size:g}"
                )


# -- which parts go together; what one algorithm cannot do stands on its own page ---------------
def _part_faults(setting: Setting) -> Iterator[str]:
    """Counts that no address holds, a cohort or a server's part that does not fit."""
    federation = setting.federation
    training = setting.training
    strategy = setting.strategy
    cohort = federation.cohort
    clients = federation.num_clients
    cohort.check(clients)
    for name, value, most in (
        ("num_rounds", federation.num_rounds, (1 << BITS["server_round"]) - 1),
        ("num_clients", clients, 1 << BITS["partition"]),
        ("replies.max_attempts", federation.replies.max_attempts, 1 << BITS["attempt"]),
    ):
        if value > most:
            yield (
                f"federation.{name}: expected at most {most}, which addresses can hold, got {value}"
            )
    if isinstance(training, ServerUpdate) and strategy not in (None, training):
        yield (
            f"strategy.kind: training.kind = {training.kind!r} brings its own server update, got "
            f"{strategy.kind!r}; remove [strategy] (server_step_size is a key of [training])"
        )
    if isinstance(strategy, TangentMean) and training.server_maps and strategy.maps is not None:
        yield (
            f"strategy.maps: the server moves by training.maps, got {strategy.maps!r}; remove it"
        )
    if setting.server_update.needs_everyone and cohort.kind != "all":
        yield (
            f"federation.cohort.kind: training.kind = {training.kind!r} needs every client in "
            f"every round ('all'), got {cohort.kind!r}; use training.kind = 'projected-partial'"
        )
    training.check(setting)
    setting.server_update.check_server(setting)
    is_lost = training.setup_phases and not training.remembers_setup
    if is_lost and federation.replies.on_failure == "retry":
        yield (
            "federation.replies.on_failure: expected 'proceed' or 'abort' with exchanges "
            "before round 1, got 'retry', which would lose what clients computed there"
        )


def _privacy_faults(setting: Setting) -> Iterator[str]:
    """A mechanism or an evaluation that nothing charges for, or whose sampling nothing prices."""
    privacy = setting.privacy
    training = setting.training
    held = setting.held_out
    if held is not None and privacy.kind != "example-level":
        yield (
            "evaluation.kind: 'private' is charged as releases about examples, expected "
            f"privacy.kind = 'example-level', got {privacy.kind!r}"
        )
    if privacy.kind == "none":
        return
    if setting.engine.device != "cpu":
        yield (
            f"engine.device: expected 'cpu' with privacy.kind = {privacy.kind!r}, got "
            f"{setting.engine.device!r}, where it is not tested that a record's result does not "
            "depend on other records; set engine.device = 'cpu' or privacy.kind = 'none'"
        )
    if privacy.trust is not None:
        from manifed.secure_plan import faults

        yield from faults(setting)
    elif privacy.kind == "client-level":
        yield from _client_level_faults(setting)
    if setting.problem is not None and privacy.unit != "client":
        of_persons = setting.problem.of_rows is not setting.problem
        if of_persons != (privacy.unit == "person"):
            yield (
                "privacy.unit: expected 'person' exactly where records are persons (data.person, "
                f"or problems.Persons), got {privacy.unit!r}"
            )
    if privacy.kind == "correlated" and not training.has_masks:
        yield (
            "privacy.kind: 'correlated' needs training that adds masks ('decor'), got "
            f"training.kind = {training.kind!r}"
        )
    if privacy.kind == "example-level":
        yield from _example_level_faults(setting, privacy)
    if privacy.unit != "client":
        yield from _sampling_faults(setting, privacy.neighboring_relation, privacy.l2_norm_clip)


def _example_level_faults(setting: Setting, privacy: ExampleLevel) -> Iterator[str]:
    """Noise that an algorithm or an evaluation gives no size."""
    training = setting.training
    held = setting.held_out
    noise = privacy.noise
    sites = privacy.sites_per_person
    most = setting.federation.num_clients if privacy.unit == "person" else 1
    if sites > most:
        yield (
            f"privacy.sites_per_person: expected at most {most}, the clients at which one "
            f"{privacy.unit} can be, got {sites}"
        )
    cohort = setting.federation.cohort.kind
    if sites > 1 and cohort != "all":  # no one coin draws all the clients of a person
        yield f"federation.cohort.kind: expected 'all' with {sites} sites a person, got {cohort!r}"
    if sites > 1 and privacy.trust is not None:
        yield f"privacy.trust: expected none with {sites} sites a person, got a secure sum"
    if noise.kind == "published" and training.published_steps is None:
        yield (
            "privacy.noise.kind: 'published' is the formula of 'rsgd' and 'rsvrg', got "
            f"training.kind = {training.kind!r}; use 'target' or 'multiplier'"
        )
    if privacy.l1_norm_clip and not training.draws_laplace:
        yield (
            "privacy.l1_norm_clip: Laplace noise is drawn by training.kind = "
            f"'growing-samples', got {training.kind!r}; use l2_norm_clip"
        )
    if noise.kind == "target" and noise.adversary == "client-level":
        yield (
            "privacy.noise.adversary: 'client-level' needs privacy.kind = 'client-level', got "
            "'example-level'"
        )
    if held is not None and noise.kind == "published" and held.noise_multiplier is None:
        yield (
            "evaluation.noise_multiplier: required with privacy.noise.kind = 'published', "
            "which gives it no scale; set it"
        )


def _client_level_faults(setting: Setting) -> Iterator[str]:
    """An algorithm that shows the server more than one noised mean."""
    training = setting.training
    why = training.without_client_level
    if why is None and len(training.phases) > 1:
        why = "it uploads twice a round, and one noised average is charged"
    elif is_plugin(training.kind) and any(len(one.up.names()) > 1 for one in training.phases):
        why = "one vector a client is noised, and it uploads several"
    if why is not None:
        yield (
            f"training.kind: {training.kind!r} has no client-level privacy ({why}); use "
            "'projected', or privacy.kind = 'example-level'"
        )
    on_failure = setting.federation.replies.on_failure
    if on_failure != "proceed":
        yield (
            "federation.replies.on_failure: expected 'proceed' with privacy.kind = "
            f"'client-level', got {on_failure!r}; a failed reply counts as the zero "
            "vector there, because a stop or a retry would show it"
        )
    exchanges = (*training.phases, *training.setup_phases)
    is_shown = any(phase.aggregation == "none" for phase in exchanges)
    if is_shown or len(exchanges) > 1 or setting.server_update.judges_uploads:
        yield (
            "privacy.kind: 'client-level' releases one noised mean a phase, got an algorithm "
            "that shows the server uploads; use 'example-level'"
        )


def _sampling_faults(setting: Setting, relation: NeighboringRelation, clip: float) -> Iterator[str]:
    """Minibatches that nothing prices, and an algorithm that states no release."""
    training = setting.training
    unit = mechanism.ExampleMechanism(
        l2_norm_clip=clip,
        neighboring_relation=relation,
        noise=mechanism.Noise(multiplier=1.0),
        unit=setting.privacy.unit,
    )
    try:  # for a shard so large that a minibatch is a proper part of it
        releases = training.releases(unit, 1 << 20) if is_plugin(training.kind) else ()
        schemes = {r.sampling.kind for r in releases} or {a.batch.kind for a in asked_of(training)}
    except Exception as error:
        yield f"training.kind: {training.kind!r}: releases failed: {described(error)}"
        return
    if is_plugin(training.kind) and not sum(r.count for r in releases):
        yield (
            f"training.kind: {training.kind!r} states no release; with privacy.kind = "
            "'example-level' releases() must charge every answer of the oracle"
        )
    if any((r.unit, r.neighboring_relation) != (unit.unit, relation) for r in releases):
        yield (
            f"training.kind: {training.kind!r}: expected releases of unit {unit.unit!r} under "
            f"{relation!r}, as privacy.neighboring_relation says"
        )
    if "poisson" in schemes and relation == "replace-one":
        yield (
            "privacy.neighboring_relation: Poisson minibatches are priced under "
            "'add-or-remove' only, got 'replace-one'; use training.minibatch.kind = 'full' or "
            "'without-replacement'"
        )
    if "without-replacement" in schemes and relation == "add-or-remove":
        yield (
            "privacy.neighboring_relation: minibatches without replacement are priced under "
            "'replace-one' only, got 'add-or-remove'; use 'replace-one' or "
            "training.minibatch.kind = 'poisson'"
        )
