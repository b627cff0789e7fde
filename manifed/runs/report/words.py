"""The privacy statement in plain words: who is protected, from what, against whom, how much."""

import math
from collections.abc import Mapping
from typing import Any

from manifed.runs.report.chart import number

_UNITS = {
    "example": (
        "One example: one row of the data of one client. Somebody with many rows, or a client as a "
        "whole, is protected less: the bounds below are for one row."
    ),
    "client": (
        "One client: all rows of one client together, however many it has. What is protected is "
        "whether the client took part at all, and with what."
    ),
}
_RELATIONS = {
    "add-or-remove": (
        "Two data sets are neighbours when one has exactly one {unit} more than the other. The "
        "guarantee says that nobody can tell well whether that {unit} was there."
    ),
    "replace-one": (
        "Two data sets are neighbours when they differ in the contents of exactly one {unit}; how "
        "many there are is public. The guarantee says that nobody can tell well which contents it "
        "had."
    ),
}
_ADVERSARIES = {
    "server": (
        "The machine that coordinates the rounds, and whoever reads its disk. It knows who was "
        "asked in each round, so the chance that a client was left out does not help here."
    ),
    "external": (
        "Anybody outside who gets every model that was broadcast, but never learns who was asked. "
        "This bound holds only while the cohorts stay secret."
    ),
    "client-level": (
        "Anybody outside who gets every model that was broadcast. The server adds the noise itself "
        "and is trusted."
    ),
    "one-node": "Any single other participant, who sees every message and knows its own masks.",
    "coalition": (
        "Participants that put together what they know, with the server if they like. The masks "
        "between them hide nothing from them."
    ),
    "everybody": (
        "All other participants and the server together. Masks hide nothing; what protects a "
        "participant is its own noise."
    ),
    "published": (
        "The bound as the paper prints it. It is shown for comparison and does not hold for single "
        "examples."
    ),
}


def of_unit(privacy: Mapping[str, Any]) -> str:
    """Who is protected."""
    unit = privacy["unit"]
    return _UNITS.get(unit, f"One {unit}.")


def of_relation(privacy: Mapping[str, Any]) -> str:
    """From what: which two data sets cannot be told apart."""
    relation = str(privacy["neighboring_relation"])
    return _RELATIONS.get(relation, relation).format(unit=privacy["unit"])


def of_adversary(name: str) -> str:
    """Against whom."""
    return _ADVERSARIES.get(name, name)


def of_bound(epsilon: float | str, delta: float) -> str:
    """How much: what the best test of a suspicion can find, at one false alarm in twenty.

    Guarantee: of every (epsilon, delta)-DP release a test with false alarms a detects at most
    min(e^epsilon a + delta, 1 - (1 - delta - a) / e^epsilon).
    """
    if not isinstance(epsilon, int | float) or not math.isfinite(epsilon):
        return "There is no bound: no noise protects anybody here."
    alarms = 0.05
    odds = math.exp(min(epsilon, 700.0))
    found = min(odds * alarms + delta, 1 - (1 - delta - alarms) / odds, 1.0)
    factor = f"{odds:.3g}" if odds < 1e6 else f"10^{epsilon / math.log(10):.0f}"
    return (
        f"The odds of any suspicion change at most by the factor e^{epsilon:.3g} = {factor}, but "
        f"for a chance of {number(delta)}. Who accepts one false alarm in twenty finds at most "
        f"{100 * found:.3g} of 100 suspicions that are true; by guessing it would be 5."
    )
