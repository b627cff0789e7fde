"""A ClientApp of one's own: a problem, a client update, one's own data, one's own privacy.

The client loads its shard once in a process and checks every record before the first gradient; an
error there stays in the node's log, and the server sees an absent node. What protects the shard
(clip, noise) is computed from this object and never from a message. The server is refused when it
states other privacy parameters. What an algorithm remembers between rounds lives in Flower's
``Context.state`` and never travels; noise is drawn with a fresh key of the operating system for
every client update, unless a seeded source is given.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from flwr.app import Context
from flwr.clientapp import ClientApp
from torch import Tensor

from manifed.algorithms.interface import ClientUpdate
from manifed.errors import ConfigError
from manifed.federation.client import ClientSetup, Node
from manifed.flower.client import client_app as app_of
from manifed.flower.client import partition_of
from manifed.flower.privacy import Privacy, agreement
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.noise import NoiseSource
from manifed.problems.base import Examples
from manifed.problems.finite_sum import FiniteSum
from manifed.problems.records import InvalidRecord

LoadShard = Callable[[Context], Examples | Mapping[str, Tensor]]
"""This node's examples; each tensor of shape (n, *feature)."""


def client_app(
    problem: FiniteSum,
    update: ClientUpdate,
    load_shard: LoadShard,
    *,
    privacy: Privacy | None = None,
    source: NoiseSource | None = None,
) -> ClientApp:
    """The ClientApp of nodes that run ``update`` on the examples that ``load_shard`` gives them.

    A node's ``partition-id`` (of its node config) says which client it is. ``privacy`` must be what
    the server's strategy states; under `ClientLevel` the server adds the noise. ``source`` is a
    seeded one in tests.
    """
    own = None if privacy is None else replace(privacy, update=update, num_examples=())
    digest = agreement(problem.manifold, update, own)
    mechanism = ExampleMechanism() if own is None else own.example_mechanism
    setup = ClientSetup(problem, update, mechanism)
    loaded: dict[int, Examples] = {}

    def fresh() -> NoiseSource:
        return source or NoiseSource.from_os()

    def find(context: Context) -> Node:
        partition = partition_of(context)
        if partition not in loaded:
            loaded[partition] = _checked(problem, load_shard(context))
        shard = loaded[partition]
        shape = problem.point_shape(shard)
        return Node(setup, shard, partition, digest, shape, fresh)

    return app_of(find)


def _checked(problem: FiniteSum, found: Examples | Mapping[str, Tensor]) -> Examples:
    """The shard, of which every record can be computed with.

    Raises:
        ConfigError: for an empty shard; `InvalidRecord` for a record, by its number.
    """
    if isinstance(found, Examples):
        shard = found
    else:
        tensors = {name: torch.as_tensor(tensor) for name, tensor in found.items()}
        try:
            shard = Examples.of_columns(tensors)
        except ValueError as error:
            raise ConfigError(f"load_shard: {error}") from None
    if len(shard) < 1:
        raise ConfigError("load_shard: expected at least one example, got none")
    for name, tensor in shard.tensors.items():
        bad = (~torch.isfinite(tensor)).reshape(len(shard), -1).any(1).nonzero()
        if len(bad):
            raise InvalidRecord(f"record {int(bad[0])}: expected finite entries in {name!r}")
    problem.check_records(shard)
    return shard
