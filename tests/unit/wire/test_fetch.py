"""Tests of Fetch 4-18 against kafka-python, with logbus's tagged fields, and with truncated
frames."""

from __future__ import annotations

import random
from typing import Any

import kafka.protocol.consumer as consumer
import pytest
from support.wire_samples import id_text, message, plain

from broker_lite.errors import ProtocolError
from broker_lite.model import NULL_TOPIC_ID, OffsetAndEpoch
from broker_lite.wire.api import VERSIONS, ApiKey, NodeEndpoint, parse_header
from broker_lite.wire.fetch import (
    FLAG_CHECKS_CRC,
    FLAG_ENDS_ONLY,
    READ_COMMITTED,
    TAG_COLUMNS,
    TAG_STORED,
    TAG_TICKET,
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    FileOffer,
    FileRange,
    FileTicket,
    Part,
    PartitionAnswer,
    StoredRange,
    TopicAnswer,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)

EVERY = range(VERSIONS[ApiKey.FETCH][0], VERSIONS[ApiKey.FETCH][1] + 1)
TOPIC_ID = "AAECAwQFBgcICQoLDA0ODw"
DIRECTORY_ID = "EAECAwQFBgcICQoLDA0ODw"


class StoredBytes:
    """Stands for bytes in an open file, which the encoder must not read."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def fileno(self) -> int:
        raise AssertionError("encoding does no I/O")


def joined(parts: list[Part]) -> bytes:
    """Return the parts of a response as the bytes that a socket would send."""
    out = bytearray()
    for part in parts:
        if isinstance(part, FileRange):
            assert isinstance(part.file, StoredBytes)
            out += part.file.data[part.position : part.position + part.length]
        else:
            out += part
    assert int.from_bytes(out[:4], "big") == len(out) - 4
    return bytes(out)


def view(octets: bytes) -> memoryview:
    assert int.from_bytes(octets[:4], "big") == len(octets) - 4
    return memoryview(bytearray(octets))[4:]


REQUEST = FetchRequest(
    [
        FetchTopic(
            "a",
            TOPIC_ID,
            [FetchPartition(0, 10, 1000, 3, 2, 1, DIRECTORY_ID), FetchPartition(5, 1 << 40, 7)],
        ),
        FetchTopic("b", NULL_TOPIC_ID, []),
    ],
    max_wait_ms=500,
    min_bytes=2,
    max_bytes=3000,
    isolation_level=READ_COMMITTED,
    replica_id=6,
    replica_epoch=1 << 33,
    rack_id="r1",
    columns_body_version=1,
    flags=FLAG_CHECKS_CRC | FLAG_ENDS_ONLY,
)


def as_seen_in(request: FetchRequest, version: int) -> FetchRequest:
    """Return the request with defaults in all fields that ``version`` does not have."""
    topics = []
    for topic in request.topics:
        rows = []
        for row in topic.partitions:
            if version < 17:
                row = row._replace(directory_id=NULL_TOPIC_ID)
            if version < 12:
                row = row._replace(last_fetched_epoch=-1)
            if version < 9:
                row = row._replace(current_leader_epoch=-1)
            if version < 5:
                row = row._replace(log_start_offset=-1)
            rows.append(row)
        if version >= 13:
            topics.append(FetchTopic("", topic.topic_id, rows))
        else:
            topics.append(FetchTopic(topic.name, NULL_TOPIC_ID, rows))
    changes: dict[str, Any] = {}
    if version < 12:
        changes |= {"columns_body_version": 0, "flags": 0}
    if version < 15:
        changes |= {"replica_epoch": -1}
    if version < 11:
        changes |= {"rack_id": ""}
    return request._replace(topics=topics, **changes)


@pytest.mark.parametrize("version", EVERY)
def test_broker_decodes_fetch_requests_of_the_client(version: int) -> None:
    frame = view(encode_request(REQUEST, correlation_id=5, client_id="c", version=version))
    header = parse_header(frame)
    assert header[:4] == (1, version, 5, "c")
    assert decode_request(frame, version, header.body_at) == as_seen_in(REQUEST, version)


@pytest.mark.parametrize("version", EVERY)
def test_kafka_python_decodes_fetch_requests_of_the_client(version: int) -> None:
    octets = encode_request(REQUEST, correlation_id=5, client_id="c", version=version)
    got = consumer.FetchRequest.decode(bytes(octets), version=version, header=True, framed=True)
    seen = as_seen_in(REQUEST, version)
    replica = got.replica_state if version >= 15 else got
    assert (got.max_wait_ms, got.min_bytes, got.max_bytes) == (500, 2, 3000)
    assert (got.isolation_level, replica.replica_id) == (1, 6)
    assert (got.session_id, got.session_epoch) == (0, -1)
    assert got.rack_id == seen.rack_id
    assert got.forgotten_topics_data == []
    for ours, theirs in zip(seen.topics, got.topics, strict=True):
        assert (ours.name, ours.topic_id) == (theirs.topic, id_text(theirs.topic_id))
        assert [
            (
                row.partition,
                row.fetch_offset,
                row.partition_max_bytes,
                row.current_leader_epoch,
                row.last_fetched_epoch,
                row.log_start_offset,
                id_text(row.replica_directory_id),
            )
            for row in theirs.partitions
        ] == [tuple(row) for row in ours.partitions]
    if version >= 12:
        assert bytes(got.unknown_tags[f"_{TAG_COLUMNS}"]) == b"\x01\x03"


@pytest.mark.parametrize("version", EVERY)
def test_broker_decodes_kafka_python_fetch_requests(version: int) -> None:
    rng = random.Random(version)
    for _ in range(20):
        sent = message(consumer.FetchRequest, version, rng)
        sent.with_header(correlation_id=3, client_id="c")
        frame = view(sent.encode(header=True, framed=True))
        got = decode_request(frame, version, parse_header(frame).body_at)
        assert (got.max_wait_ms, got.min_bytes, got.max_bytes, got.isolation_level) == (
            sent.max_wait_ms,
            sent.min_bytes,
            sent.max_bytes,
            sent.isolation_level,
        )
        assert (got.session_id, got.session_epoch) == (sent.session_id, sent.session_epoch)
        assert got.rack_id == sent.rack_id
        state = sent.replica_state if version >= 15 else None
        if version < 15:
            assert got.replica_id == sent.replica_id
        elif state is not None:
            assert (got.replica_id, got.replica_epoch) == (state.replica_id, state.replica_epoch)
        assert [(len(t.partitions), t.name, t.topic_id) for t in got.topics] == [
            (
                len(t.partitions),
                t.topic if version < 13 else "",
                id_text(t.topic_id if version >= 13 else None),
            )
            for t in sent.topics
        ]
        for ours, theirs in zip(got.topics, sent.topics, strict=True):
            for row, their in zip(ours.partitions, theirs.partitions, strict=True):
                assert row.partition == their.partition
                assert row.fetch_offset == their.fetch_offset
                assert row.max_bytes == their.partition_max_bytes
                assert row.current_leader_epoch == their.current_leader_epoch
                assert row.last_fetched_epoch == their.last_fetched_epoch
                assert row.log_start_offset == their.log_start_offset
        assert (got.columns_body_version, got.flags) == (0, 0)


FILE = StoredBytes(b"0123456789" * 20)
ABORTED = [AbortedTransaction(1, 2), AbortedTransaction(3, 4)]
ANSWERS = [
    TopicAnswer(
        "a",
        TOPIC_ID,
        [
            PartitionAnswer(0, 0, 100, 90, 5, (b"head", FileRange(FILE, 10, 150), bytearray(b"x"))),
            PartitionAnswer(1, 1, -1, -1, -1),
            PartitionAnswer(2, 0, 7, 7, 0, (), ABORTED),
            PartitionAnswer(3, 6, 7, 7, 0, diverging=OffsetAndEpoch(50, 2), leader_id=1,
                            leader_epoch=8),
        ],
    ),
    TopicAnswer("b", NULL_TOPIC_ID, [PartitionAnswer(9, 0, 1, 1, 0, (b"tail",), (), None, 4, 5)]),
]  # fmt: skip


def held(part: PartitionAnswer) -> bytes:
    octets = b""
    for piece in part.records:
        if isinstance(piece, FileRange):
            octets += FILE.data[piece.position : piece.position + piece.length]
        else:
            octets += piece
    return octets


@pytest.mark.parametrize("version", EVERY)
def test_client_decodes_fetch_responses_of_the_broker(version: int) -> None:
    octets = joined(encode_response(ANSWERS, version, 77, error_code=70, throttle_time_ms=3))
    got = decode_response(view(octets), version)
    assert got.error_code == (70 if version >= 7 else 0)
    assert (got.session_id, got.throttle_time_ms) == (0, 3)
    for ours, sent in zip(got.topics, ANSWERS, strict=True):
        by_id = version >= 13
        assert ours.name == ("" if by_id else sent.name)
        assert ours.topic_id == (sent.topic_id if by_id else NULL_TOPIC_ID)
        for row, part in zip(ours.partitions, sent.partitions, strict=True):
            assert tuple(row[:4]) == tuple(part[:4])
            assert row.log_start_offset == (part.log_start_offset if version >= 5 else -1)
            assert bytes(row.records) == held(part)
            aborted = part.aborted_transactions
            assert row.aborted_transactions == (None if aborted is None else list(aborted))
            if version >= 12:
                assert row.diverging == part.diverging
                assert (row.leader_id, row.leader_epoch) == (part.leader_id, part.leader_epoch)


@pytest.mark.parametrize("version", EVERY)
def test_kafka_python_decodes_fetch_responses_of_the_broker(version: int) -> None:
    nodes = [NodeEndpoint(1, "h", 9092, None), NodeEndpoint(4, "g", 1, "rack")]
    octets = joined(encode_response(ANSWERS, version, 77, nodes=nodes))
    got = consumer.FetchResponse.decode(octets, version=version, header=True, framed=True)
    assert got.header.correlation_id == 77
    rows = [row for topic in got.responses for row in topic.partitions]
    sent = [part for topic in ANSWERS for part in topic.partitions]
    assert [bytes(row.records or b"") for row in rows] == [held(part) for part in sent]
    assert [(row.partition_index, row.error_code, row.high_watermark) for row in rows] == [
        tuple(part[:3]) for part in sent
    ]
    assert [
        None
        if row.aborted_transactions is None
        else [(each.producer_id, each.first_offset) for each in row.aborted_transactions]
        for row in rows
    ] == [
        None if part.aborted_transactions is None else list(part.aborted_transactions)
        for part in sent
    ]
    if version >= 12:
        assert (rows[3].diverging_epoch.epoch, rows[3].diverging_epoch.end_offset) == (2, 50)
        assert [row.current_leader and row.current_leader.leader_id for row in rows] == [
            None, None, None, 1, 4,
        ]  # fmt: skip
    assert [
        (node.node_id, node.host, node.port, node.rack) for node in got.node_endpoints or ()
    ] == (nodes if version >= 16 else [])


@pytest.mark.parametrize("version", EVERY)
def test_client_decodes_kafka_python_fetch_responses(version: int) -> None:
    rng = random.Random(version)
    for _ in range(20):
        sent = message(consumer.FetchResponse, version, rng)
        sent.with_header(correlation_id=4)
        got = decode_response(view(sent.encode(header=True, framed=True)), version)
        for ours, theirs in zip(got.topics, sent.responses, strict=True):
            for row, their in zip(ours.partitions, theirs.partitions, strict=True):
                seen = plain(their, consumer.FetchResponse._struct.fields["responses"]
                             .array_of.fields["partitions"].array_of, version)  # fmt: skip
                assert row.partition == seen["partition_index"]
                assert row.high_watermark == seen["high_watermark"]
                assert row.last_stable_offset == seen["last_stable_offset"]
                assert bytes(row.records) == (seen["records"] or b"")
                aborted = seen["aborted_transactions"]
                assert row.aborted_transactions == (
                    None
                    if aborted is None
                    else [(each["producer_id"], each["first_offset"]) for each in aborted]
                )


def test_encoded_fetch_response_contains_each_log_file_range_as_a_separate_part() -> None:
    ranges = [FileRange(FILE, 0, 100), FileRange(FILE, 100, 50)]
    answer = TopicAnswer("", TOPIC_ID, [PartitionAnswer(0, 0, 9, 9, 0, ranges)])
    parts = encode_response([answer], 17, 1)
    assert [part for part in parts if isinstance(part, FileRange)] == ranges
    assert sum(1 for part in parts if not isinstance(part, FileRange)) == 2


def test_fetch_response_without_records_is_a_single_buffer() -> None:
    answer = TopicAnswer("", TOPIC_ID, [PartitionAnswer(0, 0, 9, 9, 0)])
    assert len(encode_response([answer], 17, 1)) == 1


@pytest.mark.parametrize("version", [4, 7, 11, 12, 17])
def test_truncated_fetch_requests_are_refused(version: int) -> None:
    frame = view(encode_request(REQUEST, correlation_id=5, client_id="c", version=version))
    at = parse_header(frame).body_at
    for size in range(at, len(frame)):
        with pytest.raises(ProtocolError):
            decode_request(frame[:size], version, at)


@pytest.mark.parametrize("version", [4, 7, 11, 12, 17])
def test_truncated_fetch_responses_are_refused(version: int) -> None:
    frame = view(joined(encode_response(ANSWERS, version, 77)))
    for size in range(len(frame)):
        with pytest.raises(ProtocolError):
            decode_response(frame[:size], version)


@pytest.mark.parametrize("tag", ["", "01", "010203"])
def test_tagged_field_for_arrow_batches_may_be_longer_but_not_shorter_than_two_bytes(
    tag: str,
) -> None:
    """A newer sender may append bytes to the field.

    The first two bytes keep their present meaning.
    """
    request = FetchRequest([], 1, columns_body_version=1)
    octets = bytes(encode_request(request, correlation_id=1, client_id=None))
    assert octets.endswith(bytes.fromhex("01904e020100"))
    body = octets[4:-6] + bytes.fromhex("01904e") + bytes([len(tag) // 2]) + bytes.fromhex(tag)
    frame = memoryview(body)
    at = parse_header(frame).body_at
    if len(tag) >= 4:
        request = decode_request(frame, 17, at)
        assert (request.columns_body_version, request.flags) == (1, 2)
    else:
        with pytest.raises(ProtocolError):
            decode_request(frame, 17, at)


@pytest.mark.parametrize("takes_tickets", [False, True])
def test_fetch_request_offers_to_read_local_files(takes_tickets: bool) -> None:
    files = FileOffer(bytes(range(16)), 77, takes_tickets)
    request = FetchRequest([], 1, columns_body_version=1, files=files)
    sent = bytes(encode_request(request, correlation_id=1, client_id=None))
    frame = view(sent)
    at = parse_header(frame).body_at
    assert decode_request(frame, 17, at) == request._replace(topics=[])
    # Older clients leave out the last byte.
    assert sent[-22] == 21
    older = memoryview(sent[4:-22] + bytes([20]) + sent[-21:-1])
    got = decode_request(older, 17, at).files
    assert got == files._replace(takes_tickets=False)


@pytest.mark.parametrize(
    ("path", "ticket", "tag"),
    [
        ("/d\udcff/0.log", None, TAG_STORED),
        ("", FileTicket(bytes(range(16)), b"\xff" * 16), TAG_TICKET),
    ],
)
def test_fetch_response_to_a_reader_on_the_same_machine_has_the_location_of_a_log_file(
    path: str, ticket: FileTicket | None, tag: int
) -> None:
    stored = StoredRange(path, 1 << 63, (1 << 64) - 1, 1 << 40, 5, ticket)
    row = PartitionAnswer(3, 0, 9, 9, 1, leader_id=1, leader_epoch=2, stored=stored)
    octets = joined(encode_response([TopicAnswer("", TOPIC_ID, [row])], 17, 1))
    (got,) = decode_response(view(octets)).topics[0].partitions
    assert (got.stored, bytes(got.records), got.leader_epoch) == (stored, b"", 2)
    theirs = consumer.FetchResponse.decode(octets, version=17, header=True, framed=True)
    (theirs,) = theirs.responses[0].partitions
    assert list(theirs.unknown_tags) == [f"_{tag}"]


def test_repr_of_a_file_ticket_in_a_fetch_response_hides_the_secret_of_the_ticket() -> None:
    """With the secret, a client on the broker's machine can open a segment file."""
    stored = StoredRange("", 1, 2, 3, 4, FileTicket(b"a secret, 16 byt", bytes(16)))
    for text in (repr(stored), str(stored), f"{stored.ticket}"):
        assert "hidden" in text and "secret" not in text


@pytest.mark.parametrize(
    "change",
    [{"position": -1}, {"length": 0}, {"length": -1}, {"path": ""}, {"path": "a\0b"}],
    ids=str,
)
def test_fetch_response_with_an_invalid_path_or_range_of_a_segment_file_is_refused(
    change: dict[str, Any],
) -> None:
    stored = StoredRange("/d/0.log", 1, 2, 3, 4)._replace(**change)
    row = PartitionAnswer(3, stored=stored)
    octets = joined(encode_response([TopicAnswer("", TOPIC_ID, [row])], 17, 1))
    with pytest.raises(ProtocolError):
        decode_response(view(octets))
