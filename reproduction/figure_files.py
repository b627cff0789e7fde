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
"""

import difflib
import re
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from manifed.errors import ConfigError, one_line

FIGURES = Path(__file__).resolve().parents[1] / "configs" / "figures"
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


class Axes(_Strict):
    """One row of a figure: a column of metrics.csv against another."""

    x: str = "round"
    y: str
    log: list[Literal["x", "y"]] = []
    least: float | None = None
    """Where y begins; None: below all curves."""


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
    drawing: Literal["panels", "disk", "budgets", "computed"] = "panels"
    runs_of: str | None = None
    """The figure whose curves this one draws, where ``drawing = "disk"``."""
    data: list[Literal["mnist"]] = []
    """What a computed figure reads below MANIFED_DATA."""
    seeds: int = Field(default=1, ge=1, le=1000)
    budgets: list[float] = []
    """Epsilons on the x axis, where ``drawing = "budgets"``."""
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
class FigureOf:
    """A figure file, read."""

    path: Path
    file: FigureFile
    choices: Mapping[str, Choices]
    """Of every curve by its name, in the order of the file's parts, last part fastest."""
    panels: tuple[tuple[str, Mapping[str, str]], ...]
    """Columns of the figure: a title, and what the legend calls each of its curves."""

    @property
    def figure(self) -> str:
        """Its name: 000-1 of 000_1.toml."""
        return self.path.stem.replace("_", "-")

    def table(self, curve: str) -> Table:
        """The raw config of one curve, to be parsed."""
        file = self.file
        choices = self.choices[curve]
        below = file.base or {}
        if isinstance(below, str):
            below = tomllib.loads((self.path.parent / below).read_text(encoding="utf-8"))
        found = _over({}, below)
        for part, choice in choices.items():
            found = _over(found, file.parts[part][choice])
        for rule in file.when:
            found = _over(found, rule.put) if _matches(rule.parts, choices) else found
        return {**found, "name": curve}

    def source(self, curve: str) -> Path:
        """A config file of one curve, which is there as long as this process.

        Raises:
            ConfigError: there is no such curve.
        """
        if curve not in self.choices:
            raise ConfigError(f"{self.path}: no curve {curve!r}{_meant(curve, self.choices)}")
        path = Path(_folder().name) / self.figure / f"{curve}.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(tomli_w.dumps(self.table(curve)), encoding="utf-8")
        return path


@lru_cache(maxsize=1)
def _folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="manifed-curves-")


@lru_cache(maxsize=256)
def read_figure(path: Path) -> FigureOf:
    """The figure of a file; its curves' configs are parsed by `load`.

    Raises:
        ConfigError: in one line, for a malformed file, an unknown key, part or choice, or two
            curves of one name.
    """
    try:
        file = FigureFile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        curves = {}
        for chosen in product(*file.parts.values()) if file.name else ():
            choices = dict(zip(file.parts, chosen, strict=True))
            name = (file.name or "").format_map(choices)
            if name in curves:
                raise ConfigError(f"{path}: name: {file.name!r} names two curves {name!r}")
            curves[name] = choices
        found = FigureOf(path, file, curves, tuple(_panels(file, curves)))
        for choices in curves.values():
            [_matches(rule.parts, choices) for rule in file.when]
        return found
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(one_line(f"{path}: {place}: {first['msg']}")) from None
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(one_line(f"{path}: expected a figure file: {error}")) from None
    except KeyError as error:
        raise ConfigError(f"{path}: expected a part or a choice of the file, got {error}") from None


def figure_named(name: str) -> FigureOf:
    """The figure 000-1 of configs/figures/000_1.toml, or that of a path.

    Raises:
        ConfigError: there is none.
    """
    path = Path(name) if name.endswith(".toml") else FIGURES / f"{name.replace('-', '_')}.toml"
    if not path.is_file():
        known = [other.stem.replace("_", "-") for other in FIGURES.glob("*.toml")]
        raise ConfigError(f"expected a figure, got {name!r}{_meant(name, known)}")
    return read_figure(path)


@lru_cache(maxsize=1)
def curves() -> dict[str, FigureOf]:
    """The figure that has a curve, by the curve's name."""
    figures = [read_figure(path) for path in sorted(FIGURES.glob("*.toml"))]
    return {curve: figure for figure in figures for curve in figure.choices}


def curve_path(name: str) -> Path:
    """A config file of the curve of a paper's figure; a path to a config itself.

    Raises:
        ConfigError: no figure has it.
    """
    if name.endswith(".toml"):
        return Path(name)
    if name not in curves():
        raise ConfigError(f"expected a curve of {FIGURES}, got {name!r}{_meant(name, curves())}")
    return curves()[name].source(name)


def _panels(
    file: FigureFile, curves: Mapping[str, Choices]
) -> "list[tuple[str, Mapping[str, str]]]":
    found = []
    for panel in file.panels:
        for chosen in product(*(file.parts[part] for part in panel.by)):
            only = dict(zip(panel.by, chosen, strict=True))
            worded = {
                name: {part: file.labels.get(choice, choice) for part, choice in own.items()}
                for name, own in curves.items()
                if _matches(panel.parts, own) and _matches(only, own)
            }
            if worded:
                title = _worded(panel.title, next(iter(worded.values())))
                found.append(
                    (title, {name: _worded(panel.label, own) for name, own in worded.items()})
                )
    return found


def _worded(text: str, choices: Choices) -> str:
    """A label with its parts filled in; braces of mathematics stay."""
    return re.sub(r"\{(\w+)\}", lambda match: choices.get(match[1], match[0]), text)


def _matches(wanted: Mapping[str, str | list[str]], choices: Choices) -> bool:
    return all(
        choices[part] in ([choice] if isinstance(choice, str) else choice)
        for part, choice in wanted.items()
    )


def _over(below: Table, above: Table) -> Table:
    """``above`` merged into ``below``; a table that names a kind replaces the one below it."""
    found = dict(below)
    for key, value in above.items():
        under = found.get(key)
        if isinstance(value, dict):
            kept = under if isinstance(under, dict) and "kind" not in value else {}
            found[key] = _over(kept, value)
        else:
            found[key] = value
    return found


def _meant(name: str, known: Iterable[str]) -> str:
    meant = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {meant[0]!r}?" if meant else ""
