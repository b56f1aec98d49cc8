"""Tests of WriteTxnMarkers against kafka-python, and of the tagged field that logbus adds."""

from __future__ import annotations

import kafka.protocol.producer as producer

from broker_lite.wire.api import decode_call, encode_call
from broker_lite.wire.calls import broker_transactions as calls
from broker_lite.wire.primitives import Reader

MARK = calls.WriteTxnMarkersRequest(
    (calls.TransactionMarker(5, 7, True, (calls.MarkedTopic("a", (0, 2)),), 9, 2, 11, 3),)
)


def test_kafka_python_decodes_write_txn_markers_requests() -> None:
    octets = bytes(encode_call(MARK, 5, "logbus-broker-1"))
    got = producer.WriteTxnMarkersRequest.decode(octets, version=2, header=True, framed=True)
    (row,) = got.markers
    assert (row.producer_id, row.producer_epoch, row.transaction_result) == (5, 7, True)
    assert (row.coordinator_epoch, row.transaction_version) == (9, 2)
    assert [(topic.name, topic.partition_indexes) for topic in row.topics] == [("a", [0, 2])]


def test_write_txn_markers_response_has_a_code_for_each_partition() -> None:
    kind = producer.WriteTxnMarkersResponse
    result = kind.WritableTxnMarkerResult
    topic = result.WritableTxnMarkerTopicResult
    part = topic.WritableTxnMarkerPartitionResult
    sent = kind(
        version=2,
        markers=[
            result(
                producer_id=5,
                topics=[
                    topic(
                        name="a",
                        partitions=[
                            part(partition_index=0, error_code=0),
                            part(partition_index=2, error_code=6),
                        ],
                    )
                ],
            )
        ],
    )
    sent.with_header(correlation_id=1)
    got = decode_call(MARK, memoryview(sent.encode(header=True, framed=True))[4:])
    assert got.rows == (calls.MarkerCode(5, "a", 0, 0), calls.MarkerCode(5, "a", 2, 6))


def test_write_txn_markers_request_identifies_the_transaction_in_a_tagged_field() -> None:
    octets = bytes(encode_call(MARK, 5, "logbus-broker-1"))
    assert calls.take_marker_tag(Reader(octets[-13:-1])) == (11, 3)
