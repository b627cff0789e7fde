"""The transport of a cohort in stacks: in this process, or in Ray actors."""

from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache, partial

from manifed.experiment.assembly import client_side, facts_of, outlined_side, side_of
from manifed.experiment.load import from_toml, to_toml
from manifed.experiment.schema import Experiment
from manifed.federation.stack import ClientSide, StackTransport, Transport
from manifed.plan import Sizes


@contextmanager
def cohort_transport(config: Experiment) -> Generator[Transport, None, None]:
    """The transport that ``engine`` asks for; its workers end with the context.

    Raises:
        ConfigError: the memory budget is too small, or as `RayTransport`.
    """
    engine = config.engine
    budget, at_once = engine.memory_budget_mb, engine.chunk_clients
    if engine.workers is None:
        yield StackTransport(
            client_side(config), at_once=at_once, device=engine.device, memory_budget_mb=budget
        )
        return
    from manifed.federation.workers import RayTransport

    facts = facts_of(config)
    with RayTransport(
        partial(_share, to_toml(config), facts.sizes, facts.point_shape),
        outlined_side(config),
        workers=engine.workers,
        address=engine.address or "local",
        device=engine.device,
        memory_budget_mb=budget,
        at_once=at_once,
        timeout=config.federation.replies.timeout,
    ) as workers:
        yield workers


def _share(text: str, sizes: Sizes, point_shape: tuple[int, ...], members: range) -> ClientSide:
    """`side_of` neighbours, in a worker that is sent a config's text."""
    return side_of(_experiment_of(text), sizes, point_shape, members)


@lru_cache(maxsize=1)
def _experiment_of(text: str) -> Experiment:
    """The one config of all stacks of a worker."""
    return from_toml(text)
