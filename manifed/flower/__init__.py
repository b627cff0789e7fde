"""The only package that imports Flower: strategies, clients, records and Grids.

`manifed.flower.strategies` and `manifed.flower.clients` are folders of a wheel. In a checkout, an
editable install and a Flower app bundle they are the top-level folders of the same names.
"""

import sys
from importlib import import_module
from pathlib import Path

from manifed.errors import optional

_HERE = Path(__file__).parent
if not (_HERE / "strategies").is_dir():
    __path__.append(str(_HERE.parents[1]))


def enter_as(name: str) -> None:
    """Enters the package `manifed.flower.NAME` and its modules in `sys.modules` as ``name``.

    A class is then one object, whether its module is imported from the top-level folder or from
    the library, under whose name there is nothing to enter.

    Raises:
        Missing: without Flower, which every module there needs.
    """
    with optional():
        import_module("flwr")
    if "." in name:
        return
    package = import_module(f"manifed.flower.{name}")
    for folder in package.__path__:
        for path in Path(folder).glob("[a-z]*.py"):
            sys.modules[f"{name}.{path.stem}"] = import_module(f"manifed.flower.{name}.{path.stem}")
    sys.modules[name] = package
