"""Send malformed bytes: the broker must log why it closes the connection, and serve others."""

from __future__ import annotations

import os
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.data_calls import (
    Place,
    fetch_request,
    make_topic,
    produce_request,
    read,
    rows_batch,
    send_batch,
    values,
)
from support.plain_connection import PlainConnection

from broker_lite.local.broker import LocalBroker
from broker_lite.local.cluster import LocalCluster

SEED = int(os.environ.get("LOGBUS_SEED", "7"))


@pytest.fixture
def place(cluster: LocalCluster) -> Place:
    return make_topic(cluster, f"frames-{os.getpid()}-{random.randrange(1 << 40)}")


@pytest.fixture
def broker(cluster: LocalCluster, place: Place) -> LocalBroker:
    return next(b for b in cluster.brokers if b.id == place.leader)


@pytest.fixture(autouse=True)
def goes_on(broker: LocalBroker, place: Place) -> Iterator[None]:
    """Before and after a test, check that the same broker process answers on another connection."""
    pid = broker.pid
    with PlainConnection(place.address) as bystander:
        assert send_batch(bystander, place, rows_batch([b"before"])).error_code == 0
        yield
        assert send_batch(bystander, place, rows_batch([b"after"])).error_code == 0
        assert values(read(bystander, place, 0).records)[-1] == b"after"
    assert broker.pid == pid and broker.is_running


def header(key: int, version: int, *, length: int | None = None, body: bytes = b"") -> bytes:
    content = struct.pack(">hhih", key, version, 1, -1) + body
    return struct.pack(">i", len(content) if length is None else length) + content


def assert_ended(place: Place, data: bytes, source: str = "") -> None:
    with PlainConnection(place.address, source=source) as connection:
        connection.send(data)
        with pytest.raises((EOFError, ConnectionResetError)):
            connection.receive()


CASES = {
    "negative length": struct.pack(">i", -1),
    "oversized": struct.pack(">i", (64 << 20) + 1) + bytes(100),
    "huge": b"\x7f\xff\xff\xff",
    "another protocol": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a TLS hello": bytes.fromhex("16030100c8010000c40303") + bytes(190),
    "an empty frame": struct.pack(">i", 0),
    "half a header": struct.pack(">i", 3) + b"\x00\x00\x00",
    "an unknown API": header(999, 0),
    "a negative API": header(-5, 0),
    "a version of the future": header(0, 99),
    "a version of the past": header(1, 0),
    "a negative version": header(3, -1),
    "no body": header(0, 9),
    "a client id that is longer than the frame": struct.pack(">ihhih", 10, 3, 1, 1, 500),
    "a client id that is not UTF-8": struct.pack(">ihhih", 12, 3, 1, 1, 2) + b"\xff\xfe",
    "a million topics": header(3, 1, body=struct.pack(">i", 1_000_000)),
    "fewer topics than none": header(3, 1, body=struct.pack(">i", -7)),
    "an endless varint": header(3, 12, body=b"\x00" + b"\xff" * 20),
}


@pytest.mark.parametrize("name", CASES)
def test_malformed_frame_is_refused(place: Place, broker: LocalBroker, name: str) -> None:
    # Use a source address of its own: a broker logs one closed connection of an address a minute.
    source = f"127.0.1.{1 + list(CASES).index(name)}"
    assert_ended(place, CASES[name], source)
    assert f" {source}:" in Path(broker.log).read_text()


def test_many_malformed_frames_do_not_flood_the_log(place: Place, broker: LocalBroker) -> None:
    source = "127.0.2.1"
    for _ in range(200):
        assert_ended(place, CASES["huge"], source)
    # The broker logs one line a minute, so two lines if a minute ends during the test.
    assert 1 <= Path(broker.log).read_text().count(f" {source}:") <= 2


def test_records_longer_than_their_frame_are_refused(place: Place) -> None:
    """The length of the records in a produce request is too large or negative."""
    whole = bytearray(produce_request(place, rows_batch([b"value"]), version=7))
    batch = rows_batch([b"value"])
    at = bytes(whole).index(batch) - 4
    for length in (len(batch) + 1, 1 << 30, -2):
        struct.pack_into(">i", whole, at, length)
        assert_ended(place, bytes(whole))


def test_truncated_requests_do_not_crash_the_broker(place: Place) -> None:
    """The test sends each request cut at every seventh byte, as a frame of that length."""
    for request in (
        produce_request(place, rows_batch([b"value"])),
        produce_request(place, rows_batch([b"value"]), version=8),
        fetch_request(place, 0),
        fetch_request(place, 0, version=11),
    ):
        for size in range(1, len(request) - 4, 7):
            assert_ended(place, struct.pack(">i", size) + request[4 : 4 + size])


def test_randomly_damaged_requests_neither_crash_the_broker_nor_corrupt_records(
    place: Place, broker: LocalBroker
) -> None:
    """The broker may answer or close the connection, but not crash or return a wrong record."""
    rng = random.Random(SEED)
    requests = [
        produce_request(place, rows_batch([b"value"] * 3)),
        produce_request(place, rows_batch([b"value"] * 3), version=3),
        fetch_request(place, 0),
        fetch_request(place, 0, version=4),
    ]
    for _ in range(300):
        damaged = bytearray(rng.choice(requests))
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(4, len(damaged))] = rng.randrange(256)
        host, _, port = place.address.rpartition(":")
        with socket.create_connection((host, int(port)), 30) as sock:
            sock.sendall(damaged)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
    assert "Traceback" not in Path(broker.log).read_text()
    with PlainConnection(place.address) as connection:
        found = values(read(connection, place, 0).records)
    assert set(found) <= {b"before", b"value"}


def test_connection_with_an_incomplete_frame_is_closed(make_cluster: object) -> None:
    """The broker must also close a connection that sends nothing."""
    running = make_cluster(  # type: ignore[operator]
        1, config={"socket.request.timeout.ms": "1000", "connections.max.idle.ms": "1000"}
    )
    address = running.brokers[0].endpoint
    with PlainConnection(address) as half, PlainConnection(address) as silent:
        half.send(struct.pack(">i", 1000) + b"begun")
        with pytest.raises(EOFError):
            half.receive()
        with pytest.raises(EOFError):
            silent.receive()
    assert "was not complete within 1000 ms" in Path(running.brokers[0].log).read_text()


def test_connections_above_the_limit_are_refused(make_cluster: object) -> None:
    running = make_cluster(1, config={"max.connections": "5"})  # type: ignore[operator]
    place = make_topic(running, "few")
    open_ones = [PlainConnection(place.address) for _ in range(5)]
    assert send_batch(open_ones[4], place, rows_batch([b"x"])).error_code == 0
    with PlainConnection(place.address) as one_more, pytest.raises((EOFError, ConnectionError)):
        one_more.send(fetch_request(place, 0))
        one_more.receive()
    open_ones[0].close()
    while True:
        try:
            with PlainConnection(place.address) as again:
                assert read(again, place, 0).error_code == 0
            break
        except (EOFError, ConnectionError):
            continue
    for connection in open_ones:
        connection.close()


def test_broker_stops_reading_sockets_while_received_batches_exceed_the_memory_limit(
    make_cluster: object,
) -> None:
    """The broker reads again once memory is free, so all batches are in the log at the end."""
    running = make_cluster(1, config={"queued.max.bytes": str(1 << 20)})  # type: ignore[operator]
    place = make_topic(running, "much")
    batch = rows_batch([bytes(600_000)])
    senders = [PlainConnection(place.address) for _ in range(8)]
    for _ in range(3):
        for sender in senders:
            sender.send(produce_request(place, batch, acks=0))
    for sender in senders:
        assert send_batch(sender, place, rows_batch([b"last"])).error_code == 0
    with PlainConnection(place.address) as reader:
        assert read(reader, place, 0).high_watermark == 8 * 4
    for sender in senders:
        sender.close()
