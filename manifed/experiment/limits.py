"""Which parts go together, and what a run can count to; everything else is free to combine."""

from manifed.algorithms.correlated import CorrelatedRSGD
from manifed.algorithms.decor import Decor
from manifed.algorithms.gossip import ByGraph, Gossip, OnGraph
from manifed.algorithms.growing_samples import GrowingSamples
from manifed.algorithms.interface import ClientUpdate, ReadsInOrder, ServerUpdate
from manifed.algorithms.log_euclidean import LogEuclidean
from manifed.algorithms.manifold_gossip import ManifoldGossip
from manifed.algorithms.masked_mean import MaskedMean
from manifed.algorithms.noisy_gram import LogisticGram, NoisyGram
from manifed.algorithms.one_shot import OneShot
from manifed.algorithms.pair_masks import Masking
from manifed.algorithms.projected import Projected, ProjectedPartial, Projecting, reach
from manifed.algorithms.rfedags import RFedAGS
from manifed.algorithms.rfedprox import RFedProx
from manifed.algorithms.rfedsvrg import RFedSVRG
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.rsvrg import RSVRG
from manifed.algorithms.scheduled import ScheduledProjected, ScheduledRSGD, Schedules
from manifed.algorithms.second_moment import SecondMoment
from manifed.algorithms.stationary_decor import StationaryDecor
from manifed.algorithms.tangent_mean import TangentMean
from manifed.experiment.plugins import is_plugin
from manifed.federation.cohorts import Cohort
from manifed.manifolds.base import Manifold
from manifed.manifolds.euclidean import Euclidean
from manifed.manifolds.sphere import Sphere
from manifed.manifolds.stiefel import Stiefel
from manifed.oracles.oracle import STEPS_PER_PHASE
from manifed.privacy.events import NeighboringRelation
from manifed.privacy.mechanism import ExampleMechanism, RelativeNoise
from manifed.privacy.noise import BITS
from manifed.privacy.secldp import MOST_EXACT
from manifed.problems.base import Problem
from manifed.problems.linear_model import LinearModel

_MANY_EXAMPLES = 1 << 20
"""A shard so large that a minibatch is a proper part of it."""

AnyTraining = (
    RSGD
    | ScheduledRSGD
    | CorrelatedRSGD
    | RSVRG
    | Projected
    | ScheduledProjected
    | ProjectedPartial
    | RFedProx
    | RFedAGS
    | RFedSVRG
    | Gossip
    | Decor
    | StationaryDecor
    | MaskedMean
    | ManifoldGossip
    | GrowingSamples
    | SecondMoment
    | LogEuclidean
    | NoisyGram
    | LogisticGram
)


def server_update(training: ClientUpdate, strategy: TangentMean | None) -> ServerUpdate:
    """The server's part: the algorithm's own where it is tied, else ``strategy``.

    A tangent mean moves by the maps of the client update, whose uploads it undoes; for a plug-in's
    ``strategy.maps`` says by which.
    """
    if isinstance(training, ServerUpdate):
        return training
    if strategy is not None and is_plugin(strategy.kind):
        return strategy
    mean = strategy or TangentMean()
    maps = training.maps if isinstance(training, RSGD | RFedProx) else mean.maps or "exact"
    return mean.model_copy(update={"maps": maps})


def check_strategy(training: AnyTraining, strategy: TangentMean | None, cohort: Cohort) -> None:
    """Refuse a server update, or a cohort, that does not go with the client update.

    Raises:
        ValueError: naming field, value and what is expected.
    """
    if isinstance(training, ServerUpdate) and strategy is not None:
        raise ValueError(
            f"strategy.kind: training.kind = {training.kind!r} brings its own server update, got "
            f"{strategy.kind!r}; remove [strategy] (server_step_size is a key of [training])"
        )
    is_other = is_plugin(training.kind) or (strategy is not None and is_plugin(strategy.kind))
    if strategy is not None and not is_other and strategy.maps is not None:
        raise ValueError(
            f"strategy.maps: the server moves by training.maps, got {strategy.maps!r}; remove it"
        )
    if server_update(training, strategy).needs_everyone and cohort.kind != "all":
        raise ValueError(
            f"federation.cohort.kind: training.kind = {training.kind!r} needs every client in "
            f"every round ('all'), got {cohort.kind!r}; use training.kind = 'projected-partial'"
        )


def check_manifold(training: AnyTraining, manifold: Manifold) -> None:
    """Refuse training whose maps the manifold has not: projection, or exact exp and log.

    Raises:
        ValueError: naming the manifolds that have them, or the maps that this one has.
    """
    if is_plugin(training.kind) or isinstance(training, OneShot):
        return  # what it asks of a manifold is its own, or nothing
    if isinstance(training, ManifoldGossip):
        if type(manifold) not in (Euclidean, Sphere, Stiefel):
            raise ValueError(
                "training.kind: 'manifold-gossip' averages points in their ambient space, so it "
                f"needs R^d, the sphere or Stiefel, got {manifold.name}"
            )
    elif isinstance(training, OnGraph | GrowingSamples):
        if not manifold.is_whole_space:
            raise ValueError(
                f"training.kind: {training.kind!r} mixes models as vectors, so it needs a problem "
                "on R^d ('least-squares', 'logistic', a 'module' without manifolds), got one on "
                f"{manifold.name}; use 'manifold-gossip'"
            )
    elif isinstance(training, Projecting):
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


def check_average(server: ServerUpdate, num_rounds: int, manifold: Manifold) -> None:
    """Refuse an average that no iterate would be part of, or of points that it cannot average.

    Raises:
        ValueError: naming the field and what it goes with.
    """
    if type(server) is not TangentMean or server.average is None:
        return
    server.average.check(manifold)
    if server.average.from_round > num_rounds:
        raise ValueError(
            f"strategy.average.from_round: expected at most federation.num_rounds = {num_rounds}, "
            f"got {server.average.from_round}"
        )


def check_participation(
    training: ClientUpdate, privacy_kind: str, cohort: Cohort, num_clients: int
) -> None:
    """Refuse probabilities or weights of other clients, or that a price does not allow.

    Raises:
        ValueError: naming field, value and what is expected.
    """
    if not isinstance(training, RFedAGS):
        return
    given, weights = training.participation, training.client_weights
    for field, found in (("participation", given), ("client_weights", weights)):
        if isinstance(found, tuple) and len(found) != num_clients:
            raise ValueError(
                f"training.{field}: expected one for each of federation.num_clients = "
                f"{num_clients}, got {len(found)}"
            )
    rates = cohort.probabilities or (cohort.rate(num_clients),) * num_clients
    own = given if isinstance(given, tuple) else (given or 0.0,) * num_clients
    for i, (mine, rate) in enumerate(zip(own, rates, strict=True)):
        if mine > rate * (1 + 1e-9):
            raise ValueError(
                f"training.participation: expected at most {rate:g}, with which federation.cohort "
                f"asks client {i}, got {mine:g}"
            )
    if privacy_kind == "client-level" and (given is not None or weights is not None):
        raise ValueError(
            "training.participation, training.client_weights: with privacy.kind = 'client-level' "
            "the mechanism divides by the expected size of the cohort, expected neither; remove "
            "them"
        )
    if privacy_kind == "example-level" and cohort.kind != "all" and given is None:
        raise ValueError(
            "training.participation: required with privacy.kind = 'example-level' and drawn "
            f"cohorts ({cohort.kind!r}), got none: an estimate carries who took part into later "
            f"rounds, which nothing prices; give {min(rates):g} or less"
        )


def check_graph(training: AnyTraining, num_clients: int) -> None:
    """Refuse a graph that there is not, or of other nodes than the clients.

    Raises:
        ValueError: naming field, value and what is expected.
    """
    if not isinstance(training, ByGraph | GrowingSamples):
        return
    if training.num_nodes not in (None, num_clients):
        raise ValueError(
            f"training.num_nodes: expected federation.num_clients = {num_clients}, got "
            f"{training.num_nodes}; leave it out"
        )
    try:
        found = training.built_graph if isinstance(training, ByGraph) else training.network.graph
    except ValueError as error:
        raise ValueError(f"training.{error}") from None
    if isinstance(training, StationaryDecor) and num_clients > MOST_EXACT:
        raise ValueError(
            f"federation.num_clients: expected at most {MOST_EXACT} with 'stationary-decor', whose "
            f"price takes a matrix of all pairs of nodes, got {num_clients}; use 'decor'"
        )
    is_mixed = (
        isinstance(training, OnGraph | GrowingSamples) and training.mixing_weights != "complete"
    )
    if is_mixed and not found.is_connected:
        raise ValueError(
            f"training.graph: expected a connected graph, got {len(found.components)} parts, "
            "between which nothing is ever mixed"
        )


_SOLVES: dict[type[OneShot], str] = {
    SecondMoment: "'principal-eigenvector' or 'kpca'",
    LogEuclidean: "'frechet-mean' with problem.manifold = 'spd-log-euclidean'",
    NoisyGram: "'least-squares'",
    LogisticGram: "'logistic'",
}
"""The problems that have the statistic that a one-shot release takes."""


def check_statistic(training: ClientUpdate, problem: Problem, kind: str) -> None:
    """Refuse a one-shot release of a problem that is no function of what it releases.

    Raises:
        ValueError: naming the problems that are.
    """
    if not isinstance(training, OneShot):
        return
    if not isinstance(problem.sufficient_statistic, training.takes):
        raise ValueError(
            f"training.kind: {training.kind!r} solves problem.kind = "
            f"{_SOLVES[type(training)]}, got {kind!r}; use training.kind = 'rsgd'"
        )
    if (
        isinstance(problem, LinearModel)
        and isinstance(training, NoisyGram)
        and problem.ridge != training.ridge
    ):
        raise ValueError(
            f"training.ridge: expected the problem's {problem.ridge:g}, got {training.ridge:g}"
        )


def check_correlated(training: ClientUpdate, privacy_kind: str, cohort: Cohort) -> None:
    """Refuse noise over rounds that nothing prices.

    Raises:
        ValueError: naming field, value and what to use instead.
    """
    if not isinstance(training, CorrelatedRSGD) or privacy_kind == "none":
        return
    if privacy_kind == "client-level":
        raise ValueError(
            "training.kind: 'correlated-rsgd' correlates the noise of clients, and with "
            "privacy.kind = 'client-level' the server adds it; use 'rsgd' or 'example-level'"
        )
    if cohort.kind != "all":
        raise ValueError(
            "federation.cohort.kind: noise that depends on earlier rounds is priced for clients "
            f"that take part in all of them ('all'), got {cohort.kind!r}; use 'all', or "
            "training.kind = 'rsgd'"
        )


def check_masks(
    training: ClientUpdate,
    noise_source: str,
    coalition: tuple[int, ...],
    cohort: Cohort,
    unit: str = "client",
) -> None:
    """Refuse correlated noise where nothing adds masks, or masks that would hide nothing.

    Raises:
        ValueError: naming field, value and what is expected.
    """
    if not isinstance(training, Masking):
        raise ValueError(
            "privacy.kind: 'correlated' needs training that adds masks ('decor', 'masked-mean'), "
            f"got training.kind = {training.kind!r}"
        )
    if cohort.kind != "all":
        raise ValueError(
            "federation.cohort.kind: masks cancel over all nodes, expected 'all' with "
            f"training.kind = {training.kind!r}, got {cohort.kind!r}"
        )
    if noise_source == "os" and training.pair_keys != "exchanged":
        raise ValueError(
            "training.pair_keys: expected 'exchanged' with privacy.noise_source = 'os', got "
            f"{training.pair_keys!r}: masks that anybody can compute hide nothing"
        )
    if isinstance(training, Decor) and training.local_steps > 1 and unit != "client":
        raise ValueError(
            f"training.local_steps: expected 1 with privacy.unit = {unit!r}, got "
            f"{training.local_steps}: a round is one release, and only with unit = 'client' the "
            "sum of all its steps is clipped"
        )
    most = training.secret_graph.num_nodes
    if coalition and not (len(set(coalition)) == len(coalition) < most and max(coalition) < most):
        raise ValueError(
            f"privacy.coalition: expected different nodes of 0..{most - 1}, not all of them, got "
            f"{list(coalition)}"
        )


def check_streams(
    training: ClientUpdate, *, is_found: bool, on_failure: str, relation_unit: str
) -> None:
    """Refuse what noise that goes on from round to round is not priced for.

    Raises:
        ValueError: naming field, value and what to use.
    """
    if not isinstance(training, StationaryDecor):
        return
    if is_found:
        raise ValueError(
            "privacy.target: finds white noise only; with training.kind = 'stationary-decor' give "
            "noise_stddev and mask_stddev (manifed.privacy.stationary_design finds both)"
        )
    if on_failure == "retry":
        raise ValueError(
            "federation.replies.on_failure: 'retry' would put two messages on one noise with "
            "training.kind = 'stationary-decor'; use 'abort'"
        )
    if training.minibatch.kind != "full":
        raise ValueError(
            f"training.minibatch.kind: expected 'full' with training.kind = 'stationary-decor', "
            f"got {training.minibatch.kind!r}: rounds share noise, so sampling {relation_unit}s "
            "amplifies nothing"
        )


def check_private(training: ClientUpdate, privacy_kind: str, noise_kind: str) -> None:
    """Refuse a mechanism that nothing charges for, with this training.

    Raises:
        ValueError: naming what works instead.
    """
    is_client_level = privacy_kind == "client-level"
    if is_client_level and isinstance(training, Schedules) and training.noise_multipliers:
        raise ValueError(
            "training.noise_multipliers: scales the noise of clients, and with privacy.kind = "
            "'client-level' the server adds it; remove it, or use 'example-level'"
        )
    why = ""
    if isinstance(training, GrowingSamples) and privacy_kind == "example-level":
        check_growing(training)
    if isinstance(training, OnGraph | GrowingSamples):
        why = "the server mixes models that it sees"
    elif len(training.phases) > 1:
        why = "it uploads twice a round, and one noised average is charged"
    elif is_plugin(training.kind) and any(len(one.up.names()) > 1 for one in training.phases):
        why = "one vector a client is noised, and it uploads several"
    elif isinstance(training, ProjectedPartial):
        why = "its server broadcasts a mean of control variates, which are un-noised uploads"
    if is_client_level and why:
        raise ValueError(
            f"training.kind: {training.kind!r} has no client-level privacy ({why}); use "
            "'projected', or privacy.kind = 'example-level'"
        )
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


def check_growing(training: GrowingSamples) -> None:
    """Refuse to protect what is not enforced.

    Raises:
        ValueError: naming what works instead.
    """
    if training.mode == "paper":
        raise ValueError(
            "training.mode: 'paper' clips nothing and takes C on trust, so it protects nobody; use "
            "'rigorous', or privacy.kind = 'none'"
        )
    is_hidden = training.perturbation == "output" and training.grad_point == "own"
    if is_hidden and training.lipschitz is None:
        raise ValueError(
            "training.lipschitz: required with grad_point = 'own', whose price it enters, got "
            "none; use grad_point = 'mixed', or perturbation = 'gradient'"
        )


def check_steepness(training: ClientUpdate, problem: Problem, kind: str) -> None:
    """Refuse a Lipschitz constant that no record is held to.

    Raises:
        ValueError: naming the problems whose records are, and what needs none.
    """
    is_asked = isinstance(training, GrowingSamples) and training.lipschitz is not None
    if is_asked and not isinstance(problem, LinearModel):
        raise ValueError(
            "training.lipschitz: records are held to it with problem.kind = 'least-squares' and "
            f"'logistic', got {kind!r}; use training.grad_point = 'mixed'"
        )


def check_stream_data(training: ClientUpdate, data_kind: str, partition: str, held: str) -> None:
    """Refuse to read data that are never all there in any other way than once, in order.

    Raises:
        ValueError: naming field, value and what to use instead.
    """
    if not (isinstance(training, ReadsInOrder) and training.is_in_order):
        raise ValueError(
            f"data.kind: {data_kind!r} is a stream, of which each record is read once: it needs "
            "training.kind = 'growing-samples' with samples = 'in-order' and on_exhausted = 'stop'"
        )
    if partition != "natural":
        raise ValueError(
            f"federation.partition.kind: with data.kind = {data_kind!r} every client has a stream "
            f"of its own, expected 'natural', got {partition!r}"
        )
    if held != "oracle":
        raise ValueError(
            f"evaluation.kind: a stream holds nothing out, expected 'oracle', got {held!r}"
        )


def check_laplace(training: ClientUpdate, l1_norm_clip: float | None) -> None:
    """Refuse Laplace noise where no price is known, or where an L1 clip changes steepness.

    Raises:
        ValueError: naming field, value and what to use instead.
    """
    if l1_norm_clip is None:
        return
    if not isinstance(training, GrowingSamples):
        raise ValueError(
            "privacy.l1_norm_clip: Laplace noise is drawn by training.kind = 'growing-samples', "
            f"got {training.kind!r}; use l2_norm_clip"
        )
    if training.lipschitz is not None:
        raise ValueError(
            "training.lipschitz: a clip in L1 can part two gradients twice as far as they were, "
            "which is not priced; use grad_point = 'mixed', or privacy.l2_norm_clip"
        )


def check_own_models(training: ClientUpdate, dtype: str) -> None:
    """Refuse float32 for models that nobody sees, whose roundings no price holds.

    Raises:
        ValueError: naming field, value and what to use instead.
    """
    is_own = isinstance(training, GrowingSamples) and training.perturbation == "output"
    if is_own and dtype != "float64":
        raise ValueError(
            "engine.dtype: with training.perturbation = 'output' noise covers what a record moves "
            "a node's own model by, and float32 may round that model by more; expected 'float64', "
            f"got {dtype!r}; or use perturbation = 'gradient'"
        )


def check_sampling(training: AnyTraining, relation: NeighboringRelation, clip: float) -> None:
    """Refuse minibatches that nothing prices, and a plug-in that states no release.

    A plug-in's minibatches are those of its releases.

    Raises:
        ValueError: naming field, value and what to use instead.
    """
    if is_plugin(training.kind):
        schemes = _stated_schemes(training, relation, clip)
    else:
        schemes = {training.minibatch.kind}
    if "poisson" in schemes and relation == "replace-one":
        raise ValueError(
            "privacy.neighboring_relation: Poisson minibatches are priced under "
            "'add-or-remove' only, got 'replace-one'; use training.minibatch.kind = 'full' or "
            "'without-replacement'"
        )
    if "without-replacement" in schemes and relation == "add-or-remove":
        raise ValueError(
            "privacy.neighboring_relation: minibatches without replacement are priced under "
            "'replace-one' only, got 'add-or-remove'; use 'replace-one' or "
            "training.minibatch.kind = 'poisson'"
        )


def _stated_schemes(training: ClientUpdate, relation: NeighboringRelation, clip: float) -> set[str]:
    """How the releases of a plug-in draw their minibatches, for a shard of any size."""
    noise = RelativeNoise(multiplier=1.0)
    mechanism = ExampleMechanism(l2_norm_clip=clip, neighboring_relation=relation, noise=noise)
    try:
        releases = training.releases(mechanism, _MANY_EXAMPLES)
        stated = {(r.unit, r.neighboring_relation) for r in releases}
        schemes = {r.sampling.kind for r in releases}
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"training.kind: {training.kind!r}: releases failed: {said}") from None
    if not sum(r.count for r in releases):
        raise ValueError(
            f"training.kind: {training.kind!r} states no release; with privacy.kind = "
            "'example-level' releases() must charge every answer of the oracle"
        )
    if stated != {("example", relation)}:
        raise ValueError(
            f"training.kind: {training.kind!r}: expected releases of unit 'example' under "
            f"{relation!r}, as privacy.neighboring_relation says, got {sorted(stated)}"
        )
    return schemes


def check_limits(
    training: AnyTraining, *, num_clients: int, num_rounds: int, max_attempts: int
) -> None:
    """Refuse counts whose noise no address could hold (manifed/privacy/noise.py).

    Raises:
        ValueError: naming the field, its value and its bound.
    """
    _check("federation.num_rounds", num_rounds, (1 << BITS["server_round"]) - 1)
    _check("federation.num_clients", num_clients, 1 << BITS["partition"])
    _check("federation.replies.max_attempts", max_attempts, 1 << BITS["attempt"])
    most = STEPS_PER_PHASE
    if isinstance(training, OneShot):
        if num_rounds > 1:
            raise ValueError(
                f"federation.num_rounds: training.kind = {training.kind!r} releases once, expected "
                f"1, got {num_rounds}"
            )
        return
    if is_plugin(training.kind) or isinstance(training, GrowingSamples):
        return  # its draws are refused when they pass the bound
    if isinstance(training, ScheduledRSGD | ScheduledProjected):
        for server_round in (1, num_rounds):  # every schedule is monotone
            training.in_round(server_round)
    if isinstance(training, RSVRG):
        name = "training.epochs * (training.inner_steps + 1)"
        _check(name, training.epochs * (training.inner_steps + 1), most)
    else:
        _check("training.local_steps", training.local_steps, most)


def _check(field: str, value: int, most: int) -> None:
    if value > most:
        raise ValueError(f"{field}: expected at most {most}, which addresses can hold, got {value}")
