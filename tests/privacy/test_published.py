"""The published theorem, verbatim: it reproduces its table and breaks on the counter-example."""

import itertools
import math

import pytest

from manifed.privacy.published import compare, local_noise_stddev, parallel, theorem

ROUNDS = (50, 100, 200, 300, 400, 500)
TABLE_1 = {
    (100, 1): ("4.26e-2 6.04e-2 8.55e-2 1.05e-1 1.21e-1 1.36e-1",
               "1.05e-3 1.10e-3 1.20e-3 1.30e-3 1.40e-3 1.50e-3"),
    (100, 5): ("1.58 2.32 3.46 4.41 5.25 6.03",
               "2.25e-3 3.50e-3 6.00e-3 8.50e-3 1.10e-2 1.35e-2"),
    (200, 1): ("2.13e-2 3.01e-2 4.26e-2 5.23e-2 6.04e-2 6.76e-2",
               "1.03e-3 1.05e-3 1.10e-3 1.15e-3 1.20e-3 1.25e-3"),
    (500, 5): ("2.98e-1 4.25e-1 6.09e-1 7.52e-1 8.75e-1 9.85e-1",
               "1.25e-3 1.50e-3 2.00e-3 2.50e-3 3.00e-3 3.50e-3"),
    (300, 5): ("5.02e-1 7.20e-1 1.04 1.29 1.51 1.70",
               "1.42e-3 1.83e-3 2.67e-3 3.50e-3 4.33e-3 5.17e-3"),
    (300, 10): ("3.52 5.36 8.32 10.9 13.3 15.5",
                "2.67e-3 4.33e-3 7.67e-3 1.10e-2 1.43e-2 1.77e-2"),
    (400, 5): ("3.74e-1 5.35e-1 7.68e-1 9.51e-1 1.11 1.25",
               "1.31e-3 1.63e-3 2.25e-3 2.88e-3 3.50e-3 4.13e-3"),
    (400, 10): ("2.56 3.83 5.84 7.55 9.11 10.6",
                "2.25e-3 3.50e-3 6.00e-3 8.50e-3 1.10e-2 1.35e-2"),
}  # fmt: skip
PAIRS = [
    (*key, rounds, float(epsilon), float(delta))
    for key, (epsilons, deltas) in TABLE_1.items()
    for rounds, epsilon, delta in zip(ROUNDS, epsilons.split(), deltas.split(), strict=True)
]


def at(num_clients, cohort_size, num_rounds, slack_delta=1e-3):
    return {
        "num_clients": num_clients,
        "cohort_size": cohort_size,
        "num_rounds": num_rounds,
        "slack_delta": slack_delta,
    }


@pytest.mark.golden
@pytest.mark.parametrize(("clients", "cohort", "rounds", "epsilon", "delta"), PAIRS)
def test_table_1_is_reproduced(clients, cohort, rounds, epsilon, delta):
    found = theorem(0.15, 1e-4, **at(clients, cohort, rounds))
    assert found[0] == pytest.approx(epsilon, rel=5e-3)
    assert found[1] == pytest.approx(delta, rel=5e-3)


def test_table_1_has_48_pairs():
    assert len(PAIRS) == 48


@pytest.mark.golden
@pytest.mark.parametrize(
    ("clients", "cohort", "epsilon"),
    [(100, 5, 0.702), (300, 10, 0.462), (400, 10, 0.344), (500, 5, 0.136), (300, 5, 0.2275)],
)
def test_parallel_composition_gives_the_numbers_of_the_spec(clients, cohort, epsilon):
    found, _ = parallel(0.15, 1e-4, **at(clients, cohort, 500))
    assert found == pytest.approx(epsilon, rel=5e-3)


@pytest.mark.parametrize(("clients", "cohort"), list(TABLE_1))
def test_parallel_never_exceeds_sequential_and_meets_it_for_one_client(clients, cohort):
    ours, theirs = (f(0.15, 1e-4, **at(clients, cohort, 100)) for f in (parallel, theorem))
    assert ours <= theirs
    assert (ours == theirs) == (cohort == 1)


def test_the_published_bound_is_violated_by_the_counter_example_and_ours_is_not():
    """N = 2, s = 1, T = 1: the output (1, 1) is e^eps likelier when the bit is 1 (spec/000 §11)."""
    epsilon, slack = 1.0, 1e-9
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))
    true_ratio = math.log((0.5 * keep) / (0.5 * (1 - keep)))

    def true_delta(bound):
        return max(0.0, 0.5 * keep - math.exp(bound) * 0.5 * (1 - keep))

    for claim in (theorem, parallel):
        promised, delta = claim(epsilon, 0.0, **at(2, 1, 1, slack))
        assert promised == pytest.approx(math.log(1 + 0.5 * (math.e - 1)))
        assert promised < true_ratio
        assert true_delta(promised) > 1000 * delta
    sound = compare(epsilon, 0.0, 2, 1, 1, slack)["external"]
    assert true_delta(sound["epsilon"]) <= sound["delta"]


@pytest.mark.parametrize(
    ("clients", "cohort", "rounds"), itertools.product((20, 100), (1, 5), (50, 200))
)
def test_views_side_by_side_at_one_delta(clients, cohort, rounds):
    views = compare(0.15, 1e-4, clients, cohort, rounds, 1e-3)
    assert list(views) == ["published", "parallel", "external", "server"]
    assert len({view["delta"] for view in views.values()}) == 1
    assert views["parallel"]["epsilon"] <= views["published"]["epsilon"]
    assert views["external"]["epsilon"] <= views["server"]["epsilon"]


def test_the_sound_number_is_six_times_the_published_one():
    views = compare(0.15, 1e-4, 100, 1, 50, 1e-3)
    assert views["external"]["epsilon"] == pytest.approx(0.2705, rel=5e-3)
    assert 6 < views["external"]["epsilon"] / views["published"]["epsilon"] < 7


@pytest.mark.golden
@pytest.mark.parametrize(
    ("algorithm", "steps", "inner", "examples", "epsilon", "delta", "stddev"),
    [
        ("rsgd", 1, 1, 70, 0.08, 1e-5, 0.606),
        ("rsgd", 1, 1, 70, 0.3, 1e-5, 0.162),
        ("rsgd", 5, 1, 70, 0.15, 1e-5, 0.723),
        ("rsvrg", 2, 53, 100, 0.15, 1e-5, 2.33),
        ("rsgd", 3, 1, 1200, 0.15, 1e-4, 0.0292),
        ("rsvrg", 3, 166, 1200, 0.15, 1e-4, 0.376),
        ("rsvrg", 3, 5, 131, 0.15, 1e-4, 0.598),
    ],
)
def test_published_noise_is_that_of_the_spec(
    algorithm, steps, inner, examples, epsilon, delta, stddev
):
    found = local_noise_stddev(algorithm, steps, examples, 1.0, epsilon, delta, inner_steps=inner)
    assert found == pytest.approx(stddev, rel=5e-3)
    quadrupled = local_noise_stddev(
        algorithm, steps, examples, 1.0, epsilon, delta, 4.0, inner_steps=inner
    )
    assert quadrupled == pytest.approx(2 * found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"local_epsilon": 0.0}, "local_epsilon > 0"),
        ({"local_delta": 1.0}, "local_delta < 1"),
        ({"cohort_size": 0}, "cohort_size"),
        ({"cohort_size": 11}, "cohort_size <= num_clients = 10, got 11"),
        ({"num_rounds": 0}, "num_rounds"),
        ({"slack_delta": 0.0}, "slack_delta"),
    ],
)
def test_arguments_out_of_range_are_refused(change, message):
    good = {"local_epsilon": 0.1, "local_delta": 1e-5, **at(10, 2, 3)}
    for call in (theorem, parallel, compare):
        with pytest.raises(ValueError, match=message):
            call(**{**good, **change})
