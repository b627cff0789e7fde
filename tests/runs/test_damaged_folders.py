"""Whatever lies in a run folder, a command that reads it succeeds or says in one line why not.

A refusal has exit code 2, names the file, and leaves every byte and date of the folder as it was.
"""

import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from manifed.cli.main import main
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
    of_lines,
)
from tests.runs.running import ended, everything, killed_in, one_line, run_in
from tests.runs.test_refusals import SETS

READ = (EXPERIMENT, MANIFEST, LEDGER, HEAD, CHECKPOINT)
COMMANDS = {
    "ledger": READ, "resume": (*READ, METRICS), "report": (*READ, METRICS),
    "export": (*READ, METRICS, MODEL), "status": (*READ, METRICS),
}  # fmt: skip
"""Which files each command reads."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A run that was killed in round 4, and a finished one."""
    root = tmp_path_factory.mktemp("sound")
    sets = (*SETS, "evaluation.is_enabled=true", "federation.num_rounds=4")
    killed_in(4, run_in, root / "killed", *sets)
    run_in(root / "finished", *sets)
    return root


def words_of(command, folder, out):
    return {
        "resume": ["run", "--plain", "--resume", folder],
        "report": ["report", folder, "--out", out],
        "export": ["export", folder, "--out", out],
        "status": ["run", "--resume", folder, "--status"],
        "ledger": ["privacy", "ledger", folder, "--delta", "1e-5"],
    }[command]


def verdict(command, folder, out, capsys):
    """None for success; else the one line; raises for anything else."""
    before = everything(folder)
    words = words_of(command, folder, out)
    found = ended(main, words, capsys)
    if found[0] == 0:
        return None
    line = one_line(*found)
    assert len(line) < 2000
    assert line[:-1].isprintable()
    assert everything(folder) == before
    assert not out.exists()
    return line


def try_all(command, sound, tmp_path, capsys, cases):
    """The cases that were refused and those that were not; the first failure ends."""
    source = sound / ("killed" if command == "resume" else "finished")
    refused = []
    passed = []
    for number, (file, name, change) in enumerate(cases):
        folder = tmp_path / str(number) / "run"
        out = tmp_path / str(number) / "out"
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

    shorter = of_lines(lambda lines: lines[:-1])  # may be a whole config, of another run
    changes = {"changed": changed, "gone": ANY["gone"], "shorter": shorter}
    cases = [(EXPERIMENT, *case) for case in changes.items()]
    assert not try_all(command, sound, tmp_path, capsys, cases)[1]


def in_keys_of_format_2(path):
    saved = load(path)
    metadata = {
        "format": "2",
        "round": str(saved.server_round),
        "meta": saved.meta.model_dump_json(),
    }
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
    ids=["its metadata", "what it remembers", "its tensors"],
)
def test_a_checkpoint_of_another_format_is_refused_by_name(change, named, sound, tmp_path, capsys):
    """Nothing is written (`verdict`): neither is it replaced, nor does a run begin beside it."""
    folder = shutil.copytree(sound / "killed", tmp_path / "run")
    change(folder / CHECKPOINT)
    line = verdict("resume", folder, tmp_path / "out", capsys)
    assert line is not None
    assert str(folder / CHECKPOINT) in line
    assert named in line


@pytest.mark.parametrize("command", ["export", "ledger"])
def test_a_sound_folder_is_read(command, sound, tmp_path, capsys):
    """The control: what every case spoils is not refused."""
    assert try_all(command, sound, tmp_path, capsys, [(LEDGER, "sound", lambda path: None)])[1]


def mutations():
    place = st.integers(0, 1 << 16)
    byte = st.binary(max_size=3)
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
