"""Check that hostile clients cannot exhaust a broker's memory."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from faults.hostile_clients import (
    MIB,
    ROWS,
    descriptors,
    fill_with_columns,
    inflated_batch,
    inflated_columns,
    resident_bytes,
    resident_peak_bytes,
    unfinished,
    unread_fetches,
)
from support.data_calls import (
    ROWS_ONLY,
    batches,
    columns_batch,
    make_topic,
    read,
    rows_batch,
    send_batch,
    values,
)
from support.patience import until
from support.plain_connection import PlainConnection

from broker_lite.errors import InvalidRecordError
from broker_lite.local.cluster import LocalCluster
from broker_lite.wire.calls.cluster import ApiVersionsRequest

Make = Callable[..., LocalCluster]
CONNECTIONS = 30
"""Number of connections: few, so that even a broker that fails leaves the machine some memory.

The program ``hostile_clients`` opens thousands.
"""


@pytest.fixture
def broker(make_cluster: Make) -> tuple[str, int]:
    """Start a broker for one test; return its address and its pid."""
    cluster = make_cluster(1)
    pid = cluster.brokers[0].pid
    assert pid is not None
    return make_topic(cluster, f"hostile-{os.getpid()}").address, pid


def test_broker_builds_no_responses_for_a_client_that_stopped_reading(make_cluster: Make) -> None:
    """Each of 4 connections sends 64 fetches. For each, the broker would transcode 24 MB of column
    batches to rows."""
    cluster = make_cluster(1)
    pid = cluster.brokers[0].pid
    assert pid is not None
    place = make_topic(cluster, f"unread-{os.getpid()}")
    fill_with_columns(place, batches=24)
    before = resident_bytes(pid)
    hostile = [unread_fetches(place, 64) for _ in range(4)]
    with PlainConnection(place.address) as bystander:
        offset = 0
        while records := read(bystander, place, offset, reader=ROWS_ONLY).records:
            offset = batches(records)[-1][1].next_offset
    assert offset == 24 * ROWS
    assert resident_bytes(pid) - before < 200 * MIB
    for sock in hostile:
        sock.close()


def test_small_batches_that_decompress_to_500_mb_are_refused(make_cluster: Make) -> None:
    """The batches' headers have no maximum timestamp, so the broker would have to decompress the
    records to find it."""
    cluster = make_cluster(1)
    pid = cluster.brokers[0].pid
    assert pid is not None
    place = make_topic(cluster, f"inflated-{os.getpid()}")
    batch = inflated_batch()
    with PlainConnection(place.address) as connection:
        for _ in range(4):
            refused = send_batch(connection, place, batch)
            assert refused.error_code == InvalidRecordError.code
        assert resident_peak_bytes(pid) < 250 * MIB
        assert send_batch(connection, place, rows_batch([b"good"])).base_offset == 0


def test_small_arrow_batches_that_decompress_to_60_mb_are_transcoded_one_at_a_time(
    make_cluster: Make,
) -> None:
    """Clients fetch column batches of 2 KB as rows, and do not read the responses."""
    cluster = make_cluster(1)
    pid = cluster.brokers[0].pid
    assert pid is not None
    place, small = (make_topic(cluster, f"{name}-{os.getpid()}") for name in ("large", "small"))
    with PlainConnection(place.address, timeout_s=120) as connection:
        assert send_batch(connection, small, columns_batch([b"x"])).error_code == 0
        assert send_batch(connection, place, inflated_columns()).error_code == 0
        refused = send_batch(connection, place, inflated_columns(65 * MIB))
        assert refused.error_code == InvalidRecordError.code
        before = resident_bytes(pid)
        hostile = [unread_fetches(place, 8) for _ in range(12)]
        until(lambda: resident_peak_bytes(pid), lambda size: size - before > 60 * MIB)
        assert values(read(connection, small, 0, reader=ROWS_ONLY).records) == [b"x"]
        for sock in hostile:
            sock.close()
        [(_, header)] = batches(read(connection, place, 0, reader=ROWS_ONLY).records)
        assert header.size_bytes > 60 * MIB
        assert resident_peak_bytes(pid) - before < 500 * MIB
    until(lambda: resident_bytes(pid), lambda size: size - before < 100 * MIB)


def test_declared_request_lengths_allocate_no_memory(broker: tuple[str, int]) -> None:
    """Each of 30 requests declares 64 MiB and sends 14 bytes."""
    address, pid = broker
    before, files = resident_bytes(pid), descriptors(pid)
    with PlainConnection(address) as bystander:
        with unfinished(address, CONNECTIONS):
            until(lambda: descriptors(pid), lambda count: count > CONNECTIONS)
            assert bystander.call(ApiVersionsRequest("tests", "1")).error_code == 0
            assert resident_bytes(pid) - before < 100 * MIB
        until(lambda: descriptors(pid), lambda count: count <= files + 10)
        assert bystander.call(ApiVersionsRequest("tests", "1")).error_code == 0


def test_unfinished_requests_release_memory_when_clients_disconnect(
    broker: tuple[str, int],
) -> None:
    """The requests exceed the memory for unfinished requests, so the broker leaves some unread."""
    address, pid = broker
    before, files = resident_bytes(pid), descriptors(pid)
    with unfinished(address, 384, declared_bytes=MIB, sent_bytes=512 << 10):
        until(lambda: resident_bytes(pid), lambda size: size > 100 * MIB)
        assert resident_bytes(pid) < 400 * MIB
    until(lambda: descriptors(pid), lambda count: count <= files + 10)
    until(lambda: resident_bytes(pid) - before, lambda size: size < 50 * MIB)
    with PlainConnection(address) as bystander:
        assert bystander.call(ApiVersionsRequest("tests", "1")).error_code == 0
