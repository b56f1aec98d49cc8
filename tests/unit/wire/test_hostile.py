"""Tests against hostile clients: a declared size allocates no memory before its bytes arrive."""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.wire_samples import message

from broker_lite.errors import ProtocolError, UnsupportedVersionError
from broker_lite.wire import fetch, produce, tables
from broker_lite.wire.api import ITEMS_MAX, PARTITIONS_MAX, VERSIONS, ApiKey, parse_header
from broker_lite.wire.primitives import Reader, uvarint_bytes

ALLOCATED_MAX = 256 * 1024

HUGE_COUNT = b"\xff\xff\xff\xff\x07"  # 2^31 - 2 items
HUGE_CLASSIC = b"\x7f\xff\xff\xff"

MEMBERS = PARTITIONS_MAX + 1
SYNC = b"\x02g" + bytes(4) + b"\x02m" + bytes(3) + uvarint_bytes(MEMBERS + 1)
MANY_MEMBERS = memoryview(SYNC + b"\x01\x01\x00" * MEMBERS + b"\x00")
"""A SyncGroup request with ``MEMBERS`` empty assignments, each in the fewest possible bytes."""

NAMES = ITEMS_MAX + 1
MANY_NAMES = memoryview(uvarint_bytes(NAMES + 1) + b"\x02t\x00" * NAMES + bytes(4))
"""The body of a Metadata request with ``NAMES`` topics, each in the fewest possible bytes."""
TWO_LISTS = memoryview(
    b"\x02\x02g\x03" + (b"\x02t" + uvarint_bytes(PARTITIONS_MAX + 1) + bytes(4) * PARTITIONS_MAX
    + b"\x00") * 2 + bytes(3)
)  # fmt: skip
"""The body of an OffsetFetch request with two topics, each with ``PARTITIONS_MAX`` partitions."""

LIES: list[tuple[str, Callable[[], object]]] = [
    ("topics of a Fetch request", lambda: fetch.decode_request(
        memoryview(bytes(21) + HUGE_COUNT + bytes(60)), 17, 0)),
    ("partitions of a Fetch request", lambda: fetch.decode_request(
        memoryview(bytes(21) + b"\x02" + bytes(16) + HUGE_COUNT + bytes(60)), 17, 0)),
    ("topics of a Produce request", lambda: produce.decode_request(
        memoryview(bytes(7) + HUGE_COUNT + bytes(60)), 13, 0)),
    ("topics of a Produce 3 request", lambda: produce.decode_request(
        memoryview(bytes(8) + HUGE_CLASSIC + bytes(60)), 3, 0)),
    ("records of a Produce request", lambda: produce.decode_request(
        memoryview(bytes(7) + b"\x02" + bytes(16) + b"\x02" + bytes(4) + HUGE_COUNT), 13, 0)),
    ("topics of a Metadata request", lambda: tables.decode(
        ApiKey.METADATA, 12, memoryview(HUGE_COUNT + bytes(60)), 0)),
    ("topics of a Metadata 1 request", lambda: tables.decode(
        ApiKey.METADATA, 1, memoryview(HUGE_CLASSIC + bytes(60)), 0)),
    ("members of a SyncGroup request", lambda: tables.decode(
        ApiKey.SYNC_GROUP, 5, MANY_MEMBERS, 0)),
    ("topics of a Metadata request in few bytes", lambda: tables.decode(
        ApiKey.METADATA, 9, MANY_NAMES, 0)),
    ("length of a string", lambda: Reader(HUGE_COUNT + bytes(60)).string()),
    ("length of a byte field", lambda: Reader(HUGE_CLASSIC + bytes(60)).classic_view()),
    ("number of decoded tagged fields", lambda: Reader(HUGE_COUNT + bytes(60)).tags()),
    ("number of skipped tagged fields", lambda: Reader(HUGE_COUNT + bytes(60)).skip_tags()),
]  # fmt: skip


def test_items_of_all_arrays_of_a_request_count_together() -> None:
    with pytest.raises(ProtocolError, match="more than 100000 items in its arrays"):
        tables.decode(ApiKey.OFFSET_FETCH, 8, TWO_LISTS, 0)


@pytest.mark.parametrize(("name", "decode"), LIES, ids=[name for name, _ in LIES])
def test_value_with_a_false_declared_size_is_refused_before_memory_is_allocated(
    name: str, decode: Callable[[], object]
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < ALLOCATED_MAX


def test_requests_of_every_api_with_flipped_bytes_are_refused_or_decoded() -> None:
    rng = random.Random(1)
    for key, kind in tables.REQUESTS.items():
        for version in range(VERSIONS[key][0], VERSIONS[key][1] + 1):
            sent = message(kind, version, rng)
            sent.with_header(correlation_id=3, client_id="c")
            whole = sent.encode(header=True, framed=True)[4:]
            for _ in range(20):
                frame = bytearray(whole)
                for _ in range(rng.randrange(1, 4)):
                    frame[rng.randrange(8, len(frame))] = rng.randrange(256)
                decode_somehow(memoryview(frame), key, version)


@pytest.mark.parametrize(
    ("key", "codec"), [(ApiKey.FETCH, fetch), (ApiKey.PRODUCE, produce)], ids=["fetch", "produce"]
)
@given(data=st.data(), noise=st.binary(max_size=200))
def test_random_fetch_and_produce_messages_are_refused_or_decoded(
    key: ApiKey, codec: Any, data: st.DataObject, noise: bytes
) -> None:
    version = data.draw(st.integers(*VERSIONS[key]))
    with contextlib.suppress(ProtocolError):
        codec.decode_request(memoryview(noise), version, 0)
    with contextlib.suppress(ProtocolError):
        codec.decode_response(memoryview(noise), version)


def decode_somehow(frame: memoryview, key: int, version: int) -> None:
    with contextlib.suppress(ProtocolError, UnsupportedVersionError):
        tables.decode(key, version, frame, parse_header(frame).body_at)
