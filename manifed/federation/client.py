"""Runs one update of one client, or of a stacked cohort, and checks it against its charge.

`run_update` is pure: the same call serves a Flower message and ten thousand stacked clients.
`answer` is a node's whole answer to one message, whoever carried it. What protects a client (clip,
noise, normaliser) comes from its own reading of the config, never from the message.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

from manifed.algorithms.algorithm import (
    ClientUpdate,
    Collected,
    Here,
    Phase,
    ServerUpdate,
    There,
)
from manifed.algorithms.payloads import (
    Memory,
    Payload,
    PerClient,
    layout_in,
    layout_of,
    named_tensors,
    returned,
)
from manifed.errors import ConfigError, RoundFailed, described, raised_at
from manifed.federation.exchange import BadMessage, Header
from manifed.federation.held_out import EVALUATE, LABEL, PrivateEvaluation
from manifed.federation.memory import Kept, remembered
from manifed.manifolds.base import Manifold
from manifed.manifolds.linalg import Shape, Tensors, flaw
from manifed.oracles.minibatch import UNNOISED, Query
from manifed.oracles.noisy_oracle import Draws, Oracle
from manifed.privacy.events import PrivacyUnit, Releases
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.problem import Problem


@dataclass(frozen=True)
class ClientSetup:
    """All that a client needs besides its shard: problem, algorithm and mechanism."""

    problem: Problem
    training: ClientUpdate
    mechanism: ExampleMechanism
    evaluation: PrivateEvaluation | None = None
    """How held-out examples are evaluated; None: training uses all examples."""

    def releases(self, server_round: int, num_examples: int) -> Releases:
        """Lists the releases of a client with this number of examples in a round."""
        return releases_in(
            server_round, self.training, self.evaluation, self.mechanism, num_examples
        )

    @cached_property
    def _is_scheduled(self) -> bool:
        return self.training.is_scheduled

    def in_round(self, server_round: int) -> "ClientSetup":
        """Returns the setup of one round, whose queries and releases may differ."""
        if not self._is_scheduled:
            return self
        return replace(self, training=self.training.in_round(server_round))

    @cached_property
    def queries(self) -> Callable[[int], tuple[Query, ...]]:
        """Returns clips, noise and charges of one round for a shard of this size."""
        return cache(partial(self.training.queries, self.mechanism))

    @cached_property
    def _charged(self) -> Callable[[int], Counter[str] | None]:
        """How often a round charges each label, by size; None where there is no noise."""
        mechanism = self.mechanism

        @cache
        def of_size(size: int) -> Counter[str] | None:
            charged = Counter[str]()
            for release in self.training.releases(mechanism, size):
                charged[release.label] += release.count
            is_noised = mechanism.l2_norm_clip is not None and mechanism.noise.stddev(1.0, 1) > 0
            return charged if is_noised else None

        return of_size

    @cached_property
    def _phases(self) -> dict[str, tuple[int, Phase]]:
        phases = (*self.training.phases, *self.training.setup_phases)
        phases += () if self.evaluation is None else (EVALUATE,)
        return {phase.name: (index, phase) for index, phase in enumerate(phases)}

    def phase(self, name: str) -> tuple[int, Phase]:
        """Index and description of a phase.

        Raises:
            ValueError: naming the phases there are.
        """
        if name not in self._phases:
            raise ValueError(f"Expected a phase out of {list(self._phases)}, got {name!r}")
        return self._phases[name]


class Seat(NamedTuple):
    """The place of an update: its partition (or a cohort's partitions), round and attempt."""

    partition: int | tuple[int, ...]
    server_round: int
    attempt: int
    phase: str


class _UpdateResult(NamedTuple):
    """What an update produced: the upload, the new memory, and how often the oracle was asked."""

    up: Payload
    memory: Memory | None
    queries: Counter[str]


class Uncharged(ConfigError):
    """Error: an update's answers are not what was charged; its upload must not leave."""


def run_update(
    setup: ClientSetup,
    seat: Seat,
    down: Payload,
    memory: Memory | None,
    examples: Examples,
    num_examples: Sequence[int] | int,
    source: NoiseSource,
    device: str = "cpu",
) -> _UpdateResult:
    """Runs the update of the client(s) in ``seat``; a cohort has a leading dimension everywhere.

    ``num_examples`` is the public size N_i of each shard: it normalises means, scales noise and
    fixes the rate of a Poisson batch. How many ``examples`` there really are is a client's secret.

    Raises:
        WrongSize: they are not N_i, where the price needs that they are.
        Uncharged: the update asked for more than is charged.
    """
    setup = setup.in_round(max(1, seat.server_round))
    index, phase = setup.phase(seat.phase)
    if not isinstance(down, phase.down):
        raise ValueError(f"Expected a {phase.down.__name__}, got a {type(down).__name__}")
    draws = Draws(source, seat.partition, seat.server_round, seat.attempt, index, device)
    held = setup.evaluation
    problem = setup.problem
    training = setup.training
    if phase is EVALUATE:
        if held is None or not held.is_due(seat.server_round):
            raise Uncharged(f"evaluation.every: round {seat.server_round} is not charged for one")
        up = held.totals(problem, down.point, examples, held.stddev(setup.mechanism), draws)
        return _UpdateResult(up, None, Counter({LABEL: 1}))
    sizes = (num_examples,) if isinstance(num_examples, int) else num_examples
    sizes = sizes if held is None else [held.trained_on(size) for size in sizes]
    oracle = Oracle(problem, examples, list(map(setup.queries, sizes)), draws)
    here = Here(problem.manifold, seat.phase, seat.server_round, down, memory, draws, phase.places)
    x = next(iter(vars(down).values())).detach()
    made = training.client(x, oracle, here)
    up, after = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    charged = setup._charged(min(sizes))
    if charged is not None and seat.server_round == 0:
        charged = Counter()  # the exchanges before round 1 are charged nothing
    if charged is not None:
        _check_charged(training.kind, oracle.queries, charged)
    name = f"{type(training).__name__}.client"
    lead = () if isinstance(seat.partition, int) else (len(seat.partition),)
    layout = layout_of(phase.up, tuple(x.shape[len(lead) :]), x.dtype)
    up = returned(name, up, phase.up, layout, lead)
    if after is not None:
        if memory is None:
            raise ConfigError(
                f"{name}: expected no memory beside the upload, got one; write "
                "remember(self, x), which returns the memory before the first update"
            )
        after = returned(f"{name}, memory", after, type(memory), layout_in(vars(memory)))
    return _UpdateResult(up, after, oracle.queries)


def releases_in(
    server_round: int,
    training: ClientUpdate,
    evaluation: PrivateEvaluation | None,
    mechanism: ExampleMechanism,
    num_examples: int,
) -> Releases:
    """Lists the releases of a client of this size in a round, evaluation included."""
    update = training.in_round(max(1, server_round))
    if evaluation is None:
        return update.releases(mechanism, num_examples)
    own = update.releases(mechanism, evaluation.trained_on(num_examples))
    return (*own, evaluation.release(mechanism)) if evaluation.is_due(server_round) else own


def _check_charged(kind: str, queries: Counter[str], charged: Counter[str]) -> None:
    """Refuse an update that asked its oracle for more than its releases are charged for.

    An un-noised answer must be charged too, and be covered by as many noised ones of another label
    (the reference of Algorithm 3 as printed).

    Raises:
        Uncharged: with the label and both counts, which depend on no record unless the number of
            queries does.
    """
    for label, asked in queries.items():
        name = label.removesuffix(UNNOISED)
        paid = charged[name]
        how = "noised"
        if name != label:
            noised = sum(n for other, n in queries.items() if not other.endswith(UNNOISED))
            paid = paid if 0 < paid <= noised else 0
            how = "un-noised"
        if asked > paid:
            raise Uncharged(
                f"training.kind: {kind!r} asked for {asked} {how} answers {name!r} in a "
                f"phase whose releases charge {paid}; noise them and state them in releases()"
            )


@dataclass(frozen=True)
class ClientSide:
    """The clients of one process: their setup, their shards and the source of a seeded run."""

    setup: ClientSetup
    shards: Sequence[Examples]
    point_shape: Shape
    source: NoiseSource
    """What `NoiseSource.fresh` makes of it is the source of one exchange."""
    dtype: torch.dtype = torch.float64
    num_examples: Sequence[int] = ()
    """The public size N_i of each shard; empty: as many as there are."""
    hold_outs: Sequence[Examples] = ()
    """What is kept out of each shard."""
    rate: float = 1.0
    """The share of all clients that a round asks, as expected."""
    is_summed: bool = False
    """Whether the server needs nothing of the uploads but their weighted mean."""
    unit: PrivacyUnit = "example"
    """Who is protected. Where it is a client, each is a stack of its own: what pads a shard, and
    how many are in a stack, moves last bits, of which many local steps may make any difference."""

    def of(self, members: range) -> "ClientSide":
        """Returns the client side of the clients ``members`` alone."""
        part = slice(members.start, members.stop)
        return replace(
            self,
            shards=self.shards[part],
            num_examples=self.num_examples[part],
            hold_outs=self.hold_outs[part],
        )

    def public_size(self, client: int) -> int:
        """Returns N_i, the public size by which a client's means are divided."""
        return self.num_examples[client] if self.num_examples else len(self.shards[client])


# -- the answer of a node ------------------------------------------------------------------------
@dataclass(frozen=True)
class Node:
    """One node's part in a run: its client setup, its shard, and what it agrees to."""

    setup: ClientSetup
    shard: Examples
    num_examples: int
    """N_i, public: the normaliser of its means, whatever number of examples there are."""
    partition: int
    digest: str
    """Hash of the config, or of the privacy parameters, that this node reads for itself."""
    point_shape: Shape
    source: NoiseSource
    """What `NoiseSource.fresh` makes of it is the source of one client update."""
    dtype: torch.dtype = torch.float64
    hold_out: Examples | None = None
    """What is kept out of the shard."""


class _Answer(NamedTuple):
    """What goes up, where the key of its noise came from, and what is to be kept."""

    up: Payload
    noise_origin: str
    kept: Kept | None


def answer(
    node: Node,
    header: Header,
    read: Callable[[type[Payload], tuple[int, ...], torch.dtype], Tensors],
    kept: Kept | None,
    pay: Callable[[], object] | None = None,
) -> _Answer:
    """Computes a node's reply; the caller writes ``kept`` down once the reply is made.

    ``read`` reads the fields that came down, of this kind, where a point has this shape and type.
    ``pay`` is called when all that came down was checked and before a record is looked at.

    Raises:
        BadMessage: the message is for another config or client, or holds another payload.
        BadBroadcast: what came down is not where the phase says.
        ValueError: the algorithm has no such phase.
    """
    if (header.config_sha256, header.partition_id) != (node.digest, node.partition):
        raise BadMessage(
            f"Expected a message for config {node.digest}, client {node.partition}, got config "
            f"{header.config_sha256}, client {header.partition_id}"
        )
    _, phase = node.setup.phase(header.phase)
    tensors = read(phase.down, node.point_shape, node.dtype)
    down = phase.down.received(tensors, phase.places, node.setup.problem.manifold)
    training = node.setup.training
    blank = None
    if training.has_memory:
        x = down.point if down.has_point else torch.zeros(node.point_shape, dtype=node.dtype)
        blank = training.initial_memory(x)
    memory = blank and remembered(blank, kept, header, lasts=training.remembers_setup)
    if memory is not None and memory is blank and header.server_round > 0 and training.setup_phases:
        raise BadMessage(
            f"Expected a client that remembers the exchanges before round 1 in round "
            f"{header.server_round}, got client {node.partition}, which restarted or lost a reply; "
            "start a new run"
        )
    if pay is not None:
        pay()
    examples = node.hold_out if phase is EVALUATE else node.shard
    source = node.source.fresh()
    assert examples is not None
    seat = Seat(node.partition, header.server_round, header.attempt, header.phase)
    up, after, _ = run_update(node.setup, seat, down, memory, examples, node.num_examples, source)
    kept = None if after is None else Kept(header, after.tensors())
    return _Answer(up, source.origin, kept)


# -- before round 1 ------------------------------------------------------------------------------
def try_update(name: str, side: ClientSide, server: ServerUpdate, x: Tensor) -> None:
    """Tries a first update of client 0.

    Nothing of it is kept: it is how an author learns what is wrong before round 1, in one line.

    Raises:
        ConfigError: ``name``, and what a part raised, or returned and should return.
    """
    setup = side.setup
    problem = setup.problem
    training = setup.training.tried
    if training is not setup.training:
        setup = ClientSetup(problem, training, ExampleMechanism())
        server = server.tried_server
    if any(one.aggregation == "none" for one in (*training.phases, *training.setup_phases)):
        return  # what it mixes takes every client
    try:
        check_maps(problem.manifold, x)
        state = named_tensors(f"{type(server).__name__}.start", server.start(x))
        memory = training.initial_memory(x)
        for phase in training.phases:
            down = server.down(state, phase.name)
            up, memory, _ = run_update(
                setup,
                Seat(0, 1, 0, phase.name),
                down.rows.take(0) if isinstance(down, PerClient) else down,
                memory,
                side.shards[0],
                side.public_size(0),
                NoiseSource.from_seed(0),
            )
            is_own = type(training).__module__.startswith("manifed.")
            each = [*vars(up).values(), *vars(memory or up).values()]
            if not is_own and not all(u.isfinite().all() for u in each):
                raise ConfigError(f"{type(training).__name__}.client: expected finite entries")
            seen = (None, ()) if side.unit == "client" else (type(up).stack([up]), (0,))
            clients = len(side.num_examples or side.shards)
            means = {key: torch.zeros_like(u) for key, u in vars(up).items()}  # no step too long
            collected = Collected(means, *seen, clients, lambda: 0.5)
            there = There(problem.manifold, phase.name, 1, collected)
            made = server.server(dict(state), means[next(iter(means))], there)
            state = named_tensors(f"{type(server).__name__}.server", made)
        server.output(state, problem.manifold)
        if why := flaw("it", server.model(state, problem.manifold), tuple(x.shape), x.dtype):
            raise ConfigError(f"{type(server).__name__}.model: {why}")
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    except (ArithmeticError, RoundFailed):
        pass  # by the numbers of one client: rounds may go on without it
    except Exception as error:
        raise ConfigError(
            f"{name}: a first update failed: {described(error)} ({raised_at(error)})"
        ) from None


def check_maps(manifold: Manifold, x: Tensor) -> None:
    """Tries the methods of a manifold at a point.

    Raises:
        ConfigError: naming a method that returned something else than a tensor of its shape, of the
            type of the point, with finite entries.
    """

    def tried(name: str, *at: Tensor, size: Shape = tuple(x.shape)) -> Tensor:
        found = getattr(manifold, name)(*at)
        if why := flaw("it", found, size, x.dtype):
            raise ConfigError(f"{type(manifold).__name__}.{name}: {why}")
        return found

    u = tried("from_coords", x, x.new_full(manifold.coords_of(x), 0.01))
    tried("transp", x, tried("projx", x), u)
    for name in ("proju", "egrad2rgrad", "retr"):
        tried(name, x, u)
    for name in ("inner", "norm_bound", "tangency_defect"):
        tried(name, x, u, size=())
    if manifold.has_logmap:
        tried("logmap", x, tried("expmap", x, u))
        tried("dist", x, x, size=())
