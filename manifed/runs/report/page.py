"""The report as one HTML file that needs nothing beside it: no network, no script to be read.

The default is what may be published. It is made from `published` alone: an allow-list on top of
runs/report/public.py. It drops what depends, in any run, on who was drawn or who replied: bytes,
replies, failures and seconds. The server's view adds them under a watermark: whoever shows them
gives up the secrecy of the sample.

Everything that a run folder says enters the template as text: it is escaped there, and a policy in
the page's head allows no script but the page's own.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from manifed.errors import ConfigError
from manifed.experiment.evaluation import HELD_OUT
from manifed.experiment.schema import Experiment
from manifed.privacy.account import ledger_key
from manifed.privacy.charges import RESERVED
from manifed.privacy.ledger import Entry, Ledger
from manifed.runs.report import public, words
from manifed.runs.report.chart import Chart, Line, number
from manifed.runs.report.figures import FIGURES, LINEAR, figures_of
from manifed.runs.report.public import (
    config_of,
    is_private,
    public_run,
    server_run,
    spending_of,
)
from manifed.runs.report.runs import Run, curves_of, flat, names_of
from manifed.runs.statement import label_in_manifest, statement_of, verdict

NAME = "report.html"
SHOWN = (*public.MANIFEST, "started", "machine", "code_sha256")
"""Keys of a manifest that a page may show, where `public_run` left them."""
MEASURED = (*public.COLUMNS, *public.ORACLE, *HELD_OUT, "epsilon")
"""Columns of metrics that a page may show, where `public_run` left them."""
FIGURES_OF_PAGE = (
    *FIGURES,
    ("held_out_loss", "round"),
    ("held_out_accuracy", "round"),
    ("consensus_distance", "round"),
)
LABELS = {
    "cost": "cost f(x)",
    "relative_cost_gap": "relative cost gap (f(x) − f*) / |f*|",
    "gradient_norm": "gradient norm ‖grad f(x)‖",
    "held_out_loss": "loss on held-out examples, with noise",
    "held_out_accuracy": "accuracy on held-out examples, with noise",
    "consensus_distance": "distance between the nodes' models",
    "round": "round",
    "uploads": "matrices sent by a client",
    "epsilon": "ε spent",
}
_ON_LINES = {*LINEAR, "held_out_loss", "held_out_accuracy"}
_NOT_REPEATED = ("engine", "output")
"""Tables of a config that say where it ran; a repetition names its own."""


def published(run: Run) -> Run:
    """What the page shows unless it is told to show more."""
    found = public_run(run)
    manifest = {key: found.manifest[key] for key in SHOWN if key in found.manifest}
    if "final" in manifest:
        manifest["final"] = {**manifest["final"], "seconds": None}
    config = dict(manifest.get("config") or {})
    config.pop("output", None)
    data = {key: value for key, value in (config.get("data") or {}).items() if key != "paths"}
    config |= {"data": data} if "data" in config else {}
    manifest["config"] = config
    columns = {key: values for key, values in found.columns.items() if key in MEASURED}
    return replace(run, manifest=manifest, columns=columns)


def page_of(runs: Sequence[Run], *, is_server_view: bool = False) -> str:
    """The HTML of a report.

    Guarantees: without ``is_server_view`` two runs of one config whose rounds drew other cohorts,
    or had other replies, have the same page, but for what was measured of their models, for epsilon
    under masks, which counts silent nodes, and for the curves of a private evaluation, which are
    left out where one had no answer.

    Raises:
        FileNotFoundError, FolderDamaged, LedgerDamaged, ConfigError: as `public_run`.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    shown = [server_run(run) if is_server_view else published(run) for run in runs]
    names = names_of(shown)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    told = [
        _told(run, name, place, is_server_view=is_server_view)
        for place, (run, name) in enumerate(zip(shown, names, strict=True), start=1)
    ]
    text = environment.get_template("page.html").render(
        runs=told,
        charts=[chart.drawn() for chart in charts_of(shown)],
        is_server_view=is_server_view,
        title=_title(shown, names),
    )
    return _with_policy(text)


def _with_policy(text: str) -> str:
    """The page with the hashes of its own style and script in its policy."""
    hashes: dict[str, str] = {}
    for tag in ("style", "script"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        hashes[tag] = f"'sha256-{digest}'"
    policy = f"default-src 'none'; style-src {hashes['style']}; script-src {hashes['script']}"
    return text.replace("POLICY-OF-THIS-PAGE", policy, 1)


def _title(runs: Sequence[Run], names: Sequence[str]) -> str:
    own = list(dict.fromkeys(run.name for run in runs))
    if len(runs) == 1:
        return names[0]
    return f"{len(runs)} runs: {', '.join(own[:4])}{' …' if len(own) > 4 else ''}"


# -- the charts over all runs --------------------------------------------------------------------
def charts_of(runs: Sequence[Run]) -> list[Chart]:
    """One chart for each pair of columns that has something to show."""
    charts: list[Chart] = []
    for (y, x), curves in figures_of(curves_of(runs), FIGURES_OF_PAGE).items():
        lines = [_line(place, curve.label, *curve.values(x, y)) for place, curve in curves]
        title = f"{LABELS[y].partition(' (')[0]} against {LABELS[x]}"
        charts.append(
            Chart(
                f"{y}-by-{x}".replace("_", "-"),
                title[0].upper() + title[1:],
                LABELS[x],
                LABELS[y],
                lines,
                is_log=y not in _ON_LINES,
            )
        )
    return charts


def _line(place: int, label: str, x: Any, rows: Any) -> Line:
    if len(rows) == 1:
        return Line(label, x.tolist(), rows[0].tolist(), place=place)
    mean, low, high = rows.mean(axis=0), rows.min(axis=0), rows.max(axis=0)
    return Line(label, x.tolist(), mean.tolist(), low.tolist(), high.tolist(), place)


def _spending(run: Run, place: int, *, is_server_view: bool) -> dict[str, Any] | None:
    """Epsilon against rounds for each adversary, drawn."""
    rows = spending_of(run)
    names = [name for name in (rows[0] if rows else ()) if name != "round"]
    lines = [
        Line(name, [row["round"] for row in rows], [row[name] for row in rows], place=i)
        for i, name in enumerate(names)
        if all(np.isfinite(row[name]) for row in rows)
    ]
    column = run.columns.get("epsilon")
    if is_server_view and lines and column is not None and np.isfinite(column).all():
        rounds, label = run.columns["round"].tolist(), f"{names[0]}, realised"
        lines.append(Line(label, rounds, column.tolist(), place=len(lines)))
    if not lines or len(rows) < 2:
        return None
    title = "What is spent against each adversary, round by round"
    return Chart(f"spending-{place}", title, "round", "ε", lines, from_zero=True).drawn()


# -- one run -------------------------------------------------------------------------------------
def _told(run: Run, name: str, place: int, *, is_server_view: bool) -> dict[str, Any]:
    """Everything that the template says of one run."""
    manifest, privacy = run.manifest, run.manifest.get("privacy")
    config = _config_of(run)
    private = privacy if is_private(manifest) else None
    return {
        "place": place,
        "name": name,
        "is_finished": bool(run.final),
        "rounds": run.final.get("rounds", run.last("round")),
        "stopped": manifest.get("stopped"),
        "gap": run.final.get("relative_cost_gap", run.last("relative_cost_gap")),
        "gradient": run.final.get("gradient_norm", run.last("gradient_norm")),
        "facts": _facts(manifest, config),
        "label": label_in_manifest(manifest, run.last("epsilon")),
        "verdict": verdict(privacy or {"kind": "none"}),
        "is_release": verdict(privacy or {"kind": "none"}).startswith("RELEASE"),
        "privacy": None if private is None else _privacy(private),
        "statement": statement_of(privacy or {"kind": "none"}),
        "spending": _spending(run, place, is_server_view=is_server_view),
        "traffic": _traffic(manifest, config),
        "environment": _environment(manifest),
        "settings": _settings(manifest.get("config") or {}, config),
        "toml": _toml(manifest.get("config") or {}),
        "command": f"manifed run {_file_name(run.name)}",
        "file": _file_name(run.name),
        "commit": (manifest.get("git") or {}).get("commit"),
        "has_seed": "seed" in ((manifest.get("config") or {}).get("federation") or {}),
        "server": _server_facts(run) if is_server_view else None,
    }


def _config_of(run: Run) -> Experiment | None:
    """The config, where today's schema still reads it."""
    try:
        return config_of(run)
    except ConfigError:
        return None


def _facts(manifest: Mapping[str, Any], config: Experiment | None) -> list[tuple[str, str]]:
    """What ran, in a few lines."""
    table = manifest.get("config") or {}
    rows = [("description", table.get("description") or "")]
    rows += [
        (word, str((table.get(word) or {}).get("kind") or ""))
        for word in ("problem", "data", "training", "strategy")
    ]
    if config is not None:
        federation = config.federation
        cohort = federation.cohort
        rows += [
            ("clients", f"{federation.num_clients}"),
            ("cohort", f"{cohort.kind}, {cohort.expected_size(federation.num_clients):g} expected"),
            ("rounds planned", f"{federation.num_rounds}"),
        ]
    rows += [
        ("engine", str(manifest.get("engine") or "")),
        ("started", manifest.get("started", "")),
    ]
    return [(word, value) for word, value in rows if value]


def _privacy(privacy: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "unit": privacy["unit"],
        "unit_words": words.of_unit(privacy),
        "relation": privacy["neighboring_relation"],
        "relation_words": words.of_relation(privacy),
        "adversaries": [
            {**one, "words": words.of_adversary(one["name"]), "remark": one.get("remark"),
             "bound": None if one["name"] == "published"
             else words.of_bound(one["epsilon"], one["delta"])}
            for one in privacy["adversaries"]
        ],
    }  # fmt: skip


def _traffic(manifest: Mapping[str, Any], config: Experiment | None) -> list[tuple[str, str]]:
    """What the config makes clients send: planned, whoever was drawn."""
    one = (manifest.get("work") or {}).get("communication_per_client")
    if one is None:
        return []
    rows = [
        ("exchanges a round", f"{one['phases']}"),
        ("a client sends in a round", f"{one['matrices_up']} matrices, {_bytes(one['bytes_up'])}"),
        (
            "a client gets in a round",
            f"{one['matrices_down']} matrices, {_bytes(one['bytes_down'])}",
        ),
    ]
    if config is not None:
        federation = config.federation
        count = federation.cohort.expected_size(federation.num_clients) * federation.num_rounds
        whole = f"{_bytes(count * one['bytes_up'])} up, {_bytes(count * one['bytes_down'])} down"
        rows.append((f"expected of all {federation.num_rounds} rounds", whole))
    return rows


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"


def _environment(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    git = manifest.get("git") or {}
    rows: list[tuple[str, Any]] = list((manifest.get("versions") or {}).items())
    rows += [(f"machine: {key}", value) for key, value in (manifest.get("machine") or {}).items()]
    changed = " (with changes that are not committed)" if git.get("is_dirty") else ""
    rows.append(("commit", f"{git['commit']}{changed}" if git.get("commit") else None))
    rows += [(key, manifest.get(key)) for key in ("code_sha256", "config_sha256")]
    return [(key.replace("_", " "), str(value)) for key, value in rows if value is not None]


def _settings(table: Mapping[str, Any], config: Experiment | None) -> list[dict[str, Any]]:
    """Every key of the config with its value, and whether that is the default."""
    defaults = {} if config is None else dict(_defaults(config))
    rows: list[dict[str, Any]] = []
    for key, value in flat(table):
        default = defaults.get(key, ())
        differs = bool(default) and _value(default[0]) != _value(value)
        is_required = not default and config is not None
        rows.append(
            {
                "key": key,
                "value": _value(value),
                "default": _value(default[0]) if default else None,
                "differs": differs,
                "is_required": is_required,
                "is_given": differs or not default,
            }
        )
    return rows


def _defaults(model: BaseModel, prefix: str = "") -> Iterable[tuple[str, tuple[Any, ...]]]:
    """Every key below ``model`` with its default, or () where it has to be given."""
    for name, info in type(model).model_fields.items():
        value, key = getattr(model, name), f"{prefix}{name}"
        if isinstance(value, BaseModel):
            yield from _defaults(value, f"{key}.")
        elif name == "kind" or info.is_required():
            yield key, ()
        else:
            yield key, (info.get_default(call_default_factory=True),)


def _value(value: Any) -> str:
    """A value as a config would have it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, BaseModel):
        return str(getattr(value, "kind", value))
    if isinstance(value, tuple | list):
        return f"[{', '.join(_value(one) for one in value)}]"
    return str(float(value)) if isinstance(value, float) else str(value)


def _toml(table: Mapping[str, Any]) -> str:
    """The config as a file that ``manifed run`` reads."""
    import tomli_w

    kept = {key: value for key, value in table.items() if key not in _NOT_REPEATED}
    return tomli_w.dumps(_without_none(kept))


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_none(one) for one in value if one is not None]
    return value


def _file_name(name: str) -> str:
    """The name of a run as a file's: what a shell takes as one plain word."""
    return (re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "experiment")[:80] + ".toml"


# -- what only the server may see ----------------------------------------------------------------
def _server_facts(run: Run) -> dict[str, Any]:
    """Who was asked, who failed, and what that cost in bytes and seconds."""
    manifest = run.manifest
    replies = manifest.get("replies") or {}
    parts = manifest.get("seconds_by_part") or {}
    rows = [
        ("usable replies", _count(run.total("participants"))),
        ("failures", _count(run.total("failures"))),
        *((f"failures: {kind}", str(n)) for kind, n in (replies.get("by_kind") or {}).items()),
        ("bytes sent by clients", _bytes(run.total("bytes_up") or 0)),
        ("bytes sent to clients", _bytes(run.total("bytes_down") or 0)),
        ("seconds from start to end", number(run.final.get("seconds"))),
        *((f"seconds: {part}", number(seconds)) for part, seconds in parts.items()),
        ("command as it was given", str(manifest.get("command_line") or "–")),
        ("folder", str(run.directory)),
    ]
    missed = [
        (client, kind, ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in stretches))
        for client, kinds in (replies.get("missed") or {}).items()
        for kind, stretches in kinds.items()
    ]
    return {"rows": rows, "missed": missed, "asked": _asked(run.directory / "ledger.jsonl")}


def _asked(path: Path) -> list[tuple[str, str]]:
    """The rounds and the clients that were asked in them, as the ledger has them."""
    found: list[tuple[str, str]] = []

    def feed(entry: Entry) -> None:
        if entry.kind == RESERVED:
            first, last = entry.body["rounds"]
            rounds = f"{first}" if first == last else f"{first} to {last}"
            found.append((rounds, str(entry.body["cohort"]) or "nobody"))

    if path.is_file():
        Ledger.verify(path, key=ledger_key(), feed=feed)
    return found


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"
