"""Records that are persons: which rows count, what a person moves, what she is charged."""

import json
import math

import numpy as np
import pytest
import torch

import manifed
from manifed.algorithms import RSGD
from manifed.algorithms.decor import Decor
from manifed.algorithms.one_shot import SecondMoment
from manifed.errors import ConfigError
from manifed.experiment.assembly import load_shards, own_examples, plan_of
from manifed.experiment.load import load
from manifed.experiment.schema import canonical, sha256
from manifed.graphs import Ring
from manifed.oracles.minibatch import Ask, Full, Poisson, Query
from manifed.oracles.noisy_oracle import Draws, Oracle
from manifed.privacy import epsilon_bounds
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems import KPCA, LeastSquares, Logistic, Persons
from manifed.problems.examples import PERSON, SHARE, Examples, codes, grouped, rows_of
from manifed.problems.own_files import FileData
from manifed.setting import CorrelatedNoise
from tests.command import invoke
from tests.tensors import generator, normals

MOST = 3


def table(counts, seed=0, first=0):
    """Rows (n, 2) of persons with so many each, in an order that mixes them."""
    person = torch.arange(first, first + len(counts)).repeat_interleave(torch.tensor(counts))
    order = torch.randperm(len(person), generator=generator(seed))
    return normals(seed, len(person), 2)[order], person[order]


def by_person(rows, person):
    found = grouped(Examples({"z": rows}), person, MOST)
    return {
        int(name): (found["z"][i], found[SHARE][i]) for i, name in enumerate(found[PERSON].tolist())
    }


# -- which rows count ----------------------------------------------------------------------------
def test_at_most_so_many_rows_of_a_person_count_evenly_and_alike():
    rows, person = table([1, 2, 3, 4, 9])
    for name, (held, share) in by_person(rows, person).items():
        own = rows[person == name]
        kept = min(len(own), MOST)
        places = [k * len(own) // kept for k in range(kept)]
        assert torch.equal(held[:kept], own[places])
        assert share.tolist() == [1 / kept] * kept + [0.0] * (MOST - kept)


def test_a_person_is_the_same_record_whoever_else_is_there():
    rows, person = table([1, 5, 2])
    alone = by_person(rows, person)
    others, names = table([7, 1, 4, 2], seed=1, first=3)
    order = torch.randperm(len(rows) + len(others), generator=generator(2))
    kept = torch.cat([rows, others])[order], torch.cat([person, names])[order]
    mixed = by_person(*kept)
    for name in alone:
        own = kept[0][kept[1] == name]  # her rows in the order of this table
        again = by_person(own, torch.full((len(own),), name))[name]
        assert all(torch.equal(u, v) for u, v in zip(mixed[name], again, strict=True))
    assert len(mixed) == 7


def test_a_name_has_one_number_in_any_type_of_column():
    assert codes([7, 12]).tolist() == codes(["7", "12"]).tolist() == codes([7.0, 12.0]).tolist()
    assert len(codes(range(10_000)).unique()) == 10_000


# -- what a person moves -------------------------------------------------------------------------
def answer(problem, examples, size, clip=1.0):
    mechanism = ExampleMechanism(l2_norm_clip=clip, noise=Noise(multiplier=0.0))
    query = Query.of(mechanism, Ask(), size)
    draws = Draws(NoiseSource.from_seed(0), 0, 1)
    return Oracle(problem, examples, [[query]], draws).gradient(torch.zeros(2).double())


@pytest.mark.parametrize("count", [1, 3, 40])
def test_all_rows_of_a_person_move_an_answer_by_one_clip(count):
    """Also where each of her rows alone would move it by one."""
    problem = Persons(LeastSquares(), count)
    rows, person = table([2] * 5)
    held = {"feature": rows, "target": torch.zeros(len(rows)).double(), PERSON: person}
    long = {
        "feature": torch.tensor([[1e3, 0.0]]).double().expand(count, 2),
        "target": torch.full((count,), -1e3).double(),
        PERSON: torch.full((count,), 99),
    }
    without = problem.widened(Examples(held))
    beside = {key: torch.cat([held[key], long[key]]) for key in held}
    moved = answer(problem, problem.widened(Examples(beside)), 5) - answer(problem, without, 5)
    assert moved.norm() == pytest.approx(1 / 5, rel=1e-9)


def test_a_row_that_fails_takes_its_person_alone():
    problem = Persons(LeastSquares(), MOST)
    rows, person = table([2, 2, 2])
    held = {"feature": rows, "target": torch.ones(len(rows)).double(), PERSON: person}
    whole = problem.widened(Examples(held))
    bad = {**whole.tensors, "feature": whole["feature"].clone()}
    bad["feature"][1, 1] = torch.nan
    less = whole.take(torch.tensor([0, 2]))
    found = answer(problem, Examples(bad, whole.feature_ndim), 3)
    assert torch.allclose(found, answer(problem, less, 3), rtol=1e-15)


def test_the_optimum_is_that_of_rows_weighed_by_person():
    rows, person = table([1, 2, 5, 3])
    target = normals(5, len(rows))
    problem = Persons(LeastSquares(), MOST)
    shard = problem.widened(Examples({"feature": rows, "target": target, PERSON: person}))
    found = problem.optimum([shard])
    flat, weights = rows_of(shard), shard[SHARE].flatten().sqrt().unsqueeze(-1)
    expected = np.linalg.lstsq(
        (weights * flat["feature"]).numpy(), (weights[:, 0] * flat["target"]).numpy(), rcond=None
    )[0]
    assert found.x.numpy() == pytest.approx(expected, rel=1e-12)
    assert found.gradient_norm < 1e-12


# -- what a person is charged --------------------------------------------------------------------
def sites(count=3, persons=30, rows=2):
    made = []
    for i in range(count):
        z, person = table([rows] * persons, seed=i, first=100 * i)
        label = torch.where(z[:, 0] > 0, 1.0, -1.0)
        made.append({"feature": z, "label": label, PERSON: person})
    return made


def fitted(shards=None, rounds=3, batch=None, problem=None, **privacy):
    level = {"noise": manifed.Multiplier(noise_multiplier=2.0), "delta": 1e-4, "unit": "person"}
    return manifed.fit(
        problem or Persons(Logistic(), 2),
        sites() if shards is None else shards,
        RSGD(step_size=0.5, minibatch=batch or Full()),
        rounds=rounds,
        privacy=manifed.ExampleLevel(**{"l2_norm_clip": 1.0, **level, **privacy}),
    )


def test_a_person_pays_what_a_record_of_that_mechanism_pays():
    batch = Poisson(batch_size=6)
    found = fitted(batch=batch).statement
    release = ExampleMechanism(l2_norm_clip=1.0, noise=Noise(multiplier=2.0), unit="person")
    query = Query.of(release, Ask(batch=batch, count=3), 30)
    assert found["unit"] == "person"
    assert found["adversaries"][0]["epsilon"] == epsilon_bounds.epsilon(query.release(), 1e-4)


def test_a_secure_sum_protects_persons():
    privacy = manifed.ExampleLevel(epsilon=4, delta=1e-3, unit="person", trust=manifed.SecureSum())
    found = manifed.fit(
        Persons(Logistic(), 2), sites(), RSGD(step_size=0.5, minibatch=Full()), rounds=2,
        privacy=privacy,
    )  # fmt: skip
    assert found.statement["unit"] == "person"
    assert found.statement["adversaries"][0]["epsilon"] <= 4


def test_a_person_at_two_sites_pays_for_both():
    """Full batches: two Gaussian releases of one multiplier are one of that over sqrt(2)."""
    twice = fitted(sites_per_person=2).statement["adversaries"][0]["epsilon"]
    noise = manifed.Multiplier(noise_multiplier=2.0 / math.sqrt(2))
    once = fitted(noise=noise).statement["adversaries"][0]["epsilon"]
    assert twice == pytest.approx(once, rel=1e-9)
    assert twice > 1.3 * fitted().statement["adversaries"][0]["epsilon"]


def test_a_hold_out_is_charged_to_each_site_of_a_person():
    held = manifed.PrivateEvaluation(hold_out=0.3, loss_range=(0.0, 2.0))
    mechanism = ExampleMechanism(
        l2_norm_clip=1.0, noise=Noise(multiplier=2.0), unit="person", sites_per_person=2
    )
    assert (held.release(mechanism).unit, held.release(mechanism).count) == ("person", 2)


def test_a_statistic_bounds_persons():
    shards = [{"z": site["feature"], PERSON: site[PERSON]} for site in sites()]
    found = manifed.fit(
        Persons(KPCA(1), 2),
        shards,
        SecondMoment(),
        rounds=1,
        privacy=manifed.ExampleLevel(epsilon=2, delta=1e-4, unit="person"),
    )
    assert found.statement["unit"] == "person"
    assert found.model.shape == (2, 1)


def several(**federation):
    return manifed.fit(
        Persons(Logistic(), 2), sites(), RSGD(step_size=0.5), rounds=2, **federation,
        privacy=manifed.ExampleLevel(epsilon=2, delta=1e-4, unit="person", sites_per_person=2),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (lambda: fitted(problem=Logistic()), "privacy.unit: expected 'person' exactly where"),
        (lambda: fitted(unit="example"), "privacy.unit: expected 'person' exactly where"),
        (
            lambda: manifed.fit(
                Persons(Logistic(), 2),
                sites(),
                Decor(graph=Ring(), num_nodes=3, step_size=0.1),
                rounds=1,
                privacy=CorrelatedNoise(
                    unit="example", l2_norm_clip=1.0, noise_stddev=1.0, mask_stddev=1.0, delta=1e-4
                ),
            ),
            "privacy.unit: expected 'person' exactly where",
        ),
        (lambda: fitted([sites()[0]] * 2), "sites_per_person: expected at least 2, because"),
        (lambda: fitted(sites_per_person=4), "sites_per_person: expected at most 3, the clients"),
        (lambda: several(cohort=manifed_cohort()), "cohort.kind: expected 'all' with 2 sites"),
        (
            lambda: fitted(
                [*sites(2), *sites(1, persons=20)],
                batch=Poisson(batch_size=6),
                sites_per_person=2,
            ),
            "minibatch.kind: expected 'full' with privacy.sites_per_person > 1",
        ),
        (
            lambda: fitted([{k: v for k, v in one.items() if k != PERSON} for one in sites()]),
            "person: expected this column beside the examples of Persons",
        ),
        (
            lambda: Persons(Logistic(), 2).check_records(Examples({"feature": torch.ones(3, 2)})),
            "Expected records of persons, got rows",
        ),
        (lambda: Persons(Logistic(), 0), "rows: expected a whole number >= 1, got 0"),
        (lambda: Persons("logistic", 1), "problem: expected a problem of rows"),
    ],
)
def test_what_nothing_bounds_is_refused_by_name(run, said):
    with pytest.raises(ConfigError, match=said):
        run()


def manifed_cohort():
    from manifed.federation.cohorts import PoissonCohort

    return PoissonCohort(sampling_probability=0.5)


# -- files ---------------------------------------------------------------------------------------
CONFIG = """
name = "persons"
[problem]
kind = "least-squares"
[data]
kind = "file"
examples = "regression"
columns = ["a", "b"]
label = "y"
label_range = [-1.0, 1.0]
range = [-1.0, 1.0]
outside = "clip"
person = "subject"
rows_per_person = 2
paths = "site-{partition}.csv"
[federation]
num_clients = 2
num_rounds = 2
[training]
kind = "rsgd"
minibatch = { kind = "full" }
step_size = 0.5
[privacy]
kind = "example-level"
unit = "person"
l2_norm_clip = 1.0
delta = 1e-4
noise = { kind = "multiplier", noise_multiplier = 1.0 }
"""


@pytest.fixture
def own(tmp_path):
    for i in range(2):
        rows = [f"s{i}{j % 4},{j / 10},{-j / 10},{j / 10}" for j in range(7)]
        (tmp_path / f"site-{i}.csv").write_text("subject,a,b,y\n" + "\n".join(rows) + "\n")
    path = tmp_path / "own.toml"
    path.write_text(CONFIG)
    return path


def test_a_file_holds_persons_whose_number_is_n_i(own):
    config = load(own)
    assert load_shards(config).sizes == (4, 4)
    assert own_examples(config, 0)["feature"].shape == (4, 2, 2)
    (release,) = plan_of(config).promise.terms.updates[0].releases
    assert release.unit == "person"


def test_the_unit_and_the_column_are_part_of_the_hash(own):
    hashes = {
        sha256(load(own, sets))
        for sets in (
            [],
            ["data.rows_per_person=3"],
            ["privacy.sites_per_person=2"],
            ['data.person="b"', 'data.columns=["a", "subject"]'],
        )
    }
    assert len(hashes) == 4
    assert '"unit":"person"' in canonical(load(own))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("s10", ""), "line 2, column 'subject': expected the name of a person, got nothing"),
        (("s10", "s00"), "sites_per_person: expected at least 2, because a person has rows at 2"),
    ],
)
def test_a_file_without_a_name_and_a_person_of_two_sites_are_refused(own, change, said):
    path = own.parent / "site-1.csv"
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(ConfigError, match=said):
        load_shards(load(own))


def test_a_plan_has_a_row_for_each_trust(own):
    path = own.parent / "auto.toml"
    text = own.read_text().replace('kind = "rsgd"\nminibatch = { kind = "full" }', 'kind = "auto"')
    text = text.replace("step_size = 0.5\n", "").replace("delta = 1e-4\n", "")
    noise = '{ kind = "target", epsilon = 2.0, delta = 1e-4 }'
    text = text.replace('{ kind = "multiplier", noise_multiplier = 1.0 }', noise)
    path.write_text(text)
    sets = ("--set", "federation.num_examples=[4,4]")
    done = invoke("plan", path, *sets, "--json")
    assert done.exit_code == 0, done.stderr
    rows = {row["trust"]: row["relative_noise"] for row in json.loads(done.stdout)["trusts"]}
    assert set(rows) == {"each client", "secure-sum", "client-level"}
    assert None not in rows.values()


def test_weights_that_depend_on_all_rows_have_no_persons():
    with pytest.raises(ValueError, match="person: expected none with query"):
        FileData.model_validate(
            {
                "kind": "file", "examples": "hyperbolic-points", "columns": ["a", "b"],
                "features": ["t"], "query": [0.0], "person": "who", "rows_per_person": 2,
            }
        )  # fmt: skip


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (['privacy.unit="example"'], "privacy.unit: expected 'person' exactly where"),
        (["data.rows_per_person=0"], "rows_per_person"),
        (['data.person="a"'], "expected each column once"),
    ],
)
def test_parts_that_do_not_go_together(own, sets, said):
    with pytest.raises(ConfigError, match=said):
        load(own, sets)
