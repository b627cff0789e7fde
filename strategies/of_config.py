"""From the config of a run to its Flower strategy."""

from manifed.algorithms import gossip, masked_mean, tangent_mean
from manifed.algorithms.decor import Decor
from manifed.algorithms.growing_samples import GrowingSamples
from manifed.algorithms.manifold_gossip import ManifoldGossip
from manifed.algorithms.projected import Projected, ProjectedPartial
from manifed.algorithms.rfedsvrg import RFedSVRG
from manifed.algorithms.scheduled import ScheduledProjected
from manifed.algorithms.stationary_decor import StationaryDecor
from manifed.flower import strategy
from manifed.flower.strategy import ManifoldStrategy, settings_of
from manifed.runs.driver import Job
from strategies.control_variates import ControlVariates
from strategies.gossip import Gossip
from strategies.masked_mean import MaskedMean
from strategies.projection_mean import ProjectionMean
from strategies.tangent_mean import TangentMean


def strategy_of(job: Job) -> ManifoldStrategy:
    """The strategy of the run's server update.

    A plug-in gets the library's own, a subclass of one of ours too: its step is its own.
    """
    update, server, plan = job.config.training, job.config.server_update, job.plan
    settings = settings_of(job)
    if type(server) is Projected or type(server) is ScheduledProjected:
        return ProjectionMean(plan.manifold, server, **settings)
    if (
        type(server) is gossip.Gossip
        or type(server) is Decor
        or type(server) is StationaryDecor
        or type(server) is GrowingSamples
        or type(server) is ManifoldGossip
    ):
        return Gossip(plan.manifold, server, **settings)
    if type(server) is masked_mean.MaskedMean:
        return MaskedMean(plan.manifold, server, **settings)
    if type(server) is RFedSVRG or type(server) is ProjectedPartial:
        return ControlVariates(plan.manifold, server, cohort=plan.cohort, **settings)
    if type(server) is tangent_mean.TangentMean and len(update.phases) == 1:
        return TangentMean(
            plan.manifold,
            server_step_size=server.server_step_size,
            weights=server.weights,
            output_rule=server.output_rule,
            maps=server.maps or "exact",
            average=server.average,
            momentum=server.momentum,
            update=update,
            cohort=plan.cohort,
            **settings,
        )
    return strategy.strategy_of(job)
