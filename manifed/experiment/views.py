"""What a run costs in every view, and the statement that says so.

Costs are upper bounds. The `server` view is realised: the worst client over the rounds to which it
was really invited, aborted attempts and retries included. The `external` view is a priori: an
adversary who sees the models and not who took part, priced for the draws that were planned, however
many were made (manifed/experiment/budget.py says why).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from manifed.errors import ConfigError
from manifed.experiment.assembly import server_mechanism_of
from manifed.experiment.budget import Prices, target_of
from manifed.experiment.evaluation import oracle_is_on
from manifed.experiment.noise_level import check_delta
from manifed.experiment.pricing import price_server
from manifed.experiment.schema import Experiment
from manifed.privacy.charges import ClientReleases
from manifed.privacy.events import GaussianRelease

Releases = tuple[GaussianRelease, ...]

_RELEASED = {
    "example-level": "every upload (to the server) and every broadcast model",
    "client-level": "every broadcast model; the server sees uploads in clear and is trusted",
}
FLOATING_POINT = {
    "single": "float64 normals, one a draw",
    "summed": "float64 normals, four summed a draw",
}
_ORACLE = (
    "cost, gap and gradient norm were computed on all data without noise (a simulation oracle): "
    "they are no part of the release, and whoever shows them voids this guarantee"
)
_SERVER = "the server, who sees the cohort and every upload"
_EXTERNAL = "an outsider who sees every broadcast model and not the cohort"


@dataclass(frozen=True)
class Views:
    """Prices the turns of a config; ``turns`` groups the clients that release alike."""

    config: Experiment
    turns: tuple[ClientReleases, ...]
    delta: float | None
    prices: Prices

    def price(
        self,
        participations: int,
        draws: int,
        planned: int | None = None,
        counted: Mapping[str, float] | None = None,
    ) -> list[dict[str, Any]]:
        """The sound views, the headline first, when the worst client took so many turns.

        ``draws`` were made; an outsider is priced for ``planned`` (None: the config's) or for
        those made, whichever is more. ``counted`` is what a ledger's entries cost in each view;
        None prices the turns of the config, for a run that is only planned.
        """
        planned = max(self.prices.planned() if planned is None else planned, draws)
        if self.config.privacy.kind == "client-level":
            return [self._client_view(draws, counted)]
        assert self.delta is not None
        turns = tuple(turn.releases for turn in self.turns)
        if counted is None:
            server = max((_server(t, participations, self.delta) for t in turns), default=0.0)
        else:
            server = counted.get("server", 0.0)
        views: list[dict[str, Any]] = [_view("server", _SERVER, server, self.delta)]
        views[0]["remark"] = f"realised: at most {participations} rounds a client"
        charged = 0.0 if counted is None else counted.get("external", 0.0)
        views.append(self._external_view(planned, server, charged))
        return views

    def _external_view(self, planned: int, server: float, charged: float) -> dict[str, Any]:
        assert self.delta is not None
        federation = self.config.federation
        if federation.cohort.rate(federation.num_clients) >= 1.0:
            return _view("external", _EXTERNAL, server, self.delta)
        epsilon = max(self.prices.a_priori("external", planned, self.delta), charged)
        remark = f"for all {planned} cohort draws that were planned"
        return _view("external", _EXTERNAL, epsilon, self.delta) | {"remark": remark}

    def _client_view(self, draws: int, counted: Mapping[str, float] | None) -> dict[str, Any]:
        assert self.delta is not None
        if counted is None:
            epsilon = self.prices.a_priori("client-level", draws, self.delta)
        else:
            epsilon = counted.get("client-level", 0.0)
        return _view("client-level", _EXTERNAL, epsilon, self.delta)

    def statement(
        self,
        participations: int,
        draws: int,
        planned: int | None = None,
        has_oracle: bool | None = None,
        counted: Mapping[str, float] | None = None,
    ) -> dict[str, Any]:
        """The privacy statement as data (manifed/runs/statement.py prints it)."""
        privacy = self.config.privacy
        if privacy.kind == "none":
            return {"kind": "none", "noise_source": None, "views": [], "notes": []}
        views = self.price(participations, draws, planned, counted)
        if privacy.kind == "example-level" and privacy.noise.kind == "published":
            views.append(self._published_view(draws))
        return {
            "kind": privacy.kind,
            "noise_source": privacy.noise_source,
            "unit": "example" if privacy.kind == "example-level" else "client",
            "neighboring_relation": privacy.neighboring_relation,
            "released": _RELEASED[privacy.kind],
            "mechanism": self._mechanism(),
            "floating_point": FLOATING_POINT[privacy.noise_precision],
            "views": views,
            "notes": self._notes(draws, has_oracle),
        }

    def _mechanism(self) -> str:
        mechanism = server_mechanism_of(self.config)
        if mechanism is not None:
            space = self.config.server_update.space
            return (
                f"{space} Gaussian at the server, "
                f"noise multiplier {mechanism.noise_multiplier:.5g}, "
                f"l2_norm_clip {mechanism.l2_norm_clip:g}"
            )
        releases = [release for turn in self.turns for release in turn.releases]
        shown = {
            f"{r.label}: {r.count} a turn, multiplier {r.noise_multiplier:.5g}, {r.sampling.kind}"
            for r in releases
        }
        return "tangent Gaussian at each client; " + "; ".join(sorted(shown))

    def _notes(self, draws: int, has_oracle: bool | None) -> list[str]:
        notes = ["shard sizes, the config and the number of rounds are public"]
        if self.prices.passes_target(draws):
            notes.append(passed_target(self.config, self.prices, draws))
        if oracle_is_on(self.config) if has_oracle is None else has_oracle:
            notes.append(_ORACLE)
        return notes

    def _published_view(self, rounds: int) -> dict[str, Any]:
        from manifed.privacy.published import theorem

        privacy, federation = self.config.privacy, self.config.federation
        assert privacy.kind == "example-level"
        assert privacy.noise.kind == "published"
        cohort = max(1, round(federation.cohort.expected_size(federation.num_clients)))
        claimed = theorem(
            privacy.noise.local_epsilon,
            privacy.noise.local_delta,
            num_clients=federation.num_clients,
            cohort_size=cohort,
            num_rounds=max(rounds, 1),
            slack_delta=privacy.noise.slack_delta,
        )
        view = _view("published", "nobody in particular", claimed[0], claimed[1])
        return view | {"remark": "Theorem 4.2 as printed: UNSOUND at record level"}


def _view(name: str, adversary: str, epsilon: float, delta: float) -> dict[str, Any]:
    return {"view": name, "adversary": adversary, "epsilon": epsilon, "delta": delta}


@lru_cache(maxsize=65536)
def _server(turn: Releases, participations: int, delta: float) -> float:
    return price_server(turn, participations, delta)


def passed_target(config: Experiment, prices: Prices, draws: int) -> str:
    """One line about ``draws`` draws that cost more than the target."""
    target = target_of(config)
    assert target is not None
    cost = prices.a_priori(target.view, draws, target.delta)
    return (
        f"the target epsilon {target.epsilon:g} is passed: {draws} cohort draws cost {cost:.4g} in "
        f"the {target.view} view, which privacy.max_epsilon allows"
    )


def reporting_delta(config: Experiment) -> float | None:
    """At which delta epsilon is reported; None without privacy."""
    privacy = config.privacy
    if privacy.kind == "none":
        return None
    if privacy.delta is not None:
        return privacy.delta
    if privacy.noise.kind == "target":
        return privacy.noise.delta
    if privacy.noise.kind == "published":
        return privacy.noise.local_delta
    raise ConfigError(
        "privacy.delta: required with privacy.noise.kind = 'multiplier', but not given; epsilon is "
        "reported at this delta"
    )


def check_reporting_delta(config: Experiment, sizes: Sequence[int]) -> None:
    """Delta < 1/n, except for the papers' own settings, which break it and are labelled."""
    privacy = config.privacy
    delta = reporting_delta(config)
    if privacy.kind == "none" or delta is None or privacy.noise.kind == "published":
        return
    if privacy.kind == "client-level":
        check_delta(delta, len(sizes), "privacy.delta", "clients")
    else:
        check_delta(delta, sum(sizes), "privacy.delta", "examples")
