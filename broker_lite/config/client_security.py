"""The security settings of a client's connections: TLS and login, under Kafka's setting names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from broker_lite.config.secret import Secret
from broker_lite.errors import InvalidConfigError
from broker_lite.model import LOGIN_MECHANISMS, OAUTHBEARER, TLS_ONLY, ScramMechanism

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """The security settings of a client.

    The settings name PEM files, which each process that connects loads itself. Spark pickles the
    settings for its executors. A ``Secret`` cannot be pickled, so Spark's driver first replaces the
    password by another form (see ``secret``)."""

    protocol: str = "PLAINTEXT"
    ca_location: str = ""
    """File or folder of trusted CAs. If empty, the client trusts the CAs of the operating
    system."""
    ca_certificates: str = ""
    """Trusted CAs as PEM text, in place of a file or folder."""
    certificate_location: str = ""
    key_location: str = ""
    """File of the private key. If empty, the key is in the file of the certificate."""
    key_password: Secret | None = None
    """The password of an encrypted private key."""
    checks_host_name: bool = True
    versions: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    """Allowed versions of TLS. TLS 1.2 is allowed, because Kafka's brokers may lack TLS 1.3."""
    mechanism: str = ""
    username: str = ""
    secret: Secret | tuple[Any, ...] = ()
    """The password or the OAuth client secret; in Spark's executors the ``ScramKeys``,
    ``PlainPassword`` or ``AccessToken`` by which the driver replaced it."""
    token_url: str = ""
    """The https URL that issues access tokens, for OAUTHBEARER. ``username`` is then the OAuth
    client id."""
    token_scope: str = ""

    @property
    def demands_login(self) -> bool:
        return self.protocol.startswith("SASL_")

    @property
    def user(self) -> str:
        """The user's name; empty if a certificate or an access token names the client."""
        return "" if self.mechanism == OAUTHBEARER else self.username

    @property
    def is_tls(self) -> bool:
        return self.protocol.endswith("SSL")


NO_SECURITY = ClientSecurity()

_FIELDS = {
    "security.protocol": "protocol",
    "ssl.ca.location": "ca_location",
    "ssl.truststore.location": "ca_location",
    "ssl.ca.pem": "ca_certificates",
    "ssl.truststore.certificates": "ca_certificates",
    "ssl.certificate.location": "certificate_location",
    "ssl.keystore.location": "certificate_location",
    "ssl.key.location": "key_location",
}
ENDPOINT_IDENTIFICATION = "ssl.endpoint.identification.algorithm"
KEY_PASSWORD = "ssl.key.password"
VERSIONS = "ssl.enabled.protocols"
_TYPES = ("ssl.truststore.type", "ssl.keystore.type")
_STORES = ("ssl.truststore.location", "ssl.keystore.location")
_STORE_PASSWORDS = ("ssl.truststore.password", "ssl.keystore.password")
_INLINE_KEYS = ("ssl.keystore.key", "ssl.key.pem")
_INLINE_CHAINS = ("ssl.keystore.certificate.chain", "ssl.certificate.pem")
MECHANISM, USERNAME, PASSWORD = "sasl.mechanism", "sasl.username", "sasl.password"
MECHANISMS = "sasl.mechanisms"
"""librdkafka's key for ``sasl.mechanism``."""
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID, CLIENT_SECRET = "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret"
TOKEN_SCOPE = "sasl.oauthbearer.scope"
TOKEN_METHOD = "sasl.oauthbearer.method"
KAFKA_CLIENT_ID = "sasl.oauthbearer.client.credentials.client.id"
KAFKA_CLIENT_SECRET = "sasl.oauthbearer.client.credentials.client.secret"
_TOKEN_KEYS = (
    TOKEN_URL, CLIENT_ID, CLIENT_SECRET, TOKEN_SCOPE, TOKEN_METHOD, KAFKA_CLIENT_ID,
    KAFKA_CLIENT_SECRET,
)  # fmt: skip
_LOGIN_KEYS = (MECHANISM, MECHANISMS, USERNAME, PASSWORD, *_TOKEN_KEYS)
KEYS = (
    *_FIELDS,
    ENDPOINT_IDENTIFICATION,
    VERSIONS,
    KEY_PASSWORD,
    *_TYPES,
    *_STORE_PASSWORDS,
    *_INLINE_KEYS,
    *_INLINE_CHAINS,
    *_LOGIN_KEYS,
)
"""The names of all security options of a client: Kafka's and librdkafka's."""
SECRET_KEYS = frozenset(
    {
        PASSWORD,
        KEY_PASSWORD,
        CLIENT_SECRET,
        KAFKA_CLIENT_SECRET,
        *_STORE_PASSWORDS,
        *_INLINE_KEYS,
    }
)
"""Options with secret values, which no log or error message may contain."""

_JAVA = "names Java code, which logbus never runs; leave it out"
_LIBRARY = "names a library, which logbus never loads; leave it out"
_DEFAULTS = "the defaults of OpenSSL apply; leave it out"
REFUSED: Mapping[str, str] = {
    "sasl.client.callback.handler.class": _JAVA,
    "sasl.login.callback.handler.class": _JAVA,
    "sasl.login.class": _JAVA,
    "sasl.oauthbearer.jwt.retriever.class": _JAVA,
    "sasl.oauthbearer.jwt.validator.class": _JAVA,
    "security.providers": _JAVA,
    "ssl.cipher.suites": "the listener chooses among the ciphers of OpenSSL; leave it out",
    "ssl.crl.location": "logbus checks no revocation lists of brokers' certificates. Leave it out, "
    "and replace the CA of a broker whose key was stolen",
    "ssl.curves.list": _DEFAULTS,
    "ssl.engine.factory.class": _JAVA,
    "ssl.engine.location": _LIBRARY,
    "ssl.providers": _LIBRARY,
    "ssl.sigalgs.list": _DEFAULTS,
}
"""Options of Kafka's clients and of librdkafka that logbus refuses, each with the reason and the
remedy. Without them, a connection would be less restricted than its options say, or would lack the
code that they name."""
PASSED_OVER = frozenset((
    "sasl.login.connect.timeout.ms",
    "sasl.login.read.timeout.ms", "sasl.login.refresh.buffer.seconds",
    "sasl.login.refresh.min.period.seconds", "sasl.login.refresh.window.factor",
    "sasl.login.refresh.window.jitter", "sasl.login.retry.backoff.max.ms",
    "sasl.login.retry.backoff.ms", "sasl.kerberos.keytab", "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin", "sasl.kerberos.principal",
    "sasl.kerberos.service.name", "sasl.kerberos.ticket.renew.jitter",
    "sasl.kerberos.ticket.renew.window.factor", "sasl.oauthbearer.clock.skew.seconds",
    "sasl.oauthbearer.config", "sasl.oauthbearer.expected.audience",
    "sasl.oauthbearer.expected.issuer", "sasl.oauthbearer.extensions",
    "sasl.oauthbearer.header.urlencode", "sasl.oauthbearer.jwks.endpoint.refresh.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", "sasl.oauthbearer.jwks.endpoint.url",
    "sasl.oauthbearer.scope.claim.name", "sasl.oauthbearer.sub.claim.name",
    "ssl.ca.certificate.stores", "ssl.engine.id", "ssl.keymanager.algorithm", "ssl.protocol",
    "ssl.provider", "ssl.secure.random.implementation", "ssl.trustmanager.algorithm",
))  # fmt: skip
"""Security options of Kafka's clients and of librdkafka that logbus ignores. They raise no error,
because logbus may read a file of options that one of these clients also reads."""
_KAFKAS_HANDLER = re.compile(
    r"(kafkashaded\.)?org\.apache\.kafka\.common\.security\.oauthbearer(\.secured)?"
    r"\.OAuthBearerLoginCallbackHandler"
)
_ASSERTION = "sasl.oauthbearer.assertion."
"""Prefix of Kafka's options for access tokens that a client signs itself. logbus ignores these
options."""
_NEAR = 0.75
"""Minimum similarity (0 to 1) of a misspelt option to a known one, for a "did you mean"."""


def check_security_names(options: Mapping[str, str], known: Iterable[str]) -> None:
    """Raise InvalidConfigError for a security option that logbus refuses (``REFUSED``), or that is
    probably misspelt: it resembles one of ``known``, and neither Kafka nor librdkafka has an option
    of this name."""
    names = [*known]
    for key, value in options.items():
        if not key.startswith(("sasl.", "ssl.", "security.")) or key.startswith(_ASSERTION):
            continue
        if key in REFUSED and value and not is_kafkas_handler(key, value):
            raise InvalidConfigError(f"option {key!r} is not supported: {REFUSED[key]}")
        if key not in names and key not in PASSED_OVER and key not in REFUSED:
            near = difflib.get_close_matches(key, names, n=1, cutoff=_NEAR)
            if near:
                raise InvalidConfigError(f"unknown option {key!r}; did you mean {near[0]!r}?")


def is_kafkas_handler(key: str, value: str) -> bool:
    """Return whether an option sets Kafka's own handler class for access tokens. logbus ignores
    that class, because its client fetches access tokens itself."""
    handler = "sasl.login.callback.handler.class"
    return key == handler and _KAFKAS_HANDLER.fullmatch(value.strip()) is not None


def client_security(options: Mapping[str, str]) -> ClientSecurity:
    """Return the security settings in ``options``. Other options are ignored.

    Raises InvalidConfigError for a wrong value, and for key stores and trust stores that are not
    PEM files."""
    values: dict[str, Any] = {}
    for key, name in _FIELDS.items():
        if options.get(key):
            values[name] = options[key]
    _check_stores(options)
    protocol = values.get("protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise InvalidConfigError(
            f"security.protocol={values['protocol'][:60]!r}: give one of {', '.join(PROTOCOLS)}"
        )
    values["protocol"] = protocol
    if not protocol.endswith("SSL"):
        given = [key for key in _FIELDS if key.startswith("ssl.") and options.get(key)]
        if given:
            has_login = protocol.startswith("SASL") or any(map(options.get, _LOGIN_KEYS))
            raise InvalidConfigError(
                f"{given[0]} is set, but security.protocol={protocol} uses no TLS; set "
                f"security.protocol={'SASL_SSL' if has_login else 'SSL'}"
            )
    algorithm = options.get(ENDPOINT_IDENTIFICATION, "https").lower()
    if algorithm not in ("https", "none", ""):
        raise InvalidConfigError(
            f"{ENDPOINT_IDENTIFICATION}={algorithm[:60]!r}: give https or none"
        )
    if options.get(KEY_PASSWORD):
        values["key_password"] = Secret(options[KEY_PASSWORD])
    if options.get(VERSIONS):
        values["versions"] = _versions(options[VERSIONS])
    return ClientSecurity(
        **values, checks_host_name=algorithm == "https", **_login(protocol, options)
    )


def check_https(url: str, setting: str) -> None:
    """Raise InvalidConfigError, which names ``setting``, unless ``url`` is an https URL without a
    user or a fragment."""
    try:
        parts = urlsplit(url)
        is_sound = parts.scheme == "https" and bool(parts.hostname) and "@" not in parts.netloc
        _ = parts.port
    except ValueError:
        is_sound = False
    if not is_sound or not (url.isascii() and url.isprintable()) or " " in url or "#" in url:
        raise InvalidConfigError(f"{setting}={url[:120]!r}: give a URL that begins with https://")


def _versions(text: str) -> tuple[str, ...]:
    named = [part.strip() for part in text.split(",")]
    allowed = tuple(version for version in NO_SECURITY.versions if version in named)
    if not allowed:
        raise InvalidConfigError(f"{VERSIONS}={text[:60]!r}: give TLSv1.3, TLSv1.2 or both")
    return allowed


def _check_stores(options: Mapping[str, str]) -> None:
    """Raise InvalidConfigError for Java's key stores, which logbus cannot read, and for private
    keys in options, which logs would show."""
    for location, kind, password in zip(_STORES, _TYPES, _STORE_PASSWORDS, strict=True):
        path = options.get(location, "")
        is_java = path.lower().endswith((".jks", ".p12", ".pfx", ".keystore", ".truststore"))
        if is_java or options.get(kind, "PEM").upper() != "PEM":
            raise InvalidConfigError(
                f"{location if is_java else kind}={options[location if is_java else kind]!r}: "
                "logbus does not read Java's stores (JKS, PKCS12); convert it to PEM once with: "
                f"{_conversion(location, path or 'STORE')}, and set {location} to that file, "
                f"{kind}=PEM, and no {password}"
            )
        if options.get(password):
            raise InvalidConfigError(
                f"{password} is set, but a PEM file of {location} has no password; leave the "
                f"option out (the password of an encrypted key is {KEY_PASSWORD})"
            )
    for key in (*_INLINE_KEYS, *_INLINE_CHAINS):
        if options.get(key):
            raise InvalidConfigError(
                f"{key} holds key material, which Spark and logs would show; write it to a PEM "
                "file that only its owner may read, and name the file in ssl.keystore.location"
            )


def _conversion(location: str, path: str) -> str:
    if location == "ssl.truststore.location":
        return f"keytool -list -rfc -keystore {path} > ca.pem"
    if path.lower().endswith((".p12", ".pfx")):
        return f"openssl pkcs12 -in {path} -nodes -out client.pem"
    return (
        f"keytool -importkeystore -srckeystore {path} -destkeystore client.p12 -deststoretype "
        "PKCS12; openssl pkcs12 -in client.p12 -nodes -out client.pem"
    )


def _login(protocol: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of ``ClientSecurity`` for the login; none without SASL. Raises
    InvalidConfigError, whose message never contains the password."""
    given = [key for key in _LOGIN_KEYS if options.get(key)]
    if not protocol.startswith("SASL_"):
        if given:
            raise InvalidConfigError(
                f"{given[0]} is set, but security.protocol={protocol} has no login; set "
                "security.protocol=SASL_SSL"
            )
        return {}
    mechanism = (options.get(MECHANISM) or options.get(MECHANISMS) or "").upper()
    if mechanism not in LOGIN_MECHANISMS:
        raise InvalidConfigError(
            f"{MECHANISM}={mechanism[:60]!r} with security.protocol={protocol}: give one of "
            f"{', '.join(LOGIN_MECHANISMS)}"
        )
    if mechanism in TLS_ONLY and protocol != "SASL_SSL":
        raise InvalidConfigError(
            f"{MECHANISM}={mechanism} with security.protocol={protocol} would send the secret "
            f"unencrypted; set security.protocol=SASL_SSL, or {MECHANISM} to "
            f"{' or '.join(ScramMechanism)}"
        )
    if mechanism == OAUTHBEARER:
        return {"mechanism": mechanism, **_token(options)}
    for key in (USERNAME, PASSWORD):
        if not options.get(key):
            raise InvalidConfigError(
                f"security.protocol={protocol} needs {key}; without a login use PLAINTEXT or SSL"
            )
    secret = Secret(options[PASSWORD])
    return {"mechanism": mechanism, "username": options[USERNAME], "secret": secret}


def _token(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of ``ClientSecurity`` with which a client fetches access tokens (OAuth's
    client credentials grant). Raises InvalidConfigError for a missing or wrong option."""
    if options.get(TOKEN_METHOD, "oidc").lower() != "oidc":
        raise InvalidConfigError(
            f"{TOKEN_METHOD}={options[TOKEN_METHOD][:60]!r}: only oidc is supported, with "
            f"{TOKEN_URL}"
        )
    values = {
        TOKEN_URL: options.get(TOKEN_URL),
        CLIENT_ID: options.get(CLIENT_ID) or options.get(KAFKA_CLIENT_ID),
        CLIENT_SECRET: options.get(CLIENT_SECRET) or options.get(KAFKA_CLIENT_SECRET),
    }
    for key, value in values.items():
        if not value:
            raise InvalidConfigError(
                f"{MECHANISM}={OAUTHBEARER} needs {key}: tokens are fetched with a client id and "
                "its secret"
            )
    check_https(values[TOKEN_URL] or "", TOKEN_URL)
    return {
        "token_url": values[TOKEN_URL],
        "username": values[CLIENT_ID],
        "secret": Secret(values[CLIENT_SECRET] or ""),
        "token_scope": options.get(TOKEN_SCOPE, ""),
    }
