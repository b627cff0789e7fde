"""Run audits and say what they found."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from app.audit.mechanisms import Audited, mechanisms, planted_faults, published_rsvrg
from privacy.audit import audit
from privacy.noise import NoiseSource

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Finding:
    """One audited mechanism: what is claimed and what an attack proves."""

    name: str
    claimed_epsilon: float
    epsilon_lower_bound: float
    delta: float
    trials: int
    attack: str

    @property
    def is_violated(self) -> bool:
        """Whether the attack proves the claim wrong (at 95 % confidence, over all audits)."""
        return self.epsilon_lower_bound > self.claimed_epsilon


def find(audited: Audited, confidence: float, *, scale: float = 1.0) -> Finding:
    """Attack one mechanism; ``scale`` multiplies its number of trials."""
    trials = max(40, int(audited.trials * scale))
    present, absent = audited.scores(trials, True), audited.scores(trials, False)  # noqa: FBT003
    verdict = audit(present, absent, delta=audited.delta, confidence=confidence)
    return Finding(
        audited.name,
        audited.claim(audited.delta),
        verdict.epsilon_lower_bound,
        audited.delta,
        trials,
        audited.attack,
    )


def family_confidence(count: int) -> float:
    """Each audit's confidence such that all ``count`` hold together at 95 % (Bonferroni)."""
    return 1.0 - (1.0 - CONFIDENCE) / count


def audit_all(
    seed: int, *, scale: float = 1.0, on_finding: Callable[[Finding], None] = lambda _: None
) -> dict[str, Any]:
    """Shipped mechanisms, planted faults and the published DP-RSVRG, as plain data."""
    source = NoiseSource.from_seed(seed)
    shipped, faults = mechanisms(source), planted_faults(source)
    published, _ = published_rsvrg(source)
    confidence = family_confidence(len(shipped) + len(faults) + 1)

    def run(group: Sequence[Audited]) -> list[Finding]:
        findings: list[Finding] = []
        for audited in group:
            findings.append(find(audited, confidence, scale=scale))
            on_finding(findings[-1])
        return findings

    good, bad, (printed,) = run(shipped), run(faults), run([published])
    return {
        "mechanisms": len(good),
        "violations": sum(f.is_violated for f in good),
        "planted_faults": len(bad),
        "planted_faults_caught": sum(f.is_violated for f in bad),
        "published_dp_rsvrg_violated": printed.is_violated,
        "findings": [asdict(f) | {"is_violated": f.is_violated} for f in [*good, *bad, printed]],
    }


def line(finding: Finding) -> str:
    """One finding as a line of a table."""
    mark = "VIOLATED" if finding.is_violated else "holds"
    return (
        f"{finding.name:26s} claimed {finding.claimed_epsilon:7.3f}  attack proves "
        f"{finding.epsilon_lower_bound:7.3f}  at delta {finding.delta:<7g} {mark}"
    )
