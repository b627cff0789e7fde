"""The way to the SuperLink: address, TLS, certificates, this node's key."""

import contextlib
import datetime as dt
import os
import socket
import ssl
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

from manifed.doctor.finding import Finding, fail, ok, warn
from manifed.doctor.machine import clock

SECONDS = 5.0
SOON = dt.timedelta(days=14)
"""A certificate that ends within it is worth a warning."""
_RENEW = "make new ones: python -m app.credentials"


@dataclass(frozen=True)
class Address:
    """Where a SuperLink is."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Of HOST:PORT, an IPv6 address in brackets.

        Raises:
            ValueError: for anything else.
        """
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
            raise ValueError(f"expected HOST:PORT, got {text[:80]!r}")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def examine(address: Address, roots: Path | None) -> Iterator[Finding]:
    """Is it there, is it who it says, until when, and what time has it?"""
    try:
        socket.create_connection((address.host, address.port), timeout=SECONDS).close()
    except OSError as error:
        yield fail(
            "superlink", f"{address} cannot be reached ({error})",
            "is it started, is the name right, does the firewall let this machine through?",
        )  # fmt: skip
        return
    yield ok("superlink", f"{address} is reached")
    if roots is None:
        yield warn(
            "tls", f"the certificate of {address} was not checked", "give --root-certificates"
        )
        yield from _clock_of(address, None)
        return
    try:
        context = ssl.create_default_context(cafile=str(roots))
    except (OSError, ssl.SSLError) as error:
        yield fail("tls", f"{roots} holds no certificates ({error})", "give the authority's ca.crt")
        return
    try:
        with _talk(address, context) as line:
            assert isinstance(line, ssl.SSLSocket)
            presented = line.getpeercert(binary_form=True)
    except ssl.SSLCertVerificationError as error:
        yield fail("tls", f"{address} is not who it says: {error.verify_message}", _mend(error))
        return
    except (OSError, ssl.SSLError) as error:
        yield fail("tls", f"{address} speaks no TLS ({error})",
                   "start the SuperLink with its certificate, not with --insecure")  # fmt: skip
        return
    yield ok("tls", f"{address} is who it says, by {roots}")
    if presented is not None:
        yield _until("server certificate", x509.load_der_x509_certificate(presented))
    yield from _clock_of(address, context)


def root_certificates(path: Path) -> Iterator[Finding]:
    """The dates of an authority's certificates."""
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        yield fail("root certificates", f"{path} holds none ({error})", "give the ca.crt in PEM")
        return
    for certificate in found:
        yield _until("root certificate", certificate)


def private_key(path: Path) -> Finding:
    """A SuperNode's key: readable by its owner alone, of the kind that Flower asks for."""
    try:
        status, data = path.stat(), path.read_bytes()
    except OSError as error:
        return fail("key", f"{path} cannot be read ({error.strerror})", "name this node's own key")
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        return fail(
            "key", f"{path} has mode {mode:04o}: others can read it",
            f"chmod 600 {path}, and make a new key if somebody may have read it",
        )  # fmt: skip
    if status.st_uid != os.geteuid():
        return warn("key", f"{path} belongs to user {status.st_uid}", "run as the node's own user")
    load = load_ssh_private_key if b"OPENSSH" in data else load_pem_private_key
    try:
        key = load(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        return fail("key", f"{path} is no private key without a password ({error})", _RENEW)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        return fail("key", f"{path} is no elliptic-curve key, which Flower asks for", _RENEW)
    return ok("key", f"{path}, {key.curve.name}, for its owner only")


def _talk(address: Address, context: ssl.SSLContext | None) -> "ssl.SSLSocket | socket.socket":
    plain = socket.create_connection((address.host, address.port), timeout=SECONDS)
    if context is None:
        return plain
    try:
        return context.wrap_socket(plain, server_hostname=address.host)
    except BaseException:
        plain.close()
        raise


def _mend(error: ssl.SSLCertVerificationError) -> str:
    if "expired" in error.verify_message or "not yet valid" in error.verify_message:
        return f"look at both clocks, else {_RENEW}"
    if "match" in error.verify_message:
        return "use a name that the certificate holds, or make one with --host NAME"
    return "give the certificate of the authority that signed the SuperLink's"


def _until(check: str, certificate: x509.Certificate) -> Finding:
    """Whether a certificate holds today, and for how long."""
    now = dt.datetime.now(dt.UTC)
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    said = f"valid from {first:%Y-%m-%d} to {last:%Y-%m-%d}"
    if not first <= now <= last:
        return fail(check, said, f"look at this machine's clock, else {_RENEW}")
    return warn(check, said, _RENEW) if last - now < SOON else ok(check, said)


def _clock_of(address: Address, context: ssl.SSLContext | None) -> Iterator[Finding]:
    """The clock against the Date of the SuperLink's HTTP answer; nothing where it gives none."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        with _talk(address, context) as line:
            request = f"GET /health HTTP/1.1\r\nHost: {address.host}\r\nConnection: close\r\n\r\n"
            line.sendall(request.encode("ascii", "ignore"))
            answer = line.recv(1 << 16).decode("latin-1")
        now = time.time()
        dates = [row[5:].strip() for row in answer.split("\r\n") if row.lower().startswith("date:")]
        theirs = parsedate_to_datetime(dates[0]).timestamp() if dates else None
        if theirs is not None:
            skew = max(0.0, theirs - now, now - theirs - 1.0)  # a Date has whole seconds
            yield clock(skew, f"the SuperLink {address}")
