"""The compiled kernel gives the answers of torch, bounds them alike, and keeps records apart."""

import numpy as np
import pytest
import torch

from manifed.oracles import fused
from manifed.oracles.fused import kernel, kernel_name
from manifed.oracles.minibatch import Ask, Full, Poisson, Query, WithoutReplacement
from manifed.oracles.noisy_oracle import Draws, Oracle
from manifed.oracles.sums import gradient_sum, sum_of_good
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.linear import LeastSquares, Logistic
from tests.conformance.isolation_cases import CASES
from tests.conformance.test_isolation import assert_sums_alike, query_of
from tests.tensors import generator

PROBLEMS = {
    "logistic": Logistic(), "penalised": Logistic(penalty=0.1),
    "least squares": LeastSquares(), "ridge": LeastSquares(ridge=0.2),
}  # fmt: skip
D, N, CLIENTS, STEPS = 13, 20, 5, 11


@pytest.fixture
def with_way(monkeypatch):
    def chosen(name):
        monkeypatch.setenv(fused.VARIABLE, name)
        kernel.cache_clear()

    yield chosen
    kernel.cache_clear()


def examples_of(problem, clients=CLIENTS, dtype=torch.float64):
    key = "label" if isinstance(problem, Logistic) else "target"
    rows = torch.randn(clients, N, D, generator=generator(1), dtype=dtype)
    signs = torch.randn(clients, N, generator=generator(2), dtype=dtype).sign()
    return Examples({"feature": rows, key: signs}, {"feature": 1, key: 0})


def oracle(problem, examples, who, *, clip=0.3, batch=None):
    noise = Noise(multiplier=1.0 if clip else 0.0)
    query = Query.of(ExampleMechanism(l2_norm_clip=clip, noise=noise), Ask(batch or Full()), N)
    count = 1 if isinstance(who, int) else len(who)
    return Oracle(problem, examples, [(query,)] * count, Draws(NoiseSource.from_seed(3), who, 1))


def run(problem, examples, who, x, **named):
    """The point after some steps, and what was counted; the kernel takes all of them at once."""
    asked = oracle(problem, examples, who, **named)
    end = asked.descent(x, STEPS, 0.4)
    if end is None:
        end = x
        for _ in range(STEPS):
            end = end - 0.4 * asked.gradient(end)
    return end, asked.queries


@pytest.mark.parametrize("batch", [Full(), Poisson(batch_size=5), WithoutReplacement(batch_size=4)])
@pytest.mark.parametrize("clip", [0.3, None])
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_steps_and_counts_are_those_of_torch(problem, clip, batch, with_way):
    pytest.importorskip("numba")
    examples, who = examples_of(problem), tuple(range(CLIENTS))
    x = torch.zeros(CLIENTS, D, dtype=torch.float64)
    found = {}
    for name in ("numba", "torch"):
        with_way(name)
        assert (kernel() is None) == (name == "torch") == (kernel_name() == "torch")
        found[name] = run(problem, examples, who, x, clip=clip, batch=batch)
    (one, counted), (other, more) = found["numba"], found["torch"]
    assert counted == more
    assert float((one - other).abs().max()) <= 1e-12 * float(other.abs().max())


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_a_client_has_the_same_bits_alone_and_in_any_stack(problem):
    pytest.importorskip("numba")
    examples = examples_of(problem)
    x = torch.zeros(CLIENTS, D, dtype=torch.float64)
    stacked, _ = run(problem, examples, tuple(range(CLIENTS)), x)
    for i in range(CLIENTS):
        alone, _ = run(problem, examples.of_client(i), i, x[i])
        assert torch.equal(alone, stacked[i])
    some = examples.of_clients(torch.tensor([3, 1]))
    pair, _ = run(problem, some, (3, 1), x[:2])
    assert torch.equal(pair, stacked[[3, 1]])


LINEAR = {one.name: one for one in CASES if type(one.build()) in fused.RESPONSES}


@pytest.mark.parametrize("name", LINEAR)
def test_a_record_adds_the_same_bits_whatever_is_computed_with_it(name, way):
    assert_sums_alike(LINEAR[name], gradient_sum, query_of("each"))


HOSTILE = (np.nan, np.inf, -np.inf, 1e308, -1e200, 1e155, 1e-300, 5e-324, 0.0)


@pytest.mark.parametrize("d", [1, 7, 13, 1001])
@pytest.mark.parametrize("count", [1, 7])
def test_a_row_has_the_same_bits_at_every_place(count, d):
    """Four scores are computed together; the last row of a client is then beside its copies."""
    row = torch.randn(d, generator=generator(3), dtype=torch.float64)
    x = torch.randn(1, d, generator=generator(4), dtype=torch.float64)
    found = []
    for place in range(count):
        rows = torch.zeros(1, count, d, dtype=torch.float64)
        rows[0, place] = row
        examples = Examples({"feature": rows, "target": torch.zeros(1, count, dtype=torch.float64)},
                            {"feature": 1, "target": 0})  # fmt: skip
        query = Query.of(ExampleMechanism(l2_norm_clip=0.3, noise=Noise()), Ask(), count)
        asked = Oracle(
            LeastSquares(), examples, [(query,)], Draws(NoiseSource.from_seed(3), (0,), 1)
        )
        found.append(asked.gradient(x))
    assert bool(found[0].any())
    assert all(torch.equal(found[0], each) for each in found)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.parametrize("response", [1.0, -1e300, np.nan, np.inf])
@pytest.mark.parametrize("value", HOSTILE)
def test_a_record_adds_one_clip_at_most_and_changes_nobody_else(problem, value, response, way):
    examples = examples_of(problem, 1).of_client(0)
    x = torch.full((D,), 0.5, dtype=torch.float64)
    clip = 0.3
    query = Query.of(ExampleMechanism(l2_norm_clip=clip), Ask(), N)
    key = fused.RESPONSES[type(problem)]

    def total(weights, entry=value):
        rows, said = examples["feature"].clone(), examples[key].clone()
        rows[7, 3:] = entry
        said[7] = response
        own = Examples({"feature": rows, key: said}, examples.feature_ndim)
        return sum_of_good(gradient_sum, problem, query, (x,), own, weights)

    only = torch.zeros(N, dtype=torch.float64)
    only[7] = 1.0
    added = total(only)
    assert float(added.norm()) <= clip * (1 + 1e-9)
    others = 1.0 - only
    together, without = total(others + only), total(others)
    np.testing.assert_allclose(together - without, added, rtol=0, atol=1e-12)


def test_what_the_kernel_does_not_know_goes_the_way_of_torch():
    pytest.importorskip("numba")

    class Other(LeastSquares):
        def slopes(self, x, examples):
            return 2 * super().slopes(x, examples)

    x = torch.zeros(CLIENTS, D, dtype=torch.float64)
    who = tuple(range(CLIENTS))
    plain = LeastSquares()
    assert oracle(plain, examples_of(plain), who).descent(x, 2, 0.1) is not None
    assert oracle(Other(), examples_of(plain), who).descent(x, 2, 0.1) is None
    narrow = examples_of(plain, dtype=torch.float32)
    assert oracle(plain, narrow, who).descent(x, 2, 0.1) is None
    assert oracle(plain, examples_of(plain), who).descent(x.float(), 2, 0.1) is None
