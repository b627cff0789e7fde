"""A config, a fit and a Flower strategy are three ways to one setting, and refuse in one line."""

import ast
import json
import re
from contextlib import contextmanager

import pytest
import torch

import manifed
from manifed.algorithms.algorithm import ServerUpdate
from manifed.algorithms.gossip import Gossip
from manifed.algorithms.tangent_mean import TangentMean
from manifed.errors import ConfigError
from manifed.experiment.assembly import load_shards, plan_of
from manifed.experiment.load import load
from manifed.graphs import Ring
from manifed.manifolds import Sphere
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.frechet import FrechetMean
from manifed.problems.module_checks import NotPrivate
from manifed.problems.synthetic import StreamData
from manifed.setting import Setting
from strategies.any_update import AnyUpdate
from strategies.secure_mean import SecureMean
from tests.fresh import ROOT

RECORDED = ROOT / "tests" / "golden" / "house"
PLACES = (
    "data",
    "engine.",
    "evaluation",
    "federation.num_examples",
    "federation.partition",
    "federation.reserve_rounds",
    "NotPrivate",
)
"""What a fit and a strategy have no word for: data, devices and how models are judged."""
ABOUT_PROBLEMS = re.compile(r"solves problem\.kind|^training\.(ridge|lipschitz)")
"""What a strategy cannot say, which knows no problem."""


def refusals():
    """(config, override, line) of one recorded refusal of each kind, of parts that can be made."""
    seen = set()
    for pair, said in json.loads((RECORDED / "refusals.json").read_text()).items():
        name, override = pair.split(" | ", 1)
        line = said["line"].removeprefix("error: ")
        kind = re.sub(r"'[^']*'|[-+.\de]*\d", "", line)
        if not line.startswith(PLACES) and kind not in seen:
            seen.add(kind)
            yield pytest.param(name, override, line, id=pair)


@contextmanager
def unchecked(monkeypatch):
    """Configs are read without looking whether their parts go together."""
    with monkeypatch.context() as patch:
        patch.setattr(Setting, "check", lambda self: None)
        yield


def refused(call):
    """The line that refuses a call; None where it is not refused."""
    try:
        call()
    except ConfigError as error:
        return str(error)
    return None


def fitted(config, found):
    """The rounds of a fit, none of which is run."""
    algorithm = config.training if config.strategy is None else (config.training, config.strategy)
    return manifed.federate(
        found.problem,
        found.examples,
        algorithm,
        rounds=config.federation.num_rounds,
        privacy=config.privacy,
        cohort=config.federation.cohort,
        seed=config.federation.seed,
        replies=config.federation.replies,
    )


def strategy(config, found):
    """A strategy of one's own, for shards of the same sizes."""
    setting = config.setting
    training = config.training
    own = training if isinstance(training, ServerUpdate) else TangentMean()
    is_seeded = getattr(config.privacy, "noise_source", "seed") == "seed"
    kind = AnyUpdate if config.privacy.trust is None else SecureMean
    return kind(
        setting.manifold,
        training,
        config.strategy or own,
        num_examples=found.sizes,
        cohort=config.federation.cohort,
        privacy=config.privacy,
        num_rounds=config.federation.num_rounds,
        replies=config.federation.replies,
        source=NoiseSource.from_seed(0) if is_seeded else None,
    )


@pytest.mark.parametrize(("name", "override", "recorded"), refusals())
def test_what_a_config_refuses_a_fit_and_a_strategy_refuse_in_the_same_line(
    name, override, recorded, monkeypatch
):
    path = RECORDED / "configs" / f"{name}.toml"
    sets = [override] if override else []
    try:
        with unchecked(monkeypatch):
            config = load(path, sets)
            found = load_shards(config)
    except (ConfigError, NotPrivate, OSError):
        return  # a table that is none, which no other road can write down
    line = refused(lambda: plan_of(load(path, sets)))
    assert line is not None, recorded  # of two faults either may be told
    called = line.replace(f"got {config.problem.kind!r}", f"got {type(found.problem).__name__!r}")
    if not isinstance(config.data, StreamData):  # a fit is handed records that are there
        assert refused(lambda: fitted(config, found)) == called
    if not ABOUT_PROBLEMS.search(line):
        assert refused(lambda: strategy(config, found)) == line


def test_the_recorded_refusals_speak_of_every_part():
    lines = [one.values[2] for one in refusals()]
    said = {line.partition(":")[0].partition(".")[0] for line in lines}
    assert said >= {"federation", "training", "strategy", "privacy"}


def test_a_fit_with_gossip_on_a_sphere_is_refused_before_a_ledger_with_the_remedy(tmp_path):
    ring = Ring()
    z = torch.eye(3).double()
    gossip = Gossip(step_size=0.1, graph=ring, num_nodes=3)
    with pytest.raises(
        ConfigError, match=r"mixes models as vectors.*use 'rsgd', or manifed_extras.manifold_gossip"
    ):
        manifed.fit(FrechetMean(Sphere()), [z] * 3, gossip, rounds=1, ledger=tmp_path / "ledger")
    assert list(tmp_path.iterdir()) == []


def test_nothing_but_the_assembler_makes_a_plan():
    made = [
        path.relative_to(ROOT).as_posix()
        for top in ("manifed", "app", "strategies", "clients")
        for path in sorted((ROOT / top).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Plan"
    ]
    assert made == ["manifed/plan.py"]
