"""What is computed together is decided by the config alone, and shared out as whole stacks."""

import pytest

from manifed.errors import ConfigError
from manifed.experiment.assembly import client_side
from manifed.experiment.load import parse
from manifed.federation.stack import Chunking


def chunking(chunk_clients=3, **federation):
    table = {
        "name": "chunks",
        "problem": {"kind": "least-squares"},
        "data": {"kind": "synthetic-least-squares", "num_clients": 10, "rows": 4},
        "federation": {"num_clients": 10, "num_rounds": 1, "partition": {"kind": "natural"}},
        "training": {"kind": "rsgd", "step_size": 0.1, "minibatch": {"kind": "full"}},
    }
    table["federation"] |= federation
    return Chunking.of(client_side(parse(table)), "cpu", 64, chunk_clients)


def test_a_chunk_holds_those_of_one_stack_who_are_asked():
    found = chunking()
    assert found.stacks == [range(3), range(3, 6), range(6, 9), range(9, 10)]
    asked = (0, 2, 3, 8, 9)
    assert found.cut(asked, [0, 1, 2, 3, 4]) == [[0, 1], [2], [3], [4]]


def test_where_few_are_asked_stacks_are_larger_and_chunks_are_not():
    found = chunking(2, cohort={"kind": "fixed-size", "cohort_size": 4})
    assert found.stacks == [range(5), range(5, 10)]
    assert found.cut((0, 1, 4, 7), [0, 1, 2, 3]) == [[0, 1], [2], [3]]


def test_workers_get_whole_stacks_and_never_none():
    found = chunking()
    for workers in (1, 2, 3, 4):
        shares = found.shared(workers)
        assert [k for share in shares for k in share] == [0, 1, 2, 3]
        assert all(shares)
    with pytest.raises(ConfigError, match="expected at most 4, the number of chunks of 3 clients"):
        found.shared(5)
