"""The stacked cohort over Ray actors: whole stacks of clients in other processes, the same bits.

A worker builds its clients from the config, keeps their shards and what they remember, and runs,
checks and sums their chunks; data never pass through the driver. The driver draws the cohort,
charges the ledger before a message leaves, sends what goes down once, and adds the workers' sums of
chunks in the order of the clients. Who takes part in which sum is decided by the config alone
(chunks.py), so 1, 2 and 4 workers give the bits of one process, at one thread each.

In a release every worker draws a fresh key from its own operating system for every exchange: no key
is shared, sent or used again, also not after a worker was started anew. A worker that dies is its
clients' failure ("unavailable"); the attempt stays charged, the reply policy decides, and the new
worker's clients start from their initial memory, as nodes do that lost theirs. Until it is up,
which takes room in the cluster, nothing is sent to it and its clients stay "unavailable". For some
seconds Ray still places workers on a node that died: such a worker never runs, and is begun anew.
"""

import logging
import os
import shutil
import tempfile
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from manifed.algorithms.interface import Phase, setup_phases_of
from manifed.algorithms.payloads import Down, Payload, PerClient, down_bytes
from manifed.errors import ConfigError, RoundFailed, one_line
from manifed.federation.aggregation import summed
from manifed.federation.chunks import Chunking
from manifed.federation.client import ClientSide
from manifed.federation.header import Header
from manifed.federation.replies import Failure, Replies, Summed
from manifed.federation.transport import stacked_or_empty
from manifed.federation.uploads import Expectation
from manifed.federation.worker import Answer, Arrays, Build, Told, Worker, arrays, tensors

log = logging.getLogger("manifed")

_START = 600.0
"""Seconds in which the workers must have built their clients."""
_AGAIN = 60.0
"""Seconds for which a round waits, once, for a worker that was started anew."""
_STARTS = 3
"""How often a worker is begun before somebody is told that it does not come up."""
_IN_THE_CALL = 100 * 1024
"""Bytes that Ray hands over within a call; what is more is put into its store once."""


def _ray() -> Any:
    """Ray, which comes with Flower's simulation engine.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "engine.workers: Ray is not installed; pip install 'flwr[simulation]'"
        ) from None
    return ray


_Answered = tuple[tuple[int, tuple[int, ...]], Answer]
"""A worker and which clients it was asked for, and what it answered."""


# -- in the driver ---------------------------------------------------------------------------
@dataclass(frozen=True)
class _Share:
    """The stacks of one worker, and its clients."""

    stacks: range
    members: range


class WorkersTransport:
    """Runs cohorts on workers; a context that ends them."""

    def __init__(
        self,
        build: Build,
        side: ClientSide,
        *,
        workers: int,
        address: str = "local",
        device: str = "cpu",
        memory_budget_mb: int,
        chunk_clients: int | None = None,
        timeout: float = 3600.0,
    ) -> None:
        """``side`` says sizes; ``build`` runs in the workers, and must be importable there.

        Args:
            build: makes the client side of neighbours.
            side: of all clients, for the sizes alone; its shards need no numbers.
            workers: how many processes, one CPU each.
            address: "local" starts Ray here, "auto" joins the cluster of this machine, and
                "ray://HOST:PORT" one elsewhere.
            device: where clients are computed; "cuda" asks for one GPU a worker.
            memory_budget_mb: of shards, memory and temporaries of all workers together.
            chunk_clients: at most so many clients in one call.
            timeout: seconds to wait for the replies of one exchange.

        Raises:
            ConfigError: no Ray, fewer chunks or CPUs than workers, an algorithm with exchanges
                before round 1, or data that a worker cannot build.
        """
        self._ray, training = _ray(), side.setup.training
        if setup_phases_of(training):
            raise ConfigError(
                f"engine.workers: expected an algorithm without exchanges before round 1, got "
                f"{training.kind!r}: a worker that dies would take with it what clients learnt "
                "there; leave engine.workers out"
            )
        self._chunking = Chunking.of(side, device, memory_budget_mb, chunk_clients)
        members, shared = self._chunking.stacks, self._chunking.shared(side, workers)
        self._shares = [
            _Share(own, range(members[own.start].start, members[own.stop - 1].stop))
            for own in shared
        ]
        self._everybody = tuple(range(len(side.shards)))
        zero = torch.zeros(side.point_shape, dtype=side.dtype)
        self._remembers = training.initial_memory(zero) is not None
        self._folder: str | None = None
        self._timeout, self._is_ours = timeout, not self._ray.is_initialized()
        if self._is_ours:
            self._connect(address, workers)
        gpus = 1 if device == "cuda" else 0
        options = {"num_cpus": 1, "num_gpus": gpus, "scheduling_strategy": "SPREAD"}
        actor = self._ray.remote(**options)(Worker)
        self._begin = [
            partial(actor.remote, build, share.stacks, self._chunking, device)
            for share in self._shares
        ]
        self._workers = [begin() for begin in self._begin]
        self._coming = {k: begun.process.remote() for k, begun in enumerate(self._workers)}
        """Workers that were begun, and what says that one is up."""
        self._waited: set[int] = set()
        """Those for which a round has waited."""
        try:
            self.processes = self._built()
        except BaseException:
            self.close()
            raise

    def _connect(self, address: str, workers: int) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning"}
        if address == "local":
            self._folder = tempfile.mkdtemp(prefix="manifed-ray-")
            options |= {"num_cpus": workers, "include_dashboard": False}
            options["_temp_dir"] = self._folder
        try:
            self._ray.init(address=address, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"engine.address: no Ray cluster at {address!r}: {one_line(str(error), 200)}"
            ) from None
        cpus = int(self._ray.cluster_resources().get("CPU", 0))
        if cpus < workers:
            self._ray.shutdown()
            raise ConfigError(
                f"engine.workers: expected at most {cpus}, the CPUs of the cluster, got {workers}"
            )

    def _built(self) -> list[int]:
        """The workers' processes, once their clients are there."""
        ray, until = self._ray, time.monotonic() + _START
        try:
            return [self._begun(k, until) for k in range(len(self._workers))]
        except ray.exceptions.GetTimeoutError:
            raise ConfigError(
                f"engine.workers: not all workers had built their clients after {_START:g} s; "
                "ask for fewer, or for what the cluster has"
            ) from None
        except ray.exceptions.RayError as error:
            last = str(error).strip().splitlines()[-1]
            raise ConfigError(
                f"engine.workers: a worker could not build its clients: {one_line(last, 300)}"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers, and Ray where it was started here."""
        for worker in self._workers:
            self._ray.kill(worker)
        if self._is_ours:
            self._ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def grown_mb(self) -> list[float]:
        """The most memory that each worker held for its clients, in MiB."""
        found = [worker.grown_mb.remote() for worker in self._workers]
        return self._ray.get(found, timeout=self._timeout)

    # -- exchanges ---------------------------------------------------------------------------
    def exchange(
        self,
        header: Header,
        phase: Phase,
        down: Down,
        partitions: tuple[int, ...],
        last_accepted: Mapping[int, int],
    ) -> Replies:
        """As `Transport.exchange`, ``partitions`` ascending."""
        answers, failures, sent = self._ask(header, down, partitions, last_accepted, None)
        rows = [_payload(phase, answer.fields) for _, answer in answers if answer.chunks]
        uploads = _joined(rows) if rows else stacked_or_empty(phase, down, [])
        return _replies(answers, failures, uploads, sent)

    def exchange_sums(
        self,
        header: Header,
        phase: Phase,
        down: Down,
        partitions: tuple[int, ...],
        last_accepted: Mapping[int, int],
        expected: Expectation,
        shares: Tensor,
    ) -> Replies:
        """As `SumsTransport.exchange_sums`, ``partitions`` ascending."""
        answers, failures, sent = self._ask(
            header, down, partitions, last_accepted, (expected, shares)
        )
        each = [tensors(answer.fields) for _, answer in answers if answer.chunks]
        empty = stacked_or_empty(phase, down, [])
        came = _replies(answers, failures, empty, sent)
        if not each:
            return came
        sums = summed(
            {name: t[k] for name, t in part.items()}
            for part in each
            for k in range(len(next(iter(part.values()))))
        )
        fetch = partial(self._fetch, phase, [k for (k, _), answer in answers if answer.chunks])
        return came._replace(sums=Summed(sums, fetch))

    def _ask(
        self,
        header: Header,
        down: Down,
        partitions: tuple[int, ...],
        last_accepted: Mapping[int, int],
        wanted: tuple[Expectation, Tensor] | None,
    ) -> tuple[list[_Answered], dict[int, Failure], int]:
        """(what workers answered, in order; why other clients did not; bytes that were sent)."""
        told = self._told(header, down, wanted and wanted[0])
        asked: list[tuple[int, tuple[int, ...]]] = []
        refs: list[Any] = []
        failures: dict[int, Failure] = {}
        for k, rows in enumerate(self._rows(partitions)):
            mine = partitions[rows]
            if not mine:
                continue
            if not self._is_up(k):
                missing = Failure("unavailable", f"worker {k}: not up again since it died")
                failures |= dict.fromkeys(mine, missing)
                continue
            is_all = len(mine) == len(self._shares[k].members)
            known = {i: last_accepted.get(i, 0) for i in mine} if self._remembers else {}
            own = None
            if isinstance(down, PerClient):
                own = {n: a[rows] for n, a in arrays(down.rows.tensors()).items()}
            shares = None if wanted is None else wanted[1][rows].cpu().numpy()
            some = None if is_all else np.asarray(mine, dtype=np.int64)
            call = self._workers[k].exchange.remote
            asked.append((k, mine))
            refs.append(call(told, own, some, known, shares))
        answers: list[_Answered] = []
        for (k, mine), found in zip(asked, self._answers(asked, refs), strict=True):
            if isinstance(found, Failure):
                failures |= dict.fromkeys(mine, found)
            else:
                answers.append(((k, mine), found))
        reached = sum(len(mine) for _, mine in asked)
        bytes_down = down_bytes(down, len(partitions)) * reached // max(1, len(partitions))
        return answers, failures, bytes_down

    def _rows(self, partitions: tuple[int, ...]) -> list[slice]:
        """Where the clients of each worker stand in ``partitions``."""
        if partitions == self._everybody:
            return [slice(share.members.start, share.members.stop) for share in self._shares]
        ends = [bisect_left(partitions, share.members.stop) for share in self._shares]
        return [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]

    def _told(self, header: Header, down: Down, expected: Expectation | None) -> Any:
        """`Told`, or where it lies in Ray's store."""
        shared = {} if isinstance(down, PerClient) else arrays(down.tensors())
        check = None
        if expected is not None:
            (base,) = arrays({"base": expected.base}).values()
            check = base, expected.places
        told = Told(header, shared, check)
        size = sum(array.nbytes for array in shared.values()) + (check[0].nbytes if check else 0)
        return told if size <= _IN_THE_CALL else self._ray.put(told)

    def _answers(
        self, asked: Sequence[tuple[int, tuple[int, ...]]], refs: list[Any]
    ) -> list[Answer | Failure]:
        """What the workers answered, in one look where all did, or why not."""
        ray, until = self._ray, time.monotonic() + self._timeout
        try:
            return ray.get(refs, timeout=self._timeout)
        except ray.exceptions.RayError:
            ray.wait(refs, num_returns=len(refs), timeout=max(0.0, until - time.monotonic()))
            return [self._answer(k, ref) for (k, _), ref in zip(asked, refs, strict=True)]

    def _answer(self, worker: int, ref: Any) -> Answer | Failure:
        """What a worker answered, or why its clients did not; a dead one is started anew."""
        ray = self._ray
        try:
            return ray.get(ref, timeout=0)
        except ray.exceptions.GetTimeoutError:
            return Failure("late", f"worker {worker}: no reply within {self._timeout:g} s")
        except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
            self._begin_anew(worker, error)
            return Failure("unavailable", f"worker {worker} died")
        except ray.exceptions.RayError as error:
            last = str(error).strip().splitlines()[-1]
            return Failure("absent", f"worker {worker}: {one_line(last, 150)}")

    def _begin_anew(self, worker: int, error: Exception) -> None:
        log.warning(
            "Worker %d died (%s) and is started anew; its clients forget",
            worker,
            type(error).__name__,
        )
        self._ray.kill(self._workers[worker])
        self._workers[worker] = self._begin[worker]()
        self._coming[worker] = self._workers[worker].process.remote()

    def _begun(self, worker: int, until: float, starts: int = _STARTS) -> int:
        """The process of a worker, once its clients are there, by so much of the monotonic clock.

        Raises:
            GetTimeoutError: it is not there yet.
            RayError: its clients cannot be built, or it died whenever it was begun.
        """
        ray, left = self._ray, max(0.0, until - time.monotonic())
        try:
            process = ray.get(self._coming[worker], timeout=left)
        except ray.exceptions.RayActorError as error:
            if error.actor_init_failed or starts == 1:
                raise
            self._begin_anew(worker, error)
            return self._begun(worker, until, starts - 1)
        del self._coming[worker]
        return process

    def _is_up(self, worker: int) -> bool:
        """Whether a worker has its clients; the first look after it died waits for them.

        Where the cluster has no room for it, that may be never: later looks do not wait.
        """
        if worker not in self._coming:
            return True
        ray, patience = self._ray, 0.0 if worker in self._waited else min(_AGAIN, self._timeout)
        self._waited.add(worker)
        try:
            self._begun(worker, time.monotonic() + patience)
        except ray.exceptions.GetTimeoutError:
            return False
        except ray.exceptions.RayError as error:
            self._begin_anew(worker, error)
            return False
        self._waited.remove(worker)
        return True

    def _fetch(self, phase: Phase, workers: Sequence[int]) -> Payload:
        """The rows that were summed.

        Raises:
            RoundFailed: a worker died since, or does not answer.
        """
        rows = [self._workers[k].rows.remote() for k in workers]
        try:
            found = self._ray.get(rows, timeout=self._timeout)
        except self._ray.exceptions.GetTimeoutError:
            raise RoundFailed(
                f"A worker did not send its uploads within {self._timeout:g} s; raise "
                "federation.replies.timeout"
            ) from None
        except self._ray.exceptions.RayError as error:
            raise RoundFailed(
                f"A worker died before its uploads were fetched: {type(error).__name__}"
            ) from None
        return _joined([_payload(phase, fields) for fields in found])


def _payload(phase: Phase, fields: Arrays) -> Payload:
    return phase.up(*tensors(fields).values())


def _joined(parts: list[Payload]) -> Payload:
    """The rows of all workers in one."""
    each = zip(*[part.tensors().values() for part in parts], strict=True)
    return type(parts[0])(*[torch.cat(column) for column in each])


def _replies(
    answers: Sequence[_Answered],
    failures: dict[int, Failure],
    uploads: Payload,
    sent: int,
) -> Replies:
    partitions: list[int] = []
    for (_, mine), answer in answers:
        partitions += mine if answer.partitions is None else answer.partitions.tolist()
        failures |= answer.failures
    return Replies(
        tuple(partitions),
        uploads,
        failures,
        sent,
        sum(answer.bytes_up for _, answer in answers),
        frozenset().union(*(answer.origins for _, answer in answers)),
        chunks=tuple(count for _, answer in answers for count in answer.chunks),
    )
