"""Schedules are what they say, and every condition of the theorems is judged on its own."""

import numpy as np
import pytest
from pydantic import TypeAdapter

from manifed.errors import ConfigError
from manifed.schedules import (
    AnySchedule,
    Constant,
    Geometric,
    Hyperbolic,
    Polynomial,
    TimeVarying,
)
from reproduction.conditions import (
    Exponents,
    ProblemConstants,
    assumption_4,
    assumption_5,
    checks,
    corollary_1,
    corollary_2,
    theorem_2,
    theorem_4,
    theorem_7,
)
from reproduction.powers import EXAMPLES, polynomial, power_of

RING_6 = ProblemConstants(1.0, 96**0.5, 2 / 3, 6)
K = np.arange(2000, dtype=np.float64)


def of(alpha=0.9, beta=0.6, gamma=1.1, eta=0.05, **constants):
    return polynomial(alpha=alpha, beta=beta, gamma=gamma, eta=eta, **constants)


@pytest.mark.parametrize(
    "table",
    [
        {"kind": "polynomial", "scale": 0.3, "offset": 2.0, "exponent": -0.7},
        {"kind": "ceil-polynomial", "scale": 1.5, "exponent": 1.2},
        {"kind": "hyperbolic", "scale": 0.4, "rate": 0.1},
        {"kind": "constant", "value": 3.0},
        {"kind": "geometric", "scale": 2.0, "ratio": 1.0},
    ],
)
def test_a_schedule_is_its_power_law_and_comes_from_a_table(table):
    schedule = TypeAdapter(AnySchedule).validate_python(table)
    power = power_of(schedule)
    values = schedule.values(K)
    expected = power.scale * (K + power.offset) ** power.exponent
    if table["kind"] == "ceil-polynomial":
        expected = np.maximum(1, np.ceil(expected - 1e-9))
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    assert schedule(7) == pytest.approx(values[7])


def test_sample_sizes_are_whole_and_an_exact_power_is_not_rounded_up():
    schedules = of(gamma=2.0, a3=1e4)
    assert [schedules.size(k) for k in (0, 2, 99)] == [10**4, 9 * 10**4, 10**8]
    assert of().samples(2000) == 4_076_428
    assert EXAMPLES[2].schedules.samples(2000) == 8_320_197
    constant = schedules.model_copy(update={"sample_size": Constant(value=2.3)})
    assert constant.size(5) == 3


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"mixing": Constant(value=1.0)}, "mixing: expected 0 < beta_0 < 1, got 1"),
        ({"step_size": Polynomial(scale=1, exponent=0.5)}, "step_size: expected a schedule that d"),
    ],
)
def test_schedules_that_cannot_work_are_refused(change, match):
    with pytest.raises(ConfigError, match=match):
        TimeVarying(**{**dict(of()), **change})


def test_the_checker_says_which_condition_of_the_examples_fails_and_by_how_much():
    one = EXAMPLES[1].schedules
    two = EXAMPLES[2].schedules
    assert theorem_2(one).holds
    assert theorem_2(one).source == "Theorem 2 (iii)"
    assert not corollary_1(one).holds  # beta < 2/3
    (failing,) = corollary_1(one).failing
    assert failing.text == "eta <= (3 beta - 2) / 2"
    assert failing.margin == pytest.approx(-0.15)
    assert assumption_4(one).holds  # its sums alone
    (failing,) = assumption_4(one, RING_6).failing
    assert failing.text.startswith("sup alpha_k / beta_k")
    assert failing.margin == pytest.approx(8.3e-8 - 1, abs=1e-9)
    assert corollary_2(two).holds
    assert [c.text for c in assumption_5(two).failing] == ["2 alpha - beta - 2 eta > 1"]
    assert theorem_7(two).rate == pytest.approx(0.1)
    assert theorem_4(one).rate == pytest.approx(-0.1)


def test_the_remarks_of_the_paper():
    first, second = of(1.0, 0.9, 1.06, 0.35), of(0.9, 0.8, 1.8, 0.2)  # Remark 8
    assert corollary_1(first).holds
    assert corollary_1(first).rate == 0  # on the boundary: says nothing
    assert assumption_4(first).holds
    assert corollary_1(second).holds
    assert [(c.text, c.margin) for c in assumption_4(second).failing] == [("2 alpha - beta > 1", 0)]
    assert corollary_2(of(1.0, 0.6, 1.1, 0.1)).holds  # Remark 11
    mnist = of(0.76, 0.51, 1.4, 0.01, a1=0.01, a2=2.0)
    assert "2 beta - 2 eta > 1" in [c.text for c in assumption_4(mnist).failing]


@pytest.mark.parametrize(
    ("schedules", "source", "least"),
    [(of(0.9, 1.0, 0.5, 0), "Theorem 2 (i)", 0.6), (of(0.9, 1.0, 1.2, 0), "Theorem 2 (ii)", 0.5)],
)
def test_theorem_2_at_beta_1(schedules, source, least):
    for eta, holds in ((least + 0.01, True), (least, False)):
        noise = Polynomial(scale=1, exponent=eta)
        found = theorem_2(schedules.model_copy(update={"noise_scale": noise}))
        assert (found.source, found.holds) == (source, holds)


def test_only_power_laws_have_exponents():
    schedules = of().model_copy(update={"sample_size": Geometric(scale=1, ratio=1.1)})
    with pytest.raises(ValueError, match="sample_size: expected a power law"):
        checks(schedules, "output")
    hyperbolic = of().model_copy(update={"step_size": Hyperbolic(scale=1, rate=0.1)})
    assert Exponents.of(hyperbolic).alpha == 1
