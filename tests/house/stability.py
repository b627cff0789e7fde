"""What other people's code, configs and folders rely on, as one JSON file.

    python -m tests.house.stability [--write]

Prints what differs from tests/house/stability.json: names of the stable API with their parameters,
keys of a config with type and default, and the formats of files that outlive a release. The test
`tests/house/test_stability.py` fails where they differ; a difference on purpose is written with
--write and stands in CHANGELOG.md. docs/stability.md says what is promised.
"""

import argparse
import importlib
import inspect
import json
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from manifed.privacy.ledger import FORMAT as LEDGER_FORMAT
from manifed.privacy.ledger import Entry

ROOT = Path(__file__).resolve().parents[2]
SNAPSHOT = Path(__file__).with_suffix(".json")
FUNCTIONS = ("manifed.flower.clients.local_training:client_app",)
CLASSES = (
    "manifed.algorithms.algorithm:ClientUpdate",
    "manifed.algorithms.algorithm:ServerUpdate",
    "manifed.manifolds.base:Manifold",
    "manifed.problems.data:DataSource",
    "manifed.problems.data:PartitionRule",
    "manifed.problems.problem:Problem",
    "manifed.problems.problem:ProblemSource",
    "manifed.flower.strategies.any_update:AnyUpdate",
    "manifed.flower.strategies.control_variates:ControlVariates",
    "manifed.flower.strategies.gossip:Gossip",
    "manifed.flower.strategies.masked_mean:MaskedMean",
    "manifed.flower.strategies.projection_mean:ProjectionMean",
    "manifed.flower.strategies.tangent_mean:TangentMean",
)
"""Classes that are derived from, or used by name, outside of this repository."""


def parameters(function: Any) -> list[str]:
    """Each parameter of a function, with ``*`` for one that is given by name and its default."""
    found: list[str] = []
    for one in inspect.signature(function).parameters.values():
        star = "*" if one.kind is one.KEYWORD_ONLY else ""
        default = (
            "" if one.default is one.empty else "=" + re.sub(r" at 0x\w+", "", f"{one.default!r}")
        )
        found.append(star + one.name + default)
    return found


def members(cls: type) -> dict[str, Any]:
    """What a class takes, and its public methods and properties that are ours."""
    found: dict[str, Any] = {"__init__": parameters(cls)}
    for owner in reversed(cls.__mro__):
        if owner.__module__.split(".")[0] != "manifed":
            continue
        for name, value in vars(owner).items():
            function = getattr(value, "__func__", value)
            if inspect.isfunction(function) and not name.startswith("_"):
                found[name] = parameters(function)
            elif isinstance(value, property) and not name.startswith("_"):
                found[name] = "property"
    return dict(sorted(found.items()))


def api() -> dict[str, Any]:
    """Names of the stable API."""
    manifed = importlib.import_module("manifed")
    places = [*(f"manifed:{name}" for name in sorted(manifed.__all__)), *CLASSES, *FUNCTIONS]
    return {place.replace(":", "."): shape(object_at(place)) for place in places}


def object_at(place: str) -> Any:
    """What ``module:name`` names."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def shape(value: Any) -> Any:
    """The members of a class, the parameters of a function."""
    return members(value) if isinstance(value, type) else parameters(value)


def config_keys() -> dict[str, str]:
    """Type and default of each key of a config, from the reference page that the schema writes."""
    page = runpy.run_path(str(ROOT / "docs" / "reference" / "write_config.py"))["page"]()
    return dict(_keys(page))


def _keys(page: str) -> Iterator[tuple[str, str]]:
    table = kind = ""
    for line in page.splitlines():
        if heading := re.match(r"##+ (.*)", line):
            table = heading[1]
            kind = ""
        elif line.startswith("Keys of every kind"):
            kind = ""
        elif named := re.match(r'\*\*`kind = "(.*?)"`\*\*', line):
            kind = f"[{named[1]}]"
        elif key := re.match(r"\| `(\w+)` \| (.*?) \| (.*?) \|", line):
            yield f"{table}{kind}.{key[1]}", f"{key[2]} = {key[3]}"


def formats() -> dict[str, Any]:
    """Formats of ledgers and run folders: numbers, and the fields of a ledger's line."""
    from manifed.runs import folder

    return {
        "ledger": LEDGER_FORMAT,
        "run folder": folder.FORMAT,
        "ledger entry": Entry.model_json_schema(),
    }


def everything() -> dict[str, Any]:
    """The snapshot, as JSON holds it."""
    said = {"api": api(), "config": config_keys(), "formats": formats()}
    return json.loads(json.dumps(said))


def flat(value: Any, place: str = "") -> dict[str, str]:
    """Leaves of nested tables by their path."""
    if not isinstance(value, dict):
        return {place: json.dumps(value)}
    found: dict[str, str] = {}
    for key, part in value.items():
        found |= flat(part, f"{place} / {key}" if place else key)
    return found


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """A line for each leaf that went, came or changed."""
    old = flat(before)
    new = flat(now)
    gone = [f"gone:    {key} = {old[key]}" for key in old.keys() - new.keys()]
    fresh = [f"new:     {key} = {new[key]}" for key in new.keys() - old.keys()]
    both = [key for key in old.keys() & new.keys() if old[key] != new[key]]
    changed = [f"changed: {key}: {old[key]} -> {new[key]}" for key in both]
    return sorted(gone) + sorted(changed) + sorted(fresh)


def main() -> int:
    """Print the differences, or write the snapshot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="take what is now as promised")
    given = parser.parse_args()
    now = everything()
    if given.write:
        SNAPSHOT.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
        return 0
    lines = differences(json.loads(SNAPSHOT.read_text()), now)
    print("\n".join(lines) or "The stable API, the config keys and the formats are as promised.")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
