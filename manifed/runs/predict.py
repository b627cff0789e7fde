"""Predictions of a finished run for the rows of a new file, and the model card of a run.

A prediction is computed from the released model, the config and the new row alone. So it costs no
privacy: it opens no ledger and no file of a client.
"""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w
import torch
from torch import Tensor

from manifed.errors import ConfigError, named_by
from manifed.experiment.load import parse
from manifed.experiment.plugins import look_as_noted
from manifed.fields import Document, Values
from manifed.privacy.events import Label
from manifed.problems.examples import Examples
from manifed.problems.own_files import FileData
from manifed.problems.problem import Problem
from manifed.runs.folder import FolderDamaged, RunFolder
from manifed.runs.handed import computing
from manifed.runs.report import Run, read
from manifed.runs.statement import headline, label_in, statement_of, verdict

_ANY = {
    "name": "x",
    "federation": {"num_clients": 1, "num_rounds": 1},
    "training": {"kind": "rsgd", "step_size": 1},
}
"""What a config must have beside a problem and data, and no prediction depends on."""


class Predicted(NamedTuple):
    """Predictions for the rows of a file, in their order."""

    columns: dict[str, list[Any]]
    """A list with an entry for each row, by name."""
    quality: dict[str, float]
    """"accuracy" of classes, or "rmse" of numbers, where the file's labels were read."""
    label: Label
    """What the model's own epsilon may be called."""

    @property
    def csv(self) -> str:
        """A header and a line for each row."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([[*self.columns], *zip(*self.columns.values(), strict=True)])
        return text.getvalue()


def predicted(
    directory: Path, file: Path, *, is_judged: bool = False, is_rebuilt: bool = False
) -> Predicted:
    """Predicts from a run, or from what `export` made of it, for each row of a file.

    The file is read as the config's ``data`` says: columns, bounds, scaling, intercept. A label is
    read only to judge by it, and a person never.

    Args:
        directory: of a finished run of own files.
        file: the new rows.
        is_judged: whether the file has labels, by which the predictions are judged.
        is_rebuilt: whether rows are rebuilt from their principal components, instead of these.

    Raises:
        FileNotFoundError, FolderDamaged: ``directory`` is no run, or damaged.
        ConfigError: an unfinished run, a problem that predicts nothing, a file that does not fit.
    """
    run = read(directory)
    config = _config(run)
    x = model_in(RunFolder(directory))
    data = config.data
    if is_judged and data.label is None:
        raise ConfigError("data.label: expected a label to judge by, got none in the config")
    changes = {"person": None, "rows_per_person": None, **({} if is_judged else {"label": None})}
    with named_by("FILE", OSError, ValueError):
        found = data.model_copy(update=changes).read(file)
    rows = found.tensors.get("feature", next(iter(found.tensors.values())))
    problem = config.problem.build()
    with computing(problem, found.shapes, str(file)):
        config.problem.check_entries(Examples({"z": rows}))
        values = problem.predict(x, rows)
    if is_rebuilt:
        values = _rebuilt(problem, data, x, values)
    quality = dict[str, float]()
    columns: dict[str, list[Any]] = {"row": [*range(1, len(rows) + 1)]}
    if data.classes and values.dim() == 1:
        numbers = values.clamp_min(0).long()  # a linear model says -1 and 1
        columns["prediction"] = [data.classes[k] for k in numbers.tolist()]
        if is_judged:
            quality["accuracy"] = float((numbers == found["label"].clamp_min(0)).double().mean())
    else:
        flat = values.reshape(len(rows), -1)
        names = [f"prediction_{k}" for k in range(1, flat.shape[1] + 1)]
        if is_rebuilt and data.columns:
            names = data.columns
        elif values.dim() == 1:
            names = ["prediction"]
        columns |= dict(zip(names, flat.T.tolist(), strict=True))
        if is_judged:
            quality["rmse"] = float((flat[:, 0] - found["target"]).square().mean().sqrt())
    return Predicted(columns, quality, run.label)


def config_of(run: Run, around: Values | None = None) -> Any:
    """The experiment of a finished run without its paths; or its problem and data in another one.

    Raises:
        ConfigError: an unfinished run.
        FolderDamaged: the manifest has no config that can be read.
    """
    if not run.final:
        raise ConfigError(f"Expected a finished run, got {run.directory}; resume it first")
    path = RunFolder(run.directory).manifest_path
    try:
        look_as_noted(path)
        said = run.manifest["config"]
        data = {key: value for key, value in said["data"].items() if key != "paths"}
        parts = said if around is None else {**around, "problem": said["problem"]}
        return parse({**parts, "data": data})
    except (ConfigError, KeyError) as error:
        raise FolderDamaged(path, "the manifest of a run", str(error)) from None


def _config(run: Run) -> Any:
    """The experiment of a finished run of own files, whose problem reads rows as they are."""
    config = config_of(run, _ANY)
    if not isinstance(config.data, FileData):
        raise ConfigError(
            "data.kind: expected 'file', whose columns a new file has as well, got "
            f"{config.data.kind!r}"
        )
    if not type(config.problem).prepare.__module__.startswith("manifed."):
        raise ConfigError(
            f"problem.kind: expected a problem of the library, got {config.problem.kind!r}, whose "
            "prepare may need labels"
        )
    return config


def _rebuilt(problem: Problem, data: FileData, x: Tensor, scores: Tensor) -> Tensor:
    """Rows from their principal components, on the scale of the file."""
    from manifed.problems.pca import KPCA, PrincipalEigenvector

    if not isinstance(problem, KPCA | PrincipalEigenvector):
        raise ConfigError(f"--rebuild: expected principal components, got {type(problem).__name__}")
    return data.unscaled(scores @ x.reshape(len(x), -1).mT)


def model_in(folder: RunFolder) -> Tensor:
    """Returns the model of a finished run.

    Raises:
        FolderDamaged: its file holds something else.
    """
    tensors = folder.load_tensors("model")
    if list(tensors) != ["x"] or not torch.isfinite(tensors["x"]).all():
        path = folder.directory / "model.safetensors"
        raise FolderDamaged(path, "one tensor x of finite numbers", "others")
    return tensors["x"]


# -- what may be said of a run --------------------------------------------------------------------
def _set_in(table: Values) -> Document:
    """A config for a reader, without what is empty or off."""
    inside = {k: _set_in(v) if isinstance(v, Mapping) else v for k, v in table.items()}
    return {key: value for key, value in inside.items() if value not in (None, [], {}, "", False)}


def card(manifest: Values) -> str:
    """Returns the model card of a run's public part: what it is, and what may be said of it."""
    privacy, config = manifest["privacy"], manifest["config"]
    said = verdict(privacy)
    if label_in(privacy) == Label.RELEASE:
        one: Any = privacy["adversaries"][0]
        said = (
            f"This model was trained on data of {config['federation']['num_clients']} clients with "
            f"differential privacy for each {privacy['unit']}: epsilon = {one['epsilon']:.3g} at "
            f"delta = {one['delta']:g} ({privacy['neighboring_relation']}), against {one['text']}."
        )
    parts = {
        "What may be said in public": said,
        "What was released": statement_of(privacy),
        "What was measured": json.dumps(
            {key: value for key, value in manifest["final"].items() if value is not None}, indent=1
        ),
        "What a record is, and how the model was trained": tomli_w.dumps(_set_in(config)),
    }
    lines = [f"# {manifest['name']}", "", headline(privacy)]
    for title, text in parts.items():
        lines += ["", f"## {title}", "", *(f"    {line}" for line in text.splitlines())]
    return "\n".join(lines) + "\n"
