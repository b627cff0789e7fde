"""Norms and sums of a module's gradients without the gradients: exact, and bounds for anything."""

import itertools
from functools import partial

import geoopt
import mpmath as mp
import pytest
import torch
from torch import nn

from manifed.layers import DistanceDecoder, LorentzEmbedding, OrthogonalLinear, PoincareEmbedding
from manifed.manifolds import Euclidean, Grassmann, Lorentz, PoincareBall, Power, Scaled, Stiefel
from manifed.manifolds.base import clip_factors
from manifed.oracles.noisy_oracle import Draws, Oracle
from manifed.oracles.sums import say_that_nothing_counts
from manifed.problems import module_problem
from manifed.problems.examples import Examples
from manifed.problems.module_checks import NotPrivate
from manifed.problems.module_problem import ModuleProblem, made
from manifed.problems.problem import Vectors
from manifed.problems.rows import SHORTEST
from tests.layers.test_layers import MODELS, labelled, normals, tokens
from tests.privacy.clip_bound_cases import BAD, DIGITS
from tests.privacy.test_clip_bound import SOURCE, TOLERANCE, alone, one_client, queries_of, worst
from tests.problems.test_module_problem import Of

CLASSES = 3
close = partial(torch.testing.assert_close, rtol=0, atol=1e-12)


def sequence():
    """A layer met at six positions, twice, after a table."""
    return Of(
        lambda own, x: own.same(torch.tanh(own.same(torch.tanh(own.first(own.table(x)))))).sum(1),
        table=nn.Embedding(10, 4),
        first=OrthogonalLinear(4, 3, metric="canonical"),
        same=nn.Linear(3, CLASSES),
    )


def beyond():
    """A weight that is used outside its layer, too, but where features are large alone."""
    return Of(
        lambda own, x: own.layer(x) + torch.relu(x - 50) @ own.layer.weight.mT,
        layer=nn.Linear(6, CLASSES),
    )


def unusual():
    """Layers that are not called, called by keyword, and called without a batch."""

    def compute(own, x):
        gate = own.single(torch.ones(4, dtype=x.dtype))
        return own.named(input=gate * torch.tanh(own.usual(x)))

    square = {name: nn.Linear(6, 6) for name in ("idle", "usual")}
    return Of(compute, named=nn.Linear(6, CLASSES), single=nn.Linear(4, 6), **square)


def tied():
    """A table that is the decoder, too."""
    table = nn.Embedding(6, 4)
    out = nn.Linear(4, 6, bias=False)
    out.weight = table.weight
    return Of(lambda own, x: own.out(torch.tanh(own.table(x))).sum(1), table=table, out=out)


def pointed():
    """Rows of what an example computed itself, named by the example."""

    def compute(own, x):
        picked = [
            nn.functional.embedding(3 * (number > 1e6).long(), rows)
            for number, rows in zip(x[:, 0, 4], own.layer(x[..., :4]).tanh(), strict=True)
        ]
        return torch.stack(picked)

    return Of(compute, layer=nn.Linear(4, 3))


def on(manifold, tensor):
    return geoopt.ManifoldParameter(tensor, manifold=manifold)


def frame(columns):
    return nn.init.orthogonal_(torch.empty(6, columns))


def on_grassmann():
    linear = nn.functional.linear
    return Of(
        lambda own, x: linear(x, own.frame)[:, :CLASSES].sin(), frame=on(Grassmann(), frame(3))
    )


def on_scaled():
    """A frame and points of metrics that are scaled."""
    ball = geoopt.Scaled(geoopt.Scaled(geoopt.PoincareBall(), 2.0), 1.5)
    return Of(
        lambda own, x: torch.sin(x @ own.frame) @ own.points.mT,
        frame=on(geoopt.Scaled(geoopt.EuclideanStiefel(), 0.5), frame(3)),
        points=on(ball, 0.1 * torch.ones(CLASSES, 3)),
    )


def scaled_table():
    """A table whose flat metric is scaled, and of which made-up examples read nothing."""
    table = nn.Embedding(10, 4)
    table.weight = on(geoopt.Scaled(geoopt.Euclidean(), 8.0), normals(10, 4))
    return Of(
        lambda own, x: own.out((own.table(x) * (x != 0).unsqueeze(-1)).sum(1)),
        table=table,
        out=nn.Linear(4, CLASSES),
    )


class Doubled(nn.Linear):
    """A layer that inherits, and computes something else."""

    def forward(self, feature):
        return 2 * super().forward(feature)


def hooked():
    layer = nn.Linear(4, CLASSES)
    layer.register_forward_hook(lambda layer, inputs, output: 3 * output)
    return nn.Sequential(Doubled(6, 4), layer)


def convolutional():
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.LeakyReLU(),
        nn.Conv2d(4, 5, 3), nn.Flatten(), nn.Linear(20, CLASSES),
    )  # fmt: skip


OTHERS = {
    "sequence": (sequence, tokens(5, 6)),
    "hooked": (hooked, normals(5, 6)),
    "beyond": (beyond, 100 * normals(5, 6)),
    "unusual": (unusual, normals(5, 6)),
    "tied": (tied, tokens(5, 3) % 6),
    "grassmann": (on_grassmann, normals(5, CLASSES)),
    "convolutional": (convolutional, normals(5, 64)),
    "scaled": (on_scaled, normals(5, 6)),
    "scaled table": (scaled_table, tokens(5, 3)),
}
DIFFERENTIATED = {
    "everything": {"frame", "ball", "scale"},
    "beyond": {"layer.weight"},
    "unusual": {f"{name}.{k}" for name in ("idle", "single") for k in ("weight", "bias")},
    "tied": {"table.weight"},
    "scaled": {"frame", "points"},
    "scaled table": {"table.weight"},
    **{
        name: set[str]()
        for name in ("sequence", "grassmann", "convolutional", "hooked", "adapter", "lorentz")
    },
}
"""Parameters whose gradients must be computed one by one."""


def moved(problem):
    return problem.manifold.projx(problem.start + 0.1 * normals(*problem.start.shape, seed=3))


@pytest.mark.parametrize("name", MODELS | OTHERS)
def test_norms_and_sums_are_those_of_the_gradients_one_by_one(name):
    factory, feature = (MODELS | OTHERS)[name]
    problem = ModuleProblem(made(factory, 0))
    shard = labelled(feature)
    few = shard.take(torch.arange(3))
    x = moved(problem)
    weights = torch.rand(5, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    found = problem.gradients(x, shard)
    each = problem.rgrads(x, shard)
    norms = problem.manifold.norm(x.expand(each.shape), each)
    torch.testing.assert_close(found.norms, norms, rtol=1e-10, atol=1e-13)
    close(found.sum(weights), weights @ each)
    if name in DIFFERENTIATED:
        read = {name for call in problem._tried(shard) for name in call.kinds}
        assert set(problem.shapes) - read == DIFFERENTIATED[name]
    stacked = Examples.stack([shard, few])
    points = torch.stack([x, problem.start])
    cohort = problem.gradients(points, stacked)
    alone_ = problem.gradients(problem.start, few)
    losses = problem.losses(points, stacked)[1, :3]
    close(losses, problem.losses(problem.start, few))
    both = torch.stack([weights, weights])
    both[1, 3:] = 0
    torch.testing.assert_close(cohort.norms[0], found.norms, rtol=1e-12, atol=0)
    torch.testing.assert_close(cohort.norms[1, :3], alone_.norms, rtol=1e-12, atol=0)
    sums = torch.stack([found.sum(weights), alone_.sum(weights[:3])])
    close(cohort.sum(both), sums)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", MODELS | OTHERS)
def test_recorded_operations_have_the_bits_of_those_that_torch_finds(monkeypatch, name, dtype):
    made, feature = (MODELS | OTHERS)[name]
    model = made()
    problem, plain = (ModuleProblem(model, dtype=dtype) for _ in range(2))
    points = [moved(problem), problem.start]
    shards = [labelled(feature), labelled(feature.flip(0))]
    for x in points:
        for shard in shards:
            monkeypatch.setattr(module_problem, "_CALLS_BEFORE_RECORD", 0)
            found = problem.gradients(x, shard)
            monkeypatch.setattr(module_problem, "_CALLS_BEFORE_RECORD", -1)
            right = plain.gradients(x, shard)
            assert torch.equal(found.norms, right.norms)
            ones = torch.ones_like(right.norms)
            assert torch.equal(found.sum(ones), right.sum(ones))
    *_, (count, graph) = problem._records.values()
    assert (count, graph is None) == (1, False)
    assert all(each[1] is None for each in plain._records.values())


def test_a_model_that_counts_its_calls_is_not_recorded(monkeypatch):
    factors = [itertools.repeat(1)]
    model = Of(lambda own, x: own.layer(x) * next(factors[-1]), layer=nn.Linear(6, CLASSES))
    problem = ModuleProblem(model)
    monkeypatch.setattr(module_problem, "_CALLS_BEFORE_RECORD", 0)
    shard = labelled(normals(5, 6))
    problem.point_shape(shard)
    factors.append(itertools.count())
    norms = [problem.gradients(problem.start, shard).norms for _ in range(3)]
    assert not torch.equal(norms[1], norms[2])


@pytest.mark.parametrize(("parent", "given"), [(Euclidean, 2), (Stiefel, "canonical")])
def test_a_subclass_may_have_a_metric_of_its_own_and_is_not_taken_for_its_parent(parent, given):
    own = type("Own", (parent,), {})(given)
    layer = nn.Linear(2, 4, bias=False)
    layer.weight = on(own, torch.eye(4, 2))
    problem = ModuleProblem(layer)
    (part,) = problem.gradients(problem.start, labelled(normals(5, 2))).parts
    assert isinstance(part, Vectors)


def test_a_scaled_metric_is_the_one_of_its_distances():
    model = on_scaled()
    problem = ModuleProblem(model)
    of = {factor.name: factor.manifold for factor in problem.manifold.factors}
    assert of == {"frame": Scaled(Stiefel(), 0.5), "points": Power(Scaled(PoincareBall(), 3.0))}
    ball, (x, y) = of["points"].base, (0.1 * normals(2, 3)).float()
    torch.testing.assert_close(ball.dist(x, y), model.points.manifold.dist(x, y))
    model.frame.manifold = geoopt.Scaled(geoopt.Sphere(), 2.0, learnable=True)
    with pytest.raises(ValueError, match="Scaled of these with a fixed scale"):
        ModuleProblem(model)


def embedded(**given):
    return nn.Sequential(nn.Embedding(6, 4, **given), nn.Flatten(), nn.Linear(12, CLASSES))


TABLES = {
    "embedding": embedded,
    "padded": lambda: embedded(padding_idx=0),
    "ball": lambda: nn.Sequential(PoincareEmbedding(6, 2), DistanceDecoder(PoincareBall())),
    "tied": tied,
}


@pytest.mark.parametrize("token", [6, 7, -1, 1 << 40])
@pytest.mark.parametrize("name", TABLES)
def test_a_token_beyond_a_table_reads_no_row_of_another_client_and_adds_nothing(name, token):
    problem = ModuleProblem(TABLES[name]())
    rows = torch.tensor([[[0, 1, 2], [3, 4, token]], [[1, 1, 2], [2, 3, 5]]])
    shards = [labelled(one) for one in rows]
    x = torch.stack([moved(problem), problem.start])
    gradients = problem.gradients(x, Examples.stack(shards))
    assert torch.isfinite(gradients.norms).tolist() == [[True, False], [True, True]]
    queries = [queries_of(0.5, 2)] * 2
    stacked = Oracle(problem, Examples.stack(shards), queries, Draws(SOURCE, (0, 1), 1))
    each = [one_client(problem, shard, 0.5).gradient(y) for y, shard in zip(x, shards, strict=True)]
    close(stacked.gradient(x), torch.stack(each))
    only = problem.gradients(x[0], shards[0].take(torch.tensor([0])))
    expected = only.sum(clip_factors(only.norms, 0.5)) / 2
    close(each[0], expected)


def test_an_index_beyond_what_an_example_computed_reads_nothing_of_the_next_example():
    problem = ModuleProblem(pointed(), lambda output, label: output.sum() + 0 * label.sum())
    feature = normals(2, 2, 5, seed=4)
    feature[:, 0, 4] = torch.tensor([1e7, 1.0]).double()
    shard = labelled(feature)
    assert torch.isnan(problem.outputs(problem.start, shard)).all(-1).flatten().tolist() == [1, 0]
    norms = problem.gradients(problem.start, shard).norms
    assert float(norms[0]) <= 2 * SHORTEST
    assert float(norms[1]) > 0.1


@torch.jit.script
def scripted(table, index):
    return torch.embedding(table, index)


ATEN = torch.ops.aten


def filled(operator):
    return lambda row, index: operator(row, 1, index, 0.0)


def looked_up(operator):
    return lambda row, index: operator(row.mT, index).mT


UNCHECKED = {
    "index_fill": filled(torch.Tensor.index_fill),
    "aten.index_fill": filled(ATEN.index_fill),
    "embedding": looked_up(torch.embedding),
    "aten.embedding.default": looked_up(ATEN.embedding.default),
    "aten.embedding_dense_backward": lambda row, index: (
        ATEN.embedding_dense_backward(row[:1, :1], index, CLASSES, -1, scale_grad_by_freq=False).mT
    ),
    "embedding of a script": looked_up(scripted),
}


@pytest.mark.parametrize("name", UNCHECKED)
def test_an_index_that_vmap_does_not_check_is_refused(name):
    def compute(own, x):
        rows = own.layer(x)
        return rows + UNCHECKED[name](rows, x[0, :1].long().clamp(0, 2))

    model = Of(compute, layer=nn.Linear(6, CLASSES))
    operator = name.split()[0].removeprefix("aten.").partition(".")[0]
    with pytest.raises(NotPrivate, match=rf"{operator}\S* may meet another example"):
        ModuleProblem(model).point_shape(labelled(normals(5, 6)))


def test_an_operator_that_vmap_does_not_check_is_refused_in_a_loss():
    def loss(output, label):
        return ATEN.embedding(output.mT, label.long()).sum()

    problem = ModuleProblem(nn.Linear(6, CLASSES), loss)
    with pytest.raises(NotPrivate, match=r"aten.embedding may meet another example"):
        problem.point_shape(labelled(normals(5, 6)))


def hostile_features(width):
    """Rows of every size, the same in one entry, and rows that are no numbers."""
    direction = normals(width, seed=7)
    rows = [s * direction for s in (0.0, 1e-300, 1e-160, 1e-8, 1.0, 1e8, 1e30, 1e153, 1e200)]
    for s in (1e-30, 1e8, 1e160, *BAD):
        rows.append(direction.clone())
        rows[-1][0] = s
    return torch.stack(rows)


def largest(problem, x, shard, clip):
    """What the worst record adds over the bound."""
    with mp.workdps(DIGITS):
        return worst(problem, x, alone(problem, x, shard, clip), clip)


def leaky():
    return nn.Sequential(OrthogonalLinear(6, 3), nn.LeakyReLU(), nn.Linear(3, CLASSES))


def canonical():
    return nn.Sequential(
        nn.Unflatten(1, (3, 2)), OrthogonalLinear(2, 4, metric="canonical"), nn.LeakyReLU(),
        nn.Linear(4, 2), nn.Flatten(), nn.Linear(6, CLASSES),
    )  # fmt: skip


def positions():
    """Gradients that are made whole, of two layers."""
    return nn.Sequential(
        nn.Unflatten(1, (3, 2)), OrthogonalLinear(2, 2), nn.LeakyReLU(), nn.Linear(2, 2),
        nn.Flatten(), nn.Linear(6, CLASSES),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("made", [leaky, canonical, positions])
def test_no_record_adds_more_than_the_bound_whatever_type_the_model_computes_in(made, dtype):
    problem = ModuleProblem(made(), dtype=dtype)
    shard = labelled(hostile_features(6))
    x = moved(problem)  # on its manifold, and as far from it as a point that came down may be
    points = {0.03: x, 1e-6: x + 1e-12 * normals(*x.shape, seed=8), 1e6: x * (1 + 1e-6)}
    found = [largest(problem, point, shard, clip) for clip, point in points.items()]
    assert 0.5 < max(found) <= TOLERANCE


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("made", "manifold", "radii"),
    [(PoincareEmbedding, PoincareBall(), (0.5, 1 - 1e-9)), (LorentzEmbedding, Lorentz(), (2, 1e6))],
)
def test_rows_read_twice_and_far_out_add_no_more_than_the_bound(made, manifold, radii, dtype):
    problem = ModuleProblem(nn.Sequential(made(6, 2), DistanceDecoder(manifold)), dtype=dtype)
    shard = labelled(torch.tensor([[0, 1, 2], [3, 1, 1], [3, 4, 4], [5, 5, 5], [4, 5, 5]]))
    shard["label"].zero_()
    space = normals(6, 2)
    space = space / space.norm(dim=-1, keepdim=True)
    for radius in radii:
        points = radius * space
        if manifold.name == "Lorentz":
            points = torch.cat([(1 + points.square().sum(-1, keepdim=True)).sqrt(), points], -1)
        for clip in (0.03, 1e-6):
            assert largest(problem, points.flatten(), shard, clip) <= TOLERANCE


def test_a_model_that_fails_for_every_record_says_so_once_in_the_log_and_adds_nothing(caplog):
    say_that_nothing_counts.cache_clear()
    problem = ModuleProblem(leaky())
    feature = torch.full((4, 6), float("nan")).double()
    shard = labelled(feature)
    for _ in range(2):
        assert not bool(one_client(problem, shard, 1.0).gradient(problem.start).any())
    (record,) = [r for r in caplog.records if r.name == "manifed"]
    assert "ModuleProblem: no record of a batch has a finite gradient" in record.getMessage()
    caplog.clear()
    say_that_nothing_counts.cache_clear()
    feature[1] = 1.0
    assert bool(one_client(problem, shard, 1.0).gradient(problem.start).any())
    assert not caplog.records
