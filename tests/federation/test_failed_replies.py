"""Under client-level privacy a round goes the same way whatever one client replies, or does not."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flwr.app import Error, Message

from manifed.algorithms.payloads import Displacement
from manifed.errors import ConfigError, RoundFailed
from manifed.experiment.assembly import client_side, initial_point, plan_of
from manifed.experiment.load import load
from manifed.federation import rounds
from manifed.federation.replies import Failure, Replies, ReplyPolicy
from manifed.federation.rounds import CLIP, run_rounds
from manifed.federation.stacked import StackedTransport
from manifed.flower.client import client_app_of
from manifed.flower.inline import InlineGrid
from manifed.flower.records import tensors_to_record
from manifed.flower.transport import MessageTransport
from manifed.privacy.mechanism import ClientMechanism

QUICKSTART = Path(__file__).resolve().parents[2] / "configs" / "quickstart.toml"
VICTIM = 1
PRIVATE = (
    "privacy={kind='client-level',l2_norm_clip=0.5,delta=1e-2,"
    "noise={kind='multiplier',noise_multiplier=0.1}}"
)
COHORTS = {
    "all": "federation.cohort={kind='all'}",
    "poisson": "federation.cohort={kind='poisson',sampling_probability=0.3}",
}
ROUNDS = 8


def spoiled(reply, how):
    """What the victim sends instead of ``reply``: none, an error, or an upload of one value."""
    if how == "missing":
        return []
    if how == "error":
        return [Message(Error(2, "boom"), reply_to=reply)]
    value = {"zero": 0.0, "nan": float("nan"), "infinite": float("inf")}[how]
    record = reply.content["payload"]
    shape = next(iter(record.values())).shape
    filled = torch.full(shape, value, dtype=torch.float64)
    reply.content["payload"] = tensors_to_record(dict.fromkeys(record, filled))
    return [reply]


class Tampering(InlineGrid):
    """The inline engine with one client's training replies spoiled."""

    how = "zero"
    asked = 0

    def send_and_receive(self, messages, *, timeout=None):
        sent = []
        for reply in super().send_and_receive(messages, timeout=timeout):
            is_victims = reply.metadata.src_node_id == 2 + VICTIM
            if is_victims and reply.metadata.message_type == "train":
                self.asked += 1
                for each in spoiled(reply, self.how):
                    each.metadata.__dict__["_reply_to_message_id"] = (
                        reply.metadata.reply_to_message_id
                    )
                    each.metadata.__dict__["_src_node_id"] = reply.metadata.src_node_id
                    sent.append(each)
            else:
                sent.append(reply)
        return sent


def config_of(*sets):
    return load(QUICKSTART, ["federation.num_clients=4", "training.local_steps=1", *sets])


def outsider_sees(config, how, plan=None):
    """The broadcast models (and adapted clip norms) of a run, and the reports."""
    grid = Tampering(client_app_of(lambda _: config), 4, {})
    grid.how = how
    return watched(plan or plan_of(config), config, grid), grid


def watched(plan, config, grid):
    transport = grid
    if isinstance(grid, InlineGrid):
        transport = MessageTransport.meet(grid, plan)
    start = plan.server_update.initial(initial_point(config))
    reports = list(run_rounds(plan, start, transport, num_rounds=ROUNDS))
    seen = [(report.state["x"], report.state.tensors.get(CLIP)) for report in reports]
    return seen, reports


def assert_equal_views(one, other, atol=0.0):
    assert len(one) == len(other) == ROUNDS
    for (x, clip), (y, other_clip) in zip(one, other, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=atol)
        assert (clip is None) == (other_clip is None)
        if clip is not None:
            torch.testing.assert_close(clip, other_clip, rtol=0, atol=atol)


@pytest.mark.parametrize("cohort", COHORTS)
def test_a_failed_reply_is_the_zero_vector_and_the_round_goes_on(cohort):
    config = config_of(PRIVATE, COHORTS[cohort])
    (zero, _), _ = outsider_sees(config, "zero")
    cohorts = [config.federation.cohort.draw(4, r, 0, plan_of(config).source) for r in range(1, 9)]
    assert any(VICTIM in drawn for drawn in cohorts)
    assert cohort == "all" or (VICTIM,) in cohorts
    for how in ("nan", "infinite", "missing", "error"):
        (seen, reports), grid = outsider_sees(config, how)
        assert_equal_views(zero, seen)
        assert grid.asked == sum(VICTIM in drawn for drawn in cohorts)
        for report, drawn in zip(reports, cohorts, strict=True):
            assert set(report.failures) == {VICTIM} & set(drawn)
            assert set(report.participants) == set(drawn) - {VICTIM}


def test_the_policy_that_looked_at_replies_is_caught(monkeypatch):
    def judged(self, now, replies):
        policy, size = now.plan.policy, len(now.cohort)
        if now.asked and not policy.is_enough(replies, size, needs_everyone=False):
            raise RoundFailed(policy.explain(replies, size))
        return replies

    config = config_of(PRIVATE, COHORTS["poisson"])
    monkeypatch.setattr(rounds.Rules, "judge", judged)
    with pytest.raises(RoundFailed, match=r"client 1: Expected finite entries.*\(node 3\)"):
        outsider_sees(config, "nan")


@pytest.mark.parametrize(
    ("how", "is_computed"), [("nan", True), ("missing", False), ("error", False)]
)
def test_a_failed_round_says_whether_uploads_were_at_fault_or_an_outage(how, is_computed):
    with pytest.raises(RoundFailed) as failed:
        outsider_sees(config_of("federation.replies={on_failure='abort'}"), how)
    assert failed.value.is_computed is is_computed


def test_a_failed_replys_bit_of_the_clip_norm_is_the_zero_vectors():
    adaptive = "adaptive={quantile_noise_multiplier=5.0},"
    config = config_of(PRIVATE.replace("delta", adaptive + "delta"), COHORTS["poisson"])
    (zero, _), _ = outsider_sees(config, "zero")
    (missing, _), _ = outsider_sees(config, "missing")
    assert_equal_views(zero, missing)
    assert zero[0][1] is not None


def test_a_phase_of_several_exchanges_asks_everybody_in_each():
    config = config_of(
        "privacy={kind='none'}",
        "training={kind='rfedsvrg',step_size=0.1,local_steps=2}",
        COHORTS["all"],
    )
    mechanism = ClientMechanism(l2_norm_clip=0.5, noise_multiplier=0.1)
    plan = replace(plan_of(config), mechanism=mechanism)
    (zero, _), _ = outsider_sees(config, "zero", plan)
    (seen, reports), grid = outsider_sees(config, "nan", plan)
    assert_equal_views(zero, seen)
    assert grid.asked == 2 * ROUNDS
    assert reports[-1].participants == (0, 2, 3)


@pytest.mark.parametrize("how", ["nan", "error"])
def test_a_stacked_cohort_does_alike(how, monkeypatch):
    from manifed.algorithms import rsgd

    config = config_of(PRIVATE, COHORTS["poisson"])
    (zero, _), _ = outsider_sees(config, "zero")
    plain = rsgd.RSGD.update

    def update(self, phase, down, memory, oracle, manifold, draws):
        up, after = plain(self, phase, down, memory, oracle, manifold, draws)
        if how == "error" and VICTIM in draws.partition:
            raise RuntimeError("boom\n\x1b[2J")
        bad = torch.tensor([i == VICTIM for i in draws.partition]).unsqueeze(-1)
        return type(up)(torch.where(bad, torch.nan, up.tensors()["u"])), after

    monkeypatch.setattr(rsgd.RSGD, "update", update)
    grid = StackedTransport(client_side(config), device="cpu", memory_budget_mb=64)
    seen, reports = watched(plan_of(config), config, grid)
    assert_equal_views(zero, seen, atol=1e-12)
    reasons = [failure.text for report in reports for failure in report.failures.values()]
    assert reasons
    assert all(reason.isprintable() for reason in reasons)


def test_a_client_that_never_replies_does_not_end_projected_learning_either():
    config = config_of(
        PRIVATE,
        "training={kind='projected',step_size=0.1,local_steps=2,upload='plain'}",
        COHORTS["all"],
    )
    assert plan_of(config).needs_everyone
    (zero, _), _ = outsider_sees(config, "zero")
    (missing, _), _ = outsider_sees(config, "missing")
    assert_equal_views(zero, missing)


@pytest.mark.parametrize("policy", ["retry", "abort"])
def test_a_policy_that_would_show_a_failure_is_refused(policy):
    with pytest.raises(ConfigError, match=rf"on_failure: expected 'proceed'.*got '{policy}'"):
        config_of(PRIVATE, f"federation.replies.on_failure={policy}")
    with pytest.raises(ValueError, match="on_failure"):
        replace(plan_of(config_of(PRIVATE)), policy=ReplyPolicy(on_failure=policy))


def test_rows_of_zeros_stand_where_replies_are_missing():
    u = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    replies = Replies((0, 3), Displacement(u), dict.fromkeys((1, 2), Failure("late", "a")))
    whole = replies.zero_filled((0, 1, 2, 3))
    assert whole.partitions == (0, 1, 2, 3)
    assert whole.failures == replies.failures
    assert whole.uploads.u.tolist() == [[1, 2], [0, 0], [0, 0], [3, 4]]
    nobody = Replies((), Displacement(u[:0]), {1: Failure("late", "a")}).zero_filled((1,))
    assert nobody.uploads.u.tolist() == [[0, 0]]


@pytest.mark.parametrize("said", ["os", "nonsense", None])
def test_no_client_decides_what_is_said_of_the_servers_noise(said):
    config = config_of(PRIVATE)

    class Liar(InlineGrid):
        def send_and_receive(self, messages, *, timeout=None):
            for reply in super().send_and_receive(messages, timeout=timeout):
                if reply.metadata.src_node_id == 2 + VICTIM:
                    del reply.content["header"]["noise-origin"]
                    if said is not None:
                        reply.content["header"]["noise-origin"] = said
                yield reply

    _, reports = watched(plan_of(config), config, Liar(client_app_of(lambda _: config), 4, {}))
    assert {report.noise_origins for report in reports} == {frozenset({"seed"})}


def test_an_adapted_clip_norm_stays_a_number():
    wild = "adaptive={quantile_noise_multiplier=1000.0,learning_rate=1000.0},"
    config = config_of(PRIVATE.replace("delta", wild + "delta"))
    (seen, _), _ = outsider_sees(config, "zero")
    clips = [float(clip) for _, clip in seen]
    assert {min(clips), max(clips)} <= {1e-100, 1e100} | set(clips)
    assert all(1e-100 <= clip <= 1e100 for clip in clips)


def upload_of(length):
    """A grid whose victim uploads a tangent vector of that length in the metric."""

    class Long(InlineGrid):
        plan = state = None

        def send_and_receive(self, messages, *, timeout=None):
            for reply in super().send_and_receive(messages, timeout=timeout):
                if reply.metadata.src_node_id == 2 + VICTIM and not reply.has_error():
                    plan, x = self.plan, self.state["x"]
                    shape = plan.manifold.coords_shape(tuple(x.shape))
                    u = plan.manifold.from_coords(x, torch.ones(shape, dtype=torch.float64))
                    u = u / plan.manifold.norm(x, u) * length
                    reply.content["payload"] = tensors_to_record({"u": u})
                yield reply

    return Long


def followed(grid, plan, config, num_rounds):
    """The reports of a run whose grid knows the server's state."""
    grid.plan, grid.state = plan, plan.server_update.initial(initial_point(config))
    transport, reports = MessageTransport.meet(grid, plan), []
    for report in run_rounds(plan, grid.state, transport, num_rounds=num_rounds):
        grid.state = report.state
        reports.append(report)
    return reports


FAR = {
    "lorentz": ("data={kind='hyperbolic-tree',num_nodes=80}",
                "problem={kind='hyperbolic-prediction',are_features_public=true}"),
    "spd": ("data={kind='wishart',num_examples=80}", "problem={kind='frechet-mean'}"),
    "stiefel": ("problem={kind='kpca'}",),
}  # fmt: skip


@pytest.mark.parametrize("privacy", ["privacy={kind='none'}", PRIVATE])
@pytest.mark.parametrize("length", [3e3, 1e90])
@pytest.mark.parametrize("name", FAR)
def test_an_upload_that_overflows_the_step_is_that_clients_failure(name, length, privacy):
    config = config_of(privacy, *FAR[name], "training.step_size=1e-3")
    plan = plan_of(config)
    grid = upload_of(length)(client_app_of(lambda _: config), 4, {})
    reports = followed(grid, plan, config, 3)
    assert len(reports) == 3
    is_borderline = name == "stiefel" and length < 1e4
    for report in reports:
        assert set(report.failures) <= (set() if plan.mechanism is not None else {VICTIM})
        assert set(report.participants) == {0, 1, 2, 3} - set(report.failures)
    if plan.mechanism is None and not is_borderline:
        assert "an upload that the model can take a step along" in reports[0].failures[VICTIM].text


def test_where_every_client_fails_the_sum_is_zero_and_the_round_goes_on():
    config = config_of(PRIVATE)

    class Silent(InlineGrid):
        def send_and_receive(self, messages, *, timeout=None):
            list(super().send_and_receive(messages, timeout=timeout))
            return []

    plan, app = plan_of(config), client_app_of(lambda _: config)
    silent, reports = watched(plan, config, Silent(app, 4, {}))
    assert all(report.participants == () for report in reports)

    class Zeros(Tampering):
        def send_and_receive(self, messages, *, timeout=None):
            for reply in InlineGrid.send_and_receive(self, messages, timeout=timeout):
                spoiled(reply, "zero")
                yield reply

    zeros, _ = watched(plan, config, Zeros(app, 4, {}))
    assert_equal_views(silent, zeros)


def test_a_normal_part_below_the_tolerance_cannot_push_the_model_off_its_manifold():
    config = config_of("privacy={kind='none'}", *FAR["stiefel"], "training.step_size=1e-3")
    plan = plan_of(config)

    class Oblique(InlineGrid):
        plan = state = None

        def send_and_receive(self, messages, *, timeout=None):
            for reply in super().send_and_receive(messages, timeout=timeout):
                if reply.metadata.src_node_id == 2 + VICTIM and not reply.has_error():
                    x = self.state["x"]
                    reply.content["payload"] = tensors_to_record({"u": 9e-7 * x})
                yield reply

    reports = followed(Oblique(client_app_of(lambda _: config), 4, {}), plan, config, 8)
    for report in reports:
        assert set(report.failures) == {VICTIM}
        assert float(plan.manifold.membership_defect(report.state["x"])) < 1e-12
