"""Nodes that spoil pairwise masks: who offered an unusable key is named, nobody else."""

import re
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from manifed.algorithms.pair_masks import NeighbourKeys, OfferedKey
from manifed.errors import RoundFailed
from tests.algorithms.gossip_runs import EVERY_WAY, reports_of, transport_of
from tests.algorithms.test_decor import decor, signed

PRIME = 2**255 - 19
TOP = 1 << 255
ORDER_8 = (
    0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
    0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
)
SMALL = {"0": 0, "1": 1, "order 8": ORDER_8[0], "order 8, the other": ORDER_8[1],
         "p - 1": PRIME - 1, "p": PRIME, "p + 1": PRIME + 1}  # fmt: skip
UNUSABLE = SMALL | {f"{name}, top bit": key | TOP for name, key in SMALL.items()}


def tensor_of(number):
    return torch.tensor(list(number.to_bytes(32, "little")), dtype=torch.uint8)


class Spoiled:
    """A transport whose offers are changed when they come, and whose relayed keys when they go.

    A key is the first 32 bytes of an offer.
    """

    def __init__(self, config, way, come=lambda public: None, go=lambda rows: None):
        self.inner = transport_of(way, config)
        self.come = come
        self.go = go

    def exchange(self, asked):
        rows = getattr(asked.down, "rows", None)
        if isinstance(rows, NeighbourKeys):
            tensors = [tensor.clone() for tensor in rows.tensors().values()]
            self.go(tensors[1][..., :32])
            asked = asked._replace(down=type(asked.down)(type(rows)(*tensors)))
        found = self.inner.exchange(asked)
        if isinstance(found.uploads, OfferedKey):
            offers = found.uploads.offer.clone()
            self.come(offers[:, :32])
            found = found._replace(uploads=OfferedKey(offers))
        return found


def named(config, transport):
    """Who is named by the error of a run that ends before round 1, with the reason."""
    with pytest.raises(RoundFailed, match="Round 0, exchange ") as failed:
        reports_of(config, transport=transport)
    found = re.findall(r"client (\d+): (.*?)(?=; client |$)", str(failed.value))
    return {int(client): reason for client, reason in found}


@pytest.mark.parametrize("key", UNUSABLE)
def test_a_key_without_a_secret_names_who_offered_it(key):
    config = decor(1, pair_keys="exchanged")

    def come(public):
        public[2] = tensor_of(UNUSABLE[key])

    found = named(config, Spoiled(config, "memory", come))
    assert set(found) == {2}
    assert "X25519" in found[2]


@EVERY_WAY
def test_every_way_names_who_offered_an_unusable_key(way):
    config = decor(1, pair_keys="exchanged")
    found = named(config, Spoiled(config, way, lambda public: public[3].zero_()))
    assert set(found) == {3}
    assert found[3].endswith("(node 5)") == (way == "messages")


def test_both_who_offered_one_key_are_named():
    config = decor(1, pair_keys="exchanged")

    def come(public):
        public[1] = public[4]  # no neighbours

    found = named(config, Spoiled(config, "memory", come))
    assert set(found) == {1, 4}
    assert "that of another node" in found[1] == found[4]


@EVERY_WAY
@pytest.mark.parametrize("is_known_here", [True, False])
def test_a_key_that_is_not_signed_as_pinned_names_its_owner(is_known_here, way, tmp_path):
    """Node 4 signs with a key that is not pinned; without the file the server asks the others."""
    config = decor(1, source="os", **signed(tmp_path))
    (tmp_path / "4.key").write_text("07" * 32)
    pins = Path(config.training.pinned_keys)
    away = pins.with_suffix(".away")

    class Elsewhere(Spoiled):
        def exchange(self, asked):
            if not is_known_here and asked.header.phase == "agree":
                away.rename(pins)
            found = super().exchange(asked)
            if not is_known_here:
                pins.rename(away)
            return found

    found = named(config, Elsewhere(config, way))
    assert set(found) == {4}
    assert "not signed by the key that is pinned" in found[4]
    assert ("clients [3, 5]" in found[4]) == (not is_known_here)
    assert "sound" not in found[4]


RELAYED = {
    "small order": lambda rows: rows[0, 1].copy_(tensor_of(ORDER_8[0])),
    "no number below p": lambda rows: rows[0, 1].copy_(tensor_of(PRIME + 9)),
    "another neighbour's": lambda rows: rows[0, 1].copy_(rows[0, 0]),
}


@EVERY_WAY
@pytest.mark.parametrize("case", RELAYED)
def test_a_key_that_is_spoiled_on_its_way_is_refused_as_its_owners(case, way):
    """Clients look for themselves, and say which key they refuse: node 0 has neighbours 1 and 5."""
    config = decor(1, pair_keys="exchanged")
    found = named(config, Spoiled(config, way, go=RELAYED[case]))
    assert set(found) == ({1, 5} if case == "another neighbour's" else {5})
    assert "clients [0] refuse" in found[5]
    assert "clients [4] take it, the server found it sound" in found[5]


@pytest.mark.parametrize("is_pinned", [True, False])
def test_a_server_in_the_middle_is_refused_by_pinned_keys_alone(is_pinned, tmp_path):
    """It puts its own key between nodes 0 and 1."""
    config = decor(1, source="os", **(signed(tmp_path) if is_pinned else {}))
    mine = X25519PrivateKey.generate().public_key().public_bytes_raw()

    def go(rows):
        rows[0, 0] = rows[1, 0] = torch.tensor(list(mine))

    middle = Spoiled(config, "stacked", go=go)
    if is_pinned:
        found = named(config, middle)
        assert set(found) == {0, 1}
        assert all("not signed by the key that is pinned" in why for why in found.values())
    else:
        assert reports_of(config, transport=middle)


def test_a_client_that_says_nonsense_of_its_neighbours_names_itself():
    config = decor(1, pair_keys="exchanged")
    inner = transport_of("memory", config)

    class Nonsense:
        def exchange(self, asked):
            found = inner.exchange(asked)
            if asked.header.phase == "agree":
                (flags,) = found.uploads.tensors().values()
                flags[3] = 200
            return found

    assert set(named(config, Nonsense())) == {3}
