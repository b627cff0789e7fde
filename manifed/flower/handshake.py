"""The handshake before round 1: waits for every client and learns which node has which partition.

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
from typing import NamedTuple

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.logger import log
from flwr.serverapp import Grid

from manifed.errors import one_line, short
from manifed.federation.plan import Plan
from manifed.flower.grids import PollingGrid
from manifed.flower.records import (
    CODE_SHA256,
    CONFIG_SHA256,
    HEADER,
    BadMessage,
    MessageTransport,
    facts_from_record,
)
from manifed.runs.manifest import code_sha256
from manifed.setting import MOST_EXAMPLES

_PATIENCE = 5.0
"""Seconds that a federation of wrong or too few answers waits for nodes that may still come."""


class Introduction(NamedTuple):
    """A node's public facts: its partition, its N_i, and the hashes of its config and code."""

    partition_id: int
    num_examples: int
    config_sha256: str
    code_sha256: str


class HandshakeFailed(RuntimeError):
    """Error: the federation is not what the config says; the text names what is missing."""

    exit_code = 1


def check_code(who: str, theirs: object) -> None:
    """Refuses another side whose source files have another hash than this process's own.

    Raises:
        BadMessage: the hashes differ; the text names both.
    """
    ours = code_sha256()
    if theirs != ours:
        raise BadMessage(
            f"{who} runs manifed {short(str(theirs)[:12])}, this process {ours[:12]!r} (hashes of "
            "the code): bring both to one version and start them again"
        )


def meet(
    grid: Grid, plan: Plan, timeout: float | None = None, patience: float = _PATIENCE
) -> MessageTransport:
    """Returns the transport of a federation in which every partition has its node.

    Raises:
        HandshakeFailed: when a partition has no node that reads this config and says the (public)
            number of examples that the accounting uses: after ``timeout`` seconds (None: the reply
            policy's), ``patience`` seconds after enough nodes have all answered, or once a node of
            a simulation with too few of them has.
    """
    timeout = plan.policy.timeout if timeout is None else timeout
    met = _Meeting(grid, plan.config_sha256, plan.num_examples).held(timeout, patience)
    return MessageTransport(grid, {i: node for i, (node, _) in met.items()}, timeout)


def declared_sizes(
    grid: Grid, config_sha256: str, num_clients: int, timeout: float
) -> tuple[int, ...]:
    """Returns N_i as each site declares it; errors as `meet`."""
    met = _Meeting(grid, config_sha256, (None,) * num_clients).held(timeout, _PATIENCE)
    return tuple(size for _, size in met.values())


class _Meeting:
    """Who was asked, who has not answered yet, and whose claim was accepted."""

    def __init__(self, grid: Grid, config_sha256: str, num_examples: Sequence[int | None]) -> None:
        """``num_examples`` is public; None for a partition whose site declares it."""
        self._grid = grid
        self._config_sha256 = config_sha256
        self._num_examples = num_examples
        self._asked, self._waiting = set[int](), dict[str, int]()
        self._met: dict[int, tuple[int, int]] = {}
        """The node and the size of each partition."""
        self._problems: list[str] = []

    def held(self, timeout: float, patience: float) -> dict[int, tuple[int, int]]:
        """Ask and listen until every partition has its node, then (node, size); else as `meet`."""
        count = len(self._num_examples)
        quiet_since = time.monotonic()
        deadline = quiet_since + timeout
        told = False
        while True:
            has_answers = bool(self._met or self._problems)
            has_news = self._ask_who_is_new() | self._hear()
            if len(self._met) == count:
                return dict(sorted(self._met.items()))
            are_few = len(self._asked) < count
            now = time.monotonic()
            if has_answers and are_few and _is_simulated(self._grid):
                found = len(self._asked)
                raise HandshakeFailed(
                    f"Expected {count} clients, got {found}: a simulation of Flower has as many as "
                    f"it was started with; add --federation-config num-supernodes={count} to flwr "
                    f"run, or lower federation.num_clients to {found} (--run-config "
                    f"num-clients={found})"
                )
            quiet_since = now if has_news else quiet_since
            is_quiet = now - quiet_since > patience
            if not told and are_few and is_quiet:
                told = True
                log(30, "Handshake: %s", self._explained(timeout))
            if now > deadline or (is_quiet and not are_few and not self._waiting):
                raise HandshakeFailed(self._explained(timeout))
            time.sleep(0.05)

    def _ask_who_is_new(self) -> bool:
        """Send the query to every node that has not had it; whether there was one."""
        fresh = sorted(set(self._grid.get_node_ids()) - self._asked)
        if not fresh:
            return False
        said = ConfigRecord({CONFIG_SHA256: self._config_sha256, CODE_SHA256: code_sha256()})
        queries = [
            Message(RecordDict({HEADER: said}), dst_node_id=node, message_type=MessageType.QUERY)
            for node in fresh
        ]
        self._asked |= set(fresh)
        for node, identity in zip(fresh, self._grid.push_messages(queries), strict=False):
            if identity:
                self._waiting[identity] = node
        return True

    def _hear(self) -> bool:
        """Read what has come; whether there was anything."""
        replies = list(self._grid.pull_messages(list(self._waiting)) if self._waiting else ())
        for reply in replies:
            node = self._waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            try:
                partition, size = self._claim(reply, node)
            except Exception as error:  # whatever a reply makes a check do is that node's problem
                problem = f"node {node}: {one_line(str(error), 200)}"
                log(30, "Handshake: %s; this node is left out", problem)
                self._problems.append(problem)
                is_own = reply.metadata.src_node_id == SUPERLINK_NODE_ID
                if is_own and reply.has_error() and reply.error.code == ErrorCode.NODE_UNAVAILABLE:
                    self._asked.discard(node)  # it is gone; one that comes back is asked again
            else:
                self._met[partition] = node, size
        return bool(replies)

    def _claim(self, reply: Message, node: int) -> tuple[int, int]:
        """The partition that this reply gives ``node`` the right to answer for, and its size."""
        if reply.has_error():
            raise BadMessage(f"error {reply.error.code}: {reply.error.reason}")
        if reply.metadata.src_node_id != node:
            raise BadMessage(f"the reply is node {reply.metadata.src_node_id}'s")
        if len(reply.content) != 1:
            raise BadMessage(f"Expected a {HEADER!r} record, got {len(reply.content)} records")
        told = facts_from_record(Introduction, reply.content.get(HEADER))
        partition = told.partition_id
        size = told.num_examples
        sizes = self._num_examples
        check_code(f"client {partition}", told.code_sha256)
        if told.config_sha256 != self._config_sha256:
            raise BadMessage(
                f"client {partition} runs another config ({short(told.config_sha256)})"
            )
        if not 0 <= partition < len(sizes):
            raise BadMessage(f"partition-id {short(partition)} is outside 0..{len(sizes) - 1}")
        wanted = sizes[partition]
        if size != wanted and wanted is not None:
            raise BadMessage(
                f"client {partition} declares {short(size)} examples, the accounting uses {wanted}"
            )
        if not 1 <= size <= MOST_EXAMPLES:
            raise BadMessage(
                f"client {partition} declares {short(size)} examples, expected 1 to {MOST_EXAMPLES}"
            )
        if partition in self._met:
            raise BadMessage(
                f"partition-id {partition} was claimed before, by node {self._met[partition][0]}; "
                "register the SuperNodes' keys to know which is right"
            )
        return partition, size

    def _explained(self, timeout: float) -> str:
        """One line for a federation that is not complete."""
        count = len(self._num_examples)
        if len(self._asked) < count:
            return (
                f"Expected {count} clients within {timeout:g} s, got {len(self._asked)}; start "
                "more SuperNodes or lower federation.num_clients"
            )
        missing = sorted(set(range(count)) - set(self._met))
        reasons = "; ".join(self._problems[:3]) or "no answer"
        return f"Expected every partition to answer, missing {missing[:10]}: {reasons}"


def _is_simulated(grid: Grid) -> bool:
    """Whether the nodes are those of Flower's simulation, which has all of them when one answers.

    Flower registers them while the ServerApp already runs, and starts no ClientApp before the last.
    """
    from flwr.superlink.grid.inmemory_grid import InMemoryGrid  # late: it takes a second

    inner = grid.inner if isinstance(grid, PollingGrid) else grid
    return isinstance(inner, InMemoryGrid)
