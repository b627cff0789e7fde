"""What every command keeps to: one JSON document, hints, exit codes, plain text."""

import json
import re
import sys

import click
import pytest
import typer

from manifed.cli import main as cli
from manifed.cli import options
from manifed.cli.main import main
from manifed.runs.interrupt import Ended
from tests.command import invoke
from tests.runs.running import refused
from tests.runs.test_cli import QUICKSTART
from tests.runs.test_public import launched

ESCAPE = "\x1b"


def leaves(group, path=()):
    """Every command of the tree, with the words that call it."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name), command


TREE = typer.main.get_command(cli.app)
LEAVES = dict(leaves(TREE))


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_command_explains_itself_and_has_the_one_json_option(words):
    command = LEAVES[words]
    done = invoke(*words, "--help")
    assert done.exit_code == 0
    assert ESCAPE not in done.stdout
    assert command.help
    options = {name: option for option in command.params for name in option.opts}
    assert "one JSON document to standard output" in options["--json"].help
    for name, option in options.items():
        if isinstance(option, click.Option):
            assert option.help, name


def answers(run):
    """Commands that take no time, each with what it needs."""
    return {
        "status": ["run", "--resume", run, "--status"],
        "calibrate": ["privacy", "calibrate", "--target-epsilon", "1", "--target-delta", "1e-5",
                      "--steps", "1"],
        "statement": ["privacy", "statement", QUICKSTART],
    }  # fmt: skip


def test_under_json_standard_output_is_one_document_and_the_words_are_elsewhere(tmp_path):
    seeded = ("privacy.noise_source=seed", "federation.cohort={kind='all'}")
    for name, words in answers(launched(tmp_path / "run", *seeded)).items():
        plain = invoke(*words)
        asked = invoke(*words, "--json")
        assert (plain.exit_code, asked.exit_code) == (0, 0), (name, asked.stderr)
        assert asked.stdout.count("\n") == 1, name
        assert isinstance(json.loads(asked.stdout), dict), name
        assert ESCAPE not in plain.stdout + asked.stdout + asked.stderr, name
        assert plain.stdout.strip(), name
        if name != "status":  # it says in the document what it says in words
            assert plain.stdout.splitlines()[0] in asked.stderr, name


def test_nothing_but_the_document_can_reach_standard_output_under_json():
    def command():
        sys.stdout.write("words\n")
        options.print_json({"epsilon": float("inf")})

    alone = typer.Typer()
    alone.command(cls=options.Command)(command)
    program = typer.main.get_command(alone)
    done = invoke("--json", call=lambda words: cli.call(program, words, "alone"))
    assert json.loads(done.stdout) == {"epsilon": "infinity"}
    assert done.stderr == "words\n"
    assert invoke(call=lambda words: cli.call(program, words, "alone")).stdout == "words\n"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["reprt"], "'report'"),
        (["privacy", "calibrat"], "'calibrate'"),
        (["run", "--engin", "ray"], "'--engine'"),
        (["run", "--engine", "inlin"], "'inline'"),
        (["run", QUICKSTART.replace("start.", "strt.")], "quickstart.toml'"),
        (["run", "--set", "trainin.step_size=1"], "'training'"),
        (["run", "--set", "training.step_siz=1"], "'step_size'"),
        (["run", "--set", "training.kind=rsg"], "'rsgd'"),
        (["run", "--set", "federation.cohort={kind='poison'}"], "'poisson'"),
        (["run", "--set", "federation.replies.on_failure=retri"], "'retry'"),
    ],
    ids=lambda words: " ".join(words)[-30:] if isinstance(words, list) else "",
)
def test_a_word_that_is_nearly_right_is_told_the_right_one(words, meant):
    error = refused(*words)
    assert re.search(f"did you mean.*{re.escape(meant)}", error, re.IGNORECASE), error


@pytest.mark.parametrize("words", [["audit"], ["plan", "x.toml"], ["export", "a b", "--out", "c"]])
def test_whoever_interrupts_what_keeps_nothing_is_told_the_command(words, capsys, monkeypatch):
    def ends(*_, **__):
        raise Ended(2)

    monkeypatch.setattr(typer.core.TyperGroup, "__call__", ends)
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 130
    said = capsys.readouterr().err
    assert said.startswith("error: interrupted; start again: manifed ")
    assert said.strip().endswith("'a b' --out c" if words[0] == "export" else words[-1])
