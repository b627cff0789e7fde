"""Events are read by their kind, refuse what cannot be, and multiply."""

import math

import pytest
from pydantic import TypeAdapter, ValidationError

from manifed.privacy.events import Release, SampledWithoutReplacement, repeated
from tests.privacy.releases import laplace, poisson

STEP = poisson(1.5, 0.1, 4)


def test_an_event_is_read_by_its_kind_repeated_by_its_count_and_no_laplace_noise_is_sampled():
    event = TypeAdapter(Release)
    once = laplace(3.0, 2, "replace-one")
    for one in (STEP, once):
        assert event.validate_json(event.dump_json(one)) == one
    twelve = STEP.model_copy(update={"count": 12})
    assert repeated([STEP, once], 3) == (twelve, laplace(3.0, 6, "replace-one"))
    for change in ({"kind": "cauchy"}, {"sampling": STEP.sampling.model_dump()}):
        with pytest.raises(ValidationError):
            event.validate_python({**once.model_dump(), **change})


@pytest.mark.parametrize(
    "change",
    [
        {"noise_multiplier": -1.0},
        {"noise_multiplier": math.nan},
        {"noise_multiplier": math.inf},
        {"count": -1},
        {"unit": "record"},
        {"neighboring_relation": "swap"},
        {"extra": 1},
        {"sampling": {"kind": "poisson", "sampling_probability": 0.0}},
        {"sampling": {"kind": "poisson", "sampling_probability": 1.5}},
        {"sampling": {"kind": "without-replacement", "sample_size": 0, "population": 4}},
    ],
)
def test_what_cannot_be_is_refused(change):
    with pytest.raises(ValidationError):
        Release.model_validate({**STEP.model_dump(), **change})


def test_a_sample_larger_than_its_population_is_refused_with_both_numbers():
    with pytest.raises(ValueError, match="sample_size <= population = 4, got 5"):
        SampledWithoutReplacement(sample_size=5, population=4)
