"""A release's keys come from the operating system: fresh for each party and client update."""

import pytest

from manifed.experiment.assembly import client_side, plan_of
from manifed.experiment.load import load
from manifed.privacy.random_numbers import NoiseSource
from tests.runs.running import QUICKSTART

SEED = 11
OS = ["privacy.noise_source='os'", f"federation.seed={SEED}"]
CLIENT_LEVEL = [
    "privacy={kind='client-level',l2_norm_clip=0.1,delta=0.01,noise_source='os',"
    "noise={kind='multiplier',noise_multiplier=3.0}}",
    f"federation.seed={SEED}",
]
GUESSES = {NoiseSource.from_seed(seed).key for seed in (*range(64), SEED, 2**63 - 1)}


def drawn_keys(sets):
    """The keys of three client updates and of two servers."""
    config = load(QUICKSTART, sets)
    clients = [client_side(config).source.fresh() for _ in range(3)]
    return [*clients, *(plan_of(config).source for _ in range(2))]


@pytest.mark.parametrize("sets", [OS, CLIENT_LEVEL], ids=["example-level", "client-level"])
def test_every_key_of_a_release_is_fresh_and_no_seed_makes_it(sets):
    sources = drawn_keys(sets)
    assert all(source.origin == "os" for source in sources)
    keys = {source.key for source in sources}
    assert len(keys) == len(sources)
    assert not keys & GUESSES


def test_a_seeded_run_draws_from_its_seed_and_says_so():
    sources = drawn_keys([f"federation.seed={SEED}"])
    assert {source.key for source in sources} == {NoiseSource.from_seed(SEED).key}
    assert all(source.origin == "seed" for source in sources)
