"""Functions that are called after each round, early stopping and trackers among them.

A callback is a function of ``(curves, model)``. ``curves`` maps the name of a column to its values
so far, the newest last, "round" among them; ``model`` is the newest model, on the CPU. A fit ends
after the round for which a callback returns True. It is first called with round 0, the start.

Of a private run a callback is shown what may be published
(`manifed.experiment.evaluation.published`), so that what it tells, and when it ends a fit, is a
function of releases. `ServerView` shows it everything that the server knows.
"""

import logging
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from torch import Tensor

from manifed.errors import ConfigError, described, optional
from manifed.experiment.evaluation import Judged, published
from manifed.experiment.schema import Output
from manifed.fields import Document, Frozen, PositiveCount
from manifed.setting import Setting

__all__ = ["EarlyStopping", "ServerView", "mlflow", "tensorboard", "wandb"]

_log = logging.getLogger("manifed")


def __dir__() -> list[str]:
    return __all__


Curves = Mapping[str, Sequence[float | None]]
"""Values of each column so far, one a row."""
Callback = Callable[[Curves, Tensor], object]
"""What is called after each round; True ends a fit. Its ``close``, if any, is called at the end."""


class ServerView(partial[object]):
    """Shows a callback all columns of a private run, which its server must not publish.

    Such a callback does not end a run: when that happens could tell what is private.
    """


@contextmanager
def calling(
    callbacks: Sequence[Callback],
    setting: Setting,
    public: Collection[str] = (),
    private: Collection[str] = (),
) -> Generator[Callable[[Curves, Tensor], bool]]:
    """Calls all callbacks of a run of ``setting``, and says whether one of them ends it.

    ``public`` and ``private`` are columns as of `published`.

    Raises:
        ConfigError: one raises, or is no function of two arguments.
    """

    def call(curves: Curves, model: Tensor) -> bool:
        ends = False
        for one in callbacks:
            is_inside = isinstance(one, ServerView)
            seen = curves if is_inside else published(setting, curves, public, private)
            try:
                ends |= one(seen, model.to("cpu")) is True and not is_inside
            except ConfigError:
                raise
            except Exception as error:  # code of somebody's own
                raise ConfigError(
                    f"callbacks: expected functions of (curves, model), got {described(error)}"
                ) from error
        return ends

    try:
        yield call
    finally:
        for one in callbacks:
            getattr(getattr(one, "func", one), "close", lambda: None)()


class EarlyStopping(Frozen):
    """Ends a fit when so many evaluations in a row were no better than the best before.

    All planned rounds of a private run are charged all the same, because when it ends depends on
    what was released.
    """

    column: str = "test_loss"
    """What is to fall: "test_loss" of `fit_module`, "held_out_loss" of a private evaluation, or
    any other column that may be shown."""
    no_better_for: PositiveCount = 5
    """Evaluations in a row."""

    def __call__(self, curves: Curves, model: Tensor) -> bool:
        """Whether the fit ends.

        Raises:
            ConfigError: before round 1, for a column that is not shown.
        """
        rounds = curves["round"]
        if rounds[-1] == 0 and self.column not in curves:
            raise ConfigError(f"column: expected one of {sorted(curves)}, got {self.column!r}")
        losses = curves.get(self.column, ())
        judged = Judged()
        for server_round, loss in zip(rounds, losses, strict=False):
            judged = judged.after(int(server_round or 0), loss)
        return judged.since >= self.no_better_for


# -- trackers --------------------------------------------------------------------------------------
class _Tracker:
    """Writes the newest number of each column; nothing is opened before the first call.

    Rows are stamped with their round: the seconds that a round takes tell who replied. A tracker
    that fails after round 0 loses rows, and ends no run.
    """

    def __init__(self, write: Callable[[Document, int], object], end: Callable[[], object]) -> None:
        self._write, self._end, self._is_open = write, end, False

    def __call__(self, curves: Curves, model: Tensor) -> None:
        """Writes the newest row."""
        self._is_open = True
        newest = ((name, values[-1]) for name, values in curves.items() if name != "round")
        row = {name: value for name, value in newest if isinstance(value, float | int)}
        step = int(curves["round"][-1] or 0)
        try:
            self._write(row, step)
        except Exception as error:
            if step == 0:
                raise
            _log.warning("Round %d was not tracked: %s", step, described(error))

    def close(self) -> None:
        """Ends what the first call opened."""
        if self._is_open:
            self._end()


def tensorboard(folder: str | Path) -> Callback:
    """Makes a callback that writes scalars into TensorBoard's event files in a folder.

    Raises:
        Missing: tensorboard is not installed.
    """
    with optional():
        from torch.utils.tensorboard import SummaryWriter
    sink = cache(partial(SummaryWriter, str(folder)))

    def write(row: Document, step: int) -> None:
        for name, value in row.items():
            sink().add_scalar(name, value, step, walltime=step)
        sink().flush()  # a killed run keeps its rows

    return _Tracker(write, lambda: sink().close())


def mlflow() -> Callback:
    """Makes a callback that logs to MLflow's active run, or to a new one; place and name are its.

    Raises:
        Missing: mlflow is not installed.
    """
    with optional():
        import mlflow as kit
    return _Tracker(lambda row, step: kit.log_metrics(row, step=step, timestamp=step), kit.end_run)


def wandb(**settings: Any) -> Callback:
    """Makes a callback that logs to a run of Weights & Biases; ``settings``: of ``wandb.init``.

    Console, code and machine are not uploaded. W&B stamps each row with the time as well.

    Raises:
        Missing: wandb is not installed.
    """
    with optional():
        import wandb as kit
    own = kit.Settings(
        console="off", disable_code=True, disable_git=True, x_disable_meta=True,
        x_disable_stats=True,
    )  # fmt: skip
    sink = cache(partial(kit.init, **{"project": "manifed", "settings": own, **settings}))
    return _Tracker(lambda row, step: sink().log(row, step=step), lambda: sink().finish())


def trackers_of(output: Output, folder: Path) -> list[Callback]:
    """Makes the trackers of a config; nothing is opened yet.

    Raises:
        Missing: the package of one is not installed.
    """
    to_files = partial(tensorboard, folder / "tensorboard")
    makers = {"tensorboard": to_files, "mlflow": mlflow, "wandb": wandb}
    made = [makers[name]() for name in output.trackers]
    return [*map(ServerView, made)] if output.is_server_view else made
