"""The ClientApp that Flower starts: it answers a query about the node, and client updates."""

from pathlib import Path

from manifed.flower.client import client_app_of
from manifed.flower.run_config import experiment_of

# The folder is where the app was unpacked, with its configs.
app = client_app_of(
    lambda context: experiment_of(context.run_config, Path(__file__).resolve().parents[1])
)
