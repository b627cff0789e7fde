"""A ClientApp around a client update: it opens the message, takes the local steps, replies.

`app_of` is the ClientApp that every run of manifed has. `client_app` makes one of one's own: a
problem, a client update, one's own data, one's own privacy. Its nodes load their shard once in a
process and check every record before the first gradient. What protects the shard (clip, noise) is
computed from this object and never from a message; the server is refused when it states other
privacy parameters. What an algorithm remembers between rounds lives in Flower's ``Context.state``
and never travels; noise is drawn with a fresh key of the operating system for every client update,
unless a seeded source is given.
"""

from collections.abc import Callable, Mapping
from functools import partial
from logging import ERROR

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import log
from torch import Tensor

from manifed.algorithms.algorithm import ClientUpdate
from manifed.algorithms.payloads import BadBroadcast
from manifed.errors import ConfigError
from manifed.experiment.schema import Experiment
from manifed.federation.client import ClientSetup, Node, answer
from manifed.federation.exchange import BadMessage, Header
from manifed.federation.plan import Plan
from manifed.flower import client
from manifed.flower.client import SITE_SOCKET
from manifed.flower.handshake import Introduction, check_code
from manifed.flower.records import (
    CODE_SHA256,
    HEADER,
    facts_from_record,
    facts_to_record,
    pack,
    read_payload,
    shown,
)
from manifed.flower.strategy import keyed_by
from manifed.plan import digest, example_mechanism
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.problem import InvalidRecord, Problem
from manifed.runs.manifest import code_sha256
from manifed.setting import Federation, Privacy, Setting


def _no_site(context: Context) -> Experiment:
    """Refuse to open data where the node's own config says that a site has them."""
    raise ValueError(
        f"Expected an experiment to forward to {shown(context.node_config[SITE_SOCKET])}, "
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
    find: client.FindNode, experiment: Callable[[Context], Experiment] = _no_site
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
            own = client.site_introduction(context, experiment(context))
        else:
            node = client.opened(find, context)
            own = Introduction(node.partition, node.num_examples, node.digest, code_sha256())
        return Message(RecordDict({HEADER: facts_to_record(own)}), reply_to=message)

    @app.train()
    @absent_if_it_fails
    def train(message: Message, context: Context) -> Message:
        """One client update on this node's own records, clipped and noised here."""
        header = facts_from_record(Header, message.content.get(HEADER))
        if SITE_SOCKET in context.node_config:
            up = client.site_answer(message.content, header, context, experiment(context))
            return Message(up, reply_to=message)
        node = client.opened(find, context)
        memory = client.Memory(context, node)
        down = partial(read_payload, message.content)
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
    one in tests. A ``plan`` that this side made itself takes the place of ``privacy``.

    Raises:
        ConfigError: noise that depends on what a client alone does not know.
    """
    if plan is None:
        own = keyed_by(privacy, source)
        one = Federation(num_clients=1, num_rounds=1)
        if own.noise.kind == "target":
            raise ConfigError(
                "privacy.noise.kind: the noise of a 'target' depends on all rounds and sizes, "
                "which a client alone does not know; give plan=manifed.plan.plan(setting, sizes)"
            )
        setting = Setting(one, update, problem.manifold, privacy=own, problem=problem)
        mechanism = example_mechanism(setting, (1,))
        fresh = setting.fresh_source
        agreed = digest(setting, mechanism)
    else:
        mechanism = plan.client_mechanism
        fresh = plan.client_source
        agreed = plan.config_sha256
    setup = ClientSetup(problem, update, mechanism)
    loaded: dict[int, Examples] = {}

    def find(context: Context) -> Node:
        partition = client.partition_of(context)
        if partition not in loaded:
            loaded[partition] = _checked(problem, load_shard(context))
        shard = loaded[partition]
        shape = problem.point_shape(shard)
        return Node(setup, shard, len(shard), partition, agreed, shape, lambda: source or fresh())

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
    for name, tensor in shard.tensors.items():
        bad = (~torch.isfinite(tensor)).reshape(len(shard), -1).any(1).nonzero()
        if len(bad):
            raise InvalidRecord(f"record {int(bad[0])}: expected finite entries in {name!r}")
    problem.check_records(shard)
    return shard
