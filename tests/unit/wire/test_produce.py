"""Tests of Produce 3-13 against kafka-python, by known bytes, and with truncated frames."""

from __future__ import annotations

import random
from typing import Any

import kafka.protocol.producer as producer
import pytest
from support.wire_samples import id_text, message, plain

from broker_lite.errors import ProtocolError
from broker_lite.model import NULL_TOPIC_ID
from broker_lite.wire.api import PARTITIONS_MAX, VERSIONS, ApiKey, NodeEndpoint, parse_header
from broker_lite.wire.produce import (
    PartitionRecords,
    ProducedPartition,
    ProducedTopic,
    ProduceResponse,
    RecordError,
    TopicRecords,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)

EVERY = range(VERSIONS[ApiKey.PRODUCE][0], VERSIONS[ApiKey.PRODUCE][1] + 1)
TOPIC_ID = "AAECAwQFBgcICQoLDA0ODw"


def view(octets: bytes) -> memoryview:
    """Return a copy of a frame without its length prefix, as ``FrameReceiver`` returns frames."""
    assert int.from_bytes(octets[:4], "big") == len(octets) - 4
    return memoryview(bytearray(octets))[4:]


def their_request(version: int, rng: random.Random) -> tuple[Any, memoryview]:
    sent = message(producer.ProduceRequest, version, rng)
    sent.with_header(correlation_id=3, client_id="c")
    return sent, view(sent.encode(header=True, framed=True))


@pytest.mark.parametrize("version", EVERY)
def test_broker_decodes_kafka_python_produce_requests(version: int) -> None:
    rng = random.Random(version)
    for _ in range(20):
        sent, frame = their_request(version, rng)
        got = decode_request(frame, version, parse_header(frame).body_at)
        assert got.transactional_id == sent.transactional_id
        assert (got.acks, got.timeout_ms) == (sent.acks, sent.timeout_ms)
        assert [
            (
                topic.name if version < 13 else topic.topic_id,
                [(p, None if r is None else bytes(r)) for p, r in topic.partitions],
            )
            for topic in got.topics
        ] == [
            (
                topic.name if version < 13 else id_text(topic.topic_id),
                [(row.index, row.records) for row in topic.partition_data],
            )
            for topic in sent.topic_data
        ]


@pytest.mark.parametrize("version", EVERY)
def test_kafka_python_decodes_produce_requests_of_the_client(version: int) -> None:
    topics = [
        TopicRecords("a", TOPIC_ID, [PartitionRecords(0, b"one"), PartitionRecords(7, b"")]),
        TopicRecords("b", NULL_TOPIC_ID, [PartitionRecords(1, [b"two", bytearray(b"-three")])]),
    ]
    parts = encode_request(
        topics,
        acks=-1,
        timeout_ms=1500,
        correlation_id=9,
        client_id="us",
        transactional_id="t",
        version=version,
    )
    got = producer.ProduceRequest.decode(b"".join(parts), version=version, header=True, framed=True)
    assert (got.header.correlation_id, got.header.client_id) == (9, "us")
    found = plain(got, producer.ProduceRequest._struct, version)
    key, ids = ("topic_id", [TOPIC_ID, NULL_TOPIC_ID]) if version >= 13 else ("name", ["a", "b"])
    assert found == {
        "transactional_id": "t",
        "acks": -1,
        "timeout_ms": 1500,
        "topic_data": [
            {
                key: ids[0],
                "partition_data": [{"index": 0, "records": b"one"}, {"index": 7, "records": b""}],
            },
            {key: ids[1], "partition_data": [{"index": 1, "records": b"two-three"}]},
        ],
    }


def test_records_of_a_produce_request_are_encoded_and_decoded_without_a_copy() -> None:
    records = bytearray(b"batch")
    parts = encode_request(
        [TopicRecords("", TOPIC_ID, [PartitionRecords(0, records)])],
        acks=1,
        timeout_ms=1,
        correlation_id=1,
        client_id=None,
    )
    assert any(part is records for part in parts)
    frame = view(b"".join(parts))
    request = decode_request(frame, 13, parse_header(frame).body_at)
    ((_, slice_),) = request.topics[0].partitions
    assert slice_ is not None
    slice_[0] = ord("B")
    assert slice_.obj is frame.obj
    assert b"Batch" in bytes(frame)


def their_view_of(response: ProduceResponse, version: int) -> Any:
    octets = encode_response(response, version, 12)
    assert int.from_bytes(octets[:4], "big") == len(octets) - 4
    return producer.ProduceResponse.decode(octets, version=version, header=True, framed=True)


@pytest.mark.parametrize("version", EVERY)
def test_kafka_python_decodes_produce_responses_of_the_broker(version: int) -> None:
    row = ProducedPartition(
        4, 87, 10, 20, 5, "cure: é", [RecordError(2, "bad"), RecordError(3, None)], 1, 6
    )
    plain_row = ProducedPartition(5, 0, 11)
    topics = [ProducedTopic("a", TOPIC_ID, [row, plain_row])]
    nodes = [NodeEndpoint(1, "h", 9092, None), NodeEndpoint(2, "é", 1, "rack")]
    got = their_view_of(ProduceResponse(topics, 30, nodes), version)
    assert (got.header.correlation_id, got.throttle_time_ms) == (12, 30)
    (topic,) = got.responses
    assert (topic.name, id_text(topic.topic_id)) == (
        ("a", NULL_TOPIC_ID) if version < 13 else ("", TOPIC_ID)
    )
    first, second = topic.partition_responses
    assert (first.index, first.error_code, first.base_offset) == (4, 87, 10)
    assert first.log_append_time_ms == 20
    assert first.log_start_offset == (5 if version >= 5 else -1)
    errors = [(each.batch_index, each.batch_index_error_message) for each in first.record_errors]
    assert errors == ([(2, "bad"), (3, None)] if version >= 8 else [])
    assert first.error_message == ("cure: é" if version >= 8 else None)
    leader = first.current_leader
    assert (leader and (leader.leader_id, leader.leader_epoch)) == (
        (1, 6) if version >= 10 else None
    )
    assert (second.index, second.error_code, second.base_offset) == (5, 0, 11)
    assert second.current_leader is None
    assert [
        (node.node_id, node.host, node.port, node.rack) for node in got.node_endpoints or ()
    ] == (nodes if version >= 10 else [])


@pytest.mark.parametrize("version", EVERY)
def test_client_decodes_kafka_python_produce_responses(version: int) -> None:
    rng = random.Random(version)
    for _ in range(20):
        sent = message(producer.ProduceResponse, version, rng)
        sent.with_header(correlation_id=4)
        got = decode_response(view(sent.encode(header=True, framed=True)), version)
        assert got.throttle_time_ms == sent.throttle_time_ms
        assert [(t.name, t.topic_id) for t in got.topics] == [
            (t.name if version < 13 else "", id_text(t.topic_id if version >= 13 else None))
            for t in sent.responses
        ]
        for ours, theirs in zip(got.topics, sent.responses, strict=True):
            assert [tuple(row[:6]) for row in ours.partitions] == [
                (
                    row.index,
                    row.error_code,
                    row.base_offset,
                    row.log_append_time_ms,
                    row.log_start_offset,
                    row.error_message,
                )
                for row in theirs.partition_responses
            ]


@pytest.mark.parametrize("version", EVERY)
def test_client_decodes_produce_responses_of_the_broker(version: int) -> None:
    row = ProducedPartition(4, 87, 10, 20, 5, "why", [RecordError(2, "bad")], 1, 6)
    octets = encode_response(ProduceResponse([ProducedTopic("a", TOPIC_ID, [row])], 1), version, 12)
    (topic,) = decode_response(view(octets), version).topics
    kept = 4 if version < 5 else 5 if version < 8 else 7 if version < 10 else 9
    assert tuple(topic.partitions[0][:kept]) == tuple(row[:kept])


@pytest.mark.parametrize("version", [3, 8, 9, 13])
def test_truncated_produce_requests_are_refused(version: int) -> None:
    topics = [TopicRecords("name", TOPIC_ID, [PartitionRecords(0, b"records")])]
    parts = encode_request(
        topics, acks=-1, timeout_ms=1, correlation_id=1, client_id="c", version=version
    )
    frame = view(b"".join(parts))
    at = parse_header(frame).body_at
    for size in range(at, len(frame)):
        with pytest.raises(ProtocolError):
            decode_request(frame[:size], version, at)


@pytest.mark.parametrize("version", [3, 5, 8, 9, 13])
def test_truncated_produce_responses_are_refused(version: int) -> None:
    row = ProducedPartition(4, 87, 10, 20, 5, "why", [RecordError(2, "bad")], 1, 6)
    frame = view(
        encode_response(ProduceResponse([ProducedTopic("a", TOPIC_ID, [row])], 1), version, 12)
    )
    for size in range(len(frame)):
        with pytest.raises(ProtocolError):
            decode_response(frame[:size], version)


@pytest.mark.parametrize("version", [3, 13])
def test_produce_request_with_too_many_partitions_is_refused(version: int) -> None:
    rows = [PartitionRecords(0, b"")] * (PARTITIONS_MAX // 2)
    for times, refused in ((1, False), (2, True)):
        topics = [TopicRecords("t", TOPIC_ID, rows)] * times
        parts = encode_request(
            topics, acks=1, timeout_ms=1, correlation_id=1, client_id=None, version=version
        )
        frame = view(b"".join(parts))
        at = parse_header(frame).body_at
        if refused:
            with pytest.raises(ProtocolError):
                decode_request(frame, version, at)
        else:
            assert len(decode_request(frame, version, at).topics[0].partitions) == len(rows)


def test_long_error_message_is_truncated_to_the_maximum_length_of_a_string() -> None:
    row = ProducedPartition(0, 87, error_message="x" * 50_000)
    got = their_view_of(ProduceResponse([ProducedTopic("a", "", [row])]), 8)
    assert len(got.responses[0].partition_responses[0].error_message) == 32767
