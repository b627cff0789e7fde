"""A ClientApp around a client update: it opens the message, takes the local steps, replies.

What a client adds to its gradients comes from its own reading of the config, never from the
message; a message of another config is refused. An error stays in this node's own log: the server
learns that the node is absent, and no more.

`app_of` is the ClientApp that every run of manifed has. `client_app` makes one of one's own: a
problem, a client update, one's own data, one's own privacy. Its nodes load their shard once in a
process and check every record before the first gradient; the server is refused when it states other
privacy parameters. What an algorithm remembers between rounds lives in Flower's ``Context.state``
and never travels; noise is drawn with a fresh key of the operating system for every client update,
unless a seeded source is given.
"""

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from logging import ERROR
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import log
from torch import Tensor

from manifed.algorithms.algorithm import ClientUpdate
from manifed.algorithms.payloads import BadBroadcast
from manifed.errors import ConfigError, short
from manifed.experiment.assembly import own_node
from manifed.experiment.schema import Experiment
from manifed.federation.client import ClientSetup, Node, answer, check_maps
from manifed.federation.exchange import BadMessage, Header
from manifed.federation.memory import Kept, MemoryStore
from manifed.federation.plan import Plan
from manifed.flower.client import SITE_SOCKET, site_answer, site_introduction
from manifed.flower.handshake import Introduction, check_code
from manifed.flower.records import (
    CODE_SHA256,
    CONFIG_SHA256,
    HEADER,
    facts_from_record,
    facts_to_record,
    pack,
    read_tensors,
    tensors_from_record,
    tensors_to_record,
)
from manifed.flower.strategy import keyed_by
from manifed.plan import digest, example_mechanism
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.problem import Problem
from manifed.runs.manifest import code_sha256
from manifed.setting import Federation, Privacy, Setting


def _partition_of(context: Context, count: int | None = None) -> int:
    """Returns this node's partition, checked against ``count`` where that is known.

    Raises:
        BadMessage: when the node's own config does not name it.
    """
    partition = context.node_config.get("partition-id")
    if type(partition) is not int or partition < 0 or (count is not None and partition >= count):
        last = "federation.num_clients - 1" + ("" if count is None else f" = 0..{count - 1}")
        raise BadMessage(
            f"Expected a whole partition-id of this node in 0..{last}, got {short(partition)}"
        )
    return partition


def node_of(config: Experiment, context: Context) -> Node:
    """Makes the node of an experiment, which opens only the file that its node config names."""
    partition = _partition_of(context, config.federation.num_clients)
    path = context.node_config.get("data-path")
    declared = context.node_config.get("num-examples")
    if not (declared is None or type(declared) is int):
        raise BadMessage(f"Expected a whole num-examples of this node, got {short(declared)}")
    return own_node(config, partition, None if path is None else Path(str(path)), declared)


def _opened(find: Callable[[Context], Node], context: Context) -> Node:
    """This node with its records read.

    Raises:
        BadMessage: the node is pinned to another config. Others as ``find``.
    """
    node = find(context)
    pinned = context.node_config.get(CONFIG_SHA256)
    if pinned is not None and pinned != node.digest:
        raise BadMessage(f"This node is pinned to config {pinned}, the run has {node.digest}")
    return node


class _Memory:
    """A node's memory of its client in this run of Flower's.

    Flower keeps a context in the memory of one SuperNode process, which is enough where no node can
    die alone. A deployed node has ``state-dir`` in its own config, or ``manifed`` in its Flower
    home, so that a restart loses nothing.
    """

    def __init__(self, context: Context, node: Node) -> None:
        """Read what the node of a context kept.

        Raises:
            ValueError: ``state-dir`` is no absolute path.
        """
        self._context, self._node = context, node
        named = context.node_config.get("state-dir")
        # the program that a SuperNode starts for each message
        if named is None and Path(sys.argv[0]).name == "flwr-clientapp":
            named = str(
                Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr").absolute() / "manifed"
            )
        if named is not None and not (isinstance(named, str) and Path(named).is_absolute()):
            raise ValueError(
                f"Expected an absolute path as this node's state-dir, got {short(named)}"
            )
        self._store = None if named is None else MemoryStore(Path(named) / "memory")
        self.kept: Kept | None = None
        """What was written last."""
        state = context.state
        if self._store is not None:
            self.kept = self._store.read(str(context.run_id), node.partition)
        elif "memory" in state.array_records:
            self.kept = Kept(
                facts_from_record(Header, state["memory-tag"]),
                tensors_from_record(state.array_records["memory"]),
            )

    def keep(self, kept: Kept) -> None:
        """Write what a client remembers, once its reply is made; an error keeps nothing."""
        if self._store is not None:
            training = self._node.setup.training
            lasts = training.remembers_setup or training.memory_is_required
            self._store.write(str(self._context.run_id), self._node.partition, kept, lasts=lasts)
            return
        self._context.state["memory"] = tensors_to_record(kept.tensors)
        self._context.state["memory-tag"] = facts_to_record(kept.header)


def _no_site(context: Context) -> Experiment:
    """Refuse to open data where the node's own config says that a site has them."""
    raise ValueError(
        f"Expected an experiment to forward to {short(context.node_config[SITE_SOCKET])}, "
        "got an app of another kind; start the node without site-socket"
    )


class Absent(RuntimeError):
    """Error: the node cannot take part; the server learns that it is absent, and no more."""

    def __init__(self) -> None:
        super().__init__("this node is absent; its own log says why")


def absent_if_it_fails(
    handle: Callable[[Message, Context], Message],
) -> Callable[[Message, Context], Message]:
    """Raises `Absent` for an error, whose text may hold data and stays in this node's own log.

    A BadMessage or BadBroadcast, which say what came alone, stay as they are.
    """

    def handled(message: Message, context: Context) -> Message:
        try:
            return handle(message, context)
        except (BadMessage, BadBroadcast):
            raise
        except Exception as error:
            log(ERROR, "this node is absent: %s: %s", type(error).__name__, error)
            raise Absent from None

    return handled


def app_of(
    find: Callable[[Context], Node], experiment: Callable[[Context], Experiment] = _no_site
) -> ClientApp:
    """Makes the ClientApp of the nodes that ``find`` makes, or of sites, for ``experiment``."""
    app = ClientApp()

    @app.query()
    @absent_if_it_fails
    def query(message: Message, context: Context) -> Message:
        """Which partition this node holds and how many examples (a public size)."""
        asked = message.content.config_records.get(HEADER, ConfigRecord())
        check_code("the server", asked.get(CODE_SHA256))
        if SITE_SOCKET in context.node_config:
            own = site_introduction(context, experiment(context))
        else:
            node = _opened(find, context)
            own = Introduction(node.partition, node.num_examples, node.digest, code_sha256())
        return Message(RecordDict({HEADER: facts_to_record(own)}), reply_to=message)

    @app.train()
    @absent_if_it_fails
    def train(message: Message, context: Context) -> Message:
        """One client update on this node's own records, clipped and noised here."""
        header = facts_from_record(Header, message.content.get(HEADER))
        if SITE_SOCKET in context.node_config:
            up = site_answer(message.content, header, context, experiment(context))
            return Message(up, reply_to=message)
        node = _opened(find, context)
        memory = _Memory(context, node)
        down = partial(read_tensors, message.content)
        made = answer(node, header, down, memory.kept)  # the local steps
        up = pack(header, made.up, noise_origin=made.noise_origin)
        reply = Message(up, reply_to=message)
        if made.kept is not None:
            memory.keep(made.kept)
        return reply

    return app


def client_app(
    problem: Problem,
    update: ClientUpdate,
    load_shard: Callable[[Context], Examples | Mapping[str, Tensor]],
    *,
    privacy: Privacy | None = None,
    source: NoiseSource | None = None,
    plan: Plan | None = None,
) -> ClientApp:
    """Makes the ClientApp of nodes that run ``update`` on the examples of ``load_shard``.

    ``load_shard`` gives a node's examples, each tensor of shape (n, *feature). A node's
    ``partition-id`` (of its node config) says which client it is. ``privacy`` must be what the
    server's strategy states; under `ClientLevel` the server adds the noise. ``source`` is a seeded
    one in tests. A ``plan`` that this side made itself takes the place of ``update`` and
    ``privacy``.

    Raises:
        ConfigError: noise that depends on what a client alone does not know.
    """
    if plan is None:
        own = keyed_by(privacy, source)
        one = Federation(num_clients=1, num_rounds=1)
        if own.noise.kind == "target" or own.trust is not None:
            what = "the noise of a 'target'" if own.trust is None else "a secure sum"
            raise ConfigError(
                f"privacy: {what} depends on all rounds and sizes, which a client alone does not "
                "know; give plan=manifed.plan.plan(setting, sizes)"
            )
        setting = Setting(one, update, problem.manifold, privacy=own, problem=problem)
        mechanism = example_mechanism(setting, (1,))
        own_source = NoiseSource.from_os(precision=own.noise_precision)
        agreed = digest(setting, mechanism)
    else:
        update = plan.training
        mechanism = plan.client_mechanism
        own_source = plan.client_source
        agreed = plan.config_sha256
    setup = ClientSetup(problem, update, mechanism)
    loaded: dict[int, Examples] = {}

    def find(context: Context) -> Node:
        partition = _partition_of(context)
        if partition not in loaded:
            loaded[partition] = _checked(problem, load_shard(context))
        shard = loaded[partition]
        shape = problem.point_shape(shard)
        check_maps(problem.manifold, problem.manifold.random(*shape, generator=torch.Generator()))
        return Node(setup, shard, len(shard), partition, agreed, shape, source or own_source)

    return app_of(find)


def _checked(problem: Problem, found: Examples | Mapping[str, Tensor]) -> Examples:
    """The shard, of which every record can be computed with.

    Raises:
        ConfigError: for an empty shard; `InvalidRecord` for a record, by its number.
    """
    if isinstance(found, Examples):
        shard = found
    else:
        tensors = {name: torch.as_tensor(tensor) for name, tensor in found.items()}
        try:
            shard = Examples(tensors)
        except ValueError as error:
            raise ConfigError(f"load_shard: {error}") from None
    if len(shard) < 1:
        raise ConfigError("load_shard: expected at least one example, got none")
    problem.check_finite(shard)
    problem.check_records(shard)
    return shard
