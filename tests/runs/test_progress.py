import io
import logging
import subprocess
import sys

import pytest

from manifed.runs.progress import Bar, PlainLines, over_runs, progress_of


class Terminal(io.StringIO):
    def isatty(self):
        return True


def lines_of(num_rounds, told):
    stream = io.StringIO()
    with progress_of(num_rounds, stream=stream) as progress:
        for server_round in told:
            progress(server_round, {"cost": 1.0 / (server_round + 1)})
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("num_rounds", [1, 7, 20, 21, 100, 999, 5000])
def test_plain_text_stays_short_and_shows_the_first_and_the_last_round(num_rounds):
    lines = lines_of(num_rounds, range(num_rounds + 1))
    assert len(lines) <= 22
    assert len(lines) >= min(num_rounds, 10)
    assert f" 0/{num_rounds} " in lines[0]
    assert f" {num_rounds}/{num_rounds} " in lines[-1]


@pytest.mark.parametrize("every", [3, 7, 50])
def test_plain_text_shows_sparsely_evaluated_runs_too(every):
    told = [*range(every, 1000, every), 1000]
    lines = lines_of(1000, told)
    assert 10 <= len(lines) <= 22
    assert "1000/1000" in lines[-1]


def test_a_line_names_round_cost_gradient_norm_and_epsilon():
    stream = io.StringIO()
    with progress_of(10, stream=stream) as progress:
        progress(1, {"cost": -0.12345678, "gradient_norm": 1.5e-9, "epsilon": 0.25})
        progress(2, {"cost": 3.0, "gradient_norm": None})
    first, second = stream.getvalue().splitlines()
    shown = [" ".join(line.split()) for line in (first, second)]
    assert shown[0] == "round 1/10 cost -0.1235 gradient norm 1.5e-09 epsilon 0.25"
    assert shown[1] == "round 2/10 cost 3 gradient norm - epsilon -"


def test_a_terminal_gets_a_bar_unless_plain_is_asked_for():
    assert isinstance(progress_of(3, stream=Terminal()), Bar)
    assert isinstance(progress_of(3, stream=Terminal(), plain=True), PlainLines)
    assert isinstance(progress_of(3, stream=io.StringIO()), PlainLines)


def test_the_bar_shows_the_newest_round(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    with progress_of(500, stream=stream) as progress:
        progress(500, {"cost": -1.234e-05, "gradient_norm": 2e-3, "epsilon": 1.25})
    shown = stream.getvalue()
    for text in ("500/500", "-1.23e-05", "0.002", "1.25"):
        assert text in shown


def test_a_bar_is_closed_when_the_run_fails():
    stream = Terminal()
    with pytest.raises(ValueError, match="format"), progress_of(3, stream=stream) as progress:
        progress(1, {"cost": "not a number"})
    assert stream.getvalue().endswith("\x1b[?25h")


def test_the_label_of_a_run_stands_above_its_bar_once_and_in_every_line():
    row = {"cost": 0.5, "label": "seeded run (no guarantee)", "epsilon": 1.5}
    stream = Terminal()
    with progress_of(2, stream=stream) as progress:
        progress(1, row)
        progress(2, row)
    shown = stream.getvalue()
    assert shown.count("privacy: seeded run (no guarantee)") == 1
    assert shown.index("privacy: seeded run") < shown.index("1.5")
    lines = io.StringIO()
    with progress_of(2, stream=lines) as progress:
        progress(1, row)
        progress(2, row)
    for line in lines.getvalue().splitlines():
        assert line.index("seeded run (no guarantee)") < line.index("epsilon 1.5")


def test_log_lines_stand_above_the_bar_and_never_in_it(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    logger = logging.getLogger("told.before")
    handler = logging.StreamHandler()  # as Flower's: it holds the stream of that time
    logger.addHandler(handler)
    try:
        with progress_of(3) as progress:
            progress(1, {"cost": 0.5})
            logger.warning("a line of the engine")
            progress(2, {"cost": 0.25})
        assert handler.stream is stream
    finally:
        logger.removeHandler(handler)
    before, _, after = stream.getvalue().partition("a line of the engine")
    assert before.endswith("\r\x1b[2K")
    assert after.startswith("\n")
    assert "2/3" in after


def test_plain_text_never_imports_rich():
    code = (
        "import io, sys; from manifed.runs.progress import progress_of; "
        "progress_of(3, stream=io.StringIO())(1, {}); sys.exit('rich' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_all_runs_share_one_bar_on_a_terminal_with_what_failed_above_it(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    with over_runs(3, stream) as show:
        show("curve-seed-0", None)
        show("curve-seed-1", "out of [memory]")
        show("x" * 80 + "-seed-2", None)
    shown = stream.getvalue()
    assert "3/3" in shown
    assert "curve-seed-1: FAILED: out of [memory]" in shown
    assert "\x1b[" in shown


def test_all_runs_are_plain_lines_without_escape_codes_elsewhere():
    stream = io.StringIO()
    with over_runs(2, stream) as show:
        show("a-seed-0", None)
        show("a-seed-1", "no memory")
    first, second = stream.getvalue().splitlines()
    assert (first[:13], first[-4:]) == ("1/2 a-seed-0:", "left")
    assert second == "2/2 a-seed-1: FAILED: no memory"
    assert "\x1b" not in stream.getvalue()
