"""A SuperNode that ends does not end the run: it is told, and started again until it is back."""

from types import SimpleNamespace
from typing import Any, cast

from app import deployment
from app.deployment import ACCEPTED, RESTART_SECONDS, SuperNodes
from app.processes import PrivateFlower, Service


class Starts:
    """Processes that live, unless one was told to end; each writes what it is told to say."""

    def __init__(self, folder):
        self._folder = folder
        self.codes = []

    def start(self, name, *command, says=ACCEPTED):
        number = len(self.codes)
        self.codes.append(None)
        log_file = self._folder / str(number)
        log_file.write_text(says)
        return Service(name, cast(Any, SimpleNamespace(poll=lambda: self.codes[number])), log_file)


def test_a_supernode_that_ends_is_started_again_until_it_is_accepted(tmp_path, monkeypatch):
    now = [100.0]
    lines = list[str]()
    starts = Starts(tmp_path)
    monkeypatch.setattr(deployment.time, "monotonic", lambda: now[0])
    nodes = SuperNodes(cast(PrivateFlower, starts), "link", ["a", "b"], None, lines.append)
    nodes.restart_those_that_ended()
    assert (lines, len(starts.codes)) == ([], 2)

    starts.codes[1] = -9
    for _ in range(3):
        nodes.restart_those_that_ended()
    assert len(starts.codes) == 2
    now[0] += RESTART_SECONDS
    nodes.restart_those_that_ended()
    (tmp_path / "2").write_text("")  # Flower still believes its key online
    starts.codes[2] = 1
    nodes.restart_those_that_ended()
    now[0] += RESTART_SECONDS
    nodes.restart_those_that_ended()
    for _ in range(3):
        nodes.restart_those_that_ended()
    assert len(starts.codes) == 4
    assert [line.split(":")[0] for line in lines] == [
        "supernode-1 ended with -9",
        "supernode-1 is back",
    ]
    assert nodes.services[0].process.poll() is None
