"""Growing samples: every way is the plain loop, priced as the series says, and never bare."""

import math
from dataclasses import replace
from functools import cache
from typing import ClassVar

import numpy as np
import pytest
import torch

from manifed.algorithms.growing_samples import GrowingSamples
from manifed.audit.of_config import attacks_of
from manifed.errors import ConfigError, RoundFailed
from manifed.experiment.assembly import client_side, initial_point, load_shards, plan_of
from manifed.experiment.load import parse
from manifed.federation.client import Seat, run_update
from manifed.manifolds import Euclidean, Manifold, Scaled
from manifed.oracles.noisy_oracle import Asked, Draws
from manifed.plan import planned_statement
from manifed.privacy import epsilon_bounds
from manifed.privacy.random_numbers import Stream
from manifed.problems.examples import Examples
from manifed.problems.linear import LeastSquares
from manifed.problems.pca import PrincipalEigenvector
from reproduction.endless import Releases, epsilon_of_rho
from reproduction.time_varying_reference import Setting, run
from tests.algorithms.gossip_runs import EVERY_WAY, reports_of
from tests.tensors import assert_near, float64

NODES = 6
ROUNDS = 5
CLIP = 0.4
NOISE = 0.3
DELTA = 1e-4
SCHEDULES = {
    "step_size": {"kind": "polynomial", "scale": 0.05, "exponent": -0.8},
    "mixing": {"kind": "polynomial", "scale": 0.5, "exponent": -0.5},
    "sample_size": {"kind": "ceil-polynomial", "scale": 1.0, "exponent": 1.2},
    "noise_scale": {"kind": "polynomial", "scale": 0.1, "exponent": 0.1},
}
PRIVATE = {
    "kind": "example-level",
    "l2_norm_clip": CLIP,
    "neighboring_relation": "replace-one",
    "noise": {"kind": "multiplier", "noise_multiplier": NOISE},
    "delta": DELTA,
}
CASES = {
    "output, paper": ("output", "paper", "own", None),
    "gradient, paper": ("gradient", "paper", "own", None),
    "output, own": ("output", "rigorous", "own", 30.0),
    "output, mixed": ("output", "rigorous", "mixed", None),
    "gradient": ("gradient", "rigorous", "own", None),
    "gradient, in order": ("gradient", "rigorous", "own", None),
}


def experiment(case="output, mixed", rounds=ROUNDS, privacy=None, **training):
    perturbation, mode, grad_point, lipschitz = CASES[case]
    own = {} if lipschitz is None else {"lipschitz": lipschitz}
    own |= {"samples": "in-order"} if case.endswith("in order") else {}
    return parse(
        {
            "name": "growing",
            "problem": {"kind": "least-squares", "scaling": "sum"},
            "data": {"kind": "scaled-identities", "num_clients": NODES, "dimension": 4},
            "federation": {"num_clients": NODES, "num_rounds": rounds,
                           "partition": {"kind": "natural"}},
            "training": {"kind": "growing-samples", "graph": {"kind": "ring"}, "mode": mode,
                         "perturbation": perturbation, "grad_point": grad_point,
                         "schedules": SCHEDULES, "on_exhausted": "recycle", **own, **training},
            "privacy": privacy or ({"kind": "none"} if mode == "paper" else PRIVATE),
        }
    )  # fmt: skip


class Stream6:
    """The shards as a stream: the very batches that the oracle draws, in plain numpy."""

    def __init__(self, config):
        self.config = config
        self.k = -1
        self.side, self.shards = client_side(config), load_shards(config).examples

    def each(self, x, size, rng):
        self.k += 1
        rows = []
        for i, shard in enumerate(self.shards):
            setup = self.side.setup.in_round(self.k + 1)
            asked = Asked.of(setup.queries(len(shard)), self.draws(i).device)
            whole = torch.tensor(len(shard))
            positions, _ = asked.batch(whole, len(shard), self.draws(i), 0)
            assert len(positions) == min(size, len(shard))
            point = torch.as_tensor(x[i])
            rows.append(self.side.setup.problem.rgrads(point, shard)[positions].numpy())
        return np.stack(rows)

    def mean(self, x, size, rng):
        return self.each(x, size, rng).mean(-2)

    def draws(self, i):
        return Draws(self.side.source.fresh(), i, self.k + 1)

    def noise(self, k):
        """n_k of every node: of Algorithm 1 drawn in round k, of Algorithm 2 in round k + 1."""
        training = self.config.training
        is_output = training.perturbation == "output"
        if is_output and k == 0:
            return np.zeros((NODES, 4))
        of_round = [Draws(self.side.source.fresh(), i, k + (not is_output)) for i in range(NODES)]
        scale = training.schedules.noise_scale(k)
        if training.mode == "paper":
            u = torch.stack([d.uniforms((4,), Stream.GRADIENT_NOISE, 0) for d in of_round]) - 0.5
            return scale * (-u.sign() * torch.log(1 - 2 * u.abs())).numpy()
        drawn = [d.normals((4,), Stream.GRADIENT_NOISE, int(is_output)) for d in of_round]
        return NOISE * 2 * CLIP * scale * torch.stack(drawn).numpy()


def shown_in_numpy(config):
    """What every node showed last, by the plain loop: y_K of Algorithm 1, x_K of Algorithm 2."""
    training = config.training
    stream = Stream6(config)
    weights = training.network.weights
    setting = Setting(
        training.perturbation, training.schedules, weights, training.mode,
        2 * CLIP, 2, training.grad_point,
    )  # fmt: skip
    start = np.tile(initial_point(config).numpy(), (NODES, 1))
    rounds = config.federation.num_rounds
    *_, last = run(setting, stream, start, rounds, np.random.default_rng(0), stream.noise)
    is_output = training.perturbation == "output"
    return last.models + (stream.noise(rounds) if is_output else 0.0)


@cache
def expected(case):
    return shown_in_numpy(experiment(case))


@EVERY_WAY
@pytest.mark.parametrize("case", CASES)
def test_every_way_is_the_plain_loop(case, way):
    config = experiment(case)
    found = reports_of(config, way)[-1].state["x"].numpy()
    assert_near(found, expected(case), 1e-12)


def of_series(config, rounds):
    training = config.training
    size = len(load_shards(config).examples[0])
    return Releases(
        algorithm=training.perturbation, schedules=training.schedules, sensitivity=1 / NOISE,
        noise="gaussian", lipschitz=training.lipschitz or 0.0, num_examples=size,
    ).series(rounds)  # fmt: skip


@pytest.mark.parametrize("case", ["output, own", "output, mixed", "gradient"])
def test_a_run_costs_what_the_series_says(case):
    config = experiment(case)
    setup = client_side(config).setup
    found = []
    for server_round in range(1, ROUNDS + 1):
        found += setup.releases(server_round, 4)
    assert len(found) == ROUNDS
    expected_ = epsilon_of_rho(of_series(config, ROUNDS).partial, DELTA)
    assert epsilon_bounds.epsilon(found, DELTA) == pytest.approx(expected_, rel=1e-9)
    assert {(one.unit, one.neighboring_relation) for one in found} == {("example", "replace-one")}


def answer(config, shard=None, i=0, server_round=1, **said):
    """What a node does in a round, by the very update that runs; at its start unless ``said``."""
    side = client_side(config)
    start = initial_point(config)
    setup, (phase,) = said.get("setup", side.setup), plan_of(config).phases
    down = phase.down(*[said.get("x", start)] * len(phase.down.names()))
    memory = said.get("memory")
    shard = shard or side.shards[i]
    memory = memory or setup.training.initial_memory(said.get("x", start))
    seat = Seat(i, server_round, said.get("attempt", 0), "mix")
    return run_update(setup, seat, down, memory, shard, len(shard), side.source.fresh())


L1 = {k: v for k, v in PRIVATE.items() if k != "l2_norm_clip"} | {"l1_norm_clip": CLIP}
LINEAR = {**SCHEDULES, "sample_size": {**SCHEDULES["sample_size"], "exponent": 1.0}}
FOUR = {**SCHEDULES, "sample_size": {"kind": "constant", "value": 4}}


def opposite(shard, place=0):
    """The shard twice, whose record ``place`` has far targets of both signs."""
    pair = {}
    for sign in (1, -1):
        rows = {name: tensor.clone() for name, tensor in shard.tensors.items()}
        rows["target"][place] = sign * 1e6
        pair[sign] = type(shard)(rows, shard.feature_ndim)
    return pair


def moved_by_one(config, asked, away=0.0, order=2, pair=None):
    """(what opposite gradients beyond the clip move that is noised, its query) as asked.

    Through the very update that runs; node 0 is sent its start, ``away`` farther every round.
    """
    side = client_side(config)
    training = config.training
    pair = pair or opposite(side.shards[0])
    memory = {}
    for attempt, server_round in enumerate(asked):
        x = initial_point(config) + away * server_round
        bare = {}
        for sign, shard in pair.items():
            done = answer(
                config, shard, server_round=server_round, x=x,
                memory=memory.get(sign), attempt=attempt,
            )  # fmt: skip
            memory[sign] = done.memory
            bare[sign] = done.up.x if done.memory is None else done.memory.x
        (query,) = side.setup.in_round(server_round).queries(len(shard))
        is_output = training.perturbation == "output"
        scale = 1.0 if is_output else training.schedules.step_size(server_round - 1)
        apart = (bare[1] - bare[-1]).as_subclass(torch.Tensor).reshape(-1).norm(order)
        yield float(apart) / scale, query


@pytest.mark.parametrize(("privacy", "order"), [(PRIVATE, 2), (L1, 1)], ids=["L2", "L1"])
@pytest.mark.parametrize("case", ["output, mixed", "gradient"])
def test_one_example_moves_what_is_noised_by_exactly_what_is_charged_at_worst(case, privacy, order):
    config = experiment(case, privacy=privacy, schedules=FOUR)
    for apart, query in moved_by_one(config, range(1, 6), 0.1, order):
        assert apart == pytest.approx(query.sensitivity, rel=1e-6)


@pytest.mark.parametrize("asked", [[1, 40], [1, 2, 2, 2, 2], [1, 9, 3]])
@pytest.mark.parametrize("case", ["output, mixed", "output, own"])
def test_whoever_leaves_rounds_out_or_asks_again_sees_no_more_than_is_charged(case, asked):
    """A server chooses rounds, and says of which of them a client's memory is."""
    for apart, query in moved_by_one(experiment(case, rounds=50, schedules=FOUR), asked):
        assert 0 < apart <= query.sensitivity * (1 + 1e-9)


class Steep(LeastSquares):
    """Distances that are 1e8 times as long."""

    manifold: ClassVar[Manifold] = Scaled(Euclidean(), 1e8)


@pytest.mark.parametrize(("problem", "away"), [(None, 1e17), (Steep(), 1e6)])
def test_no_broadcast_is_so_far_away_that_noise_is_rounded_off(problem, away):
    """Beside 1e17 a step of float64 is 16: the noise would be gone, and its last bit the data's.

    A metric that makes noise short brings that nearer.
    """
    config = experiment("output, mixed")
    setup = client_side(config).setup
    setup = setup if problem is None else replace(setup, problem=problem)
    with pytest.raises(ValueError, match="float64 would round the noise away"):
        answer(config, setup=setup, x=initial_point(config) + away)


def test_a_model_that_nobody_sees_is_not_rounded_to_float32():
    """Beside 1e6 a step of float32 is 1/16, above what a record is charged to move."""
    other = {"engine": {"dtype": "float32"}}
    with pytest.raises(ConfigError, match=r"engine\.dtype: with training\.perturbation = 'output'"):
        parse(experiment("output, mixed").model_dump(exclude_none=True) | other)
    assert parse(experiment("gradient").model_dump(exclude_none=True) | other)
    config = experiment("output, mixed")
    shard = client_side(config).shards[0]
    x = initial_point(config).to(torch.float32)
    with pytest.raises(ValueError, match="a model that nobody sees in float64"):
        answer(config, shard.to(torch.float32), x=x)


def test_samples_that_run_out_end_the_run_or_are_asked_for_in_the_open():
    config = experiment(on_exhausted="stop", rounds=3)
    sizes = [config.training.schedules.size(k) for k in range(5)]
    assert sizes == [1, 3, 4, 6, 7]
    assert len(reports_of(config)) == 3
    with pytest.raises((ConfigError, RoundFailed, ValueError), match="round 4 takes 6 examples"):
        reports_of(experiment(on_exhausted="stop", rounds=4))
    recycled = experiment()
    (query,) = recycled.training.in_round(4).queries(client_side(recycled).setup.mechanism, 4)
    assert query.expected_size == 4
    assert of_series(recycled, 50).total == math.inf


@pytest.mark.parametrize(
    ("case", "changes", "text"),
    [
        ("output, own", {"lipschitz": None}, "training.lipschitz: required with grad_point"),
        ("output, mixed", {"mode": "paper"}, "training.mode: 'paper' clips nothing"),
        ("output, mixed", {"lipschitz": 1.0}, "lipschitz: expected grad_point = 'own' beside it"),
        ("gradient", {"grad_point": "mixed"}, "grad_point, lipschitz: expected perturbation"),
        ("gradient", {"graph": {"kind": "edges", "edges": [[0, 1]]}}, "training.graph: expected a"),
    ],
)
def test_what_is_not_protected_is_refused_by_name(case, changes, text):
    with pytest.raises(ConfigError) as caught:
        experiment(case, **changes)
    assert text in str(caught.value)


def test_a_statement_says_which_records_count():
    said = {at: planned_statement(experiment(f"output, {at}").setting, (4,) * NODES)["mechanism"]
            for at in ("own", "mixed")}  # fmt: skip
    assert "records whose gradient is not Lipschitz with constant 30 count as zero" in said["own"]
    assert "Lipschitz" not in said["mixed"]


def test_a_record_that_is_too_steep_counts_as_zero_and_changes_no_other():
    """The premise of the price at hidden states, enforced: |a|^2 at most the constant."""
    config = experiment("output, own", schedules=FOUR)
    shard = client_side(config).shards[0]
    shown = {}
    for length in (1.0, 5.4, 5.5, 1e200, math.nan):
        row = float64([length, 0, 0, 0])
        rows = {name: tensor.clone() for name, tensor in shard.tensors.items()}
        rows["feature"][0] = row
        shown[length] = answer(config, type(shard)(rows, shard.feature_ndim)).memory.x
    assert not torch.equal(shown[5.4], shown[5.5])  # 5.4^2 < 30 < 5.5^2
    for steep in (1e200, math.nan):
        assert_near(shown[steep], shown[5.5])


def test_a_lipschitz_constant_needs_a_problem_that_keeps_it():
    setting = experiment("output, own").setting
    setting = replace(setting, problem=PrincipalEigenvector())
    with pytest.raises(ValueError, match=r"training.lipschitz: expected problem.kind"):
        setting.training.check(setting)


def test_a_table_needs_its_number_of_nodes_outside_a_config():
    table = GrowingSamples(perturbation="gradient", schedules=SCHEDULES, graph={"kind": "ring"})
    with pytest.raises(ValueError, match=r"training.num_nodes: required outside a config"):
        _ = table.network


def test_samples_in_order_are_each_used_once_and_then_end_or_begin_again():
    config = experiment("gradient", schedules=LINEAR, samples="in-order")
    side = client_side(config)

    def rows_of(server_round, num_examples, training=config.training):
        queries = training.in_round(server_round).queries(side.setup.mechanism, num_examples)
        draws = Draws(side.source.fresh(), 0, server_round)
        asked = Asked.of((queries[0],), draws.device)
        rows = torch.tensor(num_examples)
        positions, weights = asked.batch(rows, num_examples, draws, 0)
        assert weights.tolist() == [1.0] * len(positions)
        return positions.tolist()

    taken = [row for r in range(1, 5) for row in rows_of(r, 10)]
    assert taken == list(range(10))  # 1 + 2 + 3 + 4
    assert rows_of(5, 10) == [0, 1, 2, 3, 4]
    assert rows_of(6, 4) == [3, 0, 1, 2]
    stop = config.training.model_copy(update={"on_exhausted": "stop"})
    assert rows_of(4, 10, stop) == [6, 7, 8, 9]
    with pytest.raises(ValueError, match="round 5 takes 5 examples after 10 that were used, and a"):
        rows_of(5, 14, stop)


def realised_of_one_record(case, rounds, place, num_examples):
    """(rho of what node 0 sends when record ``place`` is its opposite, the price)."""
    config = experiment(case, rounds, samples="in-order", schedules=LINEAR)
    tensors = {"feature": torch.ones(num_examples, 4), "target": torch.full((num_examples,), 1e6)}
    shard = Examples({name: tensor.double() for name, tensor in tensors.items()})
    pair = {sign: config.problem.prepare(one, {}) for sign, one in opposite(shard, place).items()}
    moved = moved_by_one(config, range(1, rounds + 1), pair=pair)
    total = sum((apart / query.stddev) ** 2 / 2 for apart, query in moved)
    priced = config.training.priced(num_examples).model_dump()
    changed = {"sensitivity": 1 / NOISE, "num_examples": None}
    return total, Releases.model_validate(priced | changed).once(rounds)


@pytest.mark.parametrize("case", ["gradient", "output, mixed"])
def test_a_record_that_is_read_in_order_costs_at_most_what_one_round_costs(case):
    """For every place; and read twice, because the file begins again, it costs more."""
    rounds = 4  # 1 + 2 + 3 + 4 records
    found = [realised_of_one_record(case, rounds, place, 10) for place in (0, 1, 4, 9)]
    for spent, price in found:
        assert 0 < spent <= price * (1 + 1e-6)
    assert found[0][0] == pytest.approx(found[0][1], rel=1e-6)  # the first round's is the dearest
    spent, price = realised_of_one_record(case, rounds, 0, 3)  # rounds 1, 3 and 4 read record 0
    assert spent > 1.05 * price


def test_the_audit_of_a_config_refuses_it_by_name():
    with pytest.raises(ConfigError, match="steps or statistics, got 'growing-samples'"):
        attacks_of(experiment("output, mixed"), 10)
