"""The sampler's exact law; Lemma 1 and the theorem beside exact convolutions."""

import math
import random
from bisect import bisect_right
from decimal import Decimal, localcontext
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from manifed.privacy.composition import gaussian_delta
from manifed.privacy.discrete import (
    SMOOTHING,
    _draw_level,
    _table,
    draw,
    levels,
)
from manifed.privacy.random_numbers import NoiseSource, Stream
from tests.privacy.discrete_bounds import draw_slack, gaussian_slack, sum_slack
from tests.statistics.laws import ALPHA

LEVEL = ALPHA / 20
"""False-positive rate of one of the 16 assertions on drawn numbers: 1e-6 for all together."""
PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899863"
)


@pytest.fixture(autouse=True)
def _ninety_digits():
    with localcontext() as context:
        context.prec = 90
        yield


def words(count, step):
    source = NoiseSource.from_seed(30)
    place = {"stream": Stream.GRADIENT_NOISE, "partition": 3, "server_round": 1}
    return source.words(count, **place, step=step)


def drawn(variance, count):
    return (
        draw(variance, count, words) if variance >= 16 else _draw_level(variance, count, words, 0)
    )


def weight(k, variance):
    return (-Decimal(k * k) / (2 * Decimal(variance))).exp()


def exact(variance, most):
    """P(-most), ..., P(most) in decimal arithmetic."""
    half = [weight(k, variance) for k in range(most + 1)]
    total = 2 * sum(half) - half[0]
    return [half[abs(k)] / total for k in range(-most, most + 1)]


def table_law(variance):
    """The probabilities that the sampler's own thresholds say."""
    _, thresholds = _table(variance)
    return np.array([(b - a) / 2**192 for a, b in pairwise((0, *thresholds, 2**192))])


# -- the sampler --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("variance", "expected"),
    [(16, (16,)), (2**20, (2**20,)), (2**20 + 1, (458753, 9)),
     (119551380148, (412340, 447947, 21))],
)  # fmt: skip
def test_levels_of_known_variances(variance, expected):
    assert levels(variance) == expected


@given(st.integers(16, 2**100))
def test_levels_add_up_to_the_variance_exactly_and_each_is_wide_enough(variance):
    *below, top = found = levels(variance)
    assert sum(one << 16 * i for i, one in enumerate(found)) == variance
    assert all(640**2 <= one < 640**2 + 2**16 for one in below)
    assert (9 if below else 16) <= top <= 2**20


@pytest.mark.parametrize("variance", [-1, 0, 15, 2**100 + 1])
def test_a_variance_without_a_statement_is_refused(variance):
    for refuses in (levels, draw_slack, lambda v: draw(v, 1, words)):
        with pytest.raises(
            ValueError, match=rf"variance: expected 16 to 2\*\*100.*got {variance};"
        ):
            refuses(variance)


@pytest.mark.parametrize(
    ("variance", "count", "below", "above"),
    [(9, 86, 7996841012396892065, 10449903061312659550), (100, 282, None, None),
     (640**2, 17922, 9217622672677629477, 9229121401031922138)],
)  # fmt: skip
def test_thresholds_are_those_of_decimal_arithmetic_in_all_192_bits(variance, count, below, above):
    tops, thresholds = _table(variance)
    most = count // 2
    law = exact(variance, most)
    assert thresholds == tuple(int(one * 2**192) for one in accumulate(law[:-1]))
    assert tops.tolist() == [one >> 128 for one in thresholds]
    assert below is None or tops[most - 1 : most + 1].tolist() == [below, above]
    beyond = 2 * law[most] * sum(weight(k, variance) for k in range(most + 1, most + most // 7))
    beyond /= 1 + beyond
    wrong = [
        abs(Decimal(b - a) / 2**192 - p * (1 - beyond))
        for (a, b), p in zip(pairwise((0, *thresholds, 2**192)), law, strict=True)
    ]
    assert (sum(wrong) + beyond) / 2 < Decimal(2) ** -135


def test_all_192_bits_decide_at_every_threshold():
    _, thresholds = _table(16)
    values = [one - below for one in thresholds for below in (1, 0)]
    parts = {
        0: [one >> 128 for one in values],
        1: [one >> shift & 2**64 - 1 for one in values for shift in (64, 0)],
    }
    got = draw(16, len(values), lambda count, step: np.array(parts[step], dtype=np.uint64)[:count])
    expected = [j + at for j in range(-57, 57) for at in (0, 1)]
    assert got.tolist() == expected


def test_each_level_inverts_its_own_words_and_counts_for_256_of_the_one_below():
    variance = 119551380148
    expected = np.zeros(300, dtype=np.int64)
    for place, level in enumerate(levels(variance)):
        _, thresholds = _table(level)
        found = [bisect_right(thresholds, int(one) << 128) for one in words(300, 2 * place)]
        expected += 256**place * (np.array(found) - len(thresholds) // 2)
    got = draw(variance, 300, words)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, expected)


def accepts(observed, probabilities):
    """Pearson's test, on both sides: neither too far from the law nor too near to it."""
    expected = probabilities * observed.sum()
    assert expected.min() > 100
    total = ((observed - expected) ** 2 / expected).sum()
    low, high = stats.chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], len(expected) - 1)
    return low < total < high


def cells(variance, count):
    """Integers that end cells of about the same probability."""
    return np.unique(
        np.rint(math.sqrt(variance) * stats.norm.ppf(np.linspace(0.005, 0.995, count)))
    )


def counts(x, edges):
    return np.bincount(np.searchsorted(edges, x), minlength=len(edges) + 1)


def law_of_cells(variance, edges):
    if variance <= 10**7:
        k = np.arange(-int(9 * math.sqrt(variance)) - 9, int(9 * math.sqrt(variance)) + 10)
        pmf = np.exp(-(k**2) / (2 * variance))
        below = (pmf / pmf.sum()).cumsum()[np.searchsorted(k, edges)]
    else:  # the midpoint rule: its error is below 1 / variance
        below = stats.norm.cdf((edges + 0.5) / math.sqrt(variance))
    return np.diff([0, *below, 1])


@pytest.mark.statistical
@pytest.mark.parametrize("variance", [1, 9, 100, 640**2, 3000**2, 2**30, 2**40, 119551380148])
def test_draws_have_the_exact_law(variance):
    x = drawn(variance, 10**6)
    edges = cells(variance, 150)
    law = law_of_cells(variance, edges)
    assert accepts(counts(x, edges), law)
    assert not accepts(counts(np.append(x, x[x == 0]) if variance < 640 else x * 0.98, edges), law)
    if variance > 2**20:
        for byte in (x, x >> 8) if variance > 2**36 else (x,):
            assert accepts(np.bincount(byte & 255), np.full(256, 1 / 256))


def bernoulli(num, den, rng):
    """A coin of probability exp(-num / den) (Canonne, Kamath and Steinke 2020, Algorithm 1)."""
    while num > den:
        if not bernoulli(1, 1, rng):
            return False
        num -= den
    k = 1
    while rng.randrange(den * k) < num:
        k += 1
    return k % 2 == 1


def reference(variance, rng):
    """N_Z(0, variance) exactly, from integers alone (their Algorithms 2 and 3)."""
    scale = math.isqrt(variance) + 1
    while True:
        rest = rng.randrange(scale)
        if not bernoulli(rest, scale, rng):
            continue
        turns = 0
        while bernoulli(1, 1, rng):
            turns += 1
        size = rest + scale * turns
        is_negative = rng.randrange(2)
        if is_negative and size == 0:
            continue
        if bernoulli((size * scale - variance) ** 2, 2 * variance * scale**2, rng):
            return -size if is_negative else size


@pytest.mark.statistical
@pytest.mark.parametrize("variance", [100, 3000**2])
def test_draws_and_those_of_rejection_sampling_have_one_law(variance):
    rng = random.Random(2020)
    edges = cells(variance, 30)
    theirs = counts([reference(variance, rng) for _ in range(10**4)], edges)
    ours = drawn(variance, 10**6)
    assert stats.chi2_contingency([theirs, counts(ours, edges)]).pvalue > LEVEL
    assert stats.chi2_contingency([theirs, counts(ours * 0.85, edges)]).pvalue < LEVEL


# -- sums of shares -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("variance", "shares", "ratio", "distance", "tau", "slack"),
    [(0.5, 2, 1.47e-2, 7.18891e-3, 7.19e-2, 2.877e-2),
     (1, 2, 1.035e-4, 5.17232e-5, 5.17e-4, 2.069e-4),
     (1, 8, 5.475e-7, 1.55486e-7, 5.43e-4, 2.172e-4),
     (2, 2, 5.351e-9, 2.67529e-9, 2.68e-8, 1.070e-8),
     (4, 2, 1.43e-17, 7.16e-18, 7.16e-17, 2.86e-17)],
)  # fmt: skip
def test_a_sum_of_shares_is_as_near_to_one_draw_as_lemma_1_says(
    variance, shares, ratio, distance, tau, slack
):
    one = exact(variance, int(12 * math.sqrt(variance)) + 3)
    law = one
    for _ in range(shares - 1):
        law = np.convolve(np.array(law), np.array(one))
    most = len(law) // 2
    single = exact(shares * Decimal(variance), most)
    near = int(6 * math.sqrt(shares * variance))
    logs = [abs((law[most + k] / single[most + k]).ln()) for k in range(-near, near + 1)]
    assert float(max(logs)) == pytest.approx(ratio, rel=1e-2)
    between = sum(abs(a - b) for a, b in zip(law, single, strict=True)) / 2
    assert float(between) == pytest.approx(distance, rel=1e-3)
    bound = sum_slack(variance, shares)
    assert max(logs) < bound
    assert bound == pytest.approx(slack, rel=2e-3)
    assert 2.5 * bound == pytest.approx(tau, rel=2e-3)


@pytest.mark.parametrize("r2", [0.25, 1.0, 2.0, 4.0, 20.0, 35.0])
def test_the_slack_is_an_upper_bound_and_hardly_more(r2):
    e = 2 * sum((-2 * PI**2 * Decimal(r2) * j * j).exp() for j in range(1, 6))
    truth = 2 * sum(e**j / j for j in range(1, 60, 2))
    assert truth < Decimal(gaussian_slack(r2)) < truth * (1 + Decimal("1e-6"))


def test_slacks_of_real_sums_are_negligible_and_never_zero():
    assert gaussian_slack() == pytest.approx(2.0e-34, rel=0.03)
    assert sum_slack(16, 1000) < 1e-67
    assert gaussian_slack(1e6) > 0 < sum_slack(1e9, 2)
    assert sum_slack(16, 1) == 0
    draws = 4000 * 1000
    each = gaussian_slack() + sum_slack(119551380148, 1000) + 1000 * draw_slack(2**20 + 1)
    assert draws * each < 1e-19
    for r2 in (0.06, -1.0, math.nan):
        with pytest.raises(ValueError, match="r2: expected at least 1/16"):
            gaussian_slack(r2)


def test_a_split_into_levels_is_as_near_to_one_draw_as_lemma_1_says():
    variance = 2**20 + 1  # no split is worse
    below, top = levels(variance)
    logs = [
        sum(weight(y - 256 * x, below) * weight(x, top) for x in range(-60, 61)).ln()
        + Decimal(y * y) / (2 * variance)
        for y in (0, 57, 114, 228, 5000)
    ]
    slack = Decimal(draw_slack(variance))
    assert slack * Decimal("0.999") < max(logs) - min(logs) < slack < Decimal("1e-31")
    assert draw_slack(2**20) == 0 < draw_slack(2**100) < slack


# -- the price ----------------------------------------------------------------------------------
def losses(shift, variance):
    """The law of the privacy loss between noise on integer vectors that differ by the shift."""
    law = table_law(variance)
    products = np.ones(1)
    for each in shift:
        spread = np.zeros((len(law) - 1) * each + 1)
        spread[::each] = law
        products = np.convolve(products, spread)
    inner = np.arange(len(products)) - len(products) // 2
    return products, (2 * inner + sum(d * d for d in shift)) / (2 * variance)


def hockey_stick(epsilon, law, loss):
    return float((law * np.maximum(0, -np.expm1(epsilon - loss))).sum())


def bound(epsilon, shift, variance):
    return gaussian_delta(epsilon, mu=math.hypot(*shift) / math.sqrt(variance - SMOOTHING))


@pytest.mark.parametrize(
    ("epsilon", "shift", "variance", "delta"),
    [(1, (3, 4), 100, 6.830314e-3), (0.5, (10,), 100, 0.2380891),
     (4, (4,), 5, None), (4, (1,) * 16, 5, None),
     (4, (4,), 4, 7.528949e-2), (4, (1,) * 16, 4, 8.432483e-2),
     (8, (4,), 4, 3.42e-4), (8, (1,) * 16, 4, 4.84e-4)],
)  # fmt: skip
def test_the_exact_delta_of_integer_noise_is_below_the_theorems(epsilon, shift, variance, delta):
    """With one norm the direction counts, so a price in one dimension would be no bound."""
    found = hockey_stick(epsilon, *losses(shift, variance))
    assert delta is None or found == pytest.approx(delta, rel=2e-3 if epsilon == 8 else 1e-6)
    assert variance <= SMOOTHING or found < bound(epsilon, shift, variance)


@pytest.mark.parametrize(
    ("variance", "without", "within"),
    [(16, 4.5e-2, -7.4e-2), (100, 1.1e-2, -1.9e-2), (2500, 7.0e-4, -8.3e-4)],
)
def test_the_price_needs_what_the_theorem_takes_off_the_variance(variance, without, within):
    ratios = []
    for shift in ((1,), (4,), (10,), (3, 4), (1,) * 4, (2,) * 4, (5,) * 4):
        law = losses(shift, variance)
        for epsilon in (0.01, 0.1, 0.5, 1, 2, 4):
            ours = hockey_stick(epsilon, *law)
            plain = gaussian_delta(epsilon, mu=math.hypot(*shift) / math.sqrt(variance))
            if min(ours, plain) > 1e-13:
                ratios.append((ours / plain - 1, ours / bound(epsilon, shift, variance) - 1))
    worst = np.max(ratios, axis=0)
    assert worst.tolist() == pytest.approx([without, within], rel=0.05)


@pytest.mark.parametrize(
    ("distance", "epsilon", "delta", "price"),
    [(5, 1, 4.286618e-2, 5.087749e-2), (9, 3, 1.757767e-2, 2.392450e-2)],
)
def test_three_shares_from_the_tables_cost_what_the_theorem_allows(distance, epsilon, delta, price):
    one = table_law(16)
    law = np.convolve(np.convolve(one, one), one)
    moved = np.concatenate([np.zeros(distance), law])
    law = np.concatenate([law, np.zeros(distance)])
    found = float(np.maximum(0, law - math.exp(epsilon) * moved).sum())
    assert found == pytest.approx(delta, rel=1e-6)
    assert found < bound(epsilon, (distance,), 48)
    assert bound(epsilon, (distance,), 48) == pytest.approx(price, rel=1e-6)
