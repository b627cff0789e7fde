"""From a frozen experiment to the two sides of a federation.

Client and server each call this with their *own* reading of the config. What protects a client (its
clip norm, its noise) is computed here from that config and never read from a message.

The server needs `Facts` alone: shapes and public sizes. With data that every site has at home they
come from the config (and from what sites declare), and nothing here opens a file for them; a node
opens its own. A data set that the config names is the same for everybody, so each loads it.

Where workers play the clients, they read and check the data; this process does so only to judge
models by them (`is_read_here`), or to count what the config does not say, and then lets go of it.
"""

import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manifed.algorithms.interface import Collected, remembers_setup, setup_phases_of
from manifed.algorithms.payloads import PerClient
from manifed.errors import ConfigError, one_line
from manifed.experiment.evaluation import (
    Evaluator,
    PublicEvaluator,
    client_shares,
    oracle_is_on,
)
from manifed.experiment.load import from_toml, sha256
from manifed.experiment.plugins import is_plugin
from manifed.experiment.privacy import Sizes, client_mechanism, example_mechanism, unit_of
from manifed.experiment.schema import Experiment
from manifed.experiment.setting import Setting
from manifed.federation.client import ClientSetup, ClientSide, Node, Seat, Uncharged, run_update
from manifed.federation.plan import Plan
from manifed.manifolds.base import Manifold
from manifed.privacy.noise import NoiseSource, Stream
from manifed.problems.base import Examples
from manifed.problems.dataset import SiteData
from manifed.problems.federation import (
    data_folder,
    dataset,
    forget_datasets,
    shards,
    sizes_of_shards,
    some_shards,
)
from manifed.problems.finite_sum import FiniteSum
from manifed.problems.problem_specs import NUM_EXAMPLES
from manifed.problems.records import InvalidRecord
from manifed.problems.spec import DataSpec, PartitionSpec, ProblemSpec, check_pair
from manifed.problems.starts import Start
from manifed.problems.streams import StreamData


@dataclass(frozen=True)
class Facts:
    """What everybody may know of the data: the problem, the shape of a point, the sizes."""

    problem: FiniteSum
    point_shape: tuple[int, ...]
    declared: Sizes | None
    """N_i, public: the normalisers and weights of the mechanism; None: sites declare them."""
    checksum: str | None = None
    """Of a data set that the config names."""

    @property
    def sizes(self) -> Sizes:
        """N_i.

        Raises:
            ConfigError: the sites have not declared theirs yet.
        """
        if self.declared is None:
            raise ConfigError(
                "federation.num_examples: every site declares its own, and prices depend on them; "
                "list them for a plan"
            )
        return self.declared


@dataclass(frozen=True)
class Shards:
    """The problem and every client's examples, in one process."""

    problem: FiniteSum
    examples: tuple[Examples, ...]
    meta: Mapping[str, Any]
    checksum: str

    @property
    def sizes(self) -> Sizes:
        """How many examples there are of each client."""
        return tuple(len(shard) for shard in self.examples)

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of a point."""
        return self.problem.point_shape(self.examples[0])


@lru_cache(maxsize=4)
def load_shards(config: Experiment) -> Shards:
    """The problem and the shards of an experiment, cached per process.

    Raises:
        ConfigError: for a missing data set, a file that cannot be read, or a minibatch larger than
            a shard.
    """
    federation, folder = config.federation, data_folder()
    if isinstance(config.data, SiteData):
        sizes = federation.num_examples or (None,) * federation.num_clients
        everybody = tuple(_read(config, i, None, size) for i, size in enumerate(sizes))
        return Shards(config.problem.build(), everybody, config.data.meta, "")
    with _one_line(config):
        source = dataset(config.data, federation.seed, folder)
        parts = shards(
            config.problem,
            config.data,
            federation.partition,
            federation.num_clients,
            federation.seed,
            folder,
        )
    found = Shards(config.problem.build(), tuple(parts), source.meta, source.checksum)
    _check_batches(config, found.sizes)
    return found


@contextmanager
def _one_line(config: Experiment) -> Generator[None, None, None]:
    """What a data set that the config names cannot be, as a `ConfigError`."""
    try:
        yield
    except FileNotFoundError as missing:
        raise ConfigError(f"data.kind: {config.data.kind!r}: {missing}") from None
    except ValueError as error:
        raise ConfigError(f"data, federation.partition: {error}") from None
    except RuntimeError as error:
        raise ConfigError(f"data.kind: {config.data.kind!r}: cannot be prepared: {error}") from None


def is_read_here(config: Experiment) -> bool:
    """Whether this process keeps what clients train on: it plays them, or judges by their data.

    A stream is here everywhere: its records are computed when they are read.
    """
    if config.engine.workers is None or isinstance(config.data, StreamData):
        return True
    return oracle_is_on(config)


@lru_cache(maxsize=4)
def _surveyed(config: Experiment) -> tuple[Facts, Examples]:
    """The facts of a data set that the config names, and an outline; the set is let go."""
    federation, folder, one = config.federation, data_folder(), torch.zeros(1, dtype=torch.long)
    with _one_line(config):
        checksum = dataset(config.data, federation.seed, folder).checksum
        rule, clients, seed = federation.partition, federation.num_clients, federation.seed
        sizes = sizes_of_shards(config.data, rule, clients, seed, folder)
        parts = some_shards(config.problem, config.data, rule, clients, seed, folder, range(1))
    forget_datasets()
    _check_batches(config, sizes)
    problem, example = config.problem.build(), parts[0].take(one)
    return Facts(problem, problem.point_shape(example), sizes, checksum), _outline(example, 1)


@lru_cache(maxsize=4)
def _counted(config: Experiment) -> Sizes:
    """How many examples each file holds; they are read one after the other, and let go."""
    return tuple(len(_read(config, i, None, None)) for i in range(config.federation.num_clients))


def _outline(like: Examples, num_examples: int) -> Examples:
    """So many examples of the same shapes, without numbers in them."""
    return Examples(
        {
            k: t.new_empty((num_examples, *t.shape[1:]), device="meta")
            for k, t in like.tensors.items()
        },
        like.feature_ndim,
    )


def facts_of(config: Experiment) -> Facts:
    """What the server knows; no file of a site is opened unless one process plays them all.

    Raises:
        ConfigError: as `load_shards` for a data set that the config names; data that the problem
            cannot read.
    """
    if not isinstance(config.data, SiteData):
        if not is_read_here(config):
            return _surveyed(config)[0]
        found = load_shards(config)
        return Facts(found.problem, found.point_shape, found.sizes, found.checksum)
    problem, sizes = config.problem.build(), config.federation.num_examples
    if sizes is None and config.data.paths:  # a simulation declares for every site
        sizes = load_shards(config).sizes if is_read_here(config) else _counted(config)
    if sizes is not None:
        _check_batches(config, sizes)
    return Facts(problem, problem.point_shape(made_up_examples(config)), sizes)


def made_up_examples(config: Experiment, num_examples: int = 1) -> Examples:
    """Examples of the declared shape that nobody's are: as many equal ones.

    Raises:
        ConfigError: the problem cannot read such data.
    """
    assert isinstance(config.data, SiteData)
    try:
        check_pair(config.problem, config.data)
        blank = config.data.blank().take(torch.zeros(num_examples, dtype=torch.long))
        return config.problem.prepare(blank, {**config.data.meta, NUM_EXAMPLES: num_examples})
    except ValueError as error:
        raise ConfigError(f"data: {error}") from None


def own_size(config: Experiment, partition: int, declared: int | None = None) -> int | None:
    """N_i of one client, public; None where the config names the data, and counts them.

    ``declared`` is what the site says in its own config.

    Raises:
        ConfigError: nobody says it, or the site says another number than the config.
    """
    if not isinstance(config.data, SiteData):
        return None
    sizes = facts_of(config).declared
    named = declared if sizes is None else sizes[partition]
    if named is None or (declared is not None and declared != named):
        expected = "it" if sizes is None else f"{named}, as the config says,"
        raise ConfigError(f"num-examples of this node: expected {expected} got {declared}")
    _check_batches(config, (named,))
    return named


def own_examples(
    config: Experiment, partition: int, path: Path | None = None, declared: int | None = None
) -> Examples:
    """One client's examples, prepared and checked.

    ``path`` is the site's own file; None in a simulation, whose config names all of them. Errors
    are for the owner of the data, not for the wire. Under add-or-remove the number of examples may
    be any: neighbouring datasets differ in it.

    Raises:
        ConfigError: no path, a file that cannot be read, an invalid record, or another number of
            examples than N_i where no neighbouring dataset has one.
    """
    if isinstance(config.data, SiteData):
        examples = _read(config, partition, path, own_size(config, partition, declared))
    else:
        examples = load_shards(config).examples[partition]
    return _checked(config, partition, examples)


def _checked(config: Experiment, partition: int, examples: Examples) -> Examples:
    """A client's examples, all of which something can be computed from."""
    try:
        config.problem.check_records(examples.judged)
    except InvalidRecord as error:
        raise ConfigError(
            f"data.kind: {config.data.kind!r}: client {partition}, {error}; mend or remove the "
            "record"
        ) from None
    return examples


def _read(config: Experiment, partition: int, path: Path | None, size: int | None) -> Examples:
    """The prepared examples of a client's file, normalised by ``size``; None: by their number."""
    data = config.data
    assert isinstance(data, SiteData)
    try:
        check_pair(config.problem, data)
        found = data.read(path or _simulated_path(config, partition))
        size = len(found) if size is None else size
        examples = config.problem.prepare(found, {**data.meta, NUM_EXAMPLES: size})
    except (OSError, ValueError) as error:
        raise ConfigError(f"data: client {partition}: {error}") from None
    except RuntimeError as error:  # a kernel that fails
        raise ConfigError(
            f"data: client {partition}: cannot be prepared: {one_line(str(error))}"
        ) from None
    if not _is_any_number_allowed(config) and len(examples) != size:
        raise ConfigError(
            f"data: client {partition}: expected the declared {size} examples, got "
            f"{len(examples)}; declare what is there, or use 'add-or-remove'"
        )
    return examples


def _is_any_number_allowed(config: Experiment) -> bool:
    """Whether nobody may ask if a site holds N_i examples: N_i + 1 would be a neighbour."""
    privacy = config.privacy
    return privacy.kind != "none" and privacy.neighboring_relation == "add-or-remove"


def simulated_paths(config: Experiment) -> tuple[Path, ...]:
    """Where a simulation finds the clients' files; () where the config names none."""
    return tuple(map(Path, config.data.paths)) if isinstance(config.data, SiteData) else ()


def _simulated_path(config: Experiment, partition: int) -> Path:
    """Where a simulation finds a client's file.

    Raises:
        ConfigError: the config names none, because every site has its own.
    """
    paths = simulated_paths(config)
    if not paths:
        raise ConfigError(
            "data.paths: required in a simulation, but not given; in a deployment each node names "
            "its own file (--node-config 'data-path=\"...\"')"
        )
    return paths[partition]


def check_shards(config: Experiment) -> None:
    """`own_examples` of every client, where this process plays them; workers check their own."""
    if config.has_all_data and config.engine.workers is None:
        for partition in range(config.federation.num_clients):
            own_examples(config, partition)


def _check_batches(config: Experiment, sizes: tuple[int, ...]) -> None:
    if is_plugin(config.training.kind):
        return  # its minibatches are its own
    minibatch, held = config.training.minibatch, config.evaluation
    least = min(sizes) if held.kind != "private" else held.trained_on(min(sizes))
    if minibatch.kind != "full" and minibatch.batch_size > least:
        raise ConfigError(
            f"training.minibatch.batch_size: expected at most the smallest shard's {least} "
            f"examples, got {minibatch.batch_size:g}"
        )


def oracle_of(config: Experiment, facts: Facts) -> Evaluator:
    """What judges models by all data, its reference solution computed once a process."""
    federation, weights = config.federation, config.server_update.weights
    if not isinstance(config.data, SiteData):
        partition, clients, seed = federation.partition, federation.num_clients, federation.seed
        key = (config.problem, config.data, partition, clients, seed, data_folder(), weights)
        return _oracle(*key)  # pyright: ignore[reportArgumentType] (frozen: hashable)
    found = load_shards(config)
    shares = client_shares(facts.sizes, weights)
    return Evaluator(found.problem, [one.judged for one in found.examples], shares, found.meta)


@lru_cache(maxsize=2)
def _oracle(
    problem: ProblemSpec,
    data: DataSpec,
    partition: PartitionSpec,
    num_partitions: int,
    seed: int,
    folder: Path | None,
    weights: str,
) -> Evaluator:
    parts = shards(problem, data, partition, num_partitions, seed, folder)
    shares = client_shares([len(one) for one in parts], weights)
    meta = dataset(data, seed, folder).meta
    return Evaluator(problem.build(), [one.judged for one in parts], shares, meta)


def public_evaluator(config: Experiment) -> PublicEvaluator | None:
    """What judges models by a public file; None where none is named.

    Raises:
        ConfigError: the file cannot be read, or holds a record that nothing can be computed from.
    """
    held, data = config.evaluation, config.data
    if held.kind != "public":
        return None
    assert isinstance(data, SiteData)
    try:
        found = data.read(Path(held.path))
        size = config.federation.num_examples or (len(found),)
        examples = config.problem.prepare(found, {**data.meta, NUM_EXAMPLES: size[0]})
        config.problem.check_records(examples)
    except (OSError, ValueError) as error:
        raise ConfigError(f"evaluation.path: {error}") from None
    return PublicEvaluator(config.problem.build(), examples)


def seeded_source(config: Setting) -> NoiseSource | None:
    """The seeded source; None when the noise is keyed by the operating system."""
    privacy = config.privacy
    if privacy.kind == "none":
        return NoiseSource.from_seed(config.federation.seed)
    if privacy.noise_source == "os":
        return None
    return NoiseSource.from_seed(config.federation.seed, precision=privacy.noise_precision)


def release_source(config: Setting) -> NoiseSource:
    """A source with a fresh key from the operating system."""
    privacy = config.privacy
    precision = "single" if privacy.kind == "none" else privacy.noise_precision
    return NoiseSource.from_os(precision=precision)


def dtype_of(config: Experiment) -> torch.dtype:
    """Of points, vectors and records."""
    return {"float64": torch.float64, "float32": torch.float32}[config.engine.dtype]


def client_setup(config: Experiment, sizes: Sizes | None = None) -> ClientSetup:
    """What a client needs besides its examples; ``sizes``: those that the sites declared."""
    facts = facts_of(config)
    mechanism = example_mechanism(config, facts.sizes if sizes is None else sizes)
    held = config.evaluation
    return ClientSetup(
        facts.problem, config.training, mechanism, held if held.kind == "private" else None
    )


def halves(config: Experiment, examples: Examples) -> tuple[Examples, Examples | None]:
    """(for training, held out) of a client's examples; None without private evaluation."""
    held, privacy, dtype = config.evaluation, config.privacy, dtype_of(config)
    if held.kind != "private" or privacy.kind == "none":
        return examples.to(dtype), None
    both = held.split(examples, privacy.neighboring_relation, config.federation.seed)
    return both[0].to(dtype), both[1].to(dtype)


def client_source(config: Setting) -> Callable[[], NoiseSource]:
    """Makes the source of each client update: the seeded one, or one with a fresh key."""
    seeded = seeded_source(config)
    return partial(release_source, config) if seeded is None else lambda: seeded


@lru_cache(maxsize=4096)
def own_node(
    config: Experiment, partition: int, path: Path | None = None, declared: int | None = None
) -> Node:
    """What one node brings to a run, from its own file alone (see `own_examples`)."""
    size = own_size(config, partition, declared)
    examples = own_examples(config, partition, path, declared)
    shard, hold_out = halves(config, examples)
    own = None if size is None or facts_of(config).declared is not None else (size,)
    return Node(
        _setup(config, own),
        shard,
        partition,
        sha256(config),
        facts_of(config).point_shape,
        client_source(config),
        dtype=dtype_of(config),
        declared=len(examples) if size is None else size,
        hold_out=hold_out,
    )


@lru_cache(maxsize=4)
def _setup(config: Experiment, sizes: Sizes | None) -> ClientSetup:
    """One setup for all nodes of a process, with what it has computed."""
    return client_setup(config, sizes)


def client_side(config: Experiment) -> ClientSide:
    """What a process needs that plays every client."""
    return _whole_side(config, [halves(config, one) for one in load_shards(config).examples])


def outlined_side(config: Experiment) -> ClientSide:
    """`client_side` by what is public: N_i examples a client, without numbers in them."""
    if isinstance(config.data, StreamData):
        return client_side(config)
    if isinstance(config.data, SiteData):
        like = made_up_examples(config)
    elif is_read_here(config):
        like = load_shards(config).examples[0]
    else:
        _, like = _surveyed(config)
    sizes, dtype = facts_of(config).sizes, dtype_of(config)
    blank = {size: _outline(like, size).to(dtype) for size in set(sizes)}
    return _whole_side(config, [(blank[size], None) for size in sizes])


Halves = Sequence[tuple[Examples, Examples | None]]
"""What each client trains on, and what it holds out."""


def _whole_side(config: Experiment, both: Halves) -> ClientSide:
    facts = facts_of(config)
    return _side(config, client_setup(config), both, facts.point_shape, facts.sizes)


def _side(
    config: Experiment,
    setup: ClientSetup,
    both: Halves,
    point_shape: tuple[int, ...],
    num_examples: Sizes,
) -> ClientSide:
    clients = config.federation.num_clients
    return ClientSide(
        setup,
        tuple(shard for shard, _ in both),
        point_shape,
        seeded_source(config),
        partial(release_source, config),
        dtype=dtype_of(config),
        num_examples=num_examples,
        hold_outs=tuple(held for _, held in both if held is not None),
        rate=config.federation.cohort.expected_size(clients) / clients,
        unit=unit_of(config),
    )


def side_of(text: str, sizes: Sizes, point_shape: tuple[int, ...], members: range) -> ClientSide:
    """The client side of neighbours alone, from a config's text: what a worker makes.

    ``sizes`` are the public ones of all clients. Nobody else's file is opened; of a data set that
    the config names, nobody else's examples are prepared.
    """
    config, setup = _read_in_a_worker(text, sizes)
    both = [halves(config, examples) for examples in _examples_of(config, sizes, members)]
    return _side(config, setup, both, point_shape, sizes[members.start : members.stop])


@lru_cache(maxsize=1)
def _read_in_a_worker(text: str, sizes: Sizes) -> tuple[Experiment, ClientSetup]:
    """The config, and the one setup of all stacks of a worker."""
    config = from_toml(text)
    mechanism, held = example_mechanism(config, sizes), config.evaluation
    evaluation = held if held.kind == "private" else None
    return config, ClientSetup(config.problem.build(), config.training, mechanism, evaluation)


def _examples_of(config: Experiment, sizes: Sizes, members: range) -> tuple[Examples, ...]:
    """The prepared and checked examples of some clients."""
    federation = config.federation
    if isinstance(config.data, SiteData):
        found = tuple(_read(config, i, None, sizes[i]) for i in members)
    else:
        found = some_shards(
            config.problem,
            config.data,
            federation.partition,
            federation.num_clients,
            federation.seed,
            data_folder(),
            members,
        )
    return tuple(_checked(config, i, one) for i, one in zip(members, found, strict=True))


def _first_shard(config: Experiment) -> Examples:
    """The examples of client 0 of a data set that the config names."""
    if is_read_here(config):
        return load_shards(config).examples[0]
    (found,) = _examples_of(config, facts_of(config).sizes, range(1))
    forget_datasets()
    return found


def plan_of(config: Experiment, sizes: Sizes | None = None) -> Plan:
    """What the server loop needs; ``sizes``: those that the sites declared."""
    facts = facts_of(config)
    sizes = facts.sizes if sizes is None else sizes
    evaluation = config.evaluation if config.evaluation.kind == "private" else None
    return Plan(
        server_update=config.server_update,
        manifold=facts.problem.manifold,
        phases=config.training.phases,
        setup_phases=setup_phases_of(config.training),
        remembers_setup=remembers_setup(config.training),
        cohort=config.federation.cohort,
        policy=config.federation.replies,
        source=seeded_source(config) or release_source(config),
        num_examples=sizes,
        config_sha256=sha256(config),
        mechanism=client_mechanism(config),
        needs_everyone=config.server_update.needs_everyone,
        device=config.engine.server_device,
        evaluation=evaluation,
        evaluation_mechanism=None if evaluation is None else example_mechanism(config, sizes),
    )


def starting_point(start: Start, manifold: Manifold, shape: tuple[int, ...], seed: int) -> Tensor:
    """x^(0) of ``seed``, whatever the algorithm and whatever the examples."""
    return start.point(manifold, shape, _of_starts(seed))


def _of_starts(seed: int) -> torch.Generator:
    return NoiseSource.from_seed(seed).generator(stream=Stream.INITIAL_POINT, partition=0)


def initial_point(config: Experiment) -> Tensor:
    """x^(0): from the config and the seed, the same for every algorithm that starts from them.

    Raises:
        ConfigError: ``problem.start`` gives something that is no point of the problem.
    """
    facts = facts_of(config)
    try:
        generator = _of_starts(config.federation.seed)
        x = config.problem.first_point(facts.problem, facts.point_shape, generator)
        return x.to(dtype_of(config))
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
    if isinstance(config.data, SiteData):
        sizes = config.federation.num_examples or (1,)
        setup, shard = client_setup(config, sizes), made_up_examples(config, sizes[0])
    else:
        setup, shard = client_setup(config), _first_shard(config)
    x, source, manifold = initial_point(config), NoiseSource.from_seed(0), setup.manifold
    try:
        state, memory = server.initial(x), training.initial_memory(x)
        for phase in training.phases:
            seat = Seat(0, 1, 0, phase.name)
            down = server.down(state, phase.name)
            down = down.rows.take(0) if isinstance(down, PerClient) else down
            made = run_update(setup, seat, down, memory, shard, len(shard), source)
            if type(made.up) is not phase.up:
                raise TypeError(f"expected a {phase.up.__name__}, got a {type(made.up).__name__}")
            is_hidden = config.privacy.kind == "client-level"
            seen = (None, ()) if is_hidden else (type(made.up).stack([made.up]), (0,))
            clients = config.federation.num_clients
            collected = Collected(made.up.tensors(), *seen, clients, lambda: 0.5)
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
