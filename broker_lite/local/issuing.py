"""A folder with certificate authorities (CAs) and the certificates that they signed, for brokers
and clients.

- ``CA-ca.pem`` and ``CA-ca.key``: a CA and its key. CA is ``clients`` or ``brokers``.
- ``NAME-CA.pem``: a certificate that this CA signed, followed by the certificate's private key.

The folder's mode is 0700, its files' 0600. Importing this module loads ``cryptography``."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from broker_lite.errors import InvalidConfigError

CLIENTS, BROKERS = "clients", "brokers"
"""The CA of certificates for connections of clients, and the CA for connections between brokers."""
CA_DAYS = 3650
"""Days for which a CA's certificate is valid."""
CERTIFICATE_DAYS = 90
"""Days for which the certificate of a broker or client is valid."""
RENEWED_DAYS = 30
"""Age in days after which a certificate is renewed."""
_CA_SUFFIX = "-ca"
_DNS_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_.])?")
_PEM = Encoding.PEM


class IssuedCertificate(NamedTuple):
    """The content of one certificate. ``hosts`` has the names and addresses of a broker's machine;
    it is empty in a client's certificate."""

    path: Path
    subject: str
    issuer: str
    hosts: tuple[str, ...]
    begins: datetime.datetime
    ends: datetime.datetime
    is_ca: bool


class CertificateFolder:
    """The CAs and certificates in ``folder``, which is created with its first file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def certify(
        self,
        ca: str,
        name: str,
        hosts: Iterable[str],
        now: datetime.datetime,
        *,
        anew: bool = False,
    ) -> Path | None:
        """Create the certificate ``NAME-CA.pem``: a broker's for ``hosts``, or a client's if there
        are no hosts. Create the CA if it is missing. Return the path of the new certificate.

        If a certificate with all hosts exists that is not older than RENEWED_DAYS, keep it and
        return None; with ``anew``, replace it."""
        path, hosts = self.path_of(ca, name), tuple(hosts)
        if not anew and not self.lacks(ca, name, hosts, now):
            return None
        names = x509.SubjectAlternativeName(map(_host, hosts))
        issuer, issuer_key = self._authority(ca, now)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if hosts:
            uses.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
        draft = (
            _draft(subject, key, now, CERTIFICATE_DAYS)
            .issuer_name(issuer.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
                critical=False,
            )
        )
        if hosts:
            draft = draft.add_extension(names, critical=False)
        certificate = draft.sign(issuer_key, hashes.SHA256())
        self.write(path.name, certificate.public_bytes(_PEM).decode() + _pem_of(key))
        return path

    def path_of(self, ca: str, name: str) -> Path:
        """Return the path of the certificate that ``ca`` signs for ``name``."""
        return self.folder / f"{name}-{ca}.pem"

    def lacks(self, ca: str, name: str, hosts: tuple[str, ...], now: datetime.datetime) -> bool:
        """Return whether the certificate is missing, is older than RENEWED_DAYS, or lacks one of
        the hosts."""
        path = self.path_of(ca, name)
        return not path.exists() or _is_due(read_certificate(path), hosts, now)

    def due(self, now: datetime.datetime, *, everything: bool = False) -> list[IssuedCertificate]:
        """Return the certificates that ``renew`` replaces: those older than RENEWED_DAYS, or all of
        them with ``everything``. Certificates whose CA's key is not in the folder are left out."""
        return [
            each
            for each in self.certificates()
            if not each.is_ca
            and (self.folder / f"{_ca_of(each)[0]}{_CA_SUFFIX}.key").exists()
            and (everything or _is_due(each, each.hosts, now))
        ]

    def renew(self, now: datetime.datetime, *, everything: bool = False) -> list[Path]:
        """Replace the certificates that ``due`` returns by new ones for the same names and hosts.
        Return their paths."""
        replaced = []
        for each in self.due(now, everything=everything):
            ca, name = _ca_of(each)
            self.certify(ca, name, each.hosts, now, anew=True)
            replaced.append(each.path)
        return replaced

    def certificates(self) -> Iterator[IssuedCertificate]:
        """Yield every certificate of the folder, CAs first. Raises InvalidConfigError for a folder
        without certificates."""
        certificates = [read_certificate(path) for path in sorted(self.folder.glob("*.pem"))]
        if not certificates:
            raise InvalidConfigError(
                f"{self.folder} has no certificates; create one with: logbus cert create NAME"
            )
        yield from sorted(certificates, key=lambda each: (not each.is_ca, each.path.name))

    def _authority(
        self, name: str, now: datetime.datetime
    ) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        path = self.folder / f"{name}{_CA_SUFFIX}.pem"
        key_path = path.with_suffix(".key")
        if path.exists():
            if not key_path.exists():
                raise InvalidConfigError(
                    f"{path} has no key {key_path.name} beside it, which signs certificates. Copy "
                    "the key back, or create certificates of a new CA in another folder"
                )
            loaded = load_pem_private_key(key_path.read_bytes(), None)
            assert isinstance(loaded, ec.EllipticCurvePrivateKey)
            return x509.load_pem_x509_certificate(path.read_bytes()), loaded
        key = ec.generate_private_key(ec.SECP256R1())
        unique = secrets.token_hex(4)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"logbus-{name}-ca-{unique}")])
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            _draft(subject, key, now, CA_DAYS)
            .issuer_name(subject)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        self.write(key_path.name, _pem_of(key))
        self.write(path.name, certificate.public_bytes(_PEM).decode())
        return certificate, key

    def write(self, name: str, text: str) -> None:
        """Write a file atomically, readable by its owner only."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self.folder / f".{name}.new"
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.folder / name)


def read_certificate(path: Path) -> IssuedCertificate:
    """Return the content of the first certificate in a PEM file. Raises InvalidConfigError if the
    file has none."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidConfigError(f"{path}: the file has no PEM certificate: {error}") from None
    extensions = certificate.extensions
    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        addresses = [str(each) for each in names.get_values_for_type(x509.IPAddress)]
        hosts = (*names.get_values_for_type(x509.DNSName), *addresses)
    except x509.ExtensionNotFound:
        hosts = ()
    try:
        is_ca = extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_ca = False
    return IssuedCertificate(
        path,
        certificate.subject.rfc4514_string(),
        certificate.issuer.rfc4514_string(),
        hosts,
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        is_ca,
    )


def _draft(
    subject: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Let the validity begin an hour ago, because a client's clock may be behind this machine's.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _ca_of(certificate: IssuedCertificate) -> tuple[str, str]:
    """Return the CA and the name in a certificate's file name (``NAME-CA.pem``)."""
    name, _, ca = certificate.path.stem.rpartition("-")
    return ca, name


def _is_due(certificate: IssuedCertificate, hosts: tuple[str, ...], now: datetime.datetime) -> bool:
    if now - certificate.begins > datetime.timedelta(days=RENEWED_DAYS):
        return True
    return not set(map(_host, hosts)) <= set(map(_host, certificate.hosts))


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        if not _DNS_NAME.fullmatch(name):
            raise InvalidConfigError(
                f"{name!r} is neither an IP address nor a host name; write letters beyond ASCII "
                "in the form xn--…"
            ) from None
        return x509.DNSName(name)


def _pem_of(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(_PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
