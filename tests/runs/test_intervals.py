"""Statistics with intervals: the noise that a release has, what intervals hold, and refusals."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy import stats

from manifed.errors import ConfigError
from manifed.intervals import (
    STATISTICS,
    ReleasedMoments,
    estimates,
    of_run,
    plan_of,
    reach_of,
    release,
    ridge,
)
from manifed.manifolds.linalg import packed, unpacked
from manifed.plan import mean_noise
from manifed.problems import Persons, moments
from manifed.problems.examples import Examples
from tests.command import invoke

SECURE = {"trust": {"kind": "secure-sum"}}


def rows(seed=0, count=400, d=3):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, d)) @ rng.standard_normal((d, d)) / 2 + rng.random(d)


def with_squares(rows, share):
    """(v, a v v^T) of every row, the off-diagonal entries times sqrt(2)."""
    upper = np.triu_indices(rows.shape[1])
    weights = np.where(upper[0] == upper[1], 1.0, 2**0.5)
    return np.hstack([rows, share * weights * rows[:, upper[0]] * rows[:, upper[1]]])


def exact(z, row_norm):
    """The statistic's mean, written once more in numpy."""
    v = z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), row_norm)
    return with_squares(with_squares(v, 1.0), moments.SPREAD_SHARE).mean(0)


def known(z, noise=0.0, row_norm=4.0):
    """Moments of rows without noise, as if they had that deviation."""
    return ReleasedMoments(torch.from_numpy(exact(z, row_norm)), len(z), noise, row_norm, {})


# -- the release ----------------------------------------------------------------------------------
def test_no_row_is_longer_than_the_clip_and_a_row_at_the_bound_has_its_length():
    z = torch.from_numpy(np.concatenate([rows(), 1e9 * rows(1), np.full((1, 3), 1e-300)]))
    lengths = moments.Moments(row_norm=0.5).statistics(Examples({"z": z}, {"z": 1})).norm(dim=-1)
    assert float(lengths.max()) <= moments.LARGEST * (1 + 1e-14)
    assert float(lengths[400:800].min()) >= moments.LARGEST * (1 - 1e-14)


@pytest.mark.parametrize("privacy", [{}, SECURE], ids=["local", "secure-sum"])
def test_a_release_is_off_by_the_noise_that_it_states(privacy):
    """The squared error over the squared deviation is chi-squared; two-sided 1e-6."""
    sites = [rows(seed, count, 5) for seed, count in enumerate((100, 200, 400))]
    found = release(sites, row_norm=2.0, epsilon=1.0, delta=1e-5, **privacy)
    off = (found.values.numpy() - exact(np.concatenate(sites), 2.0)) / found.noise
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], off.size)
    assert low <= np.square(off).sum() <= high
    assert found.count == 700
    assert found.statement["adversaries"][0]["epsilon"] <= 1.0


def test_matrices_are_released_by_their_logarithms():
    rng = np.random.default_rng(0)
    logs = rng.standard_normal((3, 200, 2, 2)) / 4
    logs = (logs + np.swapaxes(logs, -1, -2)) / 2
    sites = torch.linalg.matrix_exp(torch.from_numpy(logs))
    found = release(list(sites), row_norm=3.0, epsilon=1e4, delta=1e-5)
    mean = found.interval("log-euclidean-mean")
    expected = torch.linalg.matrix_exp(torch.from_numpy(logs.mean((0, 1))))
    assert torch.allclose(mean.estimate, expected, atol=2e-3)
    assert bool((mean.sampling_error > 0).all())


# -- the statistics --------------------------------------------------------------------------------
def test_statistics_without_noise_are_those_of_numpy():
    z = rows(count=200_000)
    found = known(z, row_norm=50.0)
    said = {name: found.interval(name).estimate.numpy() for name in [*STATISTICS][:5]}
    assert said["mean"] == pytest.approx(z.mean(0), abs=1e-12)
    assert said["covariance"] == pytest.approx(np.cov(z.T), abs=1e-8)
    assert said["standardisation"][1] == pytest.approx(z.std(0), abs=1e-5)
    values, vectors = np.linalg.eigh(np.cov(z.T))
    assert said["first-component"][0, 0] == pytest.approx(values[-1], rel=1e-4)
    assert abs(said["first-component"][0, 1:] @ vectors[:, -1]) == pytest.approx(1.0, abs=1e-5)
    design = np.column_stack([z[:, :2], np.ones(len(z))])
    w = np.linalg.lstsq(design, z[:, 2], rcond=None)[0]
    assert said["regression-of-last"] == pytest.approx(w, abs=1e-5)


def test_sampling_errors_are_those_of_the_textbook():
    """Of a mean s / sqrt(n), of a variance sqrt((m_4 - s^4) / n), of a regression the sandwich."""
    z = rows(count=5_000)
    found = known(z, row_norm=50.0)
    centred = z - z.mean(0)
    s2 = centred.var(0)
    assert found.interval("mean").sampling_error.numpy() == pytest.approx(
        z.std(0, ddof=1) / 5_000**0.5, rel=1e-9
    )
    fourth = (centred**4).mean(0)
    variance = found.interval("covariance").sampling_error.diagonal().numpy()
    assert variance == pytest.approx(((fourth - s2**2) / 5_000) ** 0.5, rel=1e-3)
    design = np.column_stack([z[:, :2], np.ones(len(z))])
    w = np.linalg.lstsq(design, z[:, 2], rcond=None)[0]
    residual = z[:, 2] - design @ w
    bread = np.linalg.inv(design.T @ design)
    sandwich = bread @ (design.T * residual**2) @ design @ bread
    errors = found.interval("regression-of-last").sampling_error.numpy()
    assert errors == pytest.approx(np.sqrt(np.diag(sandwich)), rel=1e-2)


def test_what_noise_adds_on_average_is_taken_off_a_statistic_and_its_slope():
    """Of t^3, whose mean over t + u with u of variance S is t^3 + 3 t S, and of 3 t^2: + 3 S."""
    noise = 0.05
    t, square = 0.4, 0.3
    v = torch.tensor([t, square], dtype=torch.float64)
    spread = 0.01 * torch.eye(2, dtype=torch.float64)  # V / n of the mean and of its square
    second = 1001 * spread + v.outer(v) - noise**2 * torch.eye(2, dtype=torch.float64)
    values = torch.cat([v, moments.SPREAD_SHARE * packed(second)])
    found = estimates(values, 1002, noise, 1.0, lambda mean, _: mean**3)
    s = 0.01 + noise**2
    slope = 3 * t**2 - 3 * s / 2  # half of what noise adds
    bent = 0.5 * (6 * t) ** 2  # terms of second order
    by_noise = noise**2 * slope**2 + bent * noise**4
    by_sample = 0.01 * slope**2 + bent * (s**2 - noise**4)
    expected = (t**3 - 3 * t * s, by_noise, by_sample)
    assert [float(one) for one in found[:3]] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", ["mean", "covariance", "regression-of-last"])
def test_noise_errors_are_those_of_redrawn_noise(name):
    z = rows(count=10_000)
    noise = 1e-4
    found = known(z, noise)
    generator = torch.Generator().manual_seed(0)
    drawn = noise * torch.randn(1_000, len(found.values), generator=generator, dtype=torch.float64)
    seen = estimates(found.values + drawn, 10**12, noise, 4.0, STATISTICS[name])[0]
    stated = found.interval(name).noise_error
    # a deviation of 1000 normals is within 11.5 % of the true one but for 1e-6
    assert torch.allclose(seen.std(0), stated, rtol=0.12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mean", "covariance", "standardisation", "ridge"])
def test_intervals_hold_the_value_of_the_population(name):
    """Of 4 000 samples with their noise 95 %, within one percent and five standard errors."""
    population = torch.from_numpy(rows(count=300))
    problem = moments.Moments(row_norm=4.0)
    values = problem.statistics(Examples({"z": population}, {"z": 1}))
    noise = mean_noise(
        plan_of((1000,) * 3, 3, 4.0, {"epsilon": 1.0, "delta": 1e-5}).setting, (1000,) * 3
    )
    statistic = {**STATISTICS, "ridge": partial(ridge, alpha=0.1)}[name]
    counts = np.random.default_rng(0).multinomial(3000, np.full(300, 1 / 300), 4_000)
    drawn = torch.randn(
        4_000, values.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    released = torch.from_numpy(counts / 3000) @ values + noise * drawn
    estimate, *errors = estimates(released, 3000, noise, 4.0, statistic)
    truth = estimates(values.mean(0), 10**15, 0.0, 4.0, statistic)[0]
    held = ((estimate - truth).abs() <= reach_of(*errors, level=0.95)).double().mean(0)
    assert float((held - 0.95).abs().max()) <= 0.01 + 5 * (0.95 * 0.05 / 4_000) ** 0.5


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
@pytest.mark.parametrize("by_noise", [0.0, 0.3, 1.0, 2.0, 5.0, 20.0])
def test_an_interval_holds_a_normal_value_however_uncertain_its_error_is(by_noise, level):
    """The exact coverage, by quadrature over the noise of the squared error, of deviation 1."""
    z = torch.linspace(-7, 7, 5001, dtype=torch.float64)
    weights = torch.from_numpy(stats.norm.pdf(z)) / stats.norm.pdf(z).sum()
    for by_sample in (0.01, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 100.0):
        floor = torch.full_like(z, by_noise)
        reach = reach_of(floor, by_sample + z, torch.ones_like(z), level=level)
        inside = torch.erf(reach / (2 * (by_noise + by_sample)) ** 0.5) @ weights
        assert inside >= level - (0.0032 if by_noise == 0.0 and by_sample < 1.0 else 0.0005)
        if by_sample >= 1.0 <= by_noise or by_sample >= 3.0:
            assert inside <= level + 0.01
        if by_sample == 100.0:
            assert inside <= level + 0.0005


def test_rows_name_numbers_by_columns():
    found = known(rows()).interval("covariance")
    made = found.rows(["a", "b", "c"])
    assert [row["statistic"] for row in made[:2]] == ["a, a", "a, b"]
    assert made[1]["estimate"] == float(found.estimate[0, 1])
    assert known(rows()).interval("mean").rows()[2]["statistic"] == "3"


def test_a_secure_sum_of_too_few_sites_is_refused():
    """Of two sites each knows the other's number from the sum."""
    with pytest.raises(ConfigError, match=r"^privacy.trust: .*at least 2 nodes .* got 2 nodes"):
        release([rows()] * 2, row_norm=4.0, epsilon=1.0, delta=1e-5, **SECURE)


# -- a run, and what is refused --------------------------------------------------------------------
CONFIG = """
name = "survey"
[problem]
kind = "moments"
row_norm = 2.0
[data]
kind = "file"
paths = ["a.csv", "b.csv", "c.csv"]
examples = "rows"
columns = ["x", "y", "z"]
[federation]
num_clients = 3
num_rounds = 1
num_examples = [400, 400, 400]
[training]
kind = "rsgd"
step_size = 1.0
minibatch = { kind = "full" }
[privacy]
kind = "example-level"
epsilon = 1.0
delta = 1e-5
l2_norm_clip = 1.7320508075688774
noise_source = "seed"
[evaluation]
is_enabled = false
"""


@pytest.fixture
def survey(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate("abc"):
        np.savetxt(tmp_path / f"{name}.csv", rows(seed), delimiter=",", header="x,y,z", comments="")
    (tmp_path / "survey.toml").write_text(CONFIG)
    return tmp_path


def run_of(folder, *sets):
    out = folder / "out"
    said = [part for one in sets for part in ("--set", one)]
    done = invoke("run", "survey.toml", "--out", out, "--plain", *said)
    assert done.exit_code == 0, done.stderr
    return out


def test_the_command_prints_what_the_run_released(survey):
    out = run_of(survey)
    done = invoke("intervals", out, "--statistic", "covariance", "--json")
    assert done.exit_code == 0, done.stderr
    printed = json.loads(done.stdout)
    found = of_run(out)
    assert printed["rows"] == found.interval("covariance").rows("xyz")
    assert printed["label"] == "seeded run (no guarantee)"
    z = np.concatenate([rows(seed) for seed in range(3)])
    off = (found.values.numpy() - exact(z, 2.0)) / found.noise
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], off.size)
    assert low <= np.square(off).sum() <= high


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("training.step_size=0.5", "training: expected"),
        ("federation.num_rounds=2", "federation.num_rounds: expected 1"),
        ("privacy.l2_norm_clip=1.0", "privacy.l2_norm_clip: expected at least 1.73"),
        ("problem.start={kind='random'}", "problem.start: expected 'origin'"),
    ],
)
def test_a_run_that_is_no_plain_release_is_refused(survey, change, key):
    done = invoke("intervals", run_of(survey, change))
    assert done.exit_code == 2
    assert key in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_damaged_run_is_refused_in_one_line(survey):
    out = run_of(survey)
    manifest = json.loads((out / "manifest.json").read_text())
    save_file({"x": torch.ones(7, dtype=torch.float64)}, out / "model.safetensors")
    for change, expected in (
        ({}, "model.safetensors: expected moments, got a tensor of shape (7,)"),
        ({"num_examples": None}, "Expected replies of all 0 clients"),
        ({"config": {}}, "manifest.json: expected the manifest of a run"),
    ):
        (out / "manifest.json").write_text(json.dumps({**manifest, **change}))
        done = invoke("intervals", out)
        assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert expected in done.stderr


def test_bad_arguments_are_refused():
    found = known(rows())
    with pytest.raises(ConfigError, match="statistic: expected one of mean, covariance"):
        found.interval("median")
    with pytest.raises(ConfigError, match="level: expected a number between 0 and 1, got 95"):
        found.interval("mean", level=95)
    with pytest.raises(ConfigError, match="sites: expected rows"):
        release([], row_norm=1.0, epsilon=1.0, delta=1e-5)
    matrices = np.stack([np.eye(2), -np.eye(2)])
    with pytest.raises(ConfigError, match="sites: record 1: expected"):
        release([matrices], row_norm=1.0, epsilon=1.0, delta=1e-5)


def test_a_statistic_of_ones_own_has_an_interval():
    z = rows()
    slope = known(z).interval(partial(ridge, target=0, alpha=0.1))
    ratio = known(z).interval(lambda mean, second: second[0, 1] / second[0, 0])
    assert slope.estimate.shape == (3,)
    assert ratio.low < ratio.estimate < ratio.high
    assert unpacked(packed(slope.estimate.outer(slope.estimate))).shape == (3, 3)


# -- persons --------------------------------------------------------------------------------------
def of_persons(seed=0, count=200):
    """Rows (n, 3) of persons with one to four rows, and whose each is."""
    rng = np.random.default_rng(seed)
    whose = rng.permutation(np.arange(count).repeat(rng.integers(1, 5, count)))
    return rows(seed, count)[whose] + 0.2 * rng.standard_normal((len(whose), 3)), whose


def exact_of_persons(z, whose, most, row_norm=4.0):
    """The mean over persons of (t, a t t^T), t the mean over those of her rows that count."""
    each = []
    for name in np.unique(whose):
        own = z[whose == name]
        kept = min(len(own), most)
        v = own[[k * len(own) // kept for k in range(kept)]]
        v = v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), row_norm)
        each.append(with_squares(v, 1.0).mean(0, keepdims=True))
    return with_squares(np.vstack(each), moments.SPREAD_SHARE).mean(0)


def test_a_person_counts_with_the_mean_over_her_rows():
    sites = [of_persons(seed) for seed in range(3)]
    names = [[f"{i}-{name}" for name in whose] for i, (_, whose) in enumerate(sites)]
    z = [one for one, _ in sites]
    given = {"row_norm": 4.0, "epsilon": 1e5, "delta": 1e-5}
    found = release(z, persons=names, rows_per_person=3, **given)
    assert found.count == 600
    assert found.statement["unit"] == "person"
    expected = np.mean([exact_of_persons(*one, 3) for one in sites], 0)
    assert found.values.numpy() == pytest.approx(expected, abs=20 * found.noise)
    assert found.noise < 2e-5
    by_rows = release(z, **given).interval("mean")
    by_persons = found.interval("mean")
    # a quarter as many persons as rows or so, whose rows are nearly alike
    assert bool((by_persons.sampling_error > 1.2 * by_rows.sampling_error).all())


def test_all_rows_of_a_person_move_a_release_by_one_statistic():
    z, whose = of_persons()
    z = 1e9 * z
    problem = Persons(moments.Moments(row_norm=0.1), 3)
    columns = {"z": torch.from_numpy(z), "person": torch.from_numpy(whose)}
    held = problem.widened(Examples(columns))
    found = problem.gradients(torch.zeros(54).double(), held)
    assert float(found.norms.max()) <= moments.LARGEST * (1 + 1e-14)
    weights = torch.full((200,), 1 / 200, dtype=torch.float64)
    expected = exact_of_persons(z, whose, 3, 0.1)
    assert found.sum(weights).numpy() == pytest.approx(-expected, abs=1e-12)
    optimum = problem.optimum([held])
    assert optimum.x.numpy() == pytest.approx(expected, abs=1e-12)
    assert optimum.gradient_norm < 1e-12


def test_a_run_of_persons_is_read_with_their_number(survey):
    for seed, name in enumerate("abc"):
        z, whose = of_persons(seed)
        lines = [f"{name}{who},{x},{y},{w}" for who, (x, y, w) in zip(whose, z, strict=True)]
        (survey / f"{name}.csv").write_text("\n".join(["who,x,y,z", *lines]))
    config = CONFIG.replace('"z"]', '"z"]\nperson = "who"\nrows_per_person = 2')
    config = config.replace("[400, 400, 400]", "[200, 200, 200]")
    (survey / "survey.toml").write_text(
        config.replace("epsilon = 1.0", 'epsilon = 1e5\nunit = "person"')
    )
    found = of_run(run_of(survey))
    expected = np.mean([exact_of_persons(*of_persons(seed), 2, 2.0) for seed in range(3)], 0)
    assert found.count == 600
    assert found.values.numpy() == pytest.approx(expected, abs=20 * found.noise)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"persons": [["a", "b"]] * 2}, "persons: expected those of each of 2 sites with"),
        ({"rows_per_person": 2}, "persons: expected those of each of 2 sites with"),
        ({"persons": [["a", "b"]], "rows_per_person": 2}, "got those of 1 sites and"),
        ({"persons": [["a"], ["b"]], "rows_per_person": 2}, "one number of examples"),
        ({"persons": [["a", "b"]] * 2, "rows_per_person": 2}, "sites_per_person: expected at leas"),
        (
            {"persons": [["a", "b"]] * 2, "rows_per_person": 2, "sites_per_person": 2},
            "sites_per_person: expected 1 for statistics with intervals",
        ),
    ],
)
def test_persons_whom_no_release_can_count_are_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        release([np.ones((2, 3))] * 2, row_norm=4.0, epsilon=1.0, delta=0.1, **given)
