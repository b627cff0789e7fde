"""Layers on manifolds: what each computes, and its gradients as a problem takes them."""

import math

import pytest
import torch
from torch import nn

from manifed.layers import (
    BiMap,
    DistanceDecoder,
    HyperbolicClassifier,
    LogEig,
    LorentzEmbedding,
    OrthogonalLinear,
    PoincareEmbedding,
    ReEig,
    StiefelAdapter,
    adapt,
)
from manifed.manifolds import SPD, Lorentz, PoincareBall
from manifed.manifolds.linalg import packed, sym
from manifed.problems.examples import Examples
from manifed.problems.module_problem import ModuleProblem
from tests.problems.test_module_problem import Net
from tests.tensors import assert_near, float64, generator

CLASSES = 3


def normals(*shape, seed=0):
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(1)
        yield


def labelled(feature):
    """A shard whose examples are of the classes 0, 1, 2, 0, ... in turn."""
    label = torch.arange(len(feature)) % CLASSES
    return Examples({"feature": feature, "label": label})


def covariances(n, size, seed=0):
    factor = normals(n, size, 2 * size, seed=seed)
    return factor @ factor.mT / (2 * size)


def tokens(n, count):
    return torch.randint(10, (n, count), generator=generator(2))


MODELS = {
    "orthogonal": (
        lambda: nn.Sequential(
            OrthogonalLinear(6, 4), nn.Tanh(), OrthogonalLinear(4, 5, metric="canonical"),
            nn.Linear(5, CLASSES),
        ),
        normals(5, 6),
    ),
    "adapter": (
        lambda: adapt(nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, CLASSES)), 2),
        normals(5, 6),
    ),
    "spdnet": (
        lambda: nn.Sequential(BiMap(6, 4), ReEig(0.3), LogEig(), nn.Linear(10, CLASSES)),
        covariances(5, 6),
    ),
    "poincare": (
        lambda: nn.Sequential(PoincareEmbedding(10, 3), DistanceDecoder(PoincareBall())),
        tokens(5, 4),
    ),
    "lorentz": (
        lambda: nn.Sequential(LorentzEmbedding(10, 3), DistanceDecoder(Lorentz())),
        tokens(5, 4),
    ),
    "everything": (Net, normals(5, 5)),
    "classifier": (
        lambda: nn.Sequential(nn.Linear(6, 4), HyperbolicClassifier(4, CLASSES)),
        normals(5, 6),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_each_example_are_those_of_autograd(name):
    made, feature = MODELS[name]
    problem = ModuleProblem(made())
    shard = labelled(feature)
    assert problem.point_shape(shard) == problem.start.shape
    x = problem.manifold.projx(problem.start + 0.05 * normals(*problem.start.shape, seed=3))
    assert problem.manifold.check_point_on_manifold(x, atol=1e-10)
    model = problem.model
    model.load_state_dict(problem.state_dict(x))
    for one, given, right in zip(problem.rgrads(x, shard), *shard.tensors.values(), strict=True):
        model.zero_grad()
        nn.functional.cross_entropy(model(given[None]), right[None]).backward()
        named = {n: p for n, p in model.named_parameters() if p.requires_grad}
        egrad = problem.pack({n: p.grad.as_subclass(torch.Tensor) for n, p in named.items()})
        expected = problem.manifold.egrad2rgrad(x, egrad)
        assert_near(one, expected, 1e-12)
        assert expected.norm() > 1e-3


def test_an_adapter_starts_as_the_layer_it_adapts_and_changes_it_by_its_rank():
    linear = nn.Linear(6, 5).double()
    eye = torch.eye(6).double()
    adapter = StiefelAdapter(linear, 2).double()
    assert torch.equal(adapter(eye), linear(eye))
    with torch.no_grad():
        adapter.coefficients.copy_(normals(2, 6, seed=4))
    change = adapter(eye) - linear(eye)
    assert torch.linalg.matrix_rank(change) == 2
    torch.testing.assert_close(change.mT, adapter.frame @ adapter.coefficients)


def test_adapting_a_model_copies_and_freezes_it_and_names_what_it_does_not_find():
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, CLASSES))
    adapted = adapt(model, 2, names=["0"])
    trained = {name for name, p in adapted.named_parameters() if p.requires_grad}
    assert trained == {"0.frame", "0.coefficients"}
    assert all(p.requires_grad for p in model.parameters())
    assert isinstance(adapt(nn.Linear(6, 4), 2), StiefelAdapter)
    with pytest.raises(ValueError, match=r"names: expected.*\['0', '2'\], got \['1'\]"):
        adapt(model, 2, names=["1"])
    with pytest.raises(ValueError, match="at least one linear layer"):
        adapt(nn.ReLU(), 2)
    with pytest.raises(ValueError, match="rank: expected 1 to 3"):
        adapt(model, 4, names=["2"])


def test_a_bilinear_map_of_covariances_gives_covariances():
    found = BiMap(6, 4).double()(covariances(5, 6)).detach()
    assert SPD().check_point_on_manifold(found)
    with pytest.raises(ValueError, match="at least as many rows as columns, got 4 x 6"):
        BiMap(4, 6)


@pytest.mark.parametrize("layer", [ReEig(0.5), LogEig()])
@pytest.mark.parametrize("eigenvalues", [(0.2, 0.4, 0.7, 2.0), (0.3, 0.3, 0.9, 0.9)])
def test_spectral_layers_and_their_gradients_also_at_equal_eigenvalues(layer, eigenvalues):
    basis = torch.linalg.qr(normals(4, 4))[0]
    w = float64(eigenvalues)
    matrix = ((basis * w) @ basis.mT).requires_grad_()
    if isinstance(layer, ReEig):
        expected = (basis * w.clamp_min(0.5)) @ basis.mT
    else:
        expected = packed((basis * w.log()) @ basis.mT)
    assert_near(layer(matrix), expected, 1e-12)
    of_symmetric = lambda b: layer(sym(b))  # noqa: E731
    assert torch.autograd.gradcheck(of_symmetric, (matrix,), eps=1e-5, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("made", [PoincareEmbedding, LorentzEmbedding])
def test_an_embedding_is_a_table_of_points(made):
    layer = made(10, 3, radius=0.5)
    assert layer.points.manifold.check_point_on_manifold(layer.points.detach())
    index = torch.tensor([[3, 3], [0, 9]])
    assert torch.equal(layer(index), layer.points[index])
    assert torch.equal(layer(index.double()), layer.points[index])
    with pytest.raises(IndexError):
        layer(torch.tensor([10]))
    with pytest.raises(ValueError, match="radius: expected"):
        made(10, 4, radius=0.5)


def test_the_classifier_scores_by_the_signed_distance_to_geodesic_hyperplanes():
    from geoopt.manifolds.stereographic import math as theirs

    layer = HyperbolicClassifier(3, 4, lift=False).double()
    ball = PoincareBall()
    with torch.no_grad():
        layer.points.copy_(ball.random(4, 3, generator=generator(1)))
    x = ball.random(5, 3, generator=generator(2))
    planes = layer.points.detach().as_subclass(torch.Tensor)
    k = float64(-1.0)
    distances = theirs.dist2plane(
        x.unsqueeze(-2), planes, layer.normals, k=k, signed=True, scaled=True
    )
    torch.testing.assert_close(layer(x), 2 * distances, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("length", [0.0, 1e-200, 1e3])
def test_the_classifier_is_finite_with_its_gradients_from_the_origin_to_the_boundary(length):
    layer = HyperbolicClassifier(3, 4).double()
    feature = (length * normals(3)).requires_grad_()
    scores = layer(feature)
    gradients = torch.autograd.grad(scores.sum(), [feature, *layer.parameters()])
    assert all(bool(torch.isfinite(g).all()) for g in (scores, *gradients))
    assert math.isfinite(float(scores.detach().abs().max()))
