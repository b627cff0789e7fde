"""Private evaluation: who is held out, what it costs, what leaves, and what its numbers mean."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from manifed.algorithms.payloads import Point
from manifed.errors import ConfigError
from manifed.experiment.assembly import client_side, own_node, plan_of
from manifed.experiment.evaluation import HELD_OUT, Judged
from manifed.experiment.load import load
from manifed.federation.client import Seat, Uncharged, run_update
from manifed.federation.exchange import Failure
from manifed.federation.held_out import EVALUATE, PrivateEvaluation, ratio
from manifed.federation.stack import StackTransport
from manifed.flower.apps import run
from manifed.flower.client import inline_grid
from manifed.manifolds.sphere import Sphere
from manifed.oracles.noisy_oracle import Draws
from manifed.plan import example_mechanism, planned_statement
from manifed.privacy.composition import gaussian_epsilon
from manifed.privacy.ledger import Ledger
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.odometer import Odometer
from manifed.privacy.random_numbers import NoiseSource
from manifed.privacy.statement import audit_ledger
from manifed.problems.examples import Examples
from manifed.runs import driver
from tests.conformance.federated_loop import stacked
from tests.fresh import QUICKSTART

RULE = PrivateEvaluation(hold_out=0.25, loss_range=(-1.0, 0.0))
DRAWS = Draws(NoiseSource.from_seed(0), 0, 1)
TARGET = "privacy.noise={kind='target',epsilon=2.0,delta=1e-4,adversary='server'}"
SMALL = (
    "federation.num_clients=3", "federation.num_rounds=4", "output.quiet=true",
    "federation.cohort={kind='all'}",
    "training={kind='rsgd',step_size=0.1,local_steps=2,minibatch={kind='full'}}",
    "evaluation={kind='private',hold_out=0.25,loss_range=[-1.0,0.0],every=2}",
)  # fmt: skip


def config_of(*sets):
    return load(QUICKSTART, [*SMALL, *sets])


def placed(config, folder):
    output = config.output.model_copy(update={"directory": str(folder)})
    return config.model_copy(update={"output": output})


def ran(config, folder, transport=None):
    rounds = driver.rounds_over(transport or StackTransport(client_side(config)))
    return driver.run(placed(config, folder), rounds)


def server_epsilon(statement):
    return statement["adversaries"][0]["epsilon"]


def epsilon_of(folder):
    """As the manifest says it, and as the ledger does."""
    said = server_epsilon(folder.manifest()["privacy"])
    assert server_epsilon(audit_ledger(folder.ledger_path, 1e-4)) == said
    return said


def planned(config):
    return server_epsilon(planned_statement(config.setting, plan_of(config).num_examples))


def rows(count):
    return torch.from_numpy(np.random.default_rng(0).normal(size=(count, 3)))


def of(z):
    return Examples({"z": z}, {"z": 1})


def sides(z, relation):
    return [side["z"].tolist() for side in RULE.split(of(z), relation, 7)]


def moved(before, after):
    """How many records each side has that it did not have."""
    return [sum(r not in old for r in new) for new, old in zip(after, before, strict=True)]


@pytest.mark.parametrize("place", [0, 17, 40])
def test_a_record_more_is_on_one_side_and_moves_nobody_else(place):
    z = rows(40)
    more = torch.cat([z[:place], torch.full((1, 3), 0.5, dtype=z.dtype), z[place:]])
    before, after = (sides(t, "add-or-remove") for t in (z, more))
    assert sorted(moved(before, after)) == [0, 1]
    assert [len(a) - len(b) for a, b in zip(after, before, strict=True)] == moved(before, after)


def test_another_record_in_a_place_stays_on_its_side():
    before = sides(rows(40), "replace-one")
    assert RULE.trained_on(40) == 30
    for place in range(40):
        z = rows(40)
        z[place] = 0.5
        after = sides(z, "replace-one")
        assert sorted(moved(before, after)) == [0, 1]
        assert [len(side) for side in after] == [30, 10]


def test_training_and_hold_out_share_no_record_and_are_all():
    train, out = sides(rows(200), "add-or-remove")
    assert sorted(train + out) == sorted(rows(200).tolist())
    assert 25 <= len(out) <= 75


@pytest.mark.parametrize("relation", ["add-or-remove", "replace-one"])
def test_epsilon_is_that_of_training_and_evaluation_composed_by_hand(relation, tmp_path):
    config = config_of(TARGET, f"privacy.neighboring_relation='{relation}'")
    noise = example_mechanism(config.setting, (599, 599, 599)).noise.multiplier
    mu = math.sqrt((4 * 2 + 2) / noise**2)  # 2 steps in each of 4 rounds, and 2 evaluations
    said = planned(config)
    assert said == pytest.approx(gaussian_epsilon(1e-4, mu=mu), abs=1e-6)
    assert 1.99 < said <= 2.0
    own = config_of("privacy.noise={kind='multiplier',noise_multiplier=5.0}", "privacy.delta=1e-4",
                    "evaluation.noise_multiplier=2.0")  # fmt: skip
    mu = math.sqrt(8 / 5.0**2 + 2 / 2.0**2)
    found = epsilon_of(ran(own, tmp_path / "run"))
    assert found == pytest.approx(gaussian_epsilon(1e-4, mu=mu), abs=1e-6)


def test_all_ways_to_the_clients_say_the_same(tmp_path):
    config = config_of(TARGET)
    grid = inline_grid(config)
    alone, in_stacks, by_messages = (
        folder.metrics()
        for folder in (
            ran(config, tmp_path / "a"),
            ran(config, tmp_path / "b", stacked(client_side(config))),
            run(grid, placed(config, tmp_path / "c")),
        )
    )
    for name in HELD_OUT:
        assert alone[name][0] is None
        assert in_stacks[name] == pytest.approx(alone[name], abs=1e-9)
        assert by_messages[name] == alone[name]
    low, loss, high = (alone[f"held_out_loss{end}"][-1] for end in ("_low", "", "_high"))
    assert -1 <= low < loss < high <= 0


def test_what_leaves_is_noised_and_only_in_rounds_that_are_charged():
    config = config_of(TARGET)
    node = own_node(config, 0)
    x = Point(torch.eye(1, 64, dtype=torch.float64)[0])

    def sent(server_round, seed):
        seat = Seat(0, server_round, 0, EVALUATE.name)
        source = NoiseSource.from_seed(seed)
        return run_update(node.setup, seat, x, None, node.hold_out, 599, source).up.u

    drawn = torch.stack([sent(2, seed) for seed in range(400)])
    mechanism = node.setup.mechanism
    stddev = RULE.stddev(mechanism)
    assert stddev == pytest.approx(math.sqrt(3) * mechanism.noise.multiplier)
    assert drawn.std(0) == pytest.approx(torch.full((3,), stddev).numpy(), rel=0.15)
    assert abs(float(drawn[:, 2].mean()) - len(node.hold_out)) < 4 * stddev / 20
    with pytest.raises(Uncharged, match="round 3 is not charged"):
        sent(3, 0)


class _Losses:
    """A problem whose losses are what the records say."""

    manifold = Sphere()
    keeps_rows_apart = True

    def losses(self, x, examples):
        return examples["z"].to(x.dtype)

    def correct(self, x, examples):
        return None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_narrow_or_wide_interval_bounds_a_loss_as_any_other(dtype):
    for low, high in ((1.0, 1.0 + 2**-52), (0.0, 0.1), (1e16, 1e16 + 2), (1e-100, 1e100)):
        held = PrivateEvaluation(hold_out=0.5, loss_range=(low, high))
        for z in (low, high, -1e300, 1e300, math.inf, math.nan):
            one = Examples({"z": torch.tensor([z], dtype=torch.float64)}, {"z": 0})
            told = held.totals(_Losses(), torch.zeros(2, dtype=dtype), one, 0.0, DRAWS).u
            assert float(told.norm()) <= math.sqrt(3.0) * (1 + 1e-7)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    drawn = np.random.default_rng(3).normal((12.0, 40.0), 9.0, (2000, 2))
    ends = [ratio(total, count, 9.0)[1:] for total, count in drawn]
    assert 0.94 <= sum(low <= 0.3 <= high for low, high in ends) / 2000 <= 0.965
    assert ratio(1.0, 0.5, 9.0) == (None, -1.0, 1.0)


STANDING = (TARGET, "evaluation.every=1", "training.step_size=1e-9")
STOP = "evaluation.stop_when={no_better_for=1}"


def test_a_run_may_end_early_and_pays_for_all_of_its_rounds(tmp_path):
    config = config_of(*STANDING, "federation.num_rounds=12", STOP, "evaluation.keep='best'")
    folder = ran(config, tmp_path / "run")
    manifest = folder.manifest()
    assert "all 12 rounds are paid for" in manifest["stopped"]
    assert manifest["final"]["rounds"] < 12
    assert epsilon_of(folder) == pytest.approx(planned(config))
    losses = folder.metrics()["held_out_loss"]
    best = folder.load_tensors("best")
    assert int(best["round"]) == min(range(1, len(losses)), key=losses.__getitem__)
    assert torch.equal(folder.load_tensors("model")["x"], best["x"])


def test_a_run_that_ends_early_pays_what_it_would_have_paid_with_the_same_cohorts(tmp_path):
    one = "federation.cohort={kind='fixed-size',cohort_size=1}"
    paid = []
    for name, more in (("on", ()), ("early", (STOP,))):
        config = config_of(*STANDING, "federation.num_rounds=8", one, *more)
        folder = ran(config, tmp_path / name)
        assert (folder.manifest()["final"]["rounds"] < 8) == (name == "early")
        odometer = Odometer()
        Ledger.verify(folder.ledger_path, feed=odometer.feed)
        paid.append((odometer.participations_by_client().tolist(), odometer.spent(1e-4)))
    assert paid[0] == paid[1]
    assert sum(paid[0][0]) == 8


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([0.5, None, 0.6, 0.4, 0.4], Judged(0.4, 4, 1)),
        ([math.nan, 0.5, math.nan, 0.4], Judged(0.4, 4, 0)),
        ([math.nan], Judged(None, 0, 1)),
    ],
)
def test_the_best_is_the_least_loss_and_one_that_is_drowned_or_no_number_never_is(losses, best):
    judged = Judged()
    for server_round, loss in enumerate(losses, 1):
        judged = judged.after(server_round, loss)
    assert judged == best
    assert judged.after(9, math.nan).since >= 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("privacy={kind='none'}", "charged as releases about examples"),
        ("evaluation.loss_range=[1.0,0.0]", "expected low < high"),
        ("evaluation={kind='public',path='a.csv'}", "reads a file as data.kind = 'file' says"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        config_of(text)


# -- totals that no hold-out has ---------------------------------------------------------------
class Says(StackTransport):
    """One site sends totals of its own; None: it does not answer."""

    def __init__(self, config, site, totals):
        super().__init__(client_side(config))
        self.site = site
        self.totals = totals

    def exchange(self, asked):
        found = super().exchange(asked)
        if asked.phase is not EVALUATE:
            return found
        if self.totals is None:
            return found.without({self.site: ""})._replace(
                failures={self.site: Failure("late", "no reply")}
            )
        u = found.uploads.u.clone()
        u[found.partitions.index(self.site)] = torch.tensor(self.totals, dtype=u.dtype)
        return found._replace(uploads=type(found.uploads)(u))


@pytest.mark.parametrize(
    "totals",
    [
        [0.0, 0.0, 1e6],  # more records than it has
        [0.0, 0.0, -1e6],  # fewer than none
        [-1e4, 0.0, 150.0],  # losses beyond its records
        [0.0, 1e4, 150.0],  # answers beyond its records
    ],
)
def test_a_site_that_totals_what_no_hold_out_can_is_named_and_left_out(totals, tmp_path, caplog):
    config = config_of(TARGET)
    beyond, silent = (
        ran(config, tmp_path / name, Says(config, 1, sent)).metrics()
        for name, sent in (("beyond", totals), ("silent", None))
    )
    for name in (*HELD_OUT, "participants"):
        assert beyond[name] == silent[name]
    assert sum(beyond["unusable"]) == sum(silent["late"]) == 2
    lines = [r.getMessage() for r in caplog.records if "(unusable)" in r.getMessage()]
    assert len(lines) == 2
    assert all("client 1 is dropped" in line and "held out" in line for line in lines)


@pytest.mark.parametrize("relation", ["add-or-remove", "replace-one"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_honest_site_is_refused_with_probability_1e_9_at_most(dtype, relation):
    mechanism = ExampleMechanism(
        l2_norm_clip=1.0, neighboring_relation=relation, noise=Noise(multiplier=2.0)
    )
    margin = stats.norm.isf(1e-9 / 6) * RULE.stddev(mechanism)  # six one-sided questions
    most, least = (100, 100) if relation == "replace-one" else (400, 0)
    both = math.sqrt(2) * margin  # a difference of two noised sums
    for share, wanted in ((0.99, set()), (1.01, {1})):
        for totals in (
            [0.0, 0.0, most + share * margin],
            [0.0, 0.0, least - share * margin],
            *([sign * (100 + share * both), 0.0, 100.0] for sign in (1, -1)),
            *([0.0, sign * (100 + share * both), 100.0] for sign in (1, -1)),
        ):
            u = torch.tensor([[0.0, 0.0, 100.0], totals], dtype=dtype)
            found = RULE.refused(mechanism, (400, 400), u, (0, 1))
            assert set(found) == wanted, (totals, share)
