"""Clients that take a broker's memory, by mistake or not: the broker's memory stays bounded."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from data_calls import ROWS_ONLY, batches, make_topic, read, rows_batch, send_batch
from faults.hostile_clients import (
    MIB,
    ROWS,
    descriptors,
    fill_with_columns,
    inflated_batch,
    resident_bytes,
    resident_peak_bytes,
    unfinished,
    unread_fetches,
)
from patience import until
from plain_connection import PlainConnection

from broker_lite.errors import InvalidRecordError
from broker_lite.local.cluster import LocalCluster
from broker_lite.wire.calls.cluster import ApiVersionsRequest

Make = Callable[..., LocalCluster]
CONNECTIONS = 30
"""So few that a broker which fails here does not take all memory of the machine; the figures of
thousands are those of ``hostile_clients``."""


@pytest.fixture
def broker(make_cluster: Make) -> tuple[str, int]:
    """Address and process of a broker of the test's own."""
    cluster = make_cluster(1)
    pid = cluster.brokers[0].pid
    assert pid is not None
    return make_topic(cluster, f"hostile-{os.getpid()}").address, pid


def test_responses_of_a_client_that_does_not_read_are_not_built(make_cluster: Make) -> None:
    """Columns as rows, in answers of up to 24 MB: 64 fetches under way on each of 4 connections."""
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
    """Without a maximum timestamp, which the broker reads from the records of a batch."""
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


def test_declared_request_lengths_allocate_no_memory(broker: tuple[str, int]) -> None:
    """30 requests of 64 MiB, of which 14 bytes come."""
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
    """192 MB arrive, more than unfinished requests may hold: some connections are not read."""
    address, pid = broker
    files = descriptors(pid)
    with unfinished(address, 384, declared_bytes=MIB, sent_bytes=512 << 10):
        until(lambda: resident_bytes(pid), lambda size: size > 100 * MIB)
        assert resident_bytes(pid) < 400 * MIB
    until(lambda: descriptors(pid), lambda count: count <= files + 10)
    with PlainConnection(address) as bystander:
        assert bystander.call(ApiVersionsRequest("tests", "1")).error_code == 0
