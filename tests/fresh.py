"""Python programs in processes of their own, which have imported nothing of the checkout."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def python(
    *arguments: str, cwd: Path = ROOT, path: Sequence[Path] = ()
) -> "subprocess.CompletedProcess[str]":
    """What ``python ARGUMENTS`` does in ``cwd``: returncode, stdout and stderr.

    ``arguments`` begin with a script, ``-m`` or ``-c``; ``path`` is put before ``sys.path``.
    """
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
