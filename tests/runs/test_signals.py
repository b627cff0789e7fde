"""A signal ends a run in order: one line with the real path, and the exit code it deserves."""

import importlib
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from manifed.cli import launch as launching
from manifed.cli.main import simulation
from manifed.errors import RunEnded
from manifed.runs.interrupt import Ended, ending_signals
from tests.command import Done, invoke
from tests.runs.running import QUICKSTART, SIGNALS, run_in, told, wait_for

SETS = ("federation.num_clients=2", "federation.num_rounds=20000",
        "evaluation.every=20000", "privacy={kind='none'}")  # fmt: skip


def begun(out, *more):
    sets = [word for item in SETS for word in ("--set", item)]
    words = [sys.executable, "-u", "simulation.py", QUICKSTART, *sets, "--plain", "--out", str(out)]
    return subprocess.Popen(
        [*words, *more], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        # a test's own process has no threads that a fork could deadlock
        preexec_fn=lambda: [signal.signal(n, signal.SIG_DFL) for n, _ in SIGNALS],  # noqa: PLW1509
    )  # fmt: skip


def catches(pid, number):
    """Whether a process has a handler for a signal, as the kernel says."""
    with open(f"/proc/{pid}/status") as file:
        (mask,) = (line.split()[1] for line in file if line.startswith("SigCgt"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def ended(process, number):
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    return process.returncode, out, err.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "number", "code"), [(0.0, *SIGNALS[0]), (0.5, *SIGNALS[2])])
def test_a_run_that_starts_up_has_written_nothing(tmp_path, seconds, number, code):
    process = begun(tmp_path / "run")
    wait_for(lambda: process.poll() is not None or catches(process.pid, signal.SIGHUP))
    time.sleep(seconds)
    found, out, lines = ended(process, number)
    if (tmp_path / "run").exists():  # it had begun its rounds by then
        assert lines[-1].endswith(f"--resume {tmp_path / 'run'}")
    else:
        assert lines[0].startswith("error: interrupted; start again: python simulation.py ")
    assert found == code
    assert out == ""


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_while_the_data_are_read_says_how_to_start_again(
    tmp_path, monkeypatch, number, code
):
    handlers = [signal.getsignal(n) for n, _ in SIGNALS]
    monkeypatch.setattr(launching, "check_parts", lambda _: os.kill(os.getpid(), number))
    words = [QUICKSTART, "--out", str(tmp_path / "run"), "--plain"]
    again = f"python simulation.py {' '.join(words)}"
    said = f"error: interrupted; start again: {again}\n"
    assert invoke(*words, call=simulation) == Done(code, "", said)
    assert not (tmp_path / "run").exists()
    assert [signal.getsignal(n) for n, _ in SIGNALS] == handlers


def test_a_signal_that_is_ignored_stays_ignored(tmp_path, monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        told(monkeypatch, lambda _: os.kill(os.getpid(), signal.SIGHUP))
        assert run_in(tmp_path / "run", *SETS, "federation.num_rounds=2").manifest()["final"]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_inside_an_import_waits_for_its_end(tmp_path, monkeypatch):
    # A library that takes any exception for a missing module would go on without this one.
    (tmp_path / "half_way.py").write_text(
        "import os, signal, time\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(0.1)\n"
        "    is_whole = True\n"
        "except BaseException:\n"
        "    is_whole = False\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def wait():
        with ending_signals():
            importlib.import_module("half_way")
            time.sleep(5)

    with pytest.raises(Ended) as caught:
        wait()
    assert importlib.import_module("half_way").is_whole
    assert caught.value.code == 143
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_signal_that_a_library_turned_into_an_error_of_its_own_is_a_signal_still():
    def built():  # as pydantic's core does while it builds a validator
        try:
            os.kill(os.getpid(), signal.SIGHUP)
        except BaseException as error:
            raise ValueError(f"error building a validator: {error!r}") from None

    with pytest.raises(Ended) as caught, ending_signals():
        built()
    assert caught.value.code == 129


@pytest.mark.parametrize("error", [ValueError("x"), RunEnded("the folder is whole", 143)])
def test_an_error_beside_no_signal_and_a_word_on_how_to_go_on_stay_as_they_are(error):
    def run():
        if isinstance(error, RunEnded):
            with suppress(Ended):
                os.kill(os.getpid(), signal.SIGTERM)
        raise error

    with pytest.raises(type(error)) as caught, ending_signals():
        run()
    assert caught.value is error


@pytest.mark.slow
def test_a_run_in_its_rounds_names_the_folder_it_goes_on_in(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    process = begun(tmp_path / "link" / "it's mine")
    folder = tmp_path / "real" / "it's mine"
    saved = folder / "checkpoint.safetensors"
    wait_for(saved.exists)
    way = f"python simulation.py --resume {shlex.quote(str(folder))}"
    (_, sigint), (sigterm, of_term), _ = SIGNALS
    found, out, lines = ended(process, sigterm)
    assert (found, out, lines[-1]) == (of_term, "", f"error: interrupted; go on with: {way}")
    before = saved.stat().st_mtime_ns
    again = begun(tmp_path / "elsewhere", "--resume", str(folder))
    wait_for(lambda: saved.stat().st_mtime_ns != before)
    found, _, lines = ended(again, signal.SIGINT)
    assert found == sigint
    assert lines[-1].endswith(way)
