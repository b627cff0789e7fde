"""Integers of bounded norm: the numbers of a sum, and what becomes of any vector."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from manifed.errors import ConfigError
from manifed.privacy.composition import gaussian_delta, gaussian_epsilon
from manifed.privacy.integers import Coding, SumNumbers, _excess, bound_of, inner_of
from tests.tensors import assert_near, generator, normals

DELTA = 1e-5


def numbers(**changed):
    given = {
        "unit": "example", "neighboring_relation": "add-or-remove", "l2_norm_clip": 1.0,
        "multiplier": 4.0, "most": 1797,
    }  # fmt: skip
    return SumNumbers(**(given | changed))


def coding(size, bound=2**16, clip=1.0):
    return Coding(10, size, 32, bound, inner_of(bound, size), 10**9, clip, 1)


def uniforms(seed, *shape):
    return torch.rand(shape, generator=generator(seed), dtype=torch.float64)


def on_the_sphere(seed, count, size):
    rows = normals(seed, count, size)
    return rows / rows.norm(dim=-1, keepdim=True)


# -- the numbers of a sum --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("declared", "rounds", "target", "size", "z", "bound", "variance", "prices"),
    [
        ((10, 0, 0, 1797, 1), 20, 1, 64, 16.683892, 65536, 119551380148, (1, 1, 3.6186)),
        ((10, 3, 2, 1797, 1), 20, 1, 64, 16.683892, 65536, 239102760296, (1, 0.6841, 2.4421)),
        ((100, 33, 10, 100, 2), 100, 2, 3920, 19.938124, 65536, 119815664885, (2, 1.4634, 22.652)),
        ((1000, 333, 50, 1000, 2), 100, 2, 3920, 19.93812, 65536, 11068870176, (2, 1.529, 129.88)),
        ((10, 3, 2, 60000, 1), 50, 1, 3920, 26.379549, 35592, 176306986634, (1, 0.6841, 2.4421)),
        ((1000, 300, 100, 10**6, 1), 100, 0.5, 64, 70.3183, 2145, 37917497, (0.5, 0.3785, 20.2735)),
    ],
)  # fmt: skip
def test_the_integers_of_a_sum_and_their_prices(
    declared, rounds, target, size, z, bound, variance, prices
):
    n, dropped, collusion, most, sensitivity = declared
    mu = brentq(lambda mu: gaussian_delta(target, mu=mu) - DELTA, 1e-3, 60, xtol=1e-14)
    declares = numbers(
        neighboring_relation="add-or-remove" if sensitivity == 1 else "replace-one",
        multiplier=math.sqrt(rounds) / mu, max_dropped=dropped, collusion=collusion, most=most,
    )  # fmt: skip
    assert declares.multiplier == pytest.approx(z, abs=4e-5)
    made = declares.of(n, size)
    assert made == (n, size, 32, bound, bound - 4, variance, 1.0, sensitivity)
    honest = declares.honest(n)
    assert made.multiplier(honest) >= declares.multiplier
    assert (honest * (variance - 1) - 4) < (declares.multiplier * sensitivity * bound) ** 2
    for count, price in zip((honest, n, 1), prices, strict=True):
        mu = math.sqrt(rounds) / made.multiplier(count)
        assert gaussian_epsilon(DELTA, mu=mu) == pytest.approx(price, rel=1e-4)


@pytest.mark.parametrize("honest", [1, 5, 9])
def test_a_multiplier_is_the_largest_number_that_the_integers_pay_for(honest):
    made = numbers(multiplier=math.pi, neighboring_relation="replace-one").of(9, 64)
    right = Fraction(honest * made.variance - 4, 4 * made.bound**2)
    found = made.multiplier(honest)
    assert Fraction(found) ** 2 <= right < Fraction(math.nextafter(found, math.inf)) ** 2


@pytest.mark.parametrize("size", [63, 784 * 5 - 15, 36])
@pytest.mark.parametrize(
    ("nodes", "bits"), [(10, (15, 17, 18)), (100, (18, 18, 19)), (1000, (21, 21, 21))]
)
def test_the_fewest_bits_with_one_per_cent_of_excess(size, nodes, bits):
    for z, least in zip((1.0, 4.0, 16.7), bits, strict=True):
        fits = [b for b in range(8, 40) if _excess(bound_of(b, nodes, z), size, nodes, z) < 0.01]
        assert fits[0] == least


@pytest.mark.parametrize(("z", "most"), [(1.0, 5.2e5), (4.0, 1.2e6), (16.7, 2.1e6)])
def test_a_sum_of_so_many_vectors_takes_32_bits_and_a_longer_one_64(z, most):
    for factor, bits in ((0.95, 32), (1.05, 64)):
        found = numbers(multiplier=z, most=int(factor * most)).of(10, 64)
        assert found.bits == bits
        assert found.bound * (factor * most + 9 * z) < 2 ** (bits - 1)


def test_bits_do_not_depend_on_who_takes_part():
    declares = numbers(multiplier=1e4, most=10**6, collusion=3, max_dropped=0.4)
    takers = [n for n in range(4, 2000) if 2 * declares.dropped(n) < n - 3]
    assert len({declares.of(n, 64).bits for n in takers}) == 1


@pytest.mark.parametrize(
    ("max_dropped", "n", "dropped"), [(3, 10, 3), (0.29, 100, 29), (1 / 3, 10, 3), (0, 10, 0)]
)
def test_who_may_drop_out_is_a_number_of_nodes_or_a_share(max_dropped, n, dropped):
    declares = numbers(max_dropped=max_dropped, collusion=2)
    assert (declares.dropped(n), declares.honest(n)) == (dropped, n - dropped - 2)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"max_dropped": 4, "collusion": 2}, "collusion < 10 nodes, got 4 and 2; lower one"),
        ({"max_dropped": 5}, "max_dropped, collusion: expected 2 max_dropped .* got 5 and 0"),
        ({"max_dropped": 2.5}, "max_dropped: expected a whole number of nodes, or a share"),
        ({"collusion": 10}, "collusion: expected .* got 0 and 10"),
        ({"multiplier": 1e-4}, "multiplier: expected noise of a variance from 16"),
        ({"multiplier": 0.0}, "multiplier: expected greater than 0"),
        ({"most": 2**37}, "most: expected less than or equal"),
    ],
)  # fmt: skip
def test_a_sum_whose_noise_cannot_be_guaranteed_is_refused_by_field(changed, said):
    with pytest.raises(ConfigError, match=said):
        numbers(**changed).of(10, 64)
    numbers(max_dropped=3.0, collusion=3).check(10)


# -- any vector ------------------------------------------------------------------------------------
ODD = [math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, -5e-324, 0.0, -0.0, 1e-310]
CLIPS = [1.0, 1e-3, 1e300, 5e-324, 0.0, math.inf, math.nan]
_entries = st.one_of(
    st.sampled_from(ODD), st.floats(-2.0, 2.0), st.binary(min_size=8, max_size=8).map(
        lambda raw: float(np.frombuffer(raw)[0])
    )
)  # fmt: skip


@settings(max_examples=300, derandomize=True, deadline=None)
@given(
    rows=st.integers(1, 20).flatmap(
        lambda size: st.lists(st.tuples(*[_entries] * size), min_size=1, max_size=3)
    ),
    seed=_entries,
    bound=st.sampled_from([64, 65, 700, 35592, 65536]),
    clip=st.sampled_from(CLIPS),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_no_vector_becomes_longer_than_the_bound(rows, seed, bound, clip, dtype):
    coords = torch.tensor(rows, dtype=torch.float64).to(dtype)
    seeds = torch.full(coords.shape[:1], seed, dtype=torch.float64)
    found = coding(coords.shape[-1], bound, clip).encode(coords, seeds).numpy()
    whole = found.astype(np.int64)
    assert (whole == found).all()
    assert (whole * whole).sum(-1).max() <= bound**2
    assert not found[~np.isfinite(coords.numpy()).all(-1)].any()


@settings(max_examples=100, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([1, 2, 64, 300]),
    factor=st.floats(0.99, 1.2),
    bound=st.sampled_from([64, 700, 65536]),
)
def test_a_clip_that_failed_costs_no_privacy(seed, size, factor, bound):
    """Near the bound a vector is rounded towards zero, and where that is still too long dropped."""
    made = coding(size, bound)
    coords = factor * bound / made.inner * on_the_sphere(seed, 20, size)
    whole = made.encode(coords, uniforms(seed, 20)).long()
    assert (whole.square().sum(-1) <= bound**2).all()
    cut = (coords * made.inner).trunc().square().sum(-1) <= bound**2
    assert ((whole != 0).any(-1) == (cut & (coords.abs() * made.inner <= bound).all(-1))).all()


def test_one_long_coordinate_or_one_that_is_no_number_drops_its_vector_alone():
    rows = [[math.nan, 0], [math.inf, 0], [1e308, 1e308], [5, 5], [0.8, 0.8], [-1, 0], [5e-324, 0]]
    coords = torch.tensor(rows, dtype=torch.float64)
    found = coding(2).encode(coords, uniforms(0, 7))
    assert found.tolist() == [[0, 0]] * 5 + [[-65532, 0], [0, 0]]


def test_rounding_keeps_the_mean_and_treats_each_coordinate_by_itself():
    """The fractions of one vector under 20 000 seeds, whose sums have the variance of coins."""
    made = coding(8)
    coords = (0.3 * on_the_sphere(1, 1, 8)).expand(20_000, 8)
    off = made.encode(coords, uniforms(2, 20_000)) - coords * made.inner
    assert (off.abs() < 1).all()
    share = (coords[0] * made.inner) % 1
    assert (off.mean(0).abs() <= 4.5 * (share * (1 - share) / 20_000).sqrt()).all()
    spread = float((share * (1 - share)).sum())
    for signs in (torch.ones(8), torch.tensor([1, -1] * 4)):
        assert float((off * signs).sum(-1).var()) == pytest.approx(spread, rel=0.05)


@pytest.mark.parametrize(("size", "bound"), [(64, 65536), (64, 700), (3920, 1000)])
def test_a_vector_as_long_as_the_clip_is_hardly_ever_rounded_towards_zero(size, bound):
    made = coding(size, bound, clip=0.2)
    coords = 0.2 * on_the_sphere(3, 200_000 // size, size)
    whole = made.encode(coords, uniforms(4, len(coords)))
    assert ((whole - coords / 0.2 * made.inner).abs().amax(-1) < 1).all()
    is_up = (whole.abs() > (coords.abs() / 0.2 * made.inner)).any(-1)
    assert is_up.all()  # some coordinate of each went away from zero
    assert_near(made.decode(whole.numpy().astype(np.int64)), coords, 0.2 / made.inner)


def test_the_integers_of_a_vector_depend_on_that_vector_and_its_seed_alone():
    made = coding(64)
    coords = on_the_sphere(5, 40, 64)
    seeds = uniforms(6, 40)
    whole = made.encode(coords, seeds)
    order = torch.randperm(40, generator=generator(7))
    other = coords.clone()
    other[1::2] = math.nan
    assert torch.equal(made.encode(coords[order], seeds[order]), whole[order])
    assert torch.equal(made.encode(other, seeds)[::2], whole[::2])
    assert torch.equal(made.encode(coords[3], seeds[3]), whole[3])
    stacked = made.encode(coords.reshape(4, 10, 64), seeds.reshape(4, 10))
    assert torch.equal(stacked.flatten(0, 1), whole)
    assert not torch.equal(made.encode(coords, seeds.flip(0)), whole)


@pytest.mark.parametrize("shape", [(3, 64), (2, 63), (64,)])
def test_a_vector_without_a_seed_is_refused(shape):
    with pytest.raises(ValueError, match=r"Expected coordinates of shape \(2, 64\)"):
        coding(64).encode(torch.zeros(shape), torch.zeros(2))


@pytest.mark.parametrize("bits", [32, 64])
def test_residues_add_up_to_the_sum_where_the_sum_fits(bits):
    made = coding(4)._replace(bits=bits)
    most = 2 ** (bits - 1) - 1
    terms = np.array([[most, -most, 5, -1], [-9, 9, -5, 1], [3, -3, 0, 0]])
    masks = np.array([[most, 17, -most, 3]])
    wrapped = made.wrap(terms[:1])
    assert wrapped.dtype == np.dtype(f"int{bits}")
    added = wrapped + masks.astype(wrapped.dtype)  # wraps, and back
    back = added + made.wrap(terms[1]) + made.wrap(terms[2]) - masks.astype(wrapped.dtype)
    assert (back == terms.sum(0)).all()
    assert_near(made.decode(back[0]), torch.from_numpy(terms.sum(0) / made.inner), 1e-5 * most)
