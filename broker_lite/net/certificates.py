"""Read the names, dates and hosts of certificates, and revocation lists, with ``cryptography``,
because the module ``ssl`` does not expose them."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding

from broker_lite.errors import InvalidConfigError


def subject_of(der: bytes) -> tuple[str, int]:
    """Return the name of a certificate's subject (RFC 2253), and the time until which the
    certificate, given in DER, is valid (wall-clock ms)."""
    certificate = x509.load_der_x509_certificate(der)
    return certificate.subject.rfc4514_string(), _ms(certificate.not_valid_after_utc)


def read_certificate(path: str, setting: str) -> bytes:
    """Return the first certificate in a PEM file as DER. Raises InvalidConfigError, which names the
    setting and the file."""
    return _read(path, setting).public_bytes(Encoding.DER)


def _read(path: str, setting: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidConfigError(
            f"{setting}={path}: the file has no PEM certificate: {error}"
        ) from None


def check_certificate(path: str, setting: str, host: str, now_ms: int) -> int:
    """Check that the first certificate in a PEM file is valid now and for the host ``host``. Return
    the time until which it is valid (wall-clock ms).

    With an empty ``host``, only the dates are checked. Raises InvalidConfigError, which names the
    file and the wrong date or host."""
    certificate = _read(path, setting)
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


class ClientTrust:
    """The CAs and revocation lists of a listener, for checking clients that are already connected.

    OpenSSL checks a client's certificate in the handshake only. When the files of the CAs or of the
    revocation lists have changed, the broker checks the certificates of open connections with this
    class. ``cas`` are certificates in DER."""

    def __init__(
        self, cas: Iterable[bytes], revocations: Sequence[x509.CertificateRevocationList]
    ) -> None:
        self._cas = [x509.load_der_x509_certificate(ca) for ca in cas]
        self._revocations = revocations

    def refusal(self, der: bytes, *, checks_ca: bool) -> str:
        """Return the reason why a client's certificate (DER) is no longer accepted, or "" if it
        still is.

        A revoked certificate is not accepted. With ``checks_ca``, a certificate that none of the
        CAs has signed directly is not accepted either."""
        certificate = x509.load_der_x509_certificate(der)
        number = certificate.serial_number
        for revoked in self._revocations:
            if (
                revoked.issuer == certificate.issuer
                and revoked.get_revoked_certificate_by_serial_number(number) is not None
            ):
                return "the client's certificate is revoked (ssl.crl.location)"
        if checks_ca and not any(_has_signed(ca, certificate) for ca in self._cas):
            return "ssl.truststore.location no longer has the CA of the client's certificate"
        return ""


def _has_signed(ca: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


_END_OF_LIST = b"-----END X509 CRL-----"


def read_revocations(
    path: str, setting: str, now_ms: int
) -> tuple[x509.CertificateRevocationList, ...]:
    """Return the certificate revocation lists in a PEM file; none for an empty path.

    Raises InvalidConfigError, which names the file, if the file has no list or an expired one. With
    an expired list, OpenSSL would refuse every client."""
    if not path:
        return ()
    try:
        parts = Path(path).read_bytes().split(_END_OF_LIST)[:-1]
        revocations = tuple(x509.load_pem_x509_crl(part + _END_OF_LIST) for part in parts)
    except (OSError, ValueError) as error:
        raise InvalidConfigError(
            f"{setting}={path}: the file has no PEM revocation list: {error}"
        ) from None
    if not revocations:
        raise InvalidConfigError(
            f"{setting}={path}: the file has no revocation list (-----BEGIN X509 CRL-----); "
            "name one, or leave the setting empty"
        )
    for revoked in revocations:
        ends = revoked.next_update_utc
        if ends is not None and _ms(ends) < now_ms:
            raise InvalidConfigError(
                f"{setting}={path}: the revocation list of {revoked.issuer.rfc4514_string()} "
                f"expired on {ends:%Y-%m-%d %H:%M} UTC; issue a new one"
            )
    return revocations


def _hosts(certificate: x509.Certificate) -> list[str]:
    try:
        alternative_names = certificate.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value
    except x509.ExtensionNotFound:
        return []
    addresses = [str(each) for each in alternative_names.get_values_for_type(x509.IPAddress)]
    return [*alternative_names.get_values_for_type(x509.DNSName), *addresses]


def _matches(name: str, host: str) -> bool:
    try:
        return ipaddress.ip_address(name) == ipaddress.ip_address(host)
    except ValueError:
        pass
    name, host = name.lower(), host.lower()
    return name == host or (name.startswith("*.") and name[1:] == host[host.find(".") :])


def _ms(time: datetime.datetime) -> int:
    return int(time.timestamp() * 1000)
