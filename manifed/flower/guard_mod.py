"""A mod for a Flower ClientApp that bounds, noises and pays for every reply that passes through it.

    app = ClientApp(mods=[guard_mod(clip=1.0, noise_multiplier=2.0, delta=1e-5, max_epsilon=8.0,
                                    ledger="/var/lib/site/ledger.jsonl")])

The server is not trusted: it gets the arrays that it sent, plus the clipped update, plus Gaussian
noise of ``noise_multiplier`` times 2 clip, which covers any two data sets of this client. Metrics
and the number of examples are replaced by a weight of 1.

Guarantees: the line that pays for an answer is on disk before the app is called; answers of any
number of runs and processes share one ledger and its limit; an app that fails, or answers what is
no update, releases noise alone. *Not* guaranteed: the app's code runs in the same interpreter and
may go round the mod. The bound is enforced against omission and declared against malice.
"""

import fcntl
import logging
from pathlib import Path
from typing import Literal

import torch
from flwr.app import Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from manifed.errors import BudgetExhausted, ConfigError
from manifed.federation.plan import ServerDraws
from manifed.flower.guarding import gone_on, limited, moved, trained, update_of
from manifed.manifolds.euclidean import Euclidean
from manifed.privacy.events import SERVER, Release
from manifed.privacy.ledger import LedgerDamaged
from manifed.privacy.mechanism import ClientMechanism
from manifed.privacy.random_numbers import NoiseSource
from manifed.privacy.statement import Promise
from manifed.privacy.tariff import ClientReleases, Tariff, Terms

REFUSED = 1001
"""Our code, beside Flower's, of the error for a message that is not answered."""
_log = logging.getLogger("manifed")


def guard_mod(
    *,
    clip: float,
    noise_multiplier: float,
    delta: float,
    ledger: str | Path,
    max_epsilon: float | None = None,
    frozen: tuple[str, ...] = (),
    evaluate: Literal["refuse", "keep"] = "refuse",
    weighted_by_key: str = "num-examples",
) -> Mod:
    """Makes the mod of one data set; put it first in ``ClientApp(mods=[...])``.

    Args:
        clip: bound of the L2 norm of an update, over all arrays together.
        noise_multiplier: deviation of the noise over 2 clip.
        delta: of the limit.
        ledger: file that is made with the first answer, and gone on with by every later run.
        max_epsilon: limit of all answers together; None: none.
        frozen: patterns of the names of arrays that the server keeps; they are sent back as they
            came.
        evaluate: "keep" answers evaluation messages as the app does, without noise or charge.
        weighted_by_key: name of the weight in a reply's metrics, which is 1.

    Raises:
        ConfigError: for numbers that are none, and a limit below the price of one answer.
    """
    mechanism = ClientMechanism(
        l2_norm_clip=clip, noise_multiplier=noise_multiplier, neighboring_relation="replace-one"
    )
    release = Release(
        unit="client", neighboring_relation="replace-one", noise_multiplier=noise_multiplier,
        label="upload",
    )  # fmt: skip
    terms = Terms(population=1, updates=(ClientReleases(partitions=(0,), releases=(release,)),))
    promise = Promise(Tariff((terms,)), 1, (SERVER,), delta)
    if max_epsilon is not None:
        promise = limited(promise, max_epsilon)
    path, said = Path(ledger).absolute(), terms.model_dump(mode="json")

    def paid() -> tuple[NoiseSource, int]:
        """The key of the noise and the number of an answer, when its line is on disk."""
        source = NoiseSource.from_os()
        with path.with_name(path.name + ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # waits for others that answer from the same ledger
            with gone_on(path, promise, said) as account:
                number = account.odometer.covered + 1
                account.charge(number, 0, (0,))
                account.note_origins(number, frozenset({source.origin}))
        return source, number

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        kind = message.metadata.message_type.split(".")[0]
        if kind == MessageType.EVALUATE and evaluate == "keep":
            return call_next(message, context)
        try:
            if kind != MessageType.TRAIN:
                raise ConfigError(f"message: expected 'train', got {kind!r}, which is not noised")
            ((key, record),) = message.content.array_records.items()
            sent = dict(record)
            start = trained(sent, frozen)
            source, number = paid()
        except (BudgetExhausted, ConfigError, LedgerDamaged, OSError, ValueError) as error:
            _log.error("This message is not answered: %s", error)
            return Message(Error(REFUSED, "not answered"), reply_to=message)
        origin = torch.zeros(sum(one.size for one in start.values()), dtype=torch.float64)
        updates = origin.new_zeros(0, len(origin))
        try:
            updates = update_of(call_next(message, context), start, sent)[None]
        except (Exception, SystemExit) as error:  # nobody is told of it
            _log.error("The app's answer counts as zero: %s: %s", type(error).__name__, error)
        step, _ = mechanism.noised_mean(
            updates,
            origin,
            Euclidean(),
            ServerDraws(source, number, 0).normals,
            expected_cohort=1.0,
        )
        content = RecordDict(
            {key: moved(sent, start, step), "metrics": MetricRecord({weighted_by_key: 1.0})}
        )
        return Message(content, reply_to=message)

    return mod
