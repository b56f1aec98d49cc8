"""How a client secures its connections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker_lite.config.secret import Secret
from broker_lite.errors import InvalidConfigError
from broker_lite.model import ScramMechanism

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """The security settings of a client: paths of PEM files, never their content.

    Picklable with derived keys, for Spark's executors; a password refuses to be pickled. Each
    process loads the files itself.
    """

    protocol: str = "PLAINTEXT"
    ca_location: str = ""
    """File or folder of trusted CAs; empty: the system's."""
    certificate_location: str = ""
    key_location: str = ""
    """The private key; empty: in the file of the certificate."""
    checks_host_name: bool = True
    mechanism: str = ""
    username: str = ""
    secret: Secret | tuple[Any, ...] = ()
    """The password, or the keys that Spark's driver derived from it (``ScramKeys``)."""

    @property
    def demands_login(self) -> bool:
        return self.protocol.startswith("SASL_")

    @property
    def is_tls(self) -> bool:
        return self.protocol.endswith("SSL")


NO_SECURITY = ClientSecurity()

_FIELDS = {
    "security.protocol": "protocol",
    "ssl.ca.location": "ca_location",
    "ssl.truststore.location": "ca_location",
    "ssl.certificate.location": "certificate_location",
    "ssl.keystore.location": "certificate_location",
    "ssl.key.location": "key_location",
}
ENDPOINT_IDENTIFICATION = "ssl.endpoint.identification.algorithm"
_TYPES = ("ssl.truststore.type", "ssl.keystore.type")
MECHANISM, USERNAME, PASSWORD = "sasl.mechanism", "sasl.username", "sasl.password"
MECHANISMS = "sasl.mechanisms"
"""librdkafka's spelling of ``sasl.mechanism``."""
KEYS = (
    *_FIELDS,
    ENDPOINT_IDENTIFICATION,
    *_TYPES,
    MECHANISM,
    MECHANISMS,
    USERNAME,
    PASSWORD,
)
"""The client's security options, in Kafka's and librdkafka's spellings."""


def client_security(options: Mapping[str, str]) -> ClientSecurity:
    """Return the security that options ask for; other options are ignored.

    Raises InvalidConfigError for a wrong value, and for stores that are not PEM files.
    """
    values: dict[str, Any] = {}
    for key, name in _FIELDS.items():
        if options.get(key):
            values[name] = options[key]
    for key in _TYPES:
        if options.get(key, "PEM").upper() != "PEM":
            raise InvalidConfigError(
                f"{key}={options[key]!r}: give PEM files; convert the store with: keytool and "
                "openssl pkcs12"
            )
    for key in ("ssl.truststore.location", "ssl.keystore.location"):
        if options.get(key, "").lower().endswith((".jks", ".p12", ".pfx")):
            raise InvalidConfigError(
                f"{key}={options[key]!r}: give a PEM file; convert the store with: openssl pkcs12"
            )
    protocol = values.get("protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise InvalidConfigError(
            f"security.protocol={values['protocol'][:60]!r}: give one of {', '.join(PROTOCOLS)}"
        )
    values["protocol"] = protocol
    if not protocol.endswith("SSL"):
        given = [key for key in _FIELDS if key.startswith("ssl.") and options.get(key)]
        if given:
            raise InvalidConfigError(
                f"{given[0]} is set, but security.protocol={protocol} uses no TLS; set "
                "security.protocol=SSL"
            )
    algorithm = options.get(ENDPOINT_IDENTIFICATION, "https").lower()
    if algorithm not in ("https", "none", ""):
        raise InvalidConfigError(
            f"{ENDPOINT_IDENTIFICATION}={algorithm[:60]!r}: give https or none"
        )
    return ClientSecurity(
        **values, checks_host_name=algorithm == "https", **_login(protocol, options)
    )


def _login(protocol: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a login with SCRAM. Error messages never contain the password."""
    given = [key for key in (MECHANISM, MECHANISMS, USERNAME, PASSWORD) if options.get(key)]
    if not protocol.startswith("SASL_"):
        if given:
            raise InvalidConfigError(
                f"{given[0]} is set, but security.protocol={protocol} has no login; set "
                "security.protocol=SASL_SSL"
            )
        return {}
    mechanism = (options.get(MECHANISM) or options.get(MECHANISMS) or "").upper()
    if mechanism not in list(ScramMechanism):
        raise InvalidConfigError(
            f"{MECHANISM}={mechanism[:60]!r} with security.protocol={protocol}: give "
            f"{' or '.join(ScramMechanism)}"
        )
    for key in (USERNAME, PASSWORD):
        if not options.get(key):
            raise InvalidConfigError(
                f"security.protocol={protocol} needs {key}; without a login use PLAINTEXT or SSL"
            )
    secret = Secret(options[PASSWORD])
    return {"mechanism": mechanism, "username": options[USERNAME], "secret": secret}
