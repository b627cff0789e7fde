"""What is known after a round, and what all rounds leave: curves, statement, model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from manifed.algorithms.algorithm import State
from manifed.durable import write_atomically
from manifed.runs.folder import RunFolder, encode, with_label
from manifed.runs.statement import label_in, statement_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Round:
    """What is known after a round."""

    server_round: int
    state: State
    model: Tensor
    spending: float | None
    """Epsilon so far against the first adversary of the statement; None without privacy."""
    participants: tuple[int, ...]
    failures: Mapping[int, str]


@dataclass(frozen=True)
class Result:
    """What a fit leaves."""

    model: Tensor
    curves: Mapping[str, list[float | None]]
    """One entry a round: "round", "epsilon", "participants", "failures", and what was evaluated."""
    statement: Mapping[str, Any]
    """The privacy statement as data; `text` prints it."""
    stopped: str | None = None
    """Why there are fewer rounds than were asked for: a budget that ran out."""
    state_dict: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """The parameters of a torch module for its ``load_state_dict``; empty for another problem."""

    @property
    def text(self) -> str:
        """The privacy statement, one fact a line."""
        return statement_of(self.statement)

    def plot(self) -> "Figure":
        """A matplotlib figure: what was evaluated, and epsilon, round by round."""
        from manifed.runs.report import figure_of

        return figure_of(self.curves, self.statement)

    def save(self, folder: str | Path) -> Path:
        """Write model.safetensors, metrics.csv and statement.json into a new or empty folder.

        Raises:
            OSError: when the folder is taken or cannot be written.
        """
        made = RunFolder.claim(Path(folder))
        for values in zip(*self.curves.values(), strict=True):
            row = dict(zip(self.curves, values, strict=True))
            made.append_metrics(with_label(row, label_in(self.statement)))
        made.save_tensors("model", {"x": self.model})
        told = {**self.statement, "stopped": self.stopped}
        write_atomically(made.directory / "statement.json", encode(told))
        return made.directory
