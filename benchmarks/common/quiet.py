"""Runs whose rounds are not told one by one."""

import contextlib
import logging
from collections.abc import Generator


@contextlib.contextmanager
def flower_says_only(level: int) -> Generator[None, None, None]:
    """Flower's own log from ``level`` on; as it was afterwards."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
