"""A secure sum opens to the integer sum of its survivors, bit for bit, or not at all."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from manifed.algorithms.averaging import GeodesicAverage
from manifed.algorithms.one_shot import LogEuclidean, SecondMoment
from manifed.algorithms.projected import Projected
from manifed.algorithms.rsgd import RSGD, ScheduledRSGD
from manifed.algorithms.rsvrg import RSVRG
from manifed.algorithms.secure_mean import SecureMean
from manifed.algorithms.secure_node import SecureNode
from manifed.algorithms.tangent_mean import TangentMean
from manifed.errors import RoundFailed
from manifed.federation.client import ClientSetup, ClientSide
from manifed.federation.cohorts import FixedSize, PoissonCohort
from manifed.federation.exchange import ReplyPolicy
from manifed.federation.rounds import Course, sent
from manifed.federation.stack import StackTransport
from manifed.manifolds import SPDLogEuclidean
from manifed.oracles.minibatch import Full, Poisson, WithoutReplacement
from manifed.plan import plan
from manifed.privacy import discrete
from manifed.privacy.charging import Account, opened
from manifed.privacy.events import EXTERNAL
from manifed.privacy.ledger import Ledger
from manifed.privacy.odometer import Odometer
from manifed.problems.examples import Examples
from manifed.problems.frechet import FrechetMean
from manifed.problems.pca import PrincipalEigenvector
from manifed.schedules import Geometric
from manifed.secure_plan import OF_SUM
from manifed.setting import (
    ClientLevel,
    ExampleLevel,
    Federation,
    Multiplier,
    NoPrivacy,
    SecureSum,
    Setting,
)
from tests.federation.test_module_door import trained
from tests.tensors import assert_near, normals

D = 6


def keys_in(folder, nodes):
    """Signing keys of all nodes, and the file in which they are pinned."""
    lines = []
    for i in range(nodes):
        key = Ed25519PrivateKey.generate()
        path = folder / f"{i}.key"
        path.write_text(key.private_bytes_raw().hex())
        path.chmod(0o600)
        lines.append(f"{i} {key.public_key().public_bytes_raw().hex()}\n")
    (folder / "pins").write_text("".join(lines))
    return {"pinned_keys": str(folder / "pins"), "signing_keys": str(folder / "{node}.key")}


LEVELS = {"example": ExampleLevel, "client": ClientLevel}


def setting_of(
    nodes,
    unit="example",
    rounds=1,
    *,
    update=None,
    problem=None,
    server=None,
    z=2.0,
    source="os",
    relation="add-or-remove",
    federation=None,
    **trust,
):
    privacy = LEVELS[unit](
        l2_norm_clip=1.0, noise=Multiplier(noise_multiplier=z), delta=1e-3, noise_source=source,
        neighboring_relation=relation, trust=SecureSum(**{"collusion": 0, **trust}),
    )  # fmt: skip
    more = {"replies": ReplyPolicy(min_fraction=0.1), **(federation or {})}
    federation = Federation(num_clients=nodes, num_rounds=rounds, **more)
    update = update or RSGD(step_size=0.1, minibatch=Full())
    problem = problem or PrincipalEigenvector()
    return Setting(
        federation, update, problem.manifold, strategy=server, privacy=privacy, problem=problem
    )


def shards_of(nodes, row=(D,), rows=5):
    return [Examples({"z": normals(100 + i, rows, *row)}) for i in range(nodes)]


class Run:
    """A run in this process: who sent which integers, and what was opened."""

    def __init__(
        self, setting, monkeypatch, *, silent=None, shards=None, x=None, ledger=None, sizes=None
    ):
        nodes = setting.federation.num_clients
        shards = shards or shards_of(nodes)
        sizes = sizes or tuple(len(one) for one in shards)
        self.plan = plan(setting, sizes)
        x = (
            setting.manifold.random(D, generator=torch.Generator().manual_seed(0))
            if x is None
            else x
        )
        self.side = ClientSide(
            ClientSetup(setting.problem, self.plan.training, self.plan.client_mechanism),
            shards, tuple(x.shape), setting.source(), num_examples=sizes,
        )  # fmt: skip
        self.transport = StackTransport(self.side)
        self.account = Account(self.plan.promise, ledger)
        self.course = Course(self.plan, self.plan.server_update.start(x), self.account.charge)
        self.silent = silent or {}
        self.integers, self.opened, self.downs, self.ups = {}, [], {}, {}
        noised, stepped = SecureNode._noised, SecureMean._stepped

        def seen(node, x, oracle, here, coding):
            found = noised(node, x, oracle, here, coding)
            self.integers[here.draws.partition] = found[0]
            return found

        def opened(update, state, total, here):
            self.opened.append(total.numpy().copy())
            return stepped(update, state, total, here)

        monkeypatch.setattr(SecureNode, "_noised", seen)
        monkeypatch.setattr(SecureMean, "_stepped", opened)

    def exchange(self):
        now = self.course.opened()
        phase = now.phase.name
        asked = self.relayed(self.course.asked(sent(now)))
        self.downs[phase] = asked.down
        came = self.replied(self.transport.exchange(asked))
        lost = {i: "silent" for name, who in self.silent.items() if name == phase for i in who}
        came = came.without({i: why for i, why in lost.items() if i in came.partitions})
        self.ups[phase] = came
        return self.course.moved(self.course.judged(came))

    def relayed(self, asked):
        """What nodes are sent; a test may change it."""
        return asked

    def replied(self, came):
        """What nodes reply; a test may change it."""
        return came

    def round(self):
        return self.course.one_round(self.exchange)

    def sum_of(self, nodes):
        return sum(self.integers[i] for i in nodes)


PHASES = ("offer", "deal", "send", "confirm", "reveal")


@pytest.mark.parametrize("unit", ["example", "client"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("lost", [0, 1, 3])
def test_a_sum_opens_to_the_integer_sum_of_who_sent(tmp_path, monkeypatch, unit, phase, lost):
    nodes = 10
    keys = keys_in(tmp_path, nodes)
    silent = {phase: range(2, 2 + lost)}
    run = Run(setting_of(nodes, unit, max_dropped=3, **keys), monkeypatch, silent=silent)
    report = run.round()
    sent_by = [i for i in range(nodes) if phase in ("confirm", "reveal") or i not in silent[phase]]
    (total,) = run.opened
    bits = run.plan.server_update.numbers.bits(D)
    wrapped = run.sum_of(sent_by).astype(f"i{bits // 8}")
    assert np.array_equal(total.astype(f"i{bits // 8}"), wrapped)
    assert bits == 32
    assert report.participants == tuple(i for i in range(nodes) if i not in silent[phase])
    assert set(report.state) == {"x", "output"}


def residues(total, bits):
    return np.asarray(total).astype(f"i{bits // 8}")


slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("nodes", "dropped", "z"),
    [
        (3, 1, 2.0), (4, 1, 4e-4), (7, 2, 2.0), (33, 11, 4e-4),
        pytest.param(64, 21, 2.0, marks=slow), pytest.param(70, 3, 1e-3, marks=slow),
        pytest.param(100, 33, 2.0, marks=slow),
    ],
)  # fmt: skip
def test_a_third_may_fall_silent_between_any_two_exchanges(
    tmp_path, monkeypatch, nodes, dropped, z
):
    setting = setting_of(nodes, z=z, max_dropped=dropped, **keys_in(tmp_path, nodes))
    gone = {"deal": range(dropped // 2), "send": range(dropped // 2, dropped)}
    if nodes > 3:  # of two nodes both must help
        gone |= {"reveal": [nodes - 1]}
    run = Run(setting, monkeypatch, silent=gone)
    run.round()
    update = run.plan.server_update
    bits = update.numbers.bits(D)
    assert bits == (32 if z > 1 else 64)
    assert (update.degree < nodes - 1) == (nodes > 64)
    wanted = residues(run.sum_of(range(dropped, nodes)), bits)
    assert np.array_equal(residues(run.opened[0], bits), wanted)
    assert run.ups["send"].uploads.total.dtype == getattr(torch, f"int{bits}")


def test_one_more_that_falls_silent_ends_the_round_before_anything_is_opened(tmp_path, monkeypatch):
    for phase in ("deal", "send"):
        path = tmp_path / phase
        run = Run(
            setting_of(10, max_dropped=3), monkeypatch, silent={phase: range(4)},
            ledger=Ledger.create(path, {}),
        )  # fmt: skip
        with pytest.raises(RoundFailed, match="no sum is opened"):
            run.round()
        assert not run.opened
        assert counted(path).rounds_counted == 1, "until it is settled the reservation counts"
        run.account.settle()
        assert counted(path).rounds_counted == 0
        assert counted(path).attempts(1) == 1, "a later run must not use its keys' names again"


def counted(path):
    """What the lines on disk say."""
    found = Odometer()
    Ledger.verify(path, feed=found.feed)
    return found


# -- what is charged ---------------------------------------------------------------------------
@pytest.mark.parametrize("lost", [0, 3])
def test_who_really_sent_is_charged_before_anybody_is_asked_to_open_it(tmp_path, monkeypatch, lost):
    path = tmp_path / "ledger"
    setting = setting_of(10, max_dropped=3, collusion=2, **keys_in(tmp_path, 10))
    run = Run(setting, monkeypatch, silent={"send": range(lost)}, ledger=Ledger.create(path, {}))
    run.course.opened()
    floor = counted(path)
    while run.course.opened().phase.name != "reveal":
        run.exchange()
    told = counted(path)
    assert told.rounds_counted == 1
    assert told.participations_by_client().tolist() == [0] * lost + [1] * (10 - lost)
    ((release,),) = [one.releases for one in told.terms.updates]
    coding = run.plan.server_update.numbers.of(10, D)
    for said, honest in (
        (release.noise_multiplier, 1), (release.to_server, 10 - lost),
        (release.to_one, 9 - lost), (release.to_coalition, 8 - lost),
    ):  # fmt: skip
        assert coding.multiplier(honest) * (1 - 1e-6) < said <= coding.multiplier(honest)
    for who in OF_SUM:
        assert told.epsilon(who, 1e-3) <= floor.epsilon(who, 1e-3) * (1 + 1e-12)
    server, coalition = OF_SUM[1], OF_SUM[0]
    assert told.epsilon(server, 1e-3) < told.epsilon(coalition, 1e-3)
    assert (told.epsilon(server, 1e-3) < 0.9 * floor.epsilon(server, 1e-3)) == (lost == 0)
    run.exchange()
    run.account.settle()
    assert counted(path).coins(coalition) == told.coins(coalition)


@pytest.mark.parametrize("collusion", [0, 1, 3])
@pytest.mark.parametrize("dropped", [0, 0.25, 2])
def test_what_is_reserved_is_the_most_that_any_cohort_may_cost(dropped, collusion):
    trust = {"max_dropped": dropped, "collusion": collusion}
    update = plan(setting_of(12, z=1.0, **trust), (5,) * 12).training
    mechanism = update.mechanism
    (floor,) = update.releases(mechanism, 5)
    names = ("noise_multiplier", "to_server", "to_one", "to_coalition")
    for offered in range(1, 13):
        least = offered - update.numbers.dropped(offered)
        if 2 * update.numbers.dropped(offered) + collusion >= offered or offered < 2:
            continue
        for sent_by in range(least, offered + 1):
            counts = update.model_copy(update={"counts": (offered, sent_by)})
            (real,) = counts.releases(mechanism, 5)
            for name in names:
                assert getattr(real, name) >= getattr(floor, name), (offered, sent_by, name)


def test_nobody_who_knows_the_cohort_is_told_that_it_amplifies():
    federation = {"cohort": FixedSize(cohort_size=5)}
    few = plan(setting_of(10, "client", 5, federation=federation), (5,) * 10).promise
    every = plan(setting_of(10, "client", 5), (5,) * 10).promise
    assert few.adversaries == (*OF_SUM, EXTERNAL)
    for who in OF_SUM:
        known, all_of_them = (p.odometer(5).epsilon(who, 1e-3) for p in (few, every))
        assert known == pytest.approx(all_of_them, rel=1e-9)
    outside = few.odometer(5).epsilon(EXTERNAL, 1e-3)
    assert outside < few.odometer(5).epsilon(OF_SUM[1], 1e-3)
    account = Account(few)
    for r in (1, 2):
        account.charge(r, 0, range(5))
        account.charge(r, 0, range(5), 5)
        assert account.odometer.epsilon(EXTERNAL, 1e-3) == pytest.approx(outside, rel=1e-9)


# -- retry and resume --------------------------------------------------------------------------
def secrets_of(run):
    """What every node keeps secret of the attempt under way."""
    return {
        bytes(row.numpy())
        for stack in run.transport.stacks.values()
        for row in stack.memory["secrets"]
    }


def test_nothing_of_an_attempt_is_used_again_in_a_retry_a_round_or_a_restart(tmp_path, monkeypatch):
    replies = {"replies": ReplyPolicy(on_failure="retry", max_attempts=3)}
    setting = setting_of(5, rounds=2, federation=replies, **keys_in(tmp_path, 5))
    path = tmp_path / "ledger"
    seen, noise, draw = [], [], discrete.draw

    def drawn(*asked):
        noise.append(draw(*asked))
        return noise[-1]

    monkeypatch.setattr(discrete, "draw", drawn)
    run = Run(setting, monkeypatch, ledger=Ledger.create(path, {}))
    gone = {(1, 0): {"send": [1]}, (1, 1): {"reveal": range(4)}, (2, 0): {"reveal": [2]}}

    def watched(run=run, exchange=run.exchange):
        now = run.course.opened()
        run.silent = gone.get((now.server_round, now.attempt), {})
        try:
            return exchange()
        finally:
            if now.phase.name == "offer":
                seen.append(secrets_of(run))
            if now.phase.name == "send":
                noise.extend(run.ups["send"].uploads.total.numpy())
            if now.phase.name == "reveal":
                assert secrets_of(run) <= {bytes(32)}

    run.course.one_round(watched)
    assert len(seen) == 3
    assert counted(path).attempts(1) == 3
    assert counted(path).rounds_counted == 2, "the first attempt opened nothing, the second did"
    run.course.one_round(watched)
    assert counted(path).attempts(2) == 1, "the others are enough to open what is paid for"
    again = Run(setting, monkeypatch)
    while again.course.opened().phase.name != "reveal":
        again.exchange()
        if "send" not in again.ups:
            seen.append(secrets_of(again))
    every = {secret for one in seen for secret in one}
    assert len(seen) == 6  # the last one twice, after "offer" and after "deal"
    assert len(every) == 15 * 5
    noise.extend(again.ups["send"].uploads.total.numpy())
    rows = {tuple(row.tolist()) for row in noise}
    assert len(rows) == len(noise) == 25 + 24, "shares of the noise, and what was sent"


def test_a_run_that_goes_on_after_a_round_that_failed_uses_no_attempt_again(tmp_path, monkeypatch):
    setting = setting_of(4)
    path = tmp_path / "ledger"
    run = Run(setting, monkeypatch, silent={"send": [0]})
    with opened(path, run.plan.promise, last_round=1, header={}) as run.account:
        run.course = Course(run.plan, run.course.state, run.account.charge)
        with pytest.raises(RoundFailed, match="nothing is charged"):
            run.round()
    run.silent = {}
    with opened(path, run.plan.promise, last_round=1, header={}, resumed_at=1) as account:
        run.course = Course(run.plan, run.course.state, account.charge, attempts=account.attempts)
        assert run.round().participants == (0, 1, 2, 3)
    assert counted(path).rounds_counted == 1


def test_nobody_is_asked_for_a_sum_of_too_few_and_nothing_is_charged(tmp_path, monkeypatch):
    cohort = {"cohort": PoissonCohort(sampling_probability=0.01), "seed": 5}
    path = tmp_path / "ledger"
    run = Run(
        setting_of(10, rounds=2, max_dropped=0.3, federation=cohort), monkeypatch,
        ledger=Ledger.create(path, {}),
    )  # fmt: skip
    before = run.course.state
    for _ in range(2):
        assert run.round().participants == ()
    run.account.settle()
    assert torch.equal(run.course.state["x"], before["x"])
    assert counted(path).rounds_counted == 0
    assert not run.integers


# -- algorithms --------------------------------------------------------------------------------
def model_after(setting, monkeypatch, rounds, **data):
    """The output after some rounds, with who was in the last one."""
    run = Run(setting, monkeypatch, **data)
    for _ in range(rounds):
        report = run.round()
    return run.plan.server_update.output(report.state, setting.manifold), run


SPD = SPDLogEuclidean()
MEAN = FrechetMean(manifold=SPD)


def spd_shards(nodes):
    draws = torch.Generator().manual_seed(7)
    return [Examples({"z": SPD.random(5, 3, 3, generator=draws)}) for _ in range(nodes)]


EXAMPLES = {
    "full": ({}, {}),
    "unequal": ({}, {"shards": [*shards_of(2, rows=3), *shards_of(2, rows=7)]}),
    "one-silent": ({"max_dropped": 1}, {
        "silent": {"send": [1]}, "shards": [*shards_of(2, rows=3), *shards_of(2, rows=7)],
    }),
    "records-that-are-no-numbers": ({}, {"shards": [
        *shards_of(3), Examples({"z": torch.full((5, D), torch.inf, dtype=torch.float64)}),
    ]}),
    "scheduled": (
        {"update": ScheduledRSGD(
            step_size=0.1, minibatch=Full(),
            noise_multipliers=Geometric(scale=1.0, ratio=0.9),
        )}, {},
    ),
    "poisson": (
        {"update": RSGD(step_size=0.1, minibatch=Poisson(batch_size=2)), "source": "seed"}, {},
    ),
    "subsets": (
        {"update": RSGD(step_size=0.1, minibatch=WithoutReplacement(batch_size=2)),
         "source": "seed", "relation": "replace-one"}, {},
    ),
    "momentum": ({"server": TangentMean(momentum=0.5, average=GeodesicAverage())}, {}),
    "second-moment": ({"update": SecondMoment()}, {}),
    "log-euclidean": (
        {"update": LogEuclidean(), "problem": MEAN},
        {"shards": spd_shards(4), "x": torch.eye(3, dtype=torch.float64)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_without_its_noise_a_sum_of_examples_leads_where_plain_clipped_means_do(monkeypatch, name):
    parts, data = EXAMPLES[name]
    rounds = 1 if "update" in parts and parts["update"].kind in (
        "second-moment", "log-euclidean"
    ) else 3  # fmt: skip
    monkeypatch.setattr(discrete, "draw", lambda variance, size, words: np.zeros(size, np.int64))
    setting = setting_of(4, rounds=rounds, **parts)
    found, run = model_after(setting, monkeypatch, rounds, **data)
    assert len(run.opened) == rounds
    plain = replace(setting, privacy=NoPrivacy(l2_norm_clip=1.0))
    if "silent" in data:
        data = {**data, "silent": {"train": data["silent"]["send"]}}
    wanted, _ = model_after(plain, monkeypatch, rounds, **data)
    assert float((found - wanted).abs().max()) < 1e-4


CLIENTS = {
    "local-steps": {"update": RSGD(step_size=0.1, local_steps=3, minibatch=Full())},
    "batches": {
        "update": RSGD(step_size=0.1, local_steps=3, minibatch=Poisson(batch_size=2)),
        "source": "seed",
    },
    "projected": {
        "update": Projected(step_size=0.1, local_steps=2, minibatch=Full(), upload="plain")
    },
    "rsvrg": {"update": RSVRG(step_size=0.1, inner_steps=2, minibatch=Full())},
    "momentum": {"server": TangentMean(momentum=0.5, average=GeodesicAverage())},
    "fixed-cohorts": {"source": "seed", "federation": {"cohort": FixedSize(cohort_size=4)}},
    "poisson-cohorts": {
        "source": "seed", "federation": {"cohort": PoissonCohort(sampling_probability=0.6)},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CLIENTS)
def test_without_its_noise_a_sum_of_clients_leads_where_a_trusted_server_does(monkeypatch, name):
    monkeypatch.setattr(discrete, "draw", lambda variance, size, words: np.zeros(size, np.int64))
    setting = setting_of(6, "client", 3, **CLIENTS[name])
    found, run = model_after(setting, monkeypatch, 3)
    assert len(run.opened) == 3
    trusted = setting.privacy.model_copy(
        update={"trust": None, "noise": Multiplier(noise_multiplier=1e-9)}
    )
    wanted, _ = model_after(replace(setting, privacy=trusted), monkeypatch, 3)
    assert float((found - wanted).abs().max()) < 1e-4


def test_a_module_is_fitted_by_sums(monkeypatch):
    monkeypatch.setattr(discrete, "draw", lambda variance, size, words: np.zeros(size, np.int64))
    parts = {"noise": Multiplier(noise_multiplier=1.0), "delta": 1e-4, "noise_source": "seed"}
    hidden = ExampleLevel(l2_norm_clip=1.0, trust=SecureSum(collusion=0), **parts)
    found = trained(privacy=hidden)
    plain = trained(privacy=NoPrivacy(l2_norm_clip=1.0))
    assert_near(found.model, plain.model, 1e-4)
    assert "discrete Gaussian" in found.text


@pytest.mark.parametrize(("ratio", "bits"), [(0.5, 32), (2e-4, 64)])
def test_noise_that_is_scheduled_is_added_and_charged_round_by_round(
    tmp_path, monkeypatch, ratio, bits
):
    drawn, draw = [], discrete.draw
    monkeypatch.setattr(discrete, "draw", lambda v, *more: drawn.append(v) or draw(v, *more))
    schedule = Geometric(scale=1.0, ratio=ratio)
    update = ScheduledRSGD(step_size=0.1, minibatch=Full(), noise_multipliers=schedule)
    setting = setting_of(4, rounds=2, update=update)
    path = tmp_path / "ledger"
    run = Run(setting, monkeypatch, ledger=Ledger.create(path, {}))
    charged = []
    for z in (2.0, 2.0 * ratio):
        run.round()
        wanted = residues(run.sum_of(range(4)), bits)
        assert np.array_equal(residues(run.opened[-1], bits), wanted)
        ((release,),) = [one.releases for one in counted(path).terms.updates]
        charged.append(release.to_server)
        coding = replace_z(run.plan.server_update.numbers, z).of(4, D)
        assert coding.bits == bits
        assert {*drawn} == {coding.variance}
        excess = coding.multiplier(4) / release.to_server - 1
        assert 0 <= excess < (1e-6 if z > 0.01 else 1e-3)
        drawn.clear()
    assert charged == pytest.approx([2.0, 2.0 * ratio])


def test_a_share_of_the_noise_is_enough_for_those_who_stay(monkeypatch):
    """n - D - c shares of it give the multiplier, whoever of the others was there."""
    drawn, draw = set(), discrete.draw
    monkeypatch.setattr(discrete, "draw", lambda v, *more: drawn.add(v) or draw(v, *more))
    federation = {"cohort": FixedSize(cohort_size=8)}
    run = Run(setting_of(10, max_dropped=2, collusion=1, federation=federation), monkeypatch)
    run.silent = {"offer": [run.course.opened().cohort[0]]}
    run.round()
    (variance,) = drawn
    numbers = run.plan.server_update.numbers
    coding = numbers.of(7, D)
    assert variance == coding.variance == -(-int((2 * coding.bound) ** 2 + 4) // (7 - 2 - 1))


def replace_z(numbers, z):
    return numbers.model_copy(update={"multiplier": z})
