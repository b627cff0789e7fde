"""A site in this process, and what a hostile peer may send it."""

from contextlib import contextmanager
from types import SimpleNamespace

from manifed.experiment.assembly import initial_point
from manifed.experiment.load import load
from manifed.experiment.schema import canonical, sha256
from manifed.federation.exchange import Header
from manifed.privacy import epsilon_bounds
from manifed.privacy.events import Release, repeated
from manifed.site.process import opened
from manifed.site.protocol import MAGIC, BadFrame, Incoming, Question, Update, frame_of, read_reply
from manifed.site.site import Wanted
from tests.privacy.forging import entries_of

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
ROUND = Release(unit="example", neighboring_relation="add-or-remove", noise_multiplier=4.0)


def price(rounds):
    """Epsilon of so many answers."""
    return epsilon_bounds.epsilon(repeated([ROUND], rounds), DELTA)


def write(folder, text=CONFIG, name="tiny.toml"):
    path = folder / name
    path.write_text(text)
    return path


@contextmanager
def site_of(folder, *configs, epsilon=50.0, **more):
    """The site of ``folder / "site"``, its data read."""
    wanted = Wanted(folder / "site", 0, epsilon, DELTA, folder / "socket", configs=configs, **more)
    with opened(wanted) as site:
        site.open_all()
        yield site


@contextmanager
def peer_of(folder, text=CONFIG, **more):
    """A peer of the site that lists one experiment."""
    path = write(folder, text)
    with site_of(folder, path, **more) as site:
        yield Peer(site, path)


def receive(peer, seconds):
    """Header and body of the next frame."""
    frame = Incoming(peer, seconds)
    header = frame.header()
    return None if header is None else (header, frame.body())


def parts_of(data):
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

    def ask(self, server_round=1, attempt=0, *, x=None, run="7", config=None, **header):
        """Ask about an experiment, the site's own unless told; ``header`` says what is wrong."""
        own = Header(self.digest, server_round, attempt, "train", 0)._asdict() | header
        asked = config or self.config
        question = Question(sha256(asked), canonical(asked), run, Header(**own))
        return self.send(question, {"x": self.x if x is None else x})

    def is_answered(self, *now, **more):
        return isinstance(self.ask(*now, **more)[0], Update)

    def refusal(self, *now, **more):
        return self.ask(*now, **more)[0].reason

    def send(self, question, tensors):
        header, body = parts_of(frame_of(question, tensors))

        def read(most):
            if len(body) > most:
                raise BadFrame(UNREAD)
            return body

        return read_reply(
            parts_of(self.site.reply(SimpleNamespace(header=lambda: header, body=read)))
        )


def charges(folder):
    """How many charges the ledger of a site holds, on disk."""
    return sum(entry.reserves is not None for entry in entries_of(folder / "site" / "ledger.jsonl"))


def never(*_, **__):
    """Stands in for what must not be done."""
    raise AssertionError("what must not be done was done")
