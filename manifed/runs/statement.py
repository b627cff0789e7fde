"""The privacy statement: the last lines a run prints, and the ``privacy`` entry of its manifest."""

from collections.abc import Mapping
from typing import Any

from manifed.privacy import events

RELEASE = "RELEASE: the noise is keyed by the operating system and was not stored."
KEPT = (
    "RELEASE: the noise is keyed by the operating system; every client keeps its draws of earlier "
    "rounds in its memory, and who reads them can subtract it."
)
DECLARED = (
    "RELEASE: every client declares that its noise is keyed by its own operating system; the "
    "server never saw a key and cannot check that."
)
SENTENCES = {
    events.NOT_PRIVATE: "NOT PRIVATE: no noise was added; every bound below would be infinite.",
    events.SEEDED: (
        "SEEDED RUN: the noise is keyed by the config's seed, so anybody who has the config can "
        "subtract it. This run protects nobody; the numbers say what the same run would cost with "
        "privacy.noise_source = 'os'."
    ),
    events.PLANNED: (
        "PLANNED: no noise was drawn yet; the run itself says whether it was a release."
    ),
    events.UNKNOWN: (
        "UNKNOWN: nothing that can be believed says where all of the noise came from; nobody may "
        "rely on the numbers below."
    ),
}
"""What a label means where the noise is no release's."""


def verdict(privacy: Mapping[str, Any]) -> str:
    """One sentence for the statement's label (`manifed.privacy.events`, with the guarantee)."""
    kept = KEPT if privacy.get("kept_noise") else RELEASE
    is_clients = privacy["kind"] != "client-level"  # else the noise is this server's own
    told = DECLARED if is_clients and privacy.get("is_declared") else kept
    return SENTENCES.get(label_in(privacy), told)


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
    for one in privacy["adversaries"]:
        remark = f" [{one['remark']}]" if one.get("remark") else ""
        price = f"({said(one['epsilon'])}, {one['delta']:g})-DP"
        lines.append(f"  {one['name']}: {price} against {one['text']}{remark}")
    if privacy.get("kept_noise"):
        lines.append(f"  kept at every client: {privacy['kept_noise']}")
    lines += [f"  note: {note}" for note in (*privacy["notes"], *privacy.get("doubts", ()))]
    return "\n".join(lines)


def said(value: object) -> str:
    """Four digits of a number; what does not apply, is not known or may not be shown as "-"."""
    if value is None or value != value:  # noqa: PLR0124  # a NaN
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
