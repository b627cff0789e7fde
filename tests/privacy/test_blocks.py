"""Rounds that one line of the ledger pays for: safe wherever a run ends, and nearly exact."""

import pytest

from manifed.experiment.assembly import client_side, facts_of
from manifed.federation.stack import StackTransport
from manifed.plan import promise_of
from manifed.privacy import epsilon_bounds
from manifed.privacy.statement import audit_ledger
from manifed.privacy.tariff import blocks
from manifed.runs.driver import rounds_over, run
from tests.algorithms.test_growing_samples import PRIVATE, experiment
from tests.privacy.forging import audited
from tests.privacy.releases import release

ROUNDS = 60
DELTA = 1e-4
TARGET = {**PRIVATE, "noise": {"kind": "target", "epsilon": 2.0, "delta": DELTA}}


def growing(tmp_path, reserve=20, privacy=TARGET, name="run", **output):
    config = experiment("gradient", ROUNDS, privacy, on_exhausted="recycle")
    federation = config.federation.model_copy(update={"reserve_rounds": reserve})
    given = {"directory": str(tmp_path / name), "quiet": True} | output
    found = config.output.model_copy(update=given)
    evaluation = config.evaluation.model_copy(update={"every": ROUNDS})
    return config.model_copy(
        update={"federation": federation, "output": found, "evaluation": evaluation}
    )


class Watched(StackTransport):
    """Keeps what left, and may die in a round."""

    def __init__(self, side, until=None):
        super().__init__(side)
        self.until = until
        self.left = []

    def exchange(self, asked):
        if asked.header.server_round == self.until:
            raise KeyboardInterrupt
        self.left.append((asked.header.server_round, asked.header.attempt))
        return super().exchange(asked)


def made(config, until=None):
    transport = Watched(client_side(config), until)
    try:
        return run(config, rounds_over(transport)), transport.left
    except KeyboardInterrupt:
        return None, transport.left


def released(config):
    """What one node really releases, round by round."""
    side = client_side(config)
    return [side.setup.releases(r, 4) for r in range(1, ROUNDS + 1)]


def test_every_round_is_charged_at_least_what_it_releases_and_at_most_a_hundredth_more(tmp_path):
    config = growing(tmp_path)
    promise = promise_of(config.setting, facts_of(config).sizes)
    assert sum(promise.tariff.lengths) == ROUNDS
    assert len(promise.tariff.lengths) < ROUNDS / 2
    assert 5 <= max(promise.tariff.lengths) <= 20
    for r, (event,) in enumerate(released(config), 1):
        ((charged,),) = {one.releases for one in promise.tariff.of(r).updates}
        assert charged.noise_multiplier <= event.noise_multiplier * (1 + 1e-12)
        assert event.noise_multiplier <= 1.01 * charged.noise_multiplier


def test_a_run_in_blocks_meets_its_target_with_few_lines_and_the_ledger_says_so(tmp_path):
    config = growing(tmp_path)
    folder, left = made(config)
    assert left == [(r, 0) for r in range(1, ROUNDS + 1)]
    found = audit_ledger(folder.ledger_path, DELTA)
    assert found["entries"] < ROUNDS / 2
    assert found["charges"] == ROUNDS
    epsilon = found["adversaries"][0]["epsilon"]
    exact = epsilon_bounds.epsilon([one for each in released(config) for one in each], DELTA)
    assert exact <= epsilon <= 2.0
    assert epsilon <= 1.02 * exact
    said = folder.manifest()["privacy"]["adversaries"][0]["epsilon"]
    assert said == pytest.approx(epsilon, rel=1e-9)
    text = folder.ledger_path.read_text()
    assert '"cohorts"' not in text  # everybody, as reserved


def test_a_run_that_dies_has_charged_what_left_and_resumed_sends_nothing_twice(tmp_path):
    config = growing(tmp_path, checkpoint_every=10)
    _, before = made(config, until=25)
    path = tmp_path / "run" / "ledger.jsonl"
    counted = audited(path)
    assert all(counted.attempts(r) > attempt for r, attempt in before)
    assert counted.rounds_counted >= len(before)
    again = growing(tmp_path, checkpoint_every=10, resume=True)
    folder, after = made(again)
    assert folder.manifest()["final"]["rounds"] == ROUNDS or folder.manifest()["stopped"]
    assert not set(before) & set(after)  # a round that is made again is another attempt
    counted = audited(path)
    assert all(counted.attempts(r) > attempt for r, attempt in before + after)


def event(z, label="gradient", count=1):
    return release(z, count=count, relation="replace-one", label=label)


def test_blocks_end_where_cost_or_kind_changes_and_are_charged_the_dearest_of_each_size():
    rounds = [
        {4: (event(1.0),), 9: (event(2.0),)},
        {4: (event(0.995),), 9: (event(2.01),)},
        {4: (event(1.004),), 9: (event(1.999),)},
        {4: (event(1.2),), 9: (event(2.0),)},
        {4: (event(1.2), event(1.0, "evaluation")), 9: (event(2.0), event(1.0, "evaluation"))},
        {4: (event(1.2, count=2),), 9: (event(2.0),)},
    ]
    found = list(blocks(rounds, 10))
    assert [(one.first, one.last) for one in found] == [(1, 3), (4, 4), (5, 5), (6, 6)]
    for size, least in ((4, 0.995), (9, 1.999)):
        (charged,) = found[0].charged(size, lambda r, n=size: rounds[r - 1][n])
        assert charged.noise_multiplier == least
    assert [one.last for one in blocks(rounds[:3], 2)] == [2, 3]
