"""Projected training through the app: equal to the reference loop, accounted, all present."""

import math
from statistics import NormalDist

import pytest
import torch
from flwr.common.serde import recorddict_to_proto

from manifed.cli.launch import Request, launch
from manifed.errors import ConfigError, RoundFailed
from manifed.experiment.assembly import initial_point, load_shards
from manifed.experiment.load import load
from manifed.flower.records import pack
from manifed.privacy.noise import NoiseSource
from manifed.privacy.statement import audit_ledger
from reproduction.race import wire_bytes
from tests.conformance import federated_loop

BASE = """
name = "run"
problem = { kind = "kpca", num_components = 2 }
data = { kind = "synthetic-pca", num_clients = 4, rows = 6, dimension = 7 }
federation = { num_clients = 4, num_rounds = 4, partition = { kind = "natural" } }
output = { plots = false }
"""
STEPS = 'step_size = 0.02, local_steps = 3, minibatch = { kind = "full" }'
FAST = 'maps = "retraction"'
UNIFORM = 'strategy = { weights = "uniform" }'
ALGORITHMS = {
    "projected": (STEPS, ""),
    "projected-partial": (STEPS, ""),
    "rsgd": (f"{STEPS}, {FAST}", UNIFORM),
    "rfedprox": (f"{STEPS}, penalty_weight = 1.0", UNIFORM),
    "rfedsvrg": (f"{STEPS}, {FAST}", ""),
    "rfedags": (f"{STEPS}, {FAST}", ""),
}


def write(tmp_path, kind):
    training, server = ALGORITHMS[kind]
    path = tmp_path / "run.toml"
    path.write_text(f'{BASE}training = {{ kind = "{kind}", {training} }}\n{server}\n')
    return str(path)


def run(tmp_path, kind, *sets, name="out"):
    return launch(Request(write(tmp_path, kind), sets, out=tmp_path / name, plain=True))


def loop(tmp_path, kind, cohort=None):
    config = load(write(tmp_path, kind))
    found = load_shards(config)
    source = NoiseSource.from_seed(config.federation.seed)
    who = (lambda r: cohort.draw(4, r, 0, source)) if cohort else None
    rounds = federated_loop.federate(
        found.problem, found.examples, config.training, config.server_update,
        initial_point(config), 4, cohort=who,
    )  # fmt: skip
    return config.server_update.model(federated_loop.last(rounds).state, found.problem.manifold)


@pytest.mark.parametrize("execution", ["messages", "cohort"])
@pytest.mark.parametrize("kind", ALGORITHMS)
def test_the_app_is_the_reference_loop(tmp_path, kind, execution):
    folder = run(tmp_path, kind, f"engine.execution={execution}")
    model = folder.load_tensors("model")["x"]
    torch.testing.assert_close(model, loop(tmp_path, kind), rtol=0, atol=1e-12)
    account = folder.manifest()["work"]["communication_per_client"]
    metrics = folder.metrics()
    assert metrics["bytes_up"][-1] == 4 * account["bytes_up"]
    assert metrics["bytes_down"][-1] == 4 * account["bytes_down"]
    assert metrics["uploads"][-1] == 4 * account["matrices_up"]


@pytest.mark.parametrize("execution", ["messages", "cohort"])
def test_partial_participation_is_the_reference_loop(tmp_path, execution):
    from manifed.federation.cohorts import FixedSize

    cohort = "federation.cohort={kind='fixed-size',cohort_size=2}"
    folder = run(tmp_path, "projected-partial", cohort, f"engine.execution={execution}")
    expected = loop(tmp_path, "projected-partial", FixedSize(cohort_size=2))
    torch.testing.assert_close(folder.load_tensors("model")["x"], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("execution", ["messages", "cohort"])
def test_one_missing_client_ends_a_projected_run_whatever_the_policy(
    tmp_path, execution, monkeypatch
):
    from manifed.algorithms import projected

    plain = projected.Projected.update

    def breaks(self, phase, down, memory, oracle, manifold, draws):
        owners = draws.partition if isinstance(draws.partition, tuple) else (draws.partition,)
        if 2 in owners:
            raise RuntimeError("client 2 is gone")
        return plain(self, phase, down, memory, oracle, manifold, draws)

    monkeypatch.setattr(projected.Projected, "update", breaks)
    policy = "federation.replies={on_failure='proceed',min_fraction=0.1}"
    with pytest.raises(RoundFailed, match="client 2"):
        run(tmp_path, "projected", policy, f"engine.execution={execution}")


NOISE = "delta=1e-3,noise={kind='multiplier',noise_multiplier=3.0}"


def private(unit, upload=None):
    """Overrides of a private run; client level takes plain uploads."""
    upload = upload or ("plain" if unit == "client" else "corrected")
    return (
        f"privacy={{kind='{unit}-level',l2_norm_clip=0.5,{NOISE}}}",
        "training.tube_radius=1e9",
        "training.step_size=0.001",
        f"training.upload={upload}",
    )


def gaussian_delta(epsilon, mu):
    """Balle and Wang (2018), (6)."""
    phi = NormalDist().cdf
    return phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(("unit", "releases"), [("example", 4 * 3), ("client", 4)])
def test_a_private_projected_run_spends_what_the_accountant_says(tmp_path, unit, releases):
    """One release a noised gradient (rounds x local steps), or one a noised mean (rounds)."""
    sets = private(unit)
    folder = run(tmp_path, "projected", *sets)
    final = folder.manifest()["final"]
    assert folder.manifest()["privacy"]["unit"] == unit
    where = {
        "example": "tangent Gaussian at each client",
        "client": "ambient Gaussian at the server",
    }
    assert folder.manifest()["privacy"]["mechanism"].startswith(where[unit])
    assert gaussian_delta(final["epsilon"], math.sqrt(releases) / 3) == pytest.approx(1e-3)
    audited = [one["epsilon"] for one in audit_ledger(folder.ledger_path, 1e-3)["adversaries"]]
    assert max(audited) == pytest.approx(final["epsilon"], rel=1e-9)
    plain = run(tmp_path, "projected", *sets[1:], name="plain")
    gap = folder.load_tensors("model")["x"] - plain.load_tensors("model")["x"]
    assert float(gap.norm()) > 1e-6


def test_corrected_uploads_at_client_level_are_refused_in_one_line_before_anything_is_written(
    tmp_path,
):
    with pytest.raises(ConfigError) as caught:
        run(tmp_path, "projected", *private("client", "corrected"))
    message = str(caught.value)
    assert "training.upload: expected 'plain'" in message
    assert "got 'corrected'" in message
    assert "\n" not in message
    assert not (tmp_path / "out").exists()


def test_the_benchmark_counts_the_bytes_of_the_messages_that_flower_serialises(
    tmp_path, monkeypatch
):
    from manifed.flower import client, transport

    sizes = []

    def weighed(header, payload, **said):
        content = pack(header, payload, **said)
        if payload is not None:
            sizes.append(recorddict_to_proto(content).ByteSize())
        return content

    for kind in ("projected", "rfedsvrg"):
        sizes.clear()
        with monkeypatch.context() as patch:
            for module in (client, transport):
                patch.setattr(module, "pack", weighed)
            run(tmp_path, kind, name=kind)
        config = load(write(tmp_path, kind))
        counted = 4 * 4 * wire_bytes(config, initial_point(config))
        assert sum(sizes) == pytest.approx(counted, rel=0.01)
