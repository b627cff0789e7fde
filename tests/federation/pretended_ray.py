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
        self.value = cloudpickle.dumps(value)
        self.error = error
        self.is_ready = is_ready

    def get(self):
        if not self.is_ready():
            raise GetTimeoutError
        if self.error is not None:
            raise self.error
        return pickle.loads(self.value)


class Method:
    def __init__(self, actor, name):
        self.actor = actor
        self.name = name

    def options(self, max_task_retries):
        assert max_task_retries == -1
        return self

    def remote(self, *args):
        actor = self.actor
        ray = self.actor.ray
        actor.calls.append(self.name)
        if ray.dies.get(actor.place) == (self.name, actor.calls.count(self.name)):
            actor.begin()  # Ray starts it anew; what it held is gone
            return Reference(error=RayActorError("the actor died"))
        call = (actor.place, self.name)
        if call in ray.stuck:
            return Reference(is_ready=lambda: call not in ray.stuck)
        # plain pickle: in this process cloudpickle gives classes made here back as themselves
        given = [a.get() if isinstance(a, Reference) else pickle.loads(pickle.dumps(a))
                 for a in args]  # fmt: skip
        try:
            return Reference(getattr(actor.held, self.name)(*given))
        except Exception as error:
            return Reference(error=RayError(f"{type(error).__name__}: {error}"))


class Actor:
    def __init__(self, ray, kind, args):
        self.ray, self.place, self.calls, self.starts = ray, len(ray.actors), [], 0
        self.kind, self.args = kind, cloudpickle.dumps(args)
        self.begin()

    def begin(self):
        self.starts += 1
        self.held = self.kind(*pickle.loads(self.args))

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

    def __init__(self):
        self.actors, self.dies, self.stuck, self.waits = [], {}, set(), []

    def is_initialized(self):
        return True

    def put(self, value):
        return Reference(value)

    def get(self, refs, timeout):
        assert timeout is not None
        try:
            return refs.get() if isinstance(refs, Reference) else [ref.get() for ref in refs]
        except GetTimeoutError:
            self.waits.append(timeout)
            raise

    def wait(self, refs, num_returns, timeout):
        return [ref for ref in refs if ref.is_ready()], []

    def remote(self, max_restarts, **options):
        assert max_restarts == -1

        def of(kind):
            def begin(*args):
                self.actors.append(Actor(self, kind, args))
                return self.actors[-1]

            return SimpleNamespace(remote=begin)

        return of

    def kill(self, actor):
        actor.held = None
