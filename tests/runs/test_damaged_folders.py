"""Whatever lies in a run folder, a command that reads it succeeds or says in one line why not.

A refusal has exit code 2, names the file, and leaves every byte and date of the folder as it was.
"""

import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifed.cli.launch import Request, launch
from manifed.cli.main import main
from tests.runs.folder_damage import (
    ANY,
    CHECKPOINT,
    EXPERIMENT,
    HEAD,
    LEDGER,
    MANIFEST,
    METRICS,
    MODEL,
    all_damage,
    everything,
)
from tests.runs.test_cli import QUICKSTART
from tests.runs.test_refusals import SETS, killed_run

COMMANDS = {
    "resume": (EXPERIMENT, MANIFEST, METRICS, LEDGER, HEAD, CHECKPOINT),
    "report": (EXPERIMENT, MANIFEST, METRICS, LEDGER, HEAD, CHECKPOINT),
    "export": (EXPERIMENT, MANIFEST, METRICS, LEDGER, HEAD, CHECKPOINT, MODEL),
    "ledger": (EXPERIMENT, MANIFEST, LEDGER, HEAD, CHECKPOINT),
    "status": (EXPERIMENT, MANIFEST, METRICS, LEDGER, HEAD, CHECKPOINT),
}
"""Which files each command reads."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A run that was killed in round 4, and a finished one."""
    root = tmp_path_factory.mktemp("sound")
    sets = (*SETS, "evaluation.is_enabled=true", "federation.num_rounds=4")
    killed_run(Request(QUICKSTART, sets, out=root / "killed", plain=True), 4)
    launch(Request(QUICKSTART, sets, out=root / "finished", plain=True))
    return root


def words_of(command, folder, out):
    return {
        "resume": ["run", "--plain", "--resume", str(folder)],
        "report": ["report", str(folder), "--out", str(out)],
        "export": ["export", str(folder), "--out", str(out)],
        "status": ["status", str(folder)],
        "ledger": ["privacy", "ledger", str(folder), "--delta", "1e-5"],
    }[command]


def verdict(command, folder, out, capsys):
    """None for success; else the one line; raises for anything else."""
    before = everything(folder)
    with pytest.raises(SystemExit) as caught:
        main(words_of(command, folder, out))
    shown = capsys.readouterr()
    if caught.value.code == 0:
        return None
    assert caught.value.code == 2, shown.err
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    assert len(shown.err) < 2000
    assert shown.err[:-1].isprintable()
    assert everything(folder) == before
    assert not out.exists()
    return shown.err


def try_all(command, sound, tmp_path, capsys, cases):
    """The cases that were refused and those that were not; the first failure ends."""
    source = sound / ("killed" if command == "resume" else "finished")
    refused, passed = [], []
    for number, (file, name, change) in enumerate(cases):
        folder, out = tmp_path / str(number) / "run", tmp_path / str(number) / "out"
        shutil.copytree(source, folder)
        change(folder / file)
        try:
            line = verdict(command, folder, out, capsys)
            assert line is None or file.split(".")[0] in line or str(folder) in line, line
        except BaseException as error:
            error.add_note(f"{command}: {file}: {name}")
            raise
        shutil.rmtree(tmp_path / str(number))
        (passed if line is None else refused).append((file, name))
    return refused, passed


HARMLESS = {"gone", "UTF-16", "cut by 10", "a torn line"}
"""Of `ANY`, what some command rightly lives with: a checkpoint or metrics that a crash left out, a
row that it tore, JSON in another encoding."""


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.slow), 31])
def test_damage_ends_in_one_line_and_changes_nothing(command, stride, sound, tmp_path, capsys):
    cases = all_damage(COMMANDS[command], command != "resume")
    if command == "report":  # one that is drawn takes a second
        cases = cases[::4] if stride == 1 else [case for case in cases if case[1] in ANY]
    cases = cases[::stride]
    refused, passed = try_all(command, sound, tmp_path, capsys, cases)
    assert len(refused) >= 0.5 * len(cases)
    assert not {name for _, name in passed} & (set(ANY) - HARMLESS)


def test_the_cases_are_many():
    counts = {c: len(all_damage(files, c != "resume")) for c, files in COMMANDS.items()}
    assert counts["ledger"] >= 200
    assert sum(counts.values()) >= 2000


@pytest.mark.parametrize("command", ["report", "export", "status"])
def test_a_config_that_was_changed_after_the_end_is_refused(command, sound, tmp_path, capsys):
    def changed(path):
        path.write_text(path.read_text().replace("noise_multiplier", "noise_multiplier ", 1))

    cases = [(EXPERIMENT, "changed", changed), (EXPERIMENT, "gone", ANY["gone"])]
    refused, passed = try_all(command, sound, tmp_path, capsys, cases)
    assert len(refused) == 2, passed


@pytest.mark.parametrize("command", ["export", "ledger"])
def test_a_sound_folder_is_read(command, sound, tmp_path, capsys):
    """The control: what every case spoils is not refused."""
    assert try_all(command, sound, tmp_path, capsys, [(LEDGER, "sound", lambda path: None)])[1]


def mutations():
    place, byte = st.integers(0, 1 << 16), st.binary(max_size=3)
    return st.lists(st.tuples(place, st.integers(0, 9), byte), min_size=1, max_size=4)


def mutated(data, changes):
    """``data`` with pieces of it replaced by others."""
    for place, length, piece in changes:
        at = place % (len(data) + 1)
        data = data[:at] + piece + data[at + length :]
    return data


@pytest.mark.parametrize("file", [MANIFEST, METRICS, LEDGER, HEAD, CHECKPOINT, EXPERIMENT, MODEL])
@pytest.mark.parametrize("count", [pytest.param(100, marks=pytest.mark.slow), 2])
def test_any_bytes_end_in_one_line(file, count, sound, tmp_path_factory, capsys):
    command = "export" if file in COMMANDS["export"] else "resume"

    @settings(max_examples=count, derandomize=True, deadline=None, database=None)
    @given(mutations())
    def tried(changes):
        def change(path):
            path.write_bytes(mutated(path.read_bytes(), changes))

        place = tmp_path_factory.mktemp("mutated")
        try_all(command, sound, place, capsys, [(file, f"{changes}", change)])

    tried()
