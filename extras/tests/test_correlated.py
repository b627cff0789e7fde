"""Noise that is correlated over rounds: its law, its price, and what a lost history does."""

import math
from dataclasses import replace

import pytest
import torch

import manifed
from extras.tests.fits import CLIENT_LEVEL, DELTA, epsilon_of, fit
from extras.tests.test_correlation import matrix
from manifed.algorithms.payloads import Point
from manifed.errors import ConfigError
from manifed.experiment.load import load
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.manifolds.euclidean import Euclidean
from manifed.manifolds.hyperbolic import Lorentz
from manifed.manifolds.sphere import Sphere
from manifed.oracles.noisy_oracle import Draws
from manifed.plan import planned_statement
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.random_numbers import NoiseSource, Stream
from manifed.problems.examples import Examples
from manifed.problems.frechet import FrechetMean
from manifed.runs.statement import SENTENCES, statement_of, verdict
from manifed_extras.correlated import CorrelatedRSGD, History
from manifed_extras.correlation import Banded, BandedInverse
from tests.fresh import QUICKSTART
from tests.statistics.laws import assert_chi_square
from tests.tensors import assert_near, normals

STEP = 0.25
NOISE = 2.0
CLIP = 0.5
KINDS = [BandedInverse(bands=3), Banded(bands=4)]
IDS = [kind.kind for kind in KINDS]
SOURCE = NoiseSource.from_seed(3)


def setup_of(correlation, manifold):
    mechanism = ExampleMechanism(l2_norm_clip=CLIP, noise=Noise(multiplier=NOISE))
    update = CorrelatedRSGD(step_size=STEP, correlation=correlation)
    return ClientSetup(FrechetMean(manifold), update, mechanism)


def answers(setup, points, examples, size, partition=0, source=SOURCE):
    """The gradients that were sent in rounds 1, 2, ..., at these points, and the last memory."""
    memory = setup.training.initial_memory(points[0])
    found = []
    for server_round, x in enumerate(points, 1):
        seat = Seat(partition, server_round, 0, "train")
        done = run_update(setup, seat, Point(x), memory, examples, size, source)
        memory = done.memory
        found.append(-done.up.tensors()["u"] / STEP)
    return torch.stack(found), memory


def lower(correlation, n):
    return torch.from_numpy(matrix(correlation.strategy(n)))


def at(x, count=6):
    """Examples at the point itself, whose gradients are zero."""
    return Examples({"z": x.expand(count, *x.shape).clone()}, {"z": x.dim()})


# -- the law -------------------------------------------------------------------------------------
def whitened(correlation, by, clients=150, dim=60, rounds=8):
    """|C zhat|^2 over all rounds, of uploads that are nothing but noise on flat space."""
    x = torch.zeros(clients, dim, dtype=torch.float64)
    shards = Examples.stack([at(torch.zeros(dim, dtype=torch.float64)) for _ in range(clients)])
    setup = setup_of(correlation, Euclidean(1))
    sent, _ = answers(setup, [x] * rounds, shards, [6] * clients, tuple(range(clients)))
    z = torch.einsum("ts,scd->tcd", by, sent / (NOISE * CLIP / 6))
    return float(z.square().sum()), z.numel()


@pytest.mark.statistical
@pytest.mark.parametrize("correlation", KINDS, ids=IDS)
def test_the_noise_of_all_rounds_has_the_stated_law(correlation):
    assert_chi_square(*whitened(correlation, lower(correlation, 8)))
    with pytest.raises(AssertionError):
        assert_chi_square(*whitened(correlation, torch.eye(8).double()))  # not independent


@pytest.mark.parametrize("manifold", [Euclidean(1), Sphere(), Lorentz()], ids=lambda m: m.name)
@pytest.mark.parametrize("correlation", KINDS, ids=IDS)
def test_the_noise_is_what_the_keyed_stream_says_in_the_frame_of_each_point(correlation, manifold):
    """The frames change with the points; the coordinates follow C zhat = z."""
    origin = manifold.origin(5).to(torch.float64)
    moves = 0.5 * normals(5, 6, 5)
    points = [manifold.expmap(origin, manifold.proju(origin, u)) for u in moves]
    setup = setup_of(correlation, manifold)
    one = {"z": at(origin).tensors["z"][:1]}
    noised, _ = answers(setup, points, Examples(one, {"z": 1}), 1)
    quiet = replace(setup, mechanism=setup.mechanism.scaled(0.0))
    clean, _ = answers(quiet, points, Examples(one, {"z": 1}), 1)
    coords = manifold.coords_shape((5,))
    z = torch.stack(
        [Draws(SOURCE, 0, r, 0, 0).normals(coords, Stream.GRADIENT_NOISE, 0) for r in range(1, 7)]
    )
    added = torch.linalg.solve_triangular(lower(correlation, 6), z, upper=False)
    for x, one_noised, one_clean, drawn in zip(points, noised, clean, added, strict=True):
        expected = NOISE * CLIP * manifold.from_coords(x, drawn)
        assert_near(one_noised - one_clean, expected, 1e-9)


# -- the price -----------------------------------------------------------------------------------
def charged_mu(correlation, rounds):
    """1 / noise multiplier of each round's release, composed."""
    setup = setup_of(correlation, Euclidean(1))
    found = [setup.releases(r, 6) for r in range(1, rounds + 1)]
    return math.sqrt(sum(release.noise_multiplier**-2 for (release,) in found))


def seen_mu(correlation, rounds):
    """How far neighbours lie apart, whitened: one of them has a record more, far along an axis."""
    x = torch.zeros(4, dtype=torch.float64)
    far = at(x).tensors["z"].clone()
    far[0, 0] = 1e3
    setup = setup_of(correlation, Euclidean(1))
    pair = [
        answers(setup, [x] * rounds, Examples({"z": z}, {"z": 1}), 6)[0]
        for z in (at(x).tensors["z"], far)
    ]
    moved = lower(correlation, rounds) @ (pair[1] - pair[0])
    return float(moved.norm()) / (NOISE * CLIP / 6)


@pytest.mark.parametrize("correlation", KINDS, ids=IDS)
def test_the_rounds_together_are_charged_what_the_worst_record_shows(correlation):
    for rounds in (1, 2, 7):
        assert charged_mu(correlation, rounds) == pytest.approx(
            seen_mu(correlation, rounds), rel=1e-9
        )


def run(correlation, noise=NOISE, **changes):
    update = CorrelatedRSGD(step_size=0.1, correlation=correlation)
    return fit(update, noise, **{"rounds": 5, **changes})


def test_the_ledger_composes_the_rounds_and_a_target_is_met():
    found = run(KINDS[0]).curves["epsilon"]
    mus = [charged_mu(KINDS[0], rounds) for rounds in range(1, 6)]
    assert found == pytest.approx([epsilon_of(mu) for mu in mus], rel=1e-9)
    met = run(KINDS[1], manifed.Target(epsilon=1.5, delta=DELTA)).curves["epsilon"][-1]
    assert 0.998 * 1.5 <= met <= 1.5


# -- histories -----------------------------------------------------------------------------------
def test_a_lost_history_begins_a_new_chain_and_a_long_one_is_not_used():
    setup = setup_of(KINDS[1], Euclidean(1))
    x = torch.zeros(4, dtype=torch.float64)
    _, memory = answers(setup, [x] * 5, at(x), 6)
    assert isinstance(memory, History)
    assert float(memory.length) == 5
    seat = Seat(0, 6, 0, "train")

    def sent(memory, server_round=6):
        here = seat._replace(server_round=server_round)
        done = run_update(setup, here, Point(x), memory, at(x), 6, SOURCE)
        return done.up.tensors()["u"], done.memory.length

    blank = setup.training.initial_memory(x)
    lost, length = sent(blank)
    assert float(length) == 1
    kept, length = sent(memory)
    assert float(length) == 6
    assert float((kept - lost).norm()) > 1e-3
    again, length = sent(memory, server_round=5)  # a server that asks for a round once more
    assert float(length) == 1
    assert_near(again, sent(blank, server_round=5)[0])


BASE = [
    "training.kind='manifed_extras.correlated:CorrelatedRSGD'",
    "training.correlation={kind='banded-inverse',bands=3}",
]


@pytest.mark.parametrize(
    ("sets", "match"),
    [
        ("federation.cohort={kind='poisson',sampling_probability=0.5}", "take part in all"),
        ("training.minibatch={kind='poisson',batch_size=8.0}", "is priced for minibatch 'full'"),
        ("training.local_steps=2", "local_steps 1"),
        (CLIENT_LEVEL, "correlates the noise of clients"),
    ],
)
def test_what_nothing_prices_is_refused(sets, match):
    with pytest.raises(ConfigError, match=match):
        load(QUICKSTART, [*BASE, sets])


def test_the_statement_says_that_clients_keep_noise():
    told = run(KINDS[0], privacy=None)  # nothing is kept where nothing is added
    assert "kept_noise" not in told.statement
    planned = planned_statement(load(QUICKSTART, BASE).setting, (180,) * 10)
    assert "kept at every client: the noise of its last 2 rounds" in statement_of(planned)
    release = planned | {"noise_source": "os", "noise_origins": ["os"]}
    assert verdict(release) == SENTENCES["kept"]
    assert verdict(release | {"kept_noise": None}) == SENTENCES["release"]
