"""The papers' synthetic recipes, each a pure function of its sizes and a numpy generator.

Recipes that draw per client return rows and the client each row was drawn for (``sources``), in
client order, so that the ``natural`` partition gives every client its own.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Sources = NDArray[np.int64]

_LOWEST_ACCEPTANCE = 1e-3


def orthonormal(rows: int, columns: int, rng: np.random.Generator) -> Array:
    """A Haar matrix with orthonormal columns, shape (rows, columns)."""
    q, r = np.linalg.qr(rng.standard_normal((rows, columns)))
    return q * np.where(np.diagonal(r) < 0, -1.0, 1.0)


def eigengap(
    num_clients: int,
    rows: int,
    d: int,
    rng: np.random.Generator,
    *,
    gap: float = 1e-3,
    is_shared_basis: bool = False,
) -> tuple[Array, Sources]:
    """PriRFed section 6.1: rows z of Z_i = U_i S_i V_i, shape (num_clients * rows, d).

    S_i = diag(1, 1 - 1.1 gap, ..., 1 - 1.4 gap, |y_1|/d, |y_2|/d, ...), y standard normal; U_i and
    V_i have random orthonormal columns. As written every client has its own V_i, so the leading
    directions are unrelated; ``is_shared_basis`` gives all clients one V.
    """
    leading = np.array([1.0, *(1.0 - factor * gap for factor in (1.1, 1.2, 1.3, 1.4))])
    if rows < d or d < len(leading):
        raise ValueError(
            f"Expected rows >= d >= {len(leading)} (U_i has d orthonormal columns), "
            f"got rows={rows}, d={d}"
        )
    shared = orthonormal(d, d, rng)
    blocks: list[Array] = []
    for _ in range(num_clients):
        tail = np.abs(rng.standard_normal(d - len(leading))) / d
        basis = shared if is_shared_basis else orthonormal(d, d, rng)
        spectrum = np.concatenate([leading, tail])
        blocks.append((orthonormal(rows, d, rng) * spectrum) @ basis)
    return np.concatenate(blocks), _sources(num_clients, rows)


def growing_variance(
    num_clients: int, rows: int, d: int, rng: np.random.Generator
) -> tuple[Array, Sources]:
    """Projected FL section A.4: client i's entries are i.i.d. N(0, variance 2i/num_clients)."""
    stddev = np.sqrt(2.0 * np.arange(1, num_clients + 1) / num_clients)
    z = rng.standard_normal((num_clients, rows, d)) * stddev[:, None, None]
    return z.reshape(-1, d), _sources(num_clients, rows)


def wishart(
    num_examples: int, d: int, rng: np.random.Generator, *, radius: float | None = 1.0
) -> Array:
    """PriRFed section 6.2: Wishart W(I/d, d) matrices Z with dist(I, Z) < radius, (n, d, d).

    Kept by rejection, as the public code of Han et al. does for the paper's "diameter bound";
    dist is affine-invariant, |log eigenvalues|. ``radius=None`` keeps all.
    """
    kept: list[Array] = []
    count, drawn, block = 0, 0, min(50_000, max(256, 4 * num_examples))
    while count < num_examples:
        g = rng.standard_normal((block, d, d)) / np.sqrt(d)
        z = g @ np.swapaxes(g, -1, -2)
        values = np.linalg.eigvalsh(z)
        inside = values[:, 0] > 1e-12
        if radius is not None:
            logs = np.log(np.where(inside[:, None], values, 1.0))
            inside &= np.sqrt(np.square(logs).sum(-1)) < radius
        kept.append(z[inside])
        count, drawn = count + int(inside.sum()), drawn + block
        if drawn >= 50_000 and count < _LOWEST_ACCEPTANCE * drawn:
            raise ValueError(
                f"Only {count} of {drawn} Wishart matrices of size {d} lie within radius={radius} "
                "of the identity; raise radius or lower d"
            )
    return np.concatenate(kept)[:num_examples]


def least_squares(
    num_clients: int,
    rows: int,
    d: int,
    rng: np.random.Generator,
    *,
    noise_stddev: float = 0.1,
    heterogeneity: float = 0.0,
) -> tuple[Array, Array, Sources]:
    """Gaussian features (n, d) and targets a^T x_i + noise, x_i = x + heterogeneity * N(0, I)."""
    truth = rng.standard_normal(d)
    own = truth + heterogeneity * rng.standard_normal((num_clients, d))
    a = rng.standard_normal((num_clients, rows, d))
    noise = noise_stddev * rng.standard_normal((num_clients, rows))
    b = np.einsum("crd,cd->cr", a, own) + noise
    return a.reshape(-1, d), b.reshape(-1), _sources(num_clients, rows)


def class_mixture(
    num_examples: int,
    d: int,
    num_classes: int,
    rng: np.random.Generator,
    *,
    components: int,
    spread: float,
) -> tuple[Array, NDArray[np.int64]]:
    """Rows N(centre_c, I), (n, d), of components with centres N(0, spread^2 I), and their classes.

    Component c belongs to class c mod num_classes; all are as likely.
    """
    centres = spread * rng.standard_normal((components, d))
    component = rng.integers(0, components, num_examples)
    rows = centres[component] + rng.standard_normal((num_examples, d))
    return rows, (component % num_classes).astype(np.int64)


def scaled_identities(
    num_clients: int, d: int, rng: np.random.Generator
) -> tuple[Array, Array, Sources]:
    """DECOR's task: A_i = (i / sqrt n) I and b_i ~ N(0, I / i^2), d rows per client."""
    i = np.arange(1, num_clients + 1)
    a = (i / np.sqrt(num_clients))[:, None, None] * np.eye(d)
    b = rng.standard_normal((num_clients, d)) / i[:, None]
    return a.reshape(-1, d), b.reshape(-1), _sources(num_clients, d)


def low_rank(
    num_clients: int,
    columns: int,
    d: int,
    rank: int,
    rng: np.random.Generator,
    *,
    oversampling: float = 10.0,
    noise_stddev: float = 0.0,
    heterogeneity: float = 0.0,
) -> dict[str, Any]:
    """Projected FL section A.4.2: columns of A = L R, entries seen with probability nu.

    nu = oversampling * rank (d + T - rank) / (d T) for T = num_clients * columns. Beyond the paper,
    whose exact instance lets every client share the optimum: ``noise_stddev`` adds noise to A and
    ``heterogeneity`` gives client i the factor L + heterogeneity * N(0, 1). Returns ``column`` and
    ``mask`` (T, d), ``sources`` (T,) and the ``true_basis`` (d, rank) of L.
    """
    total = num_clients * columns
    rate = oversampling * rank * (d + total - rank) / (d * total)
    if not 0 < rate <= 1:
        raise ValueError(
            f"Expected a rate of seen entries in (0, 1], got {rate:.3g}; "
            f"lower oversampling={oversampling}"
        )
    left = rng.standard_normal((d, rank))
    right = rng.standard_normal((num_clients, rank, columns))
    own = left + heterogeneity * rng.standard_normal((num_clients, d, rank))
    full = own @ right + noise_stddev * rng.standard_normal((num_clients, d, columns))
    mask = (rng.uniform(size=(num_clients, d, columns)) <= rate).astype(np.float64)
    by_row = (0, 2, 1)
    return {
        "column": (full * mask).transpose(by_row).reshape(total, d),
        "mask": mask.transpose(by_row).reshape(total, d),
        "sources": _sources(num_clients, columns),
        "true_basis": np.linalg.qr(left)[0],
    }


def _sources(num_clients: int, rows: int) -> Sources:
    return np.repeat(np.arange(num_clients, dtype=np.int64), rows)


def lognormal_spd(
    num_examples: int,
    d: int,
    rng: np.random.Generator,
    *,
    spread: float = 0.25,
    condition: float = 100.0,
) -> Array:
    """G^{1/2} expm(spread * sym(N)) G^{1/2}, G random with log-spaced eigenvalues, (n, d, d)."""
    edge = np.sqrt(condition)
    basis = orthonormal(d, d, rng)
    root = (basis * np.sqrt(np.geomspace(1 / edge, edge, d))) @ basis.T
    g = rng.standard_normal((num_examples, d, d))
    values, vectors = np.linalg.eigh(spread * (g + np.swapaxes(g, -1, -2)) / 2)
    inner = (vectors * np.exp(values)[:, None, :]) @ np.swapaxes(vectors, -1, -2)
    z = root @ inner @ root
    return (z + np.swapaxes(z, -1, -2)) / 2


def spiked_rows(
    num_examples: int, d: int, rng: np.random.Generator, *, squared_norm: float = 100.0
) -> Array:
    """Rows like one class of images, shape (n, d): a mean direction and 99 that fade, in R^d.

    z = sum_k sqrt(l_k) c_k q_k with q orthonormal, c_1 ~ N(1, 0.3^2), other c_k ~ N(0, 1), l_1 one
    half and l_k proportional to k^-1.5, scaled to the mean squared norm. Spec 003 §8.5.
    """
    count = min(100, d)
    spectrum = np.arange(1, count + 1) ** -1.5
    spectrum[1:] *= 0.5 / spectrum[1:].sum()
    spectrum[0] = 0.5
    coefficients = rng.standard_normal((num_examples, count))
    coefficients[:, 0] = 1 + 0.3 * coefficients[:, 0]
    z = (coefficients * np.sqrt(spectrum)) @ orthonormal(d, count, rng).T
    return z * np.sqrt(squared_norm / np.square(z).sum(1).mean())


def sphere_cloud(num_examples: int, d: int, rng: np.random.Generator, spread: float) -> Array:
    """exp_c(spread * N_c(0, 1)) around a uniform centre c of the sphere in R^d, shape (n, d)."""
    centre = rng.standard_normal(d)
    centre /= np.linalg.norm(centre)
    u = spread * rng.standard_normal((num_examples, d))
    u -= (u @ centre)[:, None] * centre
    length = np.linalg.norm(u, axis=1, keepdims=True)
    return np.cos(length) * centre + np.sinc(length / np.pi) * u


def one_hot_logistic(
    num_examples: int, rng: np.random.Generator, *, positive_rate: float = 0.24
) -> tuple[Array, Sources]:
    """Features and labels -1, 1 shaped like a9a's: 11 blocks of 9 and 3 of 8 one-hot columns.

    Levels have Dirichlet(0.7) probabilities; labels are those of a random logistic model whose
    intercept is set so that ``positive_rate`` of the logits are positive.
    """
    blocks: list[Array] = []
    for size in [9] * 11 + [8] * 3:
        levels = rng.choice(size, size=num_examples, p=rng.dirichlet(np.full(size, 0.7)))
        blocks.append(np.eye(size)[levels])
    features = np.concatenate(blocks, axis=1)
    logits = features @ rng.standard_normal(features.shape[1]) + rng.logistic(size=num_examples)
    threshold = np.quantile(logits, 1 - positive_rate)
    return features, np.where(logits > threshold, 1, -1).astype(np.int64)
