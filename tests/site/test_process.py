"""A hostile bundle against real site processes: nothing un-noised, and not beyond the limit."""

import os
import random
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from scipy import stats

from manifed.experiment.assembly import own_node
from manifed.experiment.load import load
from manifed.federation.client import answer
from manifed.federation.exchange import Header
from manifed.privacy.statement import audit_ledger
from manifed.site.protocol import MAGIC, BadFrame, Question, Refusal, Update, ask, frame_of
from tests.fresh import ROOT
from tests.site.sites import DELTA, Peer, price, write

pytestmark = pytest.mark.slow

N = 20
STEP = 0.5
MULTIPLIER = 4.0
FILE = f"""
name = "rows"
problem = {{ kind = "principal-eigenvector" }}
federation = {{ num_clients = 2, num_rounds = 100000, num_examples = [{N}, {N}] }}
training = {{ kind = "rsgd", step_size = {STEP}, local_steps = 1, minibatch = {{ kind = "full" }} }}
[data]
kind = "file"
examples = "rows"
columns = ["a", "b", "c", "d"]
row_norm = 1.0
outside = "clip"
[privacy]
kind = "example-level"
l2_norm_clip = 1.0
"""
NOISED = f"""neighboring_relation = "add-or-remove"
noise = {{ kind = "multiplier", noise_multiplier = {MULTIPLIER} }}
delta = 1e-5
noise_source = "os"
"""
MARKED = "0.43171828,0.1,0.2,0.3"
"""A row that must be in no log."""


def rows(path, count):
    table = torch.rand(count - 1, 4, generator=torch.Generator().manual_seed(3)) / 2
    lines = [",".join(f"{value:.6f}" for value in row) for row in table.tolist()]
    path.write_text("\n".join(["a,b,c,d", *lines, MARKED]) + "\n")
    path.chmod(0o600)
    return path


class Process(Peer):
    """A site process, and questions to it."""

    def __init__(self, folder, path, process):
        super().__init__(None, path)
        self.door, self.process = folder / "run" / "site.sock", process

    def send(self, question, tensors):
        return ask(self.door, question, tensors, 60.0)


def command(folder, config, *more, epsilon):
    return [
        *(sys.executable, "-m", "manifed", "site", "--config", str(config)),
        *("--data", str(folder / "site.csv"), "--ledger", str(folder / "ledger")),
        *("--partition", "0", "--max-epsilon", repr(epsilon), "--delta", str(DELTA)),
        *("--socket", str(folder / "run" / "site.sock"), *more),
    ]


@contextmanager
def started(folder, config, *more, epsilon=1e3):
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(
            command(folder, config, *more, epsilon=epsilon),
            cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready"), (folder / "log").read_text()
        yield Process(folder, config, process)
    finally:
        process.kill()
        process.communicate()


def garbage(door, seed):
    """Bytes that nobody should send: noise, huge promises, halves of questions."""
    rng = random.Random(seed)
    whole = frame_of(Question("0" * 64, "import os", "7"), {"x": torch.ones(4)})
    for _ in range(10):
        data = rng.choice([
            rng.randbytes(rng.randrange(1, 4000)),
            MAGIC + (1 << 31).to_bytes(4, "big") + bytes(8),
            MAGIC + (2).to_bytes(4, "big") + (1 << 60).to_bytes(8, "big") + b"{}",
            whole[: rng.randrange(1, len(whole))],
            whole.replace(b"import", rng.randbytes(6)),
            b"\x80\x04cos\nsystem\n(S'id'\ntR.",
        ])  # fmt: skip
        with socket.socket(socket.AF_UNIX) as peer, suppress(OSError):
            peer.settimeout(5)
            peer.connect(str(door))
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
            peer.recv(100)


def test_a_hostile_bundle_gets_as_many_noised_answers_as_the_limit_pays(tmp_path):
    rows(tmp_path / "site.csv", N)
    config = write(tmp_path, FILE + NOISED)
    louder = load(write(tmp_path, FILE + NOISED.replace("4.0", "0.001"), "louder.toml"))
    most = 5

    def attack(seed):
        """Run after run, round after round, wrong and right, as fast as can be."""
        rng = random.Random(seed)
        got = []
        for i in range(12):
            wrong = rng.choice([
                {"x": 2 * x}, {"x": x * float("nan")}, {"phase": "steal"}, {"partition_id": 1},
                {"config": louder}, {"x": x[:2]},
            ])  # fmt: skip
            for asked in (wrong, {}, {}):
                with suppress(OSError, BadFrame):  # too many at once are closed unheard
                    reply, up = site.ask(i + 1, **{"run": f"run {seed}", **asked})
                    got += [up["u"]] if isinstance(reply, Update) else []
        return got

    with started(tmp_path, config, epsilon=price(most) + 1e-9) as site:
        x = site.x
        slow = [socket.socket(socket.AF_UNIX) for _ in range(6)]
        for peer in slow:  # they hold a connection, and nobody up
            peer.connect(str(site.door))
            peer.sendall(MAGIC[:4])
        with ThreadPoolExecutor(6) as pool:
            rubbish = [pool.submit(garbage, site.door, seed) for seed in range(2)]
            got = [up for found in pool.map(attack, range(4)) for up in found]
            assert all(task.exception() is None for task in rubbish)
        for peer in slow:
            peer.close()
        assert isinstance(site.ask(99, run="at last")[0], Refusal)
        assert site.process.poll() is None
    assert len(got) == most
    assert len({tuple(up.tolist()) for up in got}) == most
    exact = update_without_noise(tmp_path, x)
    assert all(float((up - exact).norm()) > 1e-3 for up in got)
    found = audit_ledger(tmp_path / "ledger" / "ledger.jsonl", DELTA)
    assert found["charges"] == most
    assert found["adversaries"][0]["epsilon"] == pytest.approx(price(most), rel=1e-12)
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "site.csv":
            assert b"43171828" not in path.read_bytes(), path


def update_without_noise(folder, x):
    """What the file would answer with no noise to speak of: nobody but this test may see it."""
    config = load(write(folder, FILE + NOISED.replace("4.0", "1e-90"), "exact.toml"))
    node = own_node(config, 0, folder / "site.csv")
    header = Header(node.digest, 1, 0, "train", 0)
    return answer(node, header, lambda *_: {"x": x}, None).up.tensors()["u"]


def test_replies_follow_the_noise_law_on_neighbours_and_refusals_are_the_same(tmp_path):
    asked = 60
    told = []
    for count in (N, N + 1):  # one row more: N_i is declared, and stays
        folder = tmp_path / str(count)
        folder.mkdir()
        rows(folder / "site.csv", count)
        with started(folder, write(folder, FILE + NOISED), epsilon=price(asked) + 1e-9) as site:
            x = site.x
            refused = [site.ask(x=2 * x), site.ask(0), site.ask(phase="none")]
            ups = torch.stack([site.ask(r)[1]["u"] for r in range(1, asked + 1)])
            refused += [site.ask(), site.ask(asked + 1)]
        told.append([reply.reason for reply, _ in refused])
        stddev = STEP * MULTIPLIER / N
        apart = (ups - update_without_noise(folder, x)) / stddev
        assert float((apart @ x).abs().max()) < 1e-9  # tangent: three coordinates
        lengths = apart.square().sum(-1).flatten().numpy()
        assert stats.kstest(lengths, stats.chi2(3).cdf).pvalue > 1e-6
        pull = float((apart.mean(0) ** 2).sum()) * asked
        assert stats.chi2(3).sf(pull) > 1e-6
        assert lengths.min() > 0
    assert told[0] == told[1]


def test_a_killed_site_starts_again_with_what_it_spent_and_has_one_place(tmp_path):
    rows(tmp_path / "site.csv", N)
    config = write(tmp_path, FILE + NOISED)
    with started(tmp_path, config) as site:
        assert site.is_answered(1)
        assert stat.S_IMODE(site.door.stat().st_mode) == 0o660
        assert stat.S_IMODE((tmp_path / "ledger").stat().st_mode) == 0o700
        for file in (tmp_path / "ledger").iterdir():
            assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file
        second = subprocess.run(
            command(tmp_path, config, "--rehearsal", epsilon=1.0),
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert second.returncode == 2
        assert "another process answers for the data set" in second.stderr
        assert second.stdout.splitlines()[0].endswith("It protects nobody; use made-up data only.")
        site.process.send_signal(signal.SIGKILL)
    with started(tmp_path, config) as site:  # the dead one's socket is in the way, and goes
        assert "nothing is answered twice" in site.refusal(1)
        assert site.is_answered(2)
        site.process.send_signal(signal.SIGTERM)
        assert site.process.wait(60) == 0
        assert not site.door.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_is_not_answered_even_where_the_socket_lets_it_in():
    with tempfile.TemporaryDirectory() as name:  # pytest's own is closed to other users
        Path(name).chmod(0o755)
        strangers_at(Path(name))


STRANGER = """
import os, socket, sys
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[3]))
peer = socket.socket(socket.AF_UNIX)
peer.settimeout(20)
peer.connect(sys.argv[1])
try:
    peer.sendall(b"no frame of ours " * 10)
    print(len(peer.recv(10)))
except (BrokenPipeError, ConnectionResetError):
    print(0)
"""


def strangers_at(tmp_path):
    stranger = 65534
    rows(tmp_path / "site.csv", N)
    config = write(tmp_path, FILE + NOISED)
    with started(tmp_path, config, "--socket-group", "65534", "--allow-user", "12345") as site:
        for group, user, answered in ((65534, stranger, "0"), (65534, 12345, "10"), (1, 1, "")):
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-c", STRANGER, str(site.door), str(group), str(user)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.stdout.strip() == answered, done.stderr
            assert bool(answered) != ("PermissionError" in done.stderr)
        deadline = time.monotonic() + 10
        while f"user {stranger} may not connect" not in (tmp_path / "log").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)
