"""Run audits and say what they found."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from manifed.audit.attack import Audited
from manifed.audit.mechanisms import mechanisms, planted_faults, published_rsvrg
from manifed.privacy.audit import WEAK, audit
from manifed.privacy.noise import NoiseSource

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

    @property
    def power(self) -> float:
        """Proved over claimed."""
        return self.epsilon_lower_bound / self.claimed_epsilon

    @property
    def is_weak(self) -> bool:
        """Whether the attack proves so little that it would miss a fault of a factor of two."""
        return self.power < WEAK


def find(audited: Audited, confidence: float, *, scale: float = 1.0) -> Finding:
    """Attack one mechanism; ``scale`` multiplies its number of trials."""
    trials = max(60, int(audited.trials * scale))
    verdict = audit(
        audited.attack.scores(trials, is_present=True),
        audited.attack.scores(trials, is_present=False),
        claim=audited.claim,
        deltas=audited.deltas,
        confidence=confidence,
    )
    return Finding(
        audited.name,
        verdict.claimed_epsilon,
        verdict.epsilon_lower_bound,
        verdict.delta,
        trials,
        audited.how,
    )


def find_strongest(attacks: Sequence[Audited], **given: float) -> tuple[Finding, list[Finding]]:
    """The attack that proves the largest share of the claim, and all of them in order."""
    confidence = family_confidence(len(attacks))
    found = [find(attack, confidence, **given) for attack in attacks]
    return max(found, key=lambda finding: finding.power), found


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
        "weakest_power": min(f.power for f in good),
        "weak": [f.name for f in good if f.is_weak],
        "published_dp_rsvrg_violated": printed.is_violated,
        "findings": [plain(f) for f in [*good, *bad, printed]],
    }


def plain(finding: Finding) -> dict[str, Any]:
    """A finding as data."""
    verdicts = {"power": finding.power, "is_violated": finding.is_violated}
    return asdict(finding) | verdicts | {"is_weak": finding.is_weak}


def line(finding: Finding) -> str:
    """One finding as a line of a table."""
    mark = "VIOLATED" if finding.is_violated else "weak" if finding.is_weak else "holds"
    return (
        f"{finding.name:26s} claimed {finding.claimed_epsilon:7.3f}  attack proves "
        f"{finding.epsilon_lower_bound:7.3f}  power {finding.power:5.2f}  "
        f"at delta {finding.delta:<7g} {mark}"
    )
