"""`manifed.federate` and `manifed.fit`: the researcher's loop, accounted as a run from a config."""

import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import manifed
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.tangent_mean import TangentMean
from manifed.errors import ConfigError
from manifed.experiment.assembly import initial_point, load_shards
from manifed.experiment.load import load
from manifed.federation.cohorts import FixedSize
from manifed.federation.stack import StackTransport
from manifed.manifolds.sphere import Sphere
from manifed.plan import promise_of
from manifed.privacy.statement import audit_ledger
from manifed.problems.frechet import FrechetMean
from manifed.problems.linear import Logistic
from manifed.runs.folder import RunFolder
from tests.algorithms.gossip_runs import reports_of
from tests.conformance.federated_loop import stacked
from tests.conformance.manifold_cases import normals
from tests.fresh import QUICKSTART
from tests.tensors import assert_near

PRIVATE = manifed.ExampleLevel(
    l2_norm_clip=1.0, noise=manifed.Multiplier(noise_multiplier=4.0), delta=1e-3
)
STEPS = RSGD(step_size=0.2, local_steps=2)


def points(clients=3, rows=40):
    near = normals(0, clients, rows, 4)
    near[..., 0] += 4.0
    return list(Sphere().projx(near))


def fitted(**changes):
    settings = {
        "problem": FrechetMean(Sphere()), "shards": points(), "algorithm": STEPS,
        "privacy": PRIVATE, "rounds": 4,
    }  # fmt: skip
    return manifed.fit(**settings | changes)


def test_the_program_of_the_readme_is_a_private_fit_on_ones_own_tensors_in_15_lines(capsys):
    readme = QUICKSTART.parents[1] / "README.md"
    (program,) = re.findall(r"^```python\n(.*?)^```$", readme.read_text(), re.M | re.S)
    assert len(program.splitlines()) < 15
    exec(program, namespace := {})
    found = namespace["found"]
    assert float(found.model[0]) > 0.8
    assert found.curves["epsilon"][-1] == pytest.approx(2.0, abs=0.01)
    assert "RELEASE: the noise is keyed by the operating system" in capsys.readouterr().out


@pytest.mark.parametrize("way", [StackTransport, stacked])
def test_the_door_gives_the_model_and_the_epsilon_of_the_application(way):
    config = load(QUICKSTART, ["federation.num_clients=4", "federation.num_rounds=3"])
    found = load_shards(config)
    *_, last = manifed.federate(
        found.problem,
        found.examples,
        (config.training, config.strategy or TangentMean()),
        privacy=config.privacy,
        rounds=3,
        cohort=config.federation.cohort,
        seed=config.federation.seed,
        start=initial_point(config),
        transport=way,
    )
    *_, end = reports_of(config)
    assert_near(last.model, end.state["x"], 1e-12)
    promise = promise_of(config.setting, found.sizes)
    assert last.spending == pytest.approx(promise.headline(promise.odometer(3)))


def test_the_ledger_has_each_charge_before_the_clients_are_asked(tmp_path):
    path = tmp_path / "ledger.jsonl"
    seen = []

    class Looking(StackTransport):
        def exchange(self, asked):
            text = path.read_text()
            seen.append(f'"first":{asked.header.server_round},' in text.replace(" ", ""))
            return super().exchange(asked)

    found = fitted(ledger=path, transport=Looking, cohort=FixedSize(cohort_size=2))
    assert seen == [True] * 4
    audited = audit_ledger(path, 1e-3)
    assert audited["charges"] == 4
    spent, said = (
        {one["name"]: one["epsilon"] for one in each["adversaries"]}
        for each in (audited, found.statement)
    )
    assert said == pytest.approx(spent)
    with pytest.raises(OSError, match="ledger"):
        fitted(ledger=path)


def test_what_a_fit_leaves_is_saved(tmp_path):
    found = fitted(evaluate=lambda x: {"first": float(x[0])})
    folder = RunFolder(found.save(tmp_path / "fit"))
    assert torch.equal(folder.load_tensors("model")["x"], found.model)
    assert folder.metrics()["first"] == found.curves["first"]
    assert any("voids this guarantee" in note for note in found.statement["notes"])
    assert "SEEDED RUN" in found.text
    assert (folder.directory / "statement.json").is_file()
    with pytest.raises(OSError, match="fit"):
        found.save(tmp_path / "fit")


def third(change):
    *others, last = points()
    return {"shards": [*others, change(last)]}


E1 = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
NOTHING_FITS = {
    **{name: ({"start": start}, f"start: {words}") for name, start, words in (
        ("a longer one", torch.eye(5, dtype=torch.float64)[0], r".*\(4,\).*\(5,\)"),
        ("a number", torch.tensor(1.0), r"expected shape \(4,\)"),
        ("complex numbers", E1 + 0j, "expected a dense tensor of real numbers"),
        ("sparse", E1.to_sparse(), "expected a dense tensor"),
        ("no numbers", E1.to("meta"), "expected a dense tensor"),
        ("NaN", E1 * torch.nan, "Expected a point of Euclidean norm at most"),
        ("off the sphere", 2 * E1, "Expected a point on Sphere within"),
    )},
    "no shards": ({"shards": []}, r"shards: .* got sizes \[\]"),
    "an empty one": (third(lambda z: z[:0]), r"sizes \[40, 40, 0\]"),
    "another width": (third(lambda z: torch.cat([z, z], -1)), "client 2: .*like client 0"),
    "one row": (third(lambda z: z[0]), "client 2: .*like client 0's"),
    "no such name": ({"shards": [{"y": one} for one in points()]}, "FrechetMean can .* KeyError"),
    "words": ({"shards": [["a", "b"]]}, "client 0: expected real numbers .* got list of <U1"),
    "rows of two lengths": ({"shards": [[[1.0], [1, 0]]]}, "client 0: .* equally many for each"),
    "a module": ({"problem": torch.nn.Linear(2, 2)}, "problem: .* fit_module"),
    "a zero-dimensional one": ({"shards": [torch.tensor(1.0)]}, "client 0, 'z': expected a dense"),
    "no number": (third(lambda z: z * torch.nan), "shards: client 2, record 0: expected finite"),
    "an example off the sphere": (third(lambda z: 2 * z), "shards: client 2, record 0"),
    "no rounds": ({"rounds": 0}, "rounds: .* greater than or equal to 1, got 0"),
    "a gradient of another shape": (
        {"problem": Logistic(),
         "shards": [{"feature": torch.ones(40, 3), "label": torch.ones(40, 1)}]},
        "shards, .*Logistic.*: its gradients: expected norms .40,. and a sum .3,., got .40, 40.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTHING_FITS)
def test_what_does_not_fit_is_refused_before_a_ledger_is_made(name, tmp_path):
    changes, match = NOTHING_FITS[name]
    with pytest.raises(ConfigError, match=match):
        fitted(ledger=tmp_path / "ledger.jsonl", **changes)
    assert list(tmp_path.iterdir()) == []


def test_the_namespace_shows_what_a_person_uses():
    assert {"fit", "fit_module", "federate", "ExampleLevel", "problems"} < {*dir(manifed)}
    assert re.fullmatch(r"\d+\.\d+\.\d+", manifed.__version__)
    for package in (manifed.algorithms, manifed.manifolds, manifed.problems, manifed.layers):
        assert all(getattr(package, name) for name in dir(package))
        with pytest.raises(AttributeError, match="no attribute 'Spere'"):
            package.Spere  # noqa: B018  the access is what raises
    heavy = "import sys, manifed; dir(manifed.problems); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", heavy], check=True)


def test_a_transport_that_two_fits_share_draws_fresh_noise_for_each():
    made = {}
    settings = {
        "privacy": PRIVATE.model_copy(update={"noise_source": "os"}), "rounds": 1,
        "transport": lambda side: made.setdefault(0, stacked(side)),
    }  # fmt: skip
    one, two = (fitted(**settings) for _ in range(2))
    assert not torch.equal(one.model, two.model)


def test_a_promise_speaks_of_what_its_releases_say():
    config = load(QUICKSTART)
    promise = promise_of(config.setting, load_shards(config).sizes)
    for fact in ({"neighboring_relation": "replace-one"}, {"unit": "client"}):
        with pytest.raises(ConfigError, match=f"expected releases with {next(iter(fact))}"):
            replace(promise, facts={**promise.facts, **fact})
    terms = promise.terms.model_copy(update={"updates": ()})
    with pytest.raises(ConfigError, match="states what it releases"):
        replace(promise, tariff=replace(promise.tariff, lines=(terms,)))
