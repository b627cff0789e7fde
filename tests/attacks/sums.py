"""Attacks on the sums that a secure sum opens, against each adversary that it is priced for.

python -m tests.attacks.sums CONFIG [--trials 20000]
"""

import argparse
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manifed.algorithms.secure_mean import SecureMean
from manifed.algorithms.secure_sum import packed
from manifed.audit.attacks import ExampleAttack, worst_case
from manifed.audit.bound import Attack, Audited, find_all
from manifed.audit.of_config import costliest_first, enough
from manifed.errors import ConfigError
from manifed.experiment.assembly import plan_of
from manifed.experiment.load import load
from manifed.experiment.schema import Experiment
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.oracles.noisy_oracle import Draws
from manifed.privacy import discrete, epsilon_bounds
from manifed.privacy.random_numbers import NoiseSource, Stream
from manifed.privacy.secret_shares import BOX_BYTES
from manifed.problems.examples import Examples


@dataclass(frozen=True, eq=False)
class SumAttack(Attack):
    """Attack on opened sums: the integers of one node with a canary, and the noise of others.

    The integers are those that a node sends below its masks. The records of the others add nothing.
    Only the nodes are added up whose share of the noise the adversary does not know: it can take
    away all that it knows.
    """

    of: ExampleAttack
    """The canary, and the records of all others."""
    training: SecureMean
    """What the nodes run, with seeded noise."""
    knows: str
    """The adversary, by the name of its multiplier in a `Release`."""
    honest: int
    """The nodes that are added up."""
    num_rounds: int = 1

    def claim(self, delta: float) -> float:
        """The epsilon that this adversary is charged for all attacked rounds."""
        made = [self.training.in_round(r) for r in self.rounds]
        found = [
            one for each in made for one in each.releases(self.of.mechanism, len(self.of.shard))
        ]
        paid = tuple(
            one.model_copy(update={"noise_multiplier": getattr(one, self.knows)}) for one in found
        )
        return epsilon_bounds.epsilon(paid, delta)

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds that are attacked."""
        return replace(self.of, num_rounds=self.num_rounds).rounds

    @property
    def at_once(self) -> int:
        """The number of sums that are made together."""
        return self.of.at_once

    def run(self, trials: tuple[int, ...], *, is_present: bool) -> Tensor:
        """Returns the sums of all rounds along the canary's direction, (trials,)."""
        present, absent, move = self.of.neighbours
        update, x, clients = self.training, self.of.x, self.training.clients
        count, size = len(trials), len(self.of.shard)
        stacked = Examples.stack([present if is_present else absent] * count)
        setup = ClientSetup(self.of.problem, update, self.of.mechanism)
        (phase,) = update.phases
        came = [x, packed(range(clients), clients), torch.zeros(0, BOX_BYTES, dtype=torch.uint8)]
        down = phase.down(*[t.expand(count, *t.shape) for t in came])
        length = update.size_of(tuple(x.shape))
        total = torch.zeros(count, length, dtype=torch.float64)
        for server_round in self.rounds:
            coding = update.in_round(server_round).numbers.of(clients, length)
            seat = Seat(trials, server_round, 0, phase.name)
            done = run_update(setup, seat, down, None, stacked, [size] * count, self.of.source)
            others = Draws(self.of.source.derive(b"others"), trials[0], server_round)
            shares = discrete.draw(
                coding.variance,
                (self.honest - 1) * total.numel(),
                lambda n, step, own=others: own.source.words(n, **own.at(Stream.SHARE_NOISE, step)),
            )
            sent = done.up.tensors()["total"].numpy().astype(np.int64)
            summed = sent + shares.reshape(self.honest - 1, *sent.shape).sum(0)
            total += coding.decode(coding.wrap(summed))
        moved = self.of.problem.manifold.to_coords(x, move).flatten()
        sign = -1.0 if update.unit == "example" else 1.0  # of gradients, against the step
        return sign * total @ moved


def sums_of(config: Experiment, trials: int) -> list[Audited]:
    """Lists the attacks on a config: the worst case of one node, with the most dropouts declared.

    Raises:
        ConfigError: for an algorithm whose answer is no gradient.
    """
    source = NoiseSource.from_seed(config.federation.seed)
    plan = plan_of(config)
    training: Any = plan.training
    mechanism = training.mechanism
    if training.client_update.kind not in ("rsgd", "scheduled-rsgd"):
        raise ConfigError(
            "training.kind: expected 'rsgd' or 'scheduled-rsgd', got "
            f"{training.client_update.kind!r}"
        )
    rounds = config.federation.num_rounds
    size = min(training.sizes) if training.unit == "example" else 1
    order = costliest_first(training, mechanism, size, rounds) if training.is_scheduled else ()
    worst = worst_case(training.client_update, mechanism, size, source, order=order)
    if training.unit == "client":  # the canary is a client, whose upload is longer than the clip
        longest = min(2 * mechanism.l2_norm_clip, 3.0) / (10 * mechanism.l2_norm_clip)
        update = training.client_update.model_copy(update={"step_size": longest, "local_steps": 1})
        worst = replace(
            worst, training=update, mechanism=mechanism.model_copy(update={"l2_norm_clip": None})
        )
    clients = training.clients
    sent = clients - training.numbers.dropped(clients)
    made = training.model_copy(
        update={"client_update": worst.training, "is_seeded": True, "counts": (clients, sent)}
    )
    made._manifold = worst.problem.manifold
    colluding = training.collusion
    against = {"to_server": (0, "the server"), "to_one": (1, "one other node")}
    if colluding > 1:
        against["to_coalition"] = (colluding, f"{colluding} nodes that collude")
    found = []
    for knows, (known, who) in against.items():
        attack = enough(SumAttack(worst, made, knows, max(1, sent - known)), rounds)
        how = f"worst case: the opened sum of {sent} of {clients} clients, seen by {who}"
        found.append(Audited(config.name, attack, trials, how))
    return found


def main():
    """Print what each attack on a config proves beside what is claimed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("--trials", type=int, default=20000, help="simulated runs per dataset")
    given = parser.parse_args()
    for found in find_all(sums_of(load(given.config), given.trials)):
        print(f"{found.line()}\n  {found.attack}")


if __name__ == "__main__":
    main()
