"""Where the checked-in experiments lie."""

from pathlib import Path

from manifed.flower.run_config import APP_FOLDER

EXPERIMENTS = APP_FOLDER / "configs" / "experiments"


def experiment_path(name: str) -> Path:
    """configs/experiments/NAME.toml, or NAME itself where it is a path to a config."""
    return Path(name) if name.endswith(".toml") else EXPERIMENTS / f"{name}.toml"
