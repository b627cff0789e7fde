"""Every check of `manifed doctor` sees the fault that is planted for it, and says what to do."""

import datetime as dt
import importlib.metadata
import json
import os
import shutil
import socket
import ssl
import threading
import time
from collections import namedtuple
from email.utils import formatdate
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from app.credentials import generate
from manifed.cli.main import main
from manifed.doctor import link, machine, records
from manifed.doctor.examine import Wanted, examine
from manifed.doctor.link import Address
from manifed.experiment.load import load, sha256
from tests.runs.test_cli import QUICKSTART

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


def levels(findings):
    return [finding.level for finding in findings]


def only(findings, check):
    return next(finding for finding in findings if finding.check == check)


# -- the machine ---------------------------------------------------------------------------------
def test_versions_that_were_not_tested_are_named_with_the_command_that_mends_them(monkeypatch):
    assert machine.python().level == "ok"
    assert set(levels(machine.packages())) == {"ok"}
    version = importlib.metadata.version

    def other(name):
        if name == "geoopt":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.99.0" if name == "flwr" else version(name)

    monkeypatch.setattr(importlib.metadata, "version", other)
    found = list(machine.packages())
    assert only(found, "flwr").level == only(found, "geoopt").level == "fail"
    assert "1.99.0" in only(found, "flwr").found
    assert only(found, "flwr").do.startswith("pip install 'flwr")
    monkeypatch.setattr("sys.version_info", (3, 99, 0))
    assert machine.python().level == "warn"


def test_threads_ports_disk_and_folders(monkeypatch, tmp_path):
    import torch

    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert machine.threads().level == "ok"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 999)
    assert "OMP_NUM_THREADS" in machine.threads().do
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert machine.free_port(port).level == "warn"
    assert machine.free_port(port).level == "ok"
    usage = namedtuple("usage", "total used free")
    for free, level in ((5 << 30, "ok"), (500 << 20, "warn"), (1 << 20, "fail")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage(0, 0, free))
        assert machine.disk(tmp_path / "not" / "there").level == level
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    assert levels(machine.folders(tmp_path / "runs")) == ["ok", "ok"]
    tmp_path.chmod(0o777)
    assert "anybody" in next(machine.folders(tmp_path / "runs")).found
    tmp_path.chmod(0o700)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert levels(machine.folders(tmp_path / "runs")) == ["fail", "fail"]


def test_a_clock_that_is_off_and_a_generator_that_is_not_ready(monkeypatch, tmp_path):
    assert machine.file_clock(tmp_path).level == "ok"
    now = time.time
    for skew, level in ((30.0, "warn"), (300.0, "fail")):
        monkeypatch.setattr(time, "time", lambda skew=skew: now() + skew)
        found = machine.file_clock(tmp_path)
        assert (found.level, str(tmp_path) in found.found) == (level, True)
    assert machine.file_clock(tmp_path / "none").level == "warn"
    assert machine.randomness().level == "ok"

    def block(*_):
        raise BlockingIOError

    monkeypatch.setattr(os, "getrandom", block)
    assert machine.randomness().level == "fail"


# -- the way to the SuperLink --------------------------------------------------------------------
@pytest.fixture(scope="module")
def credentials(tmp_path_factory):
    return generate(tmp_path_factory.mktemp("credentials") / "creds", 1)


class Server:
    """A SuperLink as far as it is examined: TLS or none, and a Date."""

    def __init__(self, certificate=None, key=None, skew=0.0):
        self._door, self._skew = socket.create_server(("127.0.0.1", 0)), skew
        self.port = self._door.getsockname()[1]
        self._context = None
        if certificate is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(certificate, key)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                peer = self._door.accept()[0]
            except OSError:
                return
            try:
                peer.settimeout(2.0)
                if self._context is not None:
                    peer = self._context.wrap_socket(peer, server_side=True)
                if peer.recv(4096).startswith(b"GET /health"):
                    date = formatdate(time.time() + self._skew, usegmt=True)
                    peer.sendall(f"HTTP/1.1 200 OK\r\ndate: {date}\r\n\r\n".encode())
            except OSError:
                pass
            finally:
                peer.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()


def certificate_until(days, credentials):
    """A certificate of itself that is over, or will be in ``days``."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - dt.timedelta(days=9))
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    folder = credentials.server_key.parent
    paths = folder / f"{days}.pem", folder / f"{days}.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


def test_a_superlink_is_reached_known_in_date_and_on_time(credentials):
    tls = (credentials.server_certificate, credentials.server_key)
    with Server(*tls) as good:
        found = list(link.examine(Address("localhost", good.port), credentials.ca_certificate))
        assert [one.check for one in found] == ["superlink", "tls", "server certificate", "clock"]
        assert set(levels(found)) == {"ok"}
    with Server(*tls, skew=300.0) as late:
        found = list(link.examine(Address("localhost", late.port), credentials.ca_certificate))
        assert only(found, "clock").level == "fail"
        unchecked = list(link.examine(Address("localhost", late.port), None))
        assert only(unchecked, "tls").level == "warn"


def test_a_superlink_that_is_another_over_or_away_fails(credentials, tmp_path):
    ca = credentials.ca_certificate
    tls = (credentials.server_certificate, credentials.server_key)
    with Server(*tls) as good:
        stranger, _ = certificate_until(3, credentials)
        wrong_chain = list(link.examine(Address("localhost", good.port), stranger))
        assert "authority that signed" in only(wrong_chain, "tls").do
        not_pem = list(link.examine(Address("localhost", good.port), credentials.server_key))
        assert levels(not_pem) == ["ok", "fail"]
    named = generate(tmp_path / "elsewhere", 1, ("link.example.org",))
    with Server(named.server_certificate, named.server_key) as other:
        wrong = list(link.examine(Address("localhost", other.port), named.ca_certificate))
        assert only(wrong, "tls").do.startswith("use a name that the certificate holds")
    over = certificate_until(-1, credentials)
    with Server(*over) as server:
        expired = list(link.examine(Address("localhost", server.port), over[0]))
        assert "clock" in only(expired, "tls").do
    with Server() as plain:
        found = list(link.examine(Address("localhost", plain.port), ca))
        assert "speaks no TLS" in only(found, "tls").found
    (away,) = link.examine(Address("localhost", plain.port), ca)
    assert (away.check, away.level) == ("superlink", "fail")
    assert levels(link.root_certificates(over[0])) == ["fail"]
    assert levels(link.root_certificates(certificate_until(3, credentials)[0])) == ["warn"]
    assert levels(link.root_certificates(ca)) == ["ok"]
    assert levels(link.root_certificates(credentials.server_key)) == ["fail"]


def test_a_key_is_for_its_owner_only_and_of_the_kind_that_flower_asks_for(credentials, tmp_path):
    assert link.private_key(credentials.supernode_keys[0]).level == "ok"
    key = tmp_path / "key"
    shutil.copy(credentials.supernode_keys[0], key)
    key.chmod(0o644)
    assert link.private_key(key).do.startswith(f"chmod 600 {key}")
    key.chmod(0o600)
    assert link.private_key(key).level == "ok"
    other = rsa.generate_private_key(65537, 1024)
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key.write_bytes(other.private_bytes(serialization.Encoding.PEM, *form))
    assert "elliptic" in link.private_key(key).found
    key.write_bytes(b"no key")
    assert link.private_key(key).level == "fail"
    assert link.private_key(tmp_path / "none").level == "fail"


# -- config, data, site --------------------------------------------------------------------------
def test_a_site_s_file_is_read_against_the_config_and_errors_name_the_line(tmp_path):
    config, rows = tmp_path / "c.toml", tmp_path / "site.csv"
    config.write_text(CONFIG)
    rows.write_text("a,b\n0.1,0.2\n0.3,0.4\n0.5,0.6\n")
    rows.chmod(0o600)
    experiment, finding = records.config_at(config)
    assert sha256(load(config)) in finding.found
    (good,) = records.data_file(experiment, rows)
    assert (good.level, "holds 3 valid examples" in good.found) == ("ok", True)
    rows.chmod(0o644)
    assert levels(records.data_file(experiment, rows)) == ["warn", "ok"]
    for text, what in (("a,b\n0.1,0.2\n3,4\n", "3"), ("a,b\n0.1,\n", "2"), ("a,c\n1,2\n", "b")):
        rows.write_text(text)
        bad = only([f for f in records.data_file(experiment, rows) if f.level == "fail"], "data")
        assert str(rows) in bad.found
        assert what in bad.found.removeprefix(str(rows))
    assert levels(records.data_file(experiment, tmp_path / "none.csv")) == ["fail"]
    assert levels(records.data_file(load(QUICKSTART), rows))[-1] == "fail"
    config.write_text(CONFIG.replace("= 0.1", "= -1"))
    assert records.config_at(config)[1].level == "fail"


def test_a_site_that_is_no_socket_or_is_silent_fails(tmp_path):
    path = tmp_path / "site.sock"
    assert records.site_socket(None, path).level == "fail"
    path.write_text("")
    assert "no socket" in records.site_socket(None, path).found
    path.unlink()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert "does not answer" in records.site_socket(None, path).found


# -- the command ---------------------------------------------------------------------------------
def command(*words):
    with pytest.raises(SystemExit) as caught:
        main(["doctor", *map(str, words)])
    return caught.value.code


def test_the_exit_code_is_0_1_or_2(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command(Path(QUICKSTART).resolve(), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["is_ready"]
    assert {one["level"] for one in found["findings"]} <= {"ok", "warn"}
    assert list(tmp_path.iterdir()) == []
    assert command("--key", tmp_path / "none") == 1
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if line.startswith("fail key: ")]
    assert all(line.split()[0] in {"ok", "warn", "fail"} for line in shown)
    for words in (("none.toml",), ("--superlink", "nowhere"), ("--superlink", "a:99999")):
        assert command(*words) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert len(list(examine(Wanted()))) > 10
