"""Reads a Flower app without importing it, and prices what its privacy settings really buy.

Of a folder its pyproject.toml and the syntax trees of its Python files are read. A name counts
wherever it stands, whatever package it comes from, and under the name that an import gives it.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

from manifed.errors import ConfigError, named_by
from manifed.experiment.load import parse_overrides, read_toml
from manifed.privacy.foreign import DPSGD, Adaptive, Fixed, Local

CODES = {
    "L1": "sqrt(2 ln(1.25 / delta)) / epsilon is proved below epsilon 1 and buys less above some 8",
    "L2": "epsilon is of one round and rounds add up; use guard_mod, whose ledger has a limit",
    "L3": "any two data sets differ by twice the clip, sensitivity is less; set 2 clipping_norm",
    "L4": "0-d arrays are not clipped, nor noised by a mod: epsilon is infinite; use guard_mod",
    "L5": "integer arrays or an unchanged model raise, NaN passes the clip; send zeros for them",
    "W1": "a weight is the client's word and may be all of it; use guard (else set share)",
    "W2": "noise comes after a strategy whose step is no mean: no bound; use guard around it",
    "W3": "fewer replies each count more under the same noise; use guard",
    "W4": "a replaced client moves the mean by twice the clip: half the multiplier; double it",
    "W5": "the clip moves away from its quantile; use a fixed one, or guard(adaptive=...)",
    "W6": "a client's bit moves by 1, the split of noise assumes 1/2; use AdaptiveClip of manifed",
    "W7": "the clip is the client's word, its norm the server's; use guard at the server",
    "W8": "a seed of global generators predicts noise and cohorts; use guard, which draws its own",
    "M1": "metrics and num-examples leave without noise; use guard or guard_mod, or drop them",
    "M2": "BatchNorm's statistics are data and eat the clip; use GroupNorm, or guard(frozen=...)",
    "O1": "an engine made in each fit tells that fit's epsilon; use guard(declares=DPSGD(...))",
    "R1": "Renyi bounds are not tight; use manifed.flower.accountant.Accountant",
}
"""What each finding says and what to do."""
_MARKS = {
    "L4": r"\w*BatchNorm\w*|(Parameter|register_buffer|ArrayRecord)\(.*"
    r"((tensor|array|float\d+)\(-?[\d.]|(zeros|ones|empty|randn?)\((\(\)|\[\])).*",
    "M1": "MetricRecord",
    "M2": r"\w*BatchNorm\w*",
    "O1": "PrivacyEngine",
    "R1": r"R[dD][pP]Accountant",
    "W4": "WITHOUT_REPLACEMENT",
    "W7": r"\w+clipping_mod|DifferentialPrivacyClientSide\w+",
    "W8": r"seed\(.*",
    "guard": r"guard(_mod)?\(.*",
}
"""The names that a code is found by; L4: BatchNorm has a counter, and what makes a 0-d array."""
_KINDS: dict[str, tuple[type[Local | Fixed | DPSGD], str, str, str]] = {
    "local": (
        Local,
        r"LocalDpMod\(",
        "clipping_norm sensitivity epsilon delta",
        "L1 L2 L3 L5 M1 W8",
    ),
    "fixed": (
        Fixed,
        r"DifferentialPrivacy\w+FixedClipping\(",
        "strategy noise_multiplier clipping_norm num_sampled_clients",
        "L5 M1 W2 W1 W3 W4 W8",
    ),
    "adaptive": (
        Adaptive,
        r"DifferentialPrivacy\w+AdaptiveClipping\(",
        "strategy noise_multiplier num_sampled_clients initial_clipping_norm _ _ "
        "clipped_count_stddev",
        "L5 M1 W2 W1 W3 W4 W5 W6 W8",
    ),
    "opacus": (DPSGD, r"make_private\w*\(", "", "O1"),
}
"""Settings, the name of the call, its positional arguments, and the codes of all of its kind."""
_MEANS = {"FedAvg", "FedProx", "FedAvgM"}
"""Strategies whose step is the mean of the updates."""


def audited(
    path: Path | None, kind: str | None, sets: Sequence[str], **named: Any
) -> dict[str, Any]:
    """Returns prices by wrapper and findings by code, of a folder or of settings alone.

    ``sets`` and ``named`` are settings that take the place of those of the app; None: none.

    Raises:
        ConfigError: for a folder that is no app, settings that only a run tells, and wrong ones.
    """
    with named_by(path, RecursionError):
        found, marks = ([(kind, "--wrapper", {})], {}) if kind else _read(path or Path())
    told = {name: one for name, one in named.items() if one is not None}
    wrappers = list[Any]()
    rows = list[Any]()
    for name, place, said in found:
        model, _, _, codes = _KINDS[name]
        given = {key: value for key, value in said.items() if key in model.model_fields}
        if inner := said.get("strategy"):
            given["inner"] = str(inner)
        with named_by(f"{place}: give --set NAME=VALUE", ConfigError):
            one = model(**given | parse_overrides("\n".join(sets)) | told)
        if isinstance(one, Fixed) and said.get("accountant"):
            codes = codes.replace("W1 W3 W4", "")  # it asks for equal weights and all replies
            one = one.model_copy(update={"share": 1 / one.num_sampled_clients})
        if not isinstance(one, Fixed) or one.inner in _MEANS:
            codes = codes.replace("W2", "")
        if isinstance(one, Local) and one.sensitivity >= 2 * one.clipping_norm:
            codes = codes.replace("L3", "")
        marks = dict.fromkeys(codes.split(), place) | marks
        is_open = "W2" in codes or ("L4" in marks and name != "opacus")
        wrappers.append(
            {"place": place, "kind": name}
            | one.model_dump(exclude_none=True)
            | {"needed_noise_multiplier": one.noise_multiplier, "remedy": _remedy(one)}
        )
        hidden = one.hidden()
        for neighbours, spent in one.prices().items():
            others = inf if is_open else spent
            server = inf if isinstance(one, Fixed) else others
            outsider = inf if is_open else hidden[neighbours]
            at = {"place": place, "neighbours": neighbours, "server": server}
            rows.append(at | {"who_sees_cohorts": others, "outsider": outsider})
    if "guard" in marks:  # what a wrapper beside it does is found by its own name
        marks = {code: at for code, at in marks.items() if code not in {"L4", "M1", "M2", "W8"}}
    beside = {*marks} - {"L4", "W8"}
    codes = [code for code in CODES if code in (marks if rows else beside)]
    findings = [{"code": code, "place": marks[code], "text": CODES[code]} for code in codes]
    return {"wrappers": wrappers, "prices": rows, "findings": findings}


def _remedy(one: Local | Fixed | DPSGD) -> str:
    """The call that gives what the settings promise."""
    noise = f"noise_multiplier={one.noise_multiplier:.4g}, delta={one.delta:g}, ledger=PATH)"
    if isinstance(one, Local):
        return f"guard_mod(clip={one.clipping_norm:g}, max_epsilon={one.epsilon:g}, {noise}"
    if isinstance(one, Fixed):
        size = f"population=N, clients_per_round={one.num_sampled_clients}"
        return f"guard(strategy, {size}, clip={one.clipping_norm:g}, {noise}"
    return f"guard(strategy, population=N, clip=C, declares={one!r}, {noise}"


def _read(folder: Path) -> tuple[list[Any], dict[str, str]]:
    """The wrappers of an app with their settings, and the codes that names show."""
    nodes = list[tuple[str, ast.AST]]()
    with named_by(
        f"{folder}: expected a readable Flower app", OSError, SyntaxError, ValueError, KeyError
    ):
        config = read_toml(folder / "pyproject.toml")["tool"]["flwr"]["app"].get("config", {})
        for file in sorted(folder.rglob("*.py")):
            if "/." in (at := f"/{file.relative_to(folder)}"):
                continue
            tree = ast.parse(file.read_bytes(), at)
            nodes += [(f"{at[1:]}:{getattr(node, 'lineno', 0)}", node) for node in ast.walk(tree)]
    said = defaultdict[str, set[str]](set)
    said |= {f"'{key}'": {repr(one)} for key, one in config.items()}
    known = dict[str, str]()
    for _, node in nodes:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=given)
                | ast.keyword(arg="num_rounds" as name, value=given)
            ):
                text = ast.unparse(given)
                said[name] |= {text} - {name} if "Privacy" not in text else set()
            case ast.alias(name=name, asname=str(other)):
                known[other] = name
            case _:
                pass

    def value(text: str, depth: int = 9) -> Any:
        # a name, or context.run_config["key"], perhaps within float(...)
        key = re.fullmatch(
            r"(?:(?:int|float)\()?[\w.]*?(?:\[|\.get\()?('[^']+'|\w+)(?:, .*)?[\])]*", text
        )
        if key and depth and len(texts := said[key[1]]) == 1:
            return value(*texts, depth=depth - 1)
        with suppress(ValueError, SyntaxError):
            return ast.literal_eval(text)
        return text if "server_" in text else text.partition("(")[0].rpartition(".")[2]

    found = list[Any]()
    marks = dict[str, str]()
    for place, node in nodes:
        if not isinstance(node, ast.Name | ast.Attribute | ast.Call):
            continue
        name, *rest = re.split(r"(?=\()", ast.unparse(node), maxsplit=1)
        name = name.rpartition(".")[2]
        text = "".join([known.get(name, name), *rest])
        for code, pattern in _MARKS.items():
            if re.fullmatch(pattern, text, re.DOTALL):
                marks.setdefault(code, place)
        for kind, (_, pattern, names, _) in _KINDS.items():
            if isinstance(node, ast.Call) and re.match(pattern, text):
                given = dict(zip(names.split(), node.args, strict=False))
                given |= {str(one.arg): one.value for one in node.keywords}
                settings = {key: value(ast.unparse(one)) for key, one in given.items()}
                found.append((kind, place, {"num_rounds": value("num_rounds"), **settings}))
    return found, marks
