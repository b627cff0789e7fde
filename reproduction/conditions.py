"""The conditions of the theorems on schedules, one by one: what holds, by how much, what fails.

Wang and Zhang (2024), *Time-Varying Sample Sizes*: Theorems 2 to 7, Assumptions 4 and 5,
Corollaries 1 to 3. Exponents are compared as the decimals they are written as, so a case on the
boundary is on the boundary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from manifed.schedules import TimeVarying
from reproduction.powers import polynomial, power_of


@dataclass(frozen=True)
class Condition:
    """One inequality: ``text`` names it, ``margin`` is by how much it holds."""

    text: str
    margin: float
    holds: bool


@dataclass(frozen=True)
class Check:
    """The conditions of one theorem."""

    source: str
    claim: str
    conditions: tuple[Condition, ...]
    rate: float | None = None
    """The exponent r of a proved O(k^-r), where the theorem gives one; at most 0 says nothing."""

    @property
    def holds(self) -> bool:
        """Whether every condition does."""
        return all(condition.holds for condition in self.conditions)

    @property
    def failing(self) -> tuple[Condition, ...]:
        """Those that do not."""
        return tuple(one for one in self.conditions if not one.holds)

    @property
    def margin(self) -> float:
        """The least one."""
        return min(one.margin for one in self.conditions)


@dataclass(frozen=True)
class ProblemConstants:
    """What Assumptions 4 and 5 ask of problem and graph."""

    strong_convexity: float
    """mu."""
    smoothness: float
    """L, of which L^2 is the sum of the nodes' L_i^2."""
    second_singular_value: float
    """sigma_2 of the mixing weights."""
    num_nodes: int


@dataclass(frozen=True)
class Exponents:
    """alpha_k = a_step / k^alpha, beta_k = a1 / k^beta, gamma_k = k^gamma, sigma_k = k^eta."""

    alpha: Fraction
    beta: Fraction
    gamma: Fraction
    eta: Fraction
    a1: Fraction
    a2: Fraction

    @classmethod
    def of(cls, schedules: TimeVarying) -> "Exponents":
        """The exponents of four power laws.

        Raises:
            ValueError: naming the schedule that is none.
        """
        laws = []
        for name in ("step_size", "mixing", "sample_size", "noise_scale"):
            schedule = getattr(schedules, name)
            laws.append(power_of(schedule))
            if laws[-1] is None:
                raise ValueError(
                    f"{name}: expected a power law for the conditions, got {schedule!r}"
                )
        step, mixing, size, noise = laws
        return cls(
            -_exact(step.exponent), -_exact(mixing.exponent), _exact(size.exponent),
            _exact(noise.exponent), _exact(mixing.scale), _exact(mixing.offset),
        )  # fmt: skip


def theorem_2(schedules: TimeVarying) -> Check:
    """A finite total epsilon of output perturbation, the case that applies."""
    e = Exponents.of(schedules)
    if e.beta < 1:
        case = "(iii)"
        last = _finite_output(e)
    elif e.alpha + e.gamma - e.a1 < 1:
        case = "(i)"
        last = _more("alpha + gamma + eta > 2", e.alpha + e.gamma + e.eta, 2)
    else:
        case = "(ii)"
        last = _more("a1 + eta > 1", e.a1 + e.eta)
    ranges = [
        found
        for name, value in (("beta", e.beta), ("alpha", e.alpha))
        for found in (_more(f"{name} > 0", value, 0), _at_least(f"{name} <= 1", 1 - value))
    ]
    return Check(
        f"Theorem 2 {case}",
        "Algorithm 1: finite epsilon",
        (
            *ranges,
            _at_least("gamma >= 0", e.gamma),
            _at_least("eta >= 0", e.eta),
            _is_a_step(e),
            last,
        ),
    )


def theorem_5(schedules: TimeVarying) -> Check:
    """A finite total epsilon of gradient perturbation."""
    e = Exponents.of(schedules)
    finite = _more("gamma + eta > 1", e.gamma + e.eta)
    return Check("Theorem 5", "Algorithm 2: finite epsilon", (finite,))


def gaussian_sums(schedules: TimeVarying) -> tuple[Check, Check]:
    """The twins of Theorems 2 (iii) and 5 for Gaussian noise: rho, a sum of squares, is finite."""
    e = Exponents.of(schedules)
    output = 2 * (e.alpha + e.gamma - e.beta + e.eta)
    return (
        Check("Gaussian twin of Theorem 2 (iii)", "Algorithm 1: finite rho", (
            _more("1 - beta > 0", 1 - e.beta, 0),
            _more("2 (alpha + gamma - beta + eta) > 1", output),
        )),
        Check("Gaussian twin of Theorem 5", "Algorithm 2: finite rho", (
            _more("2 (gamma + eta) > 1", 2 * (e.gamma + e.eta)),
        )),
    )  # fmt: skip


def assumption_4(schedules: TimeVarying, of: ProblemConstants | None = None) -> Check:
    """Under which Theorem 3 proves that Algorithm 1 converges."""
    e = Exponents.of(schedules)
    sums = {
        "2 alpha - beta": 2 * e.alpha - e.beta,
        "2 beta - 2 eta": 2 * e.beta - 2 * e.eta,
        "2 alpha - beta + gamma": 2 * e.alpha - e.beta + e.gamma,
        "2 alpha + gamma": 2 * e.alpha + e.gamma,
    }
    return _convergence("Assumption 4", "Algorithm 1 converges (Theorem 3)", schedules, sums, of)


def assumption_5(schedules: TimeVarying, of: ProblemConstants | None = None) -> Check:
    """Under which Theorem 6 proves that Algorithm 2 converges."""
    e = Exponents.of(schedules)
    sums = {
        "2 alpha - beta": 2 * e.alpha - e.beta,
        "2 alpha - beta + gamma": 2 * e.alpha - e.beta + e.gamma,
        "2 alpha - beta - 2 eta": 2 * e.alpha - e.beta - 2 * e.eta,
        "2 alpha + gamma": 2 * e.alpha + e.gamma,
        "2 alpha - 2 eta": 2 * e.alpha - 2 * e.eta,
    }
    return _convergence("Assumption 5", "Algorithm 2 converges (Theorem 6)", schedules, sums, of)


def theorem_4(schedules: TimeVarying, strong_convexity: float = 1.0) -> Check:
    """The rate of Algorithm 1."""
    e = Exponents.of(schedules)
    rate = min(3 * e.beta - 2 * e.alpha - 2 * e.eta, e.alpha - e.beta)
    if e.alpha == 1:
        first = e.a1 * _exact(strong_convexity) - 1 + e.beta
        rate = min(first, 3 * e.beta - 2 * e.eta - 2, 1 - e.beta)
    most = _at_least("eta <= (3 beta - 2) / 2", (3 * e.beta - 2) / 2, e.eta)
    return Check("Theorem 4", "Algorithm 1: rate", (*_ordered(e), most), float(rate))


def theorem_7(schedules: TimeVarying, strong_convexity: float = 1.0) -> Check:
    """The rate of Algorithm 2."""
    e = Exponents.of(schedules)
    rate = min(e.beta - 2 * e.eta, e.alpha - e.beta - 2 * e.eta)
    if e.alpha == 1:
        rate = min(e.a1 * _exact(strong_convexity) - 1 + e.beta, rate)
    least = min(e.beta, e.alpha - e.beta) / 2
    most = _at_least("eta <= min(beta, alpha - beta) / 2", least, e.eta)
    return Check("Theorem 7", "Algorithm 2: rate", (*_ordered(e), most), float(rate))


def corollary_1(schedules: TimeVarying) -> Check:
    """Algorithm 1 converges in mean square at a finite total epsilon."""
    e = Exponents.of(schedules)
    rate = theorem_4(schedules)
    return Check(
        "Corollary 1",
        "Algorithm 1: convergence and finite epsilon",
        (_is_a_step(e), _finite_output(e), *rate.conditions),
        rate.rate,
    )


def corollary_2(schedules: TimeVarying) -> Check:
    """Algorithm 2 converges in mean square at a finite total epsilon."""
    rate = theorem_7(schedules)
    return Check(
        "Corollary 2",
        "Algorithm 2: convergence and finite epsilon",
        (*theorem_5(schedules).conditions, *rate.conditions),
        rate.rate,
    )


def corollary_3(accuracy: float, a1: float = 0.5) -> tuple[TimeVarying, float, Check]:
    """The schedules for an accuracy, the exponent of their sample cost, and their privacy.

    Cost O(accuracy^-exponent). gamma + eta = 2 accuracy < 1: the total epsilon is infinite.

    Raises:
        ValueError: unless 0 < accuracy < 1/8.
    """
    if not 0 < accuracy < 0.125:
        raise ValueError(f"accuracy: expected a number in (0, 1/8), got {accuracy:g}")
    one = _exact(accuracy)
    schedules = polynomial(
        a1=a1, alpha=float(1 - one), beta=float(Fraction(1, 2) + one), gamma=accuracy, eta=accuracy
    )
    return schedules, float((1 + one) / (Fraction(1, 2) - 4 * one)), theorem_5(schedules)


def checks(
    schedules: TimeVarying, algorithm: str, of: ProblemConstants | None = None
) -> list[Check]:
    """All that the paper, and its Gaussian twin, say of an algorithm with these schedules."""
    mu = 1.0 if of is None else of.strong_convexity
    output, gradient = gaussian_sums(schedules)
    if algorithm == "output":
        return [theorem_2(schedules), output, assumption_4(schedules, of),
                theorem_4(schedules, mu), corollary_1(schedules)]  # fmt: skip
    return [theorem_5(schedules), gradient, assumption_5(schedules, of),
            theorem_7(schedules, mu), corollary_2(schedules)]  # fmt: skip


def _exact(value: float) -> Fraction:
    """The decimal that a number is written as."""
    return Fraction(repr(float(value)))


def _more(text: str, left: Fraction, right: int | Fraction = 1) -> Condition:
    return Condition(text, float(left - right), left > right)


def _at_least(text: str, left: Fraction, right: int | Fraction = 0) -> Condition:
    return Condition(text, float(left - right), left >= right)


def _finite_output(e: Exponents) -> Condition:
    return _more("alpha + gamma - beta + eta > 1", e.alpha + e.gamma - e.beta + e.eta)


def _ordered(e: Exponents) -> tuple[Condition, ...]:
    return (
        _more("beta > 0", e.beta, 0),
        _more("beta < alpha", e.alpha, e.beta),
        _at_least("alpha <= 1", 1 - e.alpha),
        _at_least("eta >= 0", e.eta),
        _at_least("gamma >= 0", e.gamma),
    )


def _is_a_step(e: Exponents) -> Condition:
    most = float(e.a2) ** float(e.beta)
    return Condition("a1 < a2^beta", most - float(e.a1), float(e.a1) < most)


def _convergence(
    source: str,
    claim: str,
    schedules: TimeVarying,
    sums: Mapping[str, Fraction],
    of: ProblemConstants | None,
) -> Check:
    """The printed sums, and what the proofs of Theorems 3 and 6 need beside them.

    With the bound of sup alpha_k / beta_k where constants are given, which is met at k = 0 where
    the ratio does not grow.
    """
    e = Exponents.of(schedules)
    conditions = [
        _at_least("alpha <= 1, so that the steps sum to infinity", 1 - e.alpha),
        _at_least("beta <= alpha, so that step / mixing does not grow", e.alpha, e.beta),
        *(_more(f"{text} > 1", left) for text, left in sums.items()),
    ]
    if of is None:
        return Check(f"{source}, its sums alone", claim, tuple(conditions))
    a = schedules.step_size(0)
    b = schedules.mixing(0)
    gap = 1 - of.second_singular_value
    mu = of.strong_convexity
    square = of.smoothness**2
    below = 16 * (6 * square * a + of.num_nodes * gap * mu * b) * (b + 1) * square
    most = min(2 * gap / (3 * mu), gap**2 * mu**2 * b / below)
    text = "sup alpha_k / beta_k <= min(2 (1 - sigma_2) / (3 mu), ...)"
    return Check(source, claim, (*conditions, Condition(text, most - a / b, a / b <= most)))
