"""A site that is killed, or whose disk is full, at any call that changes files: never uncharged."""

import os
import signal

import pytest
import torch

from tests.privacy.forging import audited
from tests.robustness.crash_points import Crash, Killer, crashes_of
from tests.site.sites import CONFIG, Peer, site_of, write

pytestmark = pytest.mark.slow

REMEMBERS = CONFIG.replace('"principal-eigenvector"', '"kpca"').replace('"rsgd"', '"projected"')
ROUNDS = (1, 2)


def live(folder, path, crash, say):
    """Answer rounds at a site that dies at ``crash``; what was answered is told last."""
    torch.set_num_threads(1)
    killer = Killer(crash, lambda name: None)
    killer.install()
    with site_of(folder, path) as site:
        peer = Peer(site, path)
        for now in ROUNDS:
            if peer.is_answered(now):
                say(f"{now}\n".encode())
    say(b"calls " + " ".join(killer.names).encode() + b"\n")


def lived(folder, path, crash):
    """(how the site ended, what it had answered) of one site in a process of its own."""
    folder.mkdir(exist_ok=True)
    reader, writer = os.pipe()
    pid = os.fork()
    write_ = os.write
    if pid == 0:
        code = 70
        try:
            os.close(reader)
            live(folder, path, crash, lambda line: write_(writer, line))
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read().splitlines()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said


def test_whatever_was_answered_was_charged_wherever_the_site_was_killed(tmp_path):
    path = write(tmp_path, REMEMBERS)
    code, said = lived(tmp_path / "whole", path, None)
    assert code == 0
    names = said[-1].split()[1:]
    assert said[:-1] == ["1", "2"]
    assert {"write", "fsync", "replace"} <= set(names)
    killed = 0
    for number, crash in enumerate(crashes_of(names)):
        folder = tmp_path / f"crash-{number}"
        code, said = lived(folder, path, crash)
        killed += code == -signal.SIGKILL
        answered = [int(line) for line in said if not line.startswith("calls")]
        if not (folder / "site" / "ledger.jsonl").exists():
            assert not answered
        with site_of(folder, path) as site:  # a restart needs nobody's help
            odometer = audited(folder / "site" / "ledger.jsonl")
            assert odometer.rounds_counted >= len(answered), crash
            for now in answered:
                assert odometer.attempts(now) >= 1, crash
            peer = Peer(site, path)
            for now in answered:  # and nothing is answered twice
                assert not peer.is_answered(now), crash
            assert peer.is_answered(3), crash
    assert killed > len(names)


def test_the_killer_kills(tmp_path):
    assert lived(tmp_path, write(tmp_path), Crash(1, "before"))[0] == -signal.SIGKILL
