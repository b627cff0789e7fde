"""DECOR under attack: best linear tests through the nodes' own code, and a run's log read."""

from dataclasses import replace

import pytest
import torch

from manifed.audit.masked import (
    CLIP,
    NOISE,
    MaskedAttack,
    MasksUsedTwice,
    masked_faults,
)
from manifed.audit.report import find
from manifed.audit.transcript import Heard, read
from manifed.graphs.specs import Ring
from manifed.privacy.noise import NoiseSource
from manifed.privacy.secldp import Correlated, Rounds, against

SOURCE = NoiseSource.from_seed(11)
RING = MaskedAttack(Ring(), 8, NOISE, SOURCE)


def test_the_canary_moves_one_message_by_the_clip_norm_and_no_other():
    quiet = replace(RING, drawn=Correlated(1e-9, 0.0), copies=2)
    sent = quiet.nodes.messages(1, is_present=True, is_reversed=False).reshape(2, 8, 2)
    other = quiet.nodes.messages(2, is_present=False, is_reversed=False).reshape(2, 8, 2)
    back = quiet.nodes.messages(3, is_present=True, is_reversed=True).reshape(2, 8, 2)
    victim = quiet.worst.node
    assert sent[:, victim, 0].tolist() == pytest.approx([CLIP] * 2, abs=1e-5)
    assert other[:, victim, 0].tolist() == pytest.approx([-CLIP] * 2, abs=1e-5)
    assert back[:, victim, 0].tolist() == pytest.approx([-CLIP] * 2, abs=1e-5)
    rest = [i for i in range(8) if i != victim]
    assert float(sent[:, rest].abs().max()) < 1e-6


@pytest.mark.statistical
@pytest.mark.parametrize("coalition", [(), (0,), (1, 3)], ids=["I", "II", "III"])
def test_the_best_test_separates_by_what_is_charged(coalition):
    """Scores are two Gaussians d' apart: each side's mean within 4.9 standard errors of its law."""
    attack, count = replace(RING, coalition=coalition), 200
    graph = Ring().build(8)
    worst = against(graph, NOISE, coalition)
    for is_present, sign in ((True, 1.0), (False, -1.0)):
        scores = attack.scores(count, is_present=is_present)
        mean = scores.mean() / (CLIP * worst.precision)
        spread = worst.precision**-0.5 / CLIP / count**0.5
        assert abs(mean - sign) < 4.9 * spread
        variance = scores.var(ddof=1) / worst.precision
        assert 0.55 < variance < 1.6
    assert attack.separation == pytest.approx(2 * CLIP * worst.precision**0.5)


def test_a_graph_whose_worst_node_is_not_known_is_refused(monkeypatch):
    monkeypatch.setattr("manifed.privacy.secldp.MOST_EXACT", 7)
    with pytest.raises(ValueError, match=r"num_nodes: expected at most .* got 8"):
        _ = RING.nodes


def test_the_claim_is_the_accountants_price_of_the_coalition():
    attack = replace(RING, coalition=(0,), pattern=(False, False))
    worst = against(Ring().build(8), NOISE, (0,))
    assert attack.claim(1e-5) == Rounds(2, 2 * CLIP).epsilon(worst, 1e-5)


def test_a_colluder_knows_just_the_masks_of_its_own_pairs():
    """Own noise nearly off: what its key draws is what the message holds."""
    attack = replace(RING, drawn=Correlated(1e-9, 3.0), coalition=(0, 2), copies=1)
    sent = attack.nodes.messages(1, is_present=True, is_reversed=False)
    known = 3.0 * (attack.nodes.known_to(0, 1, 1) + attack.nodes.known_to(2, 1, 1))
    clean = torch.zeros(2) if attack.worst.node != 1 else torch.tensor([CLIP, 0.0])
    assert torch.allclose(sent[1] - known, clean.double(), atol=1e-2)
    with pytest.raises(ValueError, match="not in tuple"):
        attack.nodes.known_to(0, 4, 1)


def test_no_secret_is_among_what_the_server_relays():
    nodes = replace(RING, copies=1).nodes
    relayed = b"".join(
        bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())
        for payload in nodes.relayed
        for tensor in payload.tensors().values()
    )
    held = nodes.memory.tensors()
    assert len(relayed) > 8 * 32
    for key in [*held["secret"], *held["pairs"].reshape(-1, 32)]:
        assert bytes(key.tolist()) not in relayed


@pytest.mark.slow
@pytest.mark.parametrize("fault", masked_faults(SOURCE), ids=lambda m: m.name)
def test_every_planted_fault_of_masks_is_caught(fault):
    assert find(fault, 0.95).verdict.is_violated


# -- a log ------------------------------------------------------------------------------------
GRAPH = Ring().build(8)


def log_of(attack: MaskedAttack, rounds: int) -> list[Heard]:
    """The rounds of one copy, as the server relays them."""
    had = torch.tensor([0.0, 1.0], dtype=torch.float64).expand(8, 2)
    return [
        Heard(had, had - attack.nodes.messages(r, is_present=True, is_reversed=False), 1.0)
        for r in range(1, rounds + 1)
    ]


def clean(attack: MaskedAttack):
    def gradients(x: torch.Tensor) -> torch.Tensor:
        found = torch.zeros_like(x)
        found[attack.worst.node] = CLIP * x[attack.worst.node].roll(1) / x.norm(dim=-1).max()
        return found

    return gradients


@pytest.mark.statistical
def test_a_log_of_masked_messages_reads_as_charged_and_planted_faults_do_not():
    one = replace(RING, copies=1)
    for reading in read(log_of(one, 60), clean(one), GRAPH, NOISE):
        assert reading.is_as_charged, reading
    twice = replace(one, algorithm=MasksUsedTwice)
    for reading in read(log_of(twice, 60), clean(twice), GRAPH, NOISE):
        assert reading.change < reading.lowest[1]
    bare = log_of(replace(one), 60)
    for heard in bare:  # one node forgets its masks
        heard.sent[3] = heard.had[3] - clean(one)(heard.had)[3] - 0.01
    verdicts = [r.is_as_charged for r in read(bare, clean(one), GRAPH, NOISE)]
    assert verdicts == [i != 3 for i in range(8)]


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("scale", [0.8, 1.25])
def test_noise_of_another_size_is_read_in_a_log(scale):
    one = replace(RING, copies=1)
    other = Correlated(NOISE.sigma_cdp * scale, NOISE.sigma_cor * scale)
    found = read(log_of(one, 300), clean(one), GRAPH, other)
    assert not all(reading.is_as_charged for reading in found)


def test_a_log_of_one_round_says_nothing():
    with pytest.raises(ValueError, match="at least 2 rounds, got 1"):
        read(log_of(replace(RING, copies=1), 1), clean(RING), GRAPH, NOISE)
