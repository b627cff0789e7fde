"""The auditor's tool agrees with the library on every kind of ledger and finds planted lies."""

import ast
import importlib.util
import json
import math
import random
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

from manifed.errors import ConfigError
from manifed.privacy.ledger import Entry, Head, Ledger
from manifed.privacy.odometer import LIMITS, PLACE
from manifed.privacy.statement import audit_ledger
from manifed.privacy.tariff import Terms
from tests.privacy.forging import head_file, rewritten
from tests.privacy.releases import laplace, poisson, release, subset
from tests.privacy.test_spending import reserved
from tests.tools.ledgers import COHORTS, HISTORIES, UPDATES, any_ledger, example_level, write

TOOL = Path(__file__).parents[2] / "tools/verify_ledger.py"
DELTA = 1e-5
KEY = b"k" * 32
NOT_PRICED = {
    "Poisson sampling under replace-one": (
        poisson(2.0, 0.1, relation="replace-one"), "poisson"),
    "sampling without replacement under add-or-remove": (
        subset(2.0, 3, 10, relation="add-or-remove"), "subset"),
}  # fmt: skip
"""What dp_accounting has no bound for: the tool names it, and the library refuses it too."""


def loaded():
    spec = importlib.util.spec_from_file_location("verify_ledger", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = loaded()


def compare(path, name):
    """What both say: the tool is above the library where both use loss distributions.

    Both are upper bounds. The tool's grid is coarser and its steps are multiples of the library's,
    so its epsilon is at least the library's; it is at most 0.2 % above. A price without any grid
    agrees to 1e-9. Fixed-size batches are priced by Renyi divergences that the library computes to
    1e-7 from above, so that the tool may be below by 1e-6; dp_accounting's coarser orders may bring
    it up to 1 % above.
    """
    theirs = audit_ledger(path, DELTA)
    found = tool.verified(path, DELTA)
    assert not found["not priced"], name
    said = {one["name"]: one["epsilon"] for one in theirs["adversaries"]}
    assert found["epsilon"].keys() == said.keys(), name
    assert found["draws"] == theirs["charges"]
    assert (found["lines"], found["head"]) == (theirs["entries"], theirs["head"])
    is_renyi = b'"without-replacement","population":100' in path.read_bytes() or (
        "client, aggregates, fixed" in name
    )
    for adversary, epsilon in said.items():
        ours = float(found["epsilon"][adversary])
        below, above = (1e-6, 0.01) if is_renyi else (1e-9, 0.002)
        assert (1 - below) * epsilon <= ours <= (1 + above) * epsilon, (name, adversary)


def test_a_ledger_of_each_history_is_sound_and_costs_what_the_library_says(tmp_path):
    for i, history in enumerate(HISTORIES):
        rng = random.Random(i)
        path = write(tmp_path / f"{history}.jsonl", rng, (example_level(rng, "full", "everybody"),),
                     history)  # fmt: skip
        compare(path, history)


@pytest.mark.slow
def test_200_ledgers_of_all_kinds_cost_what_the_library_says_or_a_little_more(tmp_path):
    names = Counter()
    for seed in range(200):
        path = tmp_path / f"{seed}.jsonl"
        name = any_ledger(path, seed)
        compare(path, name)
        names.update(name.split(", "))
    assert set(names) >= {*UPDATES, *COHORTS, *HISTORIES, "example", "client", "by round"}


@pytest.mark.parametrize("name", NOT_PRICED)
def test_what_dp_accounting_cannot_price_is_named_and_nothing_else_is_lost(tmp_path, name):
    one, way = NOT_PRICED[name]
    unit = {"unit": "client", "neighboring_relation": one.neighboring_relation}
    path = tmp_path / "ledger.jsonl"
    terms = Terms(
        population=1,
        updates=({"partitions": "0", "releases": (one,)},),
        aggregate=(release(3.0).model_copy(update=unit),),
    )
    with Ledger.create(path, {}) as ledger:
        ledger.append(reserved(1, (0,), terms=terms))
    with pytest.raises(ConfigError, match=one.neighboring_relation):
        audit_ledger(path, DELTA)
    found = tool.verified(path, DELTA)
    assert list(found["not priced"]) == ["server", "external"]
    assert all(f"sampling ({way})" in why for why in found["not priced"].values())
    assert list(found["epsilon"]) == ["client-level", "client-level-cohorts"]


def test_no_noise_costs_infinity_many_scales_are_priced_and_mixed_units_are_named(tmp_path):
    def spent(*releases):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        terms = Terms(population=1, updates=({"partitions": "0", "releases": releases},))
        with Ledger.create(path, {}) as ledger:
            ledger.append(reserved(1, (0,), last=3, terms=terms))
        return path, tool.verified(path, DELTA)

    assert spent(release(0.0))[1]["epsilon"]["server"] == "infinity"
    path, found = spent(*(laplace(20.0 + i) for i in range(40)))
    theirs = audit_ledger(path, DELTA)["adversaries"][0]["epsilon"]
    assert theirs * (1 - 1e-9) <= found["epsilon"]["server"] <= theirs * 1.05
    _, found = spent(release(2.0), release(2.0, unit="client"))
    assert "have no common bound" in found["not priced"]["server"]


# -- lies --------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A ledger with terms, reservations of blocks and settled cohorts."""
    rng = random.Random(3)
    terms = (example_level(rng, "full", "coins"),)
    path = write(tmp_path_factory.mktemp("run") / "ledger.jsonl", rng, terms, "resumed")
    assert tool.main([str(path), "--delta", "1e-5"]) == 0
    return path


@pytest.fixture
def sound(original, tmp_path):
    """A copy of it to damage."""
    shutil.copytree(original.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / original.name


def line_of(lines, key):
    """The number of the first line with this key, from 0."""
    return next(i for i, line in enumerate(lines) if key in json.loads(line))


def with_its_hash(line, change):
    """The line after a change, its own hash made right again."""
    found = json.loads(line)
    del found["sha256"]
    change(found)
    content = tool.canonical(found)
    end = f',"sha256":"{tool.hashlib.sha256(content).hexdigest()}"}}\n'
    return content[:-1] + end.encode()


def a_multiplier_is_edited(lines):
    def change(found):
        found["terms"]["updates"][0]["releases"][0]["noise_multiplier"] = 99.0

    i = line_of(lines, "terms")
    lines[i] = with_its_hash(lines[i], change)


def a_cohort_is_edited(lines):
    i = line_of(lines, "reserves")
    lines[i] = with_its_hash(lines[i], lambda found: found["reserves"].update(cohort="0"))


def a_settled_cohort_is_edited_without_its_hash(lines):
    i = line_of(lines, "settles")
    lines[i] = lines[i].replace(b'"cohorts":["', b'"cohorts":["0,')


def a_count_is_edited(lines):
    i = line_of(lines, "terms")
    lines[i] = lines[i].replace(b'"count":', b'"count":1')


def terms_change_in_the_middle(lines):
    terms = json.loads(lines[line_of(lines, "terms")])["terms"]
    terms["sampling"]["sampling_probability"] /= 2
    lines[2] = with_its_hash(lines[2], lambda found: found.update(terms=terms))


def a_line_is_removed(lines):
    del lines[2]


def lines_are_swapped(lines):
    lines[2], lines[3] = lines[3], lines[2]


def a_line_is_duplicated(lines):
    lines.insert(3, lines[2])


def the_end_is_cut_off(lines):
    lines.pop()


def the_last_line_is_torn(lines):
    lines[-1] = lines[-1][:-9]


def keys_are_in_another_order(lines):
    found = json.loads(lines[1])
    del found["sha256"]
    content = json.dumps(dict(reversed(found.items())), separators=(",", ":")).encode()
    sha256 = tool.hashlib.sha256(content).hexdigest()
    lines[1] = content[:-1] + f',"sha256":"{sha256}"}}\n'.encode()


LIES = {
    a_multiplier_is_edited: "line 3 does not follow",
    a_cohort_is_edited: "does not follow",
    a_settled_cohort_is_edited_without_its_hash: "was changed",
    a_count_is_edited: "was changed",
    terms_change_in_the_middle: "line 4 does not follow",
    a_line_is_removed: "line 3 does not follow",
    lines_are_swapped: "line 3 does not follow",
    a_line_is_duplicated: "line 4 does not follow",
    the_end_is_cut_off: "is not what the head beside it says",
    the_last_line_is_torn: "was never finished",
    keys_are_in_another_order: "line 2 is no canonical JSON",
}


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_lie_is_found_at_its_line(sound, capsys, lie):
    lines = sound.read_bytes().splitlines(keepends=True)
    lie(lines)
    sound.write_bytes(b"".join(lines))
    capsys.readouterr()
    assert tool.main([str(sound), "--delta", "1e-5"]) == 1
    out, error = capsys.readouterr()
    assert not out
    assert error.count("\n") == 1
    assert LIES[lie] in error


def with_an_unknown_key(found):
    return found | {"granted": 1} if "reserves" in found else found


def with_an_unknown_key_of_a_release(found):
    if "terms" in found:
        found["terms"]["updates"][0]["releases"][0]["discount"] = 0.5
    return found


def without_a_count(found):
    if "terms" in found:
        del found["terms"]["updates"][0]["releases"][0]["count"]
    return found


def with_clients_that_were_not_reserved(found):
    if "settles" in found:
        found["settles"]["cohorts"] = ["99"] * len(found["settles"].get("cohorts", [0]))
    return found


def with_a_negative_multiplier(found):
    if "terms" in found:
        found["terms"]["updates"][0]["releases"][0]["noise_multiplier"] = -3.0
    return found


def with_more_rounds_settled(found):
    if "settles" in found:
        found["settles"]["upto"] += 50
    return found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_an_unknown_key, "unknown key 'granted'"),
        (with_an_unknown_key_of_a_release, "unknown key 'discount'"),
        (without_a_count, "lacks the key 'count'"),
        (with_clients_that_were_not_reserved, "is no cohort of 6 clients"),
        (with_a_negative_multiplier, "noise_multiplier is no number of 0. or more"),
        (with_more_rounds_settled, "settles other rounds than were reserved"),
    ],
)
def test_a_forged_chain_that_is_consistent_still_cannot_say_what_no_run_says(sound, change, said):
    rewritten(sound, change)
    with pytest.raises(tool.Damaged, match=said):
        tool.verified(sound, DELTA)


def test_a_consistent_forgery_is_found_by_a_head_that_was_kept_and_by_it_alone(sound, capsys):
    kept = str(audit_ledger(sound, DELTA)["head"])

    def dearer(found):
        if "terms" in found:
            for one in found["terms"]["updates"]:
                one["releases"][0]["noise_multiplier"] *= 10
        return found

    rewritten(sound, dearer)
    assert tool.main([str(sound), "--delta", "1e-5"]) == 0
    assert "can rewrite it consistently" in capsys.readouterr().out
    assert tool.main([str(sound), "--delta", "1e-5", "--head", kept]) == 1
    assert "is not what the given head says" in capsys.readouterr().err


def test_a_ledger_without_a_head_is_read_and_the_end_is_said_to_be_unchecked(sound):
    assert tool.verified(sound, DELTA)["end"] == "checked"
    head_file(sound).unlink()
    assert tool.verified(sound, DELTA)["end"] == "not checked: there is no head"
    Head(0, "1" * 64).write(sound, "0" * 64)
    with pytest.raises(tool.Damaged, match="line 1 is not what the head beside it says"):
        tool.verified(sound, DELTA)


def test_a_line_that_was_cut_off_is_missed_whatever_a_place_of_the_head_says(sound):
    lines, whole = sound.read_bytes(), head_file(sound).read_bytes()
    first, second = whole[:256], whole[4096:]
    older, newer = sorted((first, second), key=lambda place: int(place.split()[3][:-1]))
    torn = whole.replace(newer, b"\0" * 256)
    head_file(sound).write_bytes(torn)
    assert tool.verified(sound, DELTA)["end"] == "checked"
    for head, said in ((torn, "is missing, for which its head was torn"), (
        older.ljust(4096) + older, "places that are not of two lines in turn"
    )):  # fmt: skip
        head_file(sound).write_bytes(head)
        sound.write_bytes(b"".join(lines.splitlines(keepends=True)[:-1]))
        with pytest.raises(tool.Damaged, match=said):
            tool.verified(sound, DELTA)


def test_tags_are_checked_with_the_key_and_otherwise_said_not_to_be(tmp_path, capsys):
    path = tmp_path / "ledger.jsonl"
    key = tmp_path / "key"
    key.write_bytes(KEY + b"\n")
    with Ledger.create(path, {}, key=KEY) as ledger:
        ledger.append(Entry(said={"a": 1}))
    assert tool.verified(path)["tags"] == "not checked: no key was given"
    assert tool.main([str(path), "--key", str(key)]) == 0
    assert "not given: no epsilon was computed" in capsys.readouterr().out
    with pytest.raises(tool.Damaged, match="line 1 names another key"):
        tool.verified(path, key=b"o" * 32)
    rewritten(path, lambda found: found | {"said": found["said"] | {"b": 2}}, keep_tags=True)
    with pytest.raises(tool.Damaged, match="line 1 was not tagged with the given key"):
        tool.verified(path, key=KEY)


def test_a_site_ledger_has_its_own_delta_and_says_where_noise_came_from(tmp_path):
    path = tmp_path / "ledger.jsonl"
    terms = Terms(population=1, updates=({"partitions": "0", "releases": (release(4.0),)},))
    with Ledger.create(path, {"holder": "site"}) as ledger:
        ledger.append(Entry(said={LIMITS: {"epsilon": 3.0, "delta": 1e-6}}))
        one = reserved(1, (0,), terms=terms)
        ledger.append(one.model_copy(update={"said": {PLACE: {"seed": 7}}}))
    found = tool.verified(path)
    assert (found["delta"], found["noise keys"]) == (1e-6, "seed")
    theirs = audit_ledger(path, None)["adversaries"][0]["epsilon"]
    assert math.isclose(found["epsilon"]["server"], theirs, rel_tol=1e-9)


@pytest.mark.parametrize(
    "words",
    [["nowhere"], ["LEDGER", "--delta", "1"], ["LEDGER", "--head", "3"], ["LEDGER", "--key", "no"]],
)
def test_bad_input_is_exit_code_2_with_one_line(sound, capsys, words):
    with pytest.raises(SystemExit) as end:
        tool.main([str(sound) if one == "LEDGER" else one for one in words])
    assert end.value.code == 2
    assert "error: " in capsys.readouterr().err.splitlines()[-1]


def test_the_answer_is_one_json_document(sound, capsys):
    capsys.readouterr()
    assert tool.main([str(sound), "--delta", "1e-5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == tool.verified(sound, DELTA)


def test_the_tool_imports_nothing_of_ours():
    names = set()
    for node in ast.walk(ast.parse(TOOL.read_text())):
        if isinstance(node, ast.Import):
            names |= {one.name for one in node.names}
        if isinstance(node, ast.ImportFrom):
            names.add(node.module)
    found = {name.split(".")[0] for name in names}
    assert found - {"numpy", "dp_accounting"} <= sys.stdlib_module_names
