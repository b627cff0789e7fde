r"""One-shot algorithms: each client releases one noised sum of statistics, the server solves.

Where a problem is a function of a few sums over the examples (`Problem.sufficient_statistic`), each
client can release those once, with the whole budget, and the server solves what is left. Clip,
noise and charge are those of one full-batch gradient query. Client updates see the problem's
statistic through the oracle alone; server states hold the mean statistic and the model it gives.

Symbols: s_j the statistic of example j, in coordinates of R^m in which its norm is the one that is
clipped; the upload is (1/N_i) sum_j clip(s_j) + N(0, stddev^2 I_m), ``state["mean"]`` the weighted
mean of the uploads. Invariant: the model is a function of ``state["mean"]`` and of public numbers.

Principal components from noised second moments: one release a client, then an eigenproblem.

Dwork, Talwar, Thakurta, Zhang: Analyze Gauss: Optimal Bounds for Privacy-Preserving Principal
Component Analysis (STOC 2014), Algorithm 1; here every client noises its own second moment
(example level), or the server noises the mean of theirs (client level). One round, one upload of
d(d+1)/2 numbers a client.

Symbols: A = sum_i w_i A_i with A_i = (1/N_i) sum_j z_j z_j^T, w_i = N_i / sum N_l; E the symmetric
noise; V_k state["x"], the k leading eigenvectors of A + E; C ``l2_norm_clip``, a bound of |z_j|^2.

Sensitivity (proofs in manifed/problems/statistics.py): one row moves A_i by C / N_i in the
Frobenius norm when it is added or removed, and by sqrt(2) C / N_i when it is replaced, because two
positive semidefinite matrices are never opposite. The paper noises the upper triangle with equal
variances; E here is the isotropic Gaussian on Sym(d) (variance sigma^2 on the diagonal and
sigma^2 / 2 beside it), which has the same price in Frobenius sensitivity and a spectral norm
smaller by sqrt(2). At client level an upload may be any symmetric matrix, so replace-one is charged
at 2 C.

How accurate it is: with n rows in all, c clients of equal size and noise multiplier m, an entry of
E beside the diagonal has the variance s^2 / 2 with s = m C sqrt(c) / n, and to first order in E the
cost of v_1 exceeds that of the optimum by sum_{i>1} E_{i1}^2 / (l_1 - l_i), about
(d - 1) s^2 / 2 / (l_1 - l_2) for eigenvalues l_i of A: second order in the noise.

Clipping the eigenvalues of A + E at zero is post-processing that changes no leading eigenvector of
a positive eigenvalue, so there is no such option here. Invariant: state["x"] is on the manifold.

The log-Euclidean mean of SPD matrices from one noised sum of logarithms of each client.

Arsigny, Fillard, Pennec, Ayache: Geometric Means in a Novel Vector Space Structure on Symmetric
Positive-Definite Matrices (2007), Theorem 3.13, with the Gaussian mechanism in the chart log: the
logarithm maps SPD matrices isometrically onto Sym(m), so the noise is the isotropic Gaussian of the
metric, drawn once. One round, one upload of m(m+1)/2 numbers a client.

Symbols: S_i = (1/N_i) sum_j log z_j, w_i = N_i / sum N_l, E the symmetric noise, C
``l2_norm_clip``, a bound of |log z_j|_F; state["x"] = exp(sum_i w_i S_i + E). Sensitivity (proofs
in manifed/problems/statistics.py): C / N_i, and 2 C / N_i when a matrix is replaced. The gap is
|E|_F^2 in expectation: m(m+1)/2 times the variance, whatever the data. Invariant: state["x"] is
positive definite.
"""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from manifed.algorithms.algorithm import Algorithm, Here, Phase, There, Weighting
from manifed.algorithms.payloads import Displacement, Payload, Point, State, SymmetricMean
from manifed.manifolds.base import Manifold
from manifed.manifolds.linalg import EXP, leading, sym_function, unpacked
from manifed.oracles.minibatch import Ask, Full
from manifed.oracles.noisy_oracle import Oracle
from manifed.problems.problem import Problem
from manifed.problems.statistics import APART, LogSums, SecondMoments


class OneShot(Algorithm):
    """Base of one-shot algorithms: a noised mean statistic goes up, the model follows from it."""

    weights: Weighting = "num-examples"
    """Weight of a client in the mean: its number of examples, or 1."""
    minibatch: Full = Full()
    """The examples of one step."""

    space = "ambient"
    noise_is = "Gaussian on the statistic of"
    up: ClassVar[type[Displacement]] = SymmetricMean
    """What goes up, a noised mean of per-example statistics; its layout is their size."""
    takes: ClassVar[type[Problem]]
    """The statistic that it is priced for, and solves."""
    solves: ClassVar[str]
    """The problems of a config that have it."""
    apart: ClassVar[float] = 2.0
    """How many clip norms two clipped ones are apart at most (replace-one)."""

    def solve(self, mean: Tensor, x: Tensor) -> Tensor:
        """Returns the model that a mean statistic (m,) gives, of the shape and type of x."""
        raise NotImplementedError

    # -- the client --------------------------------------------------------------------------
    @property
    def phases(self) -> tuple[Phase, ...]:
        """One exchange: a point down for its shape, a statistic up."""
        return (Phase("train", Point, self.up),)

    def client(self, x: Tensor, oracle: Oracle, here: Here) -> Payload:
        """Uploads the noised statistic; the point that came down only fixes shapes."""
        origin = self._zero(x, here.manifold.ndim)
        return self.up(oracle.statistic(origin, "statistic", self.takes))

    def _zero(self, x: Tensor, ndim: int) -> Tensor:
        """A statistic of zeros for every point of ``x``, which have so many dimensions."""
        shape = self.up.layout(tuple(x.shape[-ndim:]), x.dtype)["u"][0]
        return x.new_zeros(*x.shape[:-ndim], *shape)

    def asks(self) -> tuple[Ask, ...]:
        """Asks for one mean of statistics."""
        return (Ask(label="statistic", apart=self.apart),)

    def check(self, setting: Any) -> None:
        """Refuses more than one round, and a problem without the statistic that is released."""
        rounds = setting.federation.num_rounds
        if rounds > 1:
            raise ValueError(
                f"federation.num_rounds: training.kind = {self.kind!r} releases once, expected "
                f"1, got {rounds}"
            )
        problem = setting.problem
        if problem and not isinstance(problem.of_rows.sufficient_statistic, self.takes):
            raise ValueError(
                f"training.kind: {self.kind!r} solves problem.kind = "
                f"{self.solves}, got {setting.problem_name!r}; use training.kind = 'rsgd'"
            )

    # -- the server --------------------------------------------------------------------------
    def start(self, x: Tensor) -> State:
        """Returns the state before round 1, whose model is the start point."""
        return {"x": x, "mean": self._zero(x, x.dim())}

    def base(self, state: State, manifold: Manifold) -> Tensor:
        """Returns the mean statistic in the state, whose shape is that of the uploads."""
        return state["mean"]

    def server(self, state: State, mean: Tensor, here: There) -> State:
        """Stores the mean statistic and the model that it gives."""
        return {"x": self.solve(mean, state["x"]), "mean": mean}


class SecondMoment(OneShot):
    """One-shot principal components of the noised mean second moment."""

    kind: Literal["second-moment"] = "second-moment"

    takes = SecondMoments
    solves = "'principal-eigenvector' or 'kpca'"
    apart = APART

    def solve(self, mean: Tensor, x: Tensor) -> Tensor:
        """V_k: k leading eigenvectors for a frame x (d, k), one for a unit vector x (d,)."""
        count = x.shape[-1] if x.dim() == 2 else 1
        _, frame = leading(unpacked(mean).to(torch.float64), count)  # Algorithm 1, line 3
        return frame.reshape(x.shape).to(x.dtype)


class LogEuclidean(OneShot):
    """One-shot log-Euclidean mean."""

    kind: Literal["log-euclidean"] = "log-euclidean"

    takes = LogSums
    solves = "'frechet-mean' with problem.manifold = 'spd-log-euclidean'"

    def solve(self, mean: Tensor, x: Tensor) -> Tensor:
        """Returns the exponential of the mean logarithm, shape (m, m)."""  # Theorem 3.13
        return sym_function(unpacked(mean.to(x.dtype)), EXP)
