"""A clip that rises to a private quantile: its price, its bounds, and who may move it."""

import math

import pytest
import torch
from dp_accounting import dp_event, pld

from manifed.algorithms.adaptive_clip import CLIP, LEAST, AdaptiveClip
from manifed.algorithms.algorithm import Collected, There
from manifed.algorithms.payloads import BadBroadcast
from manifed.algorithms.rsgd import RSGD, ScheduledRSGD
from manifed.algorithms.tangent_mean import TangentMean
from manifed.errors import ConfigError
from manifed.experiment.load import parse
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.manifolds import Euclidean
from manifed.oracles.minibatch import Full, Poisson
from manifed.oracles.noisy_oracle import Draws, Oracle
from manifed.plan import promise_of
from manifed.privacy.epsilon_bounds import epsilon
from manifed.privacy.mechanism import ExampleMechanism, Noise, RisingClip
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.linear import LeastSquares
from manifed.schedules import Geometric
from tests.algorithms.gossip_runs import reports_of
from tests.tensors import generator

ROWS, D, CLIP_NORM = 30, 3, 2.0
RULE = RisingClip(start=0.1, target_quantile=0.7, learning_rate=0.5, budget_share=0.2)


def around(training=None, rule=RULE):
    training = training or RSGD(step_size=0.5, minibatch=Full())
    return AdaptiveClip(
        kind=training.kind, client_update=training, server_update=TangentMean(), rule=rule
    )


def mechanism(multiplier=1.0, relation="add-or-remove"):
    return ExampleMechanism(
        l2_norm_clip=CLIP_NORM, neighboring_relation=relation, noise=Noise(multiplier=multiplier)
    )


def rows(count=ROWS, seed=1):
    a = torch.randn(count, D, generator=generator(seed), dtype=torch.float64)
    b = torch.randn(count, generator=generator(seed + 1), dtype=torch.float64)
    return Examples({"feature": a, "target": b}, {"feature": 1, "target": 0})


def upload(examples, clip, *, multiplier=1.0, update=None, seed=3, size=ROWS, server_round=1):
    update = update or around()
    (phase,) = update.phases
    down = phase.down(
        torch.full((D,), 0.3, dtype=torch.float64), torch.tensor([clip], dtype=torch.float64)
    )
    setup = ClientSetup(LeastSquares(), update, mechanism(multiplier))
    seat = Seat(0, server_round, 0, "train")
    return run_update(setup, seat, down, None, examples, size, NoiseSource.from_seed(seed)).up


# -- the price -----------------------------------------------------------------------------------
@pytest.mark.parametrize("relation", ["add-or-remove", "replace-one"])
@pytest.mark.parametrize("multiplier", [0.7, 5.0])
@pytest.mark.parametrize("share", [0.0125, 0.05, 0.4])
def test_answer_and_count_together_cost_one_release_of_the_multiplier(relation, multiplier, share):
    update = around(rule=RULE.model_copy(update={"budget_share": share}))
    answer, count = update.releases(mechanism(multiplier, relation), ROWS)
    assert (answer.label, count.label) == ("gradient", "count")
    assert sum(one.noise_multiplier**-2 for one in (answer, count)) == pytest.approx(
        multiplier**-2, rel=1e-12
    )
    assert count.noise_multiplier**-2 == pytest.approx(share * multiplier**-2, rel=1e-12)
    # the deviation of the noise is that multiplier times what one example moves
    *_, query = update.queries(mechanism(multiplier, relation), ROWS)
    moved = (0.5 if relation == "add-or-remove" else 1.0) / ROWS
    assert query.stddev == pytest.approx(count.noise_multiplier * moved, rel=1e-12)


def test_the_price_is_that_of_dp_accounting_for_the_joint_vector():
    """Of the vector (sum of gradients / C, 2 sqrt(p / (1 - p)) b) with noise in proportion."""
    z, rounds, delta = 4.0, 12, 1e-5
    releases = around().releases(mechanism(z), ROWS) * rounds
    joint = pld.PLDAccountant()
    joint.compose(dp_event.GaussianDpEvent(z), rounds)
    assert epsilon(releases, delta) == pytest.approx(joint.get_epsilon(delta), rel=1e-3)


def test_the_ledger_charges_the_count_and_a_target_pays_for_it():
    setting = parse(table()).setting
    promise = promise_of(setting, (40, 40))
    told = promise.planned(6)
    assert 0.998 < told["adversaries"][0]["epsilon"] <= 1.0
    (client, *_) = promise.tariff.lines[0].updates
    assert [release.label for release in client.releases] == ["gradient", "count"]
    assert "noised count" in told["mechanism"]


def test_factors_of_a_schedule_are_those_of_the_count_too():
    falling = Geometric(scale=1.0, ratio=0.5)
    training = ScheduledRSGD(step_size=0.5, minibatch=Full(), noise_multipliers=falling)
    first, third = (around(training).in_round(r).releases(mechanism(2.0), ROWS) for r in (1, 3))
    for before, after in zip(first, third, strict=True):
        assert after.noise_multiplier == pytest.approx(0.25 * before.noise_multiplier, rel=1e-12)


# -- what one example can do ---------------------------------------------------------------------
HOSTILE = (0.0, 1e-300, 1e-5, 1.0, 1e30, 1e155, 1e308, math.inf, -math.inf, math.nan)


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("clip", [LEAST, 0.013, 1.0])
def test_one_record_moves_sum_and_count_by_no_more_than_is_paid_for(value, clip):
    """Without noise, in a shard with the record and in one without it."""
    whole = rows()
    tensors = {key: tensor.clone() for key, tensor in whole.tensors.items()}
    tensors["feature"][7] = value
    keep = [i for i in range(ROWS) if i != 7]
    without, with_it = (
        upload(examples, clip, multiplier=1e-12)
        for examples in (whole.take(torch.tensor(keep)), Examples(tensors, whole.feature_ndim))
    )
    step = 0.5
    moved = (with_it.u - without.u).norm() / step * ROWS
    assert moved <= clip * CLIP_NORM * (1 + 1e-6)
    assert abs(with_it.share - without.share).item() * ROWS <= 0.5 * (1 + 1e-9)


def test_a_clip_scales_bound_and_noise_alike():
    """The same draws at a tenth of the clip are a tenth as long where every gradient is cut."""
    gradients = [upload(rows(), clip).u for clip in (1e-3, 1e-4)]
    torch.testing.assert_close(gradients[0], 10 * gradients[1], rtol=1e-9, atol=0)
    counts = [upload(rows(), clip).share for clip in (1e-3, 1e-4)]
    assert torch.equal(*counts)  # nothing is below either


def test_the_count_is_noised_by_its_own_draw():
    first, second = (upload(rows(), 0.5, seed=seed).share for seed in (1, 2))
    bare = upload(rows(), 0.5, multiplier=1e-12).share
    noise = first - bare
    assert noise.abs() > 1e-4
    assert not torch.equal(first, second)
    gradient = upload(rows(), 0.5, seed=1).u - upload(rows(), 0.5, multiplier=1e-12).u
    *_, query = around().queries(mechanism(), ROWS)
    assert not torch.isclose(gradient / 0.5, noise / query.stddev).any()


def test_the_share_is_of_all_examples_whatever_a_batch_is():
    batch = around(RSGD(step_size=0.5, minibatch=Poisson(batch_size=5)))
    quiet = {"multiplier": 1e-12, "update": batch}
    assert upload(rows(), 1.0, **quiet).share == pytest.approx(
        upload(rows(), 1.0, multiplier=1e-12).share.item(), abs=1e-9
    )
    answer, count = batch.releases(mechanism(), ROWS)
    assert (answer.sampling.kind, count.sampling.kind) == ("poisson", "unsampled")


# -- who moves it --------------------------------------------------------------------------------
@pytest.mark.parametrize("clip", [0.0, -0.5, 1.0 + 1e-9, 1e308, math.inf, math.nan, LEAST / 2])
def test_a_client_refuses_a_clip_that_its_config_does_not_allow(clip):
    (phase,) = around().phases
    x = torch.zeros(D, dtype=torch.float64)
    tensors = {"x": x, "clip": torch.tensor([clip], dtype=torch.float64)}
    with pytest.raises(BadBroadcast, match=r"one clip norm of 1e-06 to 1 times|the broadcast clip"):
        phase.down.received(tensors, phase.places, Euclidean())
    with pytest.raises(BadBroadcast):
        upload(rows(), clip)


def test_a_stack_of_clients_has_one_clip():
    update = around()
    (phase,) = update.phases
    down = phase.down(torch.zeros(2, D).double(), torch.tensor([[0.1], [0.2]]).double())
    setup = ClientSetup(LeastSquares(), update, mechanism())
    shards = Examples.stack([rows(), rows(seed=5)])
    seat = Seat((0, 1), 1, 0, "train")
    with pytest.raises(BadBroadcast, match=r"got 0.1 to 0.2 times"):
        run_update(setup, seat, down, None, shards, (ROWS, ROWS), NoiseSource.from_seed(0))


@pytest.mark.parametrize("share", [-1e100, -1.0, 0.0, 0.7, 1.0, 1e100])
def test_the_server_moves_the_clip_by_the_noised_share_and_stays_in_range(share):
    update = around()
    state = update.start(torch.zeros(D, dtype=torch.float64))
    assert state[CLIP].item() == RULE.start
    mean = {"u": torch.zeros(D).double(), "share": torch.tensor([share], dtype=torch.float64)}
    there = There(Euclidean(), "train", 1, Collected(mean, None, (), 1, lambda: 0.5))
    moved = update.server(state, mean["u"], there)[CLIP].item()
    seen = min(max(share, -4.0), 5.0)
    assert moved == pytest.approx(min(0.1 * math.exp(-0.5 * (seen - 0.7)), 1.0), rel=1e-12)
    for _ in range(99):
        state = update.server(state, mean["u"], there)
    assert LEAST <= state[CLIP].item() <= 1.0


def test_narrowing_leaves_the_deviation_of_a_count():
    update = around()
    queries = update.queries(mechanism(), ROWS)
    oracle = Oracle(LeastSquares(), rows(), [queries], Draws(NoiseSource.from_seed(3), 0, 1))
    oracle.narrow(0.25)
    asked = oracle._asked
    assert float(asked["gradient"].stddev) == pytest.approx(0.25 * queries[0].stddev)
    assert float(asked["count"].stddev) == pytest.approx(queries[1].stddev)
    assert [asked[name].query.clip for name in ("gradient", "count")] == [0.5, 0.5]


# -- runs ----------------------------------------------------------------------------------------
def table(**privacy):
    return {
        "name": "rising",
        "problem": {"kind": "least-squares"},
        "data": {"kind": "synthetic-least-squares", "num_clients": 2, "rows": 40, "dimension": 3},
        "federation": {"num_clients": 2, "num_rounds": 6, "partition": {"kind": "natural"}},
        "training": {"kind": "rsgd", "step_size": 0.1, "minibatch": {"kind": "full"}},
        "privacy": {
            "kind": "example-level", "l2_norm_clip": 20.0, "adaptive": {"target_quantile": 0.7},
            "noise": {"kind": "target", "epsilon": 1.0, "delta": 1e-3}, **privacy,
        },
    }  # fmt: skip


def test_every_way_to_run_moves_the_clip_alike():
    config = parse(table())
    ends = [reports_of(config, way)[-1].state for way in ("memory", "stacked", "messages")]
    assert ends[0][CLIP].item() != 0.05
    for end in ends[1:]:
        torch.testing.assert_close(end["x"], ends[0]["x"], rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(end[CLIP], ends[0][CLIP], rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"privacy": {"trust": "secure-sum"}}, "privacy.adaptive: expected neither privacy.trust"),
        ({"training": {"kind": "rfedsvrg", "step_size": 0.1}}, "one exchange a round"),
        (
            {"privacy": {"noise": {
                "kind": "published", "local_epsilon": 1.0, "local_delta": 1e-3}}},
            "'target' or 'multiplier'",
        ),
        ({"privacy": {"adaptive": {"target_quantile": 1.0}}}, "target_quantile"),
        ({"privacy": {"adaptive": {"start": 0.0}}}, "start"),
    ],
)  # fmt: skip
def test_what_it_does_not_go_with_is_refused_in_one_line(parts, message):
    whole = table(**parts.get("privacy", {}))
    with pytest.raises(ConfigError, match=message) as refused:
        parse({**whole, "training": parts.get("training", whole["training"])}).setting.check()
    assert "\n" not in str(refused.value)
