"""Our accountant behind Flower's protocol, and what its ledger holds when Flower goes on."""

import inspect
import json

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyAccountant,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from manifed.flower.accountant import Accountant
from manifed.flower.grids import InlineGrid
from manifed.privacy.statement import audit_ledger
from tests.privacy.releases import cost, poisson, release, subset

NONE, POISSON, SUBSET = (
    SamplingMethod.NO_AMPLIFICATION,
    SamplingMethod.POISSON,
    SamplingMethod.WITHOUT_REPLACEMENT,
)


def config(sampling=NONE, population=10, max_epsilon=20.0):
    relation = "REPLACE_ONE" if sampling is SUBSET else "ADD_OR_REMOVE_ONE"
    return PrivacyConfig(1e-5, population, NeighboringRelation[relation], sampling, max_epsilon)


def event(z=2.0, sample=10, population=10):
    return GaussianPrivacyEvent(z, sample, population)


def until_exhausted(accountant):
    """Run Flower's own wrapper around FedAvg until it says that the budget is spent."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        records = {"arrays": message.content["arrays"], "m": MetricRecord({"num-examples": 1})}
        records["arrays"] = ArrayRecord(
            [one + 0.1 for one in records["arrays"].to_numpy_ndarrays()]
        )
        return Message(RecordDict(records), reply_to=message)

    inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=10, min_available_nodes=10)
    strategy = DifferentialPrivacyServerSideFixedClipping(
        inner, 2.0, 1.0, 10, accountant=accountant
    )
    arrays = ArrayRecord([np.zeros(3)])
    with pytest.raises(PrivacyBudgetExhausted):
        strategy.start(InlineGrid(app, 10, {}), arrays, num_rounds=60)


def test_flowers_wrapper_runs_as_many_rounds_as_the_exact_price_pays(tmp_path):
    file = tmp_path / "ledger.jsonl"
    accountant = Accountant(config(), ledger=file)
    until_exhausted(accountant)
    spent = accountant.get_privacy_spent()
    assert spent.num_releases == 47
    assert spent.epsilon == pytest.approx(19.847, abs=1e-3)
    found, _ = audit_ledger(file, 1e-5)["adversaries"]
    assert found["epsilon"] == spent.epsilon
    rdp = RdpAccountant(config())
    rdp.compose(event(), 43)
    assert rdp.would_exceed(event())
    assert not accountant.would_exceed(event(), 20.2)


@pytest.mark.parametrize(
    ("sampling", "halve", "expected"),
    [
        (NONE, True, release(2.0, count=5)),
        (POISSON, True, poisson(2.0, 0.05, 5)),
        (SUBSET, True, subset(1.0, 5, 100, 5)),
        (SUBSET, False, subset(2.0, 5, 100, 5)),
    ],
)
def test_an_event_is_priced_by_its_sampling(sampling, halve, expected):
    accountant = Accountant(config(sampling, 100), halve=halve)
    accountant.compose(event(sample=5, population=100), 5)
    epsilon = accountant.get_epsilon(1e-5)
    assert epsilon == cost(expected)
    assert 1e-5 <= accountant.get_delta(epsilon) <= 1.0011e-5


def test_it_has_the_members_of_the_protocol_with_their_parameters():
    for name, member in vars(PrivacyAccountant).items():
        assert name.startswith("_") or hasattr(Accountant(config()), name), name
        if inspect.isfunction(member) and not name.startswith("_"):
            mine = inspect.signature(getattr(Accountant, name)).parameters
            assert list(mine) == list(inspect.signature(member).parameters), name


def test_a_line_is_on_disk_before_compose_returns_and_counts_ever_after(tmp_path):
    file = tmp_path / "ledger.jsonl"
    accountant = Accountant(config(), ledger=file)
    for n in (1, 3):
        accountant.compose(event(), n)
        assert len(file.read_text().splitlines()) == n // 2 + 2
    state = json.loads(json.dumps(accountant.state_dict()))
    for wrong in ((event(population=11),), (event(), 0)):
        with pytest.raises(ValueError, match=r"11|first"):
            accountant.compose(*wrong)
    epsilon = accountant.get_epsilon(1e-5)
    accountant.ledger.close()
    with file.open("ab") as torn:
        torn.write(b'{"previous":"00')
    again = Accountant(config(), ledger=file)
    assert (again.num_releases, again.get_epsilon(1e-5)) == (4, epsilon)
    again.compose(event())
    again.load_state_dict(state)
    assert again.num_releases == 5
    more = {**state, "compositions": [{**state["compositions"][0], "count": 9}]}
    with pytest.raises(ValueError, match="at most the 5 releases"):
        again.load_state_dict(more)
    memory = Accountant(config())
    memory.load_state_dict(state)
    assert memory.get_epsilon(1e-5) == epsilon
    assert memory.state_dict() == state
    for other in ({"backend": "rdp"}, {"schema_version": 2}, {"halve": False}, {"config": {}}):
        with pytest.raises(ValueError, match="state: expected one like"):
            memory.load_state_dict({**state, **other})
    with pytest.raises((ValueError, KeyError, TypeError)):
        memory.load_state_dict({**state, "compositions": [{"event": {}}]})
    assert memory.num_releases == 4


def test_a_limit_is_asked_for_what_comes_and_nothing_is_counted():
    accountant = Accountant(config(max_epsilon=None))
    assert accountant.get_epsilon(1e-5) == 0
    assert not accountant.would_exceed(event(), count=10**6)
    assert accountant.would_exceed(event(), 1.0)
    assert accountant.num_releases == 0
    assert accountant.get_privacy_spent(0.5).delta == 0.5
