"""Before round 1: wait for every client, learn which node holds which partition.

Flower registers nodes while the ServerApp already runs and gives them random ids; a strategy that
samples node ids at once samples from whoever happened to be there. Here every node that appears is
asked once, and the run starts as soon as each partition has one valid claim; from then on only
partitions are sampled. Both sides say which code they run, and refuse each other's when it differs.

A deployment's nodes may come late and are waited for. The nodes of Flower's simulation are all
there when the first of them answers, and too few of them end the run then.

A node that is not part of the federation cannot stop this: a reply that is an error, malformed, or
no valid claim is logged and left out. The first valid claim of a partition wins. Who claims it
cannot be told from here: that takes SuperNodes with registered keys (docs/deployment.md).

The number of examples in a reply is N_i, a public constant: what the config says, or what a site
declares (`declared_sizes` asks before anything is priced). What a site really holds is not asked.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.logger import log
from flwr.serverapp import Grid

from manifed.federation.replies import plain
from manifed.flower import keys
from manifed.flower.polling import is_simulated
from manifed.flower.records import BadMessage, facts_from_record, facts_to_record, shown
from manifed.runs.manifest import code_sha256
from manifed.setting import MOST_EXAMPLES

PATIENCE = 5.0
"""Seconds that a federation of wrong or too few answers waits for nodes that may still come."""
_PAUSE = 0.05


@dataclass(frozen=True)
class Introduction:
    """What a node says of itself, all of it public."""

    partition_id: int
    num_examples: int
    config_sha256: str
    code_sha256: str


class HandshakeFailed(RuntimeError):
    """The federation is not what the config says; the text names what is missing."""

    exit_code = 1


def check_code(who: str, theirs: object) -> None:
    """Whether the other side runs the very source files that this process runs.

    Raises:
        BadMessage: it does not; the text names both hashes.
    """
    ours = code_sha256()
    if theirs != ours:
        raise BadMessage(
            f"{who} runs manifed {shown(str(theirs)[:12])}, this process {ours[:12]!r} (hashes of "
            "the code): bring both to one version and start them again"
        )


def meet(
    grid: Grid,
    config_sha256: str,
    num_examples: Sequence[int],
    timeout: float,
    patience: float = PATIENCE,
) -> dict[int, int]:
    """Partition -> node id for all partitions of the federation.

    Raises:
        HandshakeFailed: when a partition has no node that reads this config and says the (public)
            number of examples that the accounting uses: after ``timeout`` seconds,
            ``patience`` seconds after enough nodes have all answered, or once a node of a
            simulation with too few of them has.
    """
    met = _Meeting(config_sha256, num_examples)
    met.hold(grid, timeout, patience)
    return dict(sorted(met.nodes.items()))


def declared_sizes(
    grid: Grid, config_sha256: str, num_clients: int, timeout: float, patience: float = PATIENCE
) -> tuple[int, ...]:
    """N_i as each site declares it; errors as `meet`."""
    met = _Meeting(config_sha256, (None,) * num_clients)
    met.hold(grid, timeout, patience)
    return tuple(met.sizes[i] for i in range(num_clients))


@dataclass
class _Meeting:
    """Who was asked, who has not answered yet, and whose claim was accepted."""

    config_sha256: str
    num_examples: Sequence[int | None]
    """The public number of examples of each partition; None where its site declares it."""
    asked: set[int] = field(default_factory=set[int])
    waiting: dict[str, int] = field(default_factory=dict[str, int])
    nodes: dict[int, int] = field(default_factory=dict[int, int])
    sizes: dict[int, int] = field(default_factory=dict[int, int])
    problems: list[str] = field(default_factory=list[str])

    def hold(self, grid: Grid, timeout: float, patience: float) -> None:
        """Ask and listen until every partition has its node; errors as `meet`."""
        count = len(self.num_examples)
        quiet_since = time.monotonic()
        deadline = quiet_since + timeout
        told = False
        while True:
            has_answers = bool(self.nodes or self.problems)
            has_news = self.ask_who_is_new(grid)
            has_news |= self.hear(grid)
            if len(self.nodes) == count:
                return
            are_few, now = len(self.asked) < count, time.monotonic()
            if has_answers and are_few and is_simulated(grid):
                raise HandshakeFailed(self.explain_simulation())
            quiet_since = now if has_news else quiet_since
            is_quiet = now - quiet_since > patience
            if not told and are_few and is_quiet:
                told = True
                log(30, "Handshake: %s", self.explain(timeout))
            if now > deadline or (is_quiet and not are_few and not self.waiting):
                raise HandshakeFailed(self.explain(timeout))
            time.sleep(_PAUSE)

    def ask_who_is_new(self, grid: Grid) -> bool:
        """Send the query to every node that has not had it; whether there was one."""
        fresh = sorted(set(grid.get_node_ids()) - self.asked)
        if not fresh:
            return False
        messages = [_query(node, self.config_sha256) for node in fresh]
        self.asked |= set(fresh)
        for node, identity in zip(fresh, grid.push_messages(messages), strict=False):
            if identity:
                self.waiting[identity] = node
        return True

    def hear(self, grid: Grid) -> bool:
        """Read what has come; whether there was anything."""
        replies = list(grid.pull_messages(list(self.waiting)) if self.waiting else ())
        for reply in replies:
            node = self.waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            try:
                partition = self._claim(reply, node)
            except Exception as error:  # whatever a reply makes a check do is that node's problem
                problem = f"node {node}: {plain(error)}"
                log(30, "Handshake: %s; this node is left out", problem)
                self.problems.append(problem)
                if _is_lost(reply):
                    self.asked.discard(node)
            else:
                self.nodes[partition] = node
        return bool(replies)

    def _claim(self, reply: Message, node: int) -> int:
        """The partition that this reply gives ``node`` the right to answer for."""
        if reply.has_error():
            raise BadMessage(f"error {reply.error.code}: {plain(reply.error.reason)}")
        if reply.metadata.src_node_id != node:
            raise BadMessage(f"the reply is node {reply.metadata.src_node_id}'s")
        if len(reply.content) != 1:
            raise BadMessage(f"Expected a {keys.HEADER!r} record, got {len(reply.content)} records")
        told = facts_from_record(Introduction, reply.content.get(keys.HEADER))
        partition, size, sizes = told.partition_id, told.num_examples, self.num_examples
        check_code(f"client {partition}", told.code_sha256)
        if told.config_sha256 != self.config_sha256:
            raise BadMessage(
                f"client {partition} runs another config ({shown(told.config_sha256)})"
            )
        if not 0 <= partition < len(sizes):
            raise BadMessage(f"partition-id {shown(partition)} is outside 0..{len(sizes) - 1}")
        wanted = sizes[partition]
        if size != wanted and wanted is not None:
            raise BadMessage(
                f"client {partition} declares {shown(size)} examples, the accounting uses {wanted}"
            )
        if not 1 <= size <= MOST_EXAMPLES:
            raise BadMessage(
                f"client {partition} declares {shown(size)} examples, expected 1 to {MOST_EXAMPLES}"
            )
        if partition in self.nodes:
            raise BadMessage(
                f"partition-id {partition} was claimed before, by node {self.nodes[partition]}; "
                "register the SuperNodes' keys to know which is right"
            )
        self.sizes[partition] = size
        return partition

    def explain_simulation(self) -> str:
        """One line for a simulation with fewer nodes than clients, with what mends it."""
        count, found = len(self.num_examples), len(self.asked)
        return (
            f"Expected {count} clients, got {found}: a simulation of Flower has as many as it was "
            f"started with; add --federation-config num-supernodes={count} to flwr run, or lower "
            f"federation.num_clients to {found} (--run-config num-clients={found})"
        )

    def explain(self, timeout: float) -> str:
        """One line for a federation that is not complete."""
        count = len(self.num_examples)
        if len(self.asked) < count:
            return (
                f"Expected {count} clients within {timeout:g} s, got {len(self.asked)}; start more "
                "SuperNodes or lower federation.num_clients"
            )
        missing = sorted(set(range(count)) - set(self.nodes))
        reasons = "; ".join(self.problems[:3]) or "no answer"
        return f"Expected every partition to answer, missing {missing[:10]}: {reasons}"


def _is_lost(reply: Message) -> bool:
    """Whether the SuperLink says that the node is gone; one that comes back is asked again."""
    is_own = reply.metadata.src_node_id == SUPERLINK_NODE_ID
    return is_own and reply.has_error() and reply.error.code == ErrorCode.NODE_UNAVAILABLE


def _query(node: int, config_sha256: str) -> Message:
    header = ConfigRecord({keys.CONFIG_SHA256: config_sha256, keys.CODE_SHA256: code_sha256()})
    content = RecordDict({keys.HEADER: header})
    return Message(content, dst_node_id=node, message_type=MessageType.QUERY)


def introduction(said: Introduction, query: Message) -> Message:
    """A node's reply to the handshake's query."""
    return Message(RecordDict({keys.HEADER: facts_to_record(said)}), reply_to=query)
