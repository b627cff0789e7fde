"""The files of the Flower app that travel: what ``fab-include`` names, and nothing else."""

import shutil
import tomllib
from pathlib import Path


def stage(project: Path, target: Path) -> Path:
    """The folder to build the FAB from: a copy of the files that ``fab-include`` names.

    Building in the repository itself would walk through ``.venv``, ``.git`` and all run folders,
    and would take up edits made while the run is under way.
    """
    config = tomllib.loads((project / "pyproject.toml").read_text())
    patterns = config["tool"]["flwr"]["app"].get("fab-include")
    if not patterns:
        return project
    names = {path.relative_to(project) for pattern in patterns for path in project.glob(pattern)}
    for name in sorted({*names, Path("pyproject.toml")}):
        if (project / name).is_file() and "__pycache__" not in name.parts:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(project / name, target / name)
    return target
