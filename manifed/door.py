"""The one door to a fit in this process: a problem of manifed's, or a torch module of one's own."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from manifed.algorithms.tangent_mean import TangentMean
from manifed.errors import ConfigError
from manifed.federation.cohorts import Cohort
from manifed.federation.replies import ReplyPolicy
from manifed.problems.base import Problem
from manifed.problems.module_problem import Loss
from manifed.runs.fit import Algorithm, Connect, Evaluate, Privacy, Shard
from manifed.runs.fit import fit as fit_problem
from manifed.runs.result import Result
from manifed.torch import Metric, Site
from manifed.torch import fit as fit_module

_OF_A_MODULE = (
    "loss", "step_size", "local_steps", "batch_size", "strategy", "test", "metrics", "clip_shares",
    "compute",
)  # fmt: skip


def fit(
    problem: Problem | None = None,
    shards: Sequence[Shard] = (),
    algorithm: Algorithm | None = None,
    *,
    model: nn.Module | None = None,
    sites: Sequence[Site] = (),
    loss: str | Loss | None = None,
    rounds: int | None = None,
    privacy: Privacy = None,
    step_size: float | None = None,
    local_steps: int | None = None,
    batch_size: float | None = None,
    strategy: TangentMean | None = None,
    test: Site | None = None,
    metrics: Mapping[str, Metric] | None = None,
    clip_shares: Mapping[str, float] | None = None,
    compute: Literal["float64", "float32"] | None = None,
    cohort: Cohort | None = None,
    seed: int = 0,
    start: Tensor | None = None,
    replies: ReplyPolicy | None = None,
    ledger: str | Path | None = None,
    transport: Connect | None = None,
    evaluate: Evaluate | None = None,
    progress: bool | None = None,
) -> Result:
    """All rounds of a federation in this process, and what came of them.

    ``fit(problem, shards, algorithm, rounds=...)`` minimises a problem of manifed's;
    ``fit(model=..., sites=...)`` trains a copy of a torch module and leaves its ``state_dict`` too
    (`manifed.torch.fit`). A budget that runs out ends the fit in good order.

    Args:
        problem: what is minimised, and on which manifold.
        shards: one entry a client: Examples, a dict of tensors, or a tensor that the problem knows
            as "z"; each tensor of shape (n, *feature).
        algorithm: a client update and a server update, or one object that is both (a client update
            alone goes with the tangent mean). With a module, None is Riemannian SGD.
        model: a module; its parameters are the start, and public.
        sites: each site's (feature, label) pairs: a data set, two tensors, or a dict of the two.
        loss: "cross-entropy" (that of None), "mse", or a function of an output (1, *) and a label.
        rounds: how many; with a module, None is 30.
        privacy: ``ExampleLevel(epsilon=2, delta=1e-5)``, or the frozen object of a config: it is
            priced, and each cohort draw passes its budget. None protects nobody.
        step_size: of each local step on a module; None is 1.
        local_steps: between two rounds on a module; None is 1.
        batch_size: expected size of a batch of a module's examples; None is 64.
        strategy: the server's part where a module has no algorithm: ``TangentMean(adam=Adam())``,
            momentum, an average, step sizes by the round; None is the plain tangent mean.
        test: public examples, on which a module is judged after every round.
        metrics: further columns of the curves: functions of outputs and labels of ``test``.
        clip_shares: groups of a module's parameters that are clipped by themselves, by prefixes of
            their names; the price is that of one clip.
        compute: what a module computes in; None is "float64".
        cohort: who takes part in a round; None is everyone.
        seed: of a seeded run, and of the random starting point.
        start: x^(0); None is a random point of ``seed``, or the parameters of the module.
        replies: when a round goes on without everybody.
        ledger: a file that is not there yet: each charge is on it before the clients are asked.
        transport: how clients are reached; None is one after the other in this process, and with
            a module a whole cohort at once.
        evaluate: maps a model to named numbers for the curves; what it computes from private data
            is no part of the release, and the statement says so.
        progress: whether a line on standard error follows the rounds; None: in a notebook and on a
            terminal.

    Raises:
        ConfigError: before round 1, for parts that do not go together or that nothing prices.
        NotPrivate: a module lets examples meet.
        RoundFailed: as `manifed.federation.rounds.run_round`.
    """
    common: dict[str, Any] = {
        "privacy": privacy,
        "cohort": cohort,
        "seed": seed,
        "replies": replies,
        "ledger": ledger,
        "start": start,
        "transport": transport,
        "evaluate": evaluate,
        "progress": progress,
    }
    common = {name: value for name, value in common.items() if value is not None}
    settings = (loss, step_size, local_steps, batch_size, strategy, test, metrics)
    own: dict[str, Any] = dict(zip(_OF_A_MODULE, (*settings, clip_shares, compute), strict=True))
    own = {name: value for name, value in own.items() if value is not None}
    if model is None:
        if own or sites or problem is None or algorithm is None or rounds is None:
            raise ConfigError(
                "fit: expected a problem, shards, an algorithm and rounds, or model= and sites=; "
                f"got {_given(problem=problem, algorithm=algorithm, rounds=rounds, **own)}"
            )
        return fit_problem(problem, shards, algorithm, rounds=rounds, **common)
    if problem is not None or shards or (evaluate is not None and test is not None):
        raise ConfigError(
            "fit: model= goes with sites= alone, and with one of test= and evaluate=; got "
            f"{_given(model=model, problem=problem, shards=shards, evaluate=evaluate, test=test)}"
        )
    if algorithm is not None and (clash := {"step_size", "local_steps", "batch_size"} & set(own)):
        raise ConfigError(
            f"{min(clash)}: is of the algorithm that None stands for, got it with algorithm="
        )
    if rounds is not None:
        own["rounds"] = rounds
    return fit_module(model, sites, algorithm=algorithm, **common, **own)


def _given(**arguments: object) -> str:
    """The names of what was given."""
    return ", ".join(k for k, v in arguments.items() if v is not None and v != ()) or "nothing"
