"""From a frozen experiment to the two sides of a federation.

Client and server each call this with their *own* reading of the config. What protects a client (its
clip norm, its noise) is computed here from that config and never read from a message.
"""

import os
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from torch import Tensor

from manifed.algorithms.interface import Collected, setup_phases_of
from manifed.algorithms.payloads import PerClient
from manifed.errors import ConfigError
from manifed.experiment.load import sha256
from manifed.experiment.plugins import is_plugin
from manifed.experiment.privacy import client_mechanism, example_mechanism
from manifed.experiment.schema import Experiment
from manifed.federation.client import ClientSetup, ClientSide, Seat, Uncharged, run_update
from manifed.federation.plan import Plan
from manifed.manifolds.base import Manifold
from manifed.privacy.noise import NoiseSource, Stream
from manifed.problems.base import Examples
from manifed.problems.federation import dataset, shards
from manifed.problems.finite_sum import FiniteSum
from manifed.problems.records import InvalidRecord
from manifed.problems.starts import Start

DATA_VARIABLE = "MANIFED_DATA"


def data_folder() -> Path | None:
    """The folder of data sets that do not ship with scikit-learn; None when none is named."""
    named = os.environ.get(DATA_VARIABLE)
    return Path(named) if named else None


@dataclass(frozen=True)
class Shards:
    """The problem and every client's examples (in a deployment each node reads only its own)."""

    problem: FiniteSum
    examples: tuple[Examples, ...]
    meta: Mapping[str, Any]
    checksum: str

    @property
    def sizes(self) -> tuple[int, ...]:
        """N_i, public: the normalisers and weights of the mechanism."""
        return tuple(len(shard) for shard in self.examples)

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of a point."""
        return self.problem.point_shape(self.examples[0])


@lru_cache(maxsize=4)
def load_shards(config: Experiment) -> Shards:
    """The problem and the shards of an experiment, cached per process.

    Raises:
        ConfigError: for a missing data set, or a minibatch larger than a shard.
    """
    federation, folder = config.federation, data_folder()
    try:
        source = dataset(config.data, federation.seed, folder)
        parts = shards(
            config.problem,
            config.data,
            federation.partition,
            federation.num_clients,
            federation.seed,
            folder,
        )
    except FileNotFoundError as missing:
        raise ConfigError(f"data.kind: {config.data.kind!r}: {missing}") from None
    except ValueError as error:
        raise ConfigError(f"data, federation.partition: {error}") from None
    except RuntimeError as error:
        raise ConfigError(f"data.kind: {config.data.kind!r}: cannot be prepared: {error}") from None
    found = Shards(config.problem.build(), tuple(parts), source.meta, source.checksum)
    _check_batches(config, found.sizes)
    return found


def check_shard(config: Experiment, partition: int) -> None:
    """Refuse a client whose shard holds a record that nothing may be computed from.

    Raises:
        ConfigError: naming data, client and record: for the owner of the data, not for the wire.
    """
    try:
        config.problem.check_records(load_shards(config).examples[partition])
    except InvalidRecord as error:
        raise ConfigError(
            f"data.kind: {config.data.kind!r}: client {partition}, {error}; mend or remove the "
            "record"
        ) from None


def check_shards(config: Experiment) -> None:
    """`check_shard` for every client of a simulation."""
    for partition in range(config.federation.num_clients):
        check_shard(config, partition)


def _check_batches(config: Experiment, sizes: tuple[int, ...]) -> None:
    if is_plugin(config.training.kind):
        return  # its minibatches are its own
    minibatch = config.training.minibatch
    if minibatch.kind != "full" and minibatch.batch_size > min(sizes):
        raise ConfigError(
            f"training.minibatch.batch_size: expected at most the smallest shard's {min(sizes)} "
            f"examples, got {minibatch.batch_size:g}"
        )


def seeded_source(config: Experiment) -> NoiseSource | None:
    """The seeded source; None when the noise is keyed by the operating system."""
    privacy = config.privacy
    if privacy.kind == "none":
        return NoiseSource.from_seed(config.federation.seed)
    if privacy.noise_source == "os":
        return None
    return NoiseSource.from_seed(config.federation.seed, precision=privacy.noise_precision)


def release_source(config: Experiment) -> NoiseSource:
    """A source with a fresh key from the operating system."""
    privacy = config.privacy
    precision = "single" if privacy.kind == "none" else privacy.noise_precision
    return NoiseSource.from_os(precision=precision)


def client_side(config: Experiment) -> ClientSide:
    """What a client's process needs."""
    found = load_shards(config)
    setup = ClientSetup(found.problem, config.training, example_mechanism(config, found.sizes))
    return ClientSide(
        setup,
        found.examples,
        found.point_shape,
        seeded_source(config),
        partial(release_source, config),
    )


def plan_of(config: Experiment) -> Plan:
    """What the server loop needs."""
    found = load_shards(config)
    return Plan(
        server_update=config.server_update,
        manifold=found.problem.manifold,
        phases=config.training.phases,
        setup_phases=setup_phases_of(config.training),
        cohort=config.federation.cohort,
        policy=config.federation.replies,
        source=seeded_source(config) or release_source(config),
        num_examples=found.sizes,
        config_sha256=sha256(config),
        mechanism=client_mechanism(config),
        needs_everyone=config.server_update.needs_everyone,
        device=config.engine.device,
    )


def starting_point(start: Start, manifold: Manifold, shape: tuple[int, ...], seed: int) -> Tensor:
    """x^(0) of ``seed``, whatever the algorithm and whatever the examples."""
    generator = NoiseSource.from_seed(seed).generator(stream=Stream.INITIAL_POINT, partition=0)
    return start.point(manifold, shape, generator)


def initial_point(config: Experiment) -> Tensor:
    """x^(0): from the config and the seed, the same for every algorithm that starts from them.

    Raises:
        ConfigError: ``problem.start`` gives something that is no point of the problem.
    """
    found = load_shards(config)
    try:
        return starting_point(
            config.problem.start,
            found.problem.manifold,
            found.point_shape,
            config.federation.seed,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None


def check_first_update(config: Experiment) -> None:
    """Try a first update of client 0 where a part of the algorithm is a plug-in.

    Nothing of it is kept: it is how an author learns what is wrong before round 1, in one line.

    Raises:
        ConfigError: with what the algorithm raised, or `Uncharged`.
    """
    training, server = config.training, config.server_update
    if not is_plugin(training.kind) and not is_plugin(server.kind):
        return
    phases = (*training.phases, *setup_phases_of(training))
    if any(phase.aggregation == "none" for phase in phases):
        return  # what it mixes takes every client
    side, x = client_side(config), initial_point(config)
    shard, source, manifold = side.shards[0], NoiseSource.from_seed(0), side.setup.manifold
    try:
        state, memory = server.initial(x), training.initial_memory(x)
        for phase in training.phases:
            seat = Seat(0, 1, 0, phase.name)
            down = server.down(state, phase.name)
            down = down.rows.take(0) if isinstance(down, PerClient) else down
            made = run_update(side.setup, seat, down, memory, shard, len(shard), source)
            if type(made.up) is not phase.up:
                raise TypeError(f"expected a {phase.up.__name__}, got a {type(made.up).__name__}")
            is_hidden = config.privacy.kind == "client-level"
            seen = (None, ()) if is_hidden else (type(made.up).stack([made.up]), (0,))
            clients = config.federation.num_clients
            collected = Collected(made.up.tensors(), *seen, clients, uniform=0.5)
            state, memory = server.step(state, phase.name, collected, 1, manifold), made.memory
        server.output(state, manifold)
        server.model(state, manifold)
    except Uncharged as error:
        raise ConfigError(str(error)) from None
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"training.kind: {training.kind!r} with strategy.kind = {server.kind!r}: a first "
            f"update failed: {said} ({Path(where.filename).name}:{where.lineno})"
        ) from None
