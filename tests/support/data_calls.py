"""Send produce, fetch and offset requests over a plain connection, for tests of their responses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from broker_lite.client.administration.admin import Admin
from broker_lite.local.cluster import LocalCluster
from broker_lite.record import arrow
from broker_lite.record.batch import BatchHeader, check_crc
from broker_lite.wire import fetch, produce
from broker_lite.wire.api import BY_TOPIC_ID
from broker_lite.wire.calls.offsets import (
    BytesAnswer,
    BytesPartition,
    ListedPartition,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetsForBytesRequest,
)
from support.log_batches import iter_headers
from support.plain_connection import PlainConnection
from support.row_codec import Row, decode_rows, encode_rows

_NUMBERS = itertools.count(1000)

RAW = (1, fetch.FLAG_CHECKS_CRC)
"""Fetch capabilities of logbus clients: they decode columns and check CRCs."""
ROWS_ONLY = (0, 0)
"""Fetch capabilities of other Kafka clients: they decode rows only, and check no CRCs."""


class Place(NamedTuple):
    """A topic and the leader of its partition 0."""

    name: str
    topic_id: str
    leader: int
    address: str


def make_topic(
    cluster: LocalCluster, name: str, partitions: int = 1, config: dict[str, str] | None = None
) -> Place:
    """Create a topic and wait as ``find_topic`` does."""
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic(name, partitions, 1, config or {})
        return find_topic(cluster, name)


def find_topic(cluster: LocalCluster, name: str) -> Place:
    """Wait until all partitions have leaders and partition 0 answers; return topic and leader."""
    with Admin(cluster.bootstrap_servers) as admin:
        while True:
            view = admin.cluster([name])
            found = view.topics[name]
            if found.error is None and all(p.error is None for p in found.partitions):
                leader = found.partitions[0].leader
                place = Place(name, found.topic_id, leader, str(view.brokers[leader]))
                with PlainConnection(place.address) as connection:
                    rows = list_offsets(connection, name, -1)
                    if rows.error_code == 0:
                        return place


def rows_batch(values: Sequence[bytes], **fields: int) -> bytes:
    return bytes(
        encode_rows([Row(i, 1000 + i, b"k%d" % i, v) for i, v in enumerate(values)], **fields)
    )


def columns_batch(values: Sequence[bytes], timestamp_ms: int = 1000) -> bytes:
    columns = arrow.Columns(len(values), None, pa.array(values, pa.binary()))
    return bytes(arrow.encode(columns, timestamp_ms=timestamp_ms))


def produce_request(
    place: Place,
    batch: bytes,
    *,
    acks: int = -1,
    partition: int = 0,
    timeout_ms: int = 30_000,
    version: int = 13,
    transactional_id: str | None = None,
) -> bytes:
    name = "" if version >= BY_TOPIC_ID else place.name
    rows = [produce.PartitionRecords(partition, batch)]
    parts = produce.encode_request(
        [produce.TopicRecords(name, place.topic_id, rows)],
        acks=acks,
        timeout_ms=timeout_ms,
        correlation_id=next(_NUMBERS),
        client_id="tests",
        transactional_id=transactional_id,
        version=version,
    )
    return b"".join(bytes(part) for part in parts)


def send_batch(
    connection: PlainConnection, place: Place, batch: bytes, *, version: int = 13, **options: int
) -> produce.ProducedPartition:
    """Produce one batch; return the result of its partition."""
    connection.send(produce_request(place, batch, version=version, **options))
    response = produce.decode_response(connection.receive(), version)
    return response.topics[0].partitions[0]


def fetch_request(
    place: Place,
    offset: int,
    *,
    reader: tuple[int, int] = RAW,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_bytes: int = 1 << 20,
    partitions: Sequence[int] = (0,),
    epoch: int = -1,
    isolation: int = 0,
    version: int = 17,
) -> bytes:
    rows = [fetch.FetchPartition(p, offset, partition_bytes, epoch) for p in partitions]
    name = "" if version >= BY_TOPIC_ID else place.name
    return bytes(
        fetch.encode_request(
            fetch.FetchRequest(
                [fetch.FetchTopic(name, place.topic_id, rows)],
                max_wait_ms,
                min_bytes,
                max_bytes,
                isolation,
                columns_body_version=reader[0],
                flags=reader[1],
            ),
            correlation_id=next(_NUMBERS),
            client_id="tests",
            version=version,
        )
    )


def read(
    connection: PlainConnection, place: Place, offset: int, *, version: int = 17, **options: object
) -> fetch.FetchedPartition:
    """Fetch from one partition; return the result of this partition."""
    connection.send(fetch_request(place, offset, version=version, **options))  # type: ignore[arg-type]
    return fetch.decode_response(connection.receive(), version).topics[0].partitions[0]


def batches(records: memoryview) -> list[tuple[memoryview, BatchHeader]]:
    """Return the complete batches in fetched bytes with their headers; check their CRCs."""
    found = []
    for position, header in iter_headers(records):
        one = records[position : position + header.size_bytes]
        check_crc(one, header)
        found.append((one, header))
    return found


def rows(records: memoryview) -> list[Row]:
    """Return the records in fetched bytes; all batches must be in Kafka's row format."""
    return [row for one, header in batches(records) for row in decode_rows(one, header)]


def values(records: memoryview) -> list[bytes]:
    """Return the values of fetched row and column batches, in offset order."""
    found: list[bytes] = []
    for one, header in batches(records):
        if header.is_columns:
            column = arrow.decode(one, header).value
            assert column is not None
            found += column.to_pylist()
        else:
            found += [row.value or b"" for row in decode_rows(one, header)]
    return found


def list_offsets(
    connection: PlainConnection, topic: str, timestamp: int, *, partition: int = 0, epoch: int = -1
) -> ListedPartition:
    row = ListOffsetsPartition(partition, epoch, timestamp)
    request = ListOffsetsRequest((ListOffsetsTopic(topic, (row,)),))
    return connection.call(request).topics[0].partitions[0]


def offsets_for_bytes(
    connection: PlainConnection, place: Place, start: int, max_bytes: int
) -> BytesAnswer:
    row = BytesPartition(place.topic_id, 0, start, max_bytes)
    return connection.call(OffsetsForBytesRequest((row,))).answers[0]
