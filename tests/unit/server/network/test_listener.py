"""Tests of a listener: errors when it binds its port, and connections that it closes or refuses."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest

from broker_lite.config import MINUTE, BrokerConfig
from broker_lite.errors import InvalidConfigError, PortInUseError
from broker_lite.server.clock import Clock
from broker_lite.server.metrics import Metrics
from broker_lite.server.network import listener as listener_module
from broker_lite.server.network.connection import Begin, ResponseSlot
from broker_lite.server.network.context import Session
from broker_lite.server.network.listener import Listener

LOGINS = {"sasl_enabled_mechanisms": "SCRAM-SHA-256", "inter_broker_client_config": "unread"}
"""Settings of a broker with logins; no broker of these tests logs in itself."""


def listener(**settings: object) -> Listener:
    return Listener(BrokerConfig(**settings), clock=Clock(), metrics=Metrics())  # type: ignore[arg-type]


def test_listener_with_port_0_binds_a_free_port() -> None:
    one = listener(port=0)
    assert one.bound.port > 0
    assert one.endpoint == one.bound
    one.close()


def test_advertised_host_and_port_can_be_set() -> None:
    one = listener(port=0, advertised_host="broker.example", advertised_port=443)
    assert one.endpoint == ("broker.example", 443)
    one.close()


def test_port_in_use_error_names_the_option() -> None:
    one = listener(port=0)
    with pytest.raises(PortInUseError, match=f"port={one.bound.port} on host=127.0.0.1"):
        listener(port=one.bound.port)
    one.close()
    listener(port=one.bound.port).close()


@pytest.mark.parametrize(
    ("host", "reason"),
    [("no such host", "cannot resolve"), ("192.0.2.1", "the address is not of this machine")],
)
def test_listener_host_of_another_machine_is_refused(host: str, reason: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"host={host}.*{reason}"):
        listener(port=0, host=host, listeners_insecure_allow=True)


def test_log_names_bound_and_advertised_address_of_each_listener() -> None:
    """Regression: with two listeners and port 0, the log line paired the bound address of one
    listener with the advertised address of the other."""
    names = "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0"
    kinds = "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT"
    one = listener(
        listeners=names,
        protocol_map=kinds,
        inter_broker_listener_name="BROKERS",
        advertised_listeners="CLIENTS://broker.example:0,BROKERS://[::1]:7",
    )
    port = one.bound.port
    clients, brokers = one.addresses().split("; ")
    assert clients == f"CLIENTS 127.0.0.1:{port}, advertised as broker.example:{port}"
    assert brokers.endswith(", advertised as [::1]:7")
    one.close()


def test_listener_warns_of_an_address_that_other_machines_reach() -> None:
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


@pytest.mark.parametrize(("host", "value"), [("0.0.0.0", 1), ("127.0.0.1", 0)])
def test_insecure_listeners_metric_counts_plaintext_listeners_off_loopback(
    host: str, value: int
) -> None:
    async def main() -> None:
        one = listener(port=0, host=host, listeners_insecure_allow=True)
        one.start(asyncio.get_running_loop(), lambda *_: None)
        one.close()
        found = {sample.metric.name: sample.values for sample in one._metrics.samples()}
        assert found["insecure_listeners"] == {("PLAINTEXT",): value}

    asyncio.run(main())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_plaintext_listener_off_loopback_needs_listeners_insecure_allow(
    host: str,
) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        listener(port=0, host=host)
    for part in (f"host={host}", "logbus up --secure", "listeners.insecure.allow=true"):
        assert part in str(refused.value)
    for own in ("127.0.0.1", "localhost"):
        listener(port=0, host=own).close()


@pytest.mark.parametrize("idle_ms", [1000, 10 * MINUTE])
def test_client_that_does_not_read_its_responses_is_disconnected(
    idle_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit is a minute, or connection.idle.ms if that is shorter."""
    if idle_ms > 1000:
        monkeypatch.setattr(listener_module, "UNREAD_MS", 1000)
        monkeypatch.setattr(listener_module, "SWEEP_S", 0.2)
    begun: list[ResponseSlot] = []

    def begin(frame: memoryview, reply: ResponseSlot) -> None:
        begun.append(reply)
        reply.answer([bytes(16 << 20)])

    async def attack(one: Listener) -> None:
        silent = await connect(one)
        await asyncio.get_running_loop().sock_sendall(silent, struct.pack(">i", 1) + b"x")
        while not begun or begun[0].is_open:
            await asyncio.sleep(0.01)
        assert one.is_idle
        silent.close()

    serve(begin, attack, connection_idle_ms=idle_ms)


def test_connection_with_a_stalled_request_is_closed_while_others_wait_for_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener_module, "STALLED_MS", 300)

    async def attack(one: Listener) -> None:
        loop = asyncio.get_running_loop()
        stalled, patient = await connect(one), await connect(one)
        await loop.sock_sendall(stalled, struct.pack(">i", 4 << 20) + bytes(1 << 20))
        await loop.sock_sendall(patient, struct.pack(">i", 4 << 20) + bytes(4 << 20))
        assert await loop.sock_recv(patient, 2) == b"ok"
        assert await loop.sock_recv(stalled, 1) == b""
        stalled.close()
        patient.close()

    serve(
        lambda frame, reply: reply.answer([b"ok"]),
        attack,
        connection_idle_ms=1000,
        in_flight_bytes_max=1 << 20,
    )


def serve(begin: Begin, attack: Callable[[Listener], Any], **settings: object) -> None:
    """Run the coroutine function ``attack`` against a new listener with these settings."""

    async def main() -> None:
        one = listener(port=0, **settings)
        one.start(asyncio.get_running_loop(), begin)
        await asyncio.wait_for(attack(one), 20)
        one.close()

    asyncio.run(main())


async def connect(one: Listener) -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, tuple(one.bound))
    return sock


def test_request_before_login_has_a_size_limit_of_16_kib_and_a_time_limit() -> None:
    sessions: list[Session] = []

    def begin(frame: memoryview, reply: ResponseSlot) -> None:
        sessions.append(reply.session)
        reply.answer([b"ok"])

    async def attack(one: Listener) -> None:
        loop = asyncio.get_running_loop()
        early, late, silent = await connect(one), await connect(one), await connect(one)
        await loop.sock_sendall(early, struct.pack(">i", (16 << 10) + 1))
        assert await loop.sock_recv(early, 1) == b""
        await loop.sock_sendall(late, struct.pack(">i", 1) + b"x")
        assert await loop.sock_recv(late, 2) == b"ok"
        sessions[0].needs_login, sessions[0].mechanism = False, "SCRAM-SHA-256"
        await loop.sock_sendall(late, struct.pack(">i", 17 << 10) + bytes(17 << 10))
        assert await loop.sock_recv(late, 2) == b"ok"
        assert await loop.sock_recv(silent, 1) == b""
        for sock in (early, late, silent):
            sock.close()

    serve(begin, attack, **LOGINS, login_timeout_ms=300)


class SetClock(Clock):
    at_ms = 1000

    def monotonic_ms(self) -> int:
        return self.at_ms


def test_listener_wakes_up_when_the_oldest_unfinished_login_times_out() -> None:
    """Regression: timeouts were checked every 5 s, so a client could take 15 s instead of 10 s
    to log in."""

    async def main() -> None:
        config, clock = BrokerConfig(port=0, **LOGINS), SetClock()  # type: ignore[arg-type]
        one = Listener(config, clock=clock, metrics=Metrics())
        one.start(asyncio.get_running_loop(), lambda frame, reply: None)
        sock = await connect(one)
        while not one._connections:
            await asyncio.sleep(0)
        [connection] = one._connections
        for at_ms, delay_s in ((1000, 5.0), (8000, 3.001), (10_990, 0.1), (20_000, 0.1)):
            clock.at_ms = at_ms
            assert one._sweep_delay_s() == delay_s
        connection.session.mechanism = "SCRAM-SHA-256"
        assert one._sweep_delay_s() == 5.0
        one.close()
        sock.close()

    asyncio.run(main())


def test_connection_limit_per_ip_counts_an_ipv6_network_as_one_address() -> None:
    assert listener_module._limited("127.0.0.1:1") == listener_module._limited("::1:1") == ""
    assert listener_module._limited("192.0.2.1:5") == "192.0.2.1"
    one, two = "2001:db8:0:1::1:5", "2001:db8:0:1:ffff::2:6"
    assert listener_module._limited(one) == listener_module._limited(two) != ""
    assert listener_module._limited("::ffff:192.0.2.1:5") == "192.0.2.1"
    assert listener_module._limited("::ffff:127.0.0.1:5") == ""


def test_oldest_connection_without_a_login_is_closed_for_a_new_one() -> None:
    sessions: list[Session] = []

    def begin(frame: memoryview, reply: ResponseSlot) -> None:
        sessions.append(reply.session)
        reply.answer([b"ok"])

    async def attack(one: Listener) -> None:
        loop = asyncio.get_running_loop()
        user = await connect(one)
        await loop.sock_sendall(user, struct.pack(">i", 1) + b"x")
        assert await loop.sock_recv(user, 2) == b"ok"
        sessions[0].needs_login, sessions[0].mechanism = False, "SCRAM-SHA-256"
        strangers = []
        for number in range(5):
            strangers.append(await connect(one))
            while one._admitted < number + 2:
                await asyncio.sleep(0)
        for closed in strangers[:2]:
            assert await loop.sock_recv(closed, 1) == b""
        for sock in (user, *strangers[2:]):
            await loop.sock_sendall(sock, struct.pack(">i", 1) + b"x")
            assert await loop.sock_recv(sock, 2) == b"ok"
        assert one._metrics.value("connections_refused", "connections_before_login_max") == 2
        for sock in (user, *strangers):
            sock.close()

    serve(begin, attack, **LOGINS, connections_before_login_max=3)


def test_connection_beyond_the_limit_of_connections_from_its_address_is_closed_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener_module, "_limited", lambda peer: peer.rpartition(":")[0])

    async def attack(one: Listener) -> None:
        loop = asyncio.get_running_loop()
        first, second, third = await connect(one), await connect(one), await connect(one)
        assert await loop.sock_recv(third, 1) == b""
        first.close()
        while len(one._connections) > 1:
            await asyncio.sleep(0)
        fourth = await connect(one)
        await loop.sock_sendall(fourth, struct.pack(">i", 1) + b"x")
        assert await loop.sock_recv(fourth, 2) == b"ok"
        for sock in (second, third, fourth):
            sock.close()

    serve(lambda frame, reply: reply.answer([b"ok"]), attack, connections_per_ip_max=2)
    assert "closed: max.connections.per.ip=2 connections of this address" in caplog.text


def test_connection_beyond_the_connection_rate_of_its_address_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        asked: list[str] = []

        def may_connect(host: str) -> bool:
            asked.append(host)
            return len(asked) == 1

        loop, one = asyncio.get_running_loop(), listener(port=0)
        one.start(loop, lambda frame, reply: reply.answer([b"ok"]), may_connect=may_connect)
        first, second = await connect(one), await connect(one)
        assert await loop.sock_recv(second, 1) == b""
        await loop.sock_sendall(first, struct.pack(">i", 1) + b"x")
        assert await loop.sock_recv(first, 2) == b"ok"
        assert asked == ["127.0.0.1", "127.0.0.1"]
        assert one._metrics.value("connections_refused", "connection_creation_rate") == 1
        for sock in (first, second):
            sock.close()
        one.close()

    asyncio.run(asyncio.wait_for(main(), 20))
    assert "connection_creation_rate of this address is used up" in caplog.text
