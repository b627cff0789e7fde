"""The catalogue of planted faults fits the code: `make mutants` has something to plant."""

from collections import Counter
from dataclasses import replace

from tests.mutants import sweep
from tests.mutants.sweep import ROOT, catalogue, main

ROOMS = {
    "sensitivity", "clipping", "noise", "sampling", "composition", "calibration", "ledger",
    "statement", "resume", "evaluation", "replies", "handshake", "memory", "data", "site",
    "isolation", "guard",
}  # fmt: skip


def test_every_fault_has_one_place_a_change_and_tests_that_exist():
    for fault in catalogue():
        assert fault.places(ROOT) == 1, fault.name
        assert fault.before != fault.after, fault.name
        assert fault.tests, fault.name
        for test in fault.tests:
            assert (ROOT / test.split("::")[0]).is_file(), (fault.name, test)


def test_every_room_has_a_fault_and_no_name_stands_twice():
    faults = catalogue()
    assert {fault.where for fault in faults} == ROOMS
    assert max(Counter(fault.name for fault in faults).values()) == 1
    assert len(faults) >= 16


def test_a_changed_file_or_entry_makes_a_fault_due():
    fault = catalogue()[0]
    other = replace(fault, after=fault.after + " ")
    known = {fault.name: fault.digest()}
    due = [[sweep.is_due(number, one, known) for number in range(6)] for one in (fault, other)]
    assert sorted(due[0]) == [False] * 5 + [True], "one week in six"
    assert due[1] == [True] * 6
    assert sweep.is_due(0, fault, {})


def test_an_unknown_name_is_one_line_with_exit_code_2(capsys):
    assert main(["nothing of that name"]) == 2
    assert capsys.readouterr().out.count("\n") == 1
