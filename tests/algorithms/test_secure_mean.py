"""A secure sum opens to the integer sum of its survivors, bit for bit, or not at all."""

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.secure_mean import SecureMean
from manifed.algorithms.secure_node import SecureNode
from manifed.errors import RoundFailed
from manifed.federation.client import ClientSetup, ClientSide
from manifed.federation.exchange import ReplyPolicy
from manifed.federation.rounds import Course, sent
from manifed.federation.stack import StackTransport
from manifed.manifolds.sphere import Sphere
from manifed.oracles.minibatch import Full
from manifed.plan import plan
from manifed.privacy.charging import Account
from manifed.problems.examples import Examples
from manifed.problems.pca import PrincipalEigenvector
from manifed.setting import ClientLevel, ExampleLevel, Federation, Multiplier, SecureSum, Setting

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


def setting_of(nodes, unit="example", rounds=1, cohort=None, replies=None, **trust):
    levels = {"example": ExampleLevel, "client": ClientLevel}
    privacy = levels[unit](
        l2_norm_clip=1.0, noise=Multiplier(noise_multiplier=2.0), delta=1e-3, noise_source="os",
        trust=SecureSum(**{"collusion": 0, **trust}),
    )  # fmt: skip
    more = {} if cohort is None else {"cohort": cohort}
    federation = Federation(
        num_clients=nodes,
        num_rounds=rounds,
        replies=replies or ReplyPolicy(min_fraction=0.1),
        **more,
    )
    update = RSGD(step_size=0.1, minibatch=Full())
    problem = PrincipalEigenvector()
    return Setting(federation, update, problem.manifold, privacy=privacy, problem=problem)


class Run:
    """A round in this process: who sent which integers, and what was opened."""

    def __init__(self, setting, monkeypatch, *, silent=None):
        nodes = setting.federation.num_clients
        self.plan = plan(setting, (5,) * nodes)
        draws = torch.Generator().manual_seed(0)
        rows = torch.randn(nodes, 5, D, dtype=torch.float64, generator=draws)
        shards = [Examples({"z": own}) for own in rows]
        self.side = ClientSide(
            ClientSetup(setting.problem, self.plan.training, self.plan.client_mechanism),
            shards, (D,), setting.source(), num_examples=(5,) * nodes,
        )  # fmt: skip
        self.transport = StackTransport(self.side)
        self.account = Account(self.plan.promise)
        x = Sphere().random(D, generator=torch.Generator().manual_seed(0))
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
        asked = self.course.asked(sent(now))
        self.downs[phase] = asked.down
        came = self.transport.exchange(asked)
        lost = {i: "silent" for name, who in self.silent.items() if name == phase for i in who}
        came = came.without({i: why for i, why in lost.items() if i in came.partitions})
        self.ups[phase] = came
        return self.course.moved(self.course.judged(came))

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


def test_one_more_that_falls_silent_ends_the_round_before_anything_is_opened(tmp_path, monkeypatch):
    for phase in ("deal", "send"):
        run = Run(setting_of(10, max_dropped=3), monkeypatch, silent={phase: range(4)})
        with pytest.raises(RoundFailed, match="no sum is opened"):
            run.round()
        run.account.settle()
        assert not run.opened
        assert run.account.odometer.rounds_counted == 0
