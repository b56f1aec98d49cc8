"""Tests of the codecs built on kafka-python's message tables, in every advertised API version."""

from __future__ import annotations

import random
from typing import Any

import kafka.protocol.admin as admin
import kafka.protocol.producer as producer
import pytest
from support.wire_samples import message, plain

from broker_lite.errors import ProtocolError, UnsupportedVersionError
from broker_lite.model import PartitionKey, UnreadableZnode
from broker_lite.wire import tables
from broker_lite.wire.api import VERSIONS, ApiKey, encode_call, parse_header, read_response_header
from broker_lite.wire.calls import groups, log_dirs
from broker_lite.wire.calls.envelope import EnvelopeRequest, EnvelopeResponse
from broker_lite.wire.calls.group_transactions import (
    AddGroupRequest,
    AddGroupResponse,
    EndGroupOffsetsRequest,
    EndGroupOffsetsResponse,
)
from broker_lite.wire.calls.offsets import (
    BytesAnswer,
    BytesPartition,
    OffsetsForBytesRequest,
    OffsetsForBytesResponse,
    RecordTimesRequest,
    RecordTimesResponse,
    TimeAnswer,
    TimePartition,
)
from broker_lite.wire.calls.replicas import UnregisterBrokerRequest, UnregisterBrokerResponse
from broker_lite.wire.calls.sinks import (
    EndBatchRequest,
    JoinBatchRequest,
    KeepBatchRequest,
    SinkResponse,
)
from broker_lite.wire.calls.transaction_search import (
    FindTransactionsRequest,
    FoundTransaction,
    FoundTransactions,
    SearchedPartition,
)
from broker_lite.wire.primitives import Reader, Writer

TOPIC_ID = "AAECAwQFBgcICQoLDA0ODw"
EVERY = [
    (key, version)
    for key in sorted(tables.REQUESTS)
    for version in range(VERSIONS[key][0], VERSIONS[key][1] + 1)
]


def request_frame(key: int, version: int, rng: random.Random) -> tuple[Any, memoryview]:
    sent = message(tables.REQUESTS[key], version, rng)
    sent.with_header(correlation_id=3, client_id="c")
    return sent, memoryview(bytearray(sent.encode(header=True, framed=True)))[4:]


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_broker_decodes_kafka_python_requests(key: int, version: int) -> None:
    rng = random.Random(key * 100 + version)
    for _ in range(10):
        sent, frame = request_frame(key, version, rng)
        header = parse_header(frame)
        assert (header.api_key, header.api_version, header.correlation_id) == (key, version, 3)
        got = tables.decode(key, version, frame, header.body_at)
        table = tables.REQUESTS[key]._struct
        assert plain(got, table, version) == plain(sent, table, version)


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_kafka_python_decodes_responses_of_the_broker(key: int, version: int) -> None:
    rng = random.Random(key * 100 + version)
    kind = tables.MESSAGE_CLASSES[key][1]
    for _ in range(10):
        sent = message(kind, version, rng)
        if key == ApiKey.API_VERSIONS:
            sent.error_code = 0  # kafka-python decodes an error response as if of version 0.
        expected = plain(sent, kind._struct, version)
        octets = tables.encode(key, version, 41, sent)
        assert int.from_bytes(octets[:4], "big") == len(octets) - 4
        got = kind.decode(octets, version=version, header=True, framed=True)
        assert got.header.correlation_id == 41
        assert plain(got, kind._struct, version) == expected


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_broker_refuses_truncated_requests(key: int, version: int) -> None:
    rng = random.Random(key * 100 + version)
    _, frame = request_frame(key, version, rng)
    at = parse_header(frame).body_at
    for size in range(at, len(frame)):
        with pytest.raises(ProtocolError):
            tables.decode(key, version, frame[:size], at)


def test_decoder_reads_every_request_field() -> None:
    def walk(table: Any, version: int) -> None:
        assert not table.tagged_fields(version)._fields
        for field in table.untagged_fields(version):
            if field.is_struct():
                walk(field, version)
            elif field.is_struct_array():
                walk(field.array_of, version)

    for key, version in EVERY:
        walk(tables.REQUESTS[key]._struct, version)


def test_omitted_fields_of_a_response_are_encoded_with_their_defaults() -> None:
    kind = tables.MetadataResponse
    broker = tables.build(kind.MetadataResponseBroker, node_id=1, host="h", port=2)
    octets = tables.encode(
        ApiKey.METADATA, 12, 1, tables.build(kind, brokers=[broker], topics=[], cluster_id="x")
    )
    got = kind.decode(octets, version=12, header=True, framed=True)
    assert (got.controller_id, got.brokers[0].rack, got.throttle_time_ms) == (-1, None, 0)


def test_response_can_be_encoded_again_in_another_version() -> None:
    response = tables.ListGroupsResponse(groups=[], error_code=15)
    for version in (5, 0):
        octets = tables.encode(ApiKey.LIST_GROUPS, version, 1, response)
        got = tables.ListGroupsResponse.decode(octets, version=version, header=True, framed=True)
        assert got.error_code == 15


def test_broker_state_is_a_tagged_field_that_kafka_clients_skip() -> None:
    writer = Writer()
    log_dirs.DescribeLogDirsRequest().encode(writer)
    frame = memoryview(bytes(writer.buffer))
    asked = tables.decode(ApiKey.DESCRIBE_LOG_DIRS, 4, frame, 0)
    assert (asked.topics, tables.own_tag(asked)) == (None, True)
    unreadable = UnreadableZnode("/acls/topic/literal/t", "it is malformed", "Delete it")
    state = log_dirs.BrokerState("1.2.3", 4500, True, (unreadable,))
    response = tables.DescribeLogDirsResponse(results=[])
    tables.set_own_tag(response, log_dirs.TAG_STATE, log_dirs.encode_state(state))
    octets = tables.encode(ApiKey.DESCRIBE_LOG_DIRS, 4, 1, response)
    got = log_dirs.DescribeLogDirsRequest.decode(Reader(memoryview(octets), 9))
    assert got == (0, 0, (), state)
    kind = tables.DescribeLogDirsResponse
    theirs = kind.decode(octets, version=4, header=True, framed=True)
    assert (theirs.results, list(theirs.unknown_tags)) == ([], ["_10000"])


@pytest.mark.parametrize("version", [5, 99, -1])
def test_api_versions_request_of_an_unknown_version_is_answered_in_version_0(version: int) -> None:
    assert tables.decode(ApiKey.API_VERSIONS, version, memoryview(b"\xff" * 9), 0) is not None
    kind = tables.ApiVersionsResponse
    row = tables.build(kind.ApiVersion, api_key=18, min_version=0, max_version=4)
    response = tables.build(kind, error_code=35, api_keys=[row])
    octets = tables.encode(ApiKey.API_VERSIONS, version, 8, response)
    assert octets.hex() == "00000010" + "00000008" + "0023" + "00000001" + "001200000004"


@pytest.mark.parametrize(("key", "version"), [(ApiKey.METADATA, 13), (67, 0), (ApiKey.PRODUCE, 9)])
def test_request_of_an_api_that_the_broker_does_not_serve_cannot_be_decoded(
    key: int, version: int
) -> None:
    with pytest.raises(UnsupportedVersionError):
        tables.decode(key, version, memoryview(bytes(20)), 0)


def test_encoding_of_a_response_with_a_wrong_field_raises_an_error() -> None:
    with pytest.raises(AttributeError):
        tables.build(tables.MetadataResponse, no_such_field=1)
    with pytest.raises(AssertionError):
        tables.encode(ApiKey.METADATA, 12, 1, tables.build(tables.MetadataResponse, brokers=[3]))


OURS = groups.OffsetCommitRequest(
    "g",
    (
        groups.OffsetCommitTopic("a", (groups.OffsetToCommit(1, 2),), TOPIC_ID),
        groups.OffsetCommitTopic("b", (groups.OffsetToCommit(1, 2),)),
    ),
)


def test_topic_id_in_a_tagged_field_of_offset_commit_is_decoded() -> None:
    frame = memoryview(encode_call(OURS, 5, None))[4:]
    got = tables.decode(ApiKey.OFFSET_COMMIT, 9, frame, parse_header(frame).body_at)
    assert [(topic.name, tables.own_tag(topic)) for topic in got.topics] == [
        ("a", TOPIC_ID),
        ("b", None),
    ]
    assert [row.committed_offset for topic in got.topics for row in topic.partitions] == [2, 2]


def test_tagged_topic_id_of_offset_commit_must_have_at_least_16_bytes() -> None:
    whole = bytes(encode_call(OURS, 5, None))[4:]
    tag = b"\x01\x90\x4e\x10" + bytes(range(16))
    assert tag in whole

    def read(changed: bytes) -> Any:
        frame = memoryview(whole.replace(tag, changed))
        got = tables.decode(ApiKey.OFFSET_COMMIT, 9, frame, parse_header(frame).body_at)
        return [tables.own_tag(topic) for topic in got.topics]

    with pytest.raises(ProtocolError):
        read(b"\x01\x90\x4e\x0f" + bytes(range(15)))
    assert read(b"\x01\x90\x4e\x12" + bytes(range(18))) == [TOPIC_ID, None]
    assert read(b"\x01\x91\x4e\x10" + bytes(range(16))) == [None, None]


def test_flag_for_topic_ids_in_an_offset_fetch_request_is_decoded() -> None:
    request = groups.OffsetFetchRequest((groups.OffsetFetchGroup("g"),))
    frame = memoryview(encode_call(request, 5, None))[4:]
    got = tables.decode(ApiKey.OFFSET_FETCH, 8, frame, parse_header(frame).body_at)
    assert tables.own_tag(got) is True
    _, theirs = request_frame(ApiKey.OFFSET_FETCH, 8, random.Random(1))
    got = tables.decode(ApiKey.OFFSET_FETCH, 8, theirs, parse_header(theirs).body_at)
    assert tables.own_tag(got) is None


def test_unregister_broker_frames_round_trip() -> None:
    request = UnregisterBrokerRequest(7)
    frame = memoryview(encode_call(request, 5, None))[4:]
    assert bytes(frame).hex() == "00400000" + "00000005" + "ffff" + "00" + "00000007" + "00"
    header = parse_header(frame)
    assert tables.decode(header.api_key, 0, frame, header.body_at) == request
    for size in range(header.body_at, len(frame)):
        with pytest.raises(ProtocolError):
            tables.decode(header.api_key, 0, frame[:size], header.body_at)
    response = UnregisterBrokerResponse(0, 102, "no")
    octets = tables.encode(header.api_key, 0, 5, response)
    assert octets[4:].hex() == "00000005" + "00" + "00000000" + "0066" + "03" + "6e6f" + "00"
    _, reader = read_response_header(memoryview(octets)[4:], header.api_key, 0)
    assert UnregisterBrokerRequest.decode(reader) == response
    assert reader.left == 0


@pytest.mark.parametrize("response", [EnvelopeResponse(b"frame", 0), EnvelopeResponse(None, 31)])
@pytest.mark.parametrize("host", ["10.0.0.7", "fe80::1"])
def test_envelope_round_trips(host: str, response: EnvelopeResponse) -> None:
    request = EnvelopeRequest(b"inner frame", "User:zoë", host)
    frame = memoryview(encode_call(request, 5, None))[4:]
    header = parse_header(frame)
    assert tables.decode(header.api_key, 0, frame, header.body_at) == request
    for size in range(header.body_at, len(frame)):
        with pytest.raises(ProtocolError):
            tables.decode(header.api_key, 0, frame[:size], header.body_at)
    octets = tables.encode(header.api_key, 0, 5, response)
    _, reader = read_response_header(memoryview(octets)[4:], header.api_key, 0)
    assert EnvelopeRequest.decode(reader) == response
    assert reader.left == 0


@pytest.mark.parametrize(
    ("request_", "response"),
    [
        (
            OffsetsForBytesRequest((BytesPartition(TOPIC_ID, 1, -2, 3),), 1),
            OffsetsForBytesResponse(
                (BytesAnswer(0, 9, 1000, 2, 10), BytesAnswer(100, -1, -1)), has_bounds=True
            ),
        ),
        (
            OffsetsForBytesRequest((BytesPartition(TOPIC_ID, 1, 2, 3),)),
            OffsetsForBytesResponse((BytesAnswer(0, 9, 1000), BytesAnswer(100, -1, -1))),
        ),
        (
            RecordTimesRequest((TimePartition(TOPIC_ID, 1, 2),)),
            RecordTimesResponse((TimeAnswer(0, 9, 1_700_000_000_000), TimeAnswer(100, -1, -1))),
        ),
        (
            EndGroupOffsetsRequest("g", 1000, 3, 12, 5, 7, True),
            EndGroupOffsetsResponse(52),
        ),
        (
            JoinBatchRequest("s", "r", 3, 1, 40, 300_000, (PartitionKey(TOPIC_ID, 2),)),
            SinkResponse(0, "", 1000, 7),
        ),
        (
            EndBatchRequest("s", "r", 3, True, 12, ((1000, 7), (1001, 0))),
            SinkResponse(10020, "the rows differ"),
        ),
        (KeepBatchRequest("s", "r", 3), SinkResponse(90, "another run took over")),
    ],
)
def test_requests_and_responses_of_logbuss_own_apis_round_trip(
    request_: Any, response: Any
) -> None:
    frame = memoryview(encode_call(request_, 5, None))[4:]
    header = parse_header(frame)
    got = tables.decode(header.api_key, header.api_version, frame, header.body_at)
    assert got == request_
    octets = tables.encode(header.api_key, header.api_version, 5, response)
    correlation_id, reader = read_response_header(memoryview(octets)[4:], header.api_key, 0)
    assert correlation_id == 5
    assert type(request_).decode(reader) == response
    assert reader.left == 0


def test_add_offsets_to_txn_response_to_a_broker_includes_the_coordinator_epoch() -> None:
    response = AddGroupResponse(0, 12, 5, 7)
    octets = tables.encode(ApiKey.ADD_OFFSETS_TO_TXN, 4, 5, response)
    _, reader = read_response_header(memoryview(octets)[4:], ApiKey.ADD_OFFSETS_TO_TXN, 4)
    assert AddGroupRequest.decode(reader) == response
    assert reader.left == 0
    # A response for a client has no tagged fields, so the added fields keep their defaults.
    reader = Reader(memoryview(bytes.fromhex("00000000" + "0033" + "00")))
    assert AddGroupRequest.decode(reader) == AddGroupResponse(51)


@pytest.mark.parametrize("verify_only", [False, True])
def test_add_offsets_to_txn_request_of_a_broker_round_trips(verify_only: bool) -> None:
    call = AddGroupRequest("copier", 1000, 3, "g", verify_only)
    writer = Writer()
    call.encode(writer)
    kind = producer.AddOffsetsToTxnRequest
    message = tables.struct_decoder(kind, kind._struct, 4, True)(
        tables.RequestReader(memoryview(writer.buffer))
    )
    assert (message.transactional_id, message.group_id) == ("copier", "g")
    assert (message.producer_id, message.producer_epoch) == (1000, 3)
    assert tables.own_tag(message) is verify_only


def test_list_transactions_response_to_a_broker_includes_epochs_and_searched_partitions() -> None:
    rows = (FoundTransaction("etl", 7, "CompleteCommit", 5), FoundTransaction("x", 8, "Ongoing", 0))
    response = FoundTransactions(0, (), rows, (SearchedPartition(1, 12), SearchedPartition(4, 3)))
    octets = tables.encode(ApiKey.LIST_TRANSACTIONS, 1, 5, response)
    _, reader = read_response_header(memoryview(octets)[4:], ApiKey.LIST_TRANSACTIONS, 1)
    assert FindTransactionsRequest.decode(reader) == response
    assert reader.left == 0
    # A broker of an earlier version sends no tagged fields, so it has searched no partition.
    reader = Reader(memoryview(bytes.fromhex("00000000" + "0000" + "01" + "01" + "00")))
    assert FindTransactionsRequest.decode(reader) == FoundTransactions(0)


def test_list_transactions_request_of_a_broker_has_a_tagged_field() -> None:
    writer = Writer()
    FindTransactionsRequest(producer_id_filters=(7, 8)).encode(writer)
    kind = admin.ListTransactionsRequest
    message = tables.struct_decoder(kind, kind._struct, 1, True)(
        tables.RequestReader(memoryview(writer.buffer))
    )
    assert (message.producer_id_filters, message.duration_filter) == ([7, 8], -1)
    assert tables.own_tag(message) is True
