"""`manifed.federate` and `manifed.fit`: the researcher's loop, accounted as a run from a config."""

import inspect
import pydoc
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import manifed
from manifed.algorithms.rfedsvrg import RFedSVRG
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.tangent_mean import TangentMean
from manifed.errors import BudgetExhausted, ConfigError
from manifed.experiment.assembly import client_side, initial_point, load_shards, plan_of
from manifed.experiment.load import load
from manifed.experiment.privacy import promise_of
from manifed.federation.cohorts import FixedSize
from manifed.federation.rounds import run_rounds
from manifed.federation.stacked import StackedTransport
from manifed.federation.transport import MemoryTransport
from manifed.manifolds.sphere import Sphere
from manifed.privacy.statement import audit_ledger
from manifed.problems.frechet_mean import FrechetMean
from manifed.problems.logistic import Logistic
from manifed.runs.run_folder import RunFolder

QUICKSTART = Path(__file__).resolve().parents[2] / "configs" / "quickstart.toml"
PRIVATE = manifed.ExampleLevel(
    l2_norm_clip=1.0, noise=manifed.Multiplier(noise_multiplier=4.0), delta=1e-3
)
STEPS = RSGD(step_size=0.2, local_steps=2)

PROGRAM = """
import torch
import manifed
from manifed.algorithms.rsgd import RSGD
from manifed.manifolds.sphere import Sphere
from manifed.problems.frechet_mean import FrechetMean

points = torch.randn(3, 50, 4, dtype=torch.float64) + torch.tensor([4.0, 0, 0, 0])
shards = list(points / points.norm(dim=-1, keepdim=True))  # one tensor of unit rows a client
privacy = manifed.ExampleLevel(
    l2_norm_clip=1.0, noise=manifed.Target(epsilon=2.0, delta=1e-3), noise_source="os"
)
algorithm = RSGD(step_size=0.2, local_steps=2)
found = manifed.fit(FrechetMean(Sphere()), shards, algorithm, privacy=privacy, rounds=20)
print(found.model, found.text, sep="\\n")
"""


def points(clients=3, rows=40):
    generator = torch.Generator().manual_seed(0)
    near = torch.randn(clients, rows, 4, dtype=torch.float64, generator=generator)
    near[..., 0] += 4.0
    return list(near / near.norm(dim=-1, keepdim=True))


def fitted(**changes):
    settings = {"privacy": PRIVATE, "rounds": 4, **changes}
    return manifed.fit(FrechetMean(Sphere()), points(), STEPS, **settings)


def test_a_private_fit_on_ones_own_tensors_takes_less_than_15_lines(capsys):
    assert len([line for line in PROGRAM.splitlines() if line]) < 15
    namespace = {}
    exec(PROGRAM, namespace)
    found = namespace["found"]
    assert float(found.model[0]) > 0.8
    assert found.curves["epsilon"][-1] == pytest.approx(2.0, abs=0.01)
    assert "RELEASE: the noise is keyed by the operating system" in capsys.readouterr().out


@pytest.mark.parametrize("stacked", [False, True], ids=["memory", "stacked"])
def test_the_door_gives_the_model_and_the_epsilon_of_the_application(stacked):
    config = load(QUICKSTART, ["federation.num_clients=4", "federation.num_rounds=3"])
    found, plan = load_shards(config), plan_of(config)
    way = partial(StackedTransport, device="cpu", memory_budget_mb=64)
    rounds = list(
        manifed.federate(
            found.problem,
            found.examples,
            (config.training, config.strategy or TangentMean()),
            privacy=config.privacy,
            rounds=3,
            cohort=config.federation.cohort,
            seed=config.federation.seed,
            start=initial_point(config),
            transport=way if stacked else MemoryTransport,
        )
    )
    state = plan.server_update.initial(initial_point(config))
    *_, end = run_rounds(plan, state, MemoryTransport(client_side(config)), num_rounds=3)
    torch.testing.assert_close(rounds[-1].model, end.state["x"], rtol=0, atol=1e-12)
    promise = promise_of(config, found.sizes)
    assert rounds[-1].spending == pytest.approx(promise.headline(promise.odometer(3)))


def test_a_budget_ends_a_fit_in_good_order_and_a_loop_with_an_error():
    tight = PRIVATE.model_copy(update={"max_epsilon": fitted(rounds=2).curves["epsilon"][-1]})
    stopped = fitted(privacy=tight)
    assert stopped.curves["round"] == [1, 2]
    assert "privacy.max_epsilon: round 3 would be cohort draw 3" in stopped.stopped
    rounds = manifed.federate(FrechetMean(Sphere()), points(), STEPS, privacy=tight, rounds=4)
    with pytest.raises(BudgetExhausted):
        list(rounds)


def test_the_ledger_has_each_charge_before_the_clients_are_asked(tmp_path):
    path, seen = tmp_path / "ledger.jsonl", []

    class Looking(MemoryTransport):
        def exchange(self, header, *asked):
            text = path.read_text()
            seen.append(f'"rounds":[{header.server_round},' in text.replace(" ", ""))
            return super().exchange(header, *asked)

    found = fitted(ledger=path, transport=Looking, cohort=FixedSize(cohort_size=2))
    assert seen == [True] * 4
    audited = audit_ledger(path, 1e-3)
    assert audited["charges"] == 4
    spent = {one["name"]: one["epsilon"] for one in audited["adversaries"]}
    said = {one["name"]: one["epsilon"] for one in found.statement["adversaries"]}
    assert said == pytest.approx(spent)
    with pytest.raises(OSError, match="ledger"):
        fitted(ledger=path)


def test_a_fit_with_and_without_a_ledger_says_the_same(tmp_path):
    one, two = fitted(), fitted(ledger=tmp_path / "ledger.jsonl")
    assert torch.equal(one.model, two.model)
    assert one.statement == two.statement
    assert one.curves == two.curves


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


CLIENT = manifed.ClientLevel(
    l2_norm_clip=1.0, noise=manifed.Multiplier(noise_multiplier=4.0), delta=1e-3
)


class MyMean(TangentMean):
    """Another one's."""


REFUSED = {
    "two uploads of a client": (
        {"privacy": CLIENT},
        RFedSVRG(step_size=0.1, local_steps=1),
        r"privacy.kind: 'client-level' noises one array",
    ),
    "no delta": ({"privacy": PRIVATE.model_copy(update={"delta": None})}, STEPS, "privacy.delta"),
    "a delta of one in n": (
        {"privacy": PRIVATE.model_copy(update={"delta": 0.1})},
        STEPS,
        r"expected delta < 1/n",
    ),
    "a server update that may read every upload": (
        {"privacy": CLIENT},
        (STEPS, MyMean()),
        "needs a server update of the library, got MyMean",
    ),
    "minibatches that nothing prices": (
        {"privacy": PRIVATE},
        RSGD(
            step_size=0.2, local_steps=2, minibatch={"kind": "without-replacement", "batch_size": 2}
        ),
        "without replacement are priced under 'replace-one' only",
    ),
    "a policy that would show a failure": (
        {"privacy": CLIENT, "replies": manifed.ReplyPolicy(on_failure="retry")},
        STEPS,
        "on_failure",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_nothing_charges_for_is_refused_before_round_1(name):
    settings, algorithm, match = REFUSED[name]
    with pytest.raises(ConfigError, match=match):
        manifed.federate(FrechetMean(Sphere()), points(), algorithm, rounds=2, **settings)


def wider(shard):
    return torch.cat([shard, shard], dim=-1)


E1 = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
NOTHING_FITS = {
    "a longer start": ({"start": torch.eye(5, dtype=torch.float64)[0]}, r"start: .*\(4,\).*\(5,\)"),
    "starts": ({"start": torch.eye(4, dtype=torch.float64)}, r"start: expected shape \(4,\)"),
    "a number": ({"start": torch.tensor(1.0)}, r"start: expected shape \(4,\)"),
    "integers": ({"start": E1.long()}, "start: expected a dense tensor of float64"),
    "half a float": ({"start": E1.half()}, "start: expected a dense tensor of float64"),
    "complex numbers": ({"start": E1 + 0j}, "start: expected a dense tensor of float64"),
    "sparse": ({"start": E1.to_sparse()}, "start: expected a dense tensor"),
    "no numbers": ({"start": E1.to("meta")}, "start: expected a dense tensor"),
    "a list": ({"start": [1.0, 0, 0, 0]}, "start: expected a dense tensor .* got list"),
    "NaN": ({"start": E1 * torch.nan}, "start: Expected a point of Euclidean norm at most"),
    "off the sphere": ({"start": 2 * E1}, "start: Expected a point on Sphere within"),
    "no shards": ({"shards": []}, r"shards: .* got sizes \[\]"),
    "an empty one": ({"shards": [*points()[:2], points()[2][:0]]}, r"sizes \[40, 40, 0\]"),
    "another width": ({"shards": [*points()[:2], wider(points()[2])]}, "client 2: .*like client 0"),
    "one row": ({"shards": [*points()[:2], points()[2][0]]}, "client 2: .*like client 0's"),
    "another name": ({"shards": [*points()[:2], {"y": points()[2]}]}, "client 2: .*like client 0"),
    "no such name": ({"shards": [{"y": one} for one in points()]}, "FrechetMean can .* KeyError"),
    "integer rows": ({"shards": [E1.long().expand(4, 4)]}, "FrechetMean can be computed for"),
    "rows of rows": ({"shards": [[1.0, 2.0]]}, "client 0: expected Examples, a tensor or a dict"),
    "an array": ({"shards": [points()[0].numpy()]}, "client 0: expected Examples"),
    "a zero-dimensional one": ({"shards": [torch.tensor(1.0)]}, "client 0, 'z': expected a dense"),
    "no rounds": ({"rounds": 0}, "rounds: .* greater than or equal to 1, got 0"),
}


@pytest.mark.parametrize("name", NOTHING_FITS)
def test_what_does_not_fit_is_refused_before_a_ledger_is_made(name, tmp_path):
    changes, match = NOTHING_FITS[name]
    settings = {"shards": points(), "rounds": 2, "privacy": PRIVATE, **changes}
    shards, ledger = settings.pop("shards"), tmp_path / "ledger.jsonl"
    with pytest.raises(ConfigError, match=match):
        manifed.fit(FrechetMean(Sphere()), shards, STEPS, ledger=ledger, **settings)
    assert list(tmp_path.iterdir()) == []


def test_shards_in_float32_are_computed_in_float64():
    rows = [torch.ones(6, 3), torch.zeros(6, 3)]
    shards = [{"feature": r, "label": torch.ones(6)} for r in rows]
    found = manifed.fit(Logistic(), shards, RSGD(step_size=0.1, local_steps=1), rounds=1)
    assert found.curves["failures"] == [0]
    assert found.model.dtype == torch.float64


def test_a_gradient_of_another_shape_is_refused_before_a_ledger_is_made(tmp_path):
    shards = [{"feature": torch.ones(6, 3), "label": torch.ones(6, 1)}]
    with pytest.raises(ConfigError, match=r"problem: expected gradients of the shape of a point"):
        manifed.fit(
            Logistic(), shards, STEPS, rounds=1, privacy=PRIVATE, ledger=tmp_path / "ledger.jsonl"
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bad", [torch.nan, 2.0])
def test_a_bad_record_is_named(bad):
    shards = points()
    shards[1][7] = bad
    with pytest.raises(ConfigError, match="shards: client 1, record 7"):
        manifed.federate(FrechetMean(Sphere()), shards, STEPS, rounds=1)


@pytest.mark.slow
def test_importing_the_library_imports_neither_flower_nor_torch_and_a_fit_no_flower():
    code = (
        "import sys, manifed; heavy = {'flwr', 'matplotlib'}; "
        "assert not (heavy | {'torch'}) & set(sys.modules); "
        "manifed.fit; assert not heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'fot'"):
        manifed.fot  # noqa: B018  the access is what raises


def test_the_program_of_the_readme_is_the_one_that_is_run():
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert f"```python\n{PROGRAM.lstrip()}```" in readme
    assert len(PROGRAM.strip().splitlines()) < 15


def test_a_target_against_nobody_is_refused():
    noise = manifed.Target(epsilon=1.0, delta=1e-3, adversary="client-level")
    with pytest.raises(ConfigError, match="needs ClientLevel"):
        fitted(privacy=manifed.ExampleLevel(l2_norm_clip=1.0, noise=noise))


def test_a_transport_that_two_fits_share_draws_fresh_noise_for_each():
    made = {}

    def shared(side):
        return made.setdefault(0, StackedTransport(side, device="cpu", memory_budget_mb=64))

    privacy = PRIVATE.model_copy(update={"noise_source": "os"})
    one, two = (fitted(privacy=privacy, transport=shared, rounds=1) for _ in range(2))
    assert not torch.equal(one.model, two.model)


def test_a_promise_speaks_of_what_its_releases_say():
    promise = promise_of(load(QUICKSTART, []), tuple(load_shards(load(QUICKSTART, [])).sizes))
    for fact in ({"neighboring_relation": "replace-one"}, {"unit": "client"}):
        with pytest.raises(ConfigError, match=f"expected releases with {next(iter(fact))}"):
            replace(promise, facts={**promise.facts, **fact})
    with pytest.raises(ConfigError, match="states what it releases"):
        replace(promise, terms=promise.terms.model_copy(update={"updates": ()}))


def test_the_help_of_a_fit_names_its_arguments_and_a_wrong_one_is_refused_by_name():
    shown = pydoc.plain(pydoc.render_doc(manifed.fit))
    for argument in inspect.signature(manifed.fit).parameters.values():
        assert argument.annotation is not inspect.Parameter.empty
        assert f"\n        {argument.name}: " in shown, argument.name
    with pytest.raises(TypeError, match=r"fit\(\) .* 'clients'"):
        manifed.fit(None, [], None, rounds=1, clients=3)
    with pytest.raises(TypeError, match=r"federate\(\) .* 'evaluate'"):
        manifed.federate(None, [], None, rounds=1, evaluate=dict)
