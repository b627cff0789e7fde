"""What the experiments of Utpala et al. (2023) add: spiked rows, eleven features, more means."""

import numpy as np
import pytest
import torch

from manifed.problems.covariance_descriptors import SECOND, SOBEL, descriptors, eleven_features
from manifed.problems.hyperbolic_data import HyperbolicTree
from manifed.problems.problem_specs import FrechetMeanSpec
from manifed.problems.real_data import Digits, SamplePhotos
from manifed.problems.synthetic import spiked_rows
from manifed.problems.synthetic_data import LogNormalSPD, SpikedRows


def test_spiked_rows_have_one_leading_direction_and_the_stated_size():
    z = spiked_rows(4000, 60, np.random.default_rng(0), squared_norm=100.0)
    values = np.linalg.eigvalsh(z.T @ z / len(z))[::-1]
    assert np.square(z).sum(1).mean() == pytest.approx(100.0)
    assert values[0] / values.sum() == pytest.approx(0.545 / 1.045, abs=0.02)
    assert values[0] > 2.5 * values[1]
    assert SpikedRows(num_examples=30, dimension=8).load(None, 3).examples["z"].shape == (30, 8)


def test_eleven_features_of_a_ramp_are_known():
    """A luminance that rises by s a column has |I_x| = 2 s, and no second derivative."""
    ramp = np.repeat(np.arange(40.0)[None, :, None], 30, 0).repeat(3, 2)
    inner = eleven_features(ramp)[5:-5, 5:-5]
    x, y, *colours, first, across, second, other, length, angle = np.moveaxis(inner, -1, 0)
    assert np.array_equal(np.diff(x, axis=1), np.ones((20, 29)))
    assert np.array_equal(np.diff(y, axis=0), np.ones((19, 30)))
    for plane in colours:
        np.testing.assert_allclose(plane, x / 255)
    np.testing.assert_allclose(first, 2 / 255)
    np.testing.assert_allclose(length, 2 / 255)
    np.testing.assert_allclose(angle, np.pi / 2, atol=1e-8)
    for plane in (across, second, other):
        np.testing.assert_allclose(plane, 0.0, atol=1e-14)


def test_the_filters_are_derivatives():
    offsets = np.arange(-2, 3.0)
    assert SOBEL.sum() == 0
    assert SECOND.sum() == 0
    assert (SECOND @ offsets**2).sum() == pytest.approx(4.0)  # twice the second derivative


def test_eleven_descriptors_are_positive_definite():
    image = np.random.default_rng(1).integers(0, 256, (40, 44, 3))
    z = descriptors(image, features="eleven", patch=28, stride=8)
    assert z.shape[1:] == (11, 11)
    assert (np.linalg.eigvalsh(z) > 0).all()


def test_one_photo_and_one_digit_are_subsets():
    both = SamplePhotos(stride=40).load(None, 0)
    each = [SamplePhotos(stride=40, photo=i).load(None, 0) for i in (0, 1)]
    assert torch.equal(both.examples["z"], torch.cat([part.examples["z"] for part in each]))
    zeros = Digits(digit=0).load(None, 0)
    assert len(zeros.examples) == 178
    assert set(zeros.labels.tolist()) == {0}


def losses_of(manifold, data):
    spec = FrechetMeanSpec(manifold=manifold)
    found = data.load(None, 2)
    assert spec.needs == data.provides
    examples = spec.prepare(found.examples, found.meta)
    problem = spec.build()
    return problem.losses(examples["z"][0], examples)


def test_poincare_and_lorentz_are_one_geometry():
    tree = HyperbolicTree(num_nodes=40)
    torch.testing.assert_close(
        losses_of("poincare", tree), losses_of("lorentz", tree), rtol=1e-9, atol=1e-12
    )


def test_flat_means_are_closed_form():
    data = LogNormalSPD(num_examples=20, dimension=3)
    for manifold in ("spd-log-euclidean", "spd-log-cholesky"):
        spec = FrechetMeanSpec(manifold=manifold)
        examples = data.load(None, 2).examples
        optimum = spec.build().optimum([examples])
        exact = spec.build().manifold.frechet_mean(examples["z"])
        torch.testing.assert_close(optimum.x, exact, rtol=1e-8, atol=1e-8)
        assert losses_of(manifold, data).min() == 0
