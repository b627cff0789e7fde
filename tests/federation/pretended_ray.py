"""As much of Ray as the workers use, in this process: what is sent is pickled, actors may die."""

import pickle
from types import SimpleNamespace

import cloudpickle


class RayError(Exception):
    pass


class RayActorError(RayError):
    pass


class ObjectLostError(RayError):
    pass


class GetTimeoutError(RayError):
    pass


class Reference:
    def __init__(self, value=None, error=None):
        self.value, self.error = cloudpickle.dumps(value), error

    def get(self):
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
        given = [a.get() if isinstance(a, Reference) else pickle.loads(cloudpickle.dumps(a))
                 for a in args]  # fmt: skip
        try:
            return Reference(getattr(actor.held, self.name)(*given))
        except Exception as error:
            return Reference(error=RayError(f"{type(error).__name__}: {error}"))


class Actor:
    def __init__(self, held, dies_at):
        self.held, self.dies_at, self.is_dead, self.calls = held, dies_at, False, []

    def __getattr__(self, name):
        return Method(self, name)


class Pretended:
    """``dies`` gives the place of an actor in the order they began, and the call it dies in."""

    exceptions = SimpleNamespace(
        RayError=RayError, RayActorError=RayActorError, ObjectLostError=ObjectLostError,
        GetTimeoutError=GetTimeoutError,
    )  # fmt: skip

    def __init__(self, dies=None):
        self.actors, self.puts, self._dies = [], 0, dies or {}

    def is_initialized(self):
        return True

    def put(self, value):
        self.puts += 1
        return Reference(value)

    def get(self, refs, timeout=None):
        return refs.get() if isinstance(refs, Reference) else [ref.get() for ref in refs]

    def wait(self, refs, num_returns, timeout):
        return refs, []

    def remote(self, **options):
        def of(kind):
            def begin(*args):
                held = kind(*pickle.loads(cloudpickle.dumps(args)))
                self.actors.append(Actor(held, self._dies.get(len(self.actors))))
                return self.actors[-1]

            return SimpleNamespace(remote=begin)

        return of

    def kill(self, actor):
        actor.is_dead = True
