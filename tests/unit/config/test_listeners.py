"""Tests of the settings of a broker's listeners: each error names the setting to change."""

from __future__ import annotations

import pytest

from broker_lite.config import BrokerConfig, parse
from broker_lite.config.listeners import listener_configs
from broker_lite.errors import InvalidConfigError
from broker_lite.model import Endpoint

TLS = {"ssl.keystore.location": "broker.pem"}
TWO = {
    "listeners": "CLIENTS://[::1]:9093,BROKERS://:0",
    "advertised.listeners": "CLIENTS://broker.example:443",
    "listener.security.protocol.map": "CLIENTS:SSL,BROKERS:SSL",
    "inter.broker.listener.name": "BROKERS",
    "listener.name.brokers.ssl.truststore.location": "brokers.pem",
    "listener.name.brokers.ssl.client.auth": "required",
    **TLS,
}


def test_host_and_port_settings_define_one_plaintext_listener() -> None:
    settings = {"host": "localhost", "port": "1", "advertised.port": "2"}
    [one] = listener_configs(parse(BrokerConfig, settings))
    assert (one.name, one.protocol, one.bind) == ("PLAINTEXT", "PLAINTEXT", ("localhost", 1))
    assert one.advertised == ("localhost", 2) and one.is_inter_broker and one.tls is None


def test_each_listener_has_its_own_address_protocol_and_settings() -> None:
    clients, brokers = listener_configs(parse(BrokerConfig, TWO))
    assert clients.bind == Endpoint("::1", 9093)
    assert clients.advertised == Endpoint("broker.example", 443)
    assert clients.tls is not None and clients.tls.client_auth == "none"
    assert not clients.is_inter_broker
    assert brokers.bind == Endpoint("0.0.0.0", 0) and brokers.is_inter_broker
    assert brokers.requires_certificate
    assert brokers.peer_security.ca_location == "brokers.pem"
    assert brokers.peer_security.certificate_location == "broker.pem"


def test_listener_settings_round_trip_through_text() -> None:
    config = parse(BrokerConfig, TWO)
    assert parse(BrokerConfig, {"listener.name": config.listener_settings}).listener_settings == (
        config.listener_settings
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"listeners": "nonsense"}, r"listeners: 'nonsense' is not NAME://host:port"),
        ({"listeners": "SSL://::1:9092"}, "write an IPv6 address in brackets"),
        ({"listeners": "SSL://h:1,ssl://h:2"}, "listeners names listener SSL twice"),
        ({"listeners": "SSL://h:70000"}, "is not NAME://host:port"),
        (
            {"listeners": "MINE://h:1", "advertised.listeners": ""},
            "add MINE:SSL to listener.security.protocol.map",
        ),
        ({"listener.security.protocol.map": "CLIENTS:TLS"}, "'CLIENTS:TLS' is not NAME:PROTOCOL"),
        (
            {"listener.security.protocol.map": "CLIENTS:SSL,BROKERS:SSL,clients:PLAINTEXT"},
            "listener.security.protocol.map names listener CLIENTS twice",
        ),
        (
            {"listener.security.protocol.map": "CLIENTS:SSL,BROKERS:PLAINTEXT"},
            "listener BROKERS has protocol PLAINTEXT, which has no TLS",
        ),
        (
            {"sasl.enabled.mechanisms": "SCRAM-SHA-256"},
            "sasl.enabled.mechanisms=SCRAM-SHA-256, but no listener has logins",
        ),
        ({"super.users": "User:a,User:b"}, "separate several with semicolons"),
        ({"super.users": "User:a;User:*"}, "name each user"),
        ({"inter.broker.listener.name": ""}, "set inter.broker.listener.name"),
        ({"inter.broker.listener.name": "OTHER"}, "inter.broker.listener.name=OTHER: listeners"),
        ({"advertised.listeners": "OTHER://h:1"}, "advertised.listeners names OTHER"),
        ({"advertised.listeners": "CLIENTS://:1"}, "has no host"),
        ({"ssl.keystore.location": ""}, "set ssl.keystore.location to a PEM file"),
        ({"ssl.client.auth": "required"}, "ssl.truststore.location is empty"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "ssl.enabled.protocols='TLSv1.1': give TLSv1.3"),
        (
            {"listener.name.brokers.ssl.client.auth": "none"},
            r"set listener\.name\.brokers\.ssl\.client\.auth=required",
        ),
        ({"listener.name.brokers.ssl.client.auth": "maybe"}, "'maybe': give one of none"),
        ({"ssl.truststore.location": "brokers.pem"}, "give the brokers a CA of their own"),
        ({"listener.name.other.ssl.key.location": "k"}, "listeners has no listener OTHER"),
        ({"listener.name.brokers.port": "1"}, "no setting 'port' of its own"),
        (
            {"listener.security.protocol.map": "CLIENTS:SASL_SSL,BROKERS:SSL"},
            "listener CLIENTS has protocol SASL_SSL, but sasl.enabled.mechanisms is empty",
        ),
        (
            {
                "listener.security.protocol.map": "CLIENTS:SSL,BROKERS:SASL_SSL",
                "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            },
            "set inter.broker.client.config",
        ),
    ],
)
def test_listener_error_names_the_setting_to_change(change: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        listener_configs(parse(BrokerConfig, TWO | change))


@pytest.mark.parametrize("mechanism", ["GSSAPI", "SCRAM-SHA-1", "plain"])
def test_error_for_an_unknown_sasl_mechanism_lists_the_known_ones(
    mechanism: str,
) -> None:
    with pytest.raises(
        InvalidConfigError, match=rf"sasl\.enabled\.mechanisms='{mechanism}'.*SCRAM-SHA-256"
    ):
        parse(BrokerConfig, TWO | {"sasl.enabled.mechanisms": mechanism})


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_plain_and_oauthbearer_need_a_listener_with_tls(mechanism: str) -> None:
    tokens = {
        "sasl.oauthbearer.jwks.endpoint.url": "/keys.json",
        "sasl.oauthbearer.expected.issuer": "https://issuer",
        "sasl.oauthbearer.expected.audience": "logbus",
        "sasl.enabled.mechanisms": f"SCRAM-SHA-512,{mechanism}",
    }
    for given, where in (
        (TWO | {"listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,BROKERS:SSL"}, "CLIENTS"),
        ({}, "listeners is empty"),
    ):
        with pytest.raises(InvalidConfigError) as refused:
            listener_configs(parse(BrokerConfig, given | tokens))
        message = str(refused.value)
        assert f"sasl.enabled.mechanisms has {mechanism}" in message and where in message
        assert "listener.security.protocol.map to SASL_SSL" in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sasl.oauthbearer.jwks.endpoint.url": ""}, "jwks.endpoint.url is empty"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "http://issuer/keys"}, "begins with https://"),
        ({"sasl.oauthbearer.expected.issuer": ""}, "expected.issuer is empty"),
        ({"sasl.oauthbearer.expected.audience": " , "}, "expected.audience is empty"),
        ({"sasl.oauthbearer.sub.claim.name": ""}, "sub.claim.name is empty"),
    ],
)
def test_oauthbearer_needs_an_issuer_an_audience_and_keys(
    change: dict[str, str], message: str
) -> None:
    given = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": "https://issuer/keys",
        "sasl.oauthbearer.expected.issuer": "https://issuer",
        "sasl.oauthbearer.expected.audience": "logbus",
    }
    assert parse(BrokerConfig, TWO | given).oauth_audiences == ("logbus",)
    with pytest.raises(InvalidConfigError, match=message):
        parse(BrokerConfig, TWO | given | change)


def test_single_broker_with_logins_needs_inter_broker_client_config() -> None:
    short = {"sasl.enabled.mechanisms": "SCRAM-SHA-256"}
    with pytest.raises(InvalidConfigError, match=r"set inter\.broker\.client\.config"):
        listener_configs(parse(BrokerConfig, short))
    (only,) = listener_configs(
        parse(BrokerConfig, short | {"inter.broker.client.config": "broker.properties"})
    )
    assert only.has_logins


@pytest.mark.parametrize(
    "settings",
    [{"advertised.listeners": "A://h:1"}, {"listener.name.a.ssl.key.location": "k"}],
)
def test_settings_of_named_listeners_are_refused_if_the_setting_listeners_is_missing(
    settings: dict[str, str],
) -> None:
    with pytest.raises(InvalidConfigError, match="without listeners"):
        listener_configs(parse(BrokerConfig, settings))
