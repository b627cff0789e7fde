"""Ledgers of all kinds, written by the library as runs write them."""

import random

from manifed.privacy.charging import opened
from manifed.privacy.events import PoissonSampled, SampledWithoutReplacement, Unsampled
from manifed.privacy.statement import Promise
from manifed.privacy.tariff import ClientReleases, Tariff, Terms
from tests.privacy.releases import laplace, poisson, release, subset

POPULATION = 6


def full(rng):
    return (release(rng.uniform(2, 9), count=rng.randint(1, 3)),)


def poisson_batches(rng):
    return (poisson(rng.uniform(0.7, 2), rng.uniform(0.01, 0.3), rng.randint(1, 20)),)


def fixed_batches(rng):
    return (subset(rng.choice([1.5, 2.5]), rng.choice([5, 20]), 100, rng.randint(1, 5)),)


def anchored(rng):
    """A full gradient and minibatches together, as of variance reduction."""
    return (*full(rng), *poisson_batches(rng))


def scales(rng):
    return (laplace(rng.uniform(5, 30)), release(rng.uniform(3, 9)))


def masked(rng):
    z = rng.uniform(2, 6)
    more = {"to_server": 3 * z, "to_one": 2 * z, "to_coalition": 1.5 * z}
    return (release(z, **more),)


UPDATES = {one.__name__: one for one in (full, poisson_batches, fixed_batches, anchored, scales,
                                         masked)}  # fmt: skip


def everybody(rng):
    del rng
    return {"sampling": Unsampled()}


def coins(rng):
    return {"sampling": PoissonSampled(sampling_probability=rng.uniform(0.2, 0.8))}


def fixed(rng):
    size = rng.randint(1, POPULATION - 1)
    return {"sampling": SampledWithoutReplacement(sample_size=size, population=POPULATION)}


def own_coins(rng):
    each = tuple(rng.uniform(0.1, 1) for _ in range(POPULATION))
    sampling = PoissonSampled(sampling_probability=max(each))
    return {"sampling": sampling, "probabilities": each}


COHORTS = {one.__name__: one for one in (everybody, coins, fixed, own_coins)}


def example_level(rng, update, cohort):
    """Terms where clients add noise, one or two kinds of them."""
    one, other = UPDATES[update](rng), UPDATES[update](rng)
    cut = rng.choice([POPULATION, 2])
    updates = [ClientReleases(partitions=tuple(range(cut)), releases=one)]
    if cut < POPULATION:
        updates.append(ClientReleases(partitions=tuple(range(cut, POPULATION)), releases=other))
    return Terms(population=POPULATION, updates=tuple(updates), **COHORTS[cohort](rng))


def client_level(rng, cohort):
    """Terms where the server adds noise to a mean of whole clients."""
    how = COHORTS[cohort](rng)
    relation = "replace-one" if cohort == "fixed" else "add-or-remove"
    z = rng.choice([1.5, 2.5]) if cohort == "fixed" else rng.uniform(0.8, 3)
    one = release(z, how["sampling"], 1, relation, unit="client")
    return Terms(population=POPULATION, aggregate=(one,), **how)


def by_round(rng, update, rounds):
    """A line for each round, as of growing batches and falling noise."""
    some = [example_level(rng, update, "everybody") for _ in range(3)]
    return tuple(some[3 * r // rounds] for r in range(rounds))


LEVELS = {
    "example": lambda rng, kind: example_level(rng, rng.choice(sorted(UPDATES)), kind),
    "client": client_level,
}
HISTORIES = ("plain", "retried", "blocks", "crashed", "resumed", "unfinished")


def cohort_of(rng, terms):
    """Who is in a round."""
    if isinstance(terms.sampling, SampledWithoutReplacement):
        return rng.sample(range(POPULATION), terms.sampling.sample_size)
    return [i for i in range(POPULATION) if not terms.is_drawn or rng.random() < 0.5]


def write(path, rng, lines, history, rounds=8):
    """A run's ledger: so many rounds under these terms, and what happened to them."""
    retries = 2 if history == "retried" else 1
    tariff = Tariff(tuple(lines), attempts=retries)
    plan = Promise(tariff, rounds * retries).for_draws(rounds * retries)
    block = 4 if history in {"blocks", "crashed", "resumed"} else 1

    def run(account, first, last):
        for r in range(first, last + 1):
            for attempt in range(account.attempts(r), account.attempts(r) + retries):
                account.charge(r, attempt, cohort_of(rng, plan.tariff.of(r)))
            account.note_origins(r, frozenset({"os"}))

    with opened(path, plan, last_round=rounds, header={"config": history}, block=block) as account:
        run(account, 1, rounds // 2)
        if history == "crashed":
            account.settle = lambda: None
    if history in {"crashed", "resumed"}:
        with opened(
            path, plan, last_round=rounds, header={}, block=block, resumed_at=rounds // 2
        ) as account:
            run(account, rounds // 2, rounds)
    elif history != "unfinished":
        with opened(path, plan, last_round=rounds, header={}, resumed_at=rounds // 2 + 1) as one:
            run(one, rounds // 2 + 1, rounds)
    return path


def any_ledger(path, seed):
    """One of the many kinds; returns its name."""
    rng = random.Random(seed)
    history = HISTORIES[seed % len(HISTORIES)]
    cohort = sorted(COHORTS)[seed // 6 % 4]
    level = ("example", "example", "client", "by round")[seed // 24 % 4]
    update = sorted(UPDATES)[seed // 5 % len(UPDATES)]
    if level == "by round":
        lines = by_round(rng, update, 8)
    elif level == "client":
        lines = (client_level(rng, cohort),)
    else:
        lines = (example_level(rng, update, cohort),)
    write(path, rng, lines, history)
    return f"{level}, {update if level != 'client' else 'aggregates'}, {cohort}, {history}"
