"""H25: DECOR as the engines run it against plain numpy, and what its messages give away."""

from dataclasses import replace

import torch

from manifed.algorithms.decor import Decor
from manifed.audit.attacks import MaskedAttack
from manifed.audit.bound import Audited, find
from manifed.graphs import Ring, Torus
from manifed.oracles.noisy_oracle import Draws
from manifed.privacy.random_numbers import NoiseSource, Stream
from manifed.privacy.secldp import Correlated
from manifed.setting import CorrelatedNoise
from reproduction.decor_reference import Array, LeastSquares, clipped, half_steps, mixed
from reproduction.findings import Finding
from reproduction.trials import curve, trial

CONFIG = "004_1a_decor-ring"
ROUNDS = 100
SEED = 0


def messages_under_attack(source: NoiseSource) -> dict[str, MaskedAttack]:
    """The adversaries I, II and III on rings of 8 and a torus of 9 nodes."""
    noise = Correlated(1.0, 2.0)
    ring = MaskedAttack(Ring().build(8), noise, source)
    torus = MaskedAttack(Torus().build(9), noise, source)
    return {
        "decor-eavesdropper": ring,
        "decor-one-node": replace(ring, coalition=(0,)),
        "decor-coalition": replace(torus, coalition=(0, 4)),
        "decor-surrounded": replace(ring, coalition=(1, 3)),
    }


def reference() -> Array:
    """The mean model after 100 rounds by numpy, with the draws of the engines' own addresses."""
    config = curve(CONFIG, num_rounds=ROUNDS, seed=SEED)
    training = config.training
    privacy = config.privacy
    assert isinstance(training, Decor)
    assert isinstance(privacy, CorrelatedNoise)
    assert privacy.noise_stddev is not None
    assert privacy.mask_stddev is not None
    target = config.data.load(None, SEED).examples["target"].numpy().reshape(1, 16, 10)
    task = LeastSquares(target)
    weights = training.network.mixed(torch.eye(16).double()).numpy()
    x = task.start
    for t in range(1, ROUNDS + 1):
        draws = Draws(NoiseSource.from_seed(SEED), tuple(range(16)), t, 0, 0, "cpu")
        own = draws.normals((10,), Stream.GRADIENT_NOISE, 0).numpy()
        masks = training.masked_now((10,), None, draws)[0].numpy()
        x = half_steps(
            x,
            clipped(task.gradients(x), privacy.l2_norm_clip),
            privacy.mask_stddev * masks,
            privacy.noise_stddev * own,
            training.step_size_in(t),
        )
        x = mixed(x, weights)
    return x[0].mean(0)


def check_h25() -> Finding:
    """Mode A on both executions against numpy; mode B with and without masks; the best attack."""
    short = (f"federation.num_rounds={ROUNDS}", "evaluation.every=100")
    central = (*short, "training.mixing_weights=complete")

    def model(*sets: str) -> torch.Tensor:
        return trial(CONFIG, SEED, *sets)[1]

    expected = torch.tensor(reference())
    gaps = {
        way: float((model(*short, f"engine.execution={way}") - expected).abs().max())
        for way in ("cohort", "messages")
    }
    plain = model(*central, "privacy.mask_stddev=0.0")
    moved = float((model(*central) - plain).abs().max() / plain.abs().max())
    attacks = {
        name: find(Audited(name, one, 2000, name), 0.999)
        for name, one in messages_under_attack(NoiseSource.from_seed(SEED)).items()
    }
    return Finding(
        "the engines are the plain reference; masks vanish in a complete mean; attacks "
        "on the messages prove no more than is charged",
        max(gaps.values()) <= 1e-10
        and moved <= 1e-9
        and not any(verdict.is_violated for verdict in attacks.values()),
        {
            "100 rounds, distance to numpy": gaps,
            "mode B, masks moved the model by": moved,
            "epsilon proved of charged": {
                name: [float(v.epsilon_lower_bound), v.claimed_epsilon]
                for name, v in attacks.items()
            },
        },
        (SEED,),
    )
