"""`manifed privacy secure-sum` prints the numbers of the specification, and refuses in one line."""

import json

import pytest

from tests.command import invoke

TABLE = [  # n, D, c, M, T, epsilon, d: z, B, variance, server and everybody with nobody silent
    (10, 0, 0, 1797, 20, 1, 64, 16.683892, 65536, 119551380148, 1.0, 3.6186),
    (10, 3, 2, 1797, 20, 1, 64, 16.683892, 65536, 239102760296, 0.6841, 2.4421),
    (100, 33, 10, None, 100, 2, 3920, 19.938124, 65536, 119815664885, 1.4634, 22.652),
    (1000, 333, 50, None, 100, 2, 3920, 19.938124, 65536, 11068870176, 1.529, 129.88),
    (10, 3, 2, 60000, 50, 1, 3920, 26.379549, 35592, 176306986634, 0.6841, 2.4421),
    (1000, 300, 100, 10**6, 100, 0.5, 64, 70.318267, 2145, 37917497, 0.3785, 20.2735),
]


def options(nodes, silent, colluding, most, rounds, epsilon, size):
    what = ["--client-level", "--replace-one"] if most is None else ["--examples", most]
    given = ["--nodes", nodes, "--dropped", silent, "--collusion", colluding, "--rounds", rounds]
    given += ["--epsilon", epsilon, "--dimension", size, *what]
    return ["privacy", "secure-sum", *map(str, given)]


@pytest.mark.parametrize("row", TABLE)
def test_the_numbers_are_those_of_the_specification(row):
    given = row[:7]
    found = json.loads(invoke(*options(*given), "--json").stdout.splitlines()[-1])
    prices = {one["adversary"]: one for one in found["adversaries"]}
    floor = prices["coalition"]["epsilon_with_silent_nodes"]
    assert floor <= given[5]
    numbers = [found["noise_multiplier"], found["bound"], found["variance"]]
    numbers += [prices[name]["epsilon"] for name in ("server", "everybody")]
    assert [*numbers, floor] == pytest.approx([*row[7:], given[5]], rel=1e-4)
    assert found["bits"] == 32
    nodes, k, size = given[0], found["neighbours"], given[6]
    up = {name: one["up"] for name, one in found["bytes"].items()}
    assert up["offer"] + up["confirm"] == 160 + 64
    assert up["deal"] == (146 + 1) * k
    assert up["send"] == 4 * size + k
    assert up["reveal"] == 33 * (k + 1)
    assert found["bytes"]["confirm"]["down"] == -(-nodes // 8)


def test_what_cannot_be_planned_is_refused():
    row = [*TABLE[1][:7]]
    for place, value in ((1, 4), (2, 9), (3, 3), (4, 10**9), (5, 1e9), (6, 0)):
        ended = invoke(*options(*row[:place], value, *row[place + 1 :]), "--delta", 1e-300)
        assert (ended.exit_code, len(ended.stderr.strip().splitlines())) == (2, 1)
