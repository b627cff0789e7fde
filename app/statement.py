"""The privacy statement: the last lines a run prints, and the ``privacy`` entry of its manifest."""

from collections.abc import Mapping
from typing import Any

REHEARSAL = (
    "REHEARSAL: the noise is keyed by the config's seed, so anybody who has the config can "
    "subtract it. This run protects nobody; the numbers say what the same run would cost with "
    "privacy.noise_source = 'os'."
)
RELEASE = "RELEASE: the noise is keyed by the operating system and was not stored."
NOT_PRIVATE = "NOT PRIVATE: no noise was added; every bound below would be infinite."


def verdict(privacy: Mapping[str, Any]) -> str:
    """One sentence: release, rehearsal or not private. A seeded run can't read as a release."""
    if privacy["kind"] == "none":
        return NOT_PRIVATE
    return RELEASE if privacy["noise_source"] == "os" else REHEARSAL


def statement_of(privacy: Mapping[str, Any]) -> str:
    """The statement as text, one fact a line."""
    lines = ["privacy statement", f"  {verdict(privacy)}"]
    if privacy["kind"] == "none":
        return "\n".join(lines)
    lines.append(f"  unit: one {privacy['unit']}; neighbours: {privacy['neighboring_relation']}")
    lines.append(f"  released: {privacy['released']}")
    lines.append(f"  noise: {privacy['mechanism']}")
    lines += [_view(view) for view in privacy["views"]]
    lines += [f"  note: {note}" for note in privacy["notes"]]
    return "\n".join(lines)


def _view(view: Mapping[str, Any]) -> str:
    epsilon = view["epsilon"]
    shown = f"{epsilon:.4g}" if isinstance(epsilon, float | int) else str(epsilon)
    remark = f" [{view['remark']}]" if view.get("remark") else ""
    return f"  {view['view']}: ({shown}, {view['delta']:g})-DP against {view['adversary']}{remark}"
