"""What docs/stability.md promises is what is there: API, config keys and file formats."""

import copy
import json

from tests.house.stability import SNAPSHOT, differences, everything


def test_what_others_rely_on_is_as_promised():
    promised = json.loads(SNAPSHOT.read_text())
    found = differences(promised, everything())
    assert not found, "\n".join(
        ["`python -m tests.house.stability --write` if this is on purpose:", *found]
    )


def test_a_parameter_a_key_and_a_field_that_go_are_noticed():
    promised = json.loads(SNAPSHOT.read_text())
    now = copy.deepcopy(promised)
    now["api"]["manifed.fit"].pop()
    del now["config"]["federation.num_rounds"]
    now["formats"]["ledger"] += 1
    signs = [line[0] for line in differences(promised, now)[2:]]
    assert (signs.count("@"), signs.count("-"), signs.count("+")) == (3, 4, 2)
