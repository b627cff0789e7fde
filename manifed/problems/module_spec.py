"""The configuration of a torch module of one's own: ``problem = { kind = "module", ... }``."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, Literal, TypeVar

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from manifed.problems import file_formats
from manifed.problems.data import ExampleKind, named
from manifed.problems.examples import Examples
from manifed.problems.module_problem import LOSSES, ModuleProblem, module_problem
from manifed.problems.problem import ModelStart, Problem, ProblemSource, Start

T = TypeVar("T")


class ModuleSpec(ProblemSource):
    """Training a module that a function of a package of one's own makes, the same at every node."""

    kind: Literal["module"] = "module"
    needs: ClassVar[ExampleKind] = "labelled-rows"
    start: Start = ModelStart()
    model: str
    """``package.module:factory``, a function without arguments that gives a `torch.nn.Module`."""
    loss: str = "cross-entropy"
    """"cross-entropy", "mse", or ``package.module:function`` of an output (1, *) and a label
    (1, *)."""
    model_seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Of torch's generator while the factory runs: the start point and all constants."""

    clip_shares: Mapping[str, float] | None = None
    """Groups of parameters that are clipped by themselves: `module_problem`."""
    compute: Literal["float64", "float32"] | None = None
    """What the model computes in; points, norms, sums and noise are float64. None: float64."""

    def __hash__(self) -> int:
        """Of its JSON: a mapping has no hash of its own."""
        return hash(self.model_dump_json())

    @field_validator("model")
    @classmethod
    def _is_function(cls, model: str) -> str:
        found = named(model, "factory")
        if not callable(found):
            raise ValueError(f"expected a function that makes a module, got {model!r}")
        return model

    @field_validator("loss")
    @classmethod
    def _is_loss(cls, loss: str) -> str:
        if loss not in LOSSES:
            try:
                file_formats.function(loss)
            except ValueError as error:
                raise ValueError(f"expected one of {sorted(LOSSES)}, or: {error}") from None
        return loss

    @property
    def reads(self) -> tuple[ExampleKind, ...]:
        """Rows with classes, with -1 and 1, or with real targets."""
        return ("labelled-rows", "classification", "regression")

    def build(self) -> ModuleProblem:
        """The problem; made once a process.

        Raises:
            ValueError: the factory gives no module, or one that cannot be private.
        """
        shares = None if self.clip_shares is None else tuple(self.clip_shares.items())
        return _built(self.model, self.loss, self.model_seed, self.compute == "float32", shares)

    def first_point(
        self, problem: Problem, shape: tuple[int, ...], generator: torch.Generator
    ) -> Tensor:
        """The parameters that the factory made; another start of the config where one is given."""
        if self.start.kind == "model":
            return self.build().start
        return super().first_point(problem, shape, generator)

    def prepare(self, shard: Examples, meta: Mapping[str, Any]) -> Examples:
        """``feature`` and ``label``; -1 and 1 become the classes 0 and 1."""
        del meta
        row = "z" if "z" in shard.tensors else "feature"
        key = "target" if "target" in shard.tensors else "label"
        feature, label = shard[row], shard[key]
        if key == "label":  # each by itself: one record must not change what others mean
            label = torch.where(label < 0, (label + 1) / 2, label)
        return Examples(
            {"feature": feature, "label": label},
            {"feature": shard.feature_ndim[row], "label": shard.feature_ndim[key]},
        )


def made(factory: Callable[[], T], seed: int) -> T:
    """What the factory makes when torch's generator starts at a seed, which is put back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # noqa: TID251  # constructors draw from no other generator
        return factory()


@lru_cache(maxsize=8)
def _built(
    model: str,
    loss: str,
    seed: int,
    is_short: bool,
    shares: tuple[tuple[str, float], ...] | None,
) -> ModuleProblem:
    factory = named(model, "factory")
    try:
        module = made(factory, seed)
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ValueError(f"problem.model: {model!r} raised {said}") from None
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"problem.model: expected {model!r} to give a torch.nn.Module, got "
            f"{type(module).__name__}"
        )
    return module_problem(
        module,
        loss if loss in LOSSES else named(loss, "function"),
        dtype=torch.float32 if is_short else torch.float64,
        clip_shares=None if shares is None else dict(shares),
    )
