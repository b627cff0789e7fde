"""Totals of scheduled releases: golden values, brackets that hold, and their limits."""

import math
import re

import numpy as np
import pytest

from manifed.privacy import epsilon_bounds
from manifed.privacy.events import Release
from manifed.schedules import (
    Constant,
    Geometric,
    Hyperbolic,
    Polynomial,
)
from reproduction import endless
from reproduction.endless import Releases, epsilon_of_rho, printed_sum
from reproduction.powers import EXAMPLES, polynomial

TERMS = 20_000
SHORT = 200


def example(number, **changes):
    one = EXAMPLES[number]
    return Releases(
        algorithm=one.algorithm, schedules=one.schedules, sensitivity=one.sensitivity, **changes
    )


def with_(algorithm="gradient", noise="laplace", lipschitz=0.0, **exponents):
    given = {"alpha": 0.9, "beta": 0.6, "gamma": 1.1, "eta": 0.05, **exponents}
    schedules = polynomial(**given)
    return Releases(
        algorithm=algorithm, schedules=schedules, sensitivity=0.2, noise=noise, lipschitz=lipschitz
    )


def scheduled(algorithm="gradient", **changed):
    schedules = with_().schedules.model_copy(update=changed)
    return with_(algorithm).model_copy(update={"schedules": schedules})


def test_the_sensitivities_of_example_1():
    found = example(1).sensitivities(2000)
    golden = {1: 0.1, 2: 0.084875193, 3: 0.072224021, 4: 0.062248847, 5: 0.054314217,
              10: 0.030432655, 100: 0.000837862, 1000: 0.000015542, 2000: 0.000005558}  # fmt: skip
    for k, expected in golden.items():
        assert found[k - 1] == pytest.approx(expected, abs=6e-10)


@pytest.mark.parametrize(
    ("number", "rounds", "corrected", "printed"),
    [
        (1, 2, 0.176932, 0.160024), (1, 2000, 0.992327, 0.942713),
        (2, 101, 0.588907, 0.388907),
    ],
)  # fmt: skip
def test_partial_sums_of_the_examples(number, rounds, corrected, printed):
    assert example(number).series(rounds).partial == pytest.approx(corrected, abs=1e-6)
    shown = rounds - (number == 2)  # K updates, of which the paper leaves out the first
    assert printed_sum(example(number), shown).partial == pytest.approx(printed, abs=1e-6)


@pytest.mark.parametrize(
    ("number", "corrected", "printed"), [(1, 1.0080, 0.9584), (2, 0.7555, 0.5555)]
)
def test_the_totals_of_the_examples(number, corrected, printed):
    found = example(number).series(TERMS)
    assert found.total == pytest.approx(corrected, abs=5e-4)
    assert found.total_low == pytest.approx(corrected, abs=5e-4)
    assert printed_sum(example(number), TERMS).total == pytest.approx(printed, abs=5e-4)


CASES = {
    "gradient": with_(),
    "gradient, noise falls": with_(gamma=1.4, eta=-0.2),
    "output": with_("output"),
    "output, noise falls": with_("output", gamma=1.6, eta=-0.2),
    "output, hidden state": with_("output", lipschitz=1.0),
    "output, beta 1, (i)": with_("output", beta=1.0, gamma=0.5, eta=0.7),
    "output, beta 1, (ii)": with_("output", beta=1.0, gamma=1.2, eta=0.8),
    "gaussian gradient": with_(noise="gaussian", gamma=0.6),
    "gaussian output": with_("output", "gaussian", gamma=0.5),
    "gaussian hidden state": with_("output", "gaussian", lipschitz=0.5),
    "offsets": scheduled(
        "output",
        step_size=Hyperbolic(scale=0.3, rate=0.2),
        mixing=Polynomial(scale=0.4, offset=2.0, exponent=-0.5),
        sample_size=Polynomial(scale=1.0, offset=7.0, exponent=0.9),
        noise_scale=Polynomial(scale=2.0, offset=0.5, exponent=0.1),
    ),
    "geometric": scheduled(
        sample_size=Geometric(scale=1.0, ratio=1.02),
        noise_scale=Polynomial(scale=1.0, exponent=-0.3),
    ),
}


@pytest.mark.parametrize("releases", CASES.values(), ids=CASES)
def test_the_total_is_bracketed_from_few_terms_and_from_many(releases):
    few = releases.series(SHORT)
    many = releases.series(TERMS)
    assert few.total_low <= many.total_low * (1 + 1e-9)
    assert many.total <= few.total * (1 + 1e-9)
    assert few.partial_low <= few.partial <= few.partial_low * (1 + 1e-6)
    assert many.partial < few.total < math.inf
    assert many.total_low <= many.total


@pytest.mark.parametrize("algorithm", ["output", "gradient"])
def test_the_accountant_says_the_same_of_the_first_rounds(algorithm):
    common = {"unit": "example", "neighboring_relation": "replace-one"}
    for noise in ("laplace", "gaussian"):
        releases = with_(algorithm, noise)
        moved = releases.sensitivities(40)
        k = np.arange(40.0) + (algorithm == "output")
        scales = releases.schedules.noise_scale.values(k)
        events = [
            Release(kind=noise, noise_multiplier=s / d, **common)
            for s, d in zip(scales, moved, strict=True)
        ]
        found = releases.series(40).partial
        if noise == "laplace":
            assert epsilon_bounds.epsilon(events, 0.0) == pytest.approx(found, rel=1e-9)
        else:
            expected = epsilon_bounds.epsilon(events, 1e-5)
            assert epsilon_of_rho(found, 1e-5) == pytest.approx(expected, rel=1e-9)


def test_the_round_in_which_a_budget_is_spent():
    releases = example(1)
    assert releases.rounds_within(0.9) == 74
    assert releases.series(74).partial <= 0.9 < releases.series(75).partial
    assert releases.rounds_within(1.01) is None
    assert releases.rounds_within(0.0) == 0
    with pytest.raises(ValueError, match=r"budget: .* holds for 100000 rounds"):
        releases.rounds_within(1.0079, most=10**5)
    with pytest.raises(ValueError, match="rounds: expected 0 to"):
        releases.series(-1)


def test_no_tail_is_claimed_where_none_is_known():
    for found in (
        scheduled("output", sample_size=Geometric(scale=1, ratio=1.1)),
        scheduled(sample_size=Constant(value=50)),
    ):
        assert found.series(10).tail == math.inf


CONFIG = """
algorithm = "gradient"
noise = "gaussian"
sensitivity = 2.0
[schedules]
step_size = {kind = "polynomial", scale = 0.5, exponent = -0.8}
mixing = {kind = "polynomial", scale = 0.5, exponent = -0.5}
sample_size = {kind = "ceil-polynomial", scale = 1.0, exponent = 0.7}
noise_scale = {kind = "constant", value = 4.0}
[problem]
strong_convexity = 1.0
smoothness = 4.0
second_singular_value = 0.5
num_nodes = 6
"""


def test_the_script_of_infinitely_many_rounds_refuses_in_one_line(tmp_path, capsys, monkeypatch):
    path, empty, falling = (tmp_path / f"{name}.toml" for name in ("series", "empty", "falling"))
    path.write_text(CONFIG)
    empty.touch()
    falling.write_text(CONFIG.replace("0.7", "-0.7"))
    for words in (
        [], [path, "--delta", "2"], [path, "--delta", "nan"], [tmp_path], [empty], [falling],
        [path, "--example", "1"],
    ):  # fmt: skip
        monkeypatch.setattr("sys.argv", ["endless", *map(str, words)])
        with pytest.raises(SystemExit, match="2"):
            endless.main()
        *_, last = capsys.readouterr().err.strip().splitlines()
        assert "error: " in last


def test_the_script_of_infinitely_many_rounds_judges_conditions_and_budgets(
    tmp_path, capsys, monkeypatch
):
    path = tmp_path / "series.toml"
    path.write_text(CONFIG)
    for words, told in (
        (["--example", "1", "--rounds", "20000", "--budget", "0.9"], "budget 0.9: 74 rounds fit"),
        ([str(path)], "Theorem 5 (Algorithm 2: finite epsilon): FAILS; not gamma + eta > 1"),
    ):
        monkeypatch.setattr("sys.argv", ["endless", *words])
        assert endless.main() == 0
        said = capsys.readouterr().out
        assert told in said
    rho, price = (float(found) for found in re.findall(r"(?:rounds|1e-05:) ([\d.e-]+),", said))
    assert price == pytest.approx(epsilon_of_rho(rho, 1e-5), rel=1e-5)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize("lipschitz", [0.0, 0.7])
def test_one_record_at_a_time_is_the_recursion_with_all_others_alike(noise, lipschitz):
    releases = with_("output", noise, lipschitz, eta=0.1)
    rounds = 25
    s = releases.schedules
    worst = 0.0
    for used in range(rounds):
        moved = 0.0
        cost = 0.0
        for k in range(rounds):
            kept = 1 - s.mixing(k) + lipschitz * s.step_size(k)
            fresh = releases.sensitivity * s.step_size(k) / s.size(k) if k == used else 0.0
            moved = kept * moved + fresh
            ratio = moved / s.noise_scale(k + 1)
            cost += ratio if noise == "laplace" else ratio**2 / 2
        worst = max(worst, cost)
    assert releases.once(rounds) == pytest.approx(worst, rel=1e-9)
    assert releases.once(rounds) >= worst
    assert releases.once(rounds) <= releases.series(rounds).partial
