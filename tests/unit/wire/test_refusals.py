"""Tests of error responses to requests that the broker does not serve.

kafka-python decodes the responses. For APIs that kafka-python lacks, the tests compare them with
bytes that Kafka's Java classes wrote.
"""

from __future__ import annotations

import contextlib
import random
from itertools import groupby
from pathlib import Path
from typing import Any

import kafka.protocol.old.admin as old_admin
import kafka.protocol.old.commit as old_commit
import kafka.protocol.old.fetch as old_fetch
import kafka.protocol.old.list_offsets as old_list_offsets
import kafka.protocol.old.offset_for_leader_epoch as old_epochs
import kafka.protocol.old.produce as old_produce
import pytest
from support.wire_samples import message, plain

from broker_lite.errors import ProtocolError, UnsupportedVersionError
from broker_lite.wire import refusals, tables
from broker_lite.wire.api import ApiKey, parse_header
from broker_lite.wire.primitives import Writer
from broker_lite.wire.refused_tables import NEWEST, OLD

CODE = UnsupportedVersionError.code
THEIRS = [
    (key, version)
    for key, (asks, _) in sorted(tables.MESSAGE_CLASSES.items())
    if key != ApiKey.API_VERSIONS
    for version in range(asks.valid_versions[0], asks.valid_versions[1] + 1)
]
BEFORE_2_1: list[tuple[Any, Any]] = [
    (asks, answers)
    for module in (
        old_admin, old_commit, old_epochs, old_fetch, old_list_offsets, old_produce,
    )
    for name, asks in sorted(vars(module).items())
    if "Request_v" in name
    and asks.API_KEY in OLD
    and OLD[asks.API_KEY][0]._versions[1] >= asks.API_VERSION
    and (answers := getattr(module, name.replace("Request", "Response"), None)) is not None
]  # fmt: skip


def codes(item: Any) -> list[int]:
    """Return every error code in a response that is given as dictionaries and lists."""
    if isinstance(item, list):
        return [code for each in item for code in codes(each)]
    if not isinstance(item, dict):
        return []
    own = [item[name] for name in ("error_code", "partition_error_code") if name in item]
    return own + [code for value in item.values() for code in codes(value)]


@pytest.mark.parametrize(("key", "version"), THEIRS)
def test_unsupported_request_is_refused_in_its_own_response_format(key: int, version: int) -> None:
    asks, answers = tables.MESSAGE_CLASSES[key]
    rng = random.Random(key * 100 + version)
    told = 0
    for _ in range(10):
        asked = message(asks, version, rng)
        asked.with_header(correlation_id=7, client_id="c")
        frame = memoryview(asked.encode(header=True, framed=True))[4:]
        octets = refusals.refused(parse_header(frame), frame, CODE, "no")
        if octets is None:
            # The request has acks=0, or a null list, which selects everything and names no row.
            is_silent = getattr(asked, "acks", None) == 0
            assert is_silent or None in plain(asked, asks._struct, version).values()
            continue
        answer = answers.decode(octets, version=version, header=True, framed=True)
        assert answer.header.correlation_id == 7
        found = codes(plain(answer, answers._struct, version))
        assert set(found) <= {CODE}
        told += bool(found)
    assert told


@pytest.mark.parametrize(("asks", "answers"), BEFORE_2_1, ids=lambda kind: kind.__name__)
def test_requests_older_than_kafka_2_1_are_refused_in_their_own_response_format(
    asks: Any, answers: Any
) -> None:
    rng = random.Random(asks.API_VERSION)
    asked = asks(*values(asks.SCHEMA, rng))
    writer = Writer()
    writer.i16(asks.API_KEY)
    writer.i16(asks.API_VERSION)
    writer.i32(7)
    writer.classic_nullable_string("an old one")
    frame = memoryview(bytes(writer.buffer) + asked.encode())
    octets = refusals.refused(parse_header(frame), frame, CODE, "no")
    assert octets is not None
    assert int.from_bytes(octets[:4], "big") == len(octets) - 4
    assert int.from_bytes(octets[4:8], "big") == 7
    answer = answers.decode(octets[8:])
    assert answer.encode() == octets[8:]
    assert repr(answer).count(f"error_code={CODE}") in (1, 2, 4)


def values(schema: Any, rng: random.Random) -> list[Any]:
    """Return random values for the fields of a schema, with two elements in every array."""
    return [value(field, rng) for field in schema.fields]


def value(field: Any, rng: random.Random) -> Any:
    name = type(field).__name__
    if name == "Schema":
        return tuple(values(field, rng))
    if name == "Array":
        return [value(field.array_of, rng) for _ in range(2)]
    if name == "String":
        return rng.choice(("a", "b"))
    if name == "Bytes" or getattr(field, "__name__", "") == "Bytes":
        return b"records"
    return True if getattr(field, "__name__", "") == "Boolean" else rng.randrange(1, 100)


@pytest.mark.parametrize(("key", "version"), THEIRS)
def test_unsupported_request_without_topics_or_groups_gets_an_error_response(
    key: int, version: int
) -> None:
    """Such a response may have no error code. Without it, the broker would have to close the
    connection."""
    asks, answers = tables.MESSAGE_CLASSES[key]
    asked = asks(version=version)
    asked.with_header(correlation_id=7, client_id="c")
    frame = memoryview(asked.encode(header=True, framed=True))[4:]
    octets = refusals.refused(parse_header(frame), frame, CODE, "no")
    if octets is None:
        assert None in plain(asked, asks._struct, version).values()
        return
    answer = answers.decode(octets, version=version, header=True, framed=True)
    assert set(codes(plain(answer, answers._struct, version))) <= {CODE}


BYTES = Path(__file__).parents[2] / "bytes" / "refusals.txt"


def newest() -> list[tuple[str, bytes, bytes]]:
    """Return (API and version, request, error response) for each entry of refusals.txt."""
    lines = [line for line in BYTES.read_text("utf-8").splitlines() if not line.startswith("#")]
    found = []
    for is_pair, pair in groupby(lines, key=bool):
        if is_pair:
            name, *rest = pair
            octets = {"asked": b"", "answered": b""}
            for line in rest:
                which, _, text = line.partition(" ")
                octets[which] += bytes.fromhex(text)
            found.append((name.strip("[]"), octets["asked"], octets["answered"]))
    return found


@pytest.mark.parametrize(("name", "asked", "answered"), newest(), ids=lambda value: str(value)[:40])
def test_requests_unknown_to_kafka_python_are_refused_in_their_own_response_format(
    name: str, asked: bytes, answered: bytes
) -> None:
    request = parse_header(memoryview(asked))
    assert f"{refusals.name_of(request.api_key)} {request.api_version}" == name
    octets = refusals.refused(request, memoryview(asked), CODE, "no")
    assert octets is not None and octets[4:] == answered


def test_refusals_file_lists_every_unsupported_api_version() -> None:
    every = [
        f"{api.name} {version}"
        for api in NEWEST.values()
        for version in range(api.versions[0], api.versions[1] + 1)
    ]
    assert [name for name, _, _ in newest()] == every


def test_describe_topic_partitions_of_all_topics_is_refused_with_an_error_without_topic_name() -> (
    None
):
    asks, answers = tables.MESSAGE_CLASSES[75]
    asked = asks(version=0)
    asked.with_header(correlation_id=7, client_id="c")
    whole = memoryview(asked.encode(header=True, framed=True))[4:]
    octets = refusals.refused(parse_header(whole), whole, CODE, "no")
    answer = answers.decode(octets, version=0, header=True, framed=True)
    assert [(row.error_code, row.name) for row in answer.topics] == [(CODE, None)]


def frame(key: int, version: int, body: bytes) -> memoryview:
    writer = Writer()
    writer.i16(key)
    writer.i16(version)
    writer.i32(7)
    writer.classic_nullable_string(None)
    return memoryview(bytes(writer.buffer) + body)


def refused(data: memoryview) -> bytes | None:
    return refusals.refused(parse_header(data), data, CODE, "no")


def test_large_unsupported_request_is_not_decoded_for_an_error_response() -> None:
    """The broker answers a request of 1 MiB with only one error, or closes the connection."""
    assert refused(frame(72, 0, bytes(1 << 20))) is not None
    # ConsumerGroupDescribe (69) needs an error for each requested group.
    assert refused(frame(69, 0, bytes(1 << 20))) is None


def test_undecodable_request_gets_no_response() -> None:
    assert refused(frame(9999, 0, b"")) is None
    assert refused(frame(3, 99, b"")) is None
    acks_none = bytes(2) + bytes(4) + b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\1" + bytes(4) + b"\xff" * 4
    assert refused(frame(0, 2, acks_none)) is None
    assert refused(frame(0, 2, b"\0\1" + acks_none[2:])) is not None
    with pytest.raises(ProtocolError):
        refused(frame(0, 2, b"\0\1"))


def test_requests_with_flipped_bytes_get_an_error_response_or_a_protocol_error() -> None:
    rng, every = random.Random(1), [asked for _, asked, _ in newest()]
    for key, version in THEIRS:
        asked = message(tables.MESSAGE_CLASSES[key][0], version, rng)
        asked.with_header(correlation_id=3, client_id="c")
        every.append(asked.encode(header=True, framed=True)[4:])
    for whole in every:
        for _ in range(10):
            octets = bytearray(whole)
            for _ in range(rng.randrange(1, 4)):
                octets[rng.randrange(8, len(octets))] = rng.randrange(256)
            with contextlib.suppress(ProtocolError):
                frame = memoryview(octets)
                refusals.refused(parse_header(frame), frame, CODE, "no")
