"""Pairwise masks on a graph: how nodes agree on keys, and how a node draws its masks.

Two ways, by ``pair_keys``. "exchanged": before round 1 every node offers an X25519 key through the
server and gets those of its neighbours; the secrets stay in its memory, which never travels
(`manifed.privacy.masks` says what holds against whom). "seeded": masks come from the seed of the
run, so anybody can compute them; a stand-in for rehearsals, refused where noise is not seeded too.

A mask's address is (pair, round, attempt). A node remembers the last round and attempt that it
masked and answers no other question at or before it: asked twice, it would add one mask to two
messages, and their difference would hold none.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from pydantic import model_validator
from torch import Tensor

from manifed.algorithms.algorithm import Here, Phase, ServerUpdate, There
from manifed.algorithms.gossip import ByGraph
from manifed.algorithms.payloads import (
    Down,
    Memory,
    Partitions,
    Payload,
    PerClient,
    Point,
    State,
    bytes_by_node,
    bytes_of,
    tensor_of,
)
from manifed.fields import KeyFiles, fingerprint
from manifed.graphs import Graph
from manifed.manifolds.linalg import Shape
from manifed.oracles.noisy_oracle import Draws
from manifed.privacy.masks import (
    FLAWS,
    masks,
    offer,
    offer_fault,
    pair_source,
    pinned_in,
    seeded_pairs,
    signing_in,
)
from manifed.privacy.random_numbers import NoiseSource
from manifed.privacy.secldp import Correlated, Hidden
from manifed.privacy.secret_shares import KEY_BYTES, SIGNATURE_BYTES, public_of, repeated

SETUP = ("offer", "agree")
"""The exchanges before round 1, where there are some."""


class NotAgreed(RuntimeError):
    """Error: a node is asked for masks before it has a secret and a key with every neighbour."""


class MaskUsed(RuntimeError):
    """Error: a node is asked for masks of a round and attempt that it already used or passed."""


@dataclass(frozen=True)
class PairKeys(Memory):
    """A node's memory: its X25519 secret, its pair keys by neighbour, and their last use.

    ``used`` holds the last round and attempt that it masked.
    """

    secret: Tensor
    pairs: Tensor
    used: Tensor


@dataclass(frozen=True)
class OfferedKey(Payload):
    """Uplink before round 1: a public key and its signature (zeros without a signing key)."""

    offer: Tensor

    of_bytes = (("offer", (KEY_BYTES + SIGNATURE_BYTES,)),)


@dataclass(frozen=True)
class NeighbourKeys(Payload):
    """Downlink before round 1: the offers of a node's neighbours in order, padded by zeros.

    The point stands in front as in everything that goes down; it is not used.
    """

    x: Tensor
    offer: Tensor

    of_bytes = OfferedKey.of_bytes


@dataclass(frozen=True)
class _Agreed(Payload):
    """Up, before round 1: 0 for every neighbour with whom this node has a pair key now.

    Else which of `FLAWS` it found in the key that was relayed as the neighbour's, from 1. An error
    would name this node, and no more, to a server.
    """

    flaws: Tensor

    of_bytes = (("flaws", ()),)


class Masking(ByGraph, ServerUpdate, KeyFiles):
    """Base of algorithms with pairwise masks: agreement on keys, masks, checks and words."""

    pair_keys: Literal["seeded", "exchanged"] = "seeded"
    """Where masks come from. privacy.noise_source = "os" needs "exchanged"."""

    where = "training"
    has_masks = True

    @model_validator(mode="after")
    def _fits(self) -> "Masking":
        if self.local_steps != 1:
            raise ValueError(
                f"training.local_steps: expected 1 with {self.kind!r}, whose one gradient a round "
                f"is masked, got {self.local_steps}"
            )
        if self.pinned_keys is not None and self.pair_keys == "seeded":
            raise ValueError("training.pinned_keys: needs training.pair_keys = 'exchanged'")
        return self

    @property
    def secret_graph(self) -> Graph:
        """The graph whose edges are the pairs of nodes that share a secret."""
        return self.network.graph

    @property
    def remembers_setup(self) -> bool:
        """True: keys that a node agreed on before round 1 hold in every round of the run."""
        return self.pair_keys == "exchanged"

    # -- before round 1 ----------------------------------------------------------------------
    @property
    def setup_phases(self) -> tuple[Phase, ...]:
        """The exchanges of keys before round 1; none where masks are drawn from the seed."""
        if self.pair_keys == "seeded":
            return ()
        most = max(self.secret_graph.degrees)
        down = NeighbourKeys.sized(most)
        up = _Agreed.sized(most)
        return (
            Phase("offer", Point, OfferedKey, ("point",), ("any",), "none"),
            Phase("agree", down, up, ("point", "any"), ("any",), "none"),
        )

    def initial_memory(self, x: Tensor) -> Memory | None:
        """Returns the memory of one node that has no secret yet."""
        if self.pair_keys == "seeded":
            return None
        most = max(self.secret_graph.degrees)
        return PairKeys(
            torch.zeros(KEY_BYTES, dtype=torch.uint8),
            torch.zeros(most, KEY_BYTES, dtype=torch.uint8),
            torch.zeros(2, dtype=torch.int64),
        )

    @property
    def run(self) -> bytes:
        """The identifier that keys and signatures are bound to: all the config says of training."""
        made: Any = self  # a frozen model has a hash, out of the sight of pyright
        return fingerprint(made)

    def set_up(self, here: Here) -> tuple[Payload, Memory]:
        """Answers an exchange before round 1: offers a key, or agrees on keys with neighbours.

        Raises:
            MaskUsed: masks of this run were used: with new keys they could be asked for once more.
            NotAgreed: this node has offered none: everybody knows the secret that it has then.
        """
        memory = here.memory
        down = here.came
        node = here.draws.partition
        source = here.draws.source
        assert isinstance(memory, PairKeys)
        if not isinstance(node, int):
            made = [
                self.set_up(
                    here._replace(
                        came=down.take(row),
                        memory=memory.take(row),
                        draws=here.draws._replace(partition=one),
                    )
                )
                for row, one in enumerate(node)
            ]
            ups, memories = zip(*made, strict=True)
            return type(ups[0]).stack(ups), type(memory).stack(memories)
        pairs = torch.zeros_like(memory.pairs)
        if not isinstance(down, NeighbourKeys):
            if bool(memory.used.any()):
                raise MaskUsed("Expected keys to be offered before masks were used, got it after")
            secret = source.derive(b"mask secret of a node\0" + node.to_bytes(4, "big")).key
            offered = offer(self.run, node, secret, signing_in(self, node))
            after = replace(memory, secret=tensor_of(secret), pairs=pairs)
            return OfferedKey(tensor_of(offered)), after
        if not bool(memory.secret.any()):
            raise NotAgreed(f"Expected node {node} to have offered a key, got none in this run")
        secret = bytes_of(memory.secret)
        pinned = pinned_in(self, self.secret_graph.num_nodes)
        offers = bytes_by_node(self.secret_graph.neighbors[node], down.offer)
        copies = repeated({**offers, node: public_of(secret)}, keys=1)
        flaws = down.offer[:, 0].clone().zero_()
        for place, (j, made) in enumerate(offers.items()):
            fault = offer_fault(self.run, j, made, pinned, is_copy=j in copies)
            if fault is None:
                pairs[place] = tensor_of(pair_source(self.run, node, secret, j, made).key)
            else:
                flaws[place], why = fault
                logging.getLogger("manifed").error(
                    "Node %d refuses what was relayed to it as of node %d: %s", node, j, why
                )
        return _Agreed.sized(len(flaws))(flaws), replace(memory, pairs=pairs)

    # -- the server, before round 1 ------------------------------------------------------------
    def refused(
        self, state: State, phase: str, uploads: Payload, partitions: Partitions
    ) -> Mapping[int, str]:
        """Returns the nodes whose keys are refused, by the server or by a neighbour, with reasons.

        Raises:
            RoundFailed: the server has a file of pinned keys that cannot be read.
        """
        if phase not in SETUP:
            return {}
        pinned = pinned_in(self, self.secret_graph.num_nodes, is_server=True)
        found = dict[int, str]()
        if isinstance(uploads, OfferedKey):
            offers = bytes_by_node(partitions, uploads.offer)
            copies = repeated(offers, keys=1)
            for node, made in offers.items():
                fault = offer_fault(self.run, node, made, pinned, is_copy=node in copies)
                if fault is not None:
                    found[node] = fault[1]
            return found
        assert isinstance(uploads, _Agreed)
        # The owner, who refuses it or the server may be at fault, so the text has who takes it and
        # what the server found. A node that says what nobody can have found is at fault itself.
        near = self.secret_graph.neighbors
        refusals = dict[int, dict[int, str]]()
        for i, codes in zip(partitions, uploads.flaws.tolist(), strict=True):
            if any(codes[len(near[i]) :]) or max(codes) > len(FLAWS):
                found[i] = f"Expected codes of flaws in its neighbours' keys, got {codes[:5]}"
                continue
            for j, code in zip(near[i], codes, strict=False):
                if code:
                    refusals.setdefault(j, {})[i] = FLAWS[code - 1]
        for j, by in refusals.items():
            why = sorted(set(by.values()))
            takes = [i for i in near[j] if i in partitions and i not in by]
            text = f"clients {list(by)[:5]} refuse the key relayed as its ({', '.join(why)})"
            text += f", clients {takes[:5]} take it" if takes else ""
            if pinned is not None or FLAWS[-1] not in why:  # it was looked at when it was offered
                text += ", the server found it sound"
            found.setdefault(j, text)
        return found

    def down(self, state: State, phase: str) -> Down:
        """Returns the payload before round 1: the known point, or the keys of neighbours."""
        if phase not in SETUP:
            return super().down(state, phase)
        x = self.known_point(state)
        if phase == "offer":
            return Point(x)
        near = self.secret_graph.neighbors
        most = max(map(len, near))
        rows = torch.tensor([[*some, *[-1] * (most - len(some))] for some in near])
        offers = torch.cat([state["offer"], torch.zeros_like(state["offer"][:1])])[rows]
        everywhere = x.expand(len(near), *x.shape)
        return PerClient(NeighbourKeys.sized(most)(everywhere, offers))

    def known_point(self, state: State) -> Tensor:
        """Returns a point that every node has before round 1."""
        return state["x"]

    def server(self, state: State, mean: Tensor, here: There) -> State:
        """Relays keys before round 1; the server keeps none."""
        if here.exchange == "offer":
            assert isinstance(here.collected.uploads, OfferedKey)
            return state | here.collected.uploads.tensors()
        return {"x": state["x"]} if here.exchange == "agree" else super().server(state, mean, here)

    def check(self, setting: Any) -> None:
        """Refuses masks that would hide nothing, and a mechanism that does not price masks."""
        super().check(setting)
        privacy = setting.privacy
        cohort = setting.federation.cohort
        if privacy.kind != "correlated":
            raise ValueError(
                f"privacy.kind: expected 'correlated' with training.kind = {self.kind!r}, got "
                f"{privacy.kind!r}; 'gossip' is the same without masks"
            )
        if cohort.kind != "all":
            raise ValueError(
                "federation.cohort.kind: masks cancel over all nodes, expected 'all' with "
                f"training.kind = {self.kind!r}, got {cohort.kind!r}"
            )
        if privacy.noise_source == "os" and self.pair_keys != "exchanged":
            raise ValueError(
                "training.pair_keys: expected 'exchanged' with privacy.noise_source = 'os', got "
                f"{self.pair_keys!r}: anybody can compute seeded masks"
            )
        most = self.secret_graph.num_nodes
        coalition = privacy.coalition
        if coalition and not len(set(coalition) & set(range(most))) == len(coalition) < most:
            raise ValueError(
                f"privacy.coalition: expected different nodes of 0..{most - 1}, not all of them, "
                f"got {list(coalition)}"
            )

    @property
    def about_keys(self) -> str:
        """The statement's sentence on where the secrets of pairs come from."""
        if self.pair_keys == "seeded":
            return (
                "masks are computed from the seed, a stand-in for exchanged keys that hides nothing"
            )
        if self.pinned_keys is None:
            return (
                "pair keys were exchanged through the server without signatures: they hold against "
                "a server that only reads, not against one that changes messages"
            )
        return "pair keys were exchanged through the server, signed by keys that every node pinned"

    def hidden(self, noise: Correlated, collusion: int, coalition: Partitions = ()) -> Hidden:
        """Says how much noise hides one round from each adversary, own noise and masks together."""
        return Hidden.of(self.secret_graph, noise, collusion, coalition)

    # -- in a round --------------------------------------------------------------------------
    def masked_now(
        self, shape: Shape, memory: Memory | None, draws: Draws
    ) -> tuple[Tensor, Memory | None]:
        """Draws a node's summed masks sum_j v_ij, ``(*shape)`` or ``(C, *shape)``, and notes it.

        Each mask has unit deviation.

        Raises:
            MaskUsed: the masks of this round and attempt, or of a later one, were used.
            ValueError: seeded masks beside noise from the operating system.
        """
        drawn = self.drawn(shape, memory, draws)
        if isinstance(memory, PairKeys):
            memory = replace(memory, used=self.used_now(memory, draws))
        return drawn, memory

    def used_now(self, memory: PairKeys, draws: Draws) -> Tensor:
        """Returns the new value of ``used`` after this question; errors as `masked_now`."""
        if self.pair_keys == "seeded":
            return memory.used
        now = [draws.server_round, draws.attempt]
        if now <= (newest := max(memory.used.reshape(-1, 2).tolist())):
            raise MaskUsed(
                f"Expected a round and attempt after {newest}, got {now}: those masks were used, "
                "and two messages under one mask would show their difference"
            )
        return torch.tensor(now).expand(memory.used.shape).clone()

    def drawn(
        self,
        shape: Shape,
        memory: Memory | None,
        draws: Draws,
        partners: frozenset[int] | None = None,
        step: int = 0,
    ) -> Tensor:
        """Draws masks as `masked_now`, without its check of reuse; ``step`` distinguishes streams.

        With ``partners`` the sum is over the masks that are shared with these nodes alone.

        Raises:
            ValueError: seeded masks beside noise from the operating system.
            NotAgreed: without a key with every neighbour.
        """
        source = draws.source
        who = draws.partition
        is_one = isinstance(who, int)
        nodes = (who,) if is_one else who
        when = {"server_round": draws.server_round, "attempt": draws.attempt, "step": step}
        if self.pair_keys == "seeded" and source.origin == "os":
            raise ValueError(
                "training.pair_keys: expected 'exchanged' with privacy.noise_source = 'os', got "
                "'seeded': anybody can compute seeded masks"
            )
        each = list[Tensor]()
        for row, node in enumerate(nodes):
            near = self.secret_graph.neighbors[node]
            if self.pair_keys == "seeded":
                sources = dict.fromkeys(near, seeded_pairs(source))
            else:
                assert isinstance(memory, PairKeys)
                keys = (memory.pairs if is_one else memory.pairs[row])[: len(near)]
                if not bool(keys.any(-1).all()):
                    raise NotAgreed(
                        f"Expected a key with every neighbour of node {node}, got none with some: "
                        "the exchanges before round 1 were not all made, and everybody could "
                        "compute its masks"
                    )
                sources = {
                    j: NoiseSource(bytes_of(key), source.origin, precision=source.precision)
                    for key, j in zip(keys, near, strict=True)
                }
            if partners is not None:
                sources = {j: sources[j] for j in partners.intersection(near)}
            each.append(masks(sources, node, shape, **when))
        found = each[0] if is_one else torch.stack(each)
        return found.to(draws.device)
