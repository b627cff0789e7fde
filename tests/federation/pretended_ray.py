"""As much of Ray as the workers use, in this process: what is sent is pickled, actors may die."""

import pickle
from types import SimpleNamespace

import cloudpickle


class RayError(Exception):
    pass


class RayActorError(RayError):
    actor_init_failed = False


class ObjectLostError(RayError):
    pass


class GetTimeoutError(RayError):
    pass


class Reference:
    def __init__(self, value=None, error=None, is_ready=lambda: True):
        self.value, self.error, self.is_ready = cloudpickle.dumps(value), error, is_ready

    def get(self):
        if not self.is_ready():
            raise GetTimeoutError
        if self.error is not None:
            raise self.error
        return pickle.loads(self.value)


class Method:
    def __init__(self, actor, name):
        self.actor, self.name = actor, name

    def remote(self, *args):
        actor = self.actor
        actor.calls.append(self.name)
        if actor.is_dead or actor.dies_at == (self.name, actor.calls.count(self.name)):
            actor.is_dead = True
            return Reference(error=RayActorError("the actor died"))
        stuck, call = actor.stuck, (actor.place, self.name)
        if call in stuck:
            return Reference(is_ready=lambda: call not in stuck)
        # plain pickle: in this process cloudpickle gives classes made here back as themselves
        given = [a.get() if isinstance(a, Reference) else pickle.loads(pickle.dumps(a))
                 for a in args]  # fmt: skip
        try:
            return Reference(getattr(actor.held, self.name)(*given))
        except Exception as error:
            return Reference(error=RayError(f"{type(error).__name__}: {error}"))


class Actor:
    def __init__(self, held, dies_at, place, stuck):
        self.held, self.dies_at, self.is_dead, self.calls = held, dies_at, False, []
        self.place, self.stuck = place, stuck

    def __getattr__(self, name):
        return Method(self, name)


class Pretended:
    """``dies`` gives the place of an actor in the order they began, and the call it dies in.

    ``stuck`` are calls, by the same place, that do not return as long as they are named there;
    ``waits`` are the limits of the waits that were in vain. Nobody waits without a limit.
    """

    exceptions = SimpleNamespace(
        RayError=RayError, RayActorError=RayActorError, ObjectLostError=ObjectLostError,
        GetTimeoutError=GetTimeoutError,
    )  # fmt: skip

    def __init__(self, dies=None):
        self.actors, self.puts, self._dies = [], 0, dies or {}
        self.stuck, self.waits = set(), []

    def is_initialized(self):
        return True

    def put(self, value):
        self.puts += 1
        return Reference(value)

    def get(self, refs, timeout):
        assert timeout is not None
        try:
            return refs.get() if isinstance(refs, Reference) else [ref.get() for ref in refs]
        except GetTimeoutError:
            self.waits.append(timeout)
            raise

    def wait(self, refs, num_returns, timeout):
        came = [ref for ref in refs if ref.is_ready()]
        if len(came) < num_returns:
            self.waits.append(timeout)
        return came, [ref for ref in refs if not ref.is_ready()]

    def remote(self, **options):
        def of(kind):
            def begin(*args):
                held, place = kind(*pickle.loads(cloudpickle.dumps(args))), len(self.actors)
                self.actors.append(Actor(held, self._dies.get(place), place, self.stuck))
                return self.actors[-1]

            return SimpleNamespace(remote=begin)

        return of

    def kill(self, actor):
        actor.is_dead = True
