"""Shards in arrays of which nothing is kept, and uploads that are added up as they come."""

import time
from functools import partial

import numpy as np
import pytest
import torch

from manifed import ExampleLevel, fit
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.tangent_mean import TangentMean
from manifed.errors import ConfigError, RoundFailed
from manifed.federation import rounds
from manifed.federation.cohorts import PoissonCohort
from manifed.federation.exchange import ReplyPolicy
from manifed.federation.stack import StackTransport
from manifed.manifolds.sphere import Sphere
from manifed.oracles.minibatch import Full
from manifed.problems.frechet import FrechetMean
from manifed.problems.linear import LeastSquares
from manifed.runs import handed
from manifed.runs.fit import federate

CLIENTS, ROWS, WIDTH = 8000, 2, 50
SMALL = 8
"""MiB, in which the shards do not fit."""


def numbers(clients=CLIENTS):
    generator = np.random.default_rng(0)
    feature = generator.standard_normal((clients, ROWS, WIDTH)).astype(np.float32) / WIDTH**0.5
    return {"feature": feature, "target": generator.standard_normal((clients, ROWS))}


def stacks(budget, seen=None, spoil=None, threads=1):
    """Makes stacks within ``budget`` MiB, notes their chunking, and may spoil what they send up."""

    class Watched(StackTransport):
        def __init__(self, side, **given):
            super().__init__(side, at_once=None, memory_budget_mb=budget, threads=threads, **given)
            if seen is not None:
                seen.append(self.chunking)
            for stack in self.stacks.values() if spoil else ():
                stack.run = partial(spoil, stack.run)

    return Watched


def trained(shards, transport, server=None, **given):
    training = RSGD(step_size=0.2, local_steps=2, minibatch=Full(), maps="retraction")
    start = torch.zeros(WIDTH, dtype=torch.float64)
    given = {"rounds": 3, "start": start, "transport": transport, **given}
    return list(federate(LeastSquares(), shards, (training, server or TangentMean()), **given))


@pytest.fixture
def small_blocks(monkeypatch):
    """Sums of several blocks, which end within chunks."""
    monkeypatch.setattr(rounds, "rows_at_once", lambda _: 64)


PRIVATE = ExampleLevel(
    epsilon=2.0, delta=1e-5, l2_norm_clip=1.0, neighboring_relation="add-or-remove",
    noise_source="seed",
)  # fmt: skip


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    "given",
    [{}, {"privacy": PRIVATE}, {"cohort": PoissonCohort(sampling_probability=0.4)}],
    ids=["plain", "private", "sampled"],
)
def test_a_streamed_run_is_the_kept_one_to_the_last_bit(given, tmp_path):
    arrays = numbers()
    np.save(tmp_path / "feature.npy", arrays["feature"])
    mapped = arrays | {"feature": np.load(tmp_path / "feature.npy", mmap_mode="r")}
    listed = [{name: array[i] for name, array in arrays.items()} for i in range(CLIENTS)]
    seen = []
    kept, whole, streamed, threaded = (
        trained(shards, stacks(budget, seen, threads=threads), **given)[-1]
        for shards, budget, threads in (
            (listed, 1000, 1),
            (arrays, 1000, 1),
            (mapped, SMALL, 1),
            (mapped, SMALL, 3),
        )
    )
    assert [one.is_streamed for one in seen] == [False, False, True, True]
    assert len(seen[2].stacks) > 2
    assert kept.participants == streamed.participants
    assert torch.equal(kept.model, whole.model)
    torch.testing.assert_close(threaded.model, streamed.model, rtol=1e-13, atol=1e-15)
    if "cohort" in given:  # stacks of another size, where few of a stack are asked
        torch.testing.assert_close(kept.model, streamed.model, rtol=1e-13, atol=1e-15)
    else:
        assert torch.equal(kept.model, streamed.model)


def test_a_list_of_shards_is_streamed_too():
    arrays, seen = numbers(), []
    listed = [{name: array[i] for name, array in arrays.items()} for i in range(CLIENTS)]
    kept, streamed = (trained(listed, stacks(b, seen))[-1].model for b in (1000, SMALL))
    assert [one.is_streamed for one in seen] == [False, True]
    assert torch.equal(kept, streamed)


def test_a_budget_holds_the_calls_of_all_threads_and_few_results_wait():
    seen, waiting, most = [], set(), 0

    def noted(run, asked, at, chunk, source):
        nonlocal most
        waiting.add(chunk)
        most = max(most, len(waiting))
        return run(asked, at, chunk, source)

    taken = rounds.Sums.add

    def add(self, uploads, partitions):
        waiting.discard(tuple(partitions))
        time.sleep(0.01)
        return taken(self, uploads, partitions)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds.Sums, "add", add)
        trained(numbers(), stacks(SMALL, seen, noted, threads=2), rounds=1)
    assert len(seen[0].stacks) > 8
    assert most <= 2 * 2 + 2


def test_an_upload_that_cannot_be_used_is_its_clients_failure_and_in_no_sum():
    def spoil(run, asked, at, chunk, source):
        if 7 in chunk and len(chunk) > 1:
            raise ValueError("one of them")  # so that they are tried one by one
        if chunk == (11,):
            raise ValueError("no such luck")
        up = run(asked, at, chunk, source)
        if 7 in chunk or 2000 in chunk:
            up.u[chunk.index(7 if 7 in chunk else 2000)] = torch.nan
        return up

    seen = []
    kept, streamed = (
        trained(numbers(), stacks(budget, seen, spoil, threads), rounds=2)[-1]
        for budget, threads in ((1000, 1), (SMALL, 2))
    )
    assert [one.is_streamed for one in seen] == [False, True]
    assert set(streamed.failures) == set(kept.failures) == {7, 11, 2000}
    assert "got 50 of 50 not so" in streamed.failures[7] == kept.failures[7]
    assert "no such luck" in streamed.failures[11]
    torch.testing.assert_close(kept.model, streamed.model, rtol=1e-13, atol=1e-15)


def test_a_round_without_an_upload_fails_with_the_reasons():
    def spoil(run, *given):
        raise ValueError("nobody home")

    with pytest.raises(RoundFailed, match=r"Expected replies.*nobody home"):
        trained(numbers(), stacks(SMALL, spoil=spoil), replies=ReplyPolicy(min_fraction=0.1))


def test_a_server_that_looks_at_uploads_is_not_streamed():
    class Looks(TangentMean):
        def server(self, state, mean, here):
            assert len(here.collected.rows) in (1, CLIENTS)
            return super().server(state, mean, here)

    assert Looks.reads_uploads
    assert not TangentMean.reads_uploads
    assert len(trained(numbers(), stacks(1000), Looks(), rounds=1)) == 1
    with pytest.raises(ConfigError, match=r"engine\.memory_budget_mb >= "):
        trained(numbers(), stacks(SMALL), Looks(), rounds=1)


def test_too_small_a_budget_for_one_client_is_refused():
    with pytest.raises(ConfigError, match=r"engine\.memory_budget_mb >= "):
        trained(numbers(5), stacks(0))


@pytest.mark.parametrize(
    ("spoiled", "says"),
    [
        (("feature", (7999, 1, 3), np.nan), "shards: client 7999, .*feature"),
        (("target", (0, 1), np.inf), "shards: client 0, .*target"),
    ],
)
def test_a_record_that_is_no_number_is_named_by_its_client(spoiled, says):
    arrays = numbers()
    name, place, value = spoiled
    arrays[name][place] = value
    with pytest.raises(ConfigError, match=says):
        trained(arrays, stacks(SMALL))


@pytest.mark.parametrize(
    "change",
    [
        {"target": np.zeros((4, ROWS))},
        {"target": np.zeros(5)},
        {"target": np.zeros((7, ROWS), object)},
        {"target": [0.0]},
        {"x": "y"},
        {"person": np.zeros((5, ROWS))},
    ],
)
def test_arrays_that_are_not_of_the_same_clients_are_no_shards(change):
    with pytest.raises(ConfigError, match="shards: expected a list with one entry a client, or a"):
        trained(numbers(5) | change, stacks(SMALL))


def test_points_in_float32_are_put_on_the_manifold_as_those_of_a_list():
    points = np.random.default_rng(1).standard_normal((6, 4, 3))
    points = (points / np.linalg.norm(points, axis=-1, keepdims=True)).astype(np.float32)
    way = partial(StackTransport, at_once=None, memory_budget_mb=100)
    training = RSGD(step_size=0.2, minibatch=Full())
    listed, whole = (
        fit(FrechetMean(Sphere()), shards, training, rounds=2, transport=way)
        for shards in (list(points), points)
    )
    assert torch.equal(listed.model, whole.model)


def test_a_map_is_checked_by_pieces_of_the_same_size_whatever_a_client_holds(monkeypatch):
    sizes = []
    monkeypatch.setattr(handed, "_check", lambda problem, wide: sizes.append(len(wide)))
    handed.examples_of(
        LeastSquares(), {"feature": np.zeros((40, 500, 60)), "target": np.zeros((40, 500))}
    )
    assert len(sizes) > 1
    assert max(sizes) * 61 <= 2**20


def test_a_mixture_of_servers_reads_uploads_where_its_method_does():
    class Median:
        def server(self, state, mean, here):
            return {"x": state["x"] + here.collected.rows.median(0).values}

    class Mixed(Median, TangentMean):
        pass

    assert Mixed.reads_uploads


def test_replies_that_were_added_up_have_no_rows():
    kept = []

    class Watched(StackTransport):
        def exchange(self, asked):
            kept.append(super().exchange(asked))
            return kept[-1]

    way = partial(Watched, at_once=None, memory_budget_mb=SMALL)
    trained(numbers(), way, rounds=1)
    with pytest.raises(ValueError, match="their mean alone"):
        kept[0].without({3: "why"})


def test_a_fit_of_arrays_goes_on_where_it_stopped(tmp_path):
    given = {
        "shards": numbers(20),
        "algorithm": RSGD(step_size=0.2, minibatch=Full(), maps="retraction"),
    }
    whole = fit(LeastSquares(), **given, rounds=4, seed=3)
    run = federate(LeastSquares(), **given, rounds=4, seed=3, resume=tmp_path / "fit")
    next(run)
    run.close()
    found = fit(LeastSquares(), **given, rounds=4, seed=3, resume=tmp_path / "fit")
    assert torch.equal(found.model, whole.model)
