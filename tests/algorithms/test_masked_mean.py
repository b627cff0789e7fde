"""The masked mean: masks cancel in T_xM, silent nodes are made up for and paid for, once."""

import pytest
import torch

from manifed.errors import BudgetExhausted, RoundFailed
from manifed.experiment.assembly import initial_point, plan_of
from manifed.federation.exchange import Asked, Failure
from manifed.federation.rounds import run_rounds
from manifed.plan import promise_of
from manifed.privacy.charging import opened
from manifed.privacy.composition import gaussian_epsilon as gdp_epsilon
from manifed.privacy.events import OF_MASKS
from manifed.privacy.secldp import Correlated, against, worst
from tests.algorithms.gossip_runs import EVERY_WAY, SPACES, correlated, transport_of
from tests.tensors import assert_near

SERVER, ONE_NODE, COALITION, EVERYBODY = OF_MASKS

NODES = 6
OWN = 0.3
MASK = 2.0
DELTA = 1e-2


def masked(rounds=3, space="flat", *, mask=MASK, **changes):
    return correlated("masked-mean", OWN, mask, rounds, space=space, **changes)


class Watched:
    """A transport that loses some nodes' answers from a round on, after they left the nodes."""

    def __init__(self, config, way="memory", lost=(), since=1, phases=("send",)):
        self.inner, self.lost, self.since = transport_of(way, config), set(lost), since
        self.phases = phases
        self.seen = []

    def exchange(self, asked):
        found = self.inner.exchange(asked)
        header = asked.header
        self.seen.append((header, asked, found))
        if header.server_round < self.since or header.phase not in self.phases:
            return found
        rows = [row for row, i in enumerate(found.partitions) if i not in self.lost]
        gone = {i: Failure("late", "no reply") for i in found.partitions if i in self.lost}
        kept = tuple(found.partitions[row] for row in rows)
        uploads = found.uploads.take(torch.tensor(rows, dtype=torch.long))
        return found._replace(partitions=kept, uploads=uploads, failures={**found.failures, **gone})

    def uploads(self, phase, server_round):
        (found,) = [r.uploads.u for h, _, r in self.seen
                    if (h.phase, h.server_round) == (phase, server_round)]  # fmt: skip
        return found


def run(config, folder, transport):
    """The reports of a run that is charged to a ledger, and its odometer."""
    plan = plan_of(config)
    rounds = config.federation.num_rounds
    folder.mkdir(exist_ok=True)
    with opened(folder / "ledger.jsonl", plan.promise, last_round=rounds, header={}) as account:
        start = plan.server_update.start(initial_point(config))
        made = run_rounds(
            plan, start, transport, account.charge, num_rounds=rounds,
        )  # fmt: skip
        return list(made), account.odometer


@pytest.mark.parametrize("space", ["flat", *SPACES])
@pytest.mark.parametrize("way", ["memory", "stacked"])
def test_masks_cancel_in_the_tangent_space_of_the_common_point(space, way, tmp_path):
    ends = {}
    alone = {}
    for mask in (0.0, 1e4):
        config = masked(2, space, mask=mask, step_size=1e-3)
        transport = Watched(config, way)
        reports, _ = run(config, tmp_path / str(mask), transport)
        ends[mask], alone[mask] = reports[-1].state["x"], transport.uploads("send", 1)
    size = float((alone[1e4] - alone[0.0]).abs().max())
    assert size > 1e3
    assert_near(alone[1e4].sum(0), alone[0.0].sum(0), 1e-9 * size)
    assert_near(ends[1e4], ends[0.0], 1e-9)


def charged(rounds, before, disclosed, after=0.0):
    """Epsilon of so many rounds, in some of which what was disclosed raised the precision."""
    extra = max(OWN**-2, after) - before
    mu = 2 * (rounds * before + disclosed * extra) ** 0.5  # user level
    return pytest.approx(gdp_epsilon(DELTA, mu=mu), rel=1e-6)


@pytest.mark.parametrize(
    ("way", "keys"),
    [
        ("memory", "seeded"),
        ("stacked", "seeded"),
        ("memory", "exchanged"),
    ],
)
def test_a_node_that_dies_in_round_17_leaves_a_sum_without_masks(keys, way, tmp_path):
    ends = {}
    for mask in (0.0, 1e3):
        config = masked(19, mask=mask, pair_keys=keys)
        transport = Watched(config, way, lost={2}, since=17)
        reports, odometer = run(config, tmp_path / str(mask), transport)
        ends[mask] = reports[-1].state["x"]
        assert [len(one.participants) for one in reports] == [6] * 16 + [5] * 3
        if mask:
            revealed = transport.uploads("reveal", 17)
    assert_near(ends[1e3], ends[0.0], 1e-9)
    assert revealed.shape[0] == 5  # of 0, 1, 3, 4, 5, and only 1 and 3 shared a mask with node 2
    sizes = revealed.abs().amax(1)
    assert sizes[[0, 3, 4]].max() == 0
    assert sizes[[1, 2]].min() > 0
    before = worst(config.training.secret_graph, Correlated(OWN, 1e3), 0).precision
    assert odometer.epsilon(SERVER, DELTA) == charged(19, before, 3)


def test_two_nodes_are_silent_and_one_of_them_colludes(tmp_path):
    config = masked(3, mask=1e3, privacy={"coalition": [3]})
    transport = Watched(config, lost={1, 3}, since=2)
    reports, odometer = run(config, tmp_path, transport)
    assert reports[-1].participants == (0, 2, 4, 5)
    graph = config.training.secret_graph
    noise = Correlated(OWN, 1e3)
    left = graph.without({1, 3})
    for adversary, before, after in (
        (SERVER, worst(graph, noise, 0), worst(left, noise, 0)),
        (ONE_NODE, worst(graph, noise, 1), worst(left, noise, 1)),
        (COALITION, against(graph, noise, (3,)), worst(left, noise, 0)),
        (EVERYBODY, worst(graph, noise, 5), worst(graph, noise, 5)),
    ):
        assert odometer.epsilon(adversary, DELTA) == charged(
            3, before.precision, 2, after.precision
        )


def test_what_is_disclosed_is_on_disk_before_it_is_asked(tmp_path):
    config = masked(1)

    class Reading(Watched):
        def exchange(self, asked):
            lines = (tmp_path / "ledger.jsonl").read_text().count("to_coalition")
            written.append((asked.header.phase, lines))
            return super().exchange(asked)

    written = []
    run(config, tmp_path, Reading(config, lost={4}))
    assert [phase for phase, _ in written] == ["send", "reveal"]
    assert written[1][1] > written[0][1] > 0


def test_a_budget_that_does_not_pay_the_disclosure_reveals_nothing(tmp_path):
    graph = masked().training.secret_graph
    noise = Correlated(OWN, MASK)
    enough = gdp_epsilon(DELTA, mu=(4 * worst(graph, noise, 0).precision) ** 0.5)
    config = masked(1, privacy={"max_epsilon": 1.05 * enough})
    transport = Watched(config, lost={4})
    with pytest.raises(BudgetExhausted, match="with the masks that silent nodes left"):
        run(config, tmp_path, transport)
    assert {header.phase for header, _, _ in transport.seen} == {"send"}


def test_a_survivor_that_does_not_reveal_fails_the_round(tmp_path):
    config = masked(1)
    transport = Watched(config, lost={4})
    transport.inner = Watched(config, lost={0}, phases=("reveal",))
    told = r"'reveal'.* from 5 clients .*: all\), got 4; client 0: no reply"
    with pytest.raises(RoundFailed, match=told):
        run(config, tmp_path, transport)


def test_too_many_silent_nodes_reveal_nothing(tmp_path):
    config = masked(1, max_dropped=1)
    transport = Watched(config, lost={1, 4})
    with pytest.raises(RoundFailed, match=r"training.max_dropped = 1 silent nodes, got 2"):
        run(config, tmp_path, transport)
    assert {header.phase for header, _, _ in transport.seen} == {"send"}


class Curious(Watched):
    """Asks survivors for what they share with others; the first question may be an honest one."""

    def __init__(self, config, dropped, first):
        super().__init__(config, lost={2})
        self.said = torch.zeros(NODES, dtype=torch.uint8)
        self.reveal = config.training.phases[1]
        self.said[list(dropped)] = 1
        self.asks = ("reveal",) if first else ("reveal", "send")
        self.answers = []

    def exchange(self, asked):
        found = super().exchange(asked)
        if asked.header.phase in self.asks:
            x = next(iter(asked.down.tensors().values()))
            again = asked.header._replace(phase="reveal")
            down = self.reveal.down(x, self.said)
            said = Asked(again, self.reveal, down, (0, 5), asked.last_accepted)
            self.answers.append(self.inner.exchange(said))
        return found


@pytest.mark.parametrize(
    ("dropped", "first", "error"),
    [
        ({1, 4}, True, "MaskUsed"),  # a second question, about live nodes
        ({0, 5}, False, "TooManySilent"),  # about the ones asked
        ({1, 2, 3, 4}, False, "TooManySilent"),
    ],
)
def test_no_live_mask_is_revealed_to_a_second_or_a_false_question(dropped, first, error, tmp_path):
    config = masked(1, pair_keys="exchanged")
    transport = Curious(config, dropped, first)
    run(config, tmp_path, transport)
    for answer in transport.answers:
        assert answer.partitions == ()
        assert all(error in failure.text for failure in answer.failures.values())
    assert transport.answers


@EVERY_WAY
def test_a_release_makes_up_for_a_silent_node_with_exchanged_keys(way, tmp_path):
    config = masked(2, mask=1e6, source="os", step_size=1e-3)
    reports, _ = run(config, tmp_path, Watched(config, way, lost={0}, since=2))
    moved = reports[-1].state["x"] - initial_point(config)
    assert reports[-1].noise_origins == {"os"}
    assert moved.abs().max() <= 1e-3 * 2 * (1 + 10 * OWN)


def test_a_late_message_is_of_its_own_attempt_and_used_nowhere(tmp_path):
    config = masked(2, pair_keys="exchanged")
    transport = Watched(config, lost={3}, since=1)
    reports, odometer = run(config, tmp_path, transport)
    late = transport.seen[2][2]  # node 3 answered, too late; asked again it masks nothing
    assert late.partitions == tuple(range(6))
    asked = transport.seen[2][1]
    again = transport.inner.exchange(asked._replace(partitions=(3,), last_accepted={}))
    assert again.partitions == ()
    assert "MaskUsed" in again.failures[3].text
    assert reports[0].participants == (0, 1, 2, 4, 5)
    assert odometer.rounds_counted == 4


@pytest.mark.parametrize("max_dropped", [0, 1, None])
def test_a_statement_says_that_the_server_must_not_lie_about_who_is_silent(max_dropped):
    said = promise_of(masked(max_dropped=max_dropped).setting, (3,) * NODES).planned(1)["mechanism"]
    assert ("trusted to say truly who is silent" in said) == (max_dropped != 0)
