"""Keys and certificates of a deployment: one authority, one SuperLink, one key a SuperNode.

All keys are elliptic-curve keys on P-384, what Flower's node authentication expects. The private
keys are written with mode 0600 into a folder with mode 0700, whatever the umask, and are never
overwritten; a folder that is there already keeps its mode. Keep
``ca.key`` off the machines that serve: whoever has it can pretend to be the SuperLink.

``python -m app.credentials FOLDER --supernodes 3 --host link.example.org`` makes all of them;
``--supernodes 0`` leaves the SuperNodes' keys to those who own them, and there
``python -m app.credentials key FILE`` makes one, whose ``.pub`` is what others get.
"""

import datetime as dt
import ipaddress
import os
import re
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from app.processes import Parser
from manifed.durable import make_folder
from manifed.errors import ConfigError, one_line

LOOPBACK_HOSTS = ("localhost", "127.0.0.1")
DAYS = 365
_HOST = re.compile(r"[A-Za-z0-9*._:-]+")


@dataclass(frozen=True)
class TLSFiles:
    """Where the credentials of a deployment lie; all paths are absolute.

    Attributes:
        ca_certificate: PEM; the SuperLink, the SuperNodes and ``flwr`` need it.
        server_certificate: PEM; the SuperLink's.
        server_key: PEM; the SuperLink's.
        supernode_keys: private keys in OpenSSH format, in the order of the partitions; the public
            key lies beside each as ``.pub``.
    """

    ca_certificate: Path
    server_certificate: Path
    server_key: Path
    supernode_keys: tuple[Path, ...]


def generate(
    folder: Path, num_supernodes: int, hosts: Sequence[str] = LOOPBACK_HOSTS, days: int = DAYS
) -> TLSFiles:
    """Writes new credentials into ``folder`` and returns where they lie.

    Args:
        folder: made when it is missing; must hold none of the files.
        num_supernodes: how many SuperNode keys; 0: each SuperNode makes its own (`new_key`).
        hosts: names and addresses under which the SuperLink is reached, at least one.
        days: how long the certificates are valid, from now on.

    Raises:
        ValueError: ``num_supernodes``, ``hosts`` or ``days`` make no sense.
        FileExistsError: a file is there already.
    """
    if num_supernodes < 0:
        raise ValueError(f"--supernodes: expected 0 or more, got {num_supernodes}")
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise ValueError(f"Expected a host's name or address, got {host!r}; give one a --host")
    if days < 1:
        raise ValueError(f"Expected days >= 1, got {days}")
    folder = folder.absolute()
    make_folder(folder)
    ca_key, server_key = _new_key(), _new_key()
    authority = _name("manifed certificate authority")
    ca = _certificate(authority, ca_key.public_key(), authority, ca_key, days, hosts=())
    server = _certificate(_name(hosts[0]), server_key.public_key(), authority, ca_key, days, hosts)
    files = _files(folder, num_supernodes)
    _write(files.ca_certificate, ca.public_bytes(Encoding.PEM), 0o644)
    _write(folder / "ca.key", _private(ca_key, PrivateFormat.PKCS8), 0o600)
    _write(files.server_certificate, server.public_bytes(Encoding.PEM), 0o644)
    _write(files.server_key, _private(server_key, PrivateFormat.PKCS8), 0o600)
    for path in files.supernode_keys:
        new_key(path)
    return files


def new_key(path: Path) -> None:
    """Writes a SuperNode's new key into ``path`` and its public part beside it, as ``.pub``.

    Raises:
        FileExistsError: there is one already.
    """
    key = _new_key()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write(path, _private(key, PrivateFormat.OpenSSH), 0o600)
    _write(path.with_suffix(".pub"), public, 0o644)


def found_or_made(folder: Path, num_supernodes: int) -> TLSFiles:
    """The credentials in ``folder``, checked; new ones for the loopback when it holds none.

    Raises:
        ConfigError: some are missing, others may read a private key, or the certificate is over.
    """
    files = _files(folder.absolute(), num_supernodes)
    private = (files.server_key, *files.supernode_keys)
    publics = (path.with_suffix(".pub") for path in files.supernode_keys)
    wanted = (files.ca_certificate, files.server_certificate, *private, *publics)
    if not any(path.exists() for path in (*wanted, files.ca_certificate.with_suffix(".key"))):
        return generate(folder, num_supernodes)
    for path in wanted:
        if not path.is_file():
            raise ConfigError(
                f"--credentials: expected {path.name} in {folder}, got none; it needs one key for "
                f"each of {num_supernodes} SuperNodes: name a new folder, and they are made"
            )
    for path in private:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise ConfigError(
                f"--credentials: expected {path} for its owner only, got mode {mode:04o}; "
                "chmod 600 it, and make new keys if somebody may have read it"
            )
    certificate = x509.load_pem_x509_certificate(files.server_certificate.read_bytes())
    until = certificate.not_valid_after_utc
    if until <= dt.datetime.now(dt.UTC):
        raise ConfigError(
            f"--credentials: expected a certificate that is valid, got {files.server_certificate}, "
            f"which was until {until:%Y-%m-%d}; make new ones: python -m app.credentials"
        )
    return files


def _files(folder: Path, num_supernodes: int) -> TLSFiles:
    return TLSFiles(
        folder / "ca.crt",
        folder / "server.pem",
        folder / "server.key",
        tuple(folder / f"supernode_{i}" for i in range(num_supernodes)),
    )


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(
    subject: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    days: int,
    hosts: Sequence[str],
) -> x509.Certificate:
    """An authority's certificate without ``hosts``, a server's with them."""
    is_authority = not hosts
    now = dt.datetime.now(dt.UTC)
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(_usage(is_authority=is_authority), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(issuer_id, critical=False)
    )
    if not is_authority:
        names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
        purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        builder = builder.add_extension(names, critical=False)
        builder = builder.add_extension(purpose, critical=False)
    return builder.sign(issuer_key, hashes.SHA384())


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _private(key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> bytes:
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def _write(path: Path, content: bytes, mode: int) -> None:
    """Writes a new file with exactly ``mode``; FileExistsError when there is one."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(content)


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m app.credentials``; 0, or 2 when it cannot write what was asked for."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _only_a_key(given[1:]) if given[:1] == ["key"] else _everything(given)
    except FileExistsError as error:
        said = f"{error.filename} is there already and is never overwritten: name another folder, "
        said += "or move the old files away first"
    except OSError as error:
        said = f"{error.filename}: {error.strerror}: name a place where you may write"
    except ValueError as error:
        said = str(error)
    sys.stderr.write(f"error: {one_line(said)}\n")
    return 2


def _only_a_key(arguments: Sequence[str]) -> int:
    parser = Parser(prog="python -m app.credentials key")
    parser.add_argument("file", type=Path, help="where the private key goes; the public one: .pub")
    new_key(parser.parse_args(arguments).file)
    return 0


def _everything(arguments: Sequence[str]) -> int:
    parser = Parser(prog="python -m app.credentials")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--supernodes", type=int, required=True, help="how many SuperNode keys")
    parser.add_argument(
        "--host", action="append", default=[], help="name or address of the SuperLink; repeatable"
    )
    parser.add_argument("--days", type=int, default=DAYS, help="validity of the certificates")
    given = parser.parse_args(arguments)
    hosts = list(dict.fromkeys([*given.host, *LOOPBACK_HOSTS]))
    files = generate(given.folder, given.supernodes, hosts, given.days)
    sys.stdout.write(f"{files.ca_certificate.parent}: valid for {', '.join(hosts)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
