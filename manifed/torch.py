"""Trains a torch module of one's own across sites with privacy (the module road of `fit`).

    import manifed
    found = manifed.fit(model=model, loss="cross-entropy", sites=sites, test=test,
                        privacy=manifed.ExampleLevel(epsilon=2, delta=1e-5))
    model.load_state_dict(found.state_dict)
    found.plot(), found.statement

Parameters that are `geoopt.ManifoldParameter`s stay on their manifolds. What is protected, and how,
is what ``privacy`` says. A copy of the model is trained; its parameters are the start, and public.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from manifed.algorithms.algorithm import ClientUpdate, ServerUpdate
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.tangent_mean import TangentMean
from manifed.errors import ConfigError, one_line, short
from manifed.oracles.minibatch import Poisson
from manifed.problems.examples import Examples
from manifed.problems.module_problem import Loss, ModuleProblem, NotPrivate

__all__ = ["ModuleProblem", "NotPrivate", "load"]

Algorithm = ClientUpdate | tuple[ClientUpdate, ServerUpdate]
"""A client update, or one with the server's."""

Site = Dataset[Any] | Mapping[str, Tensor] | tuple[Tensor, Tensor]
"""(feature, label) pairs: a data set of them, two tensors, or tensors by those names."""

Metric = Callable[[Tensor, Tensor], Tensor | float]
"""(outputs (n, *), labels (n, *)) of all test examples -> one number."""


class _Task(NamedTuple):
    """A module and its sites as a fit takes them."""

    problem: ModuleProblem
    shards: Sequence[Examples]
    algorithm: Algorithm
    judge: Callable[[Tensor], Mapping[str, float]] | None
    """What judges a model by public examples, where there are some."""


def task_of(
    model: nn.Module,
    sites: Sequence[Site],
    algorithm: Algorithm | None = None,
    *,
    loss: str | Loss = "cross-entropy",
    step_size: float | None = None,
    local_steps: int | None = None,
    batch_size: float | None = None,
    strategy: TangentMean | None = None,
    test: Site | None = None,
    metrics: Mapping[str, Metric] | None = None,
    compute: Literal["float64", "float32"] | None = None,
) -> _Task:
    """Makes the training task of a module; the arguments of `manifed.fit` explain its own.

    Raises:
        NotPrivate: the model lets examples meet.
        ConfigError: sites without examples, parts that do not go together, a function of one's own
            that raises.
    """
    steps = {
        "step_size": step_size, "local_steps": local_steps, "batch_size": batch_size,
        "strategy": strategy,
    }  # fmt: skip
    given = [name for name, value in steps.items() if value is not None]
    if algorithm is not None and given:
        raise ConfigError(
            f"{given[0]}: is of the algorithm that None stands for, got it with algorithm="
        )
    if metrics and test is None:
        raise ConfigError("metrics: are functions of public test examples, got none; give test=")
    if compute not in (None, "float64", "float32"):
        raise ConfigError(f"compute: expected 'float64' or 'float32', got {compute!r}")
    dtype = getattr(torch, compute or "float64")
    problem = ModuleProblem(model, loss, dtype=dtype)
    shards = [examples_of(site, f"sites[{i}]") for i, site in enumerate(sites)]
    if not shards:
        raise ConfigError("sites: expected the examples of at least one site, got none")
    if algorithm is None:
        size = 64.0 if batch_size is None else batch_size
        client = RSGD(
            step_size=1.0 if step_size is None else step_size,
            local_steps=1 if local_steps is None else local_steps,
            minibatch=Poisson(batch_size=min(size, *(float(len(s)) for s in shards))),
            maps="retraction",
        )
        algorithm = (client, strategy or TangentMean())
    judge = None
    if test is not None:
        judge = _judged_on(problem, examples_of(test, "test"), metrics or {})
        problem.point_shape(shards[0])
        try:
            judge(problem.start)  # what fails is told before a round is paid for
        except ArithmeticError as error:
            raise ConfigError(f"test: {error}") from None
    return _Task(problem, shards, algorithm, judge)


def examples_of(site: Site, name: str) -> Examples:
    """Makes the examples of one site.

    Raises:
        ConfigError: other than pairs of one shape.
    """
    if isinstance(site, Mapping):
        if set(site) != {"feature", "label"}:
            raise ConfigError(f"{name}: expected 'feature' and 'label', got {sorted(site)}")
        feature = site["feature"]
        label = site["label"]
    elif isinstance(site, tuple):
        feature, label = site
    else:
        try:
            feature, label = default_collate([site[i] for i in range(len(site))])  # pyright: ignore[reportArgumentType]
        except Exception as error:  # a data set is code of somebody's own
            said = one_line(str(error), 160)
            raise ConfigError(
                f"{name}: expected a data set of (feature, label) pairs of one shape: {said}"
            ) from None
    for tensor in (feature, label):
        if not isinstance(tensor, Tensor) or tensor.dim() == 0:
            raise ConfigError(f"{name}: expected tensors of examples, got {short(tensor)}")
    if len(feature) != len(label) or not len(feature):
        raise ConfigError(
            f"{name}: expected as many labels as features and at least one, got {len(feature)} "
            f"features and {len(label)} labels"
        )
    return Examples({"feature": feature, "label": label})


def _judged_on(
    problem: ModuleProblem, examples: Examples, metrics: Mapping[str, Metric]
) -> Callable[[Tensor], Mapping[str, float]]:
    """What ``evaluate`` of `manifed.fit` takes: loss, accuracy and metrics on public examples."""

    def judge(x: Tensor) -> Mapping[str, float]:
        right = problem.correct(x, examples)
        row = {"test_loss": float(problem.losses(x, examples).mean())}
        if right is not None:
            row["test_accuracy"] = float(right.mean())
        labels = examples["label"]
        outputs = problem.outputs(x, examples) if metrics else labels
        for name, metric in metrics.items():
            try:
                row[name] = float(metric(outputs, labels))
            except Exception as error:  # a metric is code of somebody's own
                said = one_line(f"{type(error).__name__}: {error}", 200)
                raise ConfigError(
                    f"metrics[{name!r}]: expected one number of outputs {tuple(outputs.shape)} "
                    f"and labels {tuple(labels.shape)}, got {said}"
                ) from None
        return row

    return judge


def load(run_dir: str | Path, model: nn.Module) -> dict[str, Tensor]:
    """Reads the ``state_dict`` of a run of ``problem.kind = "module"``, for that factory's model.

    Raises:
        ConfigError: the folder holds no model, or that of another module.
    """
    path = Path(run_dir) / "model.safetensors"
    if not path.is_file():
        raise ConfigError(f"{path}: expected the model of a run, found no such file")
    x = load_file(path)["x"]
    problem = ModuleProblem(model)
    (size,) = problem.manifold.point_shape
    if x.shape != (size,):
        raise ConfigError(
            f"{path}: expected {size} parameters, those of the model, got {tuple(x.shape)}"
        )
    return problem.state_dict(x)
