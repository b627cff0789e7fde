"""Flower's door to a client: a query that introduces the node, and a client update."""

from pathlib import Path

from manifed.flower.client import client_app_of
from manifed.flower.run_config import experiment_of

FOLDER = Path(__file__).resolve().parents[1]
"""Where the app was unpacked, with its configs."""

app = client_app_of(lambda context: experiment_of(context.run_config, FOLDER))
