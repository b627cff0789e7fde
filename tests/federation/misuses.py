"""What comes of odd values for every argument of the public API, as a table.

    python -m tests.federation.misuses        writes results/misuses.md

An odd value is taken, or refused in one line that names the argument, before a client is asked for
anything. An object that can be made of it is handed to a fit, which takes or refuses it likewise.
"""

import contextlib
import inspect
import math
import re
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pandas
import torch
from torch import nn

import manifed
from manifed import algorithms, callbacks, manifolds, problems
from manifed.algorithms import RSGD
from manifed.errors import RoundFailed
from manifed.federation.stack import StackTransport
from manifed.graphs import Ring
from manifed.manifolds import Euclidean, Sphere
from manifed.oracles.minibatch import Full
from manifed.problems import Examples, FrechetMean
from manifed.schedules import Constant, TimeVarying
from manifed.setting import CorrelatedNoise

TABLE = Path(__file__).with_name("results") / "misuses.md"
ROWS = np.eye(3)[np.arange(12) % 3]
LABELS = np.arange(12) % 2
STEPS = RSGD(step_size=0.1, minibatch=Full())


class Asked(StackTransport):
    """Knows whether a client was asked for anything."""

    is_asked = False

    def exchange(self, asked):
        Asked.is_asked = True
        return super().exchange(asked)


ODD = {
    "None": None,
    "a word": "word",
    "a number": 1.5,
    "a negative number": -1,
    "zero": 0,
    "a huge integer": 10**30,
    "NaN": math.nan,
    "infinity": math.inf,
    "True": True,
    "a list": [1.0, 2.0],
    "an empty list": [],
    "an empty tuple": (),
    "a list of None": [None, None],
    "a dict": {"a": 1},
    "an array": np.ones((2, 3)),
    "an empty array": np.ones((0, 3)),
    "an array of five dimensions": np.full((2, 4, 3, 3, 1), 3**-0.5),
    "an array of words": np.array(["a"]),
    "an array of NaN": np.full((2, 12, 3), np.nan),
    "a frame": pandas.DataFrame({"a": [1.0, 2.0], "b": [1.0, 2.0]}),
    "a frame of words": pandas.DataFrame({"a": ["x", "y"]}),
    "a tensor of another shape": torch.ones(2, 5, 7),
    "a complex tensor": torch.ones(2, 12, 3) + 0j,
    "a number as a tensor": torch.tensor(1.0),
    "an object": object(),
    "a class": FrechetMean,
    "a function": lambda *values: None,
    "a function that raises": lambda *values: {}["key"],
    "a generator": (row for row in ()),
}
FIT = {
    "problem": FrechetMean(Sphere()), "shards": [ROWS, ROWS], "algorithm": STEPS, "rounds": 1,
    "start": [1.0, 0, 0], "transport": Asked,
}  # fmt: skip
MODULE = {
    "model": nn.Linear(3, 2), "sites": [(ROWS, LABELS)] * 2, "rounds": 1, "transport": Asked,
}  # fmt: skip


def trained(**given):
    manifed.fit(**FIT | {"rounds": 2} | given)


def regressed(**given):
    shards = [{"feature": ROWS, "target": LABELS, "label": 2.0 * LABELS - 1}] * 4
    trained(**{"problem": problems.LeastSquares(), "shards": shards, "start": None} | given)


def classified(problem):
    trained(problem=problem, shards=[{"z": ROWS, "label": LABELS}], start=None)


def served(server):
    trained(algorithm=(STEPS, server))


def averaged(average):
    served(algorithms.TangentMean(average=average))


def noised(noise):
    trained(privacy=manifed.ExampleLevel(l2_norm_clip=1.0, noise=noise, delta=1e-3))


def held(evaluation):
    trained(held_out=evaluation, privacy=manifed.ExampleLevel(**LONG))


def on(manifold):
    shapes = ((12, 3, 3), (12, 3, 2), (12, 2))
    fits = [s for s in shapes if len(s) == 1 + manifold.ndim and manifold.fits(s[1:])]
    shape = (fits or shapes)[0]
    z = manifold.random(*shape, generator=torch.Generator().manual_seed(0))
    trained(problem=FrechetMean(manifold), shards=[z], start=None)


def averaged_logs(algorithm):
    shards = [torch.eye(3).repeat(12, 1, 1)]
    problem = FrechetMean(manifolds.SPDLogEuclidean())
    trained(problem=problem, shards=shards, algorithm=algorithm, start=None, rounds=1)


def summed(algorithm):
    problem = problems.PrincipalEigenvector()
    trained(problem=problem, algorithm=algorithm, rounds=1)


def predicted(problem):
    z = problem.manifold.random(12, 3, generator=torch.Generator().manual_seed(0))
    trained(problem=problem, shards=[{"target": z, "weight": np.ones(12)}], start=None)


def stepped(algorithm):
    trained(algorithm=algorithm)


def masked(algorithm):
    privacy = CorrelatedNoise(l2_norm_clip=1.0, noise_stddev=1.0, mask_stddev=1.0, delta=1e-3)
    regressed(algorithm=algorithm, privacy=privacy)


def gossiped(algorithm):
    regressed(algorithm=algorithm)


STEP = {"step_size": 0.1, "minibatch": Full()}
GRAPH = {"graph": Ring(), "num_nodes": 4, "step_size": 0.1}
SCHEDULES = TimeVarying(
    step_size=Constant(value=0.1), mixing=Constant(value=0.1), sample_size=Constant(value=2.0),
    noise_scale=Constant(value=1.0),
)  # fmt: skip
GROWING = {"graph": Ring(), "num_nodes": 4, "perturbation": "output", "schedules": SCHEDULES}
SHORT = {"epsilon": 2.0, "delta": 1e-3}
LONG = {"l2_norm_clip": 1.0, "noise": manifed.Multiplier(noise_multiplier=4.0), "delta": 1e-3}
OBJECTS = [
    (manifed.ExampleLevel, LONG, lambda made: trained(privacy=made)),
    (manifed.ClientLevel, LONG, lambda made: trained(privacy=made)),
    (manifed.Target, SHORT, noised),
    (manifed.Multiplier, {"noise_multiplier": 4.0}, noised),
    (manifed.PrivateEvaluation, {"hold_out": 0.3, "loss_range": (0.0, 9.0)}, held),
    (callbacks.EarlyStopping, {},
     lambda made: trained(callbacks=[made], evaluate=lambda x: {"test_loss": 1.0})),
    (manifed.ReplyPolicy, {}, lambda made: trained(replies=made)),
    (algorithms.RSGD, STEP, stepped),
    (algorithms.ScheduledRSGD, STEP | {"noise_multipliers": Constant(value=1.0)}, stepped),
    (algorithms.RSVRG, STEP | {"inner_steps": 2}, stepped),
    (algorithms.RFedAGS, STEP, stepped),
    (algorithms.RFedProx, STEP | {"penalty_weight": 0.1}, stepped),
    (algorithms.RFedSVRG, STEP, stepped),
    (algorithms.Projected, STEP, stepped),
    (algorithms.ProjectedPartial, STEP, stepped),
    (algorithms.Gossip, GRAPH, gossiped),
    (algorithms.Decor, GRAPH, masked),
    (algorithms.GrowingSamples, GROWING, gossiped),
    (algorithms.LogEuclidean, {}, averaged_logs),
    (algorithms.SecondMoment, {}, summed),
    (algorithms.TangentMean, {}, served),
    (algorithms.GeodesicAverage, {}, averaged),
    (algorithms.ProjectorAverage, {}, averaged),
    (manifolds.Euclidean, {}, on),
    (manifolds.Stiefel, {}, on),
    (manifolds.Power, {"base": Sphere()}, on),
    (manifolds.Scaled, {"base": Sphere(), "scale": 2.0}, on),
    (manifolds.Product, {"factors": {"mean": (Euclidean(), (2,))}}, on),
    (problems.FrechetMean, {"manifold": Sphere()}, lambda made: trained(problem=made)),
    (problems.GeometricMedian, {"manifold": Sphere()}, lambda made: trained(problem=made)),
    (problems.HyperbolicPrediction, {}, predicted),
    (problems.ClassMeans, {"base": Sphere(), "num_classes": 2}, classified),
    (problems.LeastSquares, {}, lambda made: regressed(problem=made)),
    (problems.Logistic, {}, lambda made: regressed(problem=made)),
    (problems.PrincipalEigenvector, {}, lambda made: trained(problem=made)),
    (problems.KPCA, {"num_components": 2}, lambda made: trained(problem=made, start=None)),
    (problems.ModuleProblem, {"model": nn.Linear(3, 2)},
     lambda made: regressed(problem=made, shards=[{"feature": ROWS, "label": LABELS}])),
    (problems.Examples, {"tensors": {"z": torch.tensor(ROWS)}},
     lambda made: trained(shards=[made])),
]  # fmt: skip


def federated(**given):
    list(manifed.federate(**given))


RESULT = manifed.fit_module(**MODULE)

DOORS = [
    (manifed.fit, FIT, lambda given: manifed.fit(**given)),
    (manifed.federate, FIT, lambda given: federated(**given)),
    (manifed.fit_module, MODULE, lambda given: manifed.fit_module(**given)),
    (manifed.Result.predict, {"features": ROWS}, lambda given: RESULT.predict(**given)),
]


def made_of(cls, use, given):
    use(cls(**given))


HIDDEN = {manifed.Target: ["noise_multiplier"], Examples: ["feature_ndim", "counts", "stream"]}
"""What no person gives."""


def _arguments(what):
    fields = getattr(what, "model_fields", None) or inspect.signature(what).parameters
    return [name for name in fields if name not in ("kind", "self", *HIDDEN.get(what, ()))]


CASES = {
    f"{what.__qualname__}({argument}=)": (argument, given, call)
    for what, given, call in [*DOORS, *((c, g, partial(made_of, c, u)) for c, g, u in OBJECTS)]
    for argument in _arguments(what)
}


ALSO = {"base": "manifold", "num_classes": "class number", "largest_entry": "in every entry"}
"""What else a line may call an argument."""


EXPECTED = "xpected|required|needs|no gradient|Laplace"
MANY = 10
"""Of so many values that are refused in the same words, their number is written."""
ESCAPED = "\\|"


class Wrong(AssertionError):
    """An odd value ends in an error that is raw, late, long, or of something else."""


def said(case, value):
    """What a refusal says; None where the value is taken."""
    argument, given, call = CASES[case]
    given = given | {argument: value}
    if argument == "metrics":
        given["test"] = (ROWS, LABELS)
    Asked.is_asked = False
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            call(given)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        before = text.partition(", got")[0]
        is_named = argument in before or ALSO.get(argument, argument) in before
        if isinstance(error, RoundFailed) and argument in text:  # what clients computed is at fault
            return text
        if not isinstance(error, ValueError | TypeError | OSError):
            raise Wrong(f"raw: {text}"[:300]) from error
        for fault in (
            "late" * Asked.is_asked, "of two lines" * ("\n" in text),
            "does not name it" * (not is_named),
            "does not say what is expected" * (not re.search(EXPECTED, text)),
        ):  # fmt: skip
            if fault:
                raise Wrong(f"{fault}: {text}"[:300]) from error
        return text
    return None


def section(case):
    """The lines of one argument: which values are taken, and how others are refused."""
    argument, given, _ = CASES[case]
    assert argument not in given or said(case, given[argument]) is None, case
    found, wrong = {}, []
    for odd, value in ODD.items():
        try:
            text = said(case, value)
        except Wrong as error:
            wrong.append(f"{odd}: {error}")
            continue
        text = text and re.sub(r"0x[0-9a-f]+", "0x...", text)
        found.setdefault(text and text.rpartition(", got")[0], []).append((odd, text))
    if wrong:
        raise Wrong("\n".join([case, *wrong]))
    taken = ", ".join(odd for odd, _ in found.pop(None, [])) or "nothing of these"
    lines = [f"### `{case}`", "", f"Taken: {taken}."]
    if found:
        lines += ["", "| refused | line |", "|---|---|"]
    for same in sorted(found.values(), key=len):
        names = ", ".join(odd for odd, _ in same)
        if len(same) >= MANY:
            names = f"the other {len(same)}" if len(same) < len(ODD) else "all"
        lines.append(f"| {names} | `{same[0][1].replace('|', ESCAPED)}` |")
    return "\n".join(lines) + "\n"


def main():
    count = len(CASES) * len(ODD)
    head = (
        "# Misuses\n\n"
        f"{len(CASES)} arguments times {len(ODD)} odd values: {count} calls. A value is taken, or "
        "refused in one line before a client is asked for anything; a round that fails by what its "
        "clients computed names the argument, too. Of values that are refused in the same words, "
        "the line is that of the first. Written by `python -m tests.federation.misuses`.\n"
    )
    wrong, sections = [], []
    for case in CASES:
        try:
            sections.append(section(case))
        except Wrong as error:
            wrong.append(str(error))
    if wrong:
        raise SystemExit("\n".join(wrong))
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text("\n".join([head, *sections]))


if __name__ == "__main__":
    main()
