"""Brokers' calls about transactions: Kafka's fields for the library, ours in tagged fields."""

from __future__ import annotations

import kafka.protocol.producer as producer
import pytest

from broker_lite.errors import ProtocolError
from broker_lite.wire.api import decode_call, encode_call
from broker_lite.wire.calls import broker_transactions as calls
from broker_lite.wire.primitives import Reader, Writer

ID = "AAECAwQFBgcICQoLDA0ODw"
ADD = calls.AddParticipantsRequest(
    (calls.AddedParticipants("etl", 5, 6, True, (calls.ParticipatingTopic("a", ID, (0, 2)),)),)
)
MARK = calls.WriteTxnMarkersRequest(
    (calls.TransactionMarker(5, 7, True, (calls.MarkedTopic("a", (0, 2)),), 9, 2, 11, 3),)
)


def test_library_reads_brokers_add_of_partitions() -> None:
    octets = bytes(encode_call(ADD, 5, "logbus-broker-1"))
    got = producer.AddPartitionsToTxnRequest.decode(octets, version=5, header=True, framed=True)
    (row,) = got.transactions
    assert (row.transactional_id, row.producer_id, row.producer_epoch) == ("etl", 5, 6)
    assert row.verify_only is True
    assert [(topic.name, topic.partitions) for topic in row.topics] == [("a", [0, 2])]


def test_answer_about_partitions_carries_number_and_coordinator() -> None:
    rows = (calls.ParticipantCode("a", 0, 0), calls.ParticipantCode("a", 2, 120))
    response = calls.AddParticipantsResponse(0, (calls.AddedResult("etl", rows, 4, 3, 9),))
    writer = Writer()
    calls.encode_add_participants(response, writer)
    body = bytes(writer.buffer)
    assert calls.AddParticipantsRequest.decode(Reader(body)) == response
    for size in range(len(body)):
        with pytest.raises(ProtocolError):
            calls.AddParticipantsRequest.decode(Reader(body[:size]))


def test_answer_of_the_library_has_no_number() -> None:
    kind = producer.AddPartitionsToTxnResponse
    result = kind.AddPartitionsToTxnResult
    topic = result.AddPartitionsToTxnTopicResult
    row = topic.AddPartitionsToTxnPartitionResult(partition_index=2, partition_error_code=51)
    sent = kind(
        version=5,
        throttle_time_ms=0,
        error_code=0,
        results_by_transaction=[
            result(
                transactional_id="etl", topic_results=[topic(name="a", results_by_partition=[row])]
            )
        ],
    )
    sent.with_header(correlation_id=1)
    got = decode_call(ADD, memoryview(sent.encode(header=True, framed=True))[4:])
    assert got.results == (calls.AddedResult("etl", (calls.ParticipantCode("a", 2, 51),)),)


def test_library_reads_markers() -> None:
    octets = bytes(encode_call(MARK, 5, "logbus-broker-1"))
    got = producer.WriteTxnMarkersRequest.decode(octets, version=2, header=True, framed=True)
    (row,) = got.markers
    assert (row.producer_id, row.producer_epoch, row.transaction_result) == (5, 7, True)
    assert (row.coordinator_epoch, row.transaction_version) == (9, 2)
    assert [(topic.name, topic.partition_indexes) for topic in row.topics] == [("a", [0, 2])]


def test_answer_to_markers_names_each_partition() -> None:
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
