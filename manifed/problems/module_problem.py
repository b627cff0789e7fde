"""Any torch module as a problem: f_j(x) = loss(model_x(feature_j), label_j) on a product manifold.

x packs the trained parameters (`module_layout`), so it travels, averages and clips as one tensor;
one clip bounds the joint gradient in the sum of the factors' metrics. Gradients of each example are
`torch.func`'s, one example in a batch of one, so a reduction over the batch is that example's own.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cache
from math import prod

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from manifed.problems.base import Examples
from manifed.problems.finite_sum import FiniteSum
from manifed.problems.module_checks import NotPrivate, check_forward, check_layers
from manifed.problems.module_layout import Layout

Loss = Callable[[Tensor, Tensor], Tensor]
"""(output (1, *), label (1, *)) -> one number."""

OfOne = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(x, feature, label) of one example -> its gradient, loss or answer."""

CHUNK_ELEMENTS = 1 << 24
"""Numbers of per-example gradients that are held at once: 128 MiB in float64."""


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


class ModuleProblem(FiniteSum):
    """Examples ``feature`` (..., n, *feature) and ``label`` (..., n, *label).

    Use `module_problem`, which copies the model and refuses what cannot be private.
    """

    has_optimum = False

    def __init__(self, model: nn.Module, loss: Loss, *, is_classifier: bool) -> None:
        self.model, self.loss, self.is_classifier = model, loss, is_classifier
        self.layout = Layout.of(model)
        self.manifold = self.layout.manifold
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

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """loss(model(feature_j), label_j), shape ``(..., n)``."""
        return self._over_examples(self._loss, x, examples)

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
    def _output(self, x: Tensor, feature: Tensor) -> Tensor:
        """The model's output for one example, (1, *)."""
        constants = {
            name: t.to(x.dtype) if t.is_floating_point() else t
            for name, t in self._constants.items()
        }
        named = {**self.layout.unpack(x), **constants}
        return functional_call(self.model, named, (feature.unsqueeze(0),))

    def _loss(self, x: Tensor, feature: Tensor, label: Tensor) -> Tensor:
        return self.loss(self._output(x, feature), label.unsqueeze(0)).sum()

    def _is_right(self, x: Tensor, feature: Tensor, label: Tensor) -> Tensor:
        best = self._output(x, feature).reshape(1, -1).argmax(-1)[0]
        return (best == label.long()).to(x.dtype)

    def _over_examples(self, one: OfOne, x: Tensor, examples: Examples) -> Tensor:
        """`_mapped`, once it was tried: what fails then fails by an example's numbers.

        Raises:
            ArithmeticError: for these examples together, among them a token out of range; an oracle
                looks for the ones at fault, which count as zero.
        """
        try:
            return self._mapped(one, x, examples)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, IndexError):
            raise ArithmeticError("Expected examples that the model can be computed for") from None

    def _mapped(self, one: OfOne, x: Tensor, examples: Examples) -> Tensor:
        """``one(x, feature_j, label_j)`` for all examples of all clients, (..., n, *value)."""
        feature, label = examples["feature"], examples["label"]
        if feature.is_floating_point():
            feature = feature.to(x.dtype)
        n, ndim = len(examples), examples.feature_ndim
        lead = torch.broadcast_shapes(
            x.shape[:-1], feature.shape[: feature.dim() - 1 - ndim["feature"]]
        )
        each = vmap(one, in_dims=(None, 0, 0), chunk_size=max(1, CHUNK_ELEMENTS // x.shape[-1]))
        if not lead:
            return each(x, feature, label)
        count = prod(lead)
        xs = x.expand(*lead, x.shape[-1]).reshape(count, -1)
        features = _flat(feature, lead, ndim["feature"])
        labels = _flat(label, lead, ndim["label"])
        rows = max(1, CHUNK_ELEMENTS // (x.shape[-1] * max(n, 1)))
        found = vmap(each, chunk_size=rows)(xs, features, labels)
        return found.reshape(*lead, *found.shape[1:])

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
        except (RuntimeError, ValueError, IndexError) as error:
            said = " ".join(str(error).split())[:200]
            raise NotPrivate(
                "model: no gradient of each example by torch.func (in-place changes, control flow "
                f"on values, draws without a generator): {said}"
            ) from None
        if gradients.shape != (2, *self.layout.manifold.point_shape):
            raise NotPrivate(
                f"loss: expected one number an example, got gradients of {tuple(gradients.shape)}"
            )


def _flat(tensor: Tensor, lead: torch.Size, feature_ndim: int) -> Tensor:
    """(*lead, n, *feature) with its leading dimensions expanded and joined."""
    own = tensor.shape[tensor.dim() - 1 - feature_ndim :]
    return tensor.expand(*lead, *own).reshape(prod(lead), *own)


def module_problem(
    model: nn.Module, loss: str | Loss = "cross-entropy", *, is_classifier: bool | None = None
) -> ModuleProblem:
    """The problem of training a copy of ``model``, in float64.

    Args:
        model: takes a batch (b, *feature) and gives a tensor with one row an example.
        loss: "cross-entropy" (labels are class numbers), "mse", or a function of an output (1, *)
            and a label (1, *) that gives one number.
        is_classifier: whether the largest output names a class; None: of cross-entropy.

    Raises:
        NotPrivate: a layer mixes examples or keeps them.
        ValueError: a loss, a manifold or parameters that are unknown here.
    """
    check_layers(model)
    return ModuleProblem(
        deepcopy(model).to(torch.float64),
        loss_of(loss),
        is_classifier=loss == "cross-entropy" if is_classifier is None else is_classifier,
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
