"""Tests that frames are encoded to, and decoded from, the recorded bytes of
tests/bytes/frames.txt."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker_lite.errors import MessageTooLargeError
from broker_lite.wire import fetch, produce, tables
from broker_lite.wire.api import decode_call, encode_call, parse_header
from broker_lite.wire.calls import groups
from broker_lite.wire.calls.offsets import (
    BytesAnswer,
    BytesPartition,
    OffsetsForBytesRequest,
    OffsetsForBytesResponse,
)
from broker_lite.wire.fetch import (
    FLAG_CHECKS_CRC,
    FLAG_ENDS_ONLY,
    READ_COMMITTED,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    FileOffer,
    FileTicket,
    PartitionAnswer,
    StoredRange,
    TopicAnswer,
)

TABLE = Path(__file__).parents[2] / "bytes" / "frames.txt"
TOPIC_ID = "AAECAwQFBgcICQoLDA0ODw"


def written() -> dict[str, bytes]:
    """Return the recorded frames in frames.txt by their names."""
    found: dict[str, bytes] = {}
    name = ""
    for line in TABLE.read_text("utf-8").splitlines():
        if line.startswith("["):
            name = line.strip("[]")
            found[name] = b""
        elif line and not line.startswith("#"):
            octets, gap, _ = line.partition("  ")
            assert gap and re.fullmatch(r"[0-9a-f ]+", octets), line
            found[name] += bytes.fromhex(octets.replace(" ", ""))
    return found


FETCH = fetch.encode_request(
    FetchRequest(
        [FetchTopic("", TOPIC_ID, [FetchPartition(3, 42, 1 << 20, 5)])],
        500,
        isolation_level=READ_COMMITTED,
        columns_body_version=1,
        flags=FLAG_CHECKS_CRC | FLAG_ENDS_ONLY,
    ),
    correlation_id=7,
    client_id="logbus",
)
FETCHED = fetch.encode_response(
    [TopicAnswer("", TOPIC_ID, [PartitionAnswer(3, 0, 100, 100, 0)])], 17, 7
)
PRODUCE = produce.encode_request(
    [produce.TopicRecords("", TOPIC_ID, [produce.PartitionRecords(3, b"batch")])],
    acks=produce.ACKS_ALL,
    timeout_ms=30_000,
    correlation_id=8,
    client_id="logbus",
)
REFUSED = produce.ProducedPartition(
    3, MessageTooLargeError.code, error_message="raise max.message.bytes"
)
PRODUCED = produce.encode_response(
    produce.ProduceResponse([produce.ProducedTopic("", TOPIC_ID, [REFUSED])]), 13, 8
)
BYTES = OffsetsForBytesRequest((BytesPartition(TOPIC_ID, 3, 42, 8 << 20),))
ANSWERED = tables.encode(10000, 0, 9, OffsetsForBytesResponse((BytesAnswer(0, 4711, 8_300_000),)))
WHOLE = OffsetsForBytesRequest((BytesPartition(TOPIC_ID, 3, -2, 8 << 20),), 1)
BOUNDS = OffsetsForBytesResponse((BytesAnswer(0, 4711, 8_300_000, 42, 5003),), True)
COMMIT = groups.OffsetCommitRequest(
    "g", (groups.OffsetCommitTopic("t", (groups.OffsetToCommit(3, 42, 5, ""),), TOPIC_ID),)
)
OFFSETS = groups.OffsetFetchRequest(
    (groups.OffsetFetchGroup("g", (groups.OffsetFetchTopic("t", (3, 4)),)),)
)
STAND = groups.OffsetFetchResponse(
    0,
    (
        groups.FetchedOffsetsGroup(
            "g",
            (
                groups.FetchedOffsetsTopic(
                    "t",
                    (
                        groups.FetchedOffset(3, 42, 5, "", 0, TOPIC_ID, 1_700_000_000_000),
                        groups.FetchedOffset(4, -1, -1, "", 0),
                    ),
                ),
            ),
            0,
        ),
    ),
)

OFFER = fetch.encode_request(
    FetchRequest(
        [FetchTopic("", TOPIC_ID, [FetchPartition(3, 42, 1 << 20, 5)])],
        500,
        files=FileOffer(bytes(range(16, 32)), 64 << 20, takes_tickets=True),
    ),
    correlation_id=13,
    client_id="logbus",
)
PLACE = StoredRange(
    "", 0x801, 0x1234, 4096, 1 << 20, FileTicket(bytes(range(32, 48)), bytes(range(48, 64)))
)
TICKET = fetch.encode_response(
    [TopicAnswer("", TOPIC_ID, [PartitionAnswer(3, 0, 100, 100, 0, stored=PLACE)])], 17, 13
)

OURS = [FETCH, b"".join(map(bytes, FETCHED)), b"".join(PRODUCE), PRODUCED,
        encode_call(BYTES, 9, "logbus"), ANSWERED,
        encode_call(COMMIT, 10, "logbus"), encode_call(OFFSETS, 11, "logbus"),
        tables.encode(9, 8, 11, STAND),
        encode_call(WHOLE, 12, "logbus"), tables.encode(10000, 0, 12, BOUNDS),
        OFFER, b"".join(map(bytes, TICKET))]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "octets", "ours"),
    [(name, octets, ours) for (name, octets), ours in zip(written().items(), OURS, strict=True)],
    ids=list(written()),
)
def test_encoded_frames_match_recorded_bytes(name: str, octets: bytes, ours: bytes) -> None:
    assert bytes(ours).hex() == octets.hex()


def test_recorded_bytes_of_requests_are_decoded_to_their_values() -> None:
    frames = [memoryview(frame)[4:] for frame in written().values()]
    fetched, _, produced, _, bytes_asked, _, committed, offsets_asked, _, bounds_asked, *_ = frames
    header = parse_header(fetched)
    request = fetch.decode_request(fetched, header.api_version, header.body_at)
    assert (request.columns_body_version, request.flags) == (1, FLAG_CHECKS_CRC | FLAG_ENDS_ONLY)
    assert request.topics[0].partitions[0].fetch_offset == 42
    header = parse_header(produced)
    ((partition, records),) = (
        produce.decode_request(produced, header.api_version, header.body_at).topics[0].partitions
    )
    assert (partition, bytes(records or b"")) == (3, b"batch")
    header = parse_header(bytes_asked)
    assert tables.decode(header.api_key, 0, bytes_asked, header.body_at) == BYTES
    assert tables.decode(header.api_key, 0, bounds_asked, header.body_at) == WHOLE
    header = parse_header(committed)
    (topic,) = tables.decode(header.api_key, 9, committed, header.body_at).topics
    assert (topic.name, tables.own_tag(topic)) == ("t", TOPIC_ID)
    assert topic.partitions[0].committed_offset == 42
    header = parse_header(offsets_asked)
    request = tables.decode(header.api_key, 8, offsets_asked, header.body_at)
    assert (request.groups[0].group_id, tables.own_tag(request)) == ("g", True)


def test_recorded_frames_decode_to_the_expected_values() -> None:
    frames = [memoryview(frame)[4:] for frame in written().values()]
    _, fetched, _, produced, _, bytes_answered, _, _, stand, _, bounds, offer, ticket = frames
    assert fetch.decode_response(ticket).topics[0].partitions[0].stored == PLACE
    assert fetch.decode_request(offer, 17, parse_header(offer).body_at).files.takes_tickets
    assert fetch.decode_response(fetched).topics[0].partitions[0].high_watermark == 100
    assert produce.decode_response(produced).topics[0].partitions[0] == REFUSED._replace(
        record_errors=[]
    )
    answer = decode_call(OffsetsForBytesRequest, bytes_answered)
    assert answer == OffsetsForBytesResponse((BytesAnswer(0, 4711, 8_300_000),))
    assert decode_call(OffsetsForBytesRequest, bounds) == BOUNDS
    assert decode_call(groups.OffsetFetchRequest, stand) == STAND
