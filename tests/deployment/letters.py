"""Messages that a site must not answer, sent by whoever has the SuperNode's user."""

import re
from pathlib import Path

import torch

from manifed.experiment.assembly import initial_point
from manifed.experiment.load import canonical, sha256
from manifed.experiment.schema import Experiment
from manifed.federation.header import Header
from manifed.privacy.ledger import Ledger
from manifed.site.protocol import Question, Refusal, ask
from tests.deployment.sites import Sites

LEDGER = "ledger.jsonl"


def hostile_letters(federation: Sites, config: Experiment, data: Path, off: torch.Tensor) -> None:
    """A wrong config, a point ``off`` the manifold, a replay: refused, nothing paid or shown."""
    ledger, last = federation.ledger(data) / LEDGER, config.federation.num_rounds
    run, before = re.findall(r'"run":"(\d+)"', ledger.read_text())[-1], Ledger.verify(ledger).head
    digest, phase = sha256(config), config.training.phases[0].name

    def said(now: int, point: torch.Tensor, digest: str = digest, attempt: int = 0) -> str:
        header = Header(digest, now, attempt, phase, 1)
        question = Question(digest, canonical(config), run, header)
        told, up = ask(federation.socket("middle"), question, {"x": point}, 60.0)
        assert isinstance(told, Refusal)
        assert not up
        return told.reason

    x = initial_point(config)
    assert "not on this site's list" in said(1, x, "0" * 64)
    assert "Expected the broadcast" in said(last, off, attempt=7)
    assert "nothing is answered twice" in said(1, x)
    assert f"expected rounds up to {last}" in said(last + 1, x)
    assert Ledger.verify(ledger).head == before
