"""The ServerApp that Flower starts: it reads the config and runs the experiment by its strategy."""

from pathlib import Path

from manifed.flower.apps import server_app_of
from manifed.flower.run_config import experiment_of

# The folder is where the app was unpacked, with its configs.
app = server_app_of(
    lambda context: experiment_of(context.run_config, Path(__file__).resolve().parents[1])
)
