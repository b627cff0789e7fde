"""What is seen of secure sums: the noise in them is what is charged, and nothing else says a word.

False alarms: each test has a probability of at most 1e-6 of failing by its draws.
"""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from manifed.algorithms.secure_mean import SecureMean
from manifed.algorithms.secure_node import SecureNode
from manifed.audit.bound import find_all
from manifed.audit.of_config import attacks_of
from manifed.errors import ConfigError
from manifed.experiment.load import parse
from manifed.privacy import discrete
from tests.algorithms.test_secure_mean import Run, keys_in, setting_of, shards_of
from tests.attacks.sums import sums_of

ALARM = 1e-6
NODES = 6
WIDE = 2000


def watched(monkeypatch, *, lost=0, rounds=4, z=2.0, **changes):
    """A run over vectors so wide that each round shows thousands of draws of one noise."""
    setting = setting_of(NODES, "client", rounds, z=z, max_dropped=2, collusion=1, **changes)
    x = setting.manifold.random(WIDE, generator=torch.Generator().manual_seed(0))
    silent = {"send": range(NODES - lost, NODES)}
    return Run(setting, monkeypatch, shards=shards_of(NODES, (WIDE,)), x=x, silent=silent)


def noise_of(monkeypatch, *, lost=0, rounds=4, known=(), **changes):
    """The noise in opened sums of ``rounds``, without the shares of nodes who tell theirs."""
    run = watched(monkeypatch, lost=lost, rounds=rounds, **changes)
    plain, shares = {}, {}
    noised, draw = SecureNode._noised, discrete.draw
    newest = []

    def drawn(*asked):
        newest.append(draw(*asked))
        return newest[-1]

    def split(node, x, oracle, here, coding):
        found = noised(node, x, oracle, here, coding)
        shares[here.draws.partition] = newest[-1]
        plain[here.draws.partition] = found[0] - newest[-1]
        return found

    monkeypatch.setattr(discrete, "draw", drawn)
    monkeypatch.setattr(SecureNode, "_noised", split)
    found = []
    for _ in range(rounds):
        run.round()
        alive = range(NODES - lost)
        clear = sum(plain[i] for i in alive) + sum(shares[i] for i in known)
        coding = run.plan.training.numbers.of(NODES, WIDE)
        found.append(coding.wrap(run.opened[-1] - clear))
    return run.plan, np.concatenate(found)


def bounds(noise):
    """What the variance of so many normals is, but for one time in a million."""
    low, high = stats.chi2.ppf((ALARM / 2, 1 - ALARM / 2), len(noise))
    square = float((noise.astype(np.float64) ** 2).sum())
    return square / high, square / low


KNOWS = {"to_server": (), "to_one": (0,), "to_coalition": (0,)}


@pytest.mark.parametrize("lost", [0, 2])
@pytest.mark.parametrize("who", KNOWS)
def test_the_noise_that_an_adversary_does_not_know_is_what_it_is_charged(monkeypatch, who, lost):
    plan, noise = noise_of(monkeypatch, lost=lost, known=KNOWS[who])
    numbers = plan.training.numbers
    coding = numbers.of(NODES, WIDE)
    (release,) = plan.training.model_copy(update={"counts": (NODES, NODES - lost)}).releases(
        plan.training.mechanism, 5
    )
    paid = (getattr(release, who) * numbers.sensitivity * coding.bound) ** 2
    low, high = bounds(noise)
    assert low < paid < high
    assert stats.kstest(noise / np.sqrt(paid), "norm").pvalue > ALARM


FAULTS = {
    "one node adds no noise": lambda draw, state: (
        lambda v, n, w: draw(v, n, w) * (next(state) % NODES > 0)
    ),
    "shares of all nodes in place of the honest ones": lambda draw, state: (
        lambda v, n, w: draw(v * 3 // NODES, n, w)
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_noise_that_falls_short_is_seen(monkeypatch, fault):
    draw = FAULTS[fault](discrete.draw, itertools.count())
    monkeypatch.setattr(discrete, "draw", draw)
    plan, noise = noise_of(monkeypatch)
    coding = plan.training.numbers.of(NODES, WIDE)
    assert bounds(noise)[1] < NODES * coding.variance


def test_a_retry_draws_other_noise(monkeypatch):
    """The difference of two sums of one attempt under one noise would be the difference of data."""
    _, noise = noise_of(monkeypatch, rounds=2)
    first, second = noise[:WIDE], noise[WIDE:]
    assert abs(stats.pearsonr(first, second).statistic) < 5.0 / np.sqrt(WIDE)


# -- a reader of all that the server sees --------------------------------------------------------
def transcript(run, rounds):
    """Every field that goes down or comes up, by exchange."""
    found = []
    for _ in range(rounds):
        run.round()
        for phase, came in run.ups.items():
            down = run.downs[phase]
            sent = vars(getattr(down, "rows", down))
            found.append(
                (phase, {**vars(came.uploads), **{f"down {k}": t for k, t in sent.items()}})
            )
    return found


@pytest.mark.parametrize("lost", [0, 2])
def test_masked_integers_are_uniform_whatever_they_hold(monkeypatch, tmp_path, lost):
    run = watched(monkeypatch, lost=lost, rounds=2, z=0.01, **keys_in(tmp_path, NODES))
    uploads = [fields["total"] for phase, fields in transcript(run, 2) if phase == "send"]
    for total in torch.cat(uploads):
        counts = np.bincount(total.numpy().view(np.uint8), minlength=256)
        assert stats.chisquare(counts).pvalue > ALARM / len(uploads) / NODES
    clear = np.bincount(run.opened[0].astype(np.int32).view(np.uint8), minlength=256)
    assert stats.chisquare(clear).pvalue < 1e-30, "and the test sees what is not masked"


def pieces(tensor, size=16):
    """Strings of so many bytes, at every multiple of them, that are not zero."""
    rows = tensor.reshape(-1, tensor.shape[-1]).numpy().view(np.uint8)
    for row in rows:
        for start in range(0, len(row) - size + 1, size):
            if (piece := row[start : start + size].tobytes()).strip(b"\0"):
                yield piece


def test_no_key_share_or_mask_occurs_twice_in_rounds_attempts_or_restarts(monkeypatch, tmp_path):
    keys = keys_in(tmp_path, NODES)
    seen = {}
    for start in range(2):
        run = watched(monkeypatch, rounds=2, **keys)
        for place, (phase, fields) in enumerate(transcript(run, 2)):
            for name in {"offer", "boxes", "total", "by", "shares", "own"} & fields.keys():
                for piece in pieces(fields[name]):
                    where = (start, place, phase, name)
                    assert piece not in seen, (seen[piece], where)
                    seen[piece] = where
    assert len(seen) > 1000


def test_a_sum_stays_under_a_mask_until_it_is_opened(monkeypatch):
    run = watched(monkeypatch, rounds=1)
    unmasked = SecureMean._unmasked
    masked = []

    def opened(update, now, revealed):
        masked.append(now.state["sum_total"].numpy().astype(np.int32))
        return unmasked(update, now, revealed)

    monkeypatch.setattr(SecureMean, "_unmasked", opened)
    run.round()
    counts = np.bincount(masked[0].view(np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > ALARM


# -- the audit of a config -----------------------------------------------------------------------
def audited(unit, **privacy):
    """Verdicts against everybody who sees the sums of six clients in one or two rounds."""
    config = parse(
        {
            "name": "sum",
            "problem": {"kind": "principal-eigenvector"},
            "data": {"kind": "synthetic-pca", "num_clients": NODES, "rows": 12, "dimension": 6},
            "federation": {"num_clients": NODES, "num_rounds": 2,
                           "partition": {"kind": "natural"}},
            "training": {"kind": "rsgd", "step_size": 0.1, "minibatch": {"kind": "full"}},
            "privacy": {"kind": unit, "l2_norm_clip": 0.5, "delta": 1e-5, "noise_source": "seed",
                        "noise": {"kind": "multiplier", "noise_multiplier": 0.8},
                        "trust": {"kind": "secure-sum", "max_dropped": 1, "collusion": 2},
                        **privacy},
        }
    )  # fmt: skip
    with pytest.raises(ConfigError, match="attacks noise that one party adds, got 'secure-sum'"):
        attacks_of(config, 10)
    return list(find_all(sums_of(config, 1000)))


@pytest.mark.parametrize(
    "relation", ["add-or-remove", pytest.param("replace-one", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("unit", ["example-level", "client-level"])
def test_the_audit_of_a_config_attacks_the_sums_that_are_opened(unit, relation):
    found = audited(unit, neighboring_relation=relation)
    assert [one.attack.rsplit("seen by ")[-1] for one in found] == [
        "the server", "one other node", "2 nodes that collude",
    ]  # fmt: skip
    for one in found:
        assert not one.is_violated
        assert one.power > 0.25


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["example-level", "client-level"])
def test_the_audit_of_a_config_sees_noise_that_falls_short(unit, monkeypatch):
    draw = discrete.draw
    monkeypatch.setattr(discrete, "draw", lambda v, *more: draw(v // 16, *more))
    assert all(one.is_violated for one in audited(unit))


def test_a_target_holds_against_the_coalition_and_nobody_else_can_be_named():
    noise = {"kind": "target", "epsilon": 1.0, "delta": 1e-5, "adversary": "external"}
    with pytest.raises(ConfigError, match=r"privacy.noise.adversary: expected none .* 'external'"):
        audited("example-level", noise=noise)
