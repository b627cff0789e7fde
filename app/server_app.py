"""Flower's door to the server: read the config, run the experiment by its strategy."""

from pathlib import Path

from manifed.flower.apps import server_app_of
from manifed.flower.run_config import experiment_of

FOLDER = Path(__file__).resolve().parents[1]
"""Where the app was unpacked, with its configs."""

app = server_app_of(lambda context: experiment_of(context.run_config, FOLDER))
