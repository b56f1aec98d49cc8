"""Tests of the transports of connections (plaintext and TLS) over loopback sockets."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import ssl
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.certificates import PemFiles, write_pem
from support.patience import until

from broker_lite.net.tls import (
    HANDSHAKE_BYTES,
    READ_TURN_RECORDS,
    SEND_BYTES,
    TlsTransport,
)
from broker_lite.net.transport import PlainTransport, Transport


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> PemFiles:
    return write_pem(tmp_path_factory.mktemp("pem"))


def contexts(pem: PemFiles) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem.certificate)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(pem.ca)
    return client, server


def sockets() -> tuple[socket.socket, socket.socket]:
    """Return two connected non-blocking TCP sockets."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        server, _ = listening.accept()
    client.setblocking(False)
    server.setblocking(False)
    return client, server


def tls_ends(
    client_context: ssl.SSLContext, server_context: ssl.SSLContext
) -> tuple[TlsTransport, TlsTransport]:
    client, server = sockets()
    return (
        TlsTransport(client, client_context, server_hostname="127.0.0.1"),
        TlsTransport(server, server_context, server_side=True),
    )


def shake(*ends: TlsTransport) -> None:
    for _ in range(1000):
        for end in ends:
            if end.is_handshaking:
                with contextlib.suppress(BlockingIOError):
                    end.handshake()
        if not any(end.is_handshaking for end in ends):
            return
    raise AssertionError("the handshake does not end")


@pytest.fixture(params=["plain", "tls"])
def ends(request: pytest.FixtureRequest, pem: PemFiles) -> Iterator[tuple[Transport, Transport]]:
    pair: tuple[Transport, Transport]
    if request.param == "plain":
        client, server = sockets()
        pair = PlainTransport(client), PlainTransport(server)
    else:
        tls = tls_ends(*contexts(pem))
        shake(*tls)
        pair = tls
    yield pair
    for end in pair:
        end.close()


def read(end: Transport, size: int) -> bytes:
    found = bytearray()
    buffer = memoryview(bytearray(1 << 16))
    while len(found) < size:
        with contextlib.suppress(BlockingIOError):
            found += buffer[: end.read_into(buffer)]
    return bytes(found)


def exchange(sender: Transport, receiver: Transport, parts: list[bytes]) -> bytes:
    """Alternately send and receive until all parts have arrived; return the received bytes."""
    data, sent, found = b"".join(parts), 0, bytearray()
    buffer = memoryview(bytearray(1 << 16))
    while len(found) < len(data):
        if sent < len(data):
            with contextlib.suppress(BlockingIOError):
                sent += sender.write([data[sent : sent + 70_000], data[sent + 70_000 :]])
        with contextlib.suppress(BlockingIOError):
            found += buffer[: receiver.read_into(buffer)]
    return bytes(found)


def test_data_larger_than_the_socket_buffers_arrive_in_order(
    ends: tuple[Transport, Transport],
) -> None:
    client, server = ends
    parts = [os.urandom(8 << 20), b"", b"end"]
    assert exchange(client, server, parts) == b"".join(parts)


def test_transport_read_raises_blocking_io_error_if_no_bytes_have_arrived(
    ends: tuple[Transport, Transport],
) -> None:
    with pytest.raises(BlockingIOError):
        ends[1].read_into(memoryview(bytearray(10)))
    assert ends[1].pending == 0 and not ends[1].wants_write


def test_transport_writes_several_small_buffers_in_one_call(
    ends: tuple[Transport, Transport],
) -> None:
    client, server = ends
    assert client.write([b"a", b"bc", memoryview(b"def")]) == 6
    assert read(server, 6) == b"abcdef"


def test_transport_sends_bytes_of_a_file_from_a_position(
    ends: tuple[Transport, Transport], tmp_path: Path
) -> None:
    client, server = ends
    data = os.urandom(3 << 20)
    (tmp_path / "log").write_bytes(data)
    position, found = 1000, bytearray()
    buffer = memoryview(bytearray(1 << 16))
    with (tmp_path / "log").open("rb") as file:
        while len(found) < len(data) - 1000:
            with contextlib.suppress(BlockingIOError):
                if position < len(data):
                    position += client.send_file(file.fileno(), position, len(data) - position)
            with contextlib.suppress(BlockingIOError):
                found += buffer[: server.read_into(buffer)]
        assert client.send_file(file.fileno(), len(data), 10) == 0
    assert bytes(found) == data[1000:]


def test_transport_read_at_the_end_of_the_stream_returns_zero(
    ends: tuple[Transport, Transport],
) -> None:
    client, server = ends
    client.write([b"last"])
    client.close()
    assert read(server, 4) == b"last"
    while True:
        with contextlib.suppress(BlockingIOError):
            assert server.read_into(memoryview(bytearray(10))) == 0
            break


def test_transport_reports_nothing_to_read_until_the_peer_sends(
    ends: tuple[Transport, Transport],
) -> None:
    client, server = ends
    assert client.is_silent() and server.is_silent()
    server.write([b"x"])
    while client.is_silent():
        pass


def test_tls_transport_reports_the_number_of_decrypted_but_unread_bytes(
    pem: PemFiles,
) -> None:
    client, server = tls_ends(*contexts(pem))
    shake(client, server)
    client.write([b"y" * 1000])
    small = memoryview(bytearray(10))
    while True:
        with contextlib.suppress(BlockingIOError):
            assert server.read_into(small) == 10
            break
    assert server.pending == 990
    client.close()
    server.close()


def test_one_read_decrypts_a_limited_number_of_tls_records(pem: PemFiles) -> None:
    """Regression: a client that sent records of one byte held up the event loop for 400 ms."""
    client, server = tls_ends(*contexts(pem))
    shake(client, server)
    for _ in range(READ_TURN_RECORDS + 1):
        client.write([b"x"])
    record_bytes = 5 + 1 + 1 + 16  # Header, content, content type, authentication tag.
    until(lambda: unread_bytes(server) >= (READ_TURN_RECORDS + 1) * record_bytes)
    buffer = memoryview(bytearray(1 << 16))
    assert server.read_into(buffer) == READ_TURN_RECORDS
    assert server.pending, "the caller reads again, although the socket is empty"
    assert server.read_into(buffer) == 1
    for end in (client, server):
        end.close()


def test_one_step_of_a_tls_handshake_receives_a_limited_number_of_bytes(pem: PemFiles) -> None:
    """Regression: a client that sent a ClientHello in records of one byte held up the event loop
    for 150 ms."""
    _, server_context = contexts(pem)
    client, accepted = sockets()
    server = TlsTransport(accepted, server_context, server_side=True)
    hello = b"\x01" + (5000).to_bytes(3, "big") + b"\x03\x03" + bytes(4000)
    records = b"".join(b"\x16\x03\x01\x00\x01" + bytes([each]) for each in hello)
    client.setblocking(True)
    client.sendall(records)
    unread = len(records)
    while unread:
        with pytest.raises(BlockingIOError):
            server.handshake()
        unread = max(unread - HANDSHAKE_BYTES, 0)
        assert unread_bytes(accepted) == unread
    client.close()
    server.close()


def unread_bytes(end: socket.socket | TlsTransport) -> int:
    """Return the number of bytes in the receive buffer of a socket."""
    return int.from_bytes(fcntl.ioctl(end.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)


def test_blocked_tls_write_is_retried_with_the_same_bytes(pem: PemFiles) -> None:
    client, server = tls_ends(*contexts(pem))
    shake(client, server)
    data = os.urandom(32 << 20)
    sent = 0
    with pytest.raises(BlockingIOError):
        while True:
            count = client.write([data[sent:]])
            assert count <= SEND_BYTES
            sent += count
    assert client.wants_write
    # OpenSSL requires the same bytes again, but the caller may split them differently.
    found = bytearray()
    buffer = memoryview(bytearray(1 << 16))
    more = 0
    while not more or len(found) < sent:
        if not more:
            with contextlib.suppress(BlockingIOError):
                more = client.write([data[sent : sent + 10], data[sent + 10 :]])
                sent += more
        with contextlib.suppress(BlockingIOError):
            found += buffer[: server.read_into(buffer)]
    assert bytes(found) == data[:sent]
    client.close()
    server.close()


def test_tls_transport_reads_and_writes_nothing_before_the_handshake(pem: PemFiles) -> None:
    client, server = sockets()
    transport = TlsTransport(server, contexts(pem)[1], server_side=True)
    client.send(b"plain text")
    for attempt in (
        lambda: transport.read_into(memoryview(bytearray(100))),
        lambda: transport.write([b"secret"]),
        lambda: transport.send_all(b"secret"),
        lambda: transport.send_file(0, 0, 10),
    ):
        with pytest.raises(ssl.SSLError, match="handshake is not complete"):
            attempt()
    assert transport.pending == 0
    with pytest.raises(BlockingIOError):
        client.recv(1)
    client.close()
    transport.close()


def test_tls_transport_never_returns_unencrypted_bytes_of_a_closed_connection(
    pem: PemFiles,
) -> None:
    """CVE-2023-40217: Python's ssl module treated a socket that the peer had closed as not
    encrypted."""
    client, server = sockets()
    client.send(b"plain text")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    try:
        transport = TlsTransport(server, contexts(pem)[1], server_side=True)
    except OSError:
        return
    with pytest.raises(OSError):
        transport.handshake()
    with pytest.raises(ssl.SSLError, match="handshake is not complete"):
        transport.read_into(memoryview(bytearray(100)))
    transport.close()


def test_client_with_a_refused_certificate_fails_at_its_first_read(pem: PemFiles) -> None:
    """In TLS 1.3 the client's handshake ends before the server checks the client's certificate."""
    client_context, server_context = contexts(pem)
    server_context.verify_mode = ssl.CERT_REQUIRED
    server_context.load_verify_locations(pem.ca)
    client, server = tls_ends(client_context, server_context)
    with pytest.raises(ssl.SSLError):
        shake(client, server)
    assert not client.is_handshaking
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
        while True:
            with contextlib.suppress(BlockingIOError):
                client.read_into(memoryview(bytearray(10)))
    client.close()
    server.close()


def test_forked_child_that_closes_a_tls_transport_does_not_end_the_connection(
    pem: PemFiles,
) -> None:
    client, server = tls_ends(*contexts(pem))
    shake(client, server)
    child = os.fork()
    if child == 0:
        client.close()
        os._exit(0)
    os.waitpid(child, 0)
    client.write([b"still here"])
    assert read(server, 10) == b"still here"
    client.close()
    server.close()


def memory_client(
    context: ssl.SSLContext, sock: socket.socket, server: TlsTransport
) -> tuple[ssl.SSLObject, ssl.MemoryBIO]:
    """Return a TLS client after its handshake, and the buffer of the bytes that it sends.

    The buffer still holds the last bytes of the handshake.
    """
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    while True:
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            sock.send(outgoing.read())
            with contextlib.suppress(BlockingIOError):
                server.handshake()
            with contextlib.suppress(BlockingIOError):
                incoming.write(sock.recv(1 << 16))
        else:
            return client, outgoing


def test_request_that_arrives_with_the_end_of_the_tls_handshake_can_be_read_at_once(
    pem: PemFiles,
) -> None:
    client_context, server_context = contexts(pem)
    sock, peer = sockets()
    server = TlsTransport(peer, server_context, server_side=True)
    client, outgoing = memory_client(client_context, sock, server)
    client.write(b"first request")
    sock.send(outgoing.read())
    shake(server)
    assert server.pending
    buffer = memoryview(bytearray(100))
    assert buffer[: server.read_into(buffer)] == b"first request"
    assert not server.pending
    sock.close()
    server.close()


def test_tls_records_split_at_any_byte_arrive_complete(pem: PemFiles) -> None:
    client_context, server_context = contexts(pem)
    sock, peer = sockets()
    server = TlsTransport(peer, server_context, server_side=True)
    client, outgoing = memory_client(client_context, sock, server)
    sock.send(outgoing.read())
    shake(server)
    data = os.urandom(3000)
    for start in range(0, 3000, 100):
        client.write(data[start : start + 100])
    found, buffer = bytearray(), memoryview(bytearray(1 << 16))
    encrypted = outgoing.read()
    for start in range(0, len(encrypted), 7):
        sock.send(encrypted[start : start + 7])
        with contextlib.suppress(BlockingIOError):
            found += buffer[: server.read_into(buffer)]
    found += read(server, len(data) - len(found))
    assert found == data
    sock.close()
    server.close()


def test_bytes_before_a_forged_tls_record_are_read_before_the_error(pem: PemFiles) -> None:
    client, server = tls_ends(*contexts(pem))
    shake(client, server)
    client.write([b"sound"])
    client._socket.send(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert read(server, 5) == b"sound"
    with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
        while True:
            with contextlib.suppress(BlockingIOError):
                server.read_into(memoryview(bytearray(10)))
    with pytest.raises(ssl.SSLError, match="ALERT_BAD_RECORD_MAC"):
        while True:
            with contextlib.suppress(BlockingIOError):
                client.read_into(memoryview(bytearray(10)))
    client.close()
    server.close()


def test_peer_that_sends_a_tls_record_byte_by_byte_cannot_extend_the_timeout(pem: PemFiles) -> None:
    client, server = tls_ends(*contexts(pem))
    shake(client, server)
    client.settimeout(0.2)
    is_late = threading.Event()

    def drip() -> None:
        server._socket.send(b"\x17\x03\x03\x40\x00")
        while not is_late.wait(0.02):
            server._socket.send(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        with pytest.raises(TimeoutError):
            client.read_into(memoryview(bytearray(100)))
    finally:
        is_late.set()
        thread.join()
    client.close()
    server.close()


def test_import_of_the_client_does_not_load_ssl() -> None:
    code = "import sys, broker_lite.client.transport.pool; assert 'ssl' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
