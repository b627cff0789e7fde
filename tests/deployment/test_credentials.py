import datetime as dt
import ipaddress
import os
import stat
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.verification import PolicyBuilder, Store

from app.credentials import found_or_made, generate, main
from app.deployment import node_configs
from manifed.errors import ConfigError
from tests.command import invoke


def test_the_superlinks_certificate_is_valid_for_each_of_its_names_and_no_other(
    tmp_path,
):
    files = generate(tmp_path / "creds", 1, ["link.example.org", "127.0.0.1"])
    ca = x509.load_pem_x509_certificate(files.ca_certificate.read_bytes())
    server = x509.load_pem_x509_certificate(files.server_certificate.read_bytes())
    builder = PolicyBuilder().store(Store([ca]))
    link = x509.DNSName("link.example.org")
    for name in (link, x509.IPAddress(ipaddress.ip_address("127.0.0.1"))):
        assert builder.build_server_verifier(name).verify(server, [])[0] == server
    with pytest.raises(x509.verification.VerificationError):
        builder.build_server_verifier(x509.DNSName("other.example.org")).verify(server, [])
    key = load_pem_private_key(files.server_key.read_bytes(), None)
    assert key.public_key() == server.public_key()


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_private_keys_are_different_for_their_owner_only_and_never_overwritten(tmp_path, umask):
    folder = tmp_path / "creds"
    before_umask = os.umask(umask)
    try:
        files = generate(folder, 3)
    finally:
        os.umask(before_umask)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    publics = set()
    for path in files.supernode_keys:
        public = load_ssh_public_key(path.with_suffix(".pub").read_bytes())
        assert public.curve.name == "secp384r1"
        assert load_ssh_private_key(path.read_bytes(), None).public_key() == public
        publics.add(public.public_numbers())
    assert len(publics) == 3
    for path in (folder / "ca.key", files.server_key, *files.supernode_keys):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = files.server_key.read_bytes()
    with pytest.raises(ConfigError, match="never overwritten"):
        generate(folder, 3)
    assert files.server_key.read_bytes() == before


def test_credentials_that_are_there_are_used_and_those_unfit_for_use_are_refused(
    tmp_path,
):
    folder = tmp_path / "creds"
    made = found_or_made(folder, 2)
    kept = made.server_key.read_bytes()
    assert found_or_made(folder, 2) == made
    with pytest.raises(ConfigError, match=r"expected supernode_2 in .*one key for each of 3"):
        found_or_made(folder, 3)
    made.supernode_keys[1].chmod(0o640)
    with pytest.raises(ConfigError, match=r"supernode_1 for its owner only, got mode 0640"):
        found_or_made(folder, 2)
    assert made.server_key.read_bytes() == kept
    made.ca_certificate.unlink()
    for _ in range(2):  # nothing new is written beside the keys that are left
        with pytest.raises(ConfigError, match=r"expected ca.crt in"):
            found_or_made(folder, 2)


def test_a_certificate_that_is_over_is_refused(tmp_path, monkeypatch):
    class Later(dt.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(time.time() + 2 * 86400, tz)

    generate(tmp_path, 1, days=1)
    monkeypatch.setattr("app.credentials.dt.datetime", Later)
    with pytest.raises(ConfigError, match="expected a certificate that is valid"):
        found_or_made(tmp_path, 1)


def test_the_command_writes_once_and_refuses_the_second_time_and_what_makes_no_sense(tmp_path):
    def made(*words):
        return invoke(*words, call=main)

    arguments = [tmp_path / "c", "--supernodes", "1", "--host", "link.example.org"]
    done = made(*arguments)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "link.example.org, localhost, 127.0.0.1" in done.stdout
    assert made("key", tmp_path / "mine").exit_code == 0
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o600
    assert load_ssh_public_key((tmp_path / "mine.pub").read_bytes())
    new = [tmp_path / "d", "--supernodes"]
    for words, said in (
        (arguments, "ca.crt is there already and is never overwritten: name another folder"),
        (["key", tmp_path / "mine"], "mine is there already"),
        ([*new, "-1"], "--supernodes"),
        ([*new, "1", "--host", "a b"], "expected a host's name or address, got 'a b'"),
        ([*new, "1", "--days", "0"], "--days"),
        ([], "FOLDER"),
    ):
        done = made(*words)
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith("error: ")
        assert said in done.stderr
    assert not (tmp_path / "d").exists()


def test_each_node_is_told_its_partition_and_its_data_path(tmp_path):
    assert node_configs(2, None) == [
        "partition-id=0 num-partitions=2",
        "partition-id=1 num-partitions=2",
    ]
    with_path = node_configs(1, [tmp_path / "my data"])
    assert with_path == [f'partition-id=0 num-partitions=1 data-path="{tmp_path}/my data"']
    with pytest.raises(ValueError, match="without quotation marks"):
        node_configs(1, [tmp_path / 'a"b'])
