"""Names of a package that are imported when they are asked for (PEP 562)."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def lazily(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Returns ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: its full name.
        homes: for each module below it the names that it defines; a module without any is itself
            what is asked for.
    """
    home_of = {name: module for module, names in homes.items() for name in names or (module,)}

    def imported(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{home_of[name]}")
        return getattr(module, name) if homes[home_of[name]] else module

    return imported, lambda: sorted(home_of)
