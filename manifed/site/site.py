"""The answers of a site, and its refusals before it looks at a record.

Everything that protects the records is the site's own: the code that runs, its reading of the
experiment, the file, mechanism and noise, the client's memory, the account. Whoever asks chooses a
message and nothing else. The order of one answer: is it allowed, of this site, in bounds, on the
manifold, in order, within the limits? Then the charge on disk, the client update, the memory, the
reply. A process that is killed anywhere in between has answered nothing that was not charged.

Nothing that came is read before its hash or its length was compared: an experiment's text with the
list, tensors with what the experiment's point needs. An experiment is read once, and while that
takes its time, questions about others are answered.
"""

import hashlib
import json
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from manifed.algorithms.payloads import BadBroadcast, Payload
from manifed.durable import write_atomically
from manifed.errors import ConfigError, one_line, raised_at
from manifed.experiment.assembly import own_node
from manifed.experiment.load import parse, table_of_canonical, without_paths
from manifed.experiment.plugins import allowed_here
from manifed.experiment.schema import Experiment, sha256
from manifed.federation.client import Node, answer
from manifed.federation.exchange import BadMessage, Header
from manifed.federation.held_out import EVALUATE
from manifed.federation.memory import MemoryStore
from manifed.manifolds.linalg import Shape, Tensors, flaw
from manifed.privacy.events import Releases
from manifed.runs.manifest import code_sha256
from manifed.site.account import Place, Refused, SiteAccount
from manifed.site.protocol import (
    MOST_CONFIG,
    BadFrame,
    Incoming,
    Introduction,
    Question,
    Refusal,
    Silent,
    Update,
    frame_of,
    most_bytes,
    read_question,
    read_tensors,
)

log = logging.getLogger("manifed")

MEMORY = "memory"
IDENTITY = "data.json"
"""In the site's own folder, for nobody else: the digest of the file is a membership test."""


class Wanted(NamedTuple):
    """The options of ``manifed site``, to which a site agreed when it was set up."""

    folder: Path
    partition: int
    max_epsilon: float
    delta: float
    socket: Path
    data: Path | None = None
    """The site's own file; None: the public data set that an experiment names."""
    configs: Sequence[Path] = ()
    hashes: Sequence[str] = ()
    num_examples: int | None = None
    """N_i, where an experiment leaves it to its sites to declare it."""
    users: Sequence[str] = ()
    group: str | None = None
    is_changed_data_accepted: bool = False
    heads: Sequence[str] = ()
    is_rehearsal: bool = False
    """Whether seeded noise is allowed, which protects nobody."""


@dataclass
class Site:
    """Answers questions about one data set, one client update at a time."""

    wanted: Wanted
    allowed: Mapping[str, Experiment | None]
    """Hashes of experiments, with the site's own copies where it has them."""
    account: SiteAccount

    def __post_init__(self) -> None:
        self._nodes: dict[str, tuple[Experiment, Node]] = {}
        self._reading = threading.Lock()
        """One experiment is read at a time."""
        self._turn = threading.Lock()
        """One client update, with its charge and its memory, is made at a time."""
        self._memory = MemoryStore(self.wanted.folder / MEMORY)

    def open_all(self) -> None:
        """Reads the data for each experiment that the site has a copy of.

        Raises:
            Refused: for one that this site never answers. ConfigError: the data cannot be used.
        """
        for digest, config in self.allowed.items():
            if config is not None:
                self._node(Question(digest, ""))

    def stop(self) -> None:
        """Stops answering, and waits up to a minute for an answer under way."""
        self._turn.acquire(timeout=60.0)

    def reply(self, frame: Incoming) -> bytes | None:
        """Returns the frame that answers another, whatever it holds; errors stay in the site's log.

        None where the other side closed before it began one.

        Raises:
            Silent: as ``frame``.
        """
        try:
            header = frame.header()
            if header is None:
                return None
            question = read_question(header)
            config, node = self._node(question)
            if question.header is None:
                frame.body(most_bytes(()))
                return frame_of(
                    Introduction(node.digest, code_sha256(), node.partition, node.num_examples), {}
                )
            place, releases = self._place(question, config, node, question.header)
            phase = node.setup.phase(question.header.phase)[1]
            layout = phase.down.layout(node.point_shape, node.dtype)
            down = read_tensors(frame.body(most_bytes(layout.values())))
            with self._turn:
                pay = partial(self.account.charge, place, releases)
                kept = self._memory.read(place.series, node.partition)
                made = answer(node, question.header, partial(_read, down), kept, pay)
                if made.kept is not None:
                    lasts = node.setup.training.memory_is_required
                    self._memory.write(place.series, node.partition, made.kept, lasts=lasts)
                return frame_of(Update(made.noise_origin), made.up.tensors())
        except Silent:
            raise
        # the text of these depends on what was asked and on no record
        except (BadFrame, BadMessage, BadBroadcast, Refused) as error:
            log.warning("Refused: %s", one_line(str(error)))
            return frame_of(Refusal(one_line(str(error), 400)), {})
        except Exception as error:
            log.error("Nothing is answered: %s", _said(error))
            return frame_of(Refusal("this site is absent; its own log says why"), {})

    def _node(self, question: Question) -> tuple[Experiment, Node]:
        """The experiment that is meant, as this site reads it, and its node.

        Raises:
            Refused: it is not on this site's list, or one that no site answers.
        """
        digest = question.config_sha256
        if digest not in self.allowed:
            raise Refused("this experiment is not on this site's list")
        if digest in self._nodes:
            return self._nodes[digest]
        own = self.allowed[digest]
        if own is None:
            _check_text(question.config, digest)
        with self._reading:
            if digest not in self._nodes:
                config = _parsed(question.config, digest) if own is None else own
                self._nodes[digest] = config, self._opened(config)
            return self._nodes[digest]

    def _opened(self, config: Experiment) -> Node:
        """The node of an experiment on this site's records, whatever time that takes.

        Files that an experiment names for simulations are none of a site's: a text that came could
        name any, because the hash does not cover them.

        Raises:
            Refused: for an experiment in which something un-noised would leave this site.
            ConfigError: for the owner of the data: a file that cannot be used, an invalid record,
                an option that does not fit the experiment.
        """
        wanted = self.wanted
        clients = config.federation.num_clients
        path = wanted.data
        is_of_files = config.setting.is_at_sites
        privacy = config.privacy
        if privacy.kind != "example-level" and privacy.trust is None:
            raise Refused(
                "privacy.kind: expected 'example-level' or a secure sum, where the site adds noise "
                f"that protects its examples, got {privacy.kind!r}"
            )
        if privacy.noise_source != "os" and not wanted.is_rehearsal:
            raise Refused(
                "privacy.noise_source: expected 'os', got 'seed', whose noise anybody with the "
                "experiment can subtract; for a rehearsal on made-up data set --rehearsal"
            )
        if wanted.partition >= clients:
            raise ConfigError(
                f"--partition: expected one of 0..{clients - 1}, got {wanted.partition}"
            )
        if is_of_files and path is None:
            raise ConfigError("--data: required by an experiment on files, but not given")
        if not is_of_files and path is not None:
            raise ConfigError(
                f"--data: expected none with data.kind = {config.data.kind!r}, which the "
                f"experiment names, got {str(path)!r}"
            )
        node = own_node(without_paths(config), wanted.partition, path, wanted.num_examples)
        if path is not None:
            _check_same(wanted.folder, path)
        return node

    def _place(
        self, question: Question, config: Experiment, node: Node, header: Header
    ) -> tuple[Place, Releases]:
        """Where in the run a message belongs, and what its round releases.

        Raises:
            Refused: a round or phase that the experiment does not have.
        """
        training, is_sum = node.setup.training, config.privacy.trust is not None
        now = header.server_round
        phases = training.phases if now else training.setup_phases
        names = [phase.name for phase in phases]
        if node.setup.evaluation is not None and node.setup.evaluation.is_due(now):
            names.append(EVALUATE.name)
        if not 0 <= now <= config.federation.num_rounds or header.phase not in names:
            raise Refused(
                f"round {now}, phase {header.phase!r}: expected rounds up to "
                f"{config.federation.num_rounds} and one of the phases {names}"
            )
        seed = config.federation.seed if config.privacy.noise_source == "seed" else None
        index = names.index(header.phase)
        place = Place(question.run, node.digest, node.partition, now, header.attempt, index, seed)
        # No record is used before round 1: the client update sees to it. Of a sum no more than keys
        # leaves before its integers do.
        if now == 0 or header.phase != ("send" if is_sum else names[0]):
            return place, ()
        releases = node.setup.releases(now, node.num_examples)
        for release in releases:
            if release.is_masked and not is_sum:
                raise Refused(
                    f"the release {release.label!r}: expected independent noise of the site, got "
                    "noise that depends on masks of other sites"
                )
        return place, releases


def _check_text(text: str, digest: str) -> None:
    """Refuse a text that nobody put on the list, before anything reads it.

    Raises:
        Refused: it is another one, or none.
    """
    if not text:
        raise Refused(
            f"expected the experiment's text of at most {MOST_CONFIG} characters, got none; for a "
            "longer one give this site a copy (--config)"
        )
    if hashlib.sha256(text.encode()).hexdigest() != digest:
        raise Refused("the text is not that of the experiment with this hash")


def _parsed(text: str, digest: str) -> Experiment:
    """The experiment of a text that came, whose hash is on the list.

    Raises:
        Refused: this site reads another experiment from it, or none.
    """
    try:
        table = table_of_canonical(text)
        if _names_a_graph(table):
            raise Refused("an experiment with a graph needs a local copy at this site (--config)")
        config = parse(table, allowed_here())
    except (ConfigError, ValueError, RecursionError) as error:
        raise Refused(f"this site cannot read the experiment: {error}") from None
    if sha256(config) != digest:
        raise Refused("this site reads another experiment from the text with this hash")
    return config


def _names_a_graph(table: Mapping[str, object]) -> bool:
    """Whether any table in it has one: few bytes of text that can take hours and all memory."""
    inner = (value for value in table.values() if isinstance(value, Mapping))
    return "graph" in table or any(map(_names_a_graph, inner))


def _read(down: Tensors, kind: type[Payload], shape: Shape, dtype: torch.dtype) -> Tensors:
    """The fields of what came, checked array by array.

    Raises:
        BadMessage: other arrays, or one of another shape or type, or that is not finite.
    """
    layout = kind.layout(shape, dtype)
    if set(down) != set(layout):
        raise BadMessage(f"Expected the arrays {tuple(layout)} of {kind.__name__}, got others")
    for name, (own, type_) in layout.items():
        found = flaw(name, down[name], own, type_)
        if found is not None:
            raise BadMessage(found)
    return down


def _said(error: Exception) -> str:
    """Type and place of an error; its text where it is written for the owner of the data."""
    if isinstance(error, ConfigError):
        return one_line(str(error))
    return f"{type(error).__name__} at {raised_at(error)}"


# -- whose data these are ----------------------------------------------------------------------
def claim(folder: Path, path: Path, *, is_accepted: bool) -> bool:
    """Makes the file this folder's data set; returns whether it replaced another file.

    A new folder takes any file. The digest is kept beside the ledger.

    Raises:
        ConfigError: it is another file than before, and nobody ``is_accepted`` it.
    """
    before = _digest_in(folder)
    if before is None or is_accepted:
        now = _file_sha256(path)
        if now != before:
            write_atomically(folder / IDENTITY, json.dumps({"sha256": now}).encode() + b"\n")
        return before not in (None, now)
    _check_same(folder, path)
    return False


def _check_same(folder: Path, path: Path) -> None:
    """Refuse a file that is not the one this folder accounts for.

    Raises:
        ConfigError: with what to do; it is no file, or cannot be read.
    """
    if _file_sha256(path) != _digest_in(folder):
        raise ConfigError(
            f"--data: {str(path)!r} is not the file of {str(folder)!r}; for corrected or added "
            "rows of the same people set --accept-changed-data (spent budget stays spent), for "
            "other people use another ledger folder"
        )


def _digest_in(folder: Path) -> str | None:
    """The digest that the folder keeps; None in a new one.

    Raises:
        ConfigError: the file that keeps it cannot be read.
    """
    identity = folder / IDENTITY
    try:
        return str(json.loads(identity.read_text())["sha256"]) if identity.exists() else None
    except (OSError, ValueError, LookupError, TypeError):
        raise ConfigError(
            f"{str(identity)!r}: expected the digest of this folder's data; restore it, or remove "
            "it if the file is certainly the same"
        ) from None


def _file_sha256(path: Path) -> str:
    """Digest of a regular file; errors as `_check_same`."""
    try:
        if not path.is_file():
            raise ConfigError(f"--data: expected a file, got {str(path)!r}")
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"--data: {str(path)!r}: {os.strerror(error.errno or 0)}") from None
