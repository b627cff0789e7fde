"""What is published of a private run follows from its config and its releases alone."""

import dataclasses
import json
import os
import shutil

import pytest
import torch

from manifed.experiment import assembly, evaluation
from manifed.plan import promise_of
from manifed.privacy.charging import opened
from manifed.privacy.ledger import LedgerDamaged
from manifed.runs import export as public
from manifed.runs.export import viewed
from manifed.runs.folder import RunFolder
from manifed.runs.report import Run, page_of, read, rows_of
from tests.algorithms.test_decor import decor
from tests.problems.test_starts import forget
from tests.runs.running import run_in

SETS = (
    "federation.num_clients=6",
    "federation.num_rounds=4",
    "federation.cohort={kind='poisson',sampling_probability=0.4}",
    "privacy.noise_source=os",
)


def launched(path, *sets):
    return run_in(path, *SETS, *sets).directory


def exported(directory, out):
    """Everything that is published but the model, as data."""
    assert sorted(path.name for path in public.export(directory, out)) == [
        "card.md",
        "manifest.json",
        "metrics.csv",
        "model.safetensors",
        "statement.txt",
    ]
    return {
        "manifest": json.loads((out / "manifest.json").read_text()),
        "metrics": (out / "metrics.csv").read_text(),
        "statement": (out / "statement.txt").read_text(),
    }


def all_exported(runs, out):
    return [exported(run, out / f"{i}") for i, run in enumerate(runs)]


def public_page(run):
    return page_of([viewed(read(run))])


def page_of_the_server(run):
    return page_of([viewed(read(run), is_server_view=True)], is_server_view=True)


def with_cells(directory, out, change):
    """The same run with other cells in its metrics: ``change(column, row, cell)``."""
    shutil.copytree(directory, out)
    header, *rows = [line.split(",") for line in (out / "metrics.csv").read_text().splitlines()]
    found = [map(change, header, [i] * len(row), row) for i, row in enumerate(rows)]
    (out / "metrics.csv").write_text("".join(",".join(row) + "\n" for row in (header, *found)))
    return out


@pytest.fixture(scope="module")
def neighbours(tmp_path_factory):
    """Two releases of one config: other coins, and one record of one client replaced."""
    folder = tmp_path_factory.mktemp("neighbours")
    first = launched(folder / "first")
    with pytest.MonkeyPatch.context() as patch:
        honest = assembly.shards
        found = assembly.dataset

        def replaced(*arguments):
            parts = list(honest(*arguments))
            tensors = {key: torch.cat([t[1:2], t[1:]]) for key, t in parts[0].tensors.items()}
            parts[0] = dataclasses.replace(parts[0], tensors=tensors)
            return parts

        patch.setattr(assembly, "shards", replaced)
        patch.setattr(
            assembly, "dataset", lambda *of: dataclasses.replace(found(*of), checksum="00" * 32)
        )
        forget()
        second = launched(folder / "second")
    forget()
    return first, second


def test_neighbours_publish_the_same_but_for_the_model(neighbours, tmp_path):
    """No seed, no place, no machine and no test of membership: epsilon is that of no cohort."""
    first, second = all_exported(neighbours, tmp_path)
    assert first == second
    ledgers = [(run / "ledger.jsonl").read_text() for run in neighbours]
    assert ledgers[0] != ledgers[1]
    models = [RunFolder(tmp_path / f"{i}").load_tensors("model")["x"] for i in range(2)]
    assert not models[0].equal(models[1])
    assert not [word for word in (str(neighbours[0]), os.uname().release) if word in str(first)]
    assert "seed" not in first["manifest"]["config"]["federation"]
    assert [read(run).manifest["data_checksums"] for run in neighbours] == [{"digits": None}] * 2
    server, external = (
        {a["name"]: a["epsilon"] for a in first["manifest"]["privacy"]["adversaries"]}[k]
        for k in ("server", "external")
    )
    assert external <= server * 1.001
    assert 2.0 * 0.99 <= server <= 2.0


def test_an_oracle_is_published_where_it_was_declared(tmp_path):
    directory = launched(tmp_path / "run", "evaluation.is_simulated_oracle=true")
    shown = exported(directory, tmp_path / "out")
    assert shown["metrics"].startswith("round,cost,cost_gap")
    assert "voids this guarantee" in str(read(directory).manifest["privacy"]["notes"])
    assert "void this guarantee" in shown["statement"]
    assert shown["manifest"]["final"]["gradient_norm"] > 0


def of_other_replies(directory, out):
    """The same run as if other clients had been drawn, had failed and had taken other times."""
    of_cohorts = {"bytes_up", "bytes_down", "participants", "failures", "seconds", "late"}
    with_cells(directory, out, lambda name, _, cell: "987654" if name in of_cohorts else cell)
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["replies"] = {"participants": 987654, "failures": 1, "by_kind": {"late": 1}}
    manifest |= {"started": "then", "command_line": "planted"}
    manifest["machine"]["platform"] = "planted"
    manifest["final"]["seconds"] = 98765.25
    (out / "manifest.json").write_text(json.dumps(manifest))
    return out


def test_a_page_is_the_same_whoever_was_drawn_and_whoever_replied(neighbours, tmp_path):
    third = of_other_replies(neighbours[0], tmp_path / "third")
    (page,) = {public_page(run) for run in (*neighbours, third)}
    hidden = ("987654", "planted", "realised", "participants", "NOT FOR PUBLICATION",
              str(neighbours[0]), os.uname().release)  # fmt: skip
    assert not [word for word in hidden if word in page]
    shown = page_of_the_server(third)
    for word in ("987654", "&#34;participants&#34;", "voids the secrecy of the sample",
                 "NOT FOR PUBLICATION"):  # fmt: skip
        assert word in shown


def test_a_page_tells_no_seed_from_which_its_cohorts_can_be_drawn(tmp_path):
    sets = ("privacy.noise_source=seed", "evaluation.is_simulated_oracle=false")
    runs = [launched(tmp_path / f"of-{s}", *sets, f"federation.seed={s}") for s in (4711, 815)]
    (page,) = {public_page(run) for run in runs}
    assert "4711" not in page
    assert read(runs[0]).manifest["config_sha256"] not in page
    first, second = all_exported(runs, tmp_path)
    assert first == second
    assert "seed" not in first["manifest"]["config"]["federation"]
    told = rows_of([viewed(read(run)) for run in runs])
    assert [row["run"][-5:] for _, row in told] == ["run 1", "run 2"]
    assert "4711" in page_of_the_server(runs[0])


def test_under_masks_what_was_charged_is_published(tmp_path):
    config = decor(4)
    promise = promise_of(config.setting, (3,) * 6)
    with opened(tmp_path / "ledger.jsonl", promise, last_round=4, header={}) as account:
        for server_round in (1, 2):
            account.charge(server_round, 0, range(6))
        account.note_origins(2, frozenset({"seed"}))
    odometer = account.odometer
    said = {"privacy": promise.statement(odometer), "config": config.model_dump(mode="json")}
    privacy = viewed(Run(tmp_path, "masked", said, {})).manifest["privacy"]
    assert [one["epsilon"] for one in privacy["adversaries"]] == [
        one["epsilon"] for one in said["privacy"]["adversaries"]
    ]
    assert all(one["remark"] == "as charged for 2 rounds" for one in privacy["adversaries"])
    assert not any("before any cohort" in note for note in privacy["notes"])


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A release with a keyed ledger whose sites judge the model on records that they hold out."""
    folder = tmp_path_factory.mktemp("evaluated")
    said = "evaluation={kind='private',hold_out=0.3,loss_range=[-1.0,0.0],noise_multiplier=1.0}"
    sets = ("privacy.noise.epsilon=40.0", "federation.cohort={kind='fixed-size',cohort_size=4}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MANIFED_LEDGER_KEY_FILE", str(key_in(folder / "key", b"own")))
        return launched(folder / "run", said, *sets)


def key_in(path, text):
    path.write_bytes(16 * text)
    path.chmod(0o600)
    return path


def test_no_interval_of_a_private_evaluation_tells_how_many_replied(evaluated, tmp_path):
    def half(name, _, cell):
        return "0.5" if name.endswith(("_low", "_high")) else cell

    runs = (evaluated, with_cells(evaluated, tmp_path / "other", half))
    first, second = all_exported(runs, tmp_path)
    assert first == second
    assert public_page(runs[0]) == public_page(runs[1])
    assert "held_out_accuracy" in first["metrics"].splitlines()[0].split(",")
    assert "held_out_loss_low" in (evaluated / "metrics.csv").read_text()


def test_an_evaluation_without_an_answer_is_not_told_from_others_by_its_round(evaluated, tmp_path):
    runs = [
        with_cells(
            evaluated, tmp_path / f"of{server_round}",
            lambda name, i, cell, of=server_round: (
                "" if name.startswith("held_out") and i == of else cell
            ),
        )
        for server_round in (2, 3)
    ]  # fmt: skip
    first, second = all_exported(runs, tmp_path)
    assert first == second
    assert "held_out" not in first["metrics"]


@pytest.mark.parametrize("is_server_view", [False, True])
def test_a_tag_that_is_not_the_keys_is_found_before_anything_is_shown(
    evaluated, tmp_path, monkeypatch, is_server_view
):
    monkeypatch.setenv("MANIFED_LEDGER_KEY_FILE", str(key_in(tmp_path / "key", b"other")))
    with pytest.raises(LedgerDamaged):
        viewed(read(evaluated), is_server_view=is_server_view)


@pytest.mark.parametrize(
    ("where", "name", "planted"),
    [
        (public, "_MANIFEST", ("ledger_head", "command_line", "replies")),
        (evaluation, "_SHOWN", ("bytes_up", "participants", "seconds")),
    ],
)
def test_a_list_that_lets_the_servers_facts_out_is_noticed(
    neighbours, tmp_path, monkeypatch, where, name, planted
):
    monkeypatch.setattr(where, name, (*getattr(where, name), *planted))
    first, second = all_exported(neighbours, tmp_path)
    assert first != second
