"""Runs whose rounds are not told one by one."""

import contextlib
import logging
from collections.abc import Generator


@contextlib.contextmanager
def flower_says_only(level: int) -> Generator[None, None, None]:
    """Flower's own log and the library's from ``level`` on; as they were afterwards."""
    loggers = [logging.getLogger(name) for name in ("flwr", "manifed")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.setLevel(was)
