"""A private search: drawn once, priced whole, and nothing of the losers is published."""

import json
import shutil
from collections import Counter

import pytest
from typer.testing import CliRunner

from manifed.algorithms.held_out import PublicEvaluation
from manifed.cli import commands, main
from manifed.errors import ConfigError, RoundFailed
from manifed.experiment import search_price
from manifed.experiment.assembly import client_side
from manifed.experiment.load import load
from manifed.federation.stacked import StackedTransport
from manifed.privacy import accountant
from manifed.privacy.events import repeated
from manifed.privacy.ledger import Ledger
from manifed.privacy.tuning import Search, epsilon
from manifed.runs.driver import rounds_over, run_experiment
from manifed.runs.run_folder import RunFolder
from manifed.runs.search import conduct, score_of, sought

CONFIG = """
name = "searched"
problem = { kind = "principal-eigenvector" }
data = { kind = "synthetic-eigengap", num_clients = 2, rows = 100, dimension = 5, gap = 0.1 }
training = { kind = "rsgd", step_size = 0.2, minibatch = { kind = "full" } }
federation = { num_clients = 2, num_rounds = 2, seed = 3 }
evaluation = { kind = "private", every = 2, hold_out = 0.2, loss_range = [-1.0, 0.0] }

[privacy]
kind = "example-level"
l2_norm_clip = 1.0
noise_source = "os"
noise = { kind = "target", epsilon = 10.0, delta = 1e-4 }
"""
STEPS = "training.step_size=0.1,0.4"


@pytest.fixture
def asked(tmp_path):
    def ask(*sets, mean=4.0, measure=None):
        path = tmp_path / "searched.toml"
        path.write_text(CONFIG)
        return sought(path, (STEPS, *sets), 0, Search(mean=mean), measure, tmp_path / "out")

    return ask


def play(tasks, jobs, on_end, on_start):
    """Every run in this process."""
    del jobs
    for task in tasks:
        if not task.is_finished:
            on_start(task)
            place = {"directory": str(task.directory), "plots": False, "quiet": True}
            output = task.config.output.model_copy(update=place)
            config = task.config.model_copy(update={"output": output})
            transport = StackedTransport(client_side(config), device="cpu", memory_budget_mb=64)
            run_experiment(config, rounds_over(transport))
        on_end(task, None)


def nothing():
    pass


def stopping(after):
    """Runs that many, and is interrupted."""

    def part(tasks, jobs, on_end, on_start):
        play(tasks[:after], jobs, on_end, on_start)
        raise KeyboardInterrupt

    return part


def never(tasks, jobs, on_end, on_start):
    assert not tasks


def three(monkeypatch):
    """Three runs are drawn: settings 0, 1, 0; and so many draws were made."""
    draws = []

    def drawn(self):
        draws.append(1)
        return [0, 1, 0] if len(draws) == 1 else [1]

    monkeypatch.setattr("manifed.runs.search.Sought.drawn", drawn)
    return draws


def test_the_best_is_published_with_the_price_of_the_search(asked, monkeypatch):
    three(monkeypatch)
    search = asked()
    found = conduct(search, 1, nothing, play)
    trials = [RunFolder(search.out / "trials" / str(n)) for n in (1, 2, 3)]
    scores = [score_of(one, search.config, "held_out_loss") for one in trials]
    best = trials[scores.index(min(scores))]
    names = {path.name for path in found.directory.iterdir()}
    assert names == {"model.safetensors", "experiment.toml", "statement.json"}
    published = (found.directory / "model.safetensors").read_bytes()
    assert published == (best.directory / "model.safetensors").read_bytes()
    rounds = search_price.rounds_of(search.config)
    run = [event for releases in rounds[100] for event in releases]
    said = json.loads((found.directory / "statement.json").read_text())
    assert said["epsilon"] == pytest.approx(epsilon(run, Search(mean=4.0), 1e-4))
    assert said["epsilon"] > 10.0
    assert found.epsilon_of_server == pytest.approx(accountant.epsilon(repeated(run, 3), 1e-4))
    assert said["verdict"].startswith("RELEASE")


@pytest.mark.slow
def test_what_is_published_does_not_tell_how_many_runs_there_were(asked, monkeypatch, tmp_path):
    """The bound holds for whoever does not know K: two searches of one winner look alike."""
    said = []
    for drawn in ([0], [0, 0, 0, 0, 0]):
        monkeypatch.setattr("manifed.runs.search.Sought.drawn", lambda self, d=drawn: d)
        search = asked("privacy.noise_source='seed'")
        found = conduct(search, 1, nothing, play)
        files = sorted(found.directory.iterdir())
        said.append([(path.name, path.read_bytes()) for path in files])
        shutil.rmtree(search.out)
    assert said[0] == said[1]


def test_going_on_draws_nothing_again_and_makes_no_run_twice(asked, monkeypatch):
    draws = three(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        conduct(asked(), 1, nothing, stopping(1))
    made = []

    def rest(tasks, jobs, on_end, on_start):
        made.extend(task.number for task in tasks)
        play(tasks, jobs, on_end, on_start)

    assert not (asked().out / "published").exists()
    first = conduct(asked(), 1, nothing, rest)
    assert (made, len(draws)) == ([2, 3], 1)
    assert conduct(asked(), 1, nothing, never) == first


SLOW = (pytest.param(way, marks=pytest.mark.slow) for way in ("emptied", "gone on with"))


@pytest.mark.parametrize("what", ["removed", *SLOW])
def test_a_run_that_ended_and_was_changed_is_refused(asked, monkeypatch, what):
    three(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        conduct(asked(), 1, nothing, stopping(2))
    loser = asked().out / "trials" / "1"
    if what == "gone on with":
        with Ledger.open(loser / "ledger.jsonl") as ledger:
            ledger.append("note", {"noise_origins": ["os"]})
    else:
        shutil.rmtree(loser)
    if what == "emptied":
        loser.mkdir()
    with pytest.raises(ConfigError, match=r"expected (the ledger of a run|a run as it ended)"):
        conduct(asked(), 1, nothing, play)
    assert not (asked().out / "published").exists()


def test_a_run_whose_beginning_is_gone_is_charged_again(asked, monkeypatch):
    three(monkeypatch)

    def killed(tasks, jobs, on_end, on_start):
        on_start(tasks[0])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        conduct(asked(), 1, nothing, killed)
    found = conduct(asked(), 1, nothing, play)
    config = asked().config
    assert found.statement["epsilon"] == search_price.to_public(config, Search(mean=4.0), [2, 2])
    assert found.epsilon_of_server == search_price.to_server(config, [4, 4])


@pytest.mark.slow
def test_runs_without_the_ledger_are_no_new_search(asked, monkeypatch):
    three(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        conduct(asked(), 1, nothing, stopping(1))
    for path in asked().out.glob("search.jsonl*"):
        path.unlink()
    with pytest.raises(ConfigError, match="runs without a ledger"):
        conduct(asked(), 1, nothing, play)


@pytest.mark.parametrize(
    "other", [{"mean": 9.0}, {"measure": "held_out_accuracy"}, {"set": "federation.num_rounds=4"}]
)
def test_a_search_goes_on_as_it_was_asked_for(asked, monkeypatch, other):
    three(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        conduct(asked(), 1, nothing, stopping(0))
    more = {key: value for key, value in other.items() if key != "set"}
    with pytest.raises(ConfigError, match="expected the search that was begun here"):
        conduct(asked(*([other["set"]] if "set" in other else []), **more), 1, nothing, play)


@pytest.mark.slow
def test_a_run_that_fails_by_what_it_computed_loses_and_others_are_made_again(asked, monkeypatch):
    three(monkeypatch)

    def failing(kind):
        def part(tasks, jobs, on_end, on_start):
            for task in tasks:
                if task.number != 1:
                    play([task], jobs, on_end, on_start)
                    continue
                on_start(task)
                RunFolder.claim(task.directory)
                Ledger.create(task.folder.ledger_path, {}).close()
                task.folder.keep_error(kind("nan"))
                on_end(task, "nan")

        return part

    with pytest.raises(RoundFailed, match="a run was stopped"):
        conduct(asked(), 1, nothing, failing(OSError))
    shutil.rmtree(asked().out)
    three(monkeypatch)
    found = conduct(asked(), 1, nothing, failing(RoundFailed))
    assert found.statement["score"] is not None


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("evaluation={}",), "expected 'private' or 'public', got 'oracle'"),
        (("evaluation={}", "privacy={kind='none'}"), "privacy.kind: a search is priced for"),
        (("federation.num_rounds=2,4",), "expected settings that release and score alike"),
        (("privacy.noise_source='os','seed'",), "expected settings that release and score alike"),
    ],
)
def test_what_no_search_is_priced_for_is_refused(asked, sets, said):
    with pytest.raises(ConfigError, match=said):
        asked(*sets)


def test_a_score_of_public_records_is_free(asked):
    config = asked().config
    public = config.model_copy(update={"evaluation": PublicEvaluation(path="public.csv", every=2)})
    search_price.check_searched([public, public])
    assert {len(releases) for releases in search_price.rounds_of(public)[100]} == {1}
    assert {len(releases) for releases in search_price.rounds_of(config)[100]} == {1, 2}


def test_the_number_of_runs_is_drawn_from_the_law_by_the_system_or_the_seed(asked):
    release, seeded = asked(mean=2.0), asked("privacy.noise_source='seed'", mean=2.0)
    assert seeded.drawn() == seeded.drawn()
    counts = Counter(len(release.drawn()) for _ in range(4000))
    # geometric of mean 2: P[K = 1] = 1/2, deviation 0.0079; 1e-6 two-sided is 4.9 deviations
    assert abs(counts[1] / 4000 - 0.5) < 4.9 * 0.0079


@pytest.mark.slow
def test_the_command_publishes_the_best_and_says_the_price(tmp_path):
    commands.register(main.app)
    path = tmp_path / "searched.toml"
    path.write_text(CONFIG)
    words = ["sweep", str(path), "--set", STEPS, "--private", "1.5", "--out", str(tmp_path / "o")]
    done = CliRunner().invoke(main.app, [*words, "--json"])
    assert done.exit_code == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert f"published: ({said['epsilon']:.4g}, 0.0001)-DP" in done.stdout
    assert load(tmp_path / "o" / "published" / "experiment.toml").training.step_size in (0.1, 0.4)
    wrong = CliRunner().invoke(main.app, [*words, "--seeds", "0-1"])
    assert wrong.exit_code == 2
    assert "expected one seed beside --private" in wrong.stderr
