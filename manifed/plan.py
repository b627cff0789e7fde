"""The one assembler: what each side of a setting does, what it releases, and what that costs.

All that is promised is data of `manifed.privacy`. Nothing else makes a `Plan`.
"""

import hashlib
import json
from functools import partial
from typing import Any, Final

from manifed.errors import ConfigError
from manifed.federation.plan import Plan
from manifed.mechanisms import (
    Sizes,
    check_delta,
    client_mechanism,
    example_mechanism,
    is_scheduled,
    planned_draws,
    tariff_of,
)
from manifed.privacy.accountant import NoValidBound
from manifed.privacy.events import CLIENT_LEVEL, EXTERNAL, OF_MASKS, SERVER, named
from manifed.privacy.label import NOT_PRIVATE, label_of
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.noise import NoiseSource
from manifed.privacy.published import Claim
from manifed.privacy.statement import Budget, Promise
from manifed.privacy.tariff import Tariff, Terms
from manifed.setting import Setting

_FLOATING_POINT: Final = {
    "single": "float64 normals, one a draw",
    "summed": "float64 normals, four summed a draw",
}
_RELEASED: Final = {
    "example-level": "every upload (to the server) and every broadcast model",
    "client-level": "every broadcast model; the server sees uploads in clear and is trusted",
    "correlated": "every message of every node (to the server, who carries them) and every model",
}


def plan(
    setting: Setting,
    sizes: Sizes,
    *,
    config_sha256: str | None = None,
    source: NoiseSource | None = None,
) -> Plan:
    """What a server loop and its clients do with shards of these public sizes, and what it costs.

    ``config_sha256`` is what both sides compare; None: the `digest` of what they must agree on.
    ``source`` is the server's, and a seeded one in tests; None: as the setting says.

    Raises:
        ConfigError: for parts that do not go together, or a price that nothing bounds.
    """
    setting.check()
    setting.check_sizes(sizes)
    training, server, federation = setting.training, setting.server_update, setting.federation
    client = example_mechanism(setting, sizes)
    return Plan(
        server_update=server,
        manifold=setting.manifold,
        phases=training.phases,
        setup_phases=training.setup_phases,
        remembers_setup=training.remembers_setup,
        cohort=federation.cohort,
        policy=federation.replies,
        source=source or setting.seeded_source or setting.fresh_source(),
        client_source=setting.client_source,
        num_examples=sizes,
        config_sha256=config_sha256 or digest(setting, client),
        mechanism=client_mechanism(setting),
        client_mechanism=client,
        promise=promise_of(setting, sizes),
        needs_everyone=server.needs_everyone,
        device=setting.engine.server_device,
        evaluation=setting.held_out,
        last_priced=federation.num_rounds
        if setting.privacy.kind != "none" and is_scheduled(setting)
        else None,
    )


def digest(setting: Setting, client: ExampleMechanism) -> str:
    """Hash of what decides guarantee and meaning of the messages; each side computes its own.

    It holds the manifold, the exchanges, the mechanism and what a client update releases; step
    sizes and shards are not in it.
    """
    training, server = setting.training, client_mechanism(setting)
    exchanges = [
        (p.name, p.down.__name__, p.up.__name__, p.places, p.uploads, p.aggregation)
        for p in (*training.setup_phases, *training.phases)
    ]
    said: list[object] = [setting.manifold.name, exchanges]
    if setting.privacy.kind != "none":
        said += [type(setting.privacy).__name__, (server or client).model_dump(mode="json")]
        said += [
            [r.model_dump(mode="json") for r in training.releases(client, size)]
            for size in (1_000, 1_000_000)
        ]
    if training.is_scheduled:
        said.append(repr(training))
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


# -- the promise -----------------------------------------------------------------------------
def promise_of(setting: Setting, sizes: Sizes) -> Promise:
    """What a run promises, with shards of these sizes.

    Raises:
        ConfigError: for a delta that is no guarantee, or a combination that nothing prices.
    """
    federation, privacy = setting.federation, setting.privacy
    if privacy.kind == "none":
        tariff = Tariff((Terms(population=federation.num_clients),))
        facts = {"kind": "none", "noise_source": None}
        return Promise(tariff, planned_draws(setting), facts=facts)
    delta, unit = reporting_delta(setting), privacy.unit
    tariff = tariff_of(setting, sizes, example_mechanism(setting, sizes), client_mechanism(setting))
    if privacy.noise.kind != "published" and delta is not None:  # the papers' own settings break it
        count = len(sizes) if unit == "client" else sum(sizes)
        check_delta(delta, count, "privacy.delta", f"{unit}s")
    kept, adversaries = setting.training.kept_noise, (SERVER, EXTERNAL)
    if privacy.kind != "example-level":
        adversaries = OF_MASKS if privacy.kind == "correlated" else (CLIENT_LEVEL,)
    # noise that was kept was found for fewer rounds than there are now
    is_kept = privacy.noise.kind == "target" and privacy.noise.noise_multiplier is not None
    disclosing = None
    if setting.server_update.may_disclose:
        from manifed.masked_plan import after_dropout

        disclosing = partial(after_dropout, setting, example_mechanism(setting, sizes), sizes)
    promise = Promise(
        tariff,
        federation.num_rounds if tariff.is_by_round else planned_draws(setting),
        adversaries,
        delta,
        budget_of(setting),
        budget_of(setting, is_target=True),
        0 if is_kept else federation.num_rounds,
        {
            "kind": privacy.kind,
            "noise_source": privacy.noise_source,
            "unit": unit,
            "neighboring_relation": privacy.neighboring_relation,
            "released": _released_text(setting, sizes),
            "mechanism": _mechanism_text(setting, tariff.lines[0]),
            "floating_point": _FLOATING_POINT[privacy.noise_precision],
            **({} if kept is None else {"kept_noise": kept}),
        },
        has_oracle=setting.has_oracle(),
        claim=_claim(setting),
        after_dropout=disclosing,
    )
    try:
        promise.planned(1)
        return promise.for_draws(promise.planned_draws)
    except NoValidBound as refusal:
        raise ConfigError(f"privacy: {refusal}") from None


def reporting_delta(setting: Setting) -> float | None:
    """At which delta epsilon is reported; None without privacy.

    Raises:
        ConfigError: when the config names none.
    """
    privacy = setting.privacy
    if privacy.kind == "none" or privacy.delta is not None:
        return None if privacy.kind == "none" else privacy.delta
    if privacy.noise.kind == "target":
        return privacy.noise.delta
    if privacy.noise.kind == "published":
        return privacy.noise.local_delta
    raise ConfigError(
        "privacy.delta: required with privacy.noise.kind = 'multiplier', but not given; epsilon is "
        "reported at this delta"
    )


def _claim(setting: Setting) -> Claim | None:
    privacy, federation = setting.privacy, setting.federation
    if privacy.kind != "example-level" or privacy.noise.kind != "published":
        return None
    rule = privacy.noise
    cohort = max(1, round(federation.cohort.expected_size(federation.num_clients)))
    return Claim(
        rule.local_epsilon, rule.local_delta, federation.num_clients, cohort, rule.slack_delta
    )


# -- the budget ------------------------------------------------------------------------------
def kept_multiplier(setting: Setting, sizes: Sizes) -> float | None:
    """What a target's noise was found to be; None where the config says the noise."""
    privacy = setting.privacy
    if privacy.kind == "none" or privacy.noise.kind != "target":
        return None
    if (server := client_mechanism(setting)) is not None:
        return server.noise_multiplier
    noise = example_mechanism(setting, sizes).noise
    return None if noise.value else noise.multiplier


def budget_of(setting: Setting, *, is_target: bool = False) -> Budget | None:
    """``privacy.max_epsilon``, else the target; None when the setting has neither.

    With ``is_target`` what the noise was calibrated for, whatever may be spent.
    """
    privacy, remedy = setting.privacy, "privacy.max_epsilon may allow more"
    if privacy.kind == "none":
        return None
    rule, found = privacy.noise, None
    adversary = CLIENT_LEVEL if privacy.kind == "client-level" else SERVER
    if rule.kind == "target":
        adversary = adversary if adversary == CLIENT_LEVEL else named(rule.adversary)
        field = f"privacy.{'target' if privacy.kind == 'correlated' else 'noise'}.epsilon"
        found = Budget(rule.epsilon, rule.delta, adversary, field, remedy)
    if privacy.max_epsilon is None or is_target:
        return found
    delta = reporting_delta(setting)
    assert delta is not None
    return Budget(privacy.max_epsilon, delta, adversary, "privacy.max_epsilon", remedy)


# -- what a statement says in words ----------------------------------------------------------
def _released_text(setting: Setting, sizes: Sizes) -> str:
    """What is released: updates, hold-outs, averages, and the sizes that sites declare."""
    said, held, server = _RELEASED[setting.privacy.kind], setting.held_out, setting.server_update
    if held is not None:
        said += f"; every {held.every} rounds the noised totals of each client's hold-out"
    if server.is_average:
        said += "; the model is an average of broadcast ones: post-processing, at no price"
    if setting.is_at_sites and setting.federation.num_examples is None:
        shown = ", ".join(map(str, sizes[:10])) + (", ..." if len(sizes) > 10 else "")
        said += f"; N_i as every site declares it ({shown})"
    return said


def _mechanism_text(setting: Setting, terms: Terms) -> str:
    mechanism, training = client_mechanism(setting), setting.training
    if mechanism is not None:
        return (
            f"{setting.server_update.space} Gaussian at the server, "
            f"noise multiplier {mechanism.noise_multiplier:.5g}, "
            f"l2_norm_clip {mechanism.l2_norm_clip:g}"
        )
    if training.has_masks:
        from manifed.masked_plan import masked_text

        return masked_text(training, terms)
    releases = [r for client in terms.updates for r in client.releases]
    shown = {
        f"{r.label}: {r.count} a client update, multiplier {r.noise_multiplier:.5g}, "
        f"{r.sampling.kind}"
        for r in releases
    }
    said = training.noise_is
    if any(r.kind == "laplace" for r in releases):
        said = "Laplace in every coordinate, gradients clipped in L1, at"
    said += f" each client; {'; '.join(sorted(shown))}"
    if is_scheduled(setting):
        said += " (of round 1; they depend on the round)"
    return said + training.premise


# -- what was not run yet --------------------------------------------------------------------
def planned_statement(setting: Setting, sizes: Sizes) -> dict[str, Any]:
    """The statement of a whole run in which every client is invited as often as can be."""
    return promise_of(setting, sizes).planned(setting.federation.num_rounds)


def plan_label(setting: Setting) -> str:
    """The word before every epsilon of a setting that nothing was run of."""
    privacy = setting.privacy
    if privacy.kind == "none":
        return NOT_PRIVATE
    return label_of(privacy.noise_source, (), is_charged=False)


def planned_curve(setting: Setting, sizes: Sizes, points: int = 20) -> list[dict[str, Any]]:
    """Epsilon against every adversary after some rounds of a run that invites everybody it can."""
    if setting.privacy.kind == "none":
        raise ConfigError("privacy.kind: there is no curve to draw, got 'none'")
    promise, last = promise_of(setting, sizes), setting.federation.num_rounds
    picks = sorted({max(1, round(last * k / points)) for k in range(1, points + 1)})
    rows: list[dict[str, Any]] = []
    for rounds in picks:
        found = promise.planned(rounds)["adversaries"]
        rows.append({"round": rounds} | {one["name"]: one["epsilon"] for one in found})
    return rows
