"""Under privacy a record moves its own gradient alone: what looks across records is refused."""

import numpy as np
import pytest
import torch

from manifed.errors import ConfigError
from manifed.experiment import assembly
from manifed.experiment.load import load
from manifed.problems import shards
from manifed.problems.examples import Examples
from tests.fresh import QUICKSTART
from tests.problems.test_starts import experiment, forget, problems

MAMMALS = (
    "data={kind='reproduction.mammals:WordnetMammals'} "
    "problem={kind='frechet-mean',manifold='lorentz'}"
)
WEIGHTS = "data={kind='reproduction.mammals:HyperbolicTree'} problem={kind='hyperbolic-prediction'}"
PHOTOS = (
    "data={kind='reproduction.photos:SamplePhotos',is_standardised=true} "
    "problem={kind='frechet-mean'}"
)
CLIENT_LEVEL = (
    " privacy={kind='client-level',l2_norm_clip=1.0,noise={kind='multiplier',noise_multiplier=1.0}}"
)


def read(overrides):
    """The quickstart with overrides, separated by spaces."""
    return load(QUICKSTART, overrides.split())


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        ("data.is_centred=true", "data.is_centred"),
        ("data.is_centred=true" + CLIENT_LEVEL, "data.is_centred"),
        (PHOTOS, "data.is_standardised"),
        (PHOTOS + CLIENT_LEVEL, "data.is_standardised"),
        (MAMMALS, "data.is_graph_public"),
        (WEIGHTS, "problem.are_features_public"),
    ],
)
def test_privacy_refuses_what_looks_across_records_when_the_config_is_read(overrides, field):
    with pytest.raises(ConfigError, match=f"^{field}: ") as caught:
        read(overrides)
    assert "\n" not in str(caught.value)
    read(overrides.split(" privacy=")[0] + " privacy={kind='none'}")


def test_what_is_declared_public_may_look_across_records():
    read(MAMMALS.replace("'}", "',is_graph_public=true}", 1))
    read(WEIGHTS[:-1] + ",are_features_public=true}")
    read(WEIGHTS + CLIENT_LEVEL)


@pytest.mark.parametrize("spec", problems())
def test_preparing_a_shard_treats_each_record_by_itself_or_says_that_it_does_not(spec):
    data = experiment(spec).data
    one, two = (shards.dataset(data, seed) for seed in (1, 2))
    shard = one.examples.take(torch.arange(8))
    mixed = Examples(
        {key: torch.cat([two.examples[key][:1], rows[1:]]) for key, rows in shard.tensors.items()},
        shard.feature_ndim,
    )
    before = spec.prepare(shard, one.meta)
    after = spec.prepare(mixed, one.meta)
    is_alone = all(torch.equal(before[key][1:], after[key][1:]) for key in before.tensors)
    assert is_alone == (spec.mixes_records() is None)


def moved(overrides, monkeypatch, record=700):
    """How many per-example gradients of each client move when one record is replaced."""
    read_table = np.loadtxt

    def changed(*given, **how):
        table = read_table(*given, **how)
        table[record, :-1] = 1e3 * table[record, -2::-1]
        return table

    def gradients():
        forget()
        config = read(overrides + " privacy={kind='none'}")
        found = assembly.load_shards(config)
        x = assembly.initial_point(config)
        return [found.problem.rgrads(x, shard) for shard in found.examples]

    before = gradients()
    with monkeypatch.context() as patch:
        patch.setattr(np, "loadtxt", changed)
        after = gradients()
    forget()
    pairs = zip(before, after, strict=True)
    return [int((one != two).any(-1).sum()) for one, two in pairs]


def test_a_record_moves_only_its_own_gradient(monkeypatch):
    counts = moved("data.is_unit_norm=false", monkeypatch)
    assert sorted(counts) == [0] * (len(counts) - 1) + [1]


def test_the_mean_of_all_rows_moves_every_client(monkeypatch):
    assert min(moved("data.is_centred=true data.is_unit_norm=false", monkeypatch)) > 100
