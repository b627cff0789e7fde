"""This application's Flower clients; a wheel has them as `manifed.flower.clients`.

Under either name a module is one object: this package enters those of the library.
"""

from manifed.flower import enter_as
from manifed.lazy import lazily

enter_as(__name__)
__getattr__, __dir__ = lazily(__name__, {"local_training": ["client_app"]})
