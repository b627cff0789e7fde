"""Which halves, cohorts, maps and privacy go together; everything else is free to combine."""

from manifed.algorithms.projected import Projected, ProjectedPartial
from manifed.algorithms.projection_mean import ProjectionMean, ProjectionMeanPartial
from manifed.algorithms.rfedprox import RFedProx
from manifed.algorithms.rfedsvrg import RFedSVRG
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.rsvrg import RSVRG
from manifed.algorithms.tangent_mean import TangentMean
from manifed.algorithms.variance_reduced import VarianceReduced
from manifed.federation.cohorts import Cohort
from manifed.manifolds.ambient import reach
from manifed.manifolds.base import Manifold

AnyTraining = RSGD | RSVRG | Projected | ProjectedPartial | RFedProx | RFedSVRG
AnyStrategy = TangentMean | ProjectionMean | ProjectionMeanPartial | VarianceReduced

TIED = {
    "projected": "projection-mean",
    "projected-partial": "projection-mean-partial",
    "federated-svrg": "variance-reduced",
}
"""Client half to the only server half that speaks its messages."""


def check_halves(training: AnyTraining, strategy: AnyStrategy, cohort: Cohort) -> None:
    """Refuse halves that do not belong together.

    Raises:
        ValueError: naming field, value and what is expected.
    """
    wanted = TIED.get(training.kind)
    if wanted is not None and strategy.kind != wanted:
        raise ValueError(
            f"strategy.kind: training.kind = {training.kind!r} goes with {wanted!r}, got "
            f"{strategy.kind!r}"
        )
    if wanted is None and strategy.kind in TIED.values():
        owner = next(half for half, other in TIED.items() if other == strategy.kind)
        raise ValueError(
            f"strategy.kind: {strategy.kind!r} goes with training.kind = {owner!r}, got "
            f"{training.kind!r}"
        )
    if strategy.needs_everyone and cohort.kind != "all":
        raise ValueError(
            f"federation.cohort.kind: strategy.kind = {strategy.kind!r} needs every client in "
            f"every round ('all'), got {cohort.kind!r}; use training.kind = 'projected-partial' "
            "with strategy.kind = 'projection-mean-partial'"
        )
    _check_step_sizes(training, strategy)
    _check_maps(training, strategy)


def _check_step_sizes(training: AnyTraining, strategy: AnyStrategy) -> None:
    if not isinstance(training, Projected):
        return
    if training.server_step_size != strategy.server_step_size:
        raise ValueError(
            "training.server_step_size: the correction undoes the server's step, expected "
            f"strategy.server_step_size = {strategy.server_step_size:g}, got "
            f"{training.server_step_size:g}"
        )


def _check_maps(training: AnyTraining, strategy: AnyStrategy) -> None:
    if not isinstance(strategy, TangentMean | VarianceReduced):
        return
    mine = training.maps if isinstance(training, RSGD | RFedProx | RFedSVRG) else "exact"
    if mine != strategy.maps:
        raise ValueError(
            f"strategy.maps: the server's map undoes the clients', expected {mine!r} as in "
            f"training, got {strategy.maps!r}"
        )


def check_manifold(training: AnyTraining, manifold: Manifold) -> None:
    """Refuse training whose maps the manifold has not: projection, or exact exp and log.

    Raises:
        ValueError: naming the manifolds that have them, or the maps that this one has.
    """
    if isinstance(training, Projected | ProjectedPartial):
        try:
            reach(manifold)
        except ValueError as error:
            raise ValueError(f"training.kind: {training.kind!r}: {error}") from None
    elif not manifold.has_logmap and (isinstance(training, RSVRG) or training.maps == "exact"):
        raise ValueError(
            f"training.kind: {training.kind!r} with exact maps needs expmap and logmap, and "
            f"{manifold.name} has none; use training.maps = 'retraction' with 'rsgd', or "
            "training.kind = 'projected'"
        )


def check_private_halves(training: AnyTraining, privacy_kind: str, noise_kind: str) -> None:
    """Refuse a mechanism that nothing charges for, with this training.

    Raises:
        ValueError: naming what works instead.
    """
    if privacy_kind == "client-level" and isinstance(training, RFedSVRG | ProjectedPartial):
        why = {
            "federated-svrg": "it uploads twice a round, and one noised average is charged",
            "projected-partial": "its server broadcasts a mean from books of un-noised uploads",
        }[training.kind]
        raise ValueError(
            f"training.kind: {training.kind!r} has no client-level privacy ({why}); use "
            "'projected', or privacy.kind = 'example-level'"
        )
    is_client_level = privacy_kind == "client-level"
    if is_client_level and isinstance(training, Projected) and training.upload != "plain":
        raise ValueError(
            "training.upload: expected 'plain' with privacy.kind = 'client-level', got "
            f"{training.upload!r}, which would add the noise of each round to all later ones"
        )
    if noise_kind == "published" and not isinstance(training, RSGD | RSVRG):
        raise ValueError(
            "privacy.noise.kind: 'published' is the formula of 'rsgd' and 'rsvrg', got "
            f"training.kind = {training.kind!r}; use 'target' or 'multiplier'"
        )
