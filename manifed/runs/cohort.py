"""The transport of a cohort in stacks: in this process, or over workers."""

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

from manifed.experiment.assembly import client_side, facts_of, outlined_side, side_of
from manifed.experiment.load import to_toml
from manifed.experiment.schema import Experiment
from manifed.federation.stacked import StackedTransport
from manifed.federation.transport import Transport


@contextmanager
def cohort_transport(config: Experiment) -> Generator[Transport, None, None]:
    """The transport that ``engine`` asks for; its workers end with the context.

    Raises:
        ConfigError: the memory budget is too small, or as `WorkersTransport`.
    """
    engine = config.engine
    budget, chunk = engine.memory_budget_mb, engine.chunk_clients
    if engine.workers is None:
        yield StackedTransport(
            client_side(config),
            device=engine.device,
            memory_budget_mb=budget,
            chunk_clients=chunk,
        )
        return
    from manifed.federation.workers import WorkersTransport

    facts = facts_of(config)
    with WorkersTransport(
        partial(side_of, to_toml(config), facts.sizes, facts.point_shape),
        outlined_side(config),
        workers=engine.workers,
        address=engine.address or "local",
        device=engine.device,
        memory_budget_mb=budget,
        chunk_clients=chunk,
        timeout=config.federation.replies.timeout,
    ) as workers:
        yield workers
