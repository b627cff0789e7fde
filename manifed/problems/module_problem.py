"""The problem of training any torch module: f_j(x) = loss(model_x(feature_j), label_j).

x packs the trained parameters (`module_checks`), so it travels, averages and clips as one tensor;
one clip bounds the joint gradient in the sum of the factors' metrics. Gradients of each example are
`torch.func`'s, one example in a batch of one, so a reduction over the batch is that example's own.
What is clipped and summed needs no gradient of most parameters: `module_ghost`. In a config it is
``problem = { kind = "module", ... }``.
"""

# pyright: reportIncompatibleVariableOverride=false
# (what any problem has as an attribute, this class fixes)

from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from functools import cache, lru_cache, partial
from itertools import chain
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import field_validator
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves, tree_map

from manifed.errors import ConfigError, check_kind, described, short
from manifed.fields import Seed, Values
from manifed.layers import KeyedDropout, keyed
from manifed.manifolds.linalg import Shape, Tensors, standard_normal
from manifed.manifolds.product import Product
from manifed.problems.data import ExampleKind, named
from manifed.problems.examples import KEY, Examples
from manifed.problems.module_checks import (
    NotPrivate,
    OwnRows,
    as_point,
    check_forward,
    laid_out,
)
from manifed.problems.module_ghost import (
    Call,
    ModuleGradients,
    Read,
    Reading,
    parts_of,
    without,
)
from manifed.problems.problem import Gradients, ModelStart, Problem, ProblemSource, Start
from manifed.problems.rows import are_plain

Loss = Callable[[Tensor, Tensor], Tensor]
"""(output (1, *), label (1, *)) -> one number."""
_One = Mapping[str, Tensor]
"""One example: its feature, its label and, where something is dropped, the key of that."""
_Kept = tuple[Shape, torch.dtype]
"""Shape and type of a part of one example."""

_CHUNK_ELEMENTS = 1 << 24
"""Numbers of examples' gradients that are computed at once: 128 MiB in float64."""
_CALLS_BEFORE_RECORD = 50
"""After so many calls a record, which takes as long as they do, has paid for itself."""


def _cross_entropy(output: Tensor, label: Tensor) -> Tensor:
    """-log softmax(output) (1, classes) at the class ``label`` (1,); 0 where there is none such.

    So a record whose label is no class adds nothing, whatever it is.
    """
    classes = torch.arange(output.shape[-1], device=output.device)
    is_it = classes == label.reshape(-1, *[1] * (output.dim() - 1))
    return -torch.where(is_it, torch.log_softmax(output, -1), 0.0).sum()


_LOSSES: Mapping[str, Loss] = {
    "cross-entropy": _cross_entropy,
    "mse": lambda output, label: nn.functional.mse_loss(output, label.reshape(output.shape)),
}


class ModuleProblem(Problem):
    """The problem of training a copy of ``model`` on a product manifold.

    Examples are ``feature`` (..., n, *feature) and ``label`` (..., n, *label).

    Args:
        model: takes a batch (b, *feature) and gives a tensor with one row an example.
        loss: "cross-entropy" (labels are class numbers), "mse", or a function of an output (1, *)
            and a label (1, *) that gives one number.
        dtype: what the model computes in, float64 or float32. Norms, clips, sums, noise and points
            are float64 either way, so the bounds hold alike.

    Raises:
        NotPrivate: a layer mixes examples or keeps them.
        ValueError: a loss, a manifold or parameters that are unknown here.
    """

    has_optimum = False
    manifold: Product

    def __init__(
        self,
        model: nn.Module,
        loss: str | Loss = "cross-entropy",
        *,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ConfigError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
        self.loss: Any = _LOSSES.get(loss) if isinstance(loss, str) else loss
        if not callable(self.loss):
            raise ConfigError(
                f"loss: expected one of {sorted(_LOSSES)} or a function, got {short(loss)}"
            )
        check_kind("dtype", dtype, torch.dtype, "torch.float64 or torch.float32")
        self.is_classifier = loss == "cross-entropy"
        """Whether the largest output names a class."""
        self.model = deepcopy(model).to(torch.float64)
        self.dtype = dtype
        self.manifold = laid_out(self.model)
        self.shapes = {n: p.shape for n, p in self.model.named_parameters() if p.requires_grad}
        """The shape of each trained parameter, by its first name."""
        self._dropouts = [m for m in self.model.modules() if isinstance(m, KeyedDropout) and m.p]
        self.needs_keys = bool(self._dropouts)
        self._numbers = 1  # that are held at once for an example
        whole = chain(self.model.named_parameters(), self.model.named_buffers())
        self._constants = {name: t.detach() for name, t in whole if name not in self.shapes}
        self._checked = cache(self._check)
        self._records: dict[Hashable, tuple[int, Any]] = {}

    def __repr__(self) -> str:
        """Tells what is trained, by which loss, in which type."""
        return f"ModuleProblem({self.model}, {self.loss}, {self.dtype})"

    @property
    def start(self) -> Tensor:
        """The parameters with which the model came, one point (P,) in float64."""
        return self.manifold.projx(self.pack(dict(self.model.named_parameters())))

    def pack(self, tensors: Tensors) -> Tensor:
        """Packs tensors by parameter name into one vector (P,) in float64; others are ignored."""
        return self.manifold.pack({name: as_point(tensors[name]) for name in self.shapes})

    def unpack(self, x: Tensor) -> dict[str, Tensor]:
        """Returns the parameters, by name, of one point (P,)."""
        parts = self.manifold.unpack(x)
        return {name: parts[name].reshape(shape) for name, shape in self.shapes.items()}

    def state_dict(self, x: Tensor) -> dict[str, Tensor]:
        """Returns what ``model.load_state_dict`` takes: parameters of x, constants of the model."""
        model = deepcopy(self.model)
        model.load_state_dict(self.unpack(x.detach()), strict=False)
        return {name: t.as_subclass(Tensor) for name, t in model.state_dict().items()}

    def outputs(self, x: Tensor, examples: Examples) -> Tensor:
        """Returns the model's output for each example, shape ``(..., n, *output)``."""
        return self._over_examples(lambda x, one: self._output(x, one)[0], x, examples)

    # -- the problem -----------------------------------------------------------------------------
    @property
    def allows_threads(self) -> bool:
        """False: all that is computed goes through one module."""
        return False

    def point_shape(self, examples: Examples) -> Shape:
        """(P,), after the model was tried on examples of this shape.

        Raises:
            NotPrivate: it mixes examples, keeps them, or cannot be differentiated example-wise.
        """
        self._tried(examples)
        return self.manifold.point_shape

    def widened(self, examples: Examples) -> Examples:
        """Real numbers in float64; whole ones are labels and indices, and stay."""
        return examples.to(torch.float64)

    def made_up(self, like: Examples, count: int, generator: torch.Generator) -> Examples:
        """Normal features, zeros where numbers are whole, and uniform keys of what is dropped."""
        made = super().made_up(like, count, generator)
        if KEY in made.tensors:
            keys = torch.rand(count, generator=generator, dtype=made[KEY].dtype)
            made = made.beside(KEY, keys)
        return made

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """loss(model(feature_j), label_j), shape ``(..., n)``."""
        return self._over_examples(self._loss, x, examples).to(x.dtype)

    def gradients(self, x: Tensor, examples: Examples) -> Gradients:
        """Gradients of `rgrads`, most parameters' by what their layers saw."""
        calls = self._tried(examples)
        read = self._over_examples(partial(self._read, calls), x, examples)
        return ModuleGradients(parts_of(self.manifold, x, calls, read))

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """Riemannian gradients of each example, shape ``(..., n, P)``."""
        egrads = self._over_examples(grad(self._loss), x, examples)
        return self.manifold.egrad2rgrad(x.unsqueeze(-2).expand(egrads.shape), egrads)

    def correct(self, x: Tensor, examples: Examples) -> Tensor | None:
        """1 where the largest output is the label's, shape ``(..., n)``; None: no classes."""
        if not self.is_classifier:
            return None
        return self._over_examples(self._is_right, x, examples)

    def predict(self, x: Tensor, features: Tensor) -> Tensor:
        """The class of each row, (n,), with cross-entropy; else the model's outputs."""
        examples = Examples({"feature": features})
        if not self.is_classifier:
            return self.outputs(x, examples)
        return self._over_examples(self._best, x, examples)

    # -- one example -----------------------------------------------------------------------------
    def _named(self, x: Tensor) -> dict[str, Tensor]:
        """Parameters and constants by name, in the type that the model computes in."""
        both = {**self.unpack(x), **self._constants}
        return {name: self._in_type(tensor) for name, tensor in both.items()}

    def _in_type(self, tensor: Tensor) -> Tensor:
        """Turns real numbers into the type that the model computes in; whole numbers stay."""
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def _output(self, x: Tensor | _One, one: _One, rows: OwnRows | None = None) -> Tensor:
        """The model's output for one example, (1, *), at a point or with parameters by name."""
        parameters = self._named(x) if isinstance(x, Tensor) else dict(x)
        feature = self._in_type(one["feature"]).unsqueeze(0)
        with keyed(self._dropouts, one.get(KEY)), rows or OwnRows():
            return functional_call(self.model, parameters, (feature,))

    def _loss(self, x: Tensor | _One, one: _One, rows: OwnRows | None = None) -> Tensor:
        output = self._output(x, one, rows)
        with OwnRows():
            return self.loss(output, one["label"].unsqueeze(0)).sum()

    def _is_right(self, x: Tensor, one: _One) -> Tensor:
        return (self._best(x, one) == one["label"].long()).to(x.dtype)

    def _best(self, x: Tensor, one: _One) -> Tensor:
        return self._output(x, one).reshape(1, -1).argmax(-1)[0]

    def _read(self, calls: Iterable[Call], x: Tensor, one: _One) -> Read:
        """What the calls read, and the gradients of the other parameters."""
        parameters = self._named(x)
        read = {name: parameters[name] for call in calls for name in call.kinds}
        plain = {name: parameters[name] for name in self.shapes if name not in read}
        zeros = [x.new_zeros(call.output, dtype=self.dtype) for call in calls]

        def loss(zeros: list[Tensor], plain: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
            reading = Reading(read, zeros)
            value = self._loss({**parameters, **plain}, one, reading)
            return value, [call.input for call in reading.calls]

        (errors, egrads), inputs = grad(loss, argnums=(0, 1), has_aux=True)(zeros, plain)
        return Read(inputs, errors, egrads)

    # -- all examples ----------------------------------------------------------------------------
    def _over_examples(self, one: Callable[..., Any], x: Tensor, examples: Examples) -> Any:
        """`_mapped`, once it was tried: what fails then fails by an example's numbers.

        Raises:
            ArithmeticError: for these examples together, among them an index out of range; an
                oracle looks for the ones at fault, which count as zero. Of a table (`OwnRows`) it
                gives NaN, of that example alone.
        """
        try:
            return self._mapped(one, x, examples)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, IndexError):
            raise ArithmeticError("Expected examples that the model can be computed for") from None

    def _mapped(self, one: Callable[..., Any], x: Tensor, examples: Examples) -> Any:
        """``one(x, example_j)`` for all examples of all clients, (..., n, *value)."""
        n = len(examples)
        is_read = isinstance(one, partial)  # what layers saw, and no gradient of the whole
        numbers = self._numbers if is_read else max(self._numbers, x.shape[-1])
        many = max(1, _CHUNK_ELEMENTS // numbers)
        each = vmap(one, in_dims=(None, 0), chunk_size=None if n <= many else many)
        ends = {key: (n, *shape) for key, shape in examples.shapes.items()}
        tensors = dict(examples.tensors)
        leads = [t.shape[: t.dim() - len(ends[key])] for key, t in tensors.items()]
        lead = np.broadcast_shapes(x.shape[:-1], *leads)
        if not lead:
            return self._recorded(each, x, tensors) if is_read else each(x, tensors)
        flat = {
            key: t.expand(*lead, *ends[key]).flatten(0, len(lead) - 1) for key, t in tensors.items()
        }
        rows = max(1, _CHUNK_ELEMENTS // (numbers * max(n, 1)))
        xs = x.expand(*lead, -1).flatten(0, -2)
        found = vmap(each, in_dims=(0, 0), chunk_size=rows)(xs, flat)
        return tree_map(lambda tensor: tensor.unflatten(0, lead), found)

    def _recorded(self, each: Callable[..., Any], x: Tensor, tensors: dict[str, Tensor]) -> Any:
        """``each(x, tensors)``; from some call on as a list of operations that have the same bits.

        They are those that torch ran for tensors of these shapes before, without the work of
        finding them again. A model that gives other bits in its second call is not recorded.
        """
        of = ((name, t.shape, t.dtype, t.stride()) for name, t in tensors.items())
        key = (x.shape, x.dtype, x.device, *of)
        count, graph = self._records.get(key, (0, None))
        if graph is not None:
            return graph(x, tensors)
        found = each(x, tensors)
        if count == _CALLS_BEFORE_RECORD and are_plain(x):
            with suppress(Exception):  # a model is code of somebody's own, and this one runs
                made = make_fx(each)(x, tensors)
                again = tree_leaves(made(x, tensors))
                if all(map(torch.equal, again, tree_leaves(found))):
                    graph = made
        self._records[key] = (count + 1, graph)
        return found

    # -- one shape of examples, tried once -------------------------------------------------------
    def _tried(self, examples: Examples) -> list[Call]:
        """The calls that gradients of such examples are read off."""

        def kept(key: str) -> _Kept:
            dtype = examples[key].dtype
            return examples.shapes[key], torch.float64 if dtype.is_floating_point else dtype

        return self._checked(kept("feature"), kept("label"))

    def _check(self, feature: _Kept, label: _Kept) -> list[Call]:
        """Try the model on made-up examples.

        Raises:
            NotPrivate: as `point_shape`.
        """
        check_forward(self.model, *feature)
        made = {"feature": feature, "label": label}
        blank = Examples(
            {key: torch.zeros(2, *shape, dtype=dtype) for key, (shape, dtype) in made.items()}
        )
        try:
            gradients = self._mapped(grad(self._loss), self.start, blank)
        except NotPrivate:
            raise
        except Exception as error:  # model and loss are code of somebody's own
            raise NotPrivate(
                "model, loss: no gradient of each example by torch.func (in-place changes, control "
                f"flow on values, draws without a generator): {described(error)}"
            ) from None
        if gradients.shape != (2, *self.manifold.point_shape):
            raise NotPrivate(
                f"loss: expected one number an example, got gradients of {tuple(gradients.shape)}"
            )
        calls = self._readable(blank)
        read = {name for call in calls for name in call.kinds}
        others = sum(s.numel() for name, s in self.shapes.items() if name not in read)
        held = 4 * (others + sum(call.numbers for call in calls))
        self._numbers = max(self._numbers, held)
        self.points_per_example = self._numbers / gradients.shape[-1]
        return calls

    def _readable(self, blank: Examples) -> list[Call]:
        """The calls off which gradients can be read, at a point and an example made up.

        What differs from torch.func's gradient is left to that: a script may use a parameter, too.
        """
        generator = torch.Generator().manual_seed(0)
        x = self.manifold.projx(
            self.start + 0.1 * standard_normal(tuple(self.start.shape), generator)
        )
        trial = self.made_up(blank, 2, generator)
        parameters = self._named(x)
        reading = Reading({name: parameters[name] for name in self.shapes})
        with torch.no_grad():
            self._output(parameters, {key: t[0] for key, t in trial.tensors.items()}, reading)
        calls = reading.readable(self.manifold)
        read = self._mapped(partial(self._read, calls), x, trial)
        parts = parts_of(self.manifold, x, calls, read)
        found = ModuleGradients(parts).sum(torch.tensor([1.0, 0.0], dtype=x.dtype))
        right = self.rgrads(x, trial)[0]
        tolerance = 100 * torch.finfo(self.dtype).eps ** 0.75 * (1 + right.abs().max())
        apart = self.manifold.unpack((found - right).abs())
        return without(calls, {n for n, gap in apart.items() if bool((gap > tolerance).any())})


# -- of a config ---------------------------------------------------------------------------------
class ModuleSpec(ProblemSource):
    """Trains a torch module that a function of your package makes."""

    kind: Literal["module"] = "module"
    needs: ClassVar[ExampleKind] = "labelled-rows"
    start: Start = ModelStart()
    model: str
    """``package.module:factory``: a function without arguments that returns a `torch.nn.Module`."""
    loss: str = "cross-entropy"
    """"cross-entropy", "mse", or ``package.module:function`` of an output (1, *) and a label
    (1, *)."""
    model_seed: Seed = 0
    """Seed of torch's generator while the factory runs."""

    compute: Literal["float64", "float32"] | None = None
    """Precision of the module. Points, norms, sums and noise are float64. None: float64."""

    @field_validator("model")
    @classmethod
    def _is_function(cls, model: str) -> str:
        if not callable(named(model, "factory")):
            raise ValueError(f"expected a function that makes a module, got {model!r}")
        return model

    @field_validator("loss")
    @classmethod
    def _is_loss(cls, loss: str) -> str:
        try:
            if loss not in _LOSSES:
                named(loss, "function")
        except ValueError as error:
            raise ValueError(f"expected one of {sorted(_LOSSES)}, or: {error}") from None
        return loss

    @property
    def reads(self) -> tuple[ExampleKind, ...]:
        """Rows with classes, with -1 and 1, or with real targets."""
        return ("labelled-rows", "classification", "regression")

    def build(self) -> ModuleProblem:
        """Makes the problem, once a process.

        Raises:
            ValueError: the factory gives no module, or one that cannot be private.
        """
        return _built(self)  # pyright: ignore[reportArgumentType]  # a frozen model has a hash

    def first_point(self, problem: Problem, shape: Shape, generator: torch.Generator) -> Tensor:
        """The parameters that the factory made; another start of the config where one is given."""
        if self.start.kind == "model":
            return self.build().start
        return super().first_point(problem, shape, generator)

    def prepare(self, shard: Examples, meta: Values) -> Examples:
        """``feature`` and ``label``; -1 and 1 become the classes 0 and 1."""
        del meta
        row = "z" if "z" in shard.tensors else "feature"
        key = "target" if "target" in shard.tensors else "label"
        label = shard[key]
        if key == "label":  # each by itself: one record must not change what others mean
            label = torch.where(label < 0, (label + 1) / 2, label)
        return Examples({"feature": shard[row], "label": label})


def made(factory: Callable[[], Any], seed: int) -> Any:
    """Calls the factory with torch's generator at a seed, which is put back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # noqa: TID251  # constructors draw from no other generator
        return factory()


@lru_cache(maxsize=8)
def _built(spec: ModuleSpec) -> ModuleProblem:
    try:
        module = made(named(spec.model, "factory"), spec.model_seed)
    except Exception as error:
        raise ValueError(f"problem.model: {spec.model!r} raised {described(error)}") from None
    return ModuleProblem(
        module,
        spec.loss if spec.loss in _LOSSES else named(spec.loss, "function"),
        dtype=getattr(torch, spec.compute or "float64"),
    )
