"""The gate sees what did not run."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.fresh import ROOT

PLANTED = {
    "test_tool.py": "import pytest\ndef test_it():\n    pytest.skip('no tool')\n",
    "test_condition.py": "import pytest\n@pytest.mark.skipif(True, reason='')\ndef test_it(): ...",
    "test_module.py": "import pytest\npytest.importorskip('no_such_module')\ndef test_it(): ...\n",
    "test_expected.py": "import pytest\n@pytest.mark.xfail\ndef test_it():\n    assert False\n",
    "test_plain.py": "def test_it(): ...\n",
}


@pytest.mark.parametrize(
    ("environment", "status", "expected"),
    [
        ({"CI": "true"}, 1, "1 failed, 1 passed, 1 xfailed, 2 errors"),
        ({}, 0, "1 passed, 3 skipped, 1 xfailed"),
    ],
    ids=["in the gate", "outside"],
)
def test_a_skipped_test_or_file_fails_the_gate(tmp_path, environment, status, expected):
    for name in ("conftest.py", "seconds.txt"):
        shutil.copy(ROOT / "tests" / name, tmp_path)
    for name, text in PLANTED.items():
        (tmp_path / name).write_text(text)
    inherited = {k: v for k, v in os.environ.items() if k != "CI" and not k.startswith("PYTEST")}
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "--assert=plain",
            "--continue-on-collection-errors", "-c", os.devnull, ".",
        ],
        cwd=tmp_path,
        env=inherited | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | environment,
        check=False,
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == status
    assert expected in done.stdout.splitlines()[-1]


def test_a_suite_without_time_fails_the_gate():
    done = subprocess.run(
        [ROOT / ".ci" / "run"],
        env=os.environ | {"GATE_SECONDS": "0"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    for name in ("tools", "quickstart", "check", "test", "portable", "mutants", "slow",
                 "ray", "deployment"):  # fmt: skip
        assert f"FAILED   {name}: not run" in done.stdout
