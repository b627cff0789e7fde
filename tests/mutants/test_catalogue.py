"""The catalogue of planted faults fits the code: `make mutants` has something to plant."""

from collections import Counter

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


def test_an_unknown_name_is_one_line_with_exit_code_2(capsys):
    assert main(["nothing of that name"]) == 2
    assert capsys.readouterr().out.count("\n") == 1
