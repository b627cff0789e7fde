"""Parts that a library imports for everybody and few need, until somebody looks into them.

``import geoopt`` imports its optimisers and samplers, and with them scipy.optimize, and compiles
the formulas of two hyperbolic models by ``torch.jit.script``: half a second before
``geoopt.Manifold``, which is all that this package needs. Once they are deferred, ``geoopt.optim``
and the others are there as ever and are imported at the first look.
"""

import importlib.util
import sys
from importlib import import_module
from types import ModuleType


class Deferred(ModuleType):
    """A module that is imported when an attribute of it is first asked for."""

    def __getattr__(self, name: str) -> object:
        """The attribute of the module itself, which takes this one's place.

        Raises:
            AttributeError: the module has no such attribute.
        """
        if name.startswith("__") and name != "__all__":  # what the import system asks of anything
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        found = import_module(self.__name__)
        self.__dict__.update(vars(found))  # who holds this one asks no more
        return getattr(found, name)


def defer(package: str, names: tuple[str, ...]) -> None:
    """Put a stand-in in place of each of a package's parts; nothing once the part is imported."""
    loaded = sys.modules.get(package)
    found = loaded or importlib.util.find_spec(package)
    places = getattr(found, "__path__", None) or getattr(found, "submodule_search_locations", None)
    for place in places or ():
        for name in names:
            stand_in = Deferred(f"{package}.{name}")
            if stand_in.__name__ in sys.modules:
                continue
            stand_in.__path__ = ["/".join([place, *name.split(".")])]
            sys.modules[stand_in.__name__] = stand_in
            if loaded is not None:  # as the import system does, which is past that here
                setattr(loaded, name, stand_in)
