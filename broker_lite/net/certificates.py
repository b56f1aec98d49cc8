"""Facts of certificates that ``ssl`` does not tell: names, dates and hosts."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509

from broker_lite.errors import InvalidConfigError


def subject_of(der: bytes) -> tuple[str, int]:
    """Return a certificate's RFC 2253 name and the end of its validity (wall-clock ms)."""
    certificate = x509.load_der_x509_certificate(der)
    return certificate.subject.rfc4514_string(), _ms(certificate.not_valid_after_utc)


def check_certificate(path: str, setting: str, host: str, now_ms: int) -> int:
    """Check the dates and hosts of the first certificate in a PEM file; return when it ends (ms).

    An empty ``host`` is not checked. Raises InvalidConfigError that names the file, the date or
    the host.
    """
    try:
        certificate = x509.load_pem_x509_certificate(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidConfigError(f"{setting}={path}: no PEM certificate: {error}") from None
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if _ms(ends) < now_ms:
        raise InvalidConfigError(
            f"{setting}={path}: the certificate expired on {ends:%Y-%m-%d %H:%M} UTC; renew it"
        )
    if _ms(begins) > now_ms:
        raise InvalidConfigError(
            f"{setting}={path}: the certificate is valid only from {begins:%Y-%m-%d %H:%M} UTC; "
            "check the clock, or issue a certificate that is valid now"
        )
    names = _hosts(certificate)
    if host and not any(_matches(name, host) for name in names):
        raise InvalidConfigError(
            f"{setting}={path}: the certificate is for {', '.join(names) or 'no host'}, not for "
            f"the advertised host {host}; issue one for {host}, or change advertised.listeners"
        )
    return _ms(ends)


def _hosts(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = [str(each) for each in found.get_values_for_type(x509.IPAddress)]
    return [*found.get_values_for_type(x509.DNSName), *addresses]


def _matches(name: str, host: str) -> bool:
    try:
        return ipaddress.ip_address(name) == ipaddress.ip_address(host)
    except ValueError:
        pass
    name, host = name.lower(), host.lower()
    return name == host or (name.startswith("*.") and name[1:] == host[host.find(".") :])


def _ms(time: datetime.datetime) -> int:
    return int(time.timestamp() * 1000)
