"""Figure files: every curve of a figure, and how it is drawn, in one TOML file.

A curve is named by a choice for each of the figure's parts, and its config is built in layers:

* ``[base]``: the config that all curves share, or the path of one;
* ``[parts.NAME.CHOICE]``: what a choice puts over it, part by part in the order of the file;
* ``[[when]]``: what certain choices together put over that, in the order of the file.

A table is merged into the one below it, key by key; a table that names a ``kind`` replaces it.

    name = "example_{method}-eps-{epsilon}"

    [parts.method]
    rsgd = { training = { kind = "rsgd", step_size = 0.1 } }

    [parts.epsilon]
    "0.3" = { privacy.noise.local_epsilon = 0.3 }

Any place that takes the path of a config takes one curve as FILE.toml::CURVE.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from manifed.errors import ConfigError, short
from manifed.experiment.paths import nearest, place_of
from manifed.experiment.toml_files import read_toml

MARK = "::"
"""Between a figure file and the name of one of its curves."""
_FIELD = re.compile(r"\{(\w+)\}")
_MOST_CURVES = 10_000
Table = dict[str, Any]
Choices = Mapping[str, str]
"""A choice for each part."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class When(_Strict):
    """What certain choices together put over base and parts."""

    parts: dict[str, str | list[str]] = Field(min_length=1)
    """Choices by part, several of one where any of them will do."""
    put: Table

    def holds(self, choices: Choices) -> bool:
        """Whether it concerns a curve."""
        return _matches(self.parts, choices)


class Axes(_Strict):
    """One row of a figure: a column of metrics.csv against another."""

    x: str = "round"
    y: str
    log: list[Literal["x", "y"]] = []
    least: FiniteFloat | None = None
    """Where y begins, above 0 where y is logarithmic; None: below all curves."""


class Panel(_Strict):
    """One column of a figure, or one for each choice of the parts ``by``."""

    title: str
    """May name parts: "{data}, epsilon = {epsilon}"."""
    label: str
    """Of a curve in the legend; may name parts too."""
    by: list[str] = []
    parts: dict[str, str | list[str]] = {}
    """Only the curves of these choices."""


class FigureFile(_Strict):
    """A figure file as it is written."""

    title: str
    paper: str
    shows: str
    """What the paper's figure shows, or is said to show."""
    stand_in: str | None = None
    """What stands for data, sizes or numbers of the paper that are not here."""
    left_open: str | None = None
    """What the paper does not say, and what was taken."""
    checks: list[str] = []
    """Of `python -m reproduction`, which judge what the figure is said to show."""
    report: str | None = None
    """The page of docs/ that has their verdicts."""
    drawing: Literal["panels", "disk", "budgets", "computed"] = "panels"
    """Others than panels are drawn by the folder reproduction/ of a clone."""
    runs_of: str | None = None
    """The figure whose curves this one draws, where ``drawing = "disk"``."""
    data: list[Literal["mnist"]] = []
    """What a computed figure reads below MANIFED_DATA."""
    seeds: int = Field(default=1, ge=1, le=1000)
    budgets: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] = []
    """Different epsilons on the x axis, where ``drawing = "budgets"``."""
    name: str | None = None
    """Of a curve, from its choices; None: no runs."""
    base: str | Table | None = None
    parts: dict[str, dict[str, Table]] = {}
    when: list[When] = []
    labels: dict[str, str] = {}
    """What titles and legends call a choice."""
    panels: list[Panel] = []
    axes: list[Axes] = []


@dataclass(frozen=True)
class DrawnPanel:
    """One column of a figure: its title, and its curves with what the legend calls them."""

    title: str
    curves: tuple[tuple[str, str], ...]
    """Name and label."""


@dataclass(frozen=True)
class FigureOf:
    """A figure file, read and checked."""

    path: Path
    file: FigureFile
    choices: Mapping[str, Choices]
    """Of every curve by its name, in the order of the file's parts, last part fastest."""
    panels: tuple[DrawnPanel, ...]

    @property
    def figure(self) -> str:
        """Its name: 000-1 of 000_1.toml."""
        return self.path.stem.replace("_", "-")

    def source(self, curve: str) -> str:
        """What to give a command that takes the path of a config."""
        return f"{self.path}{MARK}{curve}"

    def table(self, curve: str) -> Table:
        """The raw config of one curve, to be parsed.

        Raises:
            ConfigError: there is no such curve, or the base's file cannot be read.
        """
        if curve not in self.choices:
            meant = nearest(curve, self.choices)
            hint = f"did you mean {meant!r}?" if meant else f"it has {_some(self.choices)}"
            raise ConfigError(f"{self.path}: no curve {curve!r}; {hint}")
        file, choices = self.file, self.choices[curve]
        found: Table = {}
        if isinstance(file.base, str):
            found = read_toml(self.path.parent / file.base)
        elif file.base is not None:
            found = _over({}, file.base)
        for part, choice in choices.items():
            found = _over(found, file.parts[part][choice])
        for rule in file.when:
            found = _over(found, rule.put) if rule.holds(choices) else found
        return {**found, "name": curve}


@lru_cache(maxsize=256)
def read_figure(path: Path) -> FigureOf:
    """The figure of a file, every reference inside it checked; configs are parsed by `load`.

    Raises:
        ConfigError: in one line, with the field, for a malformed file, an unknown key, an unknown
            part or choice, or two curves of one name.
    """
    table = read_toml(path)
    try:
        file = FigureFile.model_validate(table)
    except ValidationError as error:
        raise ConfigError(f"{path}: {_one_line(error)}") from None
    try:
        _check(file)
        choices = _curves(file)
        return FigureOf(path, file, choices, _panels(file, choices))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def split(path: str | Path) -> tuple[Path, str | None]:
    """The file of FILE.toml::CURVE and the name of the curve; None for a plain path."""
    file, mark, curve = str(path).partition(MARK)
    return Path(file), curve if mark else None


def _check(file: FigureFile) -> None:
    """Refuse names of parts and choices that the file does not have."""
    asked = [("when", rule.parts) for rule in file.when]
    asked += [("panels", panel.parts) for panel in file.panels]
    asked += [("panels.by", {part: [] for part in panel.by}) for panel in file.panels]
    for where, parts in asked:
        for part, wanted in parts.items():
            _known(where, part, file.parts)
            for choice in [wanted] if isinstance(wanted, str) else wanted:
                _known(f"{where}.{part}", choice, file.parts[part])
    texts = [("name", file.name or "")]
    texts += [(f"panels.{key}", text) for panel in file.panels
              for key, text in (("title", panel.title), ("label", panel.label))]  # fmt: skip
    for where, text in texts:
        for part in _FIELD.findall(text):
            _known(where, part, file.parts)
    if (file.name is None) != (file.base is None):
        raise ConfigError("name: expected a name of the curves and their base, or neither")
    _check_drawing(file)


def _check_drawing(file: FigureFile) -> None:
    """Refuse what the way of drawing does not take, or misses."""
    if (file.drawing == "panels") != bool(file.panels and file.axes):
        raise ConfigError('panels: expected panels and axes, with drawing = "panels" only')
    if (file.drawing == "budgets") != bool(file.budgets):
        raise ConfigError('budgets: expected epsilons, with drawing = "budgets" only')
    check_budgets("budgets", file.budgets)
    if file.data and file.drawing != "computed":
        raise ConfigError('data: expected it with drawing = "computed" only')
    if file.runs_of is not None and (file.drawing != "disk" or file.name is not None):
        raise ConfigError('runs_of: expected it with drawing = "disk" only, and without a name')
    if file.drawing != "computed" and file.name is None and file.runs_of is None:
        raise ConfigError(f"name: required with drawing = {file.drawing!r}, but not given")
    for row in file.axes:
        if "y" in row.log and row.least is not None and row.least <= 0:
            raise ConfigError(f"axes.least: expected more than 0 with log y, got {row.least!r}")


def check_budgets(where: str, budgets: Sequence[float]) -> None:
    """Refuse what is no epsilon, and two whose folders would have one name (six digits).

    Raises:
        ConfigError: naming ``where`` they are from.
    """
    for budget in budgets:
        if not 0 < budget < math.inf:
            raise ConfigError(f"{where}: expected an epsilon above 0, got {budget!r}")
    if len({f"{budget:g}" for budget in budgets}) < len(budgets):
        raise ConfigError(f"{where}: expected different epsilons, got {list(budgets)}")


def _curves(file: FigureFile) -> dict[str, Choices]:
    if file.name is None:
        return {}
    for part, known in file.parts.items():
        if not known:
            raise ConfigError(f"parts.{part}: expected choices, got none")
    found: dict[str, Choices] = {}
    for chosen in product(*file.parts.values()):
        choices = dict(zip(file.parts, chosen, strict=True))
        name = _filled(file.name, choices)
        if name in found:
            raise ConfigError(f"name: expected every part in it, got {file.name!r} for two curves")
        found[name] = choices
        if len(found) > _MOST_CURVES:
            raise ConfigError(f"parts: expected at most {_MOST_CURVES} curves, got more")
    return found


def _panels(file: FigureFile, curves: Mapping[str, Choices]) -> tuple[DrawnPanel, ...]:
    found: list[DrawnPanel] = []
    for panel in file.panels:
        for chosen in product(*(file.parts[part] for part in panel.by)):
            only = {**panel.parts, **dict(zip(panel.by, chosen, strict=True))}
            shown = {name: own for name, own in curves.items() if _matches(panel.parts, own)
                     and _matches(only, own)}  # fmt: skip
            if not shown:
                continue
            worded = {
                name: {part: file.labels.get(choice, choice) for part, choice in own.items()}
                for name, own in shown.items()
            }
            labels = tuple((name, _filled(panel.label, own)) for name, own in worded.items())
            found.append(DrawnPanel(_filled(panel.title, next(iter(worded.values()))), labels))
    return tuple(found)


def selected(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """The names that one of the shell patterns matches; all of them without patterns.

    Raises:
        ConfigError: a pattern that matches none.
    """
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            meant = nearest(pattern.replace("*", ""), names)
            hint = f"did you mean {meant!r}?" if meant else f"there are {_some(names)}"
            raise ConfigError(f"--only: expected a pattern of curves, got {pattern!r}; {hint}")
    return [n for n in names if not patterns or any(fnmatchcase(n, p) for p in patterns)]


def _matches(wanted: Mapping[str, str | list[str]], choices: Choices) -> bool:
    return all(
        choices[part] in ([choice] if isinstance(choice, str) else choice)
        for part, choice in wanted.items()
    )


def _filled(text: str, choices: Choices) -> str:
    return _FIELD.sub(lambda match: choices[match.group(1)], text)


def _over(below: Table, above: Table) -> Table:
    """``above`` merged into ``below``; a table that names a kind replaces the one below it."""
    found = dict(below)
    for key, value in above.items():
        if not isinstance(value, dict):
            found[key] = value
            continue
        under = found.get(key)
        found[key] = _over(under if isinstance(under, dict) and "kind" not in value else {}, value)
    return found


def _known(where: str, name: str, known: Mapping[str, object]) -> None:
    if name not in known:
        meant = nearest(name, known)
        hint = f"; did you mean {meant!r}?" if meant else ""
        raise ConfigError(f"{where}: expected one of {sorted(known)}, got {name!r}{hint}")


def _some(names: Mapping[str, object] | Sequence[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")


def _one_line(error: ValidationError) -> str:
    found = error.errors(include_url=False)
    first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
    place = place_of(first["loc"], FigureFile)
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    text = f"{place.path}: {first['msg']}, got {short(first.get('input'))}"
    if first["type"] == "missing":
        text = f"{place.path}: required, but not given"
    if first["type"] == "extra_forbidden":
        owner = place_of(first["loc"][:-1], FigureFile)
        known = {name for model in owner.models for name in model.model_fields}
        meant = nearest(str(first["loc"][-1]), known)
        hint = f"did you mean {meant!r}?" if meant else f"expected one of {sorted(known)}"
        text = f"{place.path}: unknown key; {hint}"
    return " ".join(f"{text}{more}".split())
