"""Under client-level privacy a round goes the same way whatever one client replies, or does not."""

from dataclasses import replace

import pytest
import torch
from flwr.app import Error, Message

from manifed.errors import ConfigError, RoundFailed
from manifed.experiment.assembly import initial_point, plan_of
from manifed.experiment.load import load
from manifed.federation.rounds import CLIP, run_rounds
from manifed.flower.client import client_app_of
from manifed.flower.grids import InlineGrid
from manifed.flower.handshake import meet
from manifed.flower.records import tensors_to_record
from manifed.privacy.mechanism import ClientMechanism
from tests.fresh import QUICKSTART
from tests.tensors import assert_near

VICTIM = 1
PRIVATE = (
    "privacy={kind='client-level',l2_norm_clip=0.5,delta=1e-2,"
    "noise={kind='multiplier',noise_multiplier=0.1}}"
)
ADAPTIVE = PRIVATE.replace("delta", "adaptive={quantile_noise_multiplier=5.0},delta")
POISSON = "federation.cohort={kind='poisson',sampling_probability=0.3}"
COHORTS = {
    "all": ("federation.cohort={kind='all'}", PRIVATE),
    "poisson": (POISSON, PRIVATE),
    "an adapted clip norm": (POISSON, ADAPTIVE),
}
ROUNDS = 8


def filled(value):
    def change(reply):
        record = reply.content["payload"]
        u = torch.full(next(iter(record.values())).shape, value, dtype=torch.float64)
        reply.content["payload"] = tensors_to_record(dict.fromkeys(record, u))
        return reply

    return change


def error(reply):
    made = Message(Error(2, "boom"), reply_to=reply)
    made.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    made.metadata.__dict__["_src_node_id"] = reply.metadata.src_node_id
    return made


HOW = {
    "zero": filled(0.0), "nan": filled(float("nan")), "infinite": filled(float("inf")),
    "missing": lambda reply: None, "error": error,
}  # fmt: skip
"""What the victim sends instead of a reply: an upload of one value, nothing, or an error."""


class Tampering(InlineGrid):
    """The inline engine with the training replies of some clients changed, or gone."""

    asked = 0
    state = None

    def __init__(self, config, change, victims=(VICTIM,)):
        super().__init__(client_app_of(lambda _: config), 4, {})
        self.change = change
        self.nodes = [2 + victim for victim in victims]

    def send_and_receive(self, messages, *, timeout=None):
        for reply in super().send_and_receive(messages, timeout=timeout):
            about = reply.metadata
            is_victims = about.src_node_id in self.nodes and about.message_type == "train"
            self.asked += is_victims
            sent = self.change(reply) if is_victims else reply
            if sent is not None:
                yield sent


def config_of(*sets):
    return load(QUICKSTART, ["federation.num_clients=4", "training.local_steps=1", *sets])


def outsider_sees(config, change, plan=None, victims=(VICTIM,)):
    """The broadcast models (and adapted clip norms) of a run, the reports, and the grid."""
    grid = Tampering(config, HOW.get(change, change), victims)
    return *watched(plan or plan_of(config), config, grid), grid


def watched(plan, config, grid, num_rounds=ROUNDS):
    """The same; the grid knows the state of the server."""
    grid.state = plan.server_update.start(initial_point(config))
    transport = meet(grid, plan)
    reports = []
    for report in run_rounds(plan, grid.state, transport, num_rounds=num_rounds):
        grid.state = report.state
        reports.append(report)
    return [(report.state["x"], report.state.get(CLIP)) for report in reports], reports


def assert_equal_views(one, other):
    assert len(one) == len(other) == ROUNDS
    assert_near(one, other)


@pytest.mark.parametrize("name", COHORTS)
def test_a_failed_reply_is_the_zero_vector_and_the_round_goes_on(name):
    config = config_of(*COHORTS[name])
    zero, *_ = outsider_sees(config, "zero")
    assert (zero[0][1] is not None) == (name == "an adapted clip norm")
    cohorts = [config.federation.cohort.draw(4, r, 0, plan_of(config).source) for r in range(1, 9)]
    assert any(VICTIM in drawn for drawn in cohorts)
    assert name == "all" or (VICTIM,) in cohorts
    for how in ("nan", "infinite", "missing", "error"):
        seen, reports, grid = outsider_sees(config, how)
        assert_equal_views(zero, seen)
        assert grid.asked == sum(VICTIM in drawn for drawn in cohorts)
        for report, drawn in zip(reports, cohorts, strict=True):
            assert set(report.failures) == {VICTIM} & set(drawn)
            assert set(report.participants) == set(drawn) - {VICTIM}


@pytest.mark.parametrize(
    ("how", "is_computed"), [("nan", True), ("missing", False), ("error", False)]
)
def test_a_failed_round_says_whether_uploads_were_at_fault_or_an_outage(how, is_computed):
    with pytest.raises(RoundFailed) as failed:
        outsider_sees(config_of("federation.replies={on_failure='abort'}"), how)
    assert failed.value.is_computed is is_computed


def test_a_phase_of_several_exchanges_asks_everybody_in_each():
    config = config_of(
        "privacy={kind='none'}",
        "training={kind='rfedsvrg',step_size=0.1,local_steps=2}",
        COHORTS["all"][0],
    )
    plan = replace(
        plan_of(config), mechanism=ClientMechanism(l2_norm_clip=0.5, noise_multiplier=0.1)
    )
    zero, *_ = outsider_sees(config, "zero", plan)
    seen, reports, grid = outsider_sees(config, "nan", plan)
    assert_equal_views(zero, seen)
    assert grid.asked == 2 * ROUNDS
    assert reports[-1].participants == (0, 2, 3)


@pytest.mark.parametrize("policy", ["retry", "abort"])
def test_a_policy_that_would_show_a_failure_is_refused(policy):
    with pytest.raises(ConfigError, match=rf"on_failure: expected 'proceed'.*got '{policy}'"):
        config_of(PRIVATE, f"federation.replies.on_failure={policy}")


@pytest.mark.parametrize("said", ["os", "nonsense", None])
def test_no_client_decides_what_is_said_of_the_servers_noise(said):
    def lies(reply):
        header = reply.content["header"]
        del header["noise-origin"]
        if said is not None:
            header["noise-origin"] = said
        return reply

    _, reports, _ = outsider_sees(config_of(PRIVATE), lies)
    assert {report.noise_origins for report in reports} == {frozenset({"seed"})}


def test_an_adapted_clip_norm_stays_a_number():
    wild = ADAPTIVE.replace("=5.0}", "=1000.0,learning_rate=1000.0}")
    seen, *_ = outsider_sees(config_of(wild), "zero")
    assert all(1e-100 <= float(clip) <= 1e100 for _, clip in seen)


def followed(config, upload, num_rounds):
    """The reports of a run whose victim uploads a function of the server's point."""

    def change(reply):
        if not reply.has_error():
            reply.content["payload"] = tensors_to_record({"u": upload(grid.state["x"])})
        return reply

    grid = Tampering(config, change)
    return watched(plan_of(config), config, grid, num_rounds)[1]


FAR = {
    "lorentz": ("data={kind='reproduction.mammals:HyperbolicTree',num_nodes=80}",
                "problem={kind='hyperbolic-prediction',are_features_public=true}"),
    "spd": ("data={kind='reproduction.recipes:Wishart',num_examples=80}",
            "problem={kind='frechet-mean'}"),
    "stiefel": ("problem={kind='kpca'}",),
}  # fmt: skip


@pytest.mark.parametrize("privacy", ["privacy={kind='none'}", PRIVATE])
@pytest.mark.parametrize("length", [3e3, 1e90])
@pytest.mark.parametrize("name", FAR)
def test_an_upload_that_overflows_the_step_is_that_clients_failure(name, length, privacy):
    config = config_of(privacy, *FAR[name], "training.step_size=1e-3")
    plan = plan_of(config)

    def long(x):
        shape = plan.manifold.coords_shape(tuple(x.shape))
        u = plan.manifold.from_coords(x, torch.ones(shape, dtype=torch.float64))
        return u / plan.manifold.norm(x, u) * length

    reports = followed(config, long, 3)
    assert len(reports) == 3
    is_borderline = name == "stiefel" and length < 1e4
    for report in reports:
        assert set(report.failures) <= (set() if plan.mechanism is not None else {VICTIM})
        assert set(report.participants) == {0, 1, 2, 3} - set(report.failures)
    if plan.mechanism is None and not is_borderline:
        assert "an upload that the model can take a step along" in reports[0].failures[VICTIM].text


def test_where_every_client_fails_the_sum_is_zero_and_the_round_goes_on():
    (silent, reports, _), (zeros, *_) = (
        outsider_sees(config_of(PRIVATE), how, victims=range(4)) for how in ("missing", "zero")
    )
    assert all(report.participants == () for report in reports)
    assert_equal_views(silent, zeros)


def test_a_normal_part_below_the_tolerance_cannot_push_the_model_off_its_manifold():
    config = config_of("privacy={kind='none'}", *FAR["stiefel"], "training.step_size=1e-3")
    for report in followed(config, lambda x: 9e-7 * x, 8):
        assert set(report.failures) == {VICTIM}
        assert float(plan_of(config).manifold.membership_defect(report.state["x"])) < 1e-12
