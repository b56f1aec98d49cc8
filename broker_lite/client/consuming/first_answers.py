"""One fetch per leader for the first records of many ranges; ``read_range`` continues.

A separate round trip per small range takes seconds for a thousand ranges. If an answer here is
missing, refused or corrupt, ``read_range`` fetches its range itself. Any thread may call this
module.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from broker_lite.client.operations import requests
from broker_lite.client.transport.blocking import Pool
from broker_lite.client.transport.steps import FetchExchange, Send
from broker_lite.errors import LogbusError
from broker_lite.model import Endpoint, TopicPartition
from broker_lite.record.format import BODY_VERSION
from broker_lite.wire.fetch import (
    FLAG_CHECKS_CRC,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchTopic,
)

WAIT_MS = 500


class RangeStart(NamedTuple):
    """The start of a range and the leader to fetch it from."""

    where: TopicPartition
    topic_id: str
    leader_epoch: int
    leader: Endpoint
    start: int


def fetch_first_answers(
    starts: Iterable[RangeStart],
    *,
    pool: Pool,
    fetch_bytes: int,
    isolation: str,
    request_timeout_ms: float,
) -> dict[TopicPartition, FetchedPartition]:
    """Return the answers that hold records, by partition; at most ``fetch_bytes`` per leader.
    Name each partition at most once."""
    by_leader: dict[Endpoint, dict[str, list[RangeStart]]] = {}
    for item in starts:
        by_leader.setdefault(item.leader, {}).setdefault(item.topic_id, []).append(item)
    sends = [
        Send(leader, FetchExchange(_request(topics, fetch_bytes, isolation)), request_timeout_ms)
        for leader, topics in by_leader.items()
    ]
    found: dict[TopicPartition, FetchedPartition] = {}
    for topics, answer in zip(by_leader.values(), pool.ask_all(sends)):
        if isinstance(answer, LogbusError) or answer.error_code:
            continue
        names = {
            (topic_id, item.where.partition): item.where
            for topic_id, items in topics.items()
            for item in items
        }
        for topic in answer.topics:
            for row in topic.partitions:
                where = names.get((topic.topic_id, row.partition))
                if where is not None and not row.error_code and len(row.records):
                    found[where] = row
    return found


def _request(topics: dict[str, list[RangeStart]], fetch_bytes: int, isolation: str) -> FetchRequest:
    return FetchRequest(
        tuple(
            FetchTopic(
                "",
                topic_id,
                tuple(
                    FetchPartition(
                        item.where.partition,
                        item.start,
                        fetch_bytes,
                        current_leader_epoch=item.leader_epoch,
                    )
                    for item in items
                ),
            )
            for topic_id, items in topics.items()
        ),
        WAIT_MS,
        max_bytes=fetch_bytes,
        isolation_level=requests.isolation_code(isolation),
        columns_body_version=BODY_VERSION,
        flags=FLAG_CHECKS_CRC,
    )
