"""Create certificates and TLS contexts for tests."""

from __future__ import annotations

import datetime
import socket
import ssl
from functools import cache
from pathlib import Path
from typing import NamedTuple

import trustme


class PemFiles(NamedTuple):
    """Paths of a CA certificate, and of a file with a certificate chain and its private key."""

    ca: str
    certificate: str


@cache
def authority(name: str = "clients") -> trustme.CA:
    return trustme.CA(organization_name=name)


def write_pem(
    folder: Path,
    *hosts: str,
    ca: trustme.CA | None = None,
    common_name: str | None = None,
    expired: bool = False,
    days: int | None = None,
) -> PemFiles:
    """Write a CA and a certificate that it signed for ``hosts``, by default 127.0.0.1.

    The certificate is valid for ``days``.
    """
    ca = ca or authority()
    folder.mkdir(parents=True, exist_ok=True)
    ends = datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC) if expired else None
    if days is not None:
        ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    begins = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC) if expired else None
    leaf = ca.issue_cert(
        *(hosts or ("127.0.0.1",)), common_name=common_name, not_after=ends, not_before=begins
    )
    trusted, pem = folder / "ca.pem", folder / "certificate.pem"
    ca.cert_pem.write_to_path(str(trusted))
    leaf.private_key_and_cert_chain_pem.write_to_path(str(pem))
    pem.chmod(0o600)
    return PemFiles(str(trusted), str(pem))


def served_certificate(endpoint: str) -> bytes:
    """Return the certificate (DER) that the listener at host:port presents."""
    host, _, port = endpoint.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((host, int(port))) as sock,
        context.wrap_socket(sock) as wrapped,
    ):
        return wrapped.getpeercert(binary_form=True) or b""
