"""Binding: the errors name the option, and a free port is told."""

from __future__ import annotations

import pytest

from broker_lite.config import BrokerConfig
from broker_lite.errors import InvalidConfigError, PortInUseError
from broker_lite.server.clock import Clock
from broker_lite.server.metrics import Metrics
from broker_lite.server.network.listener import Listener


def listener(**settings: object) -> Listener:
    return Listener(BrokerConfig(**settings), clock=Clock(), metrics=Metrics())  # type: ignore[arg-type]


def test_a_free_port_is_bound_and_told() -> None:
    one = listener(port=0)
    assert one.bound.port > 0
    assert one.endpoint == one.bound
    one.close()


def test_what_clients_are_told_can_be_set() -> None:
    one = listener(port=0, advertised_host="broker.example", advertised_port=443)
    assert one.endpoint == ("broker.example", 443)
    one.close()


def test_a_port_in_use_names_the_option() -> None:
    one = listener(port=0)
    with pytest.raises(PortInUseError, match=f"port={one.bound.port} on host=127.0.0.1"):
        listener(port=one.bound.port)
    one.close()
    listener(port=one.bound.port).close()


@pytest.mark.parametrize("host", ["no such host", "192.0.2.1"])
def test_a_host_that_is_not_ours(host: str) -> None:
    with pytest.raises(InvalidConfigError, match="host="):
        listener(port=0, host=host, listeners_insecure_allow=True)


def test_who_can_reach_a_broker_is_told() -> None:
    one = listener(port=0)
    assert one.exposure() == []
    one.close()
    one = listener(
        port=0, host="0.0.0.0", advertised_host="broker.example", listeners_insecure_allow=True
    )
    [told] = one.exposure()
    assert "host=0.0.0.0 is reached from other machines" in told
    one.close()
    one = listener(port=0, host="0.0.0.0", listeners_insecure_allow=True)
    assert "advertised.host is empty" in one.exposure()[1]
    one.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_others_reach_a_broker_only_where_that_is_said_aloud(host: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"set listeners\.insecure\.allow=true"):
        listener(port=0, host=host)
    for own in ("127.0.0.1", "localhost"):
        listener(port=0, host=own).close()
