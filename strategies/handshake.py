"""Before round 1: wait for every client, learn which node holds which partition.

Flower registers nodes while the ServerApp already runs and gives them random ids; a strategy that
samples node ids at once samples from whoever happened to be there. Here the run starts when all
partitions have answered one query, and from then on only partitions are sampled.
"""

import time
from collections.abc import Iterable

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from wire import keys


class HandshakeFailed(RuntimeError):
    """The federation is not what the config says; the text names what is missing."""


def wait_for_nodes(grid: Grid, count: int, timeout: float) -> list[int]:
    """Node ids of at least ``count`` connected clients, ascending.

    Raises:
        HandshakeFailed: when fewer are there after ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        nodes = sorted(grid.get_node_ids())
        if len(nodes) >= count:
            return nodes
        if time.monotonic() > deadline:
            raise HandshakeFailed(
                f"Expected {count} clients within {timeout:g} s, got {len(nodes)}; start more "
                "SuperNodes or lower federation.num_clients"
            )
        time.sleep(0.1)


def meet(
    grid: Grid, config_sha256: str, num_examples: tuple[int, ...], timeout: float
) -> dict[int, int]:
    """Partition -> node id for all partitions of the federation.

    Raises:
        HandshakeFailed: when a partition is missing or doubled, a client read another config, or
            holds another number of examples than the (public) size the accounting uses.
    """
    count = len(num_examples)
    nodes = wait_for_nodes(grid, count, timeout)
    letters = [_query(node, config_sha256) for node in nodes]
    replies = grid.send_and_receive(letters, timeout=timeout)
    return _read(replies, config_sha256, num_examples)


def _query(node: int, config_sha256: str) -> Message:
    content = RecordDict({keys.LETTER: ConfigRecord({keys.CONFIG_SHA256: config_sha256})})
    return Message(content, dst_node_id=node, message_type=MessageType.QUERY)


def _read(
    replies: Iterable[Message], config_sha256: str, num_examples: tuple[int, ...]
) -> dict[int, int]:
    nodes: dict[int, int] = {}
    problems: list[str] = []
    for reply in replies:
        node = reply.metadata.src_node_id
        if reply.has_error():
            problems.append(f"node {node}: {reply.error.reason}")
            continue
        record = reply.content.config_records[keys.LETTER]
        partition, size = int(str(record[keys.PARTITION_ID])), int(str(record[keys.NUM_EXAMPLES]))
        if record[keys.CONFIG_SHA256] != config_sha256:
            problems.append(
                f"client {partition} runs another config ({record[keys.CONFIG_SHA256]})"
            )
        elif not 0 <= partition < len(num_examples):
            problems.append(f"partition-id {partition} is outside 0..{len(num_examples) - 1}")
        elif partition in nodes:
            problems.append(f"partition-id {partition} was claimed by two nodes")
        elif size != num_examples[partition]:
            problems.append(
                f"client {partition} holds {size} examples, the accounting uses "
                f"{num_examples[partition]}"
            )
        else:
            nodes[partition] = node
    missing = sorted(set(range(len(num_examples))) - set(nodes))
    if missing or problems:
        shown = "; ".join(problems[:3]) or "no answer"
        raise HandshakeFailed(
            f"Expected every partition to answer, missing {missing[:10]}: {shown}"
        )
    return nodes
