"""Training a torch module of one's own across sites, privately: the door for its people.

    import manifed.torch
    found = manifed.torch.fit(model, sites, loss="cross-entropy", rounds=30, step_size=0.5,
                              privacy=privacy)
    model.load_state_dict(found.state_dict)

Parameters that are `geoopt.ManifoldParameter`s stay on their manifolds. What is protected, and how,
is what `privacy` says, as in `manifed.fit`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import Dataset

from manifed.algorithms.rsgd import RSGD
from manifed.errors import ConfigError
from manifed.oracles.minibatch import Poisson
from manifed.problems.base import Examples
from manifed.problems.module_problem import Loss, ModuleProblem, NotPrivate, module_problem
from manifed.runs.fit import Algorithm, Privacy, Result
from manifed.runs.fit import fit as fit_problem

__all__ = ["ModuleProblem", "NotPrivate", "Trained", "fit", "load", "module_problem"]

Site = Dataset[Any] | Mapping[str, Tensor] | tuple[Tensor, Tensor]
"""(feature, label) pairs: a data set of them, two tensors, or tensors by those names."""


@dataclass(frozen=True)
class Trained:
    """What training leaves."""

    state_dict: Mapping[str, Tensor]
    """For ``model.load_state_dict``."""
    result: Result
    """Curves and privacy statement."""

    @property
    def text(self) -> str:
        """The privacy statement, one fact a line."""
        return self.result.text


def fit(
    model: nn.Module,
    sites: Sequence[Site],
    *,
    loss: str | Loss = "cross-entropy",
    rounds: int,
    privacy: Privacy = None,
    step_size: float = 0.1,
    local_steps: int = 1,
    batch_size: float = 64.0,
    algorithm: Algorithm | None = None,
    test: Site | None = None,
    **options: Any,
) -> Trained:
    """Train a copy of ``model`` on the examples of several sites, in this process.

    Args:
        model: its parameters are the start: public, whatever they were trained on before must be.
        sites: each site's examples.
        loss: as `module_problem`.
        rounds: how many.
        privacy: of `manifed.fit`; None protects nobody.
        step_size: of each local step; of Riemannian SGD by retractions, with Poisson batches.
        local_steps: between two rounds.
        batch_size: expected size of a batch.
        algorithm: another client update, with or without a server update.
        test: public examples; "test_loss" and "test_accuracy" stand in the curves.
        options: further arguments of `manifed.fit`.

    Raises:
        NotPrivate: the model lets examples meet.
        ConfigError: sites without examples, parts that do not go together.
    """
    problem = module_problem(model, loss)
    if algorithm is None:
        batch = Poisson(batch_size=batch_size)
        algorithm = RSGD(
            step_size=step_size, local_steps=local_steps, minibatch=batch, maps="retraction"
        )
    shards = [examples_of(site, f"sites[{i}]") for i, site in enumerate(sites)]
    if test is not None:
        options["evaluate"] = judged_on(problem, examples_of(test, "test"))
    options.setdefault("start", problem.start)
    result = fit_problem(problem, shards, algorithm, rounds=rounds, privacy=privacy, **options)
    return Trained(problem.state_dict(result.model), result)


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
    problem: ModuleProblem, examples: Examples
) -> Callable[[Tensor], Mapping[str, float]]:
    """What ``evaluate`` of `manifed.fit` takes: loss and accuracy on public examples."""

    def judge(x: Tensor) -> Mapping[str, float]:
        right = problem.correct(x, examples)
        row = {"test_loss": float(problem.losses(x, examples).mean())}
        return row if right is None else row | {"test_accuracy": float(right.mean())}

    return judge


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
