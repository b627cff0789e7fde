"""The text of the privacy statement, and the ``privacy`` entry of a manifest."""

from manifed.fields import Values
from manifed.privacy.events import Label, label_of

SENTENCES = {
    Label.RELEASE: "RELEASE: the noise is keyed by the operating system and was not stored.",
    "kept": (
        "RELEASE: the noise is keyed by the operating system; every client keeps its draws of "
        "earlier rounds in its memory, and who reads them can subtract it."
    ),
    "declared": (
        "RELEASE: every client declares that its noise is keyed by its own operating system; the "
        "server never saw a key and cannot check that."
    ),
    Label.NOT_PRIVATE: "NOT PRIVATE: no noise was added; every bound below would be infinite.",
    Label.SEEDED: (
        "SEEDED RUN: the noise is keyed by the config's seed, so whoever has the config can "
        "subtract it. This run protects nobody; the numbers say what the same run would cost with "
        "privacy.noise_source = 'os'."
    ),
    Label.PLANNED: (
        "PLANNED: no noise was drawn yet; the run itself says whether it was a release."
    ),
    Label.UNKNOWN: (
        "UNKNOWN: nothing that can be believed says where all of the noise came from; nobody may "
        "rely on the numbers below."
    ),
}
"""What each label means; of a release also whether draws are kept, or keys were only declared."""


def verdict(privacy: Values) -> str:
    """Returns the sentence for a statement's label and guarantee (`manifed.privacy.events`)."""
    label = label_in(privacy)
    if label == Label.RELEASE:
        is_clients = privacy["kind"] != "client-level"  # else the noise is this server's own
        kept = "kept" if privacy.get("kept_noise") else label
        label = "declared" if is_clients and privacy.get("is_declared") else kept
    return SENTENCES[label]


def label_in(privacy: Values) -> Label:
    """Returns the label of a statement, from what it says of its noise; else its own word."""
    if privacy.get("label") == Label.UNKNOWN:
        return Label.UNKNOWN
    return label_of(
        privacy.get("noise_source"),
        privacy.get("noise_origins", ()),
        is_charged=False,
        is_private=privacy["kind"] != "none",
    )


def headline(privacy: Values) -> str:
    """Returns a statement in a few words: its label, and the first adversary's epsilon."""
    said: str = label_in(privacy)
    for one in privacy.get("adversaries", ())[:1]:
        said += f"; ({one['epsilon']:.3g}, {one['delta']:g})-DP against {one['name']}"
        said += f", for each {privacy['unit']}"
    return said


def statement_of(privacy: Values) -> str:
    """Returns the statement as text, one fact per line."""
    lines = ["privacy statement", f"  {verdict(privacy)}"]
    if privacy["kind"] == "none":
        return "\n".join(lines)
    lines.append(f"  unit: one {privacy['unit']}; neighbours: {privacy['neighboring_relation']}")
    lines.append(f"  released: {privacy['released']}")
    lines.append(f"  noise: {privacy['mechanism']}")
    floats = f"  floating point: {privacy['floating_point']}"
    if "normals" in floats:
        floats += "; the bounds below assume exact Gaussians (docs/deployment.md, platforms)"
    lines.append(floats)
    for one in privacy["adversaries"]:
        remark = f" [{one['remark']}]" if one.get("remark") else ""
        price = f"({said(one['epsilon'])}, {one['delta']:g})-DP"
        lines.append(f"  {one['name']}: {price} against {one['text']}{remark}")
    if privacy.get("kept_noise"):
        lines.append(f"  kept at every client: {privacy['kept_noise']}")
    lines += [f"  note: {note}" for note in (*privacy["notes"], *privacy.get("doubts", ()))]
    return "\n".join(lines)


def said(value: object) -> str:
    """Returns a number in four digits; "-" for one that is unknown or may not be shown."""
    if value is None or value != value:  # noqa: PLR0124  # a NaN
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
