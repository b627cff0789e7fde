"""Training a torch module of one's own across sites, privately: the door for its people.

    import manifed
    found = manifed.fit(model=model, loss="cross-entropy", sites=sites, test=test,
                        privacy=manifed.ExampleLevel(epsilon=2, delta=1e-5))
    model.load_state_dict(found.state_dict)
    found.plot(), found.statement

`manifed.fit` with a module is `fit` here. Parameters that are `geoopt.ManifoldParameter`s stay on
their manifolds. What is protected, and how, is what ``privacy`` says.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import Dataset

from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.tangent_mean import TangentMean
from manifed.errors import ConfigError, one_line, short
from manifed.federation.stacked import StackedTransport
from manifed.oracles.minibatch import Poisson
from manifed.problems.base import Examples
from manifed.problems.module_problem import Loss, ModuleProblem, NotPrivate, module_problem
from manifed.runs.fit import Algorithm, Privacy
from manifed.runs.fit import fit as fit_problem
from manifed.runs.result import Result

__all__ = ["ModuleProblem", "NotPrivate", "fit", "load", "module_problem"]

Site = Dataset[Any] | Mapping[str, Tensor] | tuple[Tensor, Tensor]
"""(feature, label) pairs: a data set of them, two tensors, or tensors by those names."""

Metric = Callable[[Tensor, Tensor], Tensor | float]
"""(outputs (n, *), labels (n, *)) of all test examples -> one number."""


def fit(
    model: nn.Module,
    sites: Sequence[Site],
    *,
    loss: str | Loss = "cross-entropy",
    rounds: int = 30,
    privacy: Privacy = None,
    step_size: float = 1.0,
    local_steps: int = 1,
    batch_size: float = 64.0,
    algorithm: Algorithm | None = None,
    strategy: TangentMean | None = None,
    test: Site | None = None,
    metrics: Mapping[str, Metric] | None = None,
    clip_shares: Mapping[str, float] | None = None,
    compute: Literal["float64", "float32"] | None = None,
    **options: Any,
) -> Result:
    """Train a copy of ``model`` on the examples of several sites, in this process.

    Args:
        model: its parameters are the start: public, whatever they were trained on before must be.
        sites: each site's examples.
        loss: as `module_problem`.
        rounds: how many.
        privacy: of `manifed.fit`; None protects nobody.
        step_size: of each local step; of Riemannian SGD by retractions, with Poisson batches.
        local_steps: between two rounds.
        batch_size: expected size of a batch; a site with fewer examples uses all of them.
        algorithm: another client update, with or without a server update.
        strategy: the server's part where ``algorithm`` is None: Adam, momentum, an average, step
            sizes by the round; None is the plain tangent mean.
        test: public examples; "test_loss" and "test_accuracy" stand in the curves.
        metrics: further columns of the curves: functions of outputs and labels of ``test``.
        clip_shares: of groups of parameters, by prefixes of their names: `module_problem`.
        compute: what the model computes in; None is float64. Norms, sums and noise are float64.
        options: further arguments of `manifed.fit`. The default of ``transport`` takes a whole
            cohort in one call.

    Raises:
        NotPrivate: the model lets examples meet.
        ConfigError: sites without examples, parts that do not go together, a function of one's own
            that raises.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    if metrics and test is None:
        raise ConfigError("metrics: are functions of public test examples, got none; give test=")
    if compute not in (None, "float64", "float32"):
        raise ConfigError(f"compute: expected 'float64' or 'float32', got {compute!r}")
    dtype = torch.float32 if compute == "float32" else torch.float64
    problem = module_problem(model, loss, dtype=dtype, clip_shares=clip_shares)
    shards = [examples_of(site, f"sites[{i}]") for i, site in enumerate(sites)]
    if not shards:
        raise ConfigError("sites: expected the examples of at least one site, got none")
    if algorithm is not None and strategy is not None:
        raise ConfigError("strategy: goes with algorithm=None; give (algorithm, strategy) instead")
    if algorithm is None:
        client = RSGD(
            step_size=step_size,
            local_steps=local_steps,
            minibatch=Poisson(batch_size=min(batch_size, *(float(len(s)) for s in shards))),
            maps="retraction",
        )
        algorithm = (client, strategy or TangentMean())
    if test is not None:
        options["is_evaluation_public"] = True
        judge = options["evaluate"] = judged_on(problem, examples_of(test, "test"), metrics or {})
        problem.point_shape(shards[0])
        try:
            judge(problem.start)  # what fails is told before a round is paid for
        except ArithmeticError as error:
            raise ConfigError(f"test: {error}") from None
    options.setdefault("start", problem.start)
    options.setdefault("transport", partial(StackedTransport, device="cpu", memory_budget_mb=1024))
    found = fit_problem(problem, shards, algorithm, rounds=rounds, privacy=privacy, **options)
    return replace(found, state_dict=problem.state_dict(found.model))


def examples_of(site: Site, name: str) -> Examples:
    """The examples of one site, features in float64.

    Raises:
        ConfigError: other than pairs of one shape.
    """
    if isinstance(site, Mapping):
        if set(site) != {"feature", "label"}:
            raise ConfigError(f"{name}: expected 'feature' and 'label', got {sorted(site)}")
        feature, label = site["feature"], site["label"]
    elif isinstance(site, tuple):
        feature, label = site
    else:
        feature, label = _columns(site, name)
    for tensor in (feature, label):
        if not isinstance(tensor, Tensor) or tensor.dim() == 0:
            raise ConfigError(f"{name}: expected tensors of examples, got {short(tensor)}")
    if len(feature) != len(label) or not len(feature):
        raise ConfigError(
            f"{name}: expected as many labels as features and at least one, got {len(feature)} "
            f"features and {len(label)} labels"
        )
    if feature.is_floating_point():
        feature = feature.to(torch.float64)
    return Examples(
        {"feature": feature, "label": label},
        {"feature": feature.dim() - 1, "label": label.dim() - 1},
    )


def _columns(site: Dataset[Any], name: str) -> tuple[Tensor, Tensor]:
    try:
        pairs = [site[i] for i in range(len(site))]  # pyright: ignore[reportArgumentType]
        features = torch.stack([torch.as_tensor(feature) for feature, _ in pairs])
        labels = torch.stack([torch.as_tensor(label) for _, label in pairs])
    except (TypeError, ValueError, RuntimeError) as error:
        said = " ".join(str(error).split())[:160]
        raise ConfigError(
            f"{name}: expected a data set of (feature, label) pairs of one shape: {said}"
        ) from None
    return features, labels


def judged_on(
    problem: ModuleProblem, examples: Examples, metrics: Mapping[str, Metric]
) -> Callable[[Tensor], Mapping[str, float]]:
    """What ``evaluate`` of `manifed.fit` takes: loss, accuracy and metrics on public examples."""

    def judge(x: Tensor) -> Mapping[str, float]:
        right = problem.correct(x, examples)
        row = {"test_loss": float(problem.losses(x, examples).mean())}
        if right is not None:
            row["test_accuracy"] = float(right.mean())
        if metrics:
            outputs = problem.outputs(x, examples)
            row |= {k: _measured(k, m, outputs, examples["label"]) for k, m in metrics.items()}
        return row

    return judge


def _measured(name: str, metric: Metric, outputs: Tensor, labels: Tensor) -> float:
    try:
        return float(metric(outputs, labels))
    except Exception as error:
        said = one_line(f"{type(error).__name__}: {error}", 200)
        raise ConfigError(
            f"metrics[{name!r}]: expected one number of outputs {tuple(outputs.shape)} and labels "
            f"{tuple(labels.shape)}, got {said}"
        ) from None


def load(run_dir: str | Path, model: nn.Module) -> dict[str, Tensor]:
    """The ``state_dict`` of a run of ``problem.kind = "module"``, for a model of that factory.

    Raises:
        ConfigError: the folder holds no model, or that of another module.
    """
    path = Path(run_dir) / "model.safetensors"
    if not path.is_file():
        raise ConfigError(f"{path}: expected the model of a run, found no such file")
    x = load_file(path)["x"]
    problem = module_problem(model)
    (size,) = problem.layout.manifold.point_shape
    if x.shape != (size,):
        raise ConfigError(
            f"{path}: expected {size} parameters, those of the model, got {tuple(x.shape)}"
        )
    return problem.state_dict(x)
