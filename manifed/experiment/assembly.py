"""Makes server and client side of an experiment: data, shards, plan and start point.

Client and server each call this with their *own* reading of the config. What protects a client (its
clip norm, its noise) is computed here from that config and never read from a message.

The server needs `Facts` alone: shapes and public sizes. With data that every site has at home they
come from the config (and from what sites declare), and nothing here opens a file for them; a node
opens its own. A data set that the config names is the same for everybody, so each loads it.

Where workers play the clients, they read and check the data; this process does so only to judge
models by them, or to count what the config does not say, and then lets go of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manifed.errors import ConfigError, named_by
from manifed.experiment.plugins import is_plugin
from manifed.experiment.schema import Experiment, sha256
from manifed.federation.client import ClientSetup, ClientSide, Node, try_update
from manifed.federation.plan import Plan
from manifed.fields import Document, Values
from manifed.manifolds.linalg import Shape
from manifed.plan import Sizes, example_mechanism, plan, summed
from manifed.privacy.random_numbers import NoiseSource, Stream
from manifed.problems.data import NUM_EXAMPLES, SiteData
from manifed.problems.examples import (
    PERSON,
    Examples,
    check_apart,
    count,
    grouped,
    rows_of,
    without_persons,
)
from manifed.problems.problem import InvalidRecord, Problem
from manifed.problems.shards import (
    check_pair,
    data_folder,
    dataset,
    divided,
    shards,
    some_shards,
)
from manifed.problems.synthetic import StreamData


@dataclass(frozen=True)
class Facts:
    """The public facts about the data, and the examples where this process has them."""

    problem: Problem
    point_shape: Shape
    declared: Sizes | None
    """N_i, public: the normalisers and weights of the mechanism; None: sites declare them."""
    like: Examples
    """Examples of the shapes of the data; their numbers mean nothing."""
    checksum: str | None = None
    """The checksum of a data set that the config names."""
    examples: tuple[Examples, ...] = ()
    """Every client's; (): they are not here."""
    meta: Values = field(default_factory=Document)
    """What belongs to no example, of a data set that the config names."""

    @property
    def sizes(self) -> Sizes:
        """The number of examples N_i of each client.

        Raises:
            ConfigError: the sites have not declared theirs yet.
        """
        if self.declared is None:
            raise ConfigError(
                "federation.num_examples: every site declares its own, and prices depend on them; "
                "list them for a plan"
            )
        return self.declared


@lru_cache(maxsize=4)
def load_shards(config: Experiment) -> Facts:
    """Loads the problem and the shards of an experiment, cached per process.

    Raises:
        ConfigError: for a missing data set, a file that cannot be read, or a minibatch larger than
            a shard.
    """
    federation = config.federation
    clients = range(federation.num_clients)
    examples = _examples(config, clients, federation.num_examples or (None,) * len(clients))
    check_apart(examples, config.privacy)
    return replace(_facts(config, examples[0], tuple(map(len, examples))), examples=examples)


def _facts(config: Experiment, like: Examples, sizes: Sizes | None) -> Facts:
    """What is known of data of these shapes and sizes."""
    if sizes is not None:
        config.setting.check_sizes(sizes)
    source = config.data
    if not isinstance(source, SiteData):
        source = dataset(source, config.federation.seed, data_folder())
    problem = config.minimised
    return Facts(
        problem,
        problem.point_shape(like),
        sizes,
        like,
        getattr(source, "checksum", None),
        meta=source.meta,
    )


def _examples(
    config: Experiment, members: range, sizes: Sequence[int | None] = ()
) -> tuple[Examples, ...]:
    """The examples of some clients, whose files are normalised by N_i; None: by their number.

    Raises:
        ConfigError: the data are not there, or cannot be read, split or prepared.
    """
    data = config.data
    if isinstance(data, SiteData):
        return tuple(_read(config, i, None, sizes[i]) for i in members)
    place = f"data.kind: {data.kind!r}"
    with (
        named_by(place, FileNotFoundError),
        named_by(f"{place}: cannot be prepared", RuntimeError),
        named_by("data, federation.partition", ValueError),
    ):
        if members == range(config.federation.num_clients):
            return shards(*split_of(config))
        return some_shards(*split_of(config), members=members)


def split_of(config: Experiment) -> tuple[Any, ...]:
    """What decides who has which examples, as `manifed.problems.shards` takes it."""
    federation = config.federation
    return (
        config.problem, config.data, federation.partition, federation.num_clients,
        federation.seed, data_folder(),
    )  # fmt: skip


@lru_cache(maxsize=4)
def facts_of(config: Experiment) -> Facts:
    """Returns what the server knows of the data; sites' files are opened only in a simulation.

    Raises:
        ConfigError: as `load_shards` for a data set that the config names; data that the problem
            cannot read.
    """
    data = config.data
    # who plays the clients, or judges by their data, keeps them; a stream is computed when read
    is_read_here = (
        config.engine.processes is None
        or isinstance(data, StreamData)
        or config.setting.has_oracle()
    )
    if isinstance(data, SiteData):
        sizes = config.federation.num_examples
        if sizes is None and data.paths:  # a simulation declares for every site
            sizes = (
                load_shards(config).sizes
                if is_read_here
                else tuple(len(_read(config, i, None, None)) for i in range(len(data.paths)))
            )
        return _facts(config, made_up_examples(config), sizes)
    if is_read_here:
        return load_shards(config)
    (first,) = _examples(config, range(1))
    found = _facts(
        config,
        first.take(torch.zeros(1, dtype=torch.long)),
        tuple(map(len, divided(*split_of(config)[1:])[1])),
    )
    dataset.cache_clear()
    return found


def made_up_examples(config: Experiment, num_examples: int = 1) -> Examples:
    """Makes up examples of the declared shape, as many equal ones as asked.

    Raises:
        ConfigError: the problem cannot read such data.
    """
    assert isinstance(config.data, SiteData)
    with named_by("data", ValueError):
        check_pair(config.problem, config.data)
        blank = prepared(config, config.data.blank(), num_examples)
        return blank.take(torch.zeros(num_examples, dtype=torch.long))


def prepared(config: Experiment, found: Examples, size: int) -> Examples:
    """Returns the records that a site's file holds, as the problem reads them; ``size`` is N_i."""
    assert isinstance(config.data, SiteData)
    rows = without_persons(found)
    made = config.problem.prepare(rows, {**config.data.meta, NUM_EXAMPLES: size})
    most = getattr(config.data, "rows_per_person", None)
    return made if most is None else grouped(made, found[PERSON], most)


def _own_size(config: Experiment, partition: int, declared: int | None) -> int:
    """N_i of one client, public; ``declared`` is what the site says in its own config.

    Raises:
        ConfigError: nobody says it, or the site says another number than the config.
    """
    sizes = facts_of(config).declared
    named = declared if sizes is None else sizes[partition]
    if named is None or declared not in (None, named):
        expected = "it" if sizes is None else f"{named}, as the config says,"
        raise ConfigError(f"num-examples of this node: expected {expected} got {declared}")
    config.setting.check_sizes((named,))
    return named


def own_examples(
    config: Experiment, partition: int, path: Path | None = None, declared: int | None = None
) -> Examples:
    """Reads, prepares and checks one client's examples.

    ``path`` is the site's own file; None in a simulation, whose config names all of them. Errors
    are for the owner of the data, not for the wire. Under add-or-remove the number of examples may
    be any: neighbouring datasets differ in it.

    Raises:
        ConfigError: no path, a file that cannot be read, an invalid record, or another number of
            examples than N_i where no neighbouring dataset has one.
    """
    size = _own_size(config, partition, declared)
    examples = (
        _read(config, partition, path, size)
        if isinstance(config.data, SiteData)
        else load_shards(config).examples[partition]
    )
    return _checked(config, partition, examples)


def _checked(config: Experiment, partition: int, examples: Examples) -> Examples:
    """A client's examples, all of which something can be computed from."""
    try:
        config.problem.check_records(rows_of(examples.judged))
    except InvalidRecord as error:
        raise ConfigError(
            f"data.kind: {config.data.kind!r}: client {partition}, {error}; mend or remove the "
            "record"
        ) from None
    return examples


def _read(config: Experiment, partition: int, path: Path | None, size: int | None) -> Examples:
    """The prepared examples of a client's file, normalised by ``size``; None: by their number."""
    data = config.data
    privacy = config.privacy
    paths = simulated_paths(config)
    assert isinstance(data, SiteData)
    if path is None and not paths:
        raise ConfigError(
            "data.paths: required in a simulation, but not given; in a deployment each node names "
            "its own file (--node-config 'data-path=\"...\"')"
        )
    place = f"data: client {partition}"
    with (
        named_by(f"{place}: cannot be prepared", RuntimeError),  # a kernel that fails
        named_by(place, OSError, ValueError),
    ):
        check_pair(config.problem, data)
        found = data.read(path or paths[partition])
        size = count(found) if size is None else size
        examples = prepared(config, found, size)
    # nobody may ask if a site holds N_i examples where N_i + 1 would be a neighbour
    is_any = privacy.kind != "none" and privacy.neighboring_relation == "add-or-remove"
    if not is_any and len(examples) != size:
        raise ConfigError(
            f"data: client {partition}: expected the declared {size} examples, got "
            f"{len(examples)}; declare {len(examples)}, or use 'add-or-remove'"
        )
    return examples


def simulated_paths(config: Experiment) -> tuple[Path, ...]:
    """Lists the clients' files of a simulation; () where the config names none."""
    return tuple(map(Path, config.data.paths)) if isinstance(config.data, SiteData) else ()


def _dtype_of(config: Experiment) -> torch.dtype:
    """The type of points, vectors and records."""
    return getattr(torch, config.engine.dtype)


@lru_cache(maxsize=4)
def client_setup(config: Experiment, sizes: Sizes) -> ClientSetup:
    """Makes the setup that all clients of a process share; ``sizes`` are their N_i."""
    setting = summed(config.setting, sizes)
    return ClientSetup(
        config.minimised,
        setting.training,
        example_mechanism(setting, sizes),
        setting.held_out,
    )


def _halves(config: Experiment, examples: Examples) -> tuple[Examples, Examples | None]:
    """(for training, held out) of a client's examples; None without private evaluation."""
    held = config.setting.held_out
    privacy = config.privacy
    dtype = _dtype_of(config)
    if held is None or privacy.kind == "none":
        return examples.to(dtype), None
    shard, out = held.split(examples, privacy.neighboring_relation, config.federation.seed)
    return shard.to(dtype), out.to(dtype)


@lru_cache(maxsize=4096)
def own_node(
    config: Experiment, partition: int, path: Path | None = None, declared: int | None = None
) -> Node:
    """Makes the node of one client from its own file alone (see `own_examples`)."""
    size = _own_size(config, partition, declared)
    facts = facts_of(config)
    shard, hold_out = _halves(config, own_examples(config, partition, path, declared))
    return Node(
        client_setup(config, (size,) if facts.declared is None else facts.declared),
        shard,
        size,
        partition,
        sha256(config),
        facts.point_shape,
        config.setting.source(),
        dtype=_dtype_of(config),
        hold_out=hold_out,
    )


def client_side(config: Experiment) -> ClientSide:
    """Makes the client side of a process that plays every client."""
    facts = facts_of(config)
    return _side(config, load_shards(config).examples, facts.sizes, facts.point_shape)


def outlined_side(config: Experiment) -> ClientSide:
    """Makes a client side from public facts: one made-up example for each client, for shapes."""
    if isinstance(config.data, StreamData):
        return client_side(config)
    facts = facts_of(config)
    one = _side(config, (facts.like,), facts.sizes, facts.point_shape)
    return replace(one, shards=(one.shards[0],) * len(facts.sizes), hold_outs=())


def side_of(config: Experiment, sizes: Sizes, point_shape: Shape, members: range) -> ClientSide:
    """Makes the client side of some neighbouring clients alone, as a worker does.

    ``sizes`` are the public ones of all clients. Nobody else's file is opened; of a data set that
    the config names, nobody else's examples are prepared.
    """
    own = list(map(partial(_checked, config), members, _examples(config, members, sizes)))
    side = _side(config, own, sizes, point_shape)
    return replace(side, num_examples=sizes[members.start : members.stop])


def _side(
    config: Experiment, examples: Sequence[Examples], sizes: Sizes, point_shape: Shape
) -> ClientSide:
    both = [_halves(config, one) for one in examples]
    clients = config.federation.num_clients
    return ClientSide(
        client_setup(config, sizes),
        tuple(shard for shard, _ in both),
        point_shape,
        config.setting.source(),
        dtype=_dtype_of(config),
        num_examples=sizes,
        hold_outs=tuple(held for _, held in both if held is not None),
        rate=config.federation.cohort.expected_size(clients) / clients,
        unit=config.privacy.unit,
    )


def plan_of(config: Experiment, sizes: Sizes | None = None) -> Plan:
    """Makes the plan of the server loop; ``sizes`` are those that the sites declared."""
    return plan(config.setting, sizes or facts_of(config).sizes, config_sha256=sha256(config))


def starts(seed: int) -> torch.Generator:
    """Returns the draws of x^(0), which depend on neither algorithm nor examples."""
    return NoiseSource.from_seed(seed).generator(
        stream=Stream.INITIAL_POINT, server_round=0, partition=0
    )


def initial_point(config: Experiment) -> Tensor:
    """Makes x^(0) from the config and the seed, the same for every algorithm.

    Raises:
        ConfigError: ``problem.start`` gives something that is no point of the problem.
    """
    facts = facts_of(config)
    try:
        x = config.problem.first_point(
            facts.problem, facts.point_shape, starts(config.federation.seed)
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return x.to(_dtype_of(config))


def check_first_update(config: Experiment) -> None:
    """Tries a first update of client 0 where the config names a plug-in (`try_update`).

    Raises:
        ConfigError: with what a part raised or returned.
    """
    training = config.training
    server = config.server_update
    if not any(map(is_plugin, (training.kind, server.kind, config.problem.kind))):
        return
    if isinstance(config.data, SiteData):
        sizes = config.federation.num_examples or (1,)
        whole = made_up_examples(config, sizes[0])
    else:
        sizes = facts_of(config).sizes
        (whole,) = _examples(config, range(1))
    x = initial_point(config)
    try_update(
        f"training.kind: {training.kind!r} with strategy.kind = {server.kind!r}",
        _side(config, (whole,), sizes, tuple(x.shape)),
        server,
        x,
    )
