"""Steps of the server that are measured by a distance or a curvature, and not by a config."""

import math

import numpy as np
import pytest
import torch

from manifed.algorithms.adaptive_clip import CLIP
from manifed.algorithms.algorithm import Collected, There
from manifed.algorithms.measured_steps import MeasuredSteps
from manifed.errors import ConfigError
from manifed.experiment.load import load, parse
from manifed.experiment.schema import canonical, sha256
from manifed.manifolds import SPD, Euclidean, Lorentz, Sphere, Stiefel
from tests.algorithms.gossip_runs import reports_of
from tests.fresh import QUICKSTART
from tests.tensors import generator


def steps(strategy, uploads, manifold=None, x=None, clip=None, share=None):
    """The iterates along these means, and the state behind the last."""
    manifold = manifold or Euclidean()
    x = torch.zeros(2, dtype=torch.float64) if x is None else x
    state = strategy.start(x)
    path = [x]
    for r, u in enumerate(uploads, 1):
        if clip is not None:
            state = state | {CLIP: torch.tensor([clip[r - 1]], dtype=torch.float64)}
        mean = {"u": u} if share is None else {"u": u, "share": torch.tensor([share[r - 1]])}
        there = There(manifold, "train", r, Collected(mean, None, (), 1, lambda: 0.5))
        state = strategy.server(state, u, there)
        path.append(state["x"])
    return path, state


def draws(count=8, seed=4):
    return list(torch.randn(count, 2, generator=generator(seed), dtype=torch.float64))


def test_steps_by_distance_are_those_of_the_paper():
    """Ivgi, Hinder, Carmon (2023), with D for the least distance, in plain numpy."""
    uploads, clips = draws(), [0.1, 0.2, 0.2, 0.4, 0.3, 0.3, 0.2, 0.1]
    path, _ = steps(MeasuredSteps(distance=0.7, factor=0.5), uploads, clip=clips)
    x, squares, reach = np.zeros(2), 0.0, 0.7
    for u, c, found in zip(uploads, clips, path[1:], strict=True):
        scaled = u.numpy() / c
        squares += scaled @ scaled
        reach = max(reach, np.linalg.norm(x))
        x = x + 0.5 * reach * scaled / math.sqrt(squares)
        np.testing.assert_allclose(found.numpy(), x, rtol=1e-12)


def test_steps_by_a_matrix_are_those_of_adagrad_with_that_distance():
    """Duchi, Hazan, Singer (2011) with the full matrix, in plain numpy."""
    uploads, clips = draws(), [0.1, 0.2, 0.2, 0.4, 0.3, 0.3, 0.2, 0.1]
    rule = MeasuredSteps(distance=0.7, factor=0.5, scaling="matrix")
    path, state = steps(rule, uploads, clip=clips)
    x, squares, reach = np.zeros(2), np.zeros((2, 2)), 0.7
    for t, (u, c) in enumerate(zip(uploads, clips, strict=True)):
        scaled = u.numpy() / c
        squares += np.outer(scaled, scaled)
        reach = max(reach, np.linalg.norm(x))
        values, axes = np.linalg.eigh(squares)
        if t == 0:  # one direction alone
            root = scaled / np.linalg.norm(scaled)
        else:
            root = axes @ ((axes.T @ scaled) / np.sqrt(values))
        x = x + 0.5 * reach * root / math.sqrt(2)
        np.testing.assert_allclose(path[t + 1].numpy(), x, rtol=1e-9)
    np.testing.assert_allclose(state["measured"].numpy(), squares, rtol=1e-12)


def test_a_matrix_keeps_long_gradients_of_one_direction_from_shortening_steps_of_another():
    one = torch.tensor([1.0, 0.0], dtype=torch.float64)
    other = torch.tensor([0.0, 1e-3], dtype=torch.float64)
    lengths = []
    for scaling in ("norm", "matrix"):
        path, _ = steps(MeasuredSteps(distance=1.0, scaling=scaling), [one] * 8 + [other])
        lengths.append(float(path[-1][1]))
    assert lengths[0] < 0.01 * lengths[1]


def test_a_matrix_is_refused_where_points_are_no_vectors():
    more = ["strategy.scaling=matrix", "strategy.distance=1.0", "strategy.kind=measured-steps"]
    with pytest.raises(ConfigError, match=r"strategy\.scaling: expected points that are vectors"):
        load(QUICKSTART, more)
    with pytest.raises(ValueError, match=r"scaling: expected strategy\.distance"):
        MeasuredSteps(curvature=1.0, scaling="matrix")


def test_nothing_moves_until_the_clip_has_settled_and_then_a_distance_goes_by_it():
    uploads, clips = draws(), [0.1, 0.2, 0.3, 0.4, 0.4, 0.3, 0.4, 0.4]
    path, _ = steps(MeasuredSteps(distance=2.0, settles=3), uploads, clip=clips)
    assert all(torch.equal(x, path[0]) for x in path[:4])
    later, _ = steps(MeasuredSteps(distance=2.0 * 0.3), uploads[3:], clip=clips[3:])
    torch.testing.assert_close(torch.stack(path[3:]), torch.stack(later), rtol=1e-12, atol=0)
    with pytest.raises(ValueError, match="settles: expected strategy"):
        MeasuredSteps(curvature=1.0, settles=3)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize(
    ("manifold", "shape"), [(Sphere(), (4,)), (Lorentz(), (4,)), (Stiefel(), (5, 2))]
)
def test_steps_by_distance_do_not_depend_on_the_scale_of_uploads(scale, manifold, shape):
    x = manifold.random(*shape, dtype=torch.float64, generator=generator(1))
    ends = []
    for factor in (1.0, scale):
        rule, point = MeasuredSteps(distance=0.3, maps="retraction"), x
        state = rule.start(point)
        for r in range(1, 6):
            coords = manifold.coords_of(state["x"])
            drawn = torch.randn(coords, generator=generator(r), dtype=torch.float64)
            u = factor * manifold.from_coords(state["x"], drawn)
            there = There(manifold, "train", r, Collected({"u": u}, None, (), 1, lambda: 0.5))
            state = rule.server(state, u, there)
        assert float(manifold.membership_defect(state["x"])) < 1e-10
        ends.append(state["x"])
    torch.testing.assert_close(*ends, rtol=1e-8, atol=1e-8)


def test_a_round_without_a_signal_moves_nothing():
    for scaling in ("norm", "matrix"):
        rule = MeasuredSteps(distance=1.0, scaling=scaling)
        path, state = steps(rule, [torch.zeros(2, dtype=torch.float64)] * 3)
        assert all(torch.equal(x, path[0]) for x in path)
        assert not state["measured"].any()


def test_steps_by_curvature_take_the_mean_of_all_estimates_by_inverse_variances():
    """In a flat space without a clip the model is the weighted mean of x_t - g_t / h."""
    h, eta, ratio = 2.0, 0.01, 0.8
    rng = np.random.default_rng(0)
    target, noises = np.array([3.0, -1.0]), rng.standard_normal((6, 2))
    rule = MeasuredSteps(curvature=h * eta, noise_ratio=ratio)
    state, manifold = rule.start(torch.zeros(2, dtype=torch.float64)), Euclidean()
    weights = ratio ** (-2.0 * np.arange(6))
    for r in range(6):
        gradient = h * (state["x"].numpy() - target) + noises[r]
        u = torch.from_numpy(-eta * gradient)
        there = There(manifold, "train", r + 1, Collected({"u": u}, None, (), 1, lambda: 0.5))
        state = rule.server(state, u, there)
        w = weights[: r + 1]
        expected = target - (w[:, None] * noises[: r + 1]).sum(0) / w.sum() / h
        np.testing.assert_allclose(state["x"].numpy(), expected, rtol=1e-10)


def test_what_a_clip_leaves_of_a_curvature_makes_steps_longer_and_never_endless():
    u = [torch.tensor([1.0, 0.0], dtype=torch.float64)]
    lengths = [
        steps(MeasuredSteps(curvature=1.0), u, share=[share])[0][1][0].item()
        for share in (1.0, 0.5, 0.0, -50.0, 50.0)
    ]
    assert lengths == pytest.approx([1.0, 1 / 0.75, 2.0, 4.0, 1.0], rel=1e-12)


@pytest.mark.parametrize(
    ("manifold", "shape"), [(Euclidean(), (4,)), (Lorentz(), (4,)), (SPD(), (3, 3))]
)
def test_steps_end_within_the_radius_however_loud_the_noise(manifold, shape):
    x = manifold.of_zeros(torch.zeros(shape, dtype=torch.float64))
    for scale in (0.01, 1.0, 1e8):
        points = {}
        for radius in (None, 3.0):
            rule, points[radius] = MeasuredSteps(curvature=2.0, radius=radius), [x]
            state = rule.start(x)
            for r in range(1, 6 if scale < 1e8 or radius else 1):
                coords = manifold.coords_of(state["x"])
                drawn = torch.randn(coords, generator=generator(r), dtype=torch.float64)
                u = manifold.from_coords(state["x"], scale * drawn)
                there = There(manifold, "train", r, Collected({"u": u}, None, (), 1, lambda: 0.5))
                state = rule.server(state, u, there)
                points[radius].append(state["x"])
        far = [float(manifold.dist(x, y)) for y in points[3.0]]
        assert max(far) <= 3.0 + 1e-9
        assert max(manifold.membership_defect(y) for y in points[3.0]) < 1e-10
        if scale == 0.01:
            assert all(map(torch.equal, *points.values())), "nothing ends beyond it"
        if scale == 1e8:
            assert far[1] == pytest.approx(3.0)


RULE = "strategy={%s kind='measured-steps',curvature=2.0}"


@pytest.mark.parametrize("more", ["momentum=0.5", "server_step_size=2.0"])
def test_a_radius_that_would_not_hold_is_refused(more):
    with pytest.raises(ConfigError, match=r"strategy\.radius: expected neither"):
        load(QUICKSTART, [RULE % f"radius=1.0,{more},"])


def test_a_radius_is_a_part_of_the_hash_and_none_is_what_it_was():
    plain, bounded = (load(QUICKSTART, [RULE % more]) for more in ("", "radius=1.0,"))
    assert "radius" not in canonical(plain)
    assert sha256(plain) != sha256(bounded)


@pytest.mark.parametrize("keys", [{}, {"distance": 1.0, "curvature": 2.0}])
def test_one_rule_is_asked_for(keys):
    with pytest.raises(ValueError, match="either distance or curvature"):
        MeasuredSteps(**keys)


def test_a_run_does_not_depend_on_the_step_size_of_its_clients():
    ends = []
    for step in (1e-3, 1e-1):
        config = parse({
            "name": "measured", "problem": {"kind": "least-squares"},
            "data": {
                "kind": "synthetic-least-squares", "num_clients": 2, "rows": 40, "dimension": 3},
            "federation": {"num_clients": 2, "num_rounds": 20, "partition": {"kind": "natural"}},
            "training": {"kind": "rsgd", "step_size": step, "minibatch": {"kind": "full"}},
            "strategy": {"kind": "measured-steps", "distance": 1.0},
        })  # fmt: skip
        ends.append(reports_of(config, "stacked")[-1].state["x"])
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-9)


def test_a_strategy_without_a_kind_is_the_tangent_mean():
    table = {
        "name": "plain", "problem": {"kind": "least-squares"},
        "data": {"kind": "synthetic-least-squares", "num_clients": 2, "rows": 40, "dimension": 3},
        "federation": {"num_clients": 2, "num_rounds": 2, "partition": {"kind": "natural"}},
        "training": {"kind": "rsgd", "step_size": 0.1, "minibatch": {"kind": "full"}},
    }  # fmt: skip
    assert parse({**table, "strategy": {"momentum": 0.5}}).strategy.kind == "tangent-mean"
    with pytest.raises(ConfigError, match="either distance or curvature"):
        parse({**table, "strategy": {"kind": "measured-steps"}})
