"""The options that secure a query's connections, under Kafka's names and librdkafka's names.

A query may also give each option with the prefix ``kafka.``. This module runs on the driver only
and does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker_lite.config.client_security import REFUSED

DOCS: Mapping[str, str] = {
    "security.protocol": "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-256, SCRAM-SHA-512, or with SASL_SSL: PLAIN or OAUTHBEARER",
    "sasl.mechanisms": "librdkafka's spelling of sasl.mechanism",
    "sasl.username": "user name; or use sasl.jaas.config",
    "sasl.password": "password; it stays on the driver, and executors receive derived keys (with "
    "PLAIN the password)",
    "sasl.jaas.config": "user and password in Kafka's form: …ScramLoginModule required username=… "
    "password=…;",
    "sasl.oauthbearer.token.endpoint.url": "https URL that issues access tokens; list it in "
    "LOGBUS_OAUTH_ALLOWED_URLS",
    "sasl.oauthbearer.client.id": "client id at the issuer; or clientId in sasl.jaas.config",
    "sasl.oauthbearer.client.secret": "secret of the client id; it stays on the driver, and "
    "executors receive the present token",
    "sasl.oauthbearer.scope": "scope requested from the issuer",
    "sasl.oauthbearer.method": "only oidc",
    "sasl.oauthbearer.client.credentials.client.id": "Kafka's spelling of "
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "Kafka's spelling of "
    "sasl.oauthbearer.client.secret",
    "ssl.ca.location": "PEM file or folder of the CAs to trust, on the driver and each executor",
    "ssl.truststore.location": "Kafka's spelling of ssl.ca.location; a PEM file",
    "ssl.truststore.certificates": "CAs to trust, as PEM text",
    "ssl.ca.pem": "librdkafka's spelling of ssl.truststore.certificates",
    "ssl.truststore.type": "only PEM",
    "ssl.truststore.password": "refused: PEM files have none",
    "ssl.certificate.location": "PEM file of the client's certificate, for brokers that ask for it",
    "ssl.keystore.location": "Kafka's spelling of ssl.certificate.location; a PEM file",
    "ssl.keystore.type": "only PEM",
    "ssl.keystore.password": "refused: PEM files have none",
    "ssl.key.location": "PEM file of the private key, if it is not in the certificate's file",
    "ssl.key.password": "refused: executors need the key; name client.config or a decrypted file",
    "ssl.keystore.key": "refused: Spark would show the private key; name a file",
    "ssl.keystore.certificate.chain": "refused: name a file in ssl.keystore.location",
    "ssl.key.pem": "refused: Spark would show the private key; name a file",
    "ssl.certificate.pem": "refused: name a file in ssl.certificate.location",
    "ssl.endpoint.identification.algorithm": "https, or none to accept any host name",
    "ssl.enabled.protocols": "TLSv1.3, TLSv1.2 or both, separated by commas",
    "client.config": "file with these settings, on the driver and on each executor (mode 0600)",
}
"""Every security option with its effect, for the documentation."""

_KERBEROS = "Kerberos is not supported; use sasl.mechanism=SCRAM-SHA-512"
_TOKENS = (
    "access tokens are fetched with sasl.oauthbearer.token.endpoint.url, client id and secret "
    "alone; leave it out"
)

REFUSED_FAMILIES: Mapping[str, str] = {
    "sasl.kerberos.": _KERBEROS,
    "sasl.oauthbearer.": _TOKENS,
    "sasl.login.retry.": _TOKENS,
}
"""Prefixes of option names that logbus refuses, each with the reason and the remedy."""

IGNORED = (
    "sasl.login.connect.timeout.ms",
    "sasl.login.read.timeout.ms",
    "sasl.login.refresh.buffer.seconds",
    "sasl.login.refresh.min.period.seconds",
    "sasl.login.refresh.window.factor",
    "sasl.login.refresh.window.jitter",
    "ssl.keymanager.algorithm",
    "ssl.protocol",
    "ssl.provider",
    "ssl.secure.random.implementation",
    "ssl.trustmanager.algorithm",
)
"""Kafka's options that have an effect only in Java. logbus ignores them with one warning."""


def refusal(name: str) -> str | None:
    """Return the reason why logbus refuses Kafka's option ``name``; None if logbus accepts it."""
    for family, reason in REFUSED_FAMILIES.items():
        if name.startswith(family):
            return reason
    return REFUSED.get(name)
