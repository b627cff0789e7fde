"""Run audits and say what they found."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from manifed.audit.attack import Audited
from manifed.audit.masked import masked_faults, masked_mechanisms
from manifed.audit.mechanisms import mechanisms, planted_faults, published_rsvrg
from manifed.audit.streams import stream_faults, stream_mechanisms
from manifed.privacy.audit import Verdict, audit
from manifed.privacy.noise import NoiseSource

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Finding:
    """One audited mechanism, and what its attack proved."""

    audited: Audited
    trials: int
    """Runs on each dataset."""
    verdict: Verdict


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
    return Finding(audited, trials, verdict)


def find_strongest(attacks: Sequence[Audited], **given: float) -> tuple[Finding, list[Finding]]:
    """The attack that proves the largest share of the claim, and all of them in order."""
    confidence = family_confidence(len(attacks))
    found = [find(attack, confidence, **given) for attack in attacks]
    return max(found, key=lambda finding: finding.verdict.power), found


def family_confidence(count: int) -> float:
    """Each audit's confidence such that all ``count`` hold together at 95 % (Bonferroni)."""
    return 1.0 - (1.0 - CONFIDENCE) / count


def audit_all(
    seed: int, *, scale: float = 1.0, on_finding: Callable[[Finding], None] = lambda _: None
) -> dict[str, Any]:
    """Shipped mechanisms, planted faults and the published DP-RSVRG, as plain data."""
    source = NoiseSource.from_seed(seed)
    shipped = [*mechanisms(source), *masked_mechanisms(source), *stream_mechanisms(source)]
    faults = [*planted_faults(source), *masked_faults(source), *stream_faults(source)]
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
        "violations": sum(f.verdict.is_violated for f in good),
        "planted_faults": len(bad),
        "planted_faults_caught": sum(f.verdict.is_violated for f in bad),
        "weakest_power": min(f.verdict.power for f in good),
        "weak": [f.audited.name for f in good if f.verdict.is_weak],
        "published_dp_rsvrg_violated": printed.verdict.is_violated,
        "findings": [plain(f) for f in [*good, *bad, printed]],
    }


def plain(finding: Finding) -> dict[str, Any]:
    """A finding as data."""
    verdict = finding.verdict
    return {
        "name": finding.audited.name,
        "claimed_epsilon": verdict.claimed_epsilon,
        "epsilon_lower_bound": verdict.epsilon_lower_bound,
        "delta": verdict.delta,
        "trials": finding.trials,
        "attack": finding.audited.how,
        "power": verdict.power,
        "is_violated": verdict.is_violated,
        "is_weak": verdict.is_weak,
    }


def line(name: str, verdict: Verdict) -> str:
    """What was found of one mechanism, as a line of a table."""
    mark = "VIOLATED" if verdict.is_violated else "weak" if verdict.is_weak else "holds"
    return (
        f"{name:26s} claimed {verdict.claimed_epsilon:7.3f}  attack proves "
        f"{verdict.epsilon_lower_bound:7.3f}  power {verdict.power:5.2f}  "
        f"at delta {verdict.delta:<7g} {mark}"
    )
