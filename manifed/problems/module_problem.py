"""Any torch module as a problem: f_j(x) = loss(model_x(feature_j), label_j) on a product manifold.

x packs the trained parameters (`module_layout`), so it travels, averages and clips as one tensor;
one clip bounds the joint gradient in the sum of the factors' metrics. Gradients of each example are
`torch.func`'s, one example in a batch of one, so a reduction over the batch is that example's own.
What is clipped and summed needs no gradient of most parameters: `module_trace`,
`module_gradients`.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_map

from manifed.errors import one_line
from manifed.layers.dropout import KeyedDropout, keyed
from manifed.manifolds.linalg import standard_normal
from manifed.problems.examples import KEY, Examples
from manifed.problems.module_checks import NotPrivate, check_forward, check_layers
from manifed.problems.module_gradients import Groups, ModuleGradients, Part, is_table
from manifed.problems.module_layout import Layout
from manifed.problems.module_trace import Call, OwnRows, Read, Trace, assembled
from manifed.problems.problem import Gradients, Problem

Loss = Callable[[Tensor, Tensor], Tensor]
"""(output (1, *), label (1, *)) -> one number."""

OfOne = Callable[[Tensor, "One"], Any]
"""(x, example) -> its gradient, loss or answer, or tensors of them."""


class One(NamedTuple):
    """One example."""

    feature: Tensor
    label: Tensor
    key: Tensor | None = None
    """What dropout is drawn by; None: nothing is dropped."""


CHUNK_ELEMENTS = 1 << 24
"""Numbers of examples' gradients that are computed at once: 128 MiB in float64."""


def cross_entropy(output: Tensor, label: Tensor) -> Tensor:
    """-log softmax(output) (1, classes) at the class ``label`` (1,); 0 where there is none such.

    So a record whose label is no class adds nothing, whatever it is.
    """
    classes = torch.arange(output.shape[-1], device=output.device)
    is_it = classes == label.reshape(-1, *[1] * (output.dim() - 1))
    return -torch.where(is_it, torch.log_softmax(output, -1), 0.0).sum()


LOSSES: Mapping[str, Loss] = {
    "cross-entropy": cross_entropy,
    "mse": lambda output, label: nn.functional.mse_loss(output, label.reshape(output.shape)),
}


class ModuleProblem(Problem):
    """Examples ``feature`` (..., n, *feature) and ``label`` (..., n, *label).

    Use `module_problem`, which copies the model and refuses what cannot be private.
    """

    has_optimum = False

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        *,
        is_classifier: bool,
        dtype: torch.dtype,
        clip_shares: Mapping[str, float] | None,
    ) -> None:
        self.model, self.loss, self.is_classifier = model, loss, is_classifier
        self.dtype = dtype
        self.layout = Layout.of(model)
        self.manifold = self.layout.manifold
        self._dropouts = [m for m in model.modules() if isinstance(m, KeyedDropout) and m.p]
        self.needs_keys = bool(self._dropouts)
        names = tuple(self.layout.shapes)
        self.groups = None if clip_shares is None else Groups.by_prefix(names, clip_shares)
        self._trace = Trace(model, names)
        whole = {f.name for f in self.manifold.factors if not is_table(f.manifold)}
        self._trace.forget({n for n, kind in self._trace.roles.items() if kind == "table"} & whole)
        self._seen: dict[tuple[tuple[int, ...], torch.dtype], tuple[Call, ...]] = {}
        self._numbers = 1
        trained = set(self.layout.shapes)
        named = [*model.named_parameters(), *model.named_buffers()]
        self._constants = {name: t.detach() for name, t in named if name not in trained}
        self._checked = cache(self._check)

    @property
    def start(self) -> Tensor:
        """The parameters that the model came with, one point (P,) in float64."""
        return self.manifold.projx(self.layout.pack(dict(self.model.named_parameters())))

    def state_dict(self, x: Tensor) -> dict[str, Tensor]:
        """What ``model.load_state_dict`` takes: the parameters of x, in the model's own types."""
        state = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        found = self.layout.unpack(x.detach().to("cpu"))
        first = {id(p): name for name, p in self.model.named_parameters()}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            if (one := first[id(parameter)]) in found:
                state[name] = found[one].to(parameter.dtype)
        return state

    def outputs(self, x: Tensor, examples: Examples) -> Tensor:
        """What the model says of each example, shape ``(..., n, *output)``."""
        return self._over_examples(self._answer, x, examples)

    # -- the problem -----------------------------------------------------------------------------
    def point_shape(self, examples: Examples) -> tuple[int, ...]:
        """(P,), after the model was tried on examples of this shape.

        Raises:
            NotPrivate: it mixes examples, keeps them, or cannot be differentiated example-wise.
        """
        feature, label = examples["feature"], examples["label"]
        shape = feature.shape[feature.dim() - examples.feature_ndim["feature"] :]
        kept = label.shape[label.dim() - examples.feature_ndim["label"] :]
        self._checked(tuple(shape), feature.dtype, tuple(kept), label.dtype)
        return self.layout.manifold.point_shape

    def made_up(self, like: Examples, count: int, generator: torch.Generator) -> Examples:
        """Normal features, zeros where numbers are whole, and uniform keys of what is dropped."""
        made = super().made_up(like, count, generator)
        if KEY not in made.tensors:
            return made
        keys = torch.rand(count, generator=generator, dtype=made[KEY].dtype)
        return made.beside(KEY, keys)

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """loss(model(feature_j), label_j), shape ``(..., n)``."""
        return self._over_examples(self._loss, x, examples).to(x.dtype)

    def gradients(self, x: Tensor, examples: Examples) -> Gradients:
        """Gradients of `rgrads`, most parameters' by what their layers saw."""
        self.point_shape(examples)
        read = self._over_examples(self._read, x, examples, self._numbers)
        return ModuleGradients(self._assembled(x, examples, read), self.groups)

    def _assembled(self, x: Tensor, examples: Examples, read: Read) -> list[Part]:
        feature = examples["feature"]
        one = feature[(0,) * (feature.dim() - examples.feature_ndim["feature"])]
        return assembled(self.layout.manifold, x, self._calls(one), read)

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """Riemannian gradients of each example, shape ``(..., n, P)``."""
        egrads = self._over_examples(grad(self._loss), x, examples)
        at = x.unsqueeze(-2).expand(egrads.shape)
        return self.manifold.egrad2rgrad(at, egrads)

    def correct(self, x: Tensor, examples: Examples) -> Tensor | None:
        """1 where the largest output is the label's, shape ``(..., n)``; None: no classes."""
        if not self.is_classifier:
            return None
        return self._over_examples(self._is_right, x, examples)

    # -- one example -----------------------------------------------------------------------------
    def _named(self, x: Tensor) -> dict[str, Tensor]:
        """Parameters and constants by name, in the type that the model computes in."""
        named = {**self.layout.unpack(x), **self._constants}
        return {name: tensor.to(self._type(tensor)) for name, tensor in named.items()}

    def _output(self, named: Mapping[str, Tensor], one: One) -> Tensor:
        """The model's output for one example, (1, *)."""
        with keyed(self._dropouts, one.key), OwnRows():
            return functional_call(self.model, dict(named), (one.feature.unsqueeze(0),))

    def _loss_of(self, named: Mapping[str, Tensor], one: One) -> Tensor:
        output = self._output(named, one)
        with OwnRows():
            return self.loss(output, one.label.unsqueeze(0)).sum()

    def _loss(self, x: Tensor, one: One) -> Tensor:
        return self._loss_of(self._named(x), one)

    def _answer(self, x: Tensor, one: One) -> Tensor:
        return self._output(self._named(x), one)[0]

    def _is_right(self, x: Tensor, one: One) -> Tensor:
        best = self._output(self._named(x), one).reshape(1, -1).argmax(-1)[0]
        return (best == one.label.long()).to(x.dtype)

    def _read(self, x: Tensor, one: One) -> Read:
        """What the watched layers saw, and the gradients of the other parameters."""
        named, trace = self._named(x), self._trace
        plain = {name: named[name] for name in self.layout.shapes if name not in trace.roles}
        zeros = [x.new_zeros(call.output, dtype=self.dtype) for call in self._calls(one.feature)]

        def loss(zeros: list[Tensor], plain: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
            with trace.listening(zeros) as calls:
                value = self._loss_of({**named, **plain}, one)
            return value, [call.input for call in calls]

        (errors, egrads), inputs = grad(loss, argnums=(0, 1), has_aux=True)(zeros, plain)
        return {"inputs": inputs, "errors": errors, "plain": egrads}

    def _type(self, tensor: Tensor) -> torch.dtype:
        """The one that the model computes with such numbers in."""
        return self.dtype if tensor.is_floating_point() else tensor.dtype

    # -- all examples ----------------------------------------------------------------------------
    def _over_examples(
        self, one: OfOne, x: Tensor, examples: Examples, numbers: int | None = None
    ) -> Any:
        """`_mapped`, once it was tried: what fails then fails by an example's numbers.

        Raises:
            ArithmeticError: for these examples together, among them an index out of range; an
                oracle looks for the ones at fault, which count as zero. Of a table (`OwnRows`) it
                gives NaN, of that example alone.
        """
        try:
            return self._mapped(one, x, examples, numbers)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, IndexError):
            raise ArithmeticError("Expected examples that the model can be computed for") from None

    def _mapped(self, one: OfOne, x: Tensor, examples: Examples, numbers: int | None = None) -> Any:
        """``one(x, feature_j, label_j)`` for all examples of all clients, (..., n, *value).

        ``numbers`` are held for each example while it is computed; None: a point's.
        """
        feature, label = examples["feature"], examples["label"]
        feature = feature.to(self._type(feature))
        n, ndim = len(examples), examples.feature_ndim
        numbers = numbers or x.shape[-1]
        lead = torch.Size(
            np.broadcast_shapes(x.shape[:-1], feature.shape[: feature.dim() - 1 - ndim["feature"]])
        )
        many = max(1, CHUNK_ELEMENTS // numbers)
        key = examples.tensors.get(KEY)
        dims = One(0, 0, None if key is None else 0)  # pyright: ignore[reportArgumentType]
        each = vmap(one, in_dims=(None, dims), chunk_size=None if n <= many else many)
        if not lead:
            return each(x, One(feature, label, key))
        xs = x.expand(*lead, x.shape[-1]).reshape(prod(lead), -1)
        rows = max(1, CHUNK_ELEMENTS // (numbers * max(n, 1)))
        every = One(
            _flat(feature, lead, ndim["feature"]),
            _flat(label, lead, ndim["label"]),
            None if key is None else _flat(key, lead, 0),
        )
        found = vmap(each, in_dims=(0, dims), chunk_size=rows)(xs, every)
        return tree_map(lambda tensor: tensor.reshape(*lead, *tensor.shape[1:]), found)

    def _check(
        self,
        feature: tuple[int, ...],
        dtype: torch.dtype,
        label: tuple[int, ...],
        label_dtype: torch.dtype,
    ) -> None:
        """Try the model on made-up examples of a shape.

        Raises:
            NotPrivate: as `point_shape`.
        """
        wide = torch.float64 if dtype.is_floating_point else dtype
        check_forward(self.model, torch.zeros(feature, dtype=wide))
        one = Examples(
            {
                "feature": torch.zeros((2, *feature), dtype=wide),
                "label": torch.zeros((2, *label), dtype=label_dtype),
            },
            {"feature": len(feature), "label": len(label)},
        )
        try:
            gradients = self._mapped(grad(self._loss), self.start, one)
        except NotPrivate:
            raise
        except Exception as error:  # model and loss are code of somebody's own
            said = one_line(f"{type(error).__name__}: {error}", 200)
            raise NotPrivate(
                "model, loss: no gradient of each example by torch.func (in-place changes, control "
                f"flow on values, draws without a generator): {said}"
            ) from None
        if gradients.shape != (2, *self.layout.manifold.point_shape):
            raise NotPrivate(
                f"loss: expected one number an example, got gradients of {tuple(gradients.shape)}"
            )
        self._forget_what_differs(one)
        plain = [n for n in self.layout.shapes if n not in self._trace.roles]
        others = sum(self.layout.shapes[n].numel() for n in plain)
        calls = [(others, others), *(call.numbers for call in self._calls(one["feature"][0]))]
        computed, held = (4 * sum(each) for each in zip(*calls, strict=True))
        self._numbers = max(self._numbers, computed)
        self.points_per_example = max(self._numbers, held) / gradients.shape[-1]

    # -- what the layers saw ---------------------------------------------------------------------
    def _calls(self, feature: Tensor) -> tuple[Call, ...]:
        """The calls of watched layers for an example of that shape and type."""
        key = tuple(feature.shape), self._type(feature)
        if key not in self._seen:
            blank = torch.zeros(key[0], dtype=key[1])
            with torch.no_grad(), self._trace.listening() as calls:
                self._output(self._named(self.start), One(blank, blank))
            self._seen[key] = tuple(calls)
        return self._seen[key]

    def _forget_what_differs(self, blank: Examples) -> None:
        """Differentiate by parameters that are used outside their layers, too, or not at all.

        And by those whose gradients by layers are not torch.func's, at a point and an example made
        up: a class may compute something else than it says.
        """
        generator = torch.Generator().manual_seed(0)
        start, feature = self.start, blank["feature"]
        x = self.manifold.projx(start + 0.1 * standard_normal(start.shape, generator))
        one, named = One(feature[0].to(self._type(feature)), blank["label"][0]), self._named(x)
        with torch.no_grad(), self._trace.looking(named):
            self._output(named, one)
        trials = [blank]
        if feature.is_floating_point():
            drawn = standard_normal(feature.shape, generator)
            tensors = {"feature": drawn, "label": blank["label"]}
            trials.append(Examples(tensors, blank.feature_ndim))
        for trial in trials:
            self._seen.clear()
            first = torch.tensor([1.0, 0.0], dtype=x.dtype)
            parts = self._assembled(x, trial, self._mapped(self._read, x, trial))
            found = ModuleGradients(parts).sum(first)
            right = self.rgrads(x, trial)[0]
            tolerance = 100 * torch.finfo(self.dtype).eps ** 0.75 * (1 + right.abs().max())
            apart = self.layout.manifold.unpack((found - right).abs())
            self._trace.forget({n for n, gap in apart.items() if bool((gap > tolerance).any())})
        self._seen.clear()


def _flat(tensor: Tensor, lead: torch.Size, feature_ndim: int) -> Tensor:
    """(*lead, n, *feature) with its leading dimensions expanded and joined."""
    own = tensor.shape[tensor.dim() - 1 - feature_ndim :]
    return tensor.expand(*lead, *own).reshape(prod(lead), *own)


def module_problem(
    model: nn.Module,
    loss: str | Loss = "cross-entropy",
    *,
    is_classifier: bool | None = None,
    dtype: torch.dtype = torch.float64,
    clip_shares: Mapping[str, float] | None = None,
) -> ModuleProblem:
    """The problem of training a copy of ``model``.

    Args:
        model: takes a batch (b, *feature) and gives a tensor with one row an example.
        loss: "cross-entropy" (labels are class numbers), "mse", or a function of an output (1, *)
            and a label (1, *) that gives one number.
        is_classifier: whether the largest output names a class; None: of cross-entropy.
        dtype: what the model computes in, float64 or float32. Norms, clips, sums, noise and points
            are float64 either way, so the bounds hold alike.
        clip_shares: of groups of parameters, by prefixes of their names (the longest counts, ""
            is of all): each group's gradient is clipped by itself, to C share / |shares| where the
            mechanism's bound is C. All together are C long at most, so that the price is that of
            one clip. None: one clip of the joint gradient.

    Raises:
        NotPrivate: a layer mixes examples or keeps them.
        ValueError: a loss, a manifold or parameters that are unknown here.
    """
    check_layers(model)
    return ModuleProblem(
        deepcopy(model).to(torch.float64),
        loss_of(loss),
        is_classifier=loss == "cross-entropy" if is_classifier is None else is_classifier,
        dtype=dtype,
        clip_shares=clip_shares,
    )


def loss_of(loss: str | Loss) -> Loss:
    """The loss of a name; a function is one already.

    Raises:
        ValueError: another name.
    """
    if not isinstance(loss, str):
        return loss
    if loss not in LOSSES:
        raise ValueError(f"loss: expected one of {sorted(LOSSES)} or a function, got {loss!r}")
    return LOSSES[loss]


__all__ = ["Loss", "ModuleProblem", "NotPrivate", "module_problem"]
