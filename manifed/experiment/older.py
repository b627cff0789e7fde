"""Configs in the run folders of older releases, in today's keys."""

import copy
from collections.abc import Mapping
from typing import Any

_TIED = {
    "projection-mean": ("server_step_size", "tube_radius"),
    "projection-mean-partial": ("server_step_size", "tube_radius"),
    "variance-reduced": ("server_step_size", "weights"),
}
"""Server updates that stood in a table of their own, and the keys that moved to ``training``."""
RENAMED = {"privacy.noise.view": "adversary"}
"""Keys that only changed their name, and what each is called now."""


def in_todays_keys(table: Mapping[str, Any]) -> dict[str, Any]:
    """The same experiment: a tied algorithm is named once, and maps are the client update's."""
    tables = [table.get(key) or {} for key in ("training", "strategy")]
    if not all(isinstance(found, Mapping) for found in tables):
        return dict(table)  # no config of any release: the schema says what is wrong with it
    training, strategy = map(dict[str, Any], tables)
    if training.get("kind") == "federated-svrg":
        training["kind"] = "rfedsvrg"
    strategy.pop("maps", None)
    moved = _TIED.get(str(strategy.get("kind")))
    if moved is not None:
        training |= {key: strategy[key] for key in moved if key in strategy}
        strategy = {}
    found = _renamed(table) | {"training": training, "strategy": strategy}
    return found if strategy else {key: found[key] for key in found if key != "strategy"}


def _renamed(table: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = copy.deepcopy(dict(table))
    for place, new in RENAMED.items():
        *ways, old = place.split(".")
        node: Any = found
        for key in ways:
            node = node.get(key) if isinstance(node, dict) else None
        if isinstance(node, dict) and old in node and new not in node:
            node[new] = node.pop(old)
    return found
