"""What other people's code, configs and folders rely on, as one JSON file.

    python -m tests.house.stability [--write]

Prints what differs from tests/house/stability.json: names of the stable API with their parameters,
keys of a config with type and default, and the formats of files that outlive a release. The test
`tests/house/test_stability.py` fails where they differ; a difference on purpose is written with
--write and stands in CHANGELOG.md. docs/stability.md says what is promised.
"""

import argparse
import difflib
import importlib
import inspect
import json
import re
import runpy
import sys
from pathlib import Path

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
    "manifed.flower.strategies.secure_mean:SecureMean",
    "manifed.flower.strategies.gossip:Gossip",
    "manifed.flower.strategies.projection_mean:ProjectionMean",
    "manifed.flower.strategies.tangent_mean:TangentMean",
)
"""Classes that are derived from, or used by name, outside of this repository."""


def parameters(function):
    """Each parameter of a function, with ``*`` for one that is given by name and its default."""
    found = []
    for one in inspect.signature(function).parameters.values():
        star = "*" if one.kind is one.KEYWORD_ONLY else ""
        default = (
            "" if one.default is one.empty else "=" + re.sub(r" at 0x\w+", "", f"{one.default!r}")
        )
        found.append(star + one.name + default)
    return found


def members(cls):
    """What a class takes, and its public methods and properties that are ours."""
    found = {"__init__": parameters(cls)}
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


def api():
    """Names of the stable API."""
    manifed = importlib.import_module("manifed")
    places = [*(f"manifed:{name}" for name in sorted(manifed.__all__)), *CLASSES, *FUNCTIONS]
    return {place.replace(":", "."): shape(object_at(place)) for place in places}


def object_at(place):
    """What ``module:name`` names."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def shape(value):
    """The members of a class, the parameters of a function, what a package has of its own."""
    if inspect.ismodule(value):
        homes = {name: getattr(getattr(value, name), "__module__", "") for name in dir(value)}
        own = value.__name__
        return [name for name in sorted(homes) if homes[name].startswith(own) and name[0] != "_"]
    return members(value) if isinstance(value, type) else parameters(value)


def config_keys():
    """Type and default of each key of a config, from the reference page that the schema writes."""
    page = runpy.run_path(str(ROOT / "docs" / "reference" / "write_config.py"))["page"](
        is_short=False
    )
    return dict(_keys(page))


def _keys(page):
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


def formats():
    """Formats of ledgers and run folders: numbers, and the fields of a ledger's line."""
    from manifed.runs import folder

    return {
        "ledger": LEDGER_FORMAT,
        "run folder": folder.FORMAT,
        "ledger entry": without_words(Entry.model_json_schema()),
    }


def without_words(value):
    """A JSON schema without its descriptions, which are docstrings and may change."""
    if isinstance(value, list):
        return [without_words(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        key: without_words(part)
        for key, part in value.items()
        if not (key == "description" and isinstance(part, str))
    }


def everything():
    """The snapshot, as JSON holds it."""
    said = {"api": api(), "config": config_keys(), "formats": formats()}
    return json.loads(json.dumps(said))


def written(snapshot):
    """The snapshot as it stands in the file."""
    return json.dumps(snapshot, indent=1, sort_keys=True)


def differences(before, now):
    """Lines of the file that went (-) or came (+), with the lines around them."""
    both = (written(one).splitlines() for one in (before, now))
    return list(difflib.unified_diff(*both, "promised", "found", lineterm="", n=12))


def main():
    """Print the differences, or write the snapshot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="take what is now as promised")
    given = parser.parse_args()
    now = everything()
    if given.write:
        SNAPSHOT.write_text(written(now) + "\n")
        return 0
    lines = differences(json.loads(SNAPSHOT.read_text()), now)
    print("\n".join(lines) or "The stable API, the config keys and the formats are as promised.")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
