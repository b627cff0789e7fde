"""Subpackages that a library imports for everybody and few need, until somebody looks into them.

``import geoopt`` imports its optimisers and samplers, and with them scipy.optimize: a quarter of a
second before ``geoopt.Manifold``, which is all that this package needs. Once they are deferred,
``geoopt.optim`` and ``geoopt.samplers`` are there as ever and are imported at the first look.
"""

import importlib.util
import sys
from importlib import import_module
from types import ModuleType


class Deferred(ModuleType):
    """A package that is imported when an attribute of it is first asked for."""

    def __getattr__(self, name: str) -> object:
        """The attribute of the package itself, which takes this one's place.

        Raises:
            AttributeError: the package has no such attribute.
        """
        if name.startswith("__") and name != "__all__":  # what the import system asks of anything
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def defer(package: str, names: tuple[str, ...]) -> None:
    """Put a stand-in in place of each of a package's subpackages; nothing once it is imported."""
    found = None if package in sys.modules else importlib.util.find_spec(package)
    for place in (found and found.submodule_search_locations) or ():
        for name in names:
            stand_in = Deferred(f"{package}.{name}")
            stand_in.__path__ = [f"{place}/{name}"]
            sys.modules.setdefault(stand_in.__name__, stand_in)
