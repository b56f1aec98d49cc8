"""Measure the wire codec in microseconds for each message, in one process.

    python benchmarks/wire.py [--seconds 0.2]

The script prints one JSON object: the best of several rounds on one core. ``limits`` are the
design's limits for the two most frequent messages; ``exceeded`` names those that took longer.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from collections.abc import Callable
from typing import Any

from broker_lite.wire import fetch, produce, tables
from broker_lite.wire.api import ApiKey, decode_call, encode_call, parse_header
from broker_lite.wire.calls.cluster import MetadataRequest
from broker_lite.wire.frame import FrameReceiver

ROUNDS = 5
TOPIC_ID = "AAECAwQFBgcICQoLDA0ODw"
LIMITS_US = {"produce_request_decode": 8.0, "fetch_request_of_10_decode": 20.0}


class AnyFile:
    """A placeholder for an open segment file, which encoding does not read."""

    def fileno(self) -> int:
        return -1


def best_us(call: Callable[[], object], seconds: float) -> float:
    count = 1
    while True:
        started = time.perf_counter()
        for _ in range(count):
            call()
        if time.perf_counter() - started > seconds / ROUNDS:
            break
        count *= 2
    rounds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(count):
            call()
        rounds.append((time.perf_counter() - started) / count * 1e6)
    return round(min(rounds), 2)


def frame_of(octets: bytes | bytearray) -> memoryview:
    return memoryview(bytearray(octets))[4:]


def produce_calls() -> dict[str, Callable[[], object]]:
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


def fetch_calls(count: int) -> dict[str, Callable[[], object]]:
    rows = [fetch.FetchPartition(number, 0, 1 << 20) for number in range(count)]
    wanted = fetch.FetchRequest(
        [fetch.FetchTopic("", TOPIC_ID, rows)], 500, columns_body_version=1, flags=1
    )
    request = frame_of(fetch.encode_request(wanted, correlation_id=1, client_id="logbus"))
    stored = fetch.FileRange(AnyFile(), 0, 1000)
    ranges = [fetch.PartitionAnswer(number, 0, 9, 9, 0, (stored,)) for number in range(count)]
    records = random.Random(1).randbytes(1000)
    held = [fetch.PartitionAnswer(number, 0, 9, 9, 0, (records,)) for number in range(count)]
    parts: list[Any] = fetch.encode_response([fetch.TopicAnswer("", TOPIC_ID, held)], 17, 1)
    answer = frame_of(b"".join(parts))
    topics = [fetch.TopicAnswer("", TOPIC_ID, ranges)]

    def decode() -> object:
        header = parse_header(request)
        return fetch.decode_request(request, header.api_version, header.body_at)

    return {
        f"fetch_request_of_{count}_encode": lambda: fetch.encode_request(
            wanted, correlation_id=1, client_id="logbus"
        ),
        f"fetch_request_of_{count}_decode": decode,
        f"fetch_response_of_{count}_encode": lambda: fetch.encode_response(topics, 17, 1),
        f"fetch_response_of_{count}_decode": lambda: fetch.decode_response(answer),
    }


def metadata_calls(partitions: int) -> dict[str, Callable[[], object]]:
    kind = tables.MetadataResponse
    topic = kind.MetadataResponseTopic
    request = frame_of(encode_call(MetadataRequest(("t",)), 1, "logbus"))
    at = parse_header(request).body_at

    def answer() -> bytes:
        rows = [
            tables.build(
                topic.MetadataResponsePartition, error_code=0, partition_index=number,
                leader_id=1, leader_epoch=0, replica_nodes=[1], isr_nodes=[1], offline_replicas=[],
            )
            for number in range(partitions)
        ]  # fmt: skip
        named = tables.build(topic, name="t", topic_id=tables.uuid(TOPIC_ID), partitions=rows)
        response = kind(brokers=[], cluster_id="c", controller_id=1, topics=[named])
        return tables.encode(ApiKey.METADATA, 12, 1, response)

    octets = frame_of(answer())
    return {
        "metadata_request_decode": lambda: tables.decode(ApiKey.METADATA, 12, request, at),
        f"metadata_response_of_{partitions}_build_and_encode": answer,
        f"metadata_response_of_{partitions}_decode": lambda: decode_call(MetadataRequest, octets),
    }


def frame_calls() -> dict[str, Callable[[], object]]:
    small = (200).to_bytes(4, "big") + bytes(200)
    receiver = FrameReceiver(1 << 20)

    def cut() -> object:
        receiver.buffer()[: len(small)] = small
        return receiver.received(len(small))

    return {"frame_of_200_bytes_cut": cut}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seconds", type=float, default=0.2, help="for each figure")
    seconds = arguments.parse_args().seconds
    calls = {
        **frame_calls(),
        **produce_calls(),
        **fetch_calls(1),
        **fetch_calls(10),
        **metadata_calls(100),
    }
    found = {name: best_us(call, seconds) for name, call in calls.items()}
    exceeded = [name for name, limit in LIMITS_US.items() if found[name] > limit]
    result = {
        "benchmark": "wire",
        "python": platform.python_version(),
        "microseconds": found,
        "limits": LIMITS_US,
        "exceeded": exceeded,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
