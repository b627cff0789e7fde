"""A site in this process, and what a hostile peer may send it."""

from contextlib import contextmanager
from pathlib import Path

from manifed.experiment.assembly import initial_point
from manifed.experiment.load import canonical, load, sha256
from manifed.federation.header import Header
from manifed.privacy.ledger import Ledger
from manifed.site.protocol import MAGIC, BadFrame, Question, question_frame, read_reply
from manifed.site.start import Wanted, opened

CONFIG = """
name = "tiny"
problem = { kind = "principal-eigenvector" }
data = { kind = "digits" }
federation = { num_clients = 3, num_rounds = 6 }
training = { kind = "rsgd", step_size = 0.5, local_steps = 1, minibatch = { kind = "full" } }
[privacy]
kind = "example-level"
l2_norm_clip = 1.0
neighboring_relation = "add-or-remove"
noise = { kind = "multiplier", noise_multiplier = 4.0 }
delta = 1e-5
noise_source = "os"
"""
SEEDED = CONFIG.replace('"os"', '"seed"')
DELTA = 1e-5
UNREAD = "a body that is too long"


def write(folder: Path, text: str = CONFIG, name: str = "tiny.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@contextmanager
def site_of(folder: Path, *configs: Path, epsilon: float = 50.0, **more):
    """The site of ``folder / "site"``, its data read."""
    wanted = Wanted(folder / "site", 0, epsilon, DELTA, folder / "socket", configs=configs, **more)
    with opened(wanted) as site:
        site.open_all()
        yield site


def parts_of(data: bytes) -> tuple[bytes, bytes]:
    """Header and body of a whole frame."""
    start = len(MAGIC) + 12
    length = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 4], "big")
    return data[start : start + length], data[start + length :]


class Peer:
    """Asks a site in this process as whoever has its socket can."""

    def __init__(self, site, path):
        self.site, self.config = site, load(path)
        self.digest = sha256(self.config)
        self.x = initial_point(self.config)

    def ask(self, server_round=1, attempt=0, *, x=None, run="7", phase="train", **header):
        own = Header(self.digest, server_round, attempt, phase, 0)
        own = Header(**(vars(own) | header))
        question = Question(self.digest, canonical(self.config), run, own)
        return self.send(question, {"x": self.x if x is None else x})

    def send(self, question, tensors):
        header, body = parts_of(question_frame(question, tensors))

        def read(most):
            if len(body) > most:
                raise BadFrame(UNREAD)
            return body

        return read_reply(parts_of(self.site.reply(header, read)))


def charges(folder: Path) -> int:
    """How many charges the ledger of a site holds, on disk."""
    entries = Ledger.read(folder / "site" / "ledger.jsonl")
    return sum(entry.kind == "reserved" for entry in entries)
