"""Whatever lies in a run folder, a command that reads it succeeds or says in one line why not.

A refusal has exit code 2, names the file, and leaves every byte and date of the folder as it was.
"""

import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from manifed.runs.checkpoint import digest_of, load
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
    consistent_checkpoint,
    of_bytes,
    of_lines,
)
from tests.runs.running import everything, killed_in, one_line, read, run_in
from tests.runs.test_refusals import SETS

READ = (EXPERIMENT, MANIFEST, LEDGER, HEAD, CHECKPOINT)
WITH_ROWS = (*READ, METRICS)
COMMANDS = {"ledger": READ, "resume": WITH_ROWS, "report": WITH_ROWS, "status": WITH_ROWS,
            "export": (*WITH_ROWS, MODEL)}  # fmt: skip
"""Which files each command reads."""
LONG_ONES = [pytest.mark.slow, pytest.mark.one_week_in(3)]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A run that was killed in round 4, and a finished one."""
    root = tmp_path_factory.mktemp("sound")
    sets = (*SETS, "evaluation.is_enabled=true", "federation.num_rounds=4")
    killed_in(4, run_in, root / "killed", *sets)
    run_in(root / "finished", *sets)
    return root


def verdict(command, folder, out):
    """None for success; else the one line; raises for anything else."""
    before = everything(folder)
    if (done := read(command, folder, out)).exit_code == 0:
        return None
    line = one_line(done)
    assert len(line) < 2000
    assert line[:-1].isprintable()
    assert everything(folder) == before
    assert not out.exists()
    return line


def try_all(command, sound, tmp_path, cases):
    """The names of the cases that were not refused; the first failure ends."""
    source = sound / ("killed" if command == "resume" else "finished")
    passed = []
    for file, name, change in cases:
        folder = shutil.copytree(source, tmp_path / "case" / "run")
        change(folder / file)
        try:
            line = verdict(command, folder, tmp_path / "case" / "out")
            assert line is None or file.split(".")[0] in line or str(folder) in line, line
        except BaseException as error:
            error.add_note(f"{command}: {file}: {name}")
            raise
        finally:
            shutil.rmtree(tmp_path / "case")
        passed += [name] if line is None else []
    return passed


HARMLESS = {"gone", "UTF-16", "cut by 10", "a torn line"}
"""Of `ANY`, what some command rightly lives with: a checkpoint or metrics that a crash left out, a
row that it tore, JSON in another encoding."""


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("stride", [pytest.param(3, marks=LONG_ONES), 31])
def test_damage_ends_in_one_line_and_changes_nothing(command, stride, sound, tmp_path):
    cases = all_damage(COMMANDS[command], command != "resume")
    if command == "report" and stride > 3:  # one that is drawn takes a second
        cases = [case for case in cases if case[1] in ANY]
    cases = cases[:: stride * (3 if command == "report" and stride == 3 else 1)]
    whole, *passed = try_all(command, sound, tmp_path, [(LEDGER, "sound", lambda _: None), *cases])
    assert whole == "sound", "the control: what every case spoils is not refused"
    assert len(passed) <= 0.5 * len(cases)
    assert not {*passed} & ({*ANY} - HARMLESS)


def test_the_cases_are_many():
    counts = {c: len(all_damage(files, c != "resume")) for c, files in COMMANDS.items()}
    assert counts["ledger"] >= 200
    assert sum(counts.values()) >= 2000


@pytest.mark.parametrize("command", ["report", "export", "status"])
def test_a_config_that_was_changed_after_the_end_is_refused(command, sound, tmp_path):
    changes = {
        "changed": of_bytes(lambda data: data.replace(b"noise_multiplier", b"noise_multiplier ")),
        "gone": ANY["gone"],
        "shorter": of_lines(lambda lines: lines[:-1]),  # may be a whole config, of another run
    }
    assert not try_all(command, sound, tmp_path, [(EXPERIMENT, *case) for case in changes.items()])


def in_keys_of_format_2(path):
    saved = load(path)
    metadata = {"format": "2", "round": str(saved.server_round)}
    metadata["meta"] = saved.meta.model_dump_json()
    metadata["sha256"] = digest_of(saved.tensors, metadata)
    save_file(dict(saved.tensors), path, metadata)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (in_keys_of_format_2, "one of another format"),
        (consistent_checkpoint(meta=lambda m: m.pop("tally") and m), "tally"),
        (
            consistent_checkpoint(tensors=lambda t: {f"state.{k}": v for k, v in t.items()}),
            "state.",
        ),
    ],
)
def test_a_checkpoint_of_another_format_is_refused_by_name(change, named, sound, tmp_path):
    """Nothing is written (`verdict`): neither is it replaced, nor does a run begin beside it."""
    folder = shutil.copytree(sound / "killed", tmp_path / "run")
    change(folder / CHECKPOINT)
    line = verdict("resume", folder, tmp_path / "out")
    assert str(folder / CHECKPOINT) in line
    assert named in line


def mutated(data, changes):
    """``data`` with pieces of it replaced by others."""
    for place, length, piece in changes:
        at = place % (len(data) + 1)
        data = data[:at] + piece + data[at + length :]
    return data


@pytest.mark.parametrize("file", [MANIFEST, METRICS, LEDGER, HEAD, CHECKPOINT, EXPERIMENT, MODEL])
@pytest.mark.parametrize("count", [pytest.param(50, marks=LONG_ONES), 2])
def test_any_bytes_end_in_one_line(file, count, sound, tmp_path):
    command = "export" if file in COMMANDS["export"] else "resume"
    piece = st.tuples(st.integers(0, 1 << 16), st.integers(0, 9), st.binary(max_size=3))

    @settings(max_examples=count, derandomize=True, deadline=None, database=None)
    @given(st.lists(piece, min_size=1, max_size=4))
    def tried(changes):
        try_all(
            command,
            sound,
            tmp_path,
            [(file, f"{changes}", of_bytes(lambda data: mutated(data, changes)))],
        )

    tried()
