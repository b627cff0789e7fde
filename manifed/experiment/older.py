"""Configs in the run folders of older releases, in today's keys."""

from collections.abc import Mapping
from typing import Any

_TIED = {
    "projection-mean": ("server_step_size", "tube_radius"),
    "projection-mean-partial": ("server_step_size", "tube_radius"),
    "variance-reduced": ("server_step_size", "weights"),
}
"""Server updates that stood in a table of their own, and the keys that moved to ``training``."""


def in_todays_keys(table: Mapping[str, Any]) -> dict[str, Any]:
    """The same experiment: a tied algorithm is named once, and maps are the client update's."""
    training, strategy = dict(table.get("training") or {}), dict(table.get("strategy") or {})
    if training.get("kind") == "federated-svrg":
        training["kind"] = "rfedsvrg"
    strategy.pop("maps", None)
    moved = _TIED.get(strategy.get("kind", ""))
    if moved is not None:
        training |= {key: strategy[key] for key in moved if key in strategy}
        strategy = {}
    return {**table, "training": training, "strategy": strategy or None}
