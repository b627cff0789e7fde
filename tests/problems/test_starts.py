"""x^(0) is public: it depends on shapes, the config and the seed, and on no example."""

from typing import Annotated, Any, get_args

import pytest
import torch
from pydantic import TypeAdapter

from manifed.cli.launch import check_parts
from manifed.errors import ConfigError
from manifed.experiment import assembly
from manifed.experiment.load import parse
from manifed.experiment.schema import DATA, PROBLEMS
from manifed.problems import shards
from manifed.problems.frechet import MANIFOLDS
from manifed.problems.problem import ProblemSource
from manifed.problems.real import A9a, BreastCancer, Digits, Mnist
from reproduction import recipes

RECIPES = (
    "OneHotLogistic", "HyperbolicCloud", "LowRank", "SphereCloud", "SPDClasses", "ClassMixture",
)  # fmt: skip
REAL = {A9a, BreastCancer, Digits, Mnist}
SMALL = {"num_examples": 40, "num_clients": 4, "columns": 10, "dimension": 10}
OTHERWISE = {
    "reproduction.recipes:ClassMixture": {"num_classes": 2},
    "reproduction.recipes:Wishart": {"dimension": 2},
    "spd-lognormal": {"dimension": 2},
    "reproduction.recipes:LowRank": {"oversampling": 2.0},
}
CLIENTS = 4


def linear():
    """The factory of a module's config."""
    return torch.nn.Linear(10, 2)


def members(kinds):
    """The classes of a field's kinds."""
    return [kinds.model(kind) for kind in kinds.homes]


def problems():
    """Every problem of the union, on every manifold that a field of it names."""
    found = []
    for spec in members(PROBLEMS):
        places = [
            (name, value)
            for name, field in spec.model_fields.items()
            if name in {"on", "manifold"}
            for value in get_args(field.annotation) or MANIFOLDS
        ]
        needed = {"num_classes": 2, "model": f"{__name__}:linear"}
        rest = {name: value for name, value in needed.items() if name in spec.model_fields}
        found += [spec(**{name: value}, **rest) for name, value in places] or [spec(**rest)]
    return found


def synthetic(needs):
    """A small random data set of this kind of examples."""
    known = [*members(DATA), *(vars(recipes)[name] for name in RECIPES)]
    kinds = [one for one in known if one not in REAL and one.provides == needs]
    assert kinds, f"no random data set provides {needs}"
    sizes = {name: size for name, size in SMALL.items() if name in kinds[0].model_fields}
    kind = kinds[0].model_fields["kind"].default
    return {"kind": kind, **sizes, **OTHERWISE.get(kind, {})}


def experiment(problem, seed=3):
    spec = (
        problem
        if isinstance(problem, ProblemSource)
        else TypeAdapter[Any](Annotated[Any, PROBLEMS]).validate_python(problem)
    )
    return parse(
        {
            "name": "start",
            "problem": spec.model_dump(),
            "data": synthetic(spec.needs),
            "federation": {"num_clients": CLIENTS, "num_rounds": 1, "seed": seed},
            "training": {
                "kind": "rsgd",
                "step_size": 0.1,
                "maps": "retraction",
                "minibatch": {"kind": "full"},
            },
            "strategy": {"kind": "tangent-mean"},
        }
    )


def forget():
    """Empty the caches of everything that was loaded."""
    for cache in (assembly.load_shards, assembly.facts_of, shards.shards, shards.dataset):
        cache.cache_clear()


def start_and_swapped(config, monkeypatch):
    """x^(0), and x^(0) after every example of every client was replaced by another."""
    forget()
    before = assembly.initial_point(config)
    shards = assembly.load_shards(config).examples
    load = type(config.data).load
    with monkeypatch.context() as patch:
        patch.setattr(
            type(config.data), "load", lambda me, folder, seed: load(me, folder, seed + 1)
        )
        forget()
        after = assembly.initial_point(config)
        others = assembly.load_shards(config).examples
    forget()
    assert all(
        not torch.equal(mine[key], other[key])
        for mine, other in zip(shards, others, strict=True)
        for key in list(mine.tensors)[:1]
    ), "the examples were not swapped"
    return before, after


ALL = problems()


@pytest.mark.parametrize("problem", ALL)
def test_swapping_every_example_moves_no_bit_of_the_start(problem, monkeypatch):
    before, after = start_and_swapped(experiment(problem), monkeypatch)
    assert torch.equal(before, after)


def test_a_random_start_follows_the_seed():
    one, two = (assembly.initial_point(experiment({"kind": "kpca"}, s)) for s in (1, 2))
    assert not torch.equal(one, two)


def test_a_given_start_is_that_point_and_the_origin_the_origin():
    given = {"kind": "given", "entries": (0.0, 0.6, 0.8, *[0.0] * 7)}
    config = experiment({"kind": "frechet-mean", "manifold": "sphere", "start": given})
    assert assembly.initial_point(config)[1:3].tolist() == pytest.approx([0.6, 0.8])
    config = experiment({"kind": "principal-eigenvector", "start": {"kind": "origin"}})
    assert assembly.initial_point(config)[0] == 1.0


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ((1.0, 0.0), ["problem.start.entries", "[10]", "[2]"]),
        ((2.0, *[0.0] * 9), ["problem.start.entries", "Sphere"]),
        (((1.0, 2.0), (3.0,)), ["problem.start.entries", "one length"]),
    ],
)
def test_a_given_start_that_is_no_point_is_refused_in_one_line(entries, words):
    start = {"kind": "given", "entries": entries}
    config = experiment({"kind": "frechet-mean", "manifold": "sphere", "start": start})
    with pytest.raises(ConfigError) as caught:
        check_parts(config)
    assert "\n" not in str(caught.value)
    assert [word for word in words if word.lower() not in str(caught.value).lower()] == []


def test_a_start_at_an_example_is_caught(monkeypatch):
    def at_a_target(config):
        return assembly.load_shards(config).examples[0]["target"][0]

    monkeypatch.setattr(assembly, "initial_point", at_a_target)
    config = experiment({"kind": "hyperbolic-prediction"})
    before, after = start_and_swapped(config, monkeypatch)
    assert not torch.equal(before, after)
