"""Ledgers of format 1, as runs wrote them, stay readable and cost what they cost."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from manifed.privacy.account import Account
from manifed.privacy.adversaries import SERVER
from manifed.privacy.charges import Terms, charges
from manifed.privacy.ledger import Ledger, LedgerTorn
from manifed.privacy.odometer import Odometer
from manifed.privacy.statement import audit_ledger
from tests.privacy.test_spending import odometer_of

SAMPLES = Path(__file__).parent / "samples"
EXPECTED = json.loads((SAMPLES / "expected.json").read_text())


@pytest.fixture
def samples(tmp_path):
    """A copy: opening a ledger writes its head."""
    return Path(shutil.copytree(SAMPLES, tmp_path / "samples"))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_sample_is_audited_at_the_numbers_of_its_own_version(samples, name):
    expected = EXPECTED[name]
    found = audit_ledger(samples / f"{name}.jsonl", expected["delta"])
    assert (found["format"], found["run_id"], found["authenticity"]) == (1, None, "unkeyed")
    assert found["entries"] == expected["entries"]
    assert found["charges"] == expected["charges"]
    assert found["consumed"] is None
    for mine, theirs in zip(found["adversaries"], expected["adversaries"], strict=True):
        assert mine["epsilon"] == pytest.approx(theirs["epsilon"], rel=1e-9)
        assert mine["epsilon_consumed"] is None
        assert {key: mine[key] for key in theirs if key != "epsilon"} == {
            key: theirs[key] for key in theirs if key != "epsilon"
        }


def test_a_torn_sample_is_told_apart_and_recovered_under_the_new_terms(samples):
    path = samples / "torn.jsonl"
    with pytest.raises(LedgerTorn, match="line 6"):
        audit_ledger(path, 1e-5)
    paid = charges(Ledger.read(samples / "plain.jsonl"))
    terms = Terms(population=4, updates=paid[0].turns, sampling=paid[0].sampling)
    account = Account.recover(path, terms, resumed_at=5, last_round=6)
    with account.ledger:
        account.charge(5, 1, (0, 1))
        account.settle()
    assert Ledger.verify(path).format == 1
    audited = Odometer()
    Ledger.verify(path, feed=audited.feed)
    assert audited.rounds_counted == account.odometer.rounds_counted == 6
    before = np.bincount([p for charge in paid for p in charge.partitions], minlength=4)
    assert (audited.participations_by_client() == before + 1 + np.array([1, 1, 0, 0])).all()
    assert audited.spent(1e-5) == account.odometer.spent(1e-5)
    assert audited.epsilon(SERVER, 1e-5) > max(odometer_of(paid).spent_by_client(1e-5).values())
