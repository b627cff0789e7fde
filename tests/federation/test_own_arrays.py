"""What people hold is taken by rules: arrays, lists, frames, short types, geoopt's manifolds."""

import warnings

import geoopt
import numpy as np
import pandas
import polars
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import manifed
from manifed.algorithms import RSGD
from manifed.errors import ConfigError
from manifed.manifolds import (
    SPD,
    Euclidean,
    Lorentz,
    PoincareBall,
    Scaled,
    SPDLogEuclidean,
    Sphere,
    Stiefel,
)
from manifed.oracles.minibatch import Full, Poisson
from manifed.problems import (
    KPCA,
    ClassMeans,
    Examples,
    FrechetMean,
    GeometricMedian,
    LeastSquares,
    Logistic,
    PrincipalEigenvector,
)
from manifed.problems.own_arrays import tensor_of
from tests.conformance.manifold_cases import generator, normals

STEPS = RSGD(step_size=0.2, local_steps=2, minibatch=Poisson(batch_size=6))
PRIVATE = manifed.ExampleLevel(
    l2_norm_clip=1.0, noise=manifed.Multiplier(noise_multiplier=4.0), delta=1e-3
)
WHOLE = torch.arange(-36, 36).reshape(2, 12, 3)
"""Two clients' rows of small whole numbers, which every type holds exactly."""


class Column:
    """A column as a frame gives it."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)


class Frame:
    """What is asked of a frame of pandas or polars."""

    def __init__(self, columns):
        self.held = columns
        self.columns = list(columns)
        self.dtypes = [np.array(column).dtype for column in columns.values()]

    def __array__(self, dtype=None, copy=None):
        kind = object if len(set(self.dtypes)) > 1 else None
        return np.array([[*row] for row in zip(*self.held.values(), strict=True)], kind)

    def __getitem__(self, name):
        return Column(self.held[name])


def frame_of(tensor, make=Frame):
    return make({name: column.tolist() for name, column in zip("abc", tensor.T, strict=True)})


HELD = {
    "float64": lambda z: z.double(),
    "float32": lambda z: z.float(),
    "float16": lambda z: z.half(),
    "bfloat16": lambda z: z.bfloat16(),
    "int64": lambda z: z,
    "int8": lambda z: z.to(torch.int8),
    "a parameter": lambda z: nn.Parameter(z.double()),
    "a point of geoopt's": lambda z: geoopt.ManifoldTensor(z.double()),
    "a numpy array": lambda z: z.double().numpy(),
    "a read-only one": lambda z: np.broadcast_to(z.numpy(), z.shape),
    "big-endian": lambda z: z.numpy().astype(">f4"),
    "long double": lambda z: z.numpy().astype(np.longdouble),
    "of objects": lambda z: z.numpy().astype(object),
    "every second row of a longer one": lambda z: np.repeat(z.numpy(), 2, 0)[::2],
    "column by column": lambda z: z.double().T.contiguous().T,
    "lists": lambda z: z.tolist(),
    "tuples of a list": lambda z: [*map(tuple, z.tolist())],
    "a list of rows": lambda z: [*z],
    "a list of arrays": lambda z: [*z.numpy()],
    "a frame": frame_of,
    "a frame of pandas": lambda z: frame_of(z, pandas.DataFrame),
    "a frame of polars": lambda z: frame_of(z, polars.DataFrame),
    "by name": lambda z: {"z": z.numpy()},
    "examples": lambda z: Examples({"z": z.double()}),
}


def component(shards, **changes):
    start = [1.0, 0.0, 0.0]
    settings = {"rounds": 2, "privacy": PRIVATE, "start": start, **changes}
    return manifed.fit(PrincipalEigenvector(), shards, STEPS, **settings)


@pytest.mark.parametrize("name", HELD)
def test_what_people_hold_gives_the_bits_of_the_same_numbers_in_float64(name):
    found = component([HELD[name](z) for z in WHOLE])
    assert torch.equal(found.model, component([*WHOLE.double()]).model)


@pytest.mark.parametrize("held", [WHOLE, WHOLE.numpy(), WHOLE.tolist()], ids=lambda z: str(type(z)))
def test_one_array_of_all_clients_is_cut_along_its_first_axis(held):
    assert torch.equal(component(held).model, component([*WHOLE.double()]).model)


def test_whole_numbers_are_clipped_as_long_as_they_are():
    """200^2 does not fit into eight bits: a norm taken there would be too short for the clip."""
    long = 200 * torch.ones(2, 40, 3, dtype=torch.uint8)
    short = [one.double() for one in long]
    assert torch.equal(component([*long]).model, component(short).model)


def test_a_start_may_be_a_list_or_an_array_and_is_float64():
    starts = ([1.0, 0, 0], np.array([1, 0, 0], np.float32), torch.tensor([1, 0, 0]))
    models = [component([*WHOLE], start=x).model for x in starts]
    assert {model.dtype for model in models} == {torch.float64}
    assert all(torch.equal(model, models[0]) for model in models)


# -- points in a shorter type ----------------------------------------------------------------------
ON = {
    "sphere": (Sphere(), FrechetMean(Sphere()), (4,)),
    "spd": (SPD(), FrechetMean(SPD()), (3, 3)),
    "lorentz": (Lorentz(), GeometricMedian(Lorentz()), (4,)),
    "poincare": (PoincareBall(), FrechetMean(PoincareBall()), (3,)),
}


def points_on(manifold, shape, rows=12):
    return manifold.random(rows, *shape, generator=generator(5))


@pytest.mark.parametrize("name", ON)
def test_points_in_float32_are_the_nearest_ones_in_float64(name):
    manifold, problem, shape = ON[name]
    points = points_on(manifold, shape).float()
    (kept,) = (problem.widened(Examples({"z": points}))[key] for key in ("z",))
    assert kept.dtype == torch.float64
    problem.check_records(Examples({"z": kept}))
    torch.testing.assert_close(kept, points.double(), rtol=1e-5, atol=1e-6)
    found = manifed.fit(problem, [points.numpy()], RSGD(step_size=0.1, minibatch=Full()), rounds=2)
    assert manifold.check_point_on_manifold(found.model)


@pytest.mark.parametrize("name", ON)
def test_a_point_does_not_depend_on_the_records_beside_it(name):
    manifold, problem, shape = ON[name]
    points = points_on(manifold, shape).float()
    others = torch.cat([points[:1], points_on(manifold, shape, 30).flip(0).float()])
    mine = problem.widened(Examples({"z": points}))["z"][0]
    assert torch.equal(mine, problem.widened(Examples({"z": others}))["z"][0])
    broken = torch.cat([points[:1], torch.full_like(points, torch.nan)])
    assert torch.equal(mine, problem.widened(Examples({"z": broken}))["z"][0])


def test_what_is_no_rounding_of_its_type_is_refused():
    z = points_on(Sphere(), (4,))
    for held in (z.float() * 1.01, z * (1 + 1e-7), z.bfloat16()):
        with pytest.raises(ConfigError, match="client 0, record 0: expected a point of Sphere"):
            manifed.fit(FrechetMean(Sphere()), [held], STEPS, rounds=1)


def test_the_nearest_mean_takes_short_points_and_whole_labels():
    z = points_on(SPD(), (3, 3)).float()
    label = np.arange(12) % 2
    shards = [{"z": z, "label": label}]
    steps = RSGD(step_size=0.5, minibatch=Full())
    found = manifed.fit(ClassMeans(geoopt.SymmetricPositiveDefinite(), 2), shards, steps, rounds=2)
    assert found.predict(z.numpy()).shape == (12,)


# -- frames ------------------------------------------------------------------------------------
FRAMES = {
    "names": ({"a": [1, 2], "b": ["x", "y"]}, r"client 0: .*Frame of .* from columns .*'b': '<U1'"),
    "nothing": ({"a": [1.0, 2], "b": [None, 1.0]}, r"client 0: .*'b': 'object'"),
    "not finite": ({"a": [1.0, np.nan]}, "client 0, record 1: expected finite entries of 'z'"),
    "dates": ({"a": np.array(["2026-01-01"], "M8[D]").tolist()}, "client 0: .*'a': 'object'"),
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_that_holds_other_things_is_refused_with_its_columns(name):
    columns, said = FRAMES[name]
    with pytest.raises(ConfigError, match=said):
        component([Frame(columns)])


def test_frames_of_one_run_have_the_same_columns_in_the_same_order():
    first, second = (frame_of(z) for z in WHOLE)
    turned = Frame({name: second.held[name] for name in "bca"})
    with pytest.raises(
        ConfigError, match=r"client 1: expected a frame with columns .* like client"
    ):
        component([first, turned])
    label = [(-1) ** j for j in range(12)]
    sites = [(first, label), (turned, label)]
    with pytest.raises(ConfigError, match=r"sites\[1\]: expected a frame with columns"):
        manifed.fit_module(nn.Linear(3, 1), sites, loss="mse")


def test_columns_of_a_frame_are_taken_by_the_names_that_a_problem_reads():
    frame = Frame({**frame_of(WHOLE[0]).held, "y": [1.0, -1.0] * 6})
    rows = np.column_stack([np.asarray(frame[name]) for name in "abc"])
    shards = [{"feature": rows, "label": frame["y"]}]
    found = manifed.fit(Logistic(), shards, STEPS, rounds=2)
    assert set(found.predict(rows).tolist()) <= {-1.0, 1.0}


@pytest.mark.parametrize(
    "held",
    [
        np.array(["a"]), np.array([1j]), np.array([None]), np.array([b"1"]), "words", None, {1, 2},
        np.ma.masked_array([1.0, 2.0], [True, False]), [[1.0], [1.0, 2.0]], ["1", "2"], object(),
        np.array([(1, 2.0)], dtype="i4,f8"), np.array(["2026-01-01"], "M8[D]"), (x for x in "ab"),
        torch.ones(2, 3) + 0j, torch.eye(3).to_sparse(), torch.ones(3, device="meta"), [1.0, None],
        [torch.ones(2), torch.ones(3)], [2**70], iter([1.0]),
    ],
    ids=lambda held: type(held).__name__,
)  # fmt: skip
def test_what_is_no_array_of_numbers_is_refused_in_one_line(held):
    with pytest.raises(ConfigError, match=r"^it: expected .* got ") as raised:
        tensor_of(held, "it")
    assert "\n" not in str(raised.value)


# -- modules -----------------------------------------------------------------------------------
def pairs(rows=12, width=3):
    feature = normals(3, rows, width)
    return feature, torch.arange(rows) % 2


class Named(Dataset):
    """A row as a data set of Hugging Face gives it."""

    def __init__(self, feature, label):
        self.rows = feature, label

    def __len__(self):
        return len(self.rows[1])

    def __getitem__(self, i):
        return {"feature": self.rows[0][i].numpy(), "label": int(self.rows[1][i])}


SITES = {
    "arrays": lambda x, y: (x.numpy(), y.numpy()),
    "lists": lambda x, y: (x.tolist(), y.tolist()),
    "by name": lambda x, y: {"label": y.numpy(), "feature": x.numpy()},
    "a data set": TensorDataset,
    "the data set of a loader": lambda x, y: DataLoader(TensorDataset(x, y)).dataset,
    "pairs": lambda x, y: [*zip(x, y, strict=True)],
    "pairs of arrays": lambda x, y: [*zip(x.numpy(), y.tolist(), strict=True)],
    "rows by name": Named,
    "a frame": lambda x, y: (frame_of(x), Column(y.tolist())),
    "small labels": lambda x, y: (x, y.to(torch.uint8)),
}  # fmt: skip


@pytest.mark.parametrize("name", SITES)
def test_a_module_takes_what_a_site_holds(name):
    model = nn.Linear(3, 2)
    privacy = manifed.ExampleLevel(epsilon=2, delta=1e-3, noise_source="seed")
    settings = {"rounds": 2, "privacy": privacy, "test": SITES[name](*pairs())}
    found, plain = (
        manifed.fit_module(model, [SITES[way](*pairs())] * 2, **settings)
        for way in (name, "arrays")
    )
    assert torch.equal(found.model, plain.model)
    assert found.curves["test_accuracy"] == plain.curves["test_accuracy"]


def test_a_loader_is_refused_with_what_to_hand_in():
    loader = DataLoader(TensorDataset(*pairs()))
    with pytest.raises(ConfigError, match=r"sites\[0\]: .* got DataLoader: .*subscriptable"):
        manifed.fit_module(nn.Linear(3, 2), [loader])


# -- manifolds of geoopt's -------------------------------------------------------------------------
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # geoopt says that it does not do all of it
    LOG_EUCLIDEAN = geoopt.SymmetricPositiveDefinite("LEM")
    STEIN = geoopt.SymmetricPositiveDefinite("SM")
OURS = {
    "sphere": (geoopt.Sphere(), Sphere()),
    "exact sphere": (geoopt.SphereExact(), Sphere()),
    "Euclidean Stiefel": (geoopt.EuclideanStiefel(), Stiefel("euclidean")),
    # both are handed in to be replaced; nothing is computed with them
    "Stiefel": (geoopt.Stiefel(canonical=False), Stiefel("euclidean")),  # noqa: TID251
    "canonical": (geoopt.CanonicalStiefel(), Stiefel("canonical")),  # noqa: TID251
    "numbers": (geoopt.Euclidean(), Euclidean()),
    "vectors": (geoopt.Euclidean(ndim=1), Euclidean()),
    "matrices": (geoopt.Euclidean(ndim=2), Euclidean(2)),
    "ball": (geoopt.PoincareBall(c=1.0), PoincareBall()),
    "hyperboloid": (geoopt.Lorentz(k=1.0), Lorentz()),
    "AIM": (geoopt.SymmetricPositiveDefinite(), SPD()),
    "LEM": (LOG_EUCLIDEAN, SPDLogEuclidean()),
    "scaled": (geoopt.Scaled(geoopt.Sphere(), 2.0), Scaled(Sphere(), 2.0)),
    "ours": (Sphere(), Sphere()),
}


INNER_IS_ANOTHER = ("ours", "numbers", "matrices", "LEM", "scaled")
"""Where geoopt's inner product is one of entries, or none that its own distances follow."""


@pytest.mark.parametrize("name", OURS)
def test_a_manifold_of_geoopts_stands_for_the_one_with_its_points_and_metric(name):
    theirs, ours = OURS[name]
    found = FrechetMean(theirs).manifold
    assert found == ours
    assert type(found) is type(ours)
    if name not in INNER_IS_ANOTHER:
        shape = (4, 2) if isinstance(ours, Stiefel) else (3, 3) if ours.ndim == 2 else (3,)
        x = ours.random(*shape, generator=generator(1))
        u = ours.tangent_gaussian(x, 0.1, generator(2))
        norm = theirs.to(torch.float64).inner(x, u, u).reshape(())
        torch.testing.assert_close(norm, ours.inner(x, u, u), rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize(
    "theirs",
    [
        geoopt.PoincareBall(c=2.0), geoopt.Lorentz(k=2.0), geoopt.BirkhoffPolytope(), "spher", 5,
        geoopt.Sphere(intersection=torch.eye(3)), STEIN, Sphere,
        geoopt.Scaled(geoopt.Sphere(), 2.0, learnable=True), geoopt.UpperHalf(), torch.eye(2),
    ],
    ids=str,
)  # fmt: skip
def test_a_manifold_without_a_counterpart_is_refused_with_those_that_have_one(theirs):
    if isinstance(theirs, str):
        with pytest.raises(ValueError, match="'sphere'"):
            FrechetMean(theirs)
        return
    said = r"^manifold: expected one of geoopt's Euclidean, .*Lorentz\(k=1\).* of manifed, got "
    for make in (FrechetMean, lambda manifold: ClassMeans(manifold, 2)):
        with pytest.raises(TypeError, match=said) as raised:
            make(theirs)
        assert "\n" not in str(raised.value)


# -- what is left --------------------------------------------------------------------------------
def test_a_result_is_shown_in_one_line_and_predicts():
    found = component([*WHOLE])
    assert repr(found).startswith("<Result: 2 rounds, model (3,), seeded run (no guarantee); (")
    assert "against server, for each example>" in repr(found)
    assert found.statement["unit"] == "example"
    assert "not private>" in repr(component([*WHOLE], privacy=None))
    expected = torch.as_tensor(WHOLE[0]).double() @ found.model.unsqueeze(-1)
    torch.testing.assert_close(found.predict(WHOLE[0]), expected)


def test_scores_and_classes_are_predicted_from_what_is_held():
    feature, label = pairs(40)
    target = feature @ torch.tensor([1.0, -2.0, 0.5]).double()
    shards = [{"feature": feature, "target": target}]
    found = manifed.fit(LeastSquares(), shards, RSGD(step_size=0.3, minibatch=Full()), rounds=60)
    torch.testing.assert_close(found.predict(feature.tolist()), target, rtol=0, atol=1e-3)
    with pytest.raises(ConfigError, match="features: expected examples that LeastSquares can be"):
        found.predict(feature[:, :2])
    model = nn.Linear(3, 2).double()
    trained = manifed.fit_module(model, [(feature, label)], rounds=3)
    model.load_state_dict(trained.state_dict)
    assert torch.equal(trained.predict(feature.numpy()), model(feature).argmax(-1))
    head = nn.Linear(3, 1).double()
    regression = manifed.fit_module(head, [(feature, target)], loss="mse", rounds=3)
    head.load_state_dict(regression.state_dict)
    torch.testing.assert_close(regression.predict(feature), head(feature).detach())
    frames = manifed.fit(KPCA(2), [feature], STEPS, rounds=1)
    torch.testing.assert_close(frames.predict(feature), feature @ frames.model)
    points = feature / feature.norm(dim=-1, keepdim=True)
    mean = manifed.fit(FrechetMean(Sphere()), [points], STEPS, rounds=1)
    with pytest.raises(ConfigError, match=r"predict: .* FrechetMean, whose result is"):
        mean.predict(points)
