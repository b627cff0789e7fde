"""The transport that runs stacks of clients in Ray actors, on this machine or on many.

An actor builds its clients from the config, keeps their shards and what they remember, and computes
their chunks; data never pass through the driver. The driver draws the cohort, charges the ledger
before a message leaves, sends what goes down once, and judges and averages what comes up. Who is
computed together is decided by the config alone (stack.py), so 1, 2 and 4 workers give the bits of
one process, at one thread each.

Ray places the actors, starts one that died anew, also on another node, and carries the arrays. In a
release every actor draws a fresh key from its own operating system for every exchange: no key is
shared, sent or used again, also not after an actor was started anew. An actor that dies is its
clients' failure ("unavailable"); the attempt stays charged, the reply policy decides, and these
clients start from their initial memory, as nodes do that lost theirs.
"""

import logging
import os
import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Self, cast

import torch
from numpy.typing import NDArray
from torch import Tensor

from manifed.algorithms.payloads import Partitions, PerClient
from manifed.errors import ConfigError, one_line, optional
from manifed.federation.client import ClientSide
from manifed.federation.exchange import Asked, Failure, Header, Replies
from manifed.federation.stack import Chunking, StackTransport
from manifed.problems.shards import dataset

log = logging.getLogger("manifed")

_START = 600.0
"""Seconds in which the actors must have built their clients."""
_AGAIN = 60.0
"""Seconds for which a round waits, once, for an actor that Ray starts anew."""

_Arrays = dict[str, NDArray[Any]]
_Build = Callable[[range], ClientSide]
"""Builds the client side of some neighbours, in the process that calls it."""


class _Actor:
    """Some stacks of clients in a process of their own; each method is one call of the driver."""

    def __init__(self, build: _Build, owned: range, chunking: Chunking, device: str) -> None:
        torch.set_num_threads(1)
        stacks = chunking.stacks[owned.start : owned.stop]
        side = build(range(stacks[0].start, stacks[-1].stop))
        self._transport = StackTransport(side, device=device, chunking=chunking, owned=owned)
        self._setup = side.setup
        dataset.cache_clear()

    def process(self) -> int:
        """The actor's process, once its clients are there."""
        return os.getpid()

    def exchange(
        self,
        header: Header,
        down: _Arrays,
        is_own: bool,
        partitions: Partitions,
        last_accepted: Mapping[int, int],
    ) -> Replies:
        """The replies of some clients, each sent a row of its own or all the same, as arrays.

        The exchange goes by its name: payloads made for a graph's degree are classes of a process.
        """
        _, phase = self._setup.phase(header.phase)
        sent = phase.down(*_tensors(down))
        payload = PerClient(sent) if is_own else sent
        came = self._transport.exchange(Asked(header, phase, payload, partitions, last_accepted))
        uploads: Any = _arrays(came.uploads.tensors())
        return came._replace(uploads=uploads, failures=dict(came.failures), nodes={})


def _arrays(tensors: Mapping[str, Tensor]) -> _Arrays:
    """Turns tensors into arrays that Ray carries in one piece, without a copy where that can be."""
    return {name: t.detach().cpu().as_subclass(Tensor).numpy() for name, t in tensors.items()}


def _tensors(arrays: _Arrays) -> list[Tensor]:
    """Tensors of their own: what Ray hands over must not be written."""
    return [torch.from_numpy(array.copy()) for array in arrays.values()]


class RayTransport:
    """Transport over Ray actors, as a context manager that ends them."""

    def __init__(
        self,
        build: _Build,
        side: ClientSide,
        *,
        workers: int,
        address: str = "local",
        device: str = "cpu",
        memory_budget_mb: int,
        at_once: int | None = None,
        timeout: float = 3600.0,
    ) -> None:
        """``side`` says sizes; ``build`` runs in the actors, and must be importable there.

        Args:
            build: makes the client side of neighbours.
            side: of all clients, for the sizes alone; its shards need no numbers.
            workers: how many processes, one CPU each.
            address: "local" starts Ray here, "auto" joins the cluster of this machine, and
                "ray://HOST:PORT" one elsewhere.
            device: where clients are computed; "cuda" asks for one GPU a worker.
            memory_budget_mb: of shards, memory and temporaries of all workers together.
            at_once: at most so many clients in one call.
            timeout: seconds to wait for the replies of one exchange.

        Raises:
            Missing: Ray is not installed.
            ConfigError: fewer stacks or CPUs than workers, an algorithm with exchanges
                before round 1, or data that a worker cannot build.
        """
        with optional():
            import ray
        self._ray: Any = ray
        if side.setup.training.setup_phases:
            raise ConfigError(
                f"engine.workers: expected an algorithm without exchanges before round 1, got "
                f"{side.setup.training.kind!r}, whose results a dead worker would lose; remove "
                "engine.workers"
            )
        chunking = Chunking.of(side, device, memory_budget_mb, at_once)
        shares = chunking.shared(workers)
        self._ends = [chunking.stacks[own.stop - 1].stop for own in shares]
        self._timeout, self._is_ours = timeout, not self._ray.is_initialized()
        self._folder: str | None = None
        if self._is_ours:
            self._connect(address, workers)
        actor = self._ray.remote(
            num_cpus=1,
            num_gpus=device != "cpu",
            scheduling_strategy="SPREAD",
            max_restarts=-1,
        )(_Actor)
        own_device = device.partition(":")[0]  # an actor sees no other GPU than its own
        self.actors = [actor.remote(build, own, chunking, own_device) for own in shares]
        self._coming: dict[int, tuple[Any, float]] = {}
        """Actors that died: what says that one is up again, and how long the next look waits."""
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
        """The actors' processes, once their clients are there."""
        try:
            ups = [self._up(worker) for worker in range(len(self.actors))]
            return self._ray.get(ups, timeout=_START)
        except self._ray.exceptions.GetTimeoutError:
            why = (
                f"not all workers had built their clients after {_START:g} s; ask for fewer, or "
                "for what the cluster has"
            )
        except self._ray.exceptions.RayError as error:
            why = f"a worker could not build its clients: {_last(error, 300)}"
        raise ConfigError(f"engine.workers: {why}")

    def _up(self, worker: int) -> Any:
        """What says that an actor has its clients, also where Ray starts it anew meanwhile."""
        return self.actors[worker].process.options(max_task_retries=-1).remote()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the actors, and Ray where it was started here."""
        for actor in self.actors:
            self._ray.kill(actor)
        if self._is_ours:
            self._ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def exchange(self, asked: Asked) -> Replies:
        """Exchanges as `Transport.exchange`, with the clients in ascending order."""
        header, phase, down, partitions, last_accepted = asked[:5]
        is_own = isinstance(down, PerClient)
        sent = _arrays((down.rows if is_own else down).tensors())
        shared = None if is_own else self._ray.put(sent)
        ends = [0, *(bisect_left(partitions, end) for end in self._ends)]
        calls = list[tuple[int, Partitions, Any]]()
        failures = dict[int, Failure]()
        for k, (begin, end) in enumerate(pairwise(ends)):
            mine = partitions[begin:end]
            if mine and self._is_up(k):
                rows = {name: a[begin:end] for name, a in sent.items()} if is_own else shared
                known = {i: last_accepted[i] for i in mine if i in last_accepted}
                call = self.actors[k].exchange.remote(header, rows, is_own, mine, known)
                calls.append((k, mine, call))
            elif mine:
                missing = Failure("unavailable", f"worker {k}: not up again since it died")
                failures |= dict.fromkeys(mine, missing)
        if calls:
            made = [call for *_, call in calls]
            self._ray.wait(made, num_returns=len(made), timeout=self._timeout)
        came = list[Replies]()
        for k, mine, call in calls:
            found = self._answer(k, call)
            if isinstance(found, Failure):
                failures |= dict.fromkeys(mine, found)
            else:
                came.append(found)
                failures |= found.failures
        reached = sum(len(mine) for _, mine, _ in calls)
        return Replies(
            tuple(i for one in came for i in one.partitions),
            asked.gathered(
                [phase.up(*_tensors(cast(_Arrays, one.uploads))) for one in came if one.partitions]
            ),
            failures,
            down.bytes_to(len(partitions)) * reached // max(1, len(partitions)),
            frozenset().union(*(one.noise_origins for one in came)),
        )

    def _answer(self, worker: int, call: Any) -> Replies | Failure:
        """What an actor answered, or why its clients did not."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(call, timeout=0)
        except errors.GetTimeoutError:
            return Failure("late", f"worker {worker}: no reply within {self._timeout:g} s")
        except (errors.RayActorError, errors.ObjectLostError) as error:
            name = type(error).__name__
            log.warning("Worker %d died (%s); Ray starts it anew, its clients forget", worker, name)
            self._coming[worker] = self._up(worker), min(_AGAIN, self._timeout)
            return Failure("unavailable", f"worker {worker} died")
        except errors.RayError as error:
            return Failure("absent", f"worker {worker}: {_last(error, 150)}")

    def _is_up(self, worker: int) -> bool:
        """Whether an actor has its clients; the first look after it died waits for them.

        Where the cluster has no room for it, that may be never: later looks do not wait.
        """
        if worker not in self._coming:
            return True
        up, patience = self._coming.pop(worker)
        try:
            self._ray.get(up, timeout=patience)
            return True
        except self._ray.exceptions.GetTimeoutError:
            self._coming[worker] = up, 0.0
        except self._ray.exceptions.RayError:
            self._coming[worker] = self._up(worker), 0.0
        return False


def _last(error: Exception, most: int) -> str:
    """The last line of what an actor raised: above it is how it came there."""
    return one_line(str(error).strip().splitlines()[-1], most)
