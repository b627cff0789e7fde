"""Arguments that are no numbers, or none that mean anything, end in one line and exit code 2."""

import itertools

import pytest

from tests.runs.running import refused

MASKED = {
    "--nodes": "9", "--sigma-cdp": "1", "--sigma-cor": "1", "--clip": "1", "--collusion": "1",
    "--rounds": "50", "--delta": "1e-3",
}  # fmt: skip
CALIBRATE = {
    "--target-epsilon": "1", "--target-delta": "1e-5", "--steps": "10",
    "--sampling-probability": "0.5",
}  # fmt: skip
NEVER = ["nan", "inf", "-inf", "-1", "1e400", "x", ""]
ALSO_BAD = {
    "--nodes": ["0", "0.5", "9" * 5000], "--sigma-cdp": ["0"], "--sigma-cor": ["-0.5"],
    "--clip": ["0"], "--collusion": ["9", "0.5"], "--rounds": ["0", "1000000000000"],
    "--target-epsilon": ["0"], "--target-delta": ["0", "1"],
    "--steps": ["0", "1e3"], "--sampling-probability": ["0", "1.5"], "--delta": ["2"],
}  # fmt: skip


def cases():
    for command, sound in (("secldp", {"--graph": "ring", **MASKED}), ("calibrate", CALIBRATE)):
        for option in sorted({*sound} - {"--graph"}):
            for value in [*NEVER, *ALSO_BAD[option]]:
                yield command, sound | {option: value}, option
    for value in [*NEVER, *ALSO_BAD["--delta"]]:
        yield "ledger", {"--delta": value}, "--delta"


def test_every_bad_number_of_the_privacy_commands_is_one_line(tmp_path):
    found = list(cases())
    assert len(found) >= 90
    for command, options, culprit in found:
        places = [tmp_path] if command == "ledger" else []
        assert culprit in refused("privacy", command, *itertools.chain(*options.items(), places))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("run --nothing", "--nothing"),
        ("nothing", "nothing"),
        ("privacy ledger", "PATH"),
        ("privacy ledger /nothing/here --delta 1e-5", "/nothing/here"),
        ("run --set", "--set"),
        ("run --data-dir /nothing/here", "--data-dir"),
        ("run /nothing/here.toml", "/nothing/here.toml"),
        ("run --resume /nothing/here --status", "expected a run folder"),
    ],
)
def test_words_that_are_no_arguments_are_one_line(words, expected):
    assert expected.lower() in refused(*words.split()).lower()
