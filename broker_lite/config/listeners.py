"""The listeners of a broker, from Kafka's ``listeners`` and related settings."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from broker_lite.config.broker import LISTENER_PREFIX, BrokerConfig
from broker_lite.config.client_security import PROTOCOLS, ClientSecurity
from broker_lite.errors import InvalidConfigError
from broker_lite.model import TLS_ONLY, Endpoint

_LISTENER = re.compile(r"([A-Za-z0-9_-]+)://(?:\[([^\]]*)\]|([^:/\[\]]*)):(\d+)")
VERSIONS = ("TLSv1.2", "TLSv1.3")
CLIENT_AUTH = ("none", "requested", "required")
_TLS_FIELDS = {
    "ssl.keystore.location": "keystore",
    "ssl.key.location": "key",
    "ssl.truststore.location": "truststore",
    "ssl.crl.location": "crl",
    "ssl.client.auth": "client_auth",
    "ssl.enabled.protocols": "versions",
    "ssl.principal.mapping.rules": "mapping_rules",
    "ssl.endpoint.identification.algorithm": "endpoint_identification",
}


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The ``ssl.*`` settings of one listener.

    ``prefix`` is the text before the keys in error messages: ``listener.name.<name>.``, or empty if
    the settings apply to all listeners."""

    prefix: str
    keystore: str
    key: str
    truststore: str
    client_auth: str
    versions: str
    mapping_rules: str
    endpoint_identification: str
    crl: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """The PEM files that the broker reloads when they change."""
        return tuple(filter(None, (self.keystore, self.key, self.truststore, self.crl)))


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """The settings of one listener. ``tls`` is None if its protocol has no TLS."""

    name: str
    protocol: str
    bind: Endpoint
    advertised: Endpoint | None
    """The address of the listener that metadata answers contain. None means the address on which
    the listener accepts connections."""
    setting: str
    """The setting that gives the listener's address, written ``key=value``, for error messages."""
    is_inter_broker: bool
    tls: TlsSettings | None = None
    is_one_of_several: bool = False

    @property
    def has_logins(self) -> bool:
        return self.protocol.startswith("SASL")

    @property
    def requires_certificate(self) -> bool:
        return self.tls is not None and self.tls.client_auth == "required"

    @property
    def is_of_brokers_alone(self) -> bool:
        """Whether only brokers can connect to this listener.

        True for the inter-broker listener of a broker with several listeners, if it requires client
        certificates: only brokers have certificates of the CA that it trusts."""
        return self.is_inter_broker and self.is_one_of_several and self.requires_certificate

    @property
    def shares_certificates(self) -> bool:
        """Whether clients and brokers connect to this listener with certificates of one CA, without
        logins. A client whose certificate has the name of a broker is then a broker."""
        is_shared = self.is_inter_broker and not self.is_one_of_several
        return is_shared and self.requires_certificate and not self.has_logins

    @property
    def peer_security(self) -> ClientSecurity:
        """The security settings with which this broker connects, as a client, to other brokers'
        listener of the same name."""
        if self.tls is None:
            return ClientSecurity(self.protocol)
        return ClientSecurity(
            self.protocol,
            ca_location=self.tls.truststore,
            certificate_location=self.tls.keystore,
            key_location=self.tls.key,
            checks_host_name=self.tls.endpoint_identification == "https",
        )


def listener_configs(config: BrokerConfig) -> tuple[ListenerConfig, ...]:
    """Return the listeners that a broker's settings describe. Raises InvalidConfigError, which
    names the setting to change."""
    if not config.listeners:
        if config.advertised_listeners:
            raise InvalidConfigError(
                "advertised.listeners is set without listeners; set listeners, or use "
                "advertised.host and advertised.port"
            )
        only = _short_form(config)
        _check_broker_logins(only, config.inter_broker_client_config)
        return (only,)
    bound = _addresses("listeners", config.listeners)
    advertised = _addresses("advertised.listeners", config.advertised_listeners)
    for name in advertised:
        if name not in bound:
            raise InvalidConfigError(
                f"advertised.listeners names {name}, which listeners does not have; add it there"
            )
    protocols = _protocols(config, bound)
    inter_broker = config.inter_broker_listener_name or next(iter(bound))
    if inter_broker not in bound:
        raise InvalidConfigError(
            f"inter.broker.listener.name={inter_broker}: listeners has no such name; give one of "
            f"{', '.join(bound)}"
        )
    if len(bound) > 1 and not config.inter_broker_listener_name:
        raise InvalidConfigError(
            "listeners has several names; set inter.broker.listener.name to the one for brokers"
        )
    own = _own_settings(config, protocols)
    listeners = tuple(
        ListenerConfig(
            name,
            protocols[name],
            address,
            advertised.get(name),
            f"listeners={name}://{address}",
            name == inter_broker,
            _tls(config, name, own.get(name, {})) if protocols[name].endswith("SSL") else None,
            len(bound) > 1,
        )
        for name, address in bound.items()
    )
    _check_inter_broker(listeners, config.inter_broker_client_config)
    return listeners


def metrics_listener(config: BrokerConfig) -> ListenerConfig | None:
    """Return the listener whose TLS settings the broker's HTTP port (metrics and health) uses; None
    if the port has no TLS. Raises InvalidConfigError.

    The HTTP port never requires client certificates, because health probes have none."""
    name = config.metrics_listener_name.upper()
    if not name:
        return None
    for listener in listener_configs(config):
        if listener.name != name or listener.tls is None:
            continue
        asks = "none" if listener.tls.client_auth == "none" else "requested"
        return replace(listener, tls=replace(listener.tls, client_auth=asks))
    raise InvalidConfigError(
        f"metrics.listener.name={name}: listeners has no listener of this name with TLS; name one "
        "whose protocol is SSL or SASL_SSL"
    )


def _short_form(config: BrokerConfig) -> ListenerConfig:
    if config.listener_settings:
        raise InvalidConfigError(f"{LISTENER_PREFIX}… is set without listeners; set listeners")
    advertised = None
    if config.advertised_host or config.advertised_port:
        host = config.advertised_host or config.host
        advertised = Endpoint(host, config.advertised_port)
    bind = Endpoint(config.host, config.port)
    protocol = "SASL_PLAINTEXT" if config.sasl_mechanisms else "PLAINTEXT"
    _check_encryption(config, "listeners is empty, so the protocol is SASL_PLAINTEXT", protocol)
    return ListenerConfig("PLAINTEXT", protocol, bind, advertised, f"host={config.host}", True)


def _addresses(key: str, text: str) -> dict[str, Endpoint]:
    addresses: dict[str, Endpoint] = {}
    for row in filter(None, (part.strip() for part in text.split(","))):
        match = _LISTENER.fullmatch(row)
        if match is None or int(match[4]) > 65535:
            raise InvalidConfigError(
                f"{key}: {row[:80]!r} is not NAME://host:port; write an IPv6 address in brackets"
            )
        name = match[1].upper()
        if name in addresses:
            raise InvalidConfigError(
                f"{key} names listener {name} twice; give each listener its own name"
            )
        host = match[2] or match[3]
        if not host and key == "advertised.listeners":
            raise InvalidConfigError(
                f"{key}: {row[:80]!r} has no host; give one that clients can resolve"
            )
        addresses[name] = Endpoint(host or "0.0.0.0", int(match[4]))
    return addresses


def _protocols(config: BrokerConfig, names: dict[str, Endpoint]) -> dict[str, str]:
    mapped: dict[str, str] = {}
    for row in filter(None, (part.strip() for part in config.protocol_map.split(","))):
        name, colon, protocol = row.partition(":")
        if not colon or protocol.upper() not in PROTOCOLS:
            raise InvalidConfigError(
                f"listener.security.protocol.map: {row[:80]!r} is not NAME:PROTOCOL; the protocols "
                f"are {', '.join(PROTOCOLS)}"
            )
        name = name.strip().upper()
        if name in mapped:
            raise InvalidConfigError(
                f"listener.security.protocol.map names listener {name} twice; give it one protocol"
            )
        mapped[name] = protocol.upper()
    for name in names:
        if name not in mapped:
            raise InvalidConfigError(
                f"listener {name} has no protocol; add {name}:SSL to listener.security.protocol.map"
            )
        if mapped[name].startswith("SASL") and not config.sasl_mechanisms:
            raise InvalidConfigError(
                f"listener {name} has protocol {mapped[name]}, but sasl.enabled.mechanisms is "
                "empty; set it to SCRAM-SHA-256 or SCRAM-SHA-512"
            )
        _check_encryption(config, f"listener {name} has protocol {mapped[name]}", mapped[name])
    found = {name: mapped[name] for name in names}
    # The HTTP port checks passwords, too, if metrics.listener.name is set, so it counts as a
    # listener with logins.
    has_logins = config.metrics_listener_name or any("SASL" in each for each in found.values())
    if config.sasl_mechanisms and not has_logins:
        raise InvalidConfigError(
            f"sasl.enabled.mechanisms={','.join(config.sasl_mechanisms)}, but no listener has "
            "logins; give one the protocol SASL_SSL in listener.security.protocol.map"
        )
    return found


def _check_encryption(config: BrokerConfig, where: str, protocol: str) -> None:
    """Raise InvalidConfigError if passwords or tokens would be sent without TLS."""
    for mechanism in TLS_ONLY:
        if protocol == "SASL_PLAINTEXT" and mechanism in config.sasl_mechanisms:
            raise InvalidConfigError(
                f"sasl.enabled.mechanisms has {mechanism}, which needs TLS, but {where}; set "
                "listeners and listener.security.protocol.map to SASL_SSL, or take "
                f"{mechanism} out"
            )


def _own_settings(config: BrokerConfig, protocols: dict[str, str]) -> dict[str, dict[str, str]]:
    """Return the ``listener.name.*`` settings by listener name, then by key without the prefix.
    ``protocols`` has the protocol of each listener."""
    own: dict[str, dict[str, str]] = {}
    for line in config.listener_settings.splitlines():
        key, _, value = line.partition("=")
        name, _, setting = key.removeprefix(LISTENER_PREFIX).partition(".")
        protocol = protocols.get(name.upper())
        if protocol is None:
            raise InvalidConfigError(
                f"{key}: listeners has no listener {name.upper()}; correct the name"
            )
        if setting not in _TLS_FIELDS:
            raise InvalidConfigError(
                f"{key}: a listener has no setting {setting!r} of its own; the settings are "
                f"{', '.join(_TLS_FIELDS)}"
            )
        if not protocol.endswith("SSL"):
            raise InvalidConfigError(
                f"{key}: listener {name.upper()} has protocol {protocol}, which has no TLS; set "
                "SSL or SASL_SSL in listener.security.protocol.map, or leave the setting out"
            )
        own.setdefault(name.upper(), {})[setting] = value
    return own


def _tls(config: BrokerConfig, name: str, own: dict[str, str]) -> TlsSettings:
    values = {
        "ssl.keystore.location": config.ssl_keystore,
        "ssl.key.location": config.ssl_key,
        "ssl.truststore.location": config.ssl_truststore,
        "ssl.crl.location": config.ssl_crl,
        "ssl.client.auth": config.ssl_client_auth,
        "ssl.enabled.protocols": config.ssl_enabled_protocols,
        "ssl.principal.mapping.rules": config.ssl_mapping_rules,
        "ssl.endpoint.identification.algorithm": config.ssl_endpoint_identification,
    } | own
    prefix = f"{LISTENER_PREFIX}{name.lower()}." if own else ""
    tls = TlsSettings(prefix, **{_TLS_FIELDS[key]: value for key, value in values.items()})
    if not tls.keystore:
        raise InvalidConfigError(
            f"listener {name} has no certificate; set {prefix}ssl.keystore.location to a PEM file "
            "with the certificate chain and its private key"
        )
    if tls.client_auth not in CLIENT_AUTH:
        raise InvalidConfigError(
            f"{prefix}ssl.client.auth={tls.client_auth[:60]!r}: give one of "
            f"{', '.join(CLIENT_AUTH)}"
        )
    if tls.client_auth != "none" and not tls.truststore:
        raise InvalidConfigError(
            f"{prefix}ssl.client.auth={tls.client_auth}, but {prefix}ssl.truststore.location is "
            "empty; name a PEM file of the CAs that sign client certificates"
        )
    versions = [version.strip() for version in tls.versions.split(",")]
    if not all(version in VERSIONS for version in versions):
        raise InvalidConfigError(
            f"{prefix}ssl.enabled.protocols={tls.versions[:60]!r}: give TLSv1.3, or TLSv1.2,TLSv1.3"
        )
    return tls


def _check_broker_logins(brokers: ListenerConfig, client_config: str) -> None:
    """Raise InvalidConfigError if brokers must log in to each other but have no credentials. A
    single broker needs credentials too, because it sends transaction markers to itself."""
    if brokers.has_logins and not client_config:
        raise InvalidConfigError(
            f"listener {brokers.name} for brokers has protocol {brokers.protocol}, but brokers "
            "have no user to log in as; set inter.broker.client.config to a file of sasl.username "
            "and sasl.password, or inter.broker.listener.name to a listener with SSL"
        )


def _check_inter_broker(listeners: tuple[ListenerConfig, ...], client_config: str) -> None:
    """Raise InvalidConfigError if clients could pose as brokers on the inter-broker listener.

    If the inter-broker listener uses TLS and is not the only one, it must require client
    certificates, of a CA that no other listener trusts."""
    brokers = next(each for each in listeners if each.is_inter_broker)
    _check_broker_logins(brokers, client_config)
    if brokers.tls is None or len(listeners) == 1:
        return
    prefix = f"{LISTENER_PREFIX}{brokers.name.lower()}."
    if not brokers.requires_certificate:
        raise InvalidConfigError(
            f"brokers connect to each other over listener {brokers.name}, which demands no client "
            "certificates, so that a client could pose as a broker; set "
            f"{prefix}ssl.client.auth=required"
        )
    for other in listeners:
        if other.tls is None or other is brokers:
            continue
        if other.tls.truststore == brokers.tls.truststore:
            raise InvalidConfigError(
                f"{prefix}ssl.truststore.location and the ssl.truststore.location of listener "
                f"{other.name} are one file, so every client could pose as a broker; give the "
                "brokers a CA of their own"
            )
