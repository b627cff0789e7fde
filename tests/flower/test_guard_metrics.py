"""Metrics of clients under guard: clamped, noised, and paid for as a round."""

import numpy as np
import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from pydantic import ValidationError
from scipy import stats

from manifed.errors import ConfigError
from manifed.flower.grids import InlineGrid
from manifed.flower.guard import Metrics
from manifed.privacy.composition import gaussian_epsilon
from manifed.privacy.statement import audit_ledger
from tests.flower.test_guard import N, guarded, model, replying, reservations, same

ACCURACY = Metrics(bounds={"eval_acc": (0.0, 1.0)})


def grid_of(told, nodes=N):
    """Clients that do not train, and tell ``told(partition)`` of a model."""
    app = replying(same)

    @app.evaluate()
    def evaluate(message, context):
        made = told(int(context.node_config["partition-id"]))
        content = {"metrics": MetricRecord({"num-examples": 9, **made})}
        return Message(RecordDict(content), reply_to=message)

    return InlineGrid(app, nodes, {})


def test_only_what_has_bounds_is_told_as_an_unweighted_mean(tmp_path):
    def told(i):
        return {"eval_acc": i / N, "loss": 1.2345, "num-examples": 10.0**i}

    strategy = guarded(tmp_path, FedAvg(), noise_multiplier=0.0, evaluate=ACCURACY)
    found = strategy.start(grid_of(told), model(), num_rounds=2)
    (first, second) = found.evaluate_metrics_clientapp.values()
    assert dict(first) == dict(second) == {"eval_acc": pytest.approx(np.arange(N).mean() / N)}
    assert "besides ['eval_acc'], each noised as a round" in str(strategy.statement()["notes"])


NOTHING = {
    "NaN": {"eval_acc": np.nan},
    "no such metric": {"accuracy": 1.0},
    "a list": {"eval_acc": [1.0, 1.0]},
    "an error": None,
}
FAR = {"a large one": 1e300, "infinity": np.inf, "below": -np.inf, "the bound": 1.0}


@pytest.mark.parametrize("name", [*NOTHING, *FAR])
def test_a_client_moves_the_metrics_by_its_bounds_over_the_cohort_whatever_it_replies(
    name, tmp_path
):
    def told(i):
        if i != 3:
            return {"eval_acc": 0.5}
        return NOTHING[name] or 1 / 0 if name in NOTHING else {"eval_acc": FAR[name]}

    strategy = guarded(tmp_path, FedAvg(), noise_multiplier=0.0, evaluate=ACCURACY)
    found = strategy.start(grid_of(told), model(), num_rounds=1)
    moved = found.evaluate_metrics_clientapp[1]["eval_acc"] - 0.5
    assert moved == pytest.approx(
        0.0 if name in NOTHING else (-1) ** (name == "below") * 0.5 / N, abs=1e-12
    )
    assert len(strategy.zeroed) == (name in NOTHING)


@pytest.mark.parametrize(("cohort", "bounds"), [("all", 1), ("fixed-size", 2)])
def test_the_noise_on_metrics_has_the_deviation_that_is_charged(cohort, bounds, tmp_path):
    names = [f"m{i}" for i in range(4000)]
    box = dict.fromkeys(names, (-1.0, 3.0))
    size = 10 if cohort == "fixed-size" else N
    strategy = guarded(
        tmp_path, FedAvg(), cohort=cohort, clients_per_round=size, evaluate=Metrics(bounds=box)
    )
    told = dict.fromkeys(names, 1.0)  # the middle
    found = strategy.start(grid_of(lambda _: told), model(), num_rounds=1)
    metrics = found.evaluate_metrics_clientapp[1]
    drawn = np.array([metrics[name] - 1.0 for name in names])
    by = bounds * 2.0 * len(names) ** 0.5 / size
    assert stats.kstest(drawn / by, "norm").pvalue > 1e-6
    law = stats.chi2(len(names))
    for factor, holds in ((1.0, True), (0.9, False), (1.1, False)):
        square = float(((drawn / (factor * by)) ** 2).sum())
        assert (2 * min(law.cdf(square), law.sf(square)) > 1e-6) == holds


def test_an_evaluation_costs_a_round_and_is_paid_before_it_is_asked(tmp_path):
    seen = []

    def told(i):
        if i == 0:
            seen.append(reservations(tmp_path / "ledger.jsonl"))
        return {"eval_acc": 0.5}

    limit = gaussian_epsilon(1e-3, mu=5**0.5) * 1.001
    rule = Metrics(bounds={"eval_acc": (0.0, 1.0)}, every=2)
    strategy = guarded(tmp_path, FedAvg(), max_epsilon=limit, evaluate=rule)
    assert strategy.payable(50) == 3  # a round, a round and an evaluation, a round
    strategy.start(grid_of(told), model(), num_rounds=50)
    assert seen == [3]
    assert strategy.odometer.rounds_counted == 4
    strategy.close()
    (_, paid) = audit_ledger(tmp_path / "ledger.jsonl", 1e-3)["adversaries"]
    assert paid["epsilon"] == pytest.approx(gaussian_epsilon(1e-3, mu=2.0), rel=1e-6)


def test_an_evaluation_draws_a_cohort_of_its_own_in_secret(tmp_path):
    trained, told = [set()], [set()]
    app = replying(lambda arrays, i: trained[-1].add(i) or same(arrays, i))

    @app.evaluate()
    def evaluate(message, context):
        told[-1].add(int(context.node_config["partition-id"]))
        content = {"metrics": MetricRecord({"num-examples": 9, "eval_acc": 0.5})}
        return Message(RecordDict(content), reply_to=message)

    strategy = guarded(
        tmp_path, FedAvg(fraction_evaluate=0.1), cohort="poisson", clients_per_round=10,
        evaluate=ACCURACY,
    )  # fmt: skip
    for _ in range(4):
        strategy.start(InlineGrid(app, N, {}), model(), num_rounds=1)
        trained.append(set())
        told.append(set())
    assert trained != told
    assert 4 < np.mean([len(one) for one in told[:-1]]) < 16


@pytest.mark.parametrize("box", [{}, {"a": (1.0, 1.0)}, {"a": (0.0, np.inf)}])
def test_bounds_that_bound_nothing_are_refused(box):
    with pytest.raises((ConfigError, ValidationError), match=r"bounds|at least 1"):
        Metrics(bounds=box)
