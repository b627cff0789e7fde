"""Private evaluation: who is held out, what it costs, what leaves, and what its numbers mean."""

import math
from pathlib import Path

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
from manifed.federation.held_out import (
    EVALUATE,
    PrivateEvaluation,
    StopWhen,
    ratio,
)
from manifed.federation.replies import Failure
from manifed.federation.stack import StackTransport
from manifed.flower.apps import run
from manifed.flower.client import client_app_of
from manifed.flower.inline import InlineGrid
from manifed.manifolds.sphere import Sphere
from manifed.oracles.oracle import Draws
from manifed.plan import example_mechanism, planned_statement
from manifed.privacy.composition import gaussian_epsilon
from manifed.privacy.ledger import Ledger
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.noise import NoiseSource
from manifed.privacy.odometer import Odometer
from manifed.privacy.statement import audit_ledger
from manifed.problems.examples import Examples
from manifed.runs import driver
from tests.conformance.federated_loop import stacked

QUICKSTART = Path(__file__).resolve().parents[2] / "configs" / "quickstart.toml"
RULE = PrivateEvaluation(hold_out=0.25, loss_range=(-1.0, 0.0))
PRIVATE = "evaluation={kind='private',hold_out=0.25,loss_range=[-1.0,0.0],every=2}"
FULL = "training={kind='rsgd',step_size=0.1,local_steps=2,minibatch={kind='full'}}"
TARGET = "privacy.noise={kind='target',epsilon=2.0,delta=1e-4,adversary='server'}"
SMALL = ("federation.num_clients=3", "federation.num_rounds=4", "output.plots=false",
         "output.quiet=true", "federation.cohort={kind='all'}", FULL)  # fmt: skip


def config_of(*sets):
    return load(QUICKSTART, [*SMALL, PRIVATE, *sets])


def placed(config, folder):
    output = config.output.model_copy(update={"directory": str(folder)})
    return config.model_copy(update={"output": output})


def ran(config, folder, transport=None):
    rounds = driver.rounds_over(transport or StackTransport(client_side(config)))
    return driver.run(placed(config, folder), rounds)


def epsilons(folder):
    """As the manifest says it, and as the ledger does."""
    said = folder.manifest()["privacy"], audit_ledger(folder.ledger_path, 1e-4)
    return [each["adversaries"][0]["epsilon"] for each in said]


def planned(config):
    sizes = plan_of(config).num_examples
    return planned_statement(config.setting, sizes)["adversaries"][0]["epsilon"]


def rows(count, seed=0):
    z = np.random.default_rng(seed).normal(size=(count, 3))
    return Examples({"z": torch.from_numpy(z)}, {"z": 1})


def sides(examples, relation):
    return [side["z"].tolist() for side in RULE.split(examples, relation, 7)]


def moved(before, after):
    """How many records each side has that it did not have."""
    return [sum(r not in old for r in new) for new, old in zip(after, before, strict=True)]


@pytest.mark.parametrize("place", [0, 17, 40])
def test_a_record_more_is_on_one_side_and_moves_nobody_else(place):
    z = rows(40)["z"]
    more = torch.cat([z[:place], torch.full((1, 3), 0.5, dtype=z.dtype), z[place:]])
    before, after = (sides(Examples({"z": t}, {"z": 1}), "add-or-remove") for t in (z, more))
    assert sorted(moved(before, after)) == [0, 1]
    assert [len(a) - len(b) for a, b in zip(after, before, strict=True)] == moved(before, after)


def test_another_record_in_a_place_stays_on_its_side():
    examples = rows(40)
    before = sides(rows(40), "replace-one")
    assert RULE.trained_on(40) == 30
    for place in range(40):
        z = examples["z"].clone()
        z[place] = 0.5
        after = sides(Examples({"z": z}, {"z": 1}), "replace-one")
        assert sorted(moved(before, after)) == [0, 1]
        assert [len(side) for side in after] == [30, 10]


def test_training_and_hold_out_share_no_record_and_are_all():
    train, out = sides(rows(200), "add-or-remove")
    assert sorted(train + out) == sorted(rows(200)["z"].tolist())
    assert 25 <= len(out) <= 75


@pytest.mark.parametrize("relation", ["add-or-remove", "replace-one"])
def test_epsilon_is_that_of_training_and_evaluation_composed_by_hand(relation, tmp_path):
    config = config_of(TARGET, f"privacy.neighboring_relation='{relation}'")
    sizes = (599, 599, 599)
    noise = example_mechanism(config.setting, sizes).noise.multiplier
    mu = math.sqrt((4 * 2 + 2) / noise**2)  # 2 steps in each of 4 rounds, and 2 evaluations
    said = planned(config)
    assert said == pytest.approx(gaussian_epsilon(1e-4, mu=mu), abs=1e-6)
    assert 1.99 < said <= 2.0
    own = config_of("privacy.noise={kind='multiplier',noise_multiplier=5.0}", "privacy.delta=1e-4",
                    "evaluation.noise_multiplier=2.0")  # fmt: skip
    mu = math.sqrt(8 / 5.0**2 + 2 / 2.0**2)
    said, audited = epsilons(ran(own, tmp_path / "run"))
    assert said == pytest.approx(gaussian_epsilon(1e-4, mu=mu), abs=1e-6)
    assert audited == said


def test_all_ways_to_the_clients_say_the_same(tmp_path):
    config = config_of(TARGET)
    found = [ran(config, tmp_path / "a"), ran(config, tmp_path / "b", stacked(client_side(config)))]
    grid = InlineGrid(client_app_of(lambda _: config), 3, {})
    found.append(run(grid, placed(config, tmp_path / "c")))
    tables = [folder.metrics() for folder in found]
    for name in HELD_OUT:
        ends = [table[name] for table in tables]
        assert ends[0][0] is ends[0][1] is None or ends[0][0] is None
        assert ends[1] == pytest.approx(ends[0], abs=1e-9)
        assert ends[2] == ends[0]
    row = {name: tables[0][name][-1] for name in HELD_OUT}
    assert -1 <= row["held_out_loss_low"] < row["held_out_loss"] < row["held_out_loss_high"] <= 0


def test_what_leaves_is_noised_and_only_in_rounds_that_are_charged():
    config = config_of(TARGET)
    node = own_node(config, 0)
    x = Point(torch.eye(1, 64, dtype=torch.float64)[0])

    def sent(server_round, seed):
        seat = Seat(0, server_round, 0, EVALUATE.name)
        source = NoiseSource.from_seed(seed)
        return run_update(node.setup, seat, x, None, node.hold_out, 599, source).up.u

    drawn = torch.stack([sent(2, seed) for seed in range(400)])
    stddev = RULE.stddev(node.setup.mechanism)
    assert stddev == pytest.approx(math.sqrt(3) * node.setup.mechanism.noise.multiplier)
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
    draws = Draws(NoiseSource.from_seed(0), 0, 1)
    for low, high in ((1.0, 1.0 + 2**-52), (0.0, 0.1), (1e16, 1e16 + 2), (1e-100, 1e100)):
        held = PrivateEvaluation(hold_out=0.5, loss_range=(low, high))
        for z in (low, high, -1e300, 1e300, math.inf, math.nan):
            one = Examples({"z": torch.tensor([z], dtype=torch.float64)}, {"z": 0})
            told = held.totals(_Losses(), torch.zeros(2, dtype=dtype), one, 0.0, draws).u
            assert float(told.norm()) <= math.sqrt(3.0) * (1 + 1e-7)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(2000):
        total = 12.0 + 9.0 * rng.normal()
        count = 40.0 + 9.0 * rng.normal()
        _, low, high = ratio(total, count, 9.0)
        hits += low <= 0.3 <= high
    assert 0.94 <= hits / 2000 <= 0.965
    assert ratio(1.0, 0.5, 9.0) == (None, -1.0, 1.0)


def test_a_run_may_end_early_and_pays_for_all_of_its_rounds(tmp_path):
    stop = "evaluation.stop_when={no_better_for=1}"
    keep = "evaluation.keep='best'"
    config = config_of(TARGET, "federation.num_rounds=12", "evaluation.every=1", stop, keep,
                       "training.step_size=1e-9")  # fmt: skip
    folder = ran(config, tmp_path / "run")
    manifest = folder.manifest()
    assert "all 12 rounds are paid for" in manifest["stopped"]
    assert manifest["final"]["rounds"] < 12
    said, audited = epsilons(folder)
    assert said == pytest.approx(planned(config))
    assert audited == said
    losses = folder.metrics()["held_out_loss"]
    best = folder.load_tensors("best")
    assert int(best["round"]) == min(range(1, len(losses)), key=lambda r: losses[r])
    assert torch.equal(folder.load_tensors("model")["x"], best["x"])


def test_a_run_that_ends_early_pays_what_it_would_have_paid_with_the_same_cohorts(tmp_path):
    sets = (TARGET, "federation.num_rounds=8", "evaluation.every=1", "training.step_size=1e-9",
            "federation.cohort={kind='fixed-size',cohort_size=1}")  # fmt: skip
    paid = []
    for name, more in (("on", ()), ("early", ("evaluation.stop_when={no_better_for=1}",))):
        config = config_of(*sets, *more)
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
    assert judged.after(9, math.nan).is_over(StopWhen(no_better_for=1))


REFUSED = {
    "nobody is protected": ("privacy={kind='none'}", "charged as releases about examples"),
    "no interval": ("evaluation.loss_range=[1.0,0.0]", "expected low < high"),
    "a named data set": (
        "evaluation={kind='public',path='a.csv'}", "reads a file as data.kind = 'file' says",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_evaluated_is_refused(name):
    text, words = REFUSED[name]
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
            return found.without({self.site: Failure("late", "no reply")})
        u = found.uploads.u.clone()
        u[found.partitions.index(self.site)] = torch.tensor(self.totals, dtype=u.dtype)
        return found._replace(uploads=type(found.uploads)(u))


BEYOND = {
    "more records than it has": [0.0, 0.0, 1e6],
    "fewer than none": [0.0, 0.0, -1e6],
    "losses beyond its records": [-1e4, 0.0, 150.0],
    "answers beyond its records": [0.0, 1e4, 150.0],
}


@pytest.mark.parametrize("case", BEYOND)
def test_a_site_that_totals_what_no_hold_out_can_is_named_and_left_out(case, tmp_path, caplog):
    config = config_of(TARGET)
    tables = []
    for name, totals in (("beyond", BEYOND[case]), ("silent", None)):
        tables.append(ran(config, tmp_path / name, Says(config, 1, totals)).metrics())
    for name in HELD_OUT:
        assert tables[0][name] == tables[1][name]
    assert sum(tables[0]["unusable"]) == sum(tables[1]["late"]) == 2
    assert tables[0]["participants"] == tables[1]["participants"]
    lines = [r.getMessage() for r in caplog.records if "(unusable)" in r.getMessage()]
    assert len(lines) == 2
    assert all("client 1 is dropped" in line and "held out" in line for line in lines)


@pytest.mark.parametrize("relation", ["add-or-remove", "replace-one"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_honest_site_is_refused_with_probability_1e_9_at_most(dtype, relation):
    mechanism = ExampleMechanism(
        l2_norm_clip=1.0, neighboring_relation=relation, noise=Noise(multiplier=2.0)
    )
    stddev = RULE.stddev(mechanism)
    margin = stats.norm.isf(1e-9 / 6) * stddev  # six one-sided questions
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


def test_one_record_moves_the_sums_by_no_more_than_the_noise_is_made_for():
    config = config_of(TARGET)
    problem = own_node(config, 0).setup.problem
    draws = _Silent()
    x = torch.eye(1, 3, dtype=torch.float64)[0]
    for row in ([1e9, 0.0, 0.0], [float("nan"), 1.0, 0.0], [0.0, 1e-9, 3.0]):
        z = torch.cat([rows(5)["z"], torch.tensor([row], dtype=torch.float64)])
        both = [
            RULE.totals(problem, x, Examples({"z": part}, {"z": 1}), 0.0, draws).u
            for part in (z, z[:5])
        ]
        assert float((both[0] - both[1]).norm()) <= math.sqrt(3) + 1e-9


class _Silent:
    def normals(self, shape, stream, step):
        return torch.zeros(shape, dtype=torch.float64)
