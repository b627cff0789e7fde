"""What can go wrong, by whose fault it is: each error is one line with field, value and bound."""


class ConfigError(ValueError):
    """Input that cannot run; one line naming the field, its value and the bound."""


class RoundFailed(RuntimeError):
    """A round that has no result; the text names the clients and their reasons."""


class BudgetExhausted(RuntimeError):
    """The next round would exceed ``privacy.max_epsilon``; the last paid model stands."""


class EngineFailed(Exception):
    """A run that did not end as ``finished:completed``.

    Attributes:
        status: Flower's own status (``finished:failed``, ``finished:stopped``), or
            ``timeout``, ``not-started``, ``stopped`` where Flower has none.
        details: the exception text of the ServerApp, or the last lines of a log.
    """

    def __init__(self, status: str, details: str) -> None:
        super().__init__(f"Expected run status finished:completed, got {status}: {details}")
        self.status = status
        self.details = details
