"""The privacy statement: the last lines a run prints, and the ``privacy`` entry of its manifest."""

from collections.abc import Mapping
from typing import Any

from manifed.privacy import events

SEEDED = (
    "SEEDED RUN: the noise is keyed by the config's seed, so anybody who has the config can "
    "subtract it. This run protects nobody; the numbers say what the same run would cost with "
    "privacy.noise_source = 'os'."
)
RELEASE = "RELEASE: the noise is keyed by the operating system and was not stored."
KEPT = (
    "RELEASE: the noise is keyed by the operating system; every client keeps its draws of earlier "
    "rounds in its memory, and who reads them can subtract it."
)
DECLARED = (
    "RELEASE: every client declares that its noise is keyed by its own operating system; the "
    "server never saw a key and cannot check that."
)
UNDECLARED = (
    "UNKNOWN: nothing that can be believed says where all of the noise came from; nobody may rely "
    "on the numbers below."
)
PLANNED = "PLANNED: no noise was drawn yet; the run itself says whether it was a release."
_NOT_PRIVATE = "NOT PRIVATE: no noise was added; every bound below would be infinite."

_SENTENCES = {
    events.NOT_PRIVATE: _NOT_PRIVATE,
    events.SEEDED: SEEDED,
    events.PLANNED: PLANNED,
    events.UNKNOWN: UNDECLARED,
}


def verdict(privacy: Mapping[str, Any]) -> str:
    """One sentence for the statement's label (`manifed.privacy.events`, with the guarantee)."""
    said = _SENTENCES.get(label_in(privacy))
    if said is not None:
        return said
    is_clients = privacy["kind"] != "client-level"  # else the noise is this server's own
    if is_clients and privacy.get("is_declared", False):
        return DECLARED
    return KEPT if privacy.get("kept_noise") else RELEASE


def label_in(privacy: Mapping[str, Any]) -> str:
    """The label of a statement, from what it says of its noise; its own word counts if unknown."""
    if privacy.get("label") == events.UNKNOWN:
        return events.UNKNOWN
    return events.label_of(
        privacy.get("noise_source"),
        privacy.get("noise_origins", ()),
        is_charged=False,
        is_private=privacy["kind"] != "none",
    )


def label_in_manifest(manifest: Mapping[str, Any], epsilon: object = None) -> str:
    """The label of a manifest's statement; an epsilon without a statement is of unknown noise."""
    privacy = manifest.get("privacy")
    if privacy is None:
        return events.NOT_PRIVATE if epsilon is None else events.UNKNOWN
    return label_in(privacy)


def statement_of(privacy: Mapping[str, Any]) -> str:
    """The statement as text, one fact a line."""
    lines = ["privacy statement", f"  {verdict(privacy)}"]
    if privacy["kind"] == "none":
        return "\n".join(lines)
    lines.append(f"  unit: one {privacy['unit']}; neighbours: {privacy['neighboring_relation']}")
    lines.append(f"  released: {privacy['released']}")
    lines.append(f"  noise: {privacy['mechanism']}")
    lines.append(
        f"  floating point: {privacy['floating_point']}; the bounds below assume exact Gaussians "
        "(docs/deployment.md, platforms)"
    )
    lines += [_line(one) for one in privacy["adversaries"]]
    if privacy.get("kept_noise"):
        lines.append(f"  kept at every client: {privacy['kept_noise']}")
    lines += [f"  note: {note}" for note in (*privacy["notes"], *privacy.get("doubts", ()))]
    return "\n".join(lines)


def _line(one: Mapping[str, Any]) -> str:
    epsilon = one["epsilon"]
    shown = f"{epsilon:.4g}" if isinstance(epsilon, float | int) else str(epsilon)
    remark = f" [{one['remark']}]" if one.get("remark") else ""
    return f"  {one['name']}: ({shown}, {one['delta']:g})-DP against {one['text']}{remark}"
