"""What a site looks at before a run: each planted fault is one line that begins with FAIL."""

import socket
import ssl
import sys
import threading

import pytest

from app.credentials import generate
from deploy import before_a_run
from manifed.experiment.load import load
from manifed.experiment.schema import sha256

CONFIG = """
[problem]
kind = "principal-eigenvector"
[data]
kind = "file"
examples = "rows"
columns = ["a", "b"]
row_norm = 1.0
[federation]
num_clients = 2
num_rounds = 2
[training]
kind = "rsgd"
step_size = 0.1
"""


@pytest.fixture
def looked(tmp_path, monkeypatch, capsys):
    (tmp_path / "c.toml").write_text(CONFIG)
    (tmp_path / "site.csv").write_text("a,b\n0.1,0.2\n0.3,0.4\n")

    def look(*words):
        given = ["before_a_run.py", str(tmp_path / "c.toml"), *map(str, words)]
        monkeypatch.setattr(sys, "argv", given)
        return before_a_run.main(), capsys.readouterr().out.splitlines()

    return look


def test_a_file_and_a_key_that_are_fit_are_said_and_others_fail(looked, tmp_path):
    (key,), rows = generate(tmp_path / "creds", 1).supernode_keys, tmp_path / "site.csv"
    code, lines = looked("--data", rows, "--key", key)
    assert (code, [line[:4] for line in lines]) == (0, ["ok  "] * 3)
    assert sha256(load(tmp_path / "c.toml")) in lines[0]
    assert "2 valid records" in lines[1]
    key.chmod(0o644)
    for text, what in (("a,b\n0.1,0.2\n3,4\n", "3"), ("a,b\n0.1,\n", "2"), ("a,c\n1,2\n", "b")):
        rows.write_text(text)
        code, lines = looked("--data", rows, "--key", key)
        assert (code, [line[:4] for line in lines]) == (1, ["ok  ", "FAIL", "FAIL"])
        assert what in lines[1].removeprefix(f"FAIL data: {rows}")
        assert "chmod 600" in lines[2]
    (tmp_path / "c.toml").write_text(CONFIG.replace("= 0.1", "= -1"))
    assert looked()[0] == 1


def test_a_superlink_is_there_and_is_who_it_says(looked, tmp_path):
    keys = generate(tmp_path / "creds", 0)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.server_certificate, keys.server_key)
    with socket.create_server(("127.0.0.1", 0)) as door:

        def answer():
            for _ in range(2):
                peer = door.accept()[0]
                try:
                    context.wrap_socket(peer, server_side=True).close()
                except OSError:
                    peer.close()

        threading.Thread(target=answer, daemon=True).start()
        link = "--superlink", f"localhost:{door.getsockname()[1]}", "--root-certificates"
        code, lines = looked(*link, keys.ca_certificate)
        assert (code, "valid until" in lines[1]) == (0, True)
        code, lines = looked(*link, generate(tmp_path / "other", 0).ca_certificate)
        assert (code, "certificate" in lines[1]) == (1, True)
    code, lines = looked(*link, keys.ca_certificate)
    assert (code, lines[1][:4]) == (1, "FAIL")
