"""Measure the codec of produce, fetch and ListOffsets in microseconds a message, in one process.

    python benchmarks/wire.py [--seconds 0.2]

The script prints one JSON object: the best of several rounds on one core. ``limits`` has the times
that the two most frequent messages may take; ``exceeded`` names those that took longer.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from peers import figures

from broker_lite.wire import fetch, produce, tables
from broker_lite.wire.api import ApiKey, decode_call, encode_call, parse_header
from broker_lite.wire.calls import offsets

TOPIC_ID = "AAECAwQFBgcICQoLDA0ODw"
LIMITS_US = {"produce_request_decode": 8.0, "fetch_request_of_10_decode": 20.0}
Calls = dict[str, Callable[[], object]]


class AnyFile:
    """A placeholder for an open segment file, which encoding does not read."""

    def fileno(self) -> int:
        return -1


def frame_of(octets: bytes | bytearray) -> memoryview:
    return memoryview(bytearray(octets))[4:]


def produce_calls() -> Calls:
    records = random.Random(1).randbytes(200)
    topics = [produce.TopicRecords("", TOPIC_ID, [produce.PartitionRecords(0, records)])]

    def encode() -> list[Any]:
        return produce.encode_request(
            topics, acks=-1, timeout_ms=1000, correlation_id=1, client_id="logbus"
        )

    request = frame_of(b"".join(encode()))
    row = produce.ProducedPartition(0, 0, 5)
    response = produce.ProduceResponse([produce.ProducedTopic("", TOPIC_ID, [row])])
    answer = frame_of(produce.encode_response(response, 13, 1))

    def decode() -> object:
        header = parse_header(request)
        return produce.decode_request(request, header.api_version, header.body_at)

    return {
        "produce_request_encode": encode,
        "produce_request_decode": decode,
        "produce_response_encode": lambda: produce.encode_response(response, 13, 1),
        "produce_response_decode": lambda: produce.decode_response(answer),
    }


def fetch_calls(count: int) -> Calls:
    rows = [fetch.FetchPartition(number, 0, 1 << 20) for number in range(count)]
    wanted = fetch.FetchRequest(
        [fetch.FetchTopic("", TOPIC_ID, rows)], 500, columns_body_version=1, flags=1
    )
    records = random.Random(1).randbytes(1000)

    def answers(part: Any) -> list[fetch.TopicAnswer]:
        answer = [fetch.PartitionAnswer(number, 0, 9, 9, 0, (part,)) for number in range(count)]
        return [fetch.TopicAnswer("", TOPIC_ID, answer)]

    def encode() -> Any:
        return fetch.encode_request(wanted, correlation_id=1, client_id="logbus")

    def decode() -> object:
        header = parse_header(request)
        return fetch.decode_request(request, header.api_version, header.body_at)

    request, stored = frame_of(encode()), answers(fetch.FileRange(AnyFile(), 0, 1000))
    parts: list[Any] = fetch.encode_response(answers(records), 17, 1)
    answer = frame_of(b"".join(parts))
    return {
        f"fetch_request_of_{count}_encode": encode,
        f"fetch_request_of_{count}_decode": decode,
        f"fetch_response_of_{count}_encode": lambda: fetch.encode_response(stored, 17, 1),
        f"fetch_response_of_{count}_decode": lambda: fetch.decode_response(answer),
    }


def list_offsets_calls(count: int) -> Calls:
    """Return the client's codec of a lookup in ``count`` partitions, made from declared fields."""
    rows = [
        offsets.ListOffsetsPartition(partition_index=number, current_leader_epoch=3, timestamp=-1)
        for number in range(count)
    ]
    call = offsets.ListOffsetsRequest((offsets.ListOffsetsTopic("events", tuple(rows)),))
    topic = tables.ListOffsetsResponse.ListOffsetsTopicResponse
    partition = topic.ListOffsetsPartitionResponse
    found = [
        tables.build(partition, partition_index=number, timestamp=-1, offset=9, leader_epoch=3)
        for number in range(count)
    ]
    topics = [tables.build(topic, name="events", partitions=found)]
    response = tables.build(tables.ListOffsetsResponse, topics=topics)
    answer = frame_of(tables.encode(ApiKey.LIST_OFFSETS, call.VERSION, 1, response))
    return {
        f"list_offsets_request_of_{count}_encode": lambda: encode_call(call, 1, "logbus"),
        f"list_offsets_response_of_{count}_decode": lambda: decode_call(call, answer),
    }


def measure(seconds: float = 0.2) -> dict[str, Any]:
    calls = produce_calls() | fetch_calls(1) | fetch_calls(10) | list_offsets_calls(500)
    found = {name: round(figures.shortest(call, seconds) * 1e6, 2) for name, call in calls.items()}
    exceeded = [name for name, limit in LIMITS_US.items() if found[name] > limit]
    return {"microseconds": found, "limits": LIMITS_US, "exceeded": exceeded}


if __name__ == "__main__":
    figures.main(measure)
