"""Releases as the tests of prices state them."""

from manifed.privacy import epsilon_bounds
from manifed.privacy.epsilon_bounds import external_epsilon
from manifed.privacy.events import PoissonSampled, Release, SampledWithoutReplacement, Unsampled


def release(z, sampling=None, count=1, relation="add-or-remove", unit="example", **more):
    return Release(
        unit=unit,
        neighboring_relation=relation,
        noise_multiplier=z,
        sampling=sampling or Unsampled(),
        count=count,
        **more,
    )


def laplace(z, count=1, relation="add-or-remove"):
    return release(z, count=count, relation=relation, kind="laplace")


def poisson(z, q, count=1, **more):
    return release(z, PoissonSampled(sampling_probability=q), count, **more)


def subset(z, size, population, count=1, relation="replace-one"):
    sampling = SampledWithoutReplacement(sample_size=size, population=population)
    return release(z, sampling, count, relation)


def outside(update, rate, rounds, delta=1e-5):
    """What an update costs that was made by a coin in so many rounds."""
    return external_epsilon(((tuple(update), rate, rounds),), delta)


def cost(*releases, delta=1e-5):
    return epsilon_bounds.epsilon(releases, delta)
