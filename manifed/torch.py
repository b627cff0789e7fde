"""Trains a torch module across sites with privacy (`manifed.fit_module`).

    import manifed
    found = manifed.fit_module(model, sites, loss="cross-entropy", test=test,
                               privacy=manifed.ExampleLevel(epsilon=2, delta=1e-5))
    model.load_state_dict(found.state_dict)
    found.plot(), found.statement

Parameters that are `geoopt.ManifoldParameter`s stay on their manifolds. What is protected, and how,
is what ``privacy`` says. A copy of the model is trained; its parameters are the start, and public.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from manifed.algorithms.algorithm import ClientUpdate, ServerUpdate
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.tangent_mean import TangentMean
from manifed.errors import ConfigError, check_kind, described, one_line, short
from manifed.oracles.minibatch import Poisson
from manifed.problems.examples import Examples
from manifed.problems.module_problem import Loss, ModuleProblem, NotPrivate
from manifed.problems.own_arrays import columns_of, tensor_of

__all__ = ["ModuleProblem", "NotPrivate", "load"]

Algorithm = ClientUpdate | tuple[ClientUpdate, ServerUpdate]
"""A client update, or one with the server's."""

Site = Dataset[Any] | Sequence[Any] | Mapping[str, Any] | tuple[Any, Any]
"""(feature, label) pairs: a data set or list of them, two arrays, or arrays by those names."""

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
    model: nn.Module | ModuleProblem,
    sites: Any,
    algorithm: Algorithm | None,
    steps: Mapping[str, Any],
    *,
    loss: str | Loss = "cross-entropy",
    test: Site | None = None,
    metrics: Mapping[str, Metric] | None = None,
    compute: str = "float64",
) -> _Task:
    """Makes the training task of a module; the arguments of `manifed.fit_module` explain its own.

    A problem has its loss and its type already, and so have examples their tensors.

    ``steps`` are those of the algorithm that None stands for; None of them is its default.

    Raises:
        NotPrivate: the model lets examples meet.
        ConfigError: sites without examples, parts that do not go together, a function of one's own
            that raises.
    """
    given = {name: value for name, value in steps.items() if value is not None}
    if algorithm is not None and given:
        raise ConfigError(
            f"{next(iter(given))}: expected algorithm=None beside it, got both; set it in algorithm"
        )
    if metrics is not None and test is None:
        raise ConfigError(
            "metrics: expected test= beside them, got none; give public test examples"
        )
    if str(compute) not in ("float64", "float32"):
        raise ConfigError(f"compute: expected 'float64' or 'float32', got {short(compute)}")
    dtype = getattr(torch, str(compute))
    problem = model if isinstance(model, ModuleProblem) else ModuleProblem(model, loss, dtype=dtype)
    if not isinstance(sites, Sequence) or isinstance(sites, str):
        raise ConfigError(
            f"sites: expected a list with one entry a site, got {type(sites).__name__}"
        )
    shards = [
        site if isinstance(site, Examples) else examples_of(site, f"sites[{i}]")
        for i, site in enumerate(sites)
    ]
    if not shards:
        raise ConfigError("sites: expected the examples of at least one site, got none")
    for i, columns in enumerate(map(columns_of, sites)):
        if columns != columns_of(sites[0]):
            raise ConfigError(
                f"sites[{i}]: expected a frame with columns {columns_of(sites[0])} like the first "
                f"site's, got {columns}"
            )
    if algorithm is None:
        step: Any = {"step_size": 1.0, "local_steps": 1} | given
        server = step.pop("strategy", TangentMean())
        check_kind("strategy", server, ServerUpdate, "a server update like TangentMean(...)")
        asked = Poisson(batch_size=step.pop("batch_size", 64.0)).batch_size
        batch = Poisson(batch_size=min(asked, *(float(len(s)) for s in shards)))
        algorithm = (RSGD(**step, minibatch=batch, maps="retraction"), server)
    judge = None
    if test is not None:
        metrics = {} if metrics is None else metrics
        check_kind("metrics", metrics, Mapping, "a dict of functions")
        judge = _judged_on(problem, examples_of(test, "test"), metrics)
    return _Task(problem, shards, algorithm, judge)


def examples_of(site: Site, name: str) -> Examples:
    """Makes the examples of one site.

    Raises:
        ConfigError: other than pairs of one shape.
    """
    held: Any = site
    if not isinstance(site, Mapping | tuple):
        try:
            held = default_collate([site[i] for i in range(len(site))])  # pyright: ignore[reportArgumentType]
            held = held if isinstance(held, Mapping) else tuple(held)
        except Exception as error:  # a data set is code of somebody's own
            said = one_line(str(error), 160)
            raise ConfigError(
                f"{name}: expected a data set of (feature, label) pairs of one shape, or a tuple "
                f"of two arrays, got {type(site).__name__}: {said}"
            ) from None
    if isinstance(held, tuple) and len(held) == 2:
        held = dict(zip(("feature", "label"), held, strict=True))
    if not isinstance(held, Mapping) or set(held) != {"feature", "label"}:
        got = sorted(map(str, held)) if isinstance(held, Mapping) else f"{len(held)} parts"
        raise ConfigError(f"{name}: expected pairs, as 'feature' and 'label', got {got}")
    tensors = {key: tensor_of(held[key], f"{name}, {key!r}") for key in ("feature", "label")}
    sizes = {key: len(tensor) if tensor.dim() else 0 for key, tensor in tensors.items()}
    if len({*sizes.values()}) > 1 or not sizes["label"]:
        raise ConfigError(
            f"{name}: expected as many labels as features and at least one, got {sizes['feature']} "
            f"features and {sizes['label']} labels"
        )
    return Examples(tensors)


def _judged_on(
    problem: ModuleProblem, examples: Examples, metrics: Mapping[str, Metric]
) -> Callable[[Tensor], Mapping[str, float]]:
    """Loss, accuracy and metrics of a model on public examples."""
    examples = problem.widened(examples)

    def judge(x: Tensor) -> Mapping[str, float]:
        try:
            right = problem.correct(x, examples)
            row = {"test_loss": float(problem.losses(x, examples).mean())}
        except ArithmeticError as error:
            raise ConfigError(f"test: {error}") from None
        if right is not None:
            row["test_accuracy"] = float(right.mean())
        labels = examples["label"]
        outputs = problem.outputs(x, examples) if metrics else labels
        for name, metric in metrics.items():
            try:
                row[name] = float(metric(outputs, labels))
            except Exception as error:  # a metric is code of somebody's own
                raise ConfigError(
                    f"metrics[{name!r}]: expected one number of outputs {tuple(outputs.shape)} "
                    f"and labels {tuple(labels.shape)}, got {described(error)}"
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
