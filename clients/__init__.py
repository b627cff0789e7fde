"""This application's Flower clients; a wheel has them as `manifed.flower.clients`.

Under either name a module is one object: this package enters those of the library.
"""

from importlib import import_module

from manifed.errors import optional
from manifed.flower import enter_as

with optional():
    import_module("flwr")  # every module here needs it

if __name__ == "clients":
    enter_as(__name__)
