"""Tests of the client's I/O without asyncio, on loopback sockets.

They test the connection pool, and the reactor: the thread that serves connections.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from broker_lite.client.operations import requests
from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.transport.clock import monotonic_ms
from broker_lite.client.transport.connection import BrokerConnection
from broker_lite.client.transport.pool import SHARED_POOLS_MAX, Pool, shared_pool
from broker_lite.client.transport.reactor import Reactor
from broker_lite.client.transport.steps import CallExchange, Send, SendAll
from broker_lite.config.client_security import ClientSecurity
from broker_lite.config.secret import Secret
from broker_lite.errors import (
    ClosedError,
    LogbusError,
    NetworkError,
    NoBrokersError,
    ProtocolError,
    RequestTimedOutError,
)
from broker_lite.model import Endpoint
from broker_lite.wire.api import ApiKey, parse_header, response_header_bytes
from broker_lite.wire.calls.producers import InitProducerIdRequest
from broker_lite.wire.primitives import I16, I32, I64

Script = Callable[[socket.socket, memoryview], None]


def answer(correlation_id: int, producer_id: int) -> bytes:
    body = response_header_bytes(ApiKey.INIT_PRODUCER_ID, 4, correlation_id)
    body += I32.pack(0) + I16.pack(0) + I64.pack(producer_id) + I16.pack(0) + b"\0"
    return I32.pack(len(body)) + body


class Server:
    """A server that calls ``script`` for each frame that it receives."""

    def __init__(self) -> None:
        self.script: Script = self.reply
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint(*self._listener.getsockname())
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        try:
            while prefix := stream.read(4):
                frame = stream.read(I32.unpack(prefix)[0])
                self.script(connection, memoryview(frame))
        except (OSError, ValueError):
            pass

    def reply(self, connection: socket.socket, frame: memoryview) -> None:
        connection.sendall(answer(parse_header(frame).correlation_id, 7))

    def hang_up(self, connection: socket.socket, _: memoryview) -> None:
        connection.shutdown(socket.SHUT_RDWR)

    def ignore(self, connection: socket.socket, _: memoryview) -> None:
        pass

    def hang_up_all(self) -> None:
        for connection in self._open:
            connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._open.clear()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            connection.close()
        self._thread.join(10)


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    running = Reactor("test", "test-reactor")
    running.start()
    yield running
    running.stop()


@pytest.fixture
def pool() -> Iterator[Pool]:
    connections = Pool()
    yield connections
    connections.close()


REQUEST = CallExchange(InitProducerIdRequest())


def dead() -> Endpoint:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return Endpoint(*listener.getsockname())


def ask(reactor: Reactor, endpoint: Endpoint, timeout_ms: float = 20_000, lane: str = "") -> Any:
    done, found = threading.Event(), []

    def take(result: Any) -> None:
        found.append(result)
        done.set()

    reactor.call_soon(lambda: reactor.request(Send(endpoint, REQUEST, timeout_ms, lane), take))
    assert done.wait(20)
    assert len(found) == 1
    return found[0]


def test_connection_pool_reuses_its_connections(server: Server, pool: Pool) -> None:
    for _ in range(5):
        assert pool.ask(Send(server.endpoint, REQUEST)).producer_id == 7
    assert server.connections == 1


def test_connection_pool_does_not_reuse_a_closed_connection(server: Server, pool: Pool) -> None:
    pool.ask(Send(server.endpoint, REQUEST))
    borrowed = pool.borrow(server.endpoint, 1000)
    server.hang_up_all()
    borrowed._transport.settimeout(10)
    assert borrowed._transport.read_into(memoryview(bytearray(1))) == 0
    pool.release(borrowed)
    assert pool.ask(Send(server.endpoint, REQUEST)).producer_id == 7
    assert server.connections == 2


@pytest.mark.parametrize("timeout_ms", [0.0, -1.0])
def test_connection_pool_opens_no_connection_after_the_deadline(
    server: Server, pool: Pool, timeout_ms: float
) -> None:
    """Regression: a reader that had looked up the leader for longer than its request timeout raised
    ValueError, because a socket's timeout cannot be negative."""
    with pytest.raises(RequestTimedOutError):
        pool.borrow(server.endpoint, timeout_ms)


def test_concurrent_users_of_a_connection_pool_get_different_connections(
    server: Server, pool: Pool
) -> None:
    one, two = (pool.borrow(server.endpoint, 1000) for _ in range(2))
    assert one is not two
    pool.release(one)
    pool.release(two)
    again = pool.borrow(server.endpoint, 1000)
    assert again in (one, two)
    pool.release(again)


@pytest.mark.parametrize("kind", ["pool", "reactor"])
def test_network_failures_raise_network_timeout_or_protocol_errors(
    server: Server, reactor: Reactor, pool: Pool, kind: str
) -> None:
    def failure(endpoint: Endpoint, timeout_ms: float = 20_000) -> LogbusError:
        if kind == "reactor":
            found = ask(reactor, endpoint, timeout_ms)
            assert isinstance(found, LogbusError)
            return found
        with pytest.raises(LogbusError) as caught:
            pool.ask(Send(endpoint, REQUEST, timeout_ms))
        return caught.value

    nobody = dead()
    refused = failure(nobody)
    assert isinstance(refused, NetworkError)
    assert str(nobody) in str(refused)
    server.script = server.hang_up
    assert isinstance(failure(server.endpoint), NetworkError)
    server.script = server.ignore
    assert isinstance(failure(server.endpoint, 50), RequestTimedOutError)
    server.script = lambda connection, frame: connection.sendall(answer(12345, 1))
    assert isinstance(failure(server.endpoint), ProtocolError)
    server.script = lambda connection, frame: connection.sendall(I32.pack(2**31 - 1))
    assert isinstance(failure(server.endpoint), ProtocolError)
    server.script = lambda connection, frame: connection.sendall(
        I32.pack(5) + I32.pack(parse_header(frame).correlation_id) + b"\0"
    )
    assert isinstance(failure(server.endpoint), ProtocolError)
    server.script = server.reply
    found = (
        ask(reactor, server.endpoint)
        if kind == "reactor"
        else pool.ask(Send(server.endpoint, REQUEST))
    )
    assert found.producer_id == 7


@pytest.mark.parametrize("host", ["no-such-host.invalid", "empty..part", f"{'long' * 20}.part"])
def test_unresolvable_host_fails_its_request(reactor: Reactor, host: str) -> None:
    """Regression: a malformed host name in a metadata response ended the client's thread."""
    endpoint = Endpoint(host, 1)
    assert isinstance(ask(reactor, endpoint), NetworkError)
    with pytest.raises(NetworkError, match="resolve"):
        Pool().ask(Send(endpoint, REQUEST))


@pytest.mark.parametrize("slow", ["resolver", "token issuer"])
def test_slow_name_resolution_or_token_request_does_not_delay_other_connections(
    server: Server, reactor: Reactor, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    began, ended = threading.Event(), threading.Event()
    resolve, prepare = socket.getaddrinfo, BrokerConnection.prepare

    def wait_if_slow(host: str) -> None:
        if host == "slow.invalid":
            began.set()
            ended.wait(20)

    def resolving(host: str, *args: Any, **kwargs: Any) -> Any:
        wait_if_slow(host)
        return resolve(host, *args, **kwargs)

    def preparing(connection: BrokerConnection) -> None:
        wait_if_slow(connection.endpoint.host)
        prepare(connection)

    if slow == "resolver":
        monkeypatch.setattr(socket, "getaddrinfo", resolving)
    else:
        monkeypatch.setattr(BrokerConnection, "prepare", preparing)
    failures: list[Any] = []
    lookup = Send(Endpoint("slow.invalid", 1), REQUEST)
    reactor.call_soon(lambda: reactor.request(lookup, failures.append))
    assert began.wait(20)
    assert ask(reactor, server.endpoint).producer_id == 7
    assert not ended.is_set() and not failures
    ended.set()


def test_responses_that_arrive_byte_by_byte_are_returned_in_order(
    server: Server, reactor: Reactor
) -> None:
    held: list[bytes] = []
    complete = threading.Event()

    def trickle(connection: socket.socket, frame: memoryview) -> None:
        correlation_id = parse_header(frame).correlation_id
        held.append(answer(correlation_id, correlation_id))
        if len(held) == 20:
            for byte in b"".join(held):
                connection.sendall(bytes([byte]))

    server.script = trickle
    found: list[int] = []

    def take(result: Any) -> None:
        found.append(result.producer_id)
        if len(found) == 20:
            complete.set()

    def send() -> None:
        for _ in range(20):
            reactor.request(Send(server.endpoint, REQUEST), take)

    reactor.call_soon(send)
    assert complete.wait(20)
    assert found == sorted(found)
    assert server.connections == 1


def test_long_poll_and_other_requests_to_a_broker_use_separate_connections(
    server: Server, reactor: Reactor
) -> None:
    received, done = threading.Event(), threading.Event()
    server.script = lambda connection, frame: received.set()
    failures: list[Any] = []

    def take(result: Any) -> None:
        failures.append(result)
        done.set()

    long_poll = Send(server.endpoint, REQUEST, lane="long poll")
    reactor.call_soon(lambda: reactor.request(long_poll, take))
    assert received.wait(20)
    server.script = server.reply
    assert ask(reactor, server.endpoint).producer_id == 7
    reactor.call_soon(lambda: reactor.disconnect(server.endpoint, "long poll"))
    assert done.wait(20)
    assert isinstance(failures[0], ClosedError)


def test_timers_of_the_reactor_run_until_it_stops(reactor: Reactor) -> None:
    order: list[int] = []
    done = threading.Event()

    def begin() -> None:
        reactor.later(20, lambda: (order.append(2), done.set()))
        reactor.later(1, lambda: order.append(1))
        reactor.later(5, lambda: order.append(9)).cancel()

    reactor.call_soon(begin)
    assert done.wait(20)
    assert order == [1, 2]
    reactor.stop()
    reactor.stop()


def test_requests_in_flight_fail_when_the_reactor_stops(server: Server) -> None:
    server.script = server.ignore
    reactor = Reactor("test", "test-reactor")
    reactor.start()
    found: list[Any] = []
    reactor.call_soon(lambda: reactor.request(Send(server.endpoint, REQUEST), found.append))
    ready = threading.Event()
    reactor.call_soon(ready.set)
    assert ready.wait(20)
    reactor.stop()
    assert isinstance(found[0], ClosedError)


def test_request_times_out_while_the_broker_reads_nothing_from_its_socket(
    reactor: Reactor,
) -> None:
    """Regression: a produce request with acks=0 had no time limit, so ``flush`` never returned."""

    class Large:
        name = "Large"
        has_answer = False

        def frame(self, correlation_id: int, client_id: str) -> Sequence[bytes]:
            return (bytes(32 << 20),)

        def answer(self, frame: memoryview) -> None:
            raise AssertionError("the request has no response")

    found, done = [], threading.Event()

    def take(result: Any) -> None:
        found.append(result)
        done.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = Endpoint(*listener.getsockname())
        reactor.call_soon(lambda: reactor.request(Send(endpoint, Large(), 100), take))
        assert done.wait(20)
    assert isinstance(found[0], RequestTimedOutError)
    assert f"{endpoint} did not answer the Large request in time" in str(found[0])


def test_stopped_reactor_does_not_use_its_closed_file_descriptors() -> None:
    """Regression: a forked child closed the file descriptors of a stopped reactor's pipe again.

    Other files had reused the numbers, so ``Popen(preexec_fn=…)``, which Spark uses, failed. A late
    ``wake`` also wrote into these files.
    """
    reactor = Reactor("test", "test-reactor")
    reactor.start()
    reactor.stop()
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    others = [os.dup(read_end) for _ in range(8)]
    reactor.wake()
    with pytest.raises(BlockingIOError):
        os.read(read_end, 1)
    files = [read_end, write_end, *others]
    code = "import os, sys; [os.fstat(int(number)) for number in sys.argv[1:]]"
    try:
        child = subprocess.run(
            [sys.executable, "-S", "-c", code, *map(str, files)],
            preexec_fn=lambda: None, pass_fds=files, timeout=60, stderr=subprocess.PIPE,
        )  # fmt: skip
    finally:
        for file in files:
            os.close(file)
    assert child.returncode == 0, child.stderr


def test_dead_broker_fails_only_the_request_sent_to_it(server: Server, pool: Pool) -> None:
    def operation() -> Any:
        answers = yield SendAll([Send(server.endpoint, REQUEST), Send(dead(), REQUEST)])
        return answers

    good, bad = pool.run(operation())
    assert good.producer_id == 7
    assert isinstance(bad, NetworkError)


def test_hung_broker_fails_only_the_request_sent_to_it(server: Server, pool: Pool) -> None:
    """Regression: after the wait for the hung broker, the responses of the other brokers counted as
    late."""
    with socket.create_server(("127.0.0.1", 0)) as hung:
        endpoints = (Endpoint(*hung.getsockname()), server.endpoint)
        late, found = pool.ask_all([Send(endpoint, REQUEST, 200) for endpoint in endpoints])
    assert isinstance(late, RequestTimedOutError)
    assert found.producer_id == 7


def test_request_is_sent_to_one_broker_after_the_other_until_one_answers(
    server: Server, pool: Pool
) -> None:
    cluster = Cluster((dead(), server.endpoint), monotonic_ms)
    found = pool.run(requests.init_producer_id(cluster, monotonic_ms() + 10_000))
    assert found == (7, 0)
    assert cluster.candidates()[0] == server.endpoint


def test_unreachable_cluster_raises_no_brokers_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "FIRST_CONTACT_MS", 100)
    nobody = dead()
    cluster = Cluster((nobody,), monotonic_ms)
    with pytest.raises(NoBrokersError, match=str(nobody.port)):
        Pool().run(requests.refresh(cluster, None, monotonic_ms() + 60_000))


def test_connection_pool_is_shared_only_by_clients_with_the_same_credential() -> None:
    """Spark reuses worker processes. A task must not send with the login of another user."""

    def pool_of(user: str, password: str) -> Pool:
        login = ClientSecurity(
            "SASL_SSL", mechanism="SCRAM-SHA-256", username=user, secret=Secret(password)
        )
        return shared_pool("shared", login)

    assert pool_of("alice", "a") is pool_of("alice", "a")
    assert len({id(pool_of(*each)) for each in (("alice", "a"), ("alice", "b"), ("bob", "a"))}) == 3


def test_connections_of_replaced_credentials_are_closed(server: Server) -> None:
    """Regression: a Spark executor kept the connections of every access token that it ever had."""
    first = shared_pool("first")
    assert first.ask(Send(server.endpoint, REQUEST)).producer_id == 7
    [[idle]] = first._idle.values()
    for number in range(SHARED_POOLS_MAX):
        shared_pool(f"later {number}")
    assert idle._transport.fileno() == -1
    assert shared_pool("first") is not first


class LoginServer(Server):
    """A server that accepts PLAIN logins, each for a session of 1 ms, or refuses them if
    ``refuses`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.script = self.serve
        self.keys: list[int] = []
        self.refuses = False

    def serve(self, connection: socket.socket, frame: memoryview) -> None:
        header = parse_header(frame)
        self.keys.append(header.api_key)
        if header.api_key == ApiKey.SASL_HANDSHAKE:
            body = I16.pack(0) + I32.pack(0)
        elif header.api_key == ApiKey.SASL_AUTHENTICATE:
            body = I16.pack(58 if self.refuses else 0) + I16.pack(-1) + I32.pack(0) + I64.pack(1)
        else:
            self.reply(connection, frame)
            return
        body = I32.pack(header.correlation_id) + body
        connection.sendall(I32.pack(len(body)) + body)


WITH_PLAIN = ClientSecurity(
    "SASL_PLAINTEXT", mechanism="PLAIN", username="alice", secret=Secret("of alice")
)
LOGIN = [ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE]


def test_client_reauthenticates_on_the_same_connection_before_its_session_ends() -> None:
    server, found, done = LoginServer(), [], threading.Event()
    running = Reactor("test", "test-reactor", WITH_PLAIN)
    running.start()

    def three() -> None:
        for _ in range(3):
            running.request(Send(server.endpoint, REQUEST), take)

    def take(result: Any) -> None:
        found.append(result)
        if len(found) == 3:
            done.set()

    try:
        assert ask(running, server.endpoint).producer_id == 7
        time.sleep(0.002)
        running.call_soon(three)
        assert done.wait(20)
        assert [each.producer_id for each in found] == [7, 7, 7]
        assert server.keys == [*LOGIN, 22, *LOGIN, 22, 22, 22]
        assert server.connections == 1
        server.refuses = True
        time.sleep(0.002)
        assert "refused the login of user 'alice'" in str(ask(running, server.endpoint))
    finally:
        running.stop()
        server.close()


def test_connection_pool_replaces_a_connection_whose_login_session_has_expired() -> None:
    server, pool = LoginServer(), Pool("test", WITH_PLAIN)
    try:
        for _ in range(2):
            assert pool.ask(Send(server.endpoint, REQUEST)).producer_id == 7
            time.sleep(0.002)
        assert server.connections == 2
    finally:
        pool.close()
        server.close()
