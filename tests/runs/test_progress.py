"""What is told of rounds: few plain lines, or one line that is rewritten."""

import io
from contextlib import redirect_stderr, suppress

import pytest

from manifed.runs.progress import is_screen, shown


class Terminal(io.StringIO):
    def isatty(self):
        return True


def lines_of(num_rounds, told):
    with redirect_stderr(io.StringIO()) as stream, shown(num_rounds) as show:
        for server_round in told:
            show(server_round, {"cost": 1.0 / (server_round + 1)})
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("every", [1, 3, 50])
@pytest.mark.parametrize("num_rounds", [1, 21, 999])
def test_plain_text_stays_short_and_shows_the_first_and_the_last_round(num_rounds, every):
    told = [*range(0, num_rounds, every), num_rounds]
    lines = lines_of(num_rounds, told)
    assert min(len(told), 10) <= len(lines) <= 22
    assert f" 0/{num_rounds} " in lines[0]
    assert f" {num_rounds}/{num_rounds} " in lines[-1]


def test_a_line_names_round_cost_gradient_norm_and_epsilon_with_its_label():
    with redirect_stderr(io.StringIO()) as stream, shown(10) as show:
        show(1, {"cost": -0.12345678, "gradient_norm": 1.5e-9, "label": "seeded", "epsilon": 0.25})
        show(2, {"cost": 3.0, "gradient_norm": None})
    assert [" ".join(line.split()) for line in stream.getvalue().splitlines()] == [
        "round 1/10 cost -0.1235 gradient norm 1.5e-09 seeded epsilon 0.25",
        "round 2/10 cost 3 gradient norm - epsilon -",
    ]


def test_a_terminal_gets_one_line_that_is_rewritten_and_closed_when_the_run_fails(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    assert is_screen()
    row = {"cost": -1.234e-05, "gradient_norm": 2e-3, "label": "seeded", "epsilon": 1.25}
    with suppress(KeyError), shown(500, is_rewritten=True) as show:
        show(250, row)
        show(500, row)
        raise KeyError
    first, second = stream.getvalue().rstrip("\n").split("\r")[1:]
    assert stream.getvalue().endswith("\n")
    assert max(len(first), len(second)) < 80
    assert "[##########----------]" in first
    for text in ("500/500", "-1.234e-05", "0.002"):
        assert text in second
    monkeypatch.setenv("TERM", "dumb")
    assert not is_screen()
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert not is_screen()
