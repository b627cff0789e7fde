"""This application's Flower strategies; a wheel has them as `manifed.flower.strategies`.

Under either name a module is one object: this package enters those of the library.
"""

from manifed.flower import enter_as

enter_as(__name__)
