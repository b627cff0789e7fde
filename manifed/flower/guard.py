"""Client-level privacy for any Flower strategy whose step is a function of an unweighted mean.

    strategy = guard(FedAvg(fraction_evaluate=0.0), population=100, clients_per_round=20, clip=1.0,
                     noise_multiplier=1.0, delta=1e-5, max_epsilon=8.0, ledger="ledger.jsonl")
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=50)

The strategy inside sees no client's reply. It is handed one reply that is made here: the arrays
that were sent, plus the noised mean of all clipped updates. What it does with that is
post-processing.

Guarantees, whatever clients reply: a client moves the un-noised mean by at most clip / m
(1 + 1e-9) under add-or-remove (its update is replaced by none) and by twice that under
replace-one, where m is the public, expected size of the cohort; Gaussian noise of that size times
the multiplier is added once; the line that pays for a round is on disk before its messages are
handed out; no round is begun that the budget does not pay.
"""

import atexit
import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from torch import Tensor

from manifed.audit.attacks import ClientAttack
from manifed.audit.bound import Audited, Verdict, find
from manifed.errors import BudgetExhausted, ConfigError, short
from manifed.federation.cohorts import Everyone, FixedSize, PoissonCohort
from manifed.federation.plan import ServerDraws
from manifed.fields import Document
from manifed.flower.grids import OwnGrid
from manifed.flower.guarding import (
    NODES,
    Metrics,
    accounts,
    check_strategy,
    cohort_size,
    limited,
    moved,
    placed,
    trained,
    update_of,
)
from manifed.flower.records import answers_by_node
from manifed.flower.strategy import TrainingOnly
from manifed.manifolds.euclidean import Euclidean
from manifed.privacy.charging import Account
from manifed.privacy.epsilon_bounds import least_multiplier
from manifed.privacy.events import CLIENT_LEVEL, CLIENT_LEVEL_COHORTS, Sampling, Unsampled
from manifed.privacy.foreign import DPSGD, declared, of_clients
from manifed.privacy.ledger import Entry
from manifed.privacy.mechanism import AdaptiveClip, ClientMechanism
from manifed.privacy.odometer import Odometer
from manifed.privacy.random_numbers import NoiseSource
from manifed.privacy.statement import Promise
from manifed.privacy.tariff import Tariff, Terms
from manifed.runs.statement import statement_of
from manifed.setting import Target

CohortRule = Literal["all", "fixed-size", "poisson", "own"]
_OF_COHORTS = (
    "the strategy inside is shown who was drawn: its step must not depend on it",
    "the line for who sees cohorts tells how often a client took part: publish it, or rely on the "
    "line of the outsider who sees none, not both",
    "who took part is counted by node: one that is new after resume=True takes the place, and the "
    "count, of one that is gone",
)
_log = logging.getLogger("manifed")


class _View(OwnGrid):
    """What the strategy inside sees of the grid: the nodes that it may ask."""

    def __init__(self, grid: Grid, nodes: list[int]) -> None:
        super().__init__(grid.run)
        self._nodes = nodes

    def get_node_ids(self) -> Iterable[int]:
        """Returns the nodes of this round's cohort."""
        return list(self._nodes)

    def _refused(self, *_: Any, **__: Any) -> Any:
        raise ConfigError(
            "strategy: expected one that sends nothing itself, got one that uses the grid; guard "
            "hands out its messages"
        )

    push_messages = pull_messages = send_and_receive = _refused


@dataclass(eq=False, repr=False)
class Guarded(TrainingOnly):
    """A Flower strategy around another one, which sees noised means alone; made by `guard`."""

    inner: Strategy
    _mechanism: ClientMechanism
    _cohort: Everyone | FixedSize | PoissonCohort | None
    _promise: Promise
    _account: Account
    _declared: tuple[Promise, Account] | None
    _open: ExitStack
    """What closes both accounts."""
    _source: NoiseSource
    _frozen: tuple[str, ...]
    _size: float
    """m."""
    _metrics: Metrics | None
    _sent: tuple[list[Message], dict[str, Array], dict[int, int]] | None = None
    """Messages, arrays and partitions by node, of the round that waits for replies."""
    _roster: tuple[int, ...] = ()
    """The nodes, by partition."""
    _told: tuple[int, ...] = ()
    """The nodes that the ledger was told."""
    zeroed: tuple[str, ...] = ()
    """Why replies of the last round counted as zero. It is about clients: do not publish it."""

    def __post_init__(self) -> None:
        """Have the accounts closed, at the latest when this process ends."""
        atexit.register(self.close)
        self._clip = self._mechanism.l2_norm_clip

    # -- what is said ------------------------------------------------------------------------
    @property
    def odometer(self) -> Odometer:
        """What was charged."""
        return self._account.odometer

    def statement(self) -> Document:
        """Returns the privacy statement of what was charged so far, as data."""
        said = self._promise.statement(self.odometer)
        second, kept = self._declared, self._metrics
        return said | {
            "notes": [
                "no promise against the server, which sees every update",
                "a client that fails, is late or sends no update of the model counts as an update "
                "of zero; the expected size of the cohort is public",
                "a client is one node: somebody with two nodes has half of the protection",
                "num-examples of clients are ignored, and metrics"
                + (f" besides {[*kept.bounds]}, each noised as a round" if kept else ""),
                *(_OF_COHORTS if self._is_secret else ()),
                "not covered: evaluate_fn, logs of this server, timing, and which nodes there are",
                *([] if second is None else declared(second[0], second[1].odometer)),
            ]
        }

    def audit(self, trials: int = 2000) -> Verdict:
        """Attacks one round of this mean by a canary client that uploads ten clips or nothing.

        Raises:
            ConfigError: for cohorts of a fixed size and a strategy's own, which it does not attack.
        """
        if not isinstance(self._cohort, Everyone | PoissonCohort):
            raise ConfigError("cohort: the audit attacks 'all' and 'poisson', got another one")
        point = torch.zeros(8, dtype=torch.float64)
        population = self._promise.terms.population
        attack = ClientAttack(
            NoiseSource.from_os(), self._mechanism, self._cohort, Euclidean(), point, "tangent",
            population,
        )  # fmt: skip
        return find(Audited("guard", attack, trials, "a canary client; one round"))

    @property
    def _is_secret(self) -> bool:
        """Whether a price counts on a cohort that nobody sees."""
        return isinstance(self._cohort, FixedSize | PoissonCohort)

    @property
    def text(self) -> str:
        """Returns the statement as text."""
        return statement_of(self.statement())

    def payable(self, rounds: int) -> int:
        """Returns how many of so many rounds more the budget pays."""
        every = rounds + 1 if self._metrics is None else self._metrics.every
        spent = self.odometer.rounds_counted
        draws = [spent + n + n // every for n in range(1, rounds + 1)]
        return bisect_left(draws, x=True, key=lambda n: not self._promise.pays((n,)))

    def close(self) -> None:
        """Writes the end of the ledger and releases its lock."""
        atexit.unregister(self.close)
        self._open.close()

    # -- Flower's strategy -------------------------------------------------------------------
    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, *more: Any, **named: Any
    ) -> Result:
        """Runs as Flower's own loop does, for the rounds that the budget pays.

        Raises:
            BudgetExhausted: it pays none.
        """
        paid = self.payable(num_rounds)
        if not paid:
            raise BudgetExhausted("max_epsilon: expected a budget that pays a round more; raise it")
        if paid < num_rounds:
            _log.warning("max_epsilon pays %d of %d rounds; the run ends there", paid, num_rounds)
        return super().start(grid, initial_arrays, paid, *more, **named)

    def summary(self) -> None:
        """Logs what the strategy inside logs."""
        self.inner.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draws and pays for a cohort, then returns the messages that the strategy inside makes.

        Returns none where the budget does not pay the round.

        Raises:
            ConfigError: for arrays that cannot be noised, another number of nodes than the
                population, and a strategy that asks others than the cohort.
        """
        made = partial(self.inner.configure_train, server_round, arrays, config)
        return self._paid(MessageType.TRAIN, made, arrays, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As `configure_train`, for the rounds that `Metrics` names; sends nothing without them."""
        if self._metrics is None or server_round % self._metrics.every:
            return []
        made = partial(self.inner.configure_evaluate, server_round, arrays, config)
        return self._paid(MessageType.EVALUATE, made, arrays, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Releases the noised mean of the clamped metrics, as the strategy inside returns it."""
        if self._metrics is None or self._sent is None:
            return None
        unit = self._mechanism.model_copy(update={"l2_norm_clip": 1.0, "adaptive": None})
        mean, _ = self._mean(replies, self._metrics.vector, len(self._metrics.bounds), unit, None)
        weight = getattr(self.inner, "weighted_by_key", "num-examples")
        said = MetricRecord({**self._metrics.values(mean), weight: 1})
        reply = Message(RecordDict({"metrics": said}), dst_node_id=1, message_type="evaluate")
        return self.inner.aggregate_evaluate(server_round, [reply])

    def _paid(
        self,
        kind: str,
        made: Callable[[Grid], Iterable[Message]],
        arrays: ArrayRecord,
        grid: Grid,
    ) -> list[Message]:
        """The messages of a cohort that is drawn and paid for here; none beyond the budget."""
        self._sent = None
        if not self._roster:
            self._roster = self._awaited(grid)
            trained(arrays, self._frozen)
        number = self.odometer.covered + 1
        drawn: Iterable[int] = range(len(self._roster))
        if self._cohort is not None:
            drawn = self._cohort.draw(len(self._roster), number, 0, self._source)
        try:
            asks = made(_View(grid, [self._roster[i] for i in drawn]))
        except ValueError as error:
            raise ConfigError(
                f"strategy: expected one that asks the cohort that guard drew, got {error}; give "
                "cohort='own' and let it draw"
            ) from error
        messages = list(asks)
        partitions = {self._roster[i]: i for i in drawn}
        sent = self._checked(kind, messages, arrays, {*partitions})
        if self._cohort is None:
            nodes = {message.metadata.dst_node_id for message in messages}
            partitions = {node: i for node, i in partitions.items() if node in nodes}
        asked = sorted(partitions.values())
        if self._told != self._roster:
            self._account.write(Entry(said={NODES: [*self._roster]}))
            self._told = self._roster
        try:
            self._account.charge(number, 0, asked)
            if self._declared is not None and kind == MessageType.TRAIN:
                self._declared[1].charge(number, 0, asked)
        except BudgetExhausted as spent:
            _log.warning("%s", spent)
            return []
        self._sent = messages, sent, partitions
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Releases the noised mean of updates, and returns what the strategy inside makes of it.

        The metrics hold the epsilon so far, against the first adversary of the statement.

        Raises:
            ConfigError: for a strategy that reads what is not there: clients' metrics.
        """
        if self._sent is None:
            return None, None
        messages, sent, _ = self._sent
        start = trained(sent, self._frozen)
        size = sum(a.size for a in start.values())
        mean, self._clip = self._mean(
            replies, lambda reply: update_of(reply, start, sent), size, self._mechanism, self._clip
        )
        only = self._one_reply(messages, moved(sent, start, mean))
        try:
            made, metrics = self.inner.aggregate_train(server_round, [only])
        except LookupError as error:
            raise ConfigError(
                "strategy: expected one that reads no client's metrics, got one that reads "
                f"{error}; guard shows none: remove what reads it"
            ) from error
        if made is not None:
            made = ArrayRecord(
                {
                    name: sent[name]
                    if name not in start
                    else Array(np.asarray(array.numpy(), dtype=sent[name].dtype))
                    for name, array in made.items()
                }
            )
        metrics = metrics or MetricRecord()
        metrics["epsilon"] = float(self._promise.headline(self.odometer) or 0.0)
        return made, metrics

    # -- parts -------------------------------------------------------------------------------
    def _mean(
        self,
        replies: Iterable[Message],
        read: Callable[[Message], Tensor],
        size: int,
        mechanism: ClientMechanism,
        clip: float | None,
    ) -> tuple[Tensor, float]:
        """The noised mean of what ``read`` finds in replies, and the next clip."""
        assert self._sent is not None
        messages, _, partitions = self._sent
        self._sent = None
        by_node = answers_by_node(messages, list(replies))
        updates = list[Tensor]()
        why = list[str]()
        for node in partitions:
            try:
                (reply, *_) = by_node[node]
                updates.append(read(reply))
            except Exception as error:  # whatever it makes a check do, it counts as zero
                why.append(f"node {node}: {type(error).__name__}: {error}"[:200])
        self.zeroed = tuple(why)
        if why:
            level = logging.WARNING if not updates else logging.INFO
            _log.log(level, "%d of %d replies count as zero", len(why), len(partitions))
        stacked = torch.stack(updates) if updates else torch.zeros(0, size, dtype=torch.float64)
        number = self.odometer.covered
        found = mechanism.noised_mean(
            stacked,
            torch.zeros(size, dtype=torch.float64),
            Euclidean(),
            ServerDraws(self._source, number, 0).normals,
            expected_cohort=self._size,
            l2_norm_clip=clip,
        )
        self._account.note_origins(number, frozenset({self._source.origin}))
        return found

    def _awaited(self, grid: Grid) -> tuple[int, ...]:
        """The nodes, once all of the population are connected, each in the place it had before."""
        population = self._promise.terms.population
        while len(nodes := sorted(grid.get_node_ids())) < population:
            _log.info("Waiting for nodes: %d of %d are connected", len(nodes), population)
            time.sleep(1.0)
        if len(nodes) > population:
            raise ConfigError(
                f"population: expected as many as there are nodes, {len(nodes)}, got {population}"
            )
        return placed(self._account.ledger.path, nodes)

    def _checked(
        self, kind: str, messages: list[Message], arrays: ArrayRecord, cohort: set[int]
    ) -> dict[str, Array]:
        """The arrays that all messages hold."""
        nodes = [message.metadata.dst_node_id for message in messages]
        # Who is left out of a secret cohort may depend on who is in it, which no theorem prices.
        strange = {*nodes} ^ cohort if self._is_secret else {*nodes} - cohort
        if len({*nodes}) < len(nodes) or strange:
            raise ConfigError(
                "strategy: expected one message for each node of the cohort that guard drew, got "
                f"messages for {short(nodes)}; give cohort='own' and let it draw"
            )
        if self._cohort is not None and len(nodes) < len(cohort):
            _log.warning("The strategy asks %d of %d clients", len(nodes), len(cohort))
        first = None
        for message in messages:
            records = list(message.content.array_records.values())
            if message.metadata.message_type != kind or len(records) != 1:
                raise ConfigError(
                    f"strategy: expected messages {kind!r} with one array record each, got "
                    f"{short(message.metadata.message_type)} with {len(records)}"
                )
            (record,) = records
            first = first or record
            if record is not first and dict(record) != dict(first):
                raise ConfigError(
                    "strategy: expected the same arrays for every client, got others for node "
                    f"{message.metadata.dst_node_id}"
                )
        return dict(first or arrays)

    def _one_reply(self, messages: list[Message], new: ArrayRecord) -> Message:
        """What the strategy inside is handed in place of all replies."""
        key = getattr(self.inner, "arrayrecord_key", "arrays")
        if messages:
            key = next(iter(messages[0].content.array_records))
        weight = getattr(self.inner, "weighted_by_key", "num-examples")
        content = RecordDict({key: new, "metrics": MetricRecord({weight: 1.0})})
        return Message(content, dst_node_id=1, message_type=MessageType.TRAIN)


def guard(
    strategy: Strategy,
    *,
    population: int,
    clip: float,
    delta: float,
    ledger: str | Path,
    noise_multiplier: float | None = None,
    noise: Target | None = None,
    rounds: int | None = None,
    max_epsilon: float | None = None,
    cohort: CohortRule | None = None,
    clients_per_round: int | None = None,
    evaluate: Literal["skip"] | Metrics | None = None,
    frozen: tuple[str, ...] = (),
    adaptive: AdaptiveClip | None = None,
    declares: DPSGD | None = None,
    resume: bool = False,
    source: NoiseSource | None = None,
) -> Guarded:
    """Wraps a Flower strategy so that every round is clipped, noised, paid for and stated.

    Args:
        strategy: unchanged; FedAvg and all that step along its mean.
        population: the number of nodes; one node is one client.
        clip: bound of the L2 norm of a client's update, over all arrays together.
        delta: of every epsilon that is stated.
        ledger: file to create, or with ``resume`` to go on with.
        noise_multiplier: noise over what one client moves the mean by.
        noise: in its place, what ``rounds`` rounds may cost; its adversary sees every model.
        rounds: of ``noise``.
        max_epsilon: no round is begun that would cost more; None: any is.
        cohort: "fixed-size" and "poisson" are drawn here, from coins that nobody sees; "all" asks
            every client; "own" leaves the draw to the strategy, and nothing is amplified. None:
            "fixed-size", or "all" where everybody is asked.
        clients_per_round: expected size of a cohort; None: as many as FedAvg would take.
        evaluate: for a strategy that would ask clients for metrics: "skip", or those that clients
            may tell; an evaluation draws a cohort, is noised and costs as much as a round.
        frozen: patterns of the names of arrays that clients do not change, such as
            "*running_mean".
        adaptive: a clip that follows a private quantile.
        declares: the DP-SGD that clients say they run, such as Opacus's: priced in a second ledger,
            ``ledger`` with ".declared" behind its name, stated as declared, and not enforced.
        resume: whether the ledger is there already; all that it holds is spent.
        source: a seeded one in tests; None: the operating system's.

    Raises:
        ConfigError: for a strategy whose step is no function of a mean, and for numbers that do not
            go together; nothing was written.
        LedgerDamaged: as `Ledger.recover`.
    """
    check_strategy(strategy, evaluate)
    size = cohort_size(strategy, clients_per_round, population)
    if not 0 < delta < 1 / population:
        raise ConfigError(f"delta: expected 0 < delta < 1 / population, got {short(delta)}")
    cohort = cohort or ("all" if size == population else "fixed-size")
    rules: Document = {
        "all": Everyone(),
        "fixed-size": FixedSize(cohort_size=size),
        "poisson": PoissonCohort(sampling_probability=size / population),
        "own": None,
    }
    if cohort not in rules:
        raise ConfigError(f"cohort: expected one of {list(rules)}, got {short(cohort)}")
    rule = rules[cohort]
    size = population if cohort == "all" else size
    sampling: Sampling = Unsampled() if rule is None else rule.sampling(population)
    if (noise is None) == (noise_multiplier is None) or (noise is None) != (rounds is None):
        raise ConfigError(
            "noise: expected either noise_multiplier, or noise and rounds, got "
            f"{short(noise_multiplier)}, {short(noise)} and {short(rounds)}"
        )

    def promised(z: float) -> Promise:
        terms = Terms(
            population=population, sampling=sampling, aggregate=(of_clients(z, sampling),)
        )
        return Promise(Tariff((terms,)), 1, (CLIENT_LEVEL, CLIENT_LEVEL_COHORTS), delta)

    if noise is not None:
        assert rounds is not None
        if "adversary" in noise.model_fields_set:
            raise ConfigError(
                "noise.adversary: expected none, since guard's target holds against an outsider "
                f"who sees every model, got {noise.adversary!r}; remove it"
            )
        drawn = rounds
        noise_multiplier = least_multiplier(
            lambda z: promised(z).tariff.ahead(CLIENT_LEVEL, (drawn,), noise.delta), noise.epsilon
        )
    assert noise_multiplier is not None
    release = of_clients(noise_multiplier, sampling)
    mechanism = ClientMechanism(
        l2_norm_clip=clip,
        noise_multiplier=noise_multiplier,
        neighboring_relation=release.neighboring_relation,
        adaptive=adaptive,
    )
    source = source or NoiseSource.from_os()
    facts = {
        "kind": "client-level",
        "noise_source": source.origin,
        "unit": "client",
        "neighboring_relation": release.neighboring_relation,
        "released": "every model, a function of the noised means of clipped updates",
        "mechanism": f"Gaussian of deviation {mechanism.stddev(size):.4g} on each coordinate of a "
        f"mean over {size} clients (cohort {cohort!r}), noise multiplier {noise_multiplier:.5g}, "
        f"clip {clip:g}",
        "floating_point": "normals and sums in float64",
    }
    promise = replace(promised(noise_multiplier), facts=facts)
    if max_epsilon is not None:
        promise = limited(promise, max_epsilon)
    own = None
    if declares is not None:
        secret = sampling if cohort in ("fixed-size", "poisson") else Unsampled()
        own = declares.promise(population, secret, rounds or declares.num_rounds, delta)
    files = ExitStack()
    both = accounts(files, Path(ledger).absolute(), promise, own, clip, resume=resume)
    if isinstance(strategy, FedAvg) and rule is not None:
        strategy = copy(strategy)  # it is shown the cohort alone, and asks all of it
        strategy.fraction_train, strategy.min_train_nodes, strategy.min_available_nodes = 1.0, 0, 0
        strategy.fraction_evaluate, strategy.min_evaluate_nodes = 1.0, 0
    kept = evaluate if isinstance(evaluate, Metrics) else None
    return Guarded(
        strategy, mechanism, rule, promise, *both, files, source, frozen, float(size), kept
    )  # fmt: skip
