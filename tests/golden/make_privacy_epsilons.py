"""Reference epsilons from dp-accounting and closed forms alone: python tests/golden/make_...py

Writes tests/golden/privacy_epsilons.json. Nothing of manifed is imported. Each case names an
adversary, a list of releases, how often it is made, and delta.
"""

import itertools
import json
import math
from pathlib import Path

import dp_accounting
import numpy as np
from dp_accounting import gaussian_mechanism
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import rdp_privacy_accountant as rdp

TARGET = Path(__file__).with_name("privacy_epsilons.json")
INTERVAL = 1e-4
ADD = "add-or-remove"
REPLACE = "replace-one"


def release(z, kind="unsampled", count=1, relation=ADD, unit="example", **sampling):
    return {
        "unit": unit,
        "neighboring_relation": relation,
        "noise_multiplier": z,
        "sampling": {"kind": kind, **sampling},
        "count": count,
    }


def poisson(z, q, count=1, **more):
    return release(z, "poisson", count, sampling_probability=q, **more)


def subset(z, size, population, count=1, **more):
    more = {"relation": REPLACE, **more}
    return release(z, "without-replacement", count, sample_size=size, population=population, **more)


RELEASES = {
    "full add-or-remove": [release(3.0, count=3)],
    "full replace-one": [release(2.0, count=2, relation=REPLACE)],
    "poisson": [poisson(1.1, 0.05, 3)],
    "poisson small rate": [poisson(0.8, 0.01, 5)],
    "poisson with anchor": [release(20.0), poisson(1.3, 0.1, 4)],
    "two poissons": [poisson(1.5, 0.02, 2), poisson(0.9, 0.04, 3)],
    "subset": [subset(2.0, 12, 1200, 3)],
    "subset with anchor": [release(30.0, relation=REPLACE), subset(3.0, 20, 400, 2)],
}
CLIENT = {
    "client full": [release(1.0, unit="client")],
    "client full replaced": [release(1.0, unit="client", relation=REPLACE)],
    "client poisson": [poisson(1.0, 0.1, unit="client")],
    "client subset": [subset(1.5, 5, 100, unit="client")],
}


def kinds(releases):
    return {r["sampling"]["kind"] for r in releases}


def is_laplace(release):
    return release.get("kind") == "laplace"


def exact(releases, times, delta):
    mu2 = sum(r["count"] * times / r["noise_multiplier"] ** 2 for r in releases)
    return gaussian_mechanism.get_epsilon_gaussian(1 / math.sqrt(mu2), delta)


def loss(releases):
    total = pld.identity(INTERVAL)
    for r in releases:
        of = pld.from_laplace_mechanism if is_laplace(r) else pld.from_gaussian_mechanism
        q = r["sampling"].get("sampling_probability", 1.0)
        one = of(r["noise_multiplier"], sampling_prob=q, value_discretization_interval=INTERVAL)
        total = total.compose(one.self_compose(r["count"]))
    return total


def divergences(releases):
    total = 0.0
    for r in releases:
        event = dp_accounting.GaussianDpEvent(r["noise_multiplier"])
        if r["sampling"]["kind"] == "without-replacement":
            event = dp_accounting.SampledWithoutReplacementDpEvent(
                r["sampling"]["population"], r["sampling"]["sample_size"], event
            )
        accountant = rdp.RdpAccountant(
            neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
        )
        accountant.compose(event, r["count"])
        total = total + accountant.rdp
    return total


def composed(releases, times, delta):
    """Epsilon of ``times`` turns."""
    if kinds(releases) == {"unsampled"} and not any(map(is_laplace, releases)):
        return exact(releases, times, delta)
    if "without-replacement" in kinds(releases):
        return rdp.compute_epsilon(rdp.DEFAULT_RDP_ORDERS, times * divergences(releases), delta)[0]
    return loss(releases).self_compose(times).get_epsilon_for_delta(delta)


def mixed(releases, rate, times, delta):
    """Epsilon of ``times`` rounds in each of which it is made with probability ``rate``."""
    if "without-replacement" in kinds(releases):
        a = np.asarray(rdp.DEFAULT_RDP_ORDERS)
        moments = np.log1p(rate * np.expm1((a - 1) * divergences(releases)))
        return rdp.compute_epsilon(a, times * moments / (a - 1), delta)[0]
    one = loss(releases).compute_mixture(pld.identity(INTERVAL), rate)
    return one.self_compose(times).get_epsilon_for_delta(delta)


def cases():
    for (name, releases), times, delta in itertools.product(
        RELEASES.items(), (1, 40, 200), (1e-5, 1e-3)
    ):
        yield "server", name, releases, 1.0, times, delta, composed(releases, times, delta)
    for (name, releases), (rate, times) in itertools.product(
        RELEASES.items(), ((0.1, 50), (0.5, 20))
    ):
        yield "external", name, releases, rate, times, 1e-5, mixed(releases, rate, times, 1e-5)
    for (name, releases), times in itertools.product(CLIENT.items(), (1, 30, 200)):
        yield "client-level", name, releases, 1.0, times, 1e-4, composed(releases, times, 1e-4)


def main():
    names = ("adversary", "name", "releases", "rate", "times", "delta")
    rows = [
        json.dumps(dict(zip(names, row, strict=True)) | {"epsilon": float(epsilon)})
        for *row, epsilon in cases()
    ]
    TARGET.write_text("[\n" + ",\n".join(rows) + "\n]\n")


if __name__ == "__main__":
    main()
