"""A client in a ClientApp: open the message, take the local steps, write the memory last.

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

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor

from manifed.algorithms.algorithm import ClientUpdate
from manifed.errors import ConfigError
from manifed.experiment.schema import Experiment
from manifed.federation.client import ClientSetup, Node, answer
from manifed.federation.plan import Plan
from manifed.federation.replies import Header
from manifed.flower import client
from manifed.flower.client import SITE_SOCKET, absent_if_it_fails
from manifed.flower.records import HEADER, facts_from_record, pack, read_payload, shown
from manifed.flower.strategy import Privacy, is_target, keyed_by
from manifed.plan import digest, example_mechanism
from manifed.privacy.noise import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.problem import InvalidRecord, Problem
from manifed.setting import Federation, Setting

_LoadShard = Callable[[Context], Examples | Mapping[str, Tensor]]
"""This node's examples; each tensor of shape (n, *feature)."""


def _no_site(context: Context) -> Experiment:
    """Refuse to open data where the node's own config says that a site has them."""
    raise ValueError(
        f"Expected an experiment to forward to {shown(context.node_config[SITE_SOCKET])}, "
        "got an app of another kind; start the node without site-socket"
    )


def app_of(
    find: client.FindNode, experiment: Callable[[Context], Experiment] = _no_site
) -> ClientApp:
    """The ClientApp of the nodes that ``find`` makes, or of sites, asked about ``experiment``."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        """Which partition this node holds and how many examples (a public size)."""
        with absent_if_it_fails():
            client.check_server(message)
            if SITE_SOCKET in context.node_config:
                return client.introduced(message, context, experiment(context))
            return client.introduction(client.opened(find, context), message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """One client update on this node's own records, clipped and noised here."""
        with absent_if_it_fails():
            if SITE_SOCKET in context.node_config:
                return client.answered(message, context, experiment(context))
            node = client.opened(find, context)
            header = facts_from_record(Header, message.content.get(HEADER))
            down = partial(read_payload, message.content)
            made = answer(node, header, down, client.kept_of(context, node))  # the local steps
            up = pack(header, made.up, noise_origin=made.noise_origin)
            reply = Message(up, reply_to=message)
            if made.kept is not None:
                client.keep(made.kept, context, node)
            return reply

    return app


def client_app(
    problem: Problem,
    update: ClientUpdate,
    load_shard: _LoadShard,
    *,
    privacy: Privacy | None = None,
    source: NoiseSource | None = None,
    plan: Plan | None = None,
) -> ClientApp:
    """The ClientApp of nodes that run ``update`` on the examples that ``load_shard`` gives them.

    A node's ``partition-id`` (of its node config) says which client it is. ``privacy`` must be what
    the server's strategy states; under `ClientLevel` the server adds the noise. ``source`` is a
    seeded one in tests. A ``plan`` that this side made itself takes the place of ``privacy``.

    Raises:
        ConfigError: noise that depends on what a client alone does not know.
    """
    if plan is None:
        own = keyed_by(privacy, source)
        one = Federation(num_clients=1, num_rounds=1)
        if is_target(own):
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
        return Node(setup, shard, partition, agreed, shape, lambda: source or fresh())

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
