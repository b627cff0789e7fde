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
from pathlib import Path
from typing import Annotated, NamedTuple, NoReturn

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID
from typer import Argument, Option, echo

from manifed.cli.main import call_alone
from manifed.durable import make_folder
from manifed.errors import ConfigError

_LOOPBACK_HOSTS = ("localhost", "127.0.0.1")
_CURVE = ec.SECP384R1()


class TLSFiles(NamedTuple):
    """The paths of a deployment's credentials; all are absolute.

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
    folder: Path, num_supernodes: int, hosts: Sequence[str] = _LOOPBACK_HOSTS, days: int = 365
) -> TLSFiles:
    """Writes new credentials into ``folder`` and returns where they lie.

    Args:
        folder: made when it is missing; must hold none of the files.
        num_supernodes: how many SuperNode keys; 0: each SuperNode makes its own (``key FILE``).
        hosts: names and addresses under which the SuperLink is reached, at least one.
        days: how long the certificates are valid, from now on.

    Raises:
        ConfigError: a host that is none, or a file is there already.
    """
    for host in hosts:
        if not re.fullmatch(r"[A-Za-z0-9*._:-]+", host):
            raise ConfigError(f"--host: expected a host's name or address, got {host!r}")
    files = _files(folder.absolute(), num_supernodes)
    make_folder(folder)
    ca_key, server_key = (ec.generate_private_key(_CURVE) for _ in range(2))
    authority = "manifed certificate authority"
    ca = _certificate(authority, ca_key.public_key(), ca_key, days)
    server = _certificate(hosts[0], server_key.public_key(), ca_key, days, authority, hosts)
    _write(files.ca_certificate, ca.public_bytes(Encoding.PEM), 0o644)
    _write(files.ca_certificate.with_suffix(".key"), _private(ca_key, PrivateFormat.PKCS8))
    _write(files.server_certificate, server.public_bytes(Encoding.PEM), 0o644)
    _write(files.server_key, _private(server_key, PrivateFormat.PKCS8))
    for path in files.supernode_keys:
        _new_key(path)
    return files


def _new_key(
    file: Annotated[
        Path, Argument(help="File for the private key. The public key gets the suffix .pub.")
    ],
) -> None:
    """Write a new key of a SuperNode, and its public part with the suffix ``.pub``."""
    key = ec.generate_private_key(_CURVE)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write(file, _private(key, PrivateFormat.OpenSSH))
    _write(file.with_suffix(".pub"), public, 0o644)


def found_or_made(folder: Path, num_supernodes: int) -> TLSFiles:
    """Returns the credentials in ``folder``, checked, or makes new ones for the loopback.

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
        mode = stat.S_IMODE(path.stat().st_mode)
        if path in private and mode & 0o077:
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


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(
    subject: str,
    public_key: ec.EllipticCurvePublicKey,
    ca_key: ec.EllipticCurvePrivateKey,
    days: int,
    issuer: str | None = None,
    hosts: Sequence[str] = (),
) -> x509.Certificate:
    """The authority's own certificate, or one that it issues to a server with these ``hosts``."""
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name.from_rfc4514_string(f"CN={subject}"))
        .issuer_name(x509.Name.from_rfc4514_string(f"CN={issuer or subject}"))
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=issuer is not None,
                key_cert_sign=issuer is None,
                crl_sign=issuer is None,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
    )
    if issuer is not None:
        names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
        purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        builder = builder.add_extension(names, critical=False)
        builder = builder.add_extension(purpose, critical=False)
    return builder.sign(ca_key, hashes.SHA384())


def _private(key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> bytes:
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def _write(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a new file with exactly ``mode``.

    Raises:
        ConfigError: there is one already.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(
            f"{path} is there already and is never overwritten: name another folder, or move the "
            "old files away first"
        ) from None
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(content)


def _everything(
    folder: Annotated[Path, Argument(help="Folder for the files; it is created if it is missing.")],
    supernodes: Annotated[int, Option(min=0, help="Number of SuperNode keys.")],
    host: Annotated[
        list[str] | None, Option(help="Name or address of the SuperLink. Repeatable.")
    ] = None,
    days: Annotated[int, Option(min=1, help="Days that the certificates are valid.")] = 365,
) -> None:
    """Write a CA, a SuperLink's certificate and SuperNode keys. ``key FILE`` writes one key."""
    hosts = list(dict.fromkeys([*(host or ()), *_LOOPBACK_HOSTS]))
    generate(folder, supernodes, hosts, days)
    echo(f"{folder.absolute()}: valid for {', '.join(hosts)}")


def main(arguments: Sequence[str]) -> NoReturn:
    """``python -m app.credentials``."""
    is_key = arguments[:1] == ["key"]
    call_alone(_new_key if is_key else _everything, arguments[is_key:], "python -m app.credentials")


if __name__ == "__main__":
    main(sys.argv[1:])
