"""A private search: drawn once, priced whole, and nothing of the losers is published."""

import json
import math
import re
import shutil
from collections import Counter
from dataclasses import replace
from hashlib import sha256

import pytest
from typer.testing import CliRunner

from manifed.algorithms.held_out import PublicEvaluation
from manifed.cli import commands, main
from manifed.errors import ConfigError, RoundFailed
from manifed.experiment import search_price
from manifed.experiment.assembly import client_side
from manifed.experiment.load import load, save
from manifed.federation.rounds import BadState
from manifed.federation.stacked import StackedTransport
from manifed.privacy import accountant
from manifed.privacy.composition import NoValidBound
from manifed.privacy.events import repeated
from manifed.privacy.ledger import Ledger
from manifed.privacy.tuning import Search, epsilon
from manifed.runs.driver import rounds_over, run_experiment
from manifed.runs.reading import FolderDamaged
from manifed.runs.run_folder import FINAL_KEYS, RunFolder
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

    def order(one):  # noise may drown a score, or push two of them to one end of their range
        score = score_of(one, search.config, "held_out_loss")
        model = sha256((one.directory / "model.safetensors").read_bytes()).hexdigest()
        return math.inf if score is None else score, model

    best = min(trials, key=order)
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
    assert "may tell how many runs there were" in found.statement["epsilon_is"]


@pytest.mark.slow
def test_runs_without_the_ledger_are_no_new_search(asked, monkeypatch):
    three(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        conduct(asked(), 1, nothing, stopping(1))
    for path in asked().out.glob("search.jsonl*"):
        path.unlink()
    with pytest.raises(ConfigError, match="expected a new folder for a search"):
        conduct(asked(), 1, nothing, play)


@pytest.mark.parametrize(
    "other", [{"mean": 9.0}, {"measure": "held_out_accuracy"}, {"set": "federation.num_rounds=4"}]
)
def test_a_search_goes_on_as_it_was_asked_for(asked, monkeypatch, other):
    three(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        conduct(asked(), 1, nothing, stopping(0))
    sets = [other["set"]] if "set" in other else []
    search = asked(*sets, mean=other.get("mean", 4.0))
    search = replace(search, measure=other.get("measure", search.measure))
    with pytest.raises(ConfigError, match="expected the search that was begun here"):
        conduct(search, 1, nothing, play)


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
        conduct(asked(), 1, nothing, failing(RoundFailed))
    shutil.rmtree(asked().out)
    three(monkeypatch)
    found = conduct(asked(), 1, nothing, failing(BadState))
    assert found.statement["score"] is not None
    assert conduct(asked(), 1, nothing, never) == found


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


def ended(asked, monkeypatch):
    """A search whose runs all ended: its folder, the winner's, and what was published."""
    three(monkeypatch)
    found = conduct(asked(), 1, nothing, play)
    model = (found.directory / "model.safetensors").read_bytes()
    trials = [asked().out / "trials" / str(n) for n in (1, 2, 3)]
    winner = next(t for t in trials if (t / "model.safetensors").read_bytes() == model)
    return asked().out, winner, model


def test_what_ended_decides_what_is_published_whatever_happens_to_the_winner(asked, monkeypatch):
    out, winner, model = ended(asked, monkeypatch)
    for name in ("manifest.json", "model.safetensors", "experiment.toml"):
        content = (winner / name).read_bytes()
        (winner / name).unlink()
        with pytest.raises(FolderDamaged, match="expected"):
            conduct(asked(), 1, nothing, never)
        if name != "manifest.json":
            (winner / name).write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
            with pytest.raises(ConfigError, match="expected a run as it ended"):
                conduct(asked(), 1, nothing, never)
        (winner / name).write_bytes(content)
    conduct(asked(), 1, nothing, never)
    assert (out / "published" / "model.safetensors").read_bytes() == model


def test_nothing_else_is_published_a_second_time(asked, monkeypatch):
    out, _, model = ended(asked, monkeypatch)
    monkeypatch.setattr("manifed.runs.search.to_public", lambda *_: 1.0)
    with pytest.raises(ConfigError, match=r"expected what was published, .*epsilon"):
        conduct(asked(), 1, nothing, never)
    assert json.loads((out / "published" / "statement.json").read_text())["epsilon"] > 10.0
    monkeypatch.undo()
    for path in (*out.glob("search.jsonl*"), out / "trials"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(ConfigError, match="expected a new folder for a search"):
        conduct(asked(), 1, nothing, play)
    assert (out / "published" / "model.safetensors").read_bytes() == model


def begins_third(tasks, jobs, on_end, on_start):
    """All runs but the last, which is killed before its first charge."""
    play(tasks[:-1], jobs, on_end, on_start)
    on_start(tasks[-1])
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (stopping(2), "expected a run that the search began"),
        pytest.param(begins_third, "expected a run of its own", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_the_search_did_not_make_is_refused(asked, monkeypatch, part, said):
    three(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        conduct(asked(), 1, nothing, part)
    trials = asked().out / "trials"
    shutil.copytree(trials / "1", trials / "3")
    with pytest.raises(ConfigError, match=said):
        conduct(asked(), 1, nothing, play)


def test_a_run_that_was_gone_on_with_is_not_rolled_back(asked, monkeypatch):
    three(monkeypatch)

    def interrupted(tasks, jobs, on_end, on_start):
        on_start(tasks[0])
        if not tasks[0].has_ledger:
            tasks[0].directory.mkdir(parents=True)
            shutil.copy(load_path(asked), tasks[0].folder.experiment_path)
            Ledger.create(tasks[0].folder.ledger_path, {}).close()
        raise KeyboardInterrupt

    def load_path(asked):
        path = asked().out.parent / "of_one.toml"
        save(asked().settings[0].config, path)
        return path

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            conduct(asked(), 1, nothing, interrupted)
    shutil.rmtree(asked().out / "trials" / "1")
    with pytest.raises(ConfigError, match="expected the ledger of a run"):
        conduct(asked(), 1, nothing, play)


def test_what_is_published_is_priced_as_announced(asked, monkeypatch):
    """Retries that no run needed are in it: the most of all runs would tell how many there were."""
    monkeypatch.setattr("manifed.runs.search.Sought.drawn", lambda _: [0])
    search = asked("federation.replies={on_failure='retry'}")
    found = conduct(search, 1, nothing, play)
    assert found.statement["epsilon"] == search_price.to_public(search.config, search.law)
    assert found.statement["epsilon"] == search_price.to_public(search.config, search.law, [3, 3])
    assert "announces" in found.statement["epsilon_is"]


@pytest.fixture
def scored(asked, tmp_path):
    """The score of a run with these rows (round, loss) that ended after the last of them."""

    def score(rows, measure="held_out_loss", **held):
        config = asked().config
        evaluation = config.evaluation.model_copy(update=held)
        config = config.model_copy(update={"evaluation": evaluation})
        folder = RunFolder.create(tmp_path / f"run-{len(list(tmp_path.iterdir()))}", {})
        for r, loss in rows:
            folder.append_metrics({"round": r, "held_out_loss": loss})
        folder.finish(dict.fromkeys(FINAL_KEYS) | {"rounds": rows[-1][0], "seconds": 0.0})
        return score_of(folder, config, measure)

    return score


@pytest.mark.parametrize(
    ("rows", "held", "expected"),
    [
        ([(0, None), (2, -0.5), (4, -0.3)], {}, -0.3),
        ([(0, None), (2, -0.5), (4, -0.3)], {"keep": "best"}, -0.5),
        ([(0, None), (2, -0.5), (4, None)], {}, None),
        ([(0, None), (2, -0.5), (3, None)], {}, None),
        ([(0, None), (2, None), (4, None)], {"keep": "best"}, None),
        ([(0, None), (2, math.inf)], {}, None),
        ([(0, None), (2, math.nan)], {}, None),
    ],
)
def test_a_run_is_chosen_by_the_model_that_it_kept(scored, rows, held, expected):
    assert scored(rows, **held) == expected


@pytest.mark.parametrize(
    ("sets", "measure", "said"),
    [
        ((), "held_out_accuracy", "--measure: expected 'held_out_loss' of a problem without class"),
        (("federation.num_rounds=3",), None, "evaluation.every: expected rounds"),
        (("federation.num_rounds=1", "evaluation.keep='best'"), None, "evaluation.every: expected"),
    ],
)
def test_a_score_that_no_run_would_have_is_refused(asked, sets, measure, said):
    with pytest.raises(ConfigError, match=said):
        asked(*sets, measure=measure)


def test_a_problem_with_classes_may_be_chosen_by_its_accuracy(asked):
    data = "data={kind='synthetic-logistic',num_examples=100}"
    assert asked("problem={kind='logistic'}", data, measure="held_out_accuracy").settings


@pytest.mark.parametrize(
    "words", [("sweep", "--private"), pytest.param(("plan", "--trials"), marks=pytest.mark.slow)]
)
def test_a_law_or_a_bound_that_there_is_not_is_one_line(tmp_path, monkeypatch, words):
    commands.register(main.app)
    monkeypatch.setattr("manifed.privacy.tuning.epsilon", no_bound)
    (command, option), path = words, tmp_path / "searched.toml"
    auto, more = 'training = { kind = "auto" }', ["--out", str(tmp_path / "out")]
    path.write_text(CONFIG)
    if command == "plan":
        path.write_text(re.sub("^training.*", auto, CONFIG, flags=re.MULTILINE))
        more = []
    for value, said in (("nan", "nan"), ("2e4", "20000"), ("2", "error: privacy: no curve\n")):
        done = CliRunner().invoke(main.app, [command, str(path), option, value, *more])
        assert (done.exit_code, said in done.stderr) == (2, True), done.output


def no_bound(*_):
    raise NoValidBound("no curve")


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
    said = json.loads(done.stdout)
    assert f"published: ({said['epsilon']:.4g}, 0.0001)-DP" in done.stderr
    assert load(tmp_path / "o" / "published" / "experiment.toml").training.step_size in (0.1, 0.4)
    wrong = CliRunner().invoke(main.app, [*words, "--seeds", "0-1"])
    assert wrong.exit_code == 2
    assert "expected one seed beside --private" in wrong.stderr
