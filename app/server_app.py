"""Flower's door to the server: read the config, run the experiment."""

from manifed.flower.apps import server_app_of
from manifed.flower.run_config import experiment_of

app = server_app_of(lambda context: experiment_of(context.run_config))
