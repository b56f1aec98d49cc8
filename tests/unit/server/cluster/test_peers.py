"""Tests of a broker's connections to other brokers, and of how it detects dead brokers.

The sockets are real.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from broker_lite.client.transport.connection import BrokerConnection
from broker_lite.config import BrokerConfig
from broker_lite.config.client_security import ClientSecurity
from broker_lite.config.listeners import ListenerConfig
from broker_lite.errors import InvalidConfigError, LogbusError, NetworkError, RequestTimedOutError
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import BrokerView, Endpoint
from broker_lite.server.clock import Clock
from broker_lite.server.cluster import peers
from broker_lite.server.cluster.peers import Peers, security_between_brokers
from broker_lite.server.metrics import Metrics
from broker_lite.wire import fetch as wire
from broker_lite.wire import tables
from broker_lite.wire.api import ApiKey, parse_header
from broker_lite.wire.calls.groups import FindCoordinatorRequest
from broker_lite.wire.tables import FindCoordinatorResponse


class Other:
    """Another broker, which accepts connections and answers requests until ``die`` is called."""

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self.is_mute = False

    async def start(self) -> Endpoint:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return Endpoint("127.0.0.1", self._port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                request = parse_header(memoryview(await reader.readexactly(size)))
                if not self.is_mute:
                    if request.api_key == ApiKey.FETCH:
                        parts = wire.encode_response([], 17, request.correlation_id)
                        writer.writelines([bytes(part) for part in parts])  # type: ignore[arg-type]
                    else:
                        answer = FindCoordinatorResponse(coordinators=[])
                        writer.write(
                            tables.encode(
                                request.api_key, request.api_version, request.correlation_id, answer
                            )
                        )

    @property
    def connection_count(self) -> int:
        return len(self._writers)

    def drop(self) -> None:
        """Close all connections of this broker, and keep its listening socket open."""
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    def die(self) -> None:
        assert self._server is not None
        self._server.close()
        self.drop()


class Here:
    """The connections of broker 1; ``hints`` lists the states of other brokers that the
    connections reported, in order."""

    def __init__(self) -> None:
        self.hints: list[tuple[str, int, int]] = []
        self.peers = Peers(
            asyncio.get_running_loop(),
            BrokerConfig(broker_id=1),
            clock=Clock(),
            failure_listener=self,
            metrics=Metrics(),
        )

    def lost(self, broker_id: int, broker_epoch: int) -> None:
        self.hints.append(("lost", broker_id, broker_epoch))

    def suspect(self, broker_id: int, broker_epoch: int) -> None:
        self.hints.append(("suspect", broker_id, broker_epoch))

    def trust(self, broker_id: int, broker_epoch: int) -> None:
        self.hints.append(("trust", broker_id, broker_epoch))

    def know(self, *brokers: BrokerView) -> None:
        self.peers.apply(MetadataSnapshot(brokers={row.broker_id: row for row in brokers}))

    async def fetch(self, leader: BrokerView) -> wire.FetchResponse | LogbusError:
        answered: asyncio.Future[wire.FetchResponse | LogbusError] = asyncio.Future()
        self.peers.fetch(leader, wire.FetchRequest([], 0, replica_id=1), answered.set_result)
        return await answered


async def until(happened: Callable[[], bool]) -> None:
    while not happened():
        await asyncio.sleep(0.001)


def run(test: Callable[[Here, Other], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        here, other = Here(), Other()
        try:
            await asyncio.wait_for(test(here, other), 20)
        finally:
            here.peers.close()
            other.die()

    asyncio.run(main())


def test_unreachable_broker_is_suspected_to_be_dead_until_it_is_reachable_again() -> None:
    async def test(here: Here, other: Other) -> None:
        view = BrokerView(2, await other.start(), "D2", 77)
        here.know(view)
        assert isinstance(await here.fetch(view), wire.FetchResponse)
        assert here.hints == []
        other.die()
        await until(lambda: here.hints == [("lost", 2, 77), ("suspect", 2, 77)])
        assert isinstance(await here.fetch(view), LogbusError)
        await other.start()
        await until(lambda: here.hints[2:] == [("trust", 2, 77)])
        assert isinstance(await here.fetch(view), wire.FetchResponse)

    run(test)


def test_reconnection_to_a_broker_ends_the_suspicion_that_it_died() -> None:
    async def test(here: Here, other: Other) -> None:
        view = BrokerView(2, await other.start(), "D2", 77)
        here.know(view)
        await here.fetch(view)
        other.drop()
        await until(lambda: other.connection_count == 1)
        assert isinstance(await here.fetch(view), wire.FetchResponse)
        assert here.hints == [("lost", 2, 77), ("trust", 2, 77)]

    run(test)


def test_requests_in_flight_to_a_broker_fail_when_its_connection_closes() -> None:
    async def test(here: Here, other: Other) -> None:
        view = BrokerView(2, await other.start(), "D2", 77)
        here.know(view)
        other.is_mute = True
        waiting = asyncio.ensure_future(here.fetch(view))
        await until(lambda: other.connection_count == 1)
        other.die()
        assert isinstance(await waiting, LogbusError)

    run(test)


def test_connection_is_replaced_when_a_broker_registers_anew_and_closed_when_it_leaves() -> None:
    async def test(here: Here, other: Other) -> None:
        endpoint = await other.start()
        before, after = BrokerView(2, endpoint, "D2", 77), BrokerView(2, endpoint, "D2", 78)
        here.know(before)
        await here.fetch(before)
        here.know(after)
        assert isinstance(await here.fetch(before), LogbusError)
        assert isinstance(await here.fetch(after), wire.FetchResponse)
        here.know()
        assert isinstance(await here.fetch(after), LogbusError)
        other.die()
        await asyncio.sleep(0)
        assert here.hints == []

    run(test)


def test_fetches_and_other_requests_use_separate_connections_to_a_broker() -> None:
    async def test(here: Here, other: Other) -> None:
        view = BrokerView(2, await other.start(), "D2", 77)
        here.know(view)
        call = FindCoordinatorRequest(("g",))
        answers = await asyncio.gather(*(here.peers.send(2, call) for _ in range(20)))
        assert [answer.coordinators for answer in answers] == [()] * 20
        assert other.connection_count == 2, "one connection for calls, and one for fetches"

    run(test)


def test_request_to_a_broker_uses_a_new_connection_after_the_old_one_ended() -> None:
    async def test(here: Here, other: Other) -> None:
        view = BrokerView(2, await other.start(), "D2", 77)
        here.know(view)
        call = FindCoordinatorRequest(("g",))
        other.is_mute = True
        waiting = asyncio.ensure_future(here.peers.send(2, call))
        await until(lambda: other.connection_count == 2)
        other.drop()
        with pytest.raises(NetworkError):
            await waiting
        other.is_mute = False
        await until(lambda: other.connection_count == 2)
        assert (await here.peers.send(2, call)).coordinators == ()

    run(test)


def test_request_to_another_broker_without_a_response_times_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "SWEEP_S", 0.005)

    async def test(here: Here, other: Other) -> None:
        view = BrokerView(2, await other.start(), "D2", 77)
        here.know(view)
        other.is_mute = True
        with pytest.raises(RequestTimedOutError):
            await here.peers.send(2, FindCoordinatorRequest(("g",)), 1)

    run(test)


def test_request_in_flight_to_a_broker_that_leaves_fails_with_a_retriable_error() -> None:
    """If a hung controller leaves, clients whose requests were forwarded to it must retry."""

    async def test(here: Here, other: Other) -> None:
        here.know(BrokerView(2, await other.start(), "D2", 77))
        other.is_mute = True
        asking = asyncio.ensure_future(here.peers.send(2, FindCoordinatorRequest(("g",))))
        await until(lambda: other.connection_count == 2)
        here.know()
        with pytest.raises(NetworkError, match="broker 2 left"):
            await asking

    run(test)


def test_request_to_an_unregistered_broker_fails_at_once() -> None:
    async def test(here: Here, other: Other) -> None:
        await other.start()
        with pytest.raises(NetworkError, match="broker 2 is no longer registered"):
            await here.peers.send(2, FindCoordinatorRequest(("g",)))

    run(test)


def test_connection_of_a_socket_to_itself_counts_as_a_refused_connection() -> None:
    """TCP can connect a socket to its own port, while the broker at this port is down.

    Such a socket would occupy the port, so the broker could not restart.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = probe.getsockname()
        probe.connect(address)
        connection = BrokerConnection(Endpoint(*address), "tests")
        connection._sock = probe
        connection.on_writable()
        assert connection.closed and connection.was_refused


def test_broker_cannot_log_in_to_other_brokers_with_an_oauth_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGBUS_OAUTH_ALLOWED_URLS", "https://h/t")
    file = tmp_path / "client.conf"
    config = BrokerConfig(inter_broker_client_config=str(file))
    brokers = ListenerConfig("B", "SASL_SSL", Endpoint("h", 1), None, "listeners", True)

    def security(mechanism: str, **options: str) -> ClientSecurity:
        options |= {"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism}
        file.write_text("".join(f"{key}={value}\n" for key, value in options.items()))
        file.chmod(0o600)
        return security_between_brokers(config, brokers)

    user = {"sasl.username": "broker", "sasl.password": "s"}
    assert security("SCRAM-SHA-512", **user).username == "broker"
    client = {"token.endpoint.url": "https://h/t", "client.id": "b", "client.secret": "s"}
    with pytest.raises(InvalidConfigError, match="brokers cannot log in with tokens"):
        security("OAUTHBEARER", **{f"sasl.oauthbearer.{key}": client[key] for key in client})
