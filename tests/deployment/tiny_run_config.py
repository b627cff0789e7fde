"""The run config of the tiny app, as a program submits it."""

import shlex
from pathlib import Path


def tiny_run_config(clients: int, out: Path, *overrides: str) -> dict[str, str]:
    """What the tiny app reads: it splits its overrides as a shell would."""
    items = [f"clients={clients}", f"output.directory={out.absolute()}", *overrides]
    return {"experiment": "some.toml", "overrides": shlex.join(items)}
