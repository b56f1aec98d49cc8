"""Listeners out of settings; each mistake names the setting to change."""

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


def test_host_and_port_are_one_plaintext_listener() -> None:
    settings = {"host": "localhost", "port": "1", "advertised.port": "2"}
    [one] = listener_configs(parse(BrokerConfig, settings))
    assert (one.name, one.protocol, one.bind) == ("PLAINTEXT", "PLAINTEXT", ("localhost", 1))
    assert one.advertised == ("localhost", 2) and one.is_inter_broker and one.tls is None


def test_listeners_have_their_own_addresses_protocols_and_settings() -> None:
    clients, brokers = listener_configs(parse(BrokerConfig, TWO))
    assert clients.bind == Endpoint("::1", 9093)
    assert clients.advertised == Endpoint("broker.example", 443)
    assert clients.tls is not None and clients.tls.client_auth == "none"
    assert not clients.is_inter_broker
    assert brokers.bind == Endpoint("0.0.0.0", 0) and brokers.is_inter_broker
    assert brokers.requires_certificate
    assert brokers.peer_security.ca_location == "brokers.pem"
    assert brokers.peer_security.certificate_location == "broker.pem"


def test_settings_of_listeners_survive_their_text() -> None:
    config = parse(BrokerConfig, TWO)
    assert parse(BrokerConfig, {"listener.name": config.listener_settings}).listener_settings == (
        config.listener_settings
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"listeners": "nonsense"}, r"listeners: 'nonsense' is not NAME://host:port"),
        ({"listeners": "SSL://::1:9092"}, "write an IPv6 address in brackets"),
        ({"listeners": "SSL://h:1,ssl://h:2"}, "listeners has SSL twice"),
        ({"listeners": "SSL://h:70000"}, "is not NAME://host:port"),
        (
            {"listeners": "MINE://h:1", "advertised.listeners": ""},
            "add MINE:SSL to listener.security.protocol.map",
        ),
        ({"listener.security.protocol.map": "CLIENTS:TLS"}, "'CLIENTS:TLS' is not NAME:PROTOCOL"),
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
            "brokers do not log in to each other",
        ),
    ],
)
def test_mistake_names_the_setting_to_change(change: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        listener_configs(parse(BrokerConfig, TWO | change))


@pytest.mark.parametrize(
    "settings",
    [{"advertised.listeners": "A://h:1"}, {"listener.name.a.ssl.key.location": "k"}],
)
def test_settings_of_listeners_need_listeners(settings: dict[str, str]) -> None:
    with pytest.raises(InvalidConfigError, match="without listeners"):
        listener_configs(parse(BrokerConfig, settings))
