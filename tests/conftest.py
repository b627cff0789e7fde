"""In the gate, where ``CI=true``, a test that is skipped fails: nothing that was not run is green.

A long test of many cases is marked ``one_week_in(n)``: each week of the year runs every nth of the
cases that are marked so, and n weeks run all of them. With ``EVERY_WEEK=1`` one run has all.

Tests that `seconds.txt` lists are marked ``seconds``: `make slow` runs them, `make test` does not.

A capability that a case lacks is not a skip: the test is not generated for that case. A test that
needs a device or data has a marker, which ``make`` selects where they are.
"""

import gc
import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

gc.set_threshold(50_000)  # 700 objects: collecting thousands of tests looks at each of them often
IS_GATE = os.environ.get("CI") == "true"
SECONDS = {*Path(__file__).with_name("seconds.txt").read_text().splitlines()}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.nodeid.partition("[")[0] in SECONDS:
            item.add_marker("seconds")
    if os.environ.get("EVERY_WEEK"):  # an option would be unknown where this file is not loaded
        return
    week = datetime.now(UTC).isocalendar().week
    seen = Counter()
    kept, left_out = [], []
    for item in items:
        mark = item.get_closest_marker("one_week_in")
        n = mark.args[0] if mark else 1
        (kept if (seen[n] - week) % n == 0 else left_out).append(item)
        seen[n] += 1
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


def fail_if_skipped(report):
    """Change a skip of the gate into a failure that gives its reason; an expected one stays."""
    if IS_GATE and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: Expected no skip with CI=true, got {str(reason)!r}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    report = yield
    fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    report = yield
    fail_if_skipped(report)
    return report


@pytest.fixture(params=["numba", "torch"])
def way(request, monkeypatch):
    """With the compiled kernel of linear models, and without."""
    from manifed.oracles import fused

    if request.param == "numba":
        pytest.importorskip("numba")
    monkeypatch.setenv(fused.VARIABLE, request.param)
    fused.kernel.cache_clear()
    yield request.param
    fused.kernel.cache_clear()
