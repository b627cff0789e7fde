"""The base class of problems: a manifold, a loss per example, gradients, and evaluation.

min_x f(x) = sum_i p_i (1/N_i) sum_j f_ij(x) over the shards of a federation (Huang, Huang,
Jawanpuria, Mishra: Federated Learning on Riemannian Manifolds with Differential Privacy, (1.1) and
(2.1)). A problem is a frozen object without data; examples are handed in. Everything broadcasts
over leading dimensions: x of shape ``(..., *point)`` meets examples of shape ``(..., n,
*feature)``, so the same code serves one client and a stacked cohort.

A record is judged once, where it is loaded, before anything is computed from it.
"""

# pyright: reportIncompatibleVariableOverride=false
# (what any problem has as an attribute, the class of a frozen one fixes or computes)

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from pydantic import Field
from torch import Tensor

from manifed.errors import ConfigError, check_kind
from manifed.fields import BY_KIND, Frozen, Values
from manifed.manifolds.base import TOLERANCE, Manifold
from manifed.manifolds.linalg import Shape, standard_normal
from manifed.problems.data import ExampleKind
from manifed.problems.examples import Examples

Shards = Sequence[Examples]
_LARGEST_ENTRY = 1e60
"""Default and largest bound on |entries|: fourth powers and their sums stay finite in float64."""


# -- gradients ------------------------------------------------------------------------------------
class Gradients(Protocol):
    """Interface of the per-example gradients at one point, in whatever form a problem keeps them.

    Guarantees: what a weight min(1, C / norms_j) leaves of example j in a ``sum`` has a metric norm
    of at most C (1 + 1e-9), whatever the example holds; or the sum is not finite.
    """

    @property
    def norms(self) -> Tensor:
        """Returns upper bounds of the norms of what is summed, ``(..., n)``, for the clip."""
        ...

    def sum(self, weights: Tensor) -> Tensor:
        """sum_j weights_j grad f_j(x), shape ``(..., *point)``; weights have shape (..., n)."""
        ...


@dataclass(frozen=True)
class Vectors:
    """Per-example gradients as tangent vectors, ``vectors`` (..., n, *point) at x."""

    manifold: Manifold
    x: Tensor
    vectors: Tensor

    @property
    def norms(self) -> Tensor:
        """Returns their metric norms."""
        return self.manifold.norm_bound(self.x.unsqueeze(-1 - self.manifold.ndim), self.vectors)

    def sum(self, weights: Tensor) -> Tensor:
        """Returns the weighted sum of the vectors."""
        axis = -1 - self.manifold.ndim
        return (self.manifold.expand_scalar(weights) * self.vectors).sum(axis)


# -- the mathematics ------------------------------------------------------------------------------
class Optimum(NamedTuple):
    """A reference solution of the pooled problem and how stationary it is."""

    x: Tensor
    value: float
    gradient_norm: float


class Problem:
    """Base of problems, which states losses and gradients, and what follows from them.

    ``rgrads`` and ``losses`` are to be written; ``gradients`` is overridden where a closed form is
    shorter. What sees all data (``objective`` and below) is for evaluation and references, never
    for a client.
    """

    if TYPE_CHECKING:  # a frozen problem has a property or a key of this name
        manifold: Manifold
        """Where x lives."""

    points_per_example: float = 5.0
    """What one gradient sum holds at once for each example, in sizes of a point."""
    needs_keys: bool = False
    """Whether gradients are random, by a number that comes with each example (`KEY`)."""
    keeps_rows_apart: ClassVar[bool] = False
    """Whether what an example gives has the same bits whatever is computed with it.

    That is, in ``gradients``, ``losses`` and ``correct``, of any number of examples and of any
    stack of clients. Otherwise an oracle computes the examples of a client in blocks."""
    takes_whole_persons: ClassVar[bool] = False
    """Whether it is asked about persons with all their rows, tensors (..., n, m, *feature) with
    their `SHARE`, where records are persons. Otherwise `Persons` asks it about each row."""
    looks_at_all_rows: bool = False
    """Whether how an example is computed may depend on the values of others.

    An iteration that ends when the last of a stack has converged is such a thing. Each example is
    then computed alone."""
    has_optimum: ClassVar[bool] = True
    """Whether there is a reference to compare with."""
    reference_tolerance: ClassVar[float] = 1e-10
    """Largest |grad f| of the reference solution, over 1 + |f|."""

    @property
    def of_rows(self) -> "Problem":
        """The problem itself, or that of the rows where records are persons (`Persons`)."""
        return self

    @property
    def sufficient_statistic(self) -> "Problem | None":
        """The statistic whose sum over examples fixes the minimiser; None if none is known.

        As a linear problem: f_j(x) = <s_j, x> on R^m: its gradient is s_j at any x.
        """
        return None

    def made_up(self, like: Examples, count: int, generator: torch.Generator) -> Examples:
        """Makes up so many examples of that shape, to try how blocks are computed.

        Normal entries, and zeros where numbers are whole; problems of points make up points.
        """
        made: dict[str, Tensor] = {}
        for key, tensor in like.tensors.items():
            shape = (count, *like.shapes[key])
            drawn = torch.zeros(shape, dtype=torch.float64)
            if tensor.is_floating_point():
                drawn = standard_normal(shape, generator)
            made[key] = drawn.to(tensor.dtype)
        return Examples(made, like.feature_ndim)

    @property
    def allows_threads(self) -> bool:
        """Whether threads may compute with it at once; a class from elsewhere says so itself."""
        return type(self).__module__.startswith("manifed.")

    def widened(self, examples: Examples) -> Examples:
        """Returns given examples in float64, each converted by itself; whole numbers are allowed.

        A problem whose examples hold indices overrides it, to keep them whole.
        """
        wide = {key: tensor.to(torch.float64) for key, tensor in examples.tensors.items()}
        return replace(examples.to(torch.float64), tensors=wide)

    def check_finite(self, examples: Examples) -> None:
        """Refuses the first record with an entry that is not finite.

        Raises:
            InvalidRecord: naming the record and the tensor.
        """
        for name, tensor in examples.tensors.items():
            rows = tensor.reshape(len(examples), -1)
            require(rows.sum(-1), torch.isfinite(rows).all(-1), f"finite entries of {name!r}")

    def check_records(self, examples: Examples) -> None:
        """Refuses prepared examples that are no records of this problem.

        Raises:
            InvalidRecord: naming the record.
        """

    def point_shape(self, examples: Examples) -> Shape:
        """Shape of one point, from the shape of the examples."""
        raise NotImplementedError

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """f_j(x) for every example, shape ``(..., n)``."""
        raise NotImplementedError

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """Grad f_j(x) for every example, tangent at x, shape ``(..., n, *point)``."""
        raise NotImplementedError

    def gradients(self, x: Tensor, examples: Examples) -> Gradients:
        """Returns the gradients of `rgrads` in the form that is summed and clipped."""
        found = self.rgrads(x, examples)
        check_kind(f"{type(self).__name__}.rgrads", found, Tensor, "a torch tensor (n, *point)")
        return Vectors(self.manifold, x, found)

    def correct(self, x: Tensor, examples: Examples) -> Tensor | None:
        """1 where an example is predicted right, else 0, shape ``(..., n)``; None: no classes."""
        return None

    def predict(self, x: Tensor, features: Tensor) -> Tensor:
        """What a model predicts of each row of ``features`` (n, *feature), shape ``(n, ...)``.

        Raises:
            ConfigError: the problem predicts nothing.
        """
        raise ConfigError(
            f"predict: expected a problem that predicts something, got {type(self).__name__}, "
            "whose result is the model itself"
        )

    # -- on all data ------------------------------------------------------------------------------
    def objective(self, x: Tensor, shards: Shards, weights: Tensor | None = None) -> Tensor:
        """f(x), shape ``(...)`` of x's leading dimensions."""  # (2.1)
        parts = [
            (each.to(x) * self.losses(x, examples)).sum(-1)
            for examples, each in _weighted_parts(shards, weights)
        ]
        return torch.stack(parts).sum(0)

    def gradient(self, x: Tensor, shards: Shards, weights: Tensor | None = None) -> Tensor:
        """Grad f(x), tangent at x, shape of x."""
        lead = x.shape[: x.dim() - self.manifold.ndim]
        parts = (
            self.gradients(x, examples).sum(each.to(x).expand(*lead, len(examples)))
            for examples, each in _weighted_parts(shards, weights)
        )
        return sum(parts, torch.zeros_like(x))

    def gradient_norm(self, x: Tensor, shards: Shards, weights: Tensor | None = None) -> Tensor:
        """Metric norm of grad f(x), shape ``(...)``."""
        return self.manifold.norm(x, self.gradient(x, shards, weights))

    def optimum(self, shards: Shards, weights: Tensor | None = None) -> Optimum:
        """Returns a minimiser of f: by a closed form where one is known, else by descent."""
        return _descend(self, self.reference_start(*pool(shards, weights)), shards, weights)

    def optimum_at(self, x: Tensor, shards: Shards, weights: Tensor | None) -> Optimum:
        """The minimiser x with its value and gradient norm."""
        value = float(self.objective(x, shards, weights))
        return Optimum(x, value, float(self.gradient_norm(x, shards, weights)))

    def reference_start(self, examples: Examples, weights: Tensor) -> Tensor:
        """Returns the reference solver's start (deterministic; never sent to a client)."""
        raise NotImplementedError(f"{type(self).__name__} has no start for its reference solver")

    def metrics(self, x: Tensor, optimum: Optimum, meta: Values) -> dict[str, float]:
        """Returns measures that only this problem has; ``meta`` is the data set's."""
        return {}


def client_weights(shards: Shards, weights: Tensor | None = None) -> Tensor:
    """p_i, shape (N,), summing to one: ``weights`` normalised, or N_i / sum_l N_l."""
    if not shards:
        raise ValueError("Expected at least one shard, got none")
    if weights is None:
        weights = torch.tensor([len(shard) for shard in shards], dtype=torch.float64)
    if weights.shape != (len(shards),):
        raise ValueError(f"Expected {len(shards)} weights, got shape {tuple(weights.shape)}")
    return weights / weights.sum()


def pool(shards: Shards, weights: Tensor | None = None) -> tuple[Examples, Tensor]:
    """Returns all examples in one, and the weight p_i / N_i of each, shape (sum N_i,)."""
    sizes = torch.tensor([len(shard) for shard in shards])
    each = (client_weights(shards, weights) / sizes).repeat_interleave(sizes)
    return Examples.concatenate(shards), each


def _weighted_parts(shards: Shards, weights: Tensor | None) -> Sequence[tuple[Examples, Tensor]]:
    """Shards with the weight p_i / N_i of each example; many small shards are pooled into one."""
    if len(shards) > 1:
        elements = sum(tensor.numel() for tensor in shards[0].tensors.values())
        if elements * len(shards) <= 2**22:
            return [pool(shards, weights)]
    share = client_weights(shards, weights)
    return [(s, (p / len(s)).expand(len(s))) for s, p in zip(shards, share, strict=True)]


def _descend(problem: Problem, x: Tensor, shards: Shards, weights: Tensor | None) -> Optimum:
    """A stationary point near x, where |grad f| <= `Problem.reference_tolerance` (1 + |f|).

    Riemannian steepest descent with Barzilai-Borwein steps and a non-monotone Armijo rule (Iannazzo
    and Porcelli, IMA J. Numer. Anal. 38 (2018)). It gives the "true value" lines of the figures; no
    client runs it. It also ends when rounding leaves no step that decreases f.
    """
    manifold = problem.manifold
    value = float(problem.objective(x, shards, weights))
    g = problem.gradient(x, shards, weights)
    size = float(manifold.norm(x, g))
    step = 1.0 / max(size, 1.0)
    history = [value]
    for _ in range(2000):
        if size <= problem.reference_tolerance * (1.0 + abs(value)):
            break
        reference = max(history[-10:])
        for _ in range(60):
            y = manifold.projx(manifold.retr(x, -step * g))
            reached = float(problem.objective(y, shards, weights))
            slack = 1e-15 * (1.0 + abs(reference))
            if reached <= reference - 1e-4 * step * size * size + slack:
                break
            step /= 2
        else:
            break
        h = problem.gradient(y, shards, weights)
        moved = manifold.transp(x, y, g)
        # <s, s> / <s, dg> with s = -step g, both carried to T_yM
        curvature = -step * float(manifold.inner(y, moved, h - moved))
        longer = step * step * size * size / curvature if curvature > 0 else 10 * step
        step = min(1e12, max(1e-12, longer))
        x = y
        g = h
        value = reached
        size = float(manifold.norm(x, g))
        history.append(value)
    return Optimum(x, value, size)


# -- where a run starts ---------------------------------------------------------------------------
_Entries = tuple[float, ...] | tuple[tuple[float, ...], ...]


class _RandomStart(Frozen):
    """A random point, the same for all algorithms with one seed."""

    kind: Literal["random"] = "random"


class OriginStart(Frozen):
    """The manifold's origin: zero, the identity, or the first unit vectors."""

    kind: Literal["origin"] = "origin"


class _GivenStart(Frozen):
    """A public point, written into the config."""

    kind: Literal["given"] = "given"
    entries: _Entries = Field(min_length=1)
    """A list of numbers, or the rows of a matrix."""


class ModelStart(Frozen):
    """The problem's own point. For problem.kind = "module" these are the factory's parameters."""

    kind: Literal["model"] = "model"


Start = Annotated[_RandomStart | OriginStart | _GivenStart | ModelStart, BY_KIND]


# -- the problem of a config ----------------------------------------------------------------------
class ProblemSource(Frozen):
    """Base of the tables ``[problem]`` of a config, which prepare a client's records."""

    if TYPE_CHECKING:
        kind: Any
        """The name in the config."""

    start: Start = _RandomStart()
    """The start point x^(0). It is broadcast, and never depends on examples."""
    largest_entry: float = Field(default=_LARGEST_ENTRY, gt=0, le=_LARGEST_ENTRY)
    """Public bound on the size of every entry of a record. Larger ones are refused at loading."""

    def build(self) -> Problem:
        """Makes the problem, without data: this object, unless a table makes another one."""
        assert isinstance(self, Problem)
        return self

    def prepare(self, shard: Examples, meta: Values) -> Examples:
        """Returns a client's own examples as the problem reads them, from that shard alone.

        ``meta``: of the data set; of a site's own file N_i, whatever the file holds.
        """
        return shard

    def check_records(self, examples: Examples) -> None:
        """Refuses a prepared shard with a record from which nothing may be computed.

        Raises:
            InvalidRecord: naming the record, for the log of its owner.
        """
        self.check_entries(examples)
        if not isinstance(self, Problem):
            self.build().check_records(examples)

    def check_entries(self, examples: Examples) -> None:
        """Refuses records with an entry beyond the public bound; errors as `check_records`."""
        for key, tensor in examples.tensors.items():
            worst = tensor.abs().reshape(len(examples), -1).amax(-1)
            expected = f"|{key}| <= {self.largest_entry:g} in every entry"
            require(worst, worst <= self.largest_entry, expected)

    def mixes_records(self) -> str | None:
        """Returns the part of ``prepare`` that lets records of a client mix; None if none does."""
        return None

    @property
    @abstractmethod
    def needs(self) -> ExampleKind:
        """The kind of examples that the problem reads."""

    @property
    def reads(self) -> tuple[ExampleKind, ...]:
        """The kinds of examples that ``prepare`` takes."""
        return (self.needs,)

    def first_point(self, problem: Problem, shape: Shape, generator: torch.Generator) -> Tensor:
        """Returns x^(0), of ``shape``, from the config and the seed.

        A given point is projected to take up the rounding of its digits.

        Raises:
            ValueError: the entries have another shape, or are not a point of the manifold; or they
                are a model's, which a manifold does not know.
        """
        start = self.start
        manifold = problem.manifold
        if isinstance(start, _RandomStart):
            return manifold.random(*shape, generator=generator)
        if isinstance(start, OriginStart):
            return manifold.origin(*shape, dtype=torch.float64)
        if isinstance(start, ModelStart):
            raise ValueError(
                "problem.start: 'model' goes with problem.kind = 'module'; use 'random'"
            )
        lengths = {len(row) for row in start.entries if isinstance(row, tuple)}
        if len(lengths) > 1:
            raise ValueError(
                f"problem.start.entries: expected rows of one length, got {sorted(lengths)}"
            )
        x = torch.tensor(start.entries, dtype=torch.float64)
        if tuple(x.shape) != shape:
            raise ValueError(
                f"problem.start.entries: expected shape {list(shape)}, got {list(x.shape)}"
            )
        if not manifold.check_point_on_manifold(x):
            raise ValueError(
                f"problem.start.entries: expected a point of {manifold.name}, got one off it"
            )
        return manifold.projx(x)


class FrozenProblem(ProblemSource, Problem):
    """Base of problems that are their own config tables."""

    points_per_example: ClassVar[float]
    needs_keys: ClassVar[bool]
    looks_at_all_rows: ClassVar[bool]

    def __init__(self, *values: Any, **fields: Any) -> None:
        """Values by position are those of the class's own keys, in their order."""
        owners = [vars(cls).get("__annotations__", {}) for cls in type(self).__mro__]
        known = set(type(self).model_fields) - {"kind", *ProblemSource.model_fields}
        names = dict.fromkeys(name for own in owners for name in own if name in known)
        super().__init__(**dict(zip(names, values, strict=False)), **fields)

    # as that of `Frozen`: a table of a config is read without it
    __init__.__pydantic_base_init__ = True  # pyright: ignore[reportFunctionMemberAccess]


# -- records --------------------------------------------------------------------------------------
class InvalidRecord(ValueError):
    """Error: nothing may be computed from a record; one line with its index, for its owner."""


def require(measure: Tensor, is_valid: Tensor, expected: str) -> None:
    """Refuses the first record that is not valid; both tensors have shape ``(n,)``.

    Raises:
        InvalidRecord: naming the record, what is expected, and its measure.
    """
    if bool(is_valid.all()):
        return
    index = int((~is_valid).nonzero()[0])
    raise InvalidRecord(f"record {index}: expected {expected}, got {float(measure[index]):.6g}")


def class_numbers(label: Tensor, num_classes: int) -> Tensor:
    """Returns the labels as class numbers; an invalid label gets another number."""
    return label.nan_to_num(nan=0.0).clamp(0, num_classes - 1).long()


def check_classes(examples: Examples, num_classes: int) -> None:
    """Refuses labels that are no class numbers.

    Raises:
        InvalidRecord: naming the record.
    """
    label = examples["label"]
    is_class = label == class_numbers(label, num_classes)
    require(label, is_class, f"a class number from 0 to {num_classes - 1}")


def lifted(manifold: Manifold, name: str, examples: Examples) -> Examples:
    """Returns examples whose tensor ``name`` holds points ``(n, *point)`` in float64.

    A point in float32 is projected if it is on the manifold within that type's `TOLERANCE`, which
    is rounding. Each is computed alone, so that no bit of it depends on another record.
    """
    points = examples[name]
    wide = points.to(torch.float64)
    if points.dtype == torch.float32:
        near = [manifold.membership_defect(z) <= TOLERANCE[torch.float32] for z in wide]
        each = zip(wide, near, strict=True)
        wide = torch.stack([manifold.projx(z) if is_near else z for z, is_near in each])
    return replace(examples, tensors={**examples.tensors, name: wide})


def check_points(manifold: Manifold, points: Tensor) -> None:
    """Refuses records ``(n, *point)`` that are not points of ``manifold``.

    SPD matrices are refused too whose condition is above 1e12: beyond it the smallest eigenvalue is
    mostly rounding. A membership defect of 1e-9 is taken for rounding, far below that of points on
    the wire.

    Raises:
        InvalidRecord: naming the record and how far off it is.
    """
    from manifed.manifolds.spd import SPDSet

    if isinstance(manifold, SPDSet):
        largest = points.abs().amax((-2, -1))
        require(largest, largest >= 1 / _LARGEST_ENTRY, f"max|z| >= {1 / _LARGEST_ENTRY:g}")
        values = torch.linalg.eigvalsh(points / largest[..., None, None])
        ratio = values[..., 0] / values[..., -1]
        expected = "a positive definite matrix, lambda_min/lambda_max >= 1e-12"
        require(ratio, (ratio >= 1e-12) & (values[..., 0] > 0), expected)
    defect = manifold.membership_defect(points)
    expected = f"a point of {manifold.name}, membership defect <= 1e-09"
    require(defect, defect <= 1e-9, expected)
