"""What is published of a private run follows from its config and its releases alone."""

import dataclasses
import json
import os
import shutil

import pytest

from manifed.experiment import assembly
from manifed.plan import promise_of
from manifed.privacy.ledger import LedgerDamaged
from manifed.runs import export as public
from manifed.runs.export import viewed
from manifed.runs.folder import RunFolder
from manifed.runs.report import Run, page_of, read, rows_of
from tests.algorithms.test_masked_mean import NODES, Watched, masked
from tests.algorithms.test_masked_mean import run as run_masked
from tests.runs.running import run_in

SETS = (
    "federation.num_clients=6",
    "federation.num_rounds=4",
    "federation.cohort={kind='poisson',sampling_probability=0.4}",
    "output.plots=false",
    "privacy.noise_source=os",
)


def launched(path, *sets):
    return run_in(path, *SETS, *sets).directory


def exported(directory, out):
    """Everything that is published but the model, as data."""
    names = sorted(path.name for path in public.export(directory, out))
    assert names == ["manifest.json", "metrics.csv", "model.safetensors", "statement.txt"]
    return {
        "manifest": json.loads((out / "manifest.json").read_text()),
        "metrics": (out / "metrics.csv").read_text(),
        "statement": (out / "statement.txt").read_text(),
    }


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
            tensors = {key: t.clone() for key, t in parts[0].tensors.items()}
            for tensor in tensors.values():
                tensor[0] = tensor[1]
            parts[0] = dataclasses.replace(parts[0], tensors=tensors)
            return parts

        patch.setattr(assembly, "shards", replaced)
        patch.setattr(
            assembly,
            "dataset",
            lambda *arguments: dataclasses.replace(found(*arguments), checksum="00" * 32),
        )
        for cached in (assembly.load_shards, assembly.facts_of):
            cached.cache_clear()
        second = launched(folder / "second")
    for cached in (assembly.load_shards, assembly.facts_of):
        cached.cache_clear()
    return first, second


def test_neighbours_publish_the_same_but_for_the_model(neighbours, tmp_path):
    first, second = (exported(run, tmp_path / f"{i}") for i, run in enumerate(neighbours))
    assert first == second
    assert (neighbours[0] / "ledger.jsonl").read_text() != (
        neighbours[1] / "ledger.jsonl"
    ).read_text()
    models = [RunFolder(tmp_path / f"{i}").load_tensors("model")["x"] for i in range(2)]
    assert not models[0].equal(models[1])


def test_a_private_manifest_has_no_membership_test(neighbours):
    first, second = (read(run).manifest for run in neighbours)
    assert first["data_checksums"] == second["data_checksums"] == {"digits": None}


def test_the_epsilon_that_is_published_is_that_of_no_cohort(neighbours, tmp_path):
    found = exported(neighbours[0], tmp_path / "out")["manifest"]["privacy"]["adversaries"]
    server, external = ({a["name"]: a["epsilon"] for a in found}[k] for k in ("server", "external"))
    assert external <= server * 1.001
    assert 2.0 * 0.99 <= server <= 2.0


def test_an_oracle_is_published_where_it_was_declared(tmp_path):
    directory = launched(tmp_path / "run", "evaluation.is_simulated_oracle=true")
    shown = exported(directory, tmp_path / "out")
    assert shown["metrics"].splitlines()[0].startswith("round,cost,cost_gap")
    assert "void this guarantee" in shown["statement"]
    assert shown["manifest"]["final"]["gradient_norm"] > 0


def of_other_replies(directory, out):
    """The same run as if other clients had been drawn, had failed and had taken other times."""
    shutil.copytree(directory, out)
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["replies"] = {"participants": 987654, "failures": 1, "by_kind": {"late": 1}}
    manifest |= {"started": "then", "command_line": "planted"}
    manifest["machine"]["platform"] = "planted"
    manifest["final"]["seconds"] = 98765.25
    (out / "manifest.json").write_text(json.dumps(manifest))
    header, *rows = (out / "metrics.csv").read_text().splitlines()
    of_cohorts = {"bytes_up", "bytes_down", "participants", "failures", "seconds", "late"}
    cells = [
        ["987654" if name in of_cohorts else cell for name, cell in zip(names, row, strict=True)]
        for names, row in ((header.split(","), row.split(",")) for row in rows)
    ]
    (out / "metrics.csv").write_text("\n".join([header, *map(",".join, cells)]) + "\n")
    return out


def test_a_page_is_the_same_whoever_was_drawn_and_whoever_replied(neighbours, tmp_path):
    first, second = neighbours
    third = of_other_replies(first, tmp_path / "third")
    pages = {page_of([viewed(read(run))]) for run in (first, second, third)}
    assert len(pages) == 1
    page = pages.pop()
    assert not [word for word in ("987654", "planted", "realised") if word in page]
    assert str(first) not in page
    assert os.uname().release not in page
    shown = page_of([viewed(read(third), is_server_view=True)], is_server_view=True)
    assert "987654" in shown
    assert "voids the secrecy of the sample" in shown
    assert "NOT FOR PUBLICATION" not in page


def test_a_page_tells_no_seed_from_which_its_cohorts_can_be_drawn(tmp_path):
    sets = ("privacy.noise_source=seed", "evaluation.is_simulated_oracle=false")
    runs = [launched(tmp_path / f"{s}", *sets, f"federation.seed={s}") for s in (4711, 815)]
    pages = {page_of([viewed(read(run))]) for run in runs}
    assert len(pages) == 1
    page = pages.pop()
    assert "4711" not in page
    assert read(runs[0]).manifest["config_sha256"] not in page
    first, second = (exported(run, tmp_path / f"out{i}") for i, run in enumerate(runs))
    assert first == second
    assert "seed" not in first["manifest"]["config"]["federation"]
    told = rows_of([viewed(read(run)) for run in runs])
    assert [row["run"][-5:] for _, row in told] == ["run 1", "run 2"]
    assert "4711" in page_of([viewed(read(runs[0]), is_server_view=True)], is_server_view=True)


class SilentOnce(Watched):
    """Node 4 is silent in round 2 only."""

    def exchange(self, asked):
        self.lost = {4} if asked.header.server_round == 2 else set()
        return super().exchange(asked)


def masked_run(folder, rounds):
    """A run whose node 4 was silent in round 2, and what was spent against each adversary."""
    folder.mkdir()
    config = masked(rounds)
    _, odometer = run_masked(config, folder, SilentOnce(config))
    told = promise_of(config.setting, (3,) * NODES).statement(odometer, noise_origins={"seed"})
    manifest = {"privacy": told, "config": config.model_dump(mode="json")}
    return Run(folder, "masked", manifest, {}), {
        a["name"]: a["epsilon"] for a in told["adversaries"]
    }


def test_a_node_that_was_silent_in_a_middle_round_is_in_the_epsilon_that_is_published(tmp_path):
    run, spent = masked_run(tmp_path / "whole", 4)
    privacy = viewed(run).manifest["privacy"]
    assert {one["name"]: one["epsilon"] for one in privacy["adversaries"]} == spent
    assert all("nodes that were silent" in one["remark"] for one in privacy["adversaries"])
    assert not any("before any cohort" in note for note in privacy["notes"])
    _, of_two = masked_run(tmp_path / "two", 2)
    assert all(of_two[name] < spent[name] for name in spent)


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


def with_cells(directory, out, change):
    """The same run with other cells in its metrics: ``change(column, row, cell)``."""
    shutil.copytree(directory, out)
    header, *rows = (out / "metrics.csv").read_text().splitlines()
    cells = [
        [
            change(name, i, cell)
            for name, cell in zip(header.split(","), row.split(","), strict=True)
        ]
        for i, row in enumerate(rows)
    ]
    (out / "metrics.csv").write_text("\n".join([header, *map(",".join, cells)]) + "\n")
    return out


def test_no_interval_of_a_private_evaluation_tells_how_many_replied(evaluated, tmp_path):
    ends = ("_low", "_high")
    other = with_cells(
        evaluated, tmp_path / "other", lambda name, _, cell: "0.5" if name.endswith(ends) else cell
    )
    first, second = (exported(run, tmp_path / f"{i}") for i, run in enumerate((evaluated, other)))
    assert first == second
    assert page_of([viewed(read(evaluated))]) == page_of([viewed(read(other))])
    assert "held_out_accuracy" in first["metrics"].splitlines()[0].split(",")
    assert "held_out_loss_low" in (evaluated / "metrics.csv").read_text()


def test_an_evaluation_without_an_answer_is_not_told_from_others_by_its_round(evaluated, tmp_path):
    def silent(server_round):
        return lambda name, i, cell: (
            "" if name.startswith("held_out") and i == server_round else cell
        )

    runs = [with_cells(evaluated, tmp_path / f"of{r}", silent(r)) for r in (2, 3)]
    first, second = (exported(run, tmp_path / f"{i}") for i, run in enumerate(runs))
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
    ("name", "planted"),
    [
        ("_MANIFEST", ("ledger_head", "command_line", "replies")),
        ("_COLUMNS", ("bytes_up", "participants", "seconds")),
    ],
)
def test_a_list_that_lets_the_servers_facts_out_is_noticed(
    neighbours, tmp_path, monkeypatch, name, planted
):
    monkeypatch.setattr(public, name, (*getattr(public, name), *planted))
    first, second = (exported(run, tmp_path / f"{i}") for i, run in enumerate(neighbours))
    assert first != second


def test_the_public_view_names_no_seed_place_or_machine(neighbours, tmp_path):
    exported(neighbours[0], tmp_path / "out")
    text = (tmp_path / "out" / "manifest.json").read_text()
    assert str(neighbours[0]) not in text
    assert os.uname().release not in text
    assert "seed" not in json.loads(text)["config"]["federation"]


def test_only_the_servers_page_says_who_took_part_and_it_is_marked(neighbours):
    run = read(neighbours[0])
    shown = page_of([viewed(run, is_server_view=True)], is_server_view=True)
    assert "&#34;participants&#34;" in shown
    assert "voids the secrecy of the sample" in shown
    assert "NOT FOR PUBLICATION" in shown
    page = page_of([viewed(run)])
    assert not [word for word in ("NOT FOR PUBLICATION", "participants") if word in page]
