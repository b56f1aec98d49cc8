"""Tests of the API table against kafka-python's tables, and of request and response headers."""

from __future__ import annotations

import pytest
from support.api_frames import LIBRARY

from broker_lite.errors import ProtocolError
from broker_lite.wire.api import (
    ADVERTISED,
    FLEXIBLE_FROM,
    REQUEST_BYTES_MAX,
    SYNC_BYTES_MAX,
    VERSIONS,
    ApiKey,
    correlation_id_of,
    is_flexible,
    is_served,
    parse_header,
    read_response_header,
    response_header_bytes,
    why_too_long,
    write_request_header,
)
from broker_lite.wire.primitives import Writer


def test_every_api_has_versions_and_a_codec() -> None:
    assert set(VERSIONS) == set(ApiKey) == set(FLEXIBLE_FROM)
    ours = {
        ApiKey.OFFSETS_FOR_BYTES,
        ApiKey.RECORD_TIMES,
        ApiKey.END_GROUP_OFFSETS,
        ApiKey.JOIN_BATCH,
        ApiKey.END_BATCH,
        ApiKey.KEEP_BATCH,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.ENVELOPE,
    }
    assert set(VERSIONS) == {*LIBRARY, *ours}


@pytest.mark.parametrize("key", sorted(LIBRARY))
def test_versions_of_each_api_and_their_flexibility_match_kafka_pythons_tables(key: int) -> None:
    kind = LIBRARY[key]
    assert key == kind.API_KEY
    first, last = VERSIONS[key]
    assert kind.valid_versions[0] <= first <= last <= kind.valid_versions[1] or first == 0
    for version in range(first, last + 1):
        assert is_flexible(key, version) == kind.flexible_version_q(version), version


def test_old_produce_versions_are_advertised_for_librdkafka_but_refused() -> None:
    assert ADVERTISED[ApiKey.PRODUCE] == (0, 13)
    assert not is_served(ApiKey.PRODUCE, 2)
    assert is_served(ApiKey.PRODUCE, 3)
    assert {key: row for key, row in ADVERTISED.items() if key != ApiKey.PRODUCE} == {
        key: row for key, row in VERSIONS.items() if key != ApiKey.PRODUCE
    }


@pytest.mark.parametrize(
    ("octets", "expected"),
    [
        ("0003 0008 00000007 0002 6162", (3, 8, 7, "ab", 12)),  # Metadata 8 is not flexible.
        ("0003 0009 00000007 0002 6162 00", (3, 9, 7, "ab", 13)),  # Metadata 9 has tagged fields.
        ("0003 0009 00000007 ffff 01 05 01 aa", (3, 9, 7, None, 14)),  # The tag is unknown.
        ("0012 0063 00000001 0001 61", (18, 99, 1, "a", 11)),  # ApiVersions 99 does not exist yet.
        ("0fff 0000 00000001 ffff", (4095, 0, 1, None, 10)),  # API 4095 does not exist.
        ("ffff 0000 00000001 ffff", (-1, 0, 1, None, 10)),
    ],
)
def test_request_header_is_parsed_in_the_header_version_of_its_api_version(
    octets: str, expected: tuple[object, ...]
) -> None:
    frame = memoryview(bytes.fromhex(octets.replace(" ", "")))
    assert tuple(parse_header(frame)) == expected


def test_only_produce_and_sync_group_requests_may_be_larger_than_the_common_limit() -> None:
    assert not why_too_long(ApiKey.PRODUCE, 1 << 30)
    assert not why_too_long(ApiKey.SYNC_GROUP, SYNC_BYTES_MAX)
    assert why_too_long(ApiKey.SYNC_GROUP, SYNC_BYTES_MAX + 1)
    for key in (ApiKey.FETCH, ApiKey.METADATA, 4095):
        assert not why_too_long(key, REQUEST_BYTES_MAX)
        assert str(REQUEST_BYTES_MAX) in why_too_long(key, REQUEST_BYTES_MAX + 1)


def test_truncated_header_is_refused_at_every_byte() -> None:
    whole = bytes.fromhex("00030009000000070002616200")
    for size in range(len(whole)):
        with pytest.raises(ProtocolError):
            parse_header(memoryview(whole[:size]))


@pytest.mark.parametrize("key", sorted(LIBRARY))
def test_request_headers_equal_those_of_kafka_python(key: int) -> None:
    kind = LIBRARY[key]
    for version in range(*VERSIONS[key]):
        message = kind(version=version)
        message.with_header(correlation_id=77, client_id="someone")
        writer = Writer()
        write_request_header(writer, key, version, 77, "someone")
        assert bytes(writer.buffer) == message.encode_header(flexible=is_flexible(key, version))
        header = parse_header(memoryview(bytes(writer.buffer)))
        assert header[:4] == (key, version, 77, "someone")


@pytest.mark.parametrize(("version", "size"), [(8, 4), (9, 5)])
def test_response_header_has_the_header_version_of_its_api_version(version: int, size: int) -> None:
    octets = response_header_bytes(ApiKey.METADATA, version, 9)
    assert len(octets) == size
    correlation_id, reader = read_response_header(memoryview(octets), ApiKey.METADATA, version)
    assert (correlation_id, reader.left) == (9, 0)
    assert correlation_id_of(memoryview(octets)) == 9


def test_api_versions_response_header_is_never_flexible() -> None:
    assert len(response_header_bytes(ApiKey.API_VERSIONS, 3, 9)) == 4


def test_response_without_correlation_id_is_refused() -> None:
    with pytest.raises(ProtocolError):
        correlation_id_of(memoryview(b"\x00\x00\x00"))
