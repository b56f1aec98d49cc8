"""One fetch per leader for the first records of many ranges; ``read_range`` continues.

A separate round trip per small range takes seconds for a thousand ranges. If an answer here is
missing, refused or corrupt, ``read_range`` fetches its range itself. Any thread may call this
module.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from broker_lite.client.fetch.fetches import answers_of, fetch_request
from broker_lite.client.operations import requests
from broker_lite.client.transport.blocking import Pool
from broker_lite.client.transport.steps import FetchExchange, Send
from broker_lite.errors import LogbusError
from broker_lite.model import NO_EPOCH, Endpoint, TopicPartition
from broker_lite.wire.fetch import FetchedPartition, FetchPartition

WAIT_MS = 500


class RangeStart(NamedTuple):
    """The start of a range and the leader to fetch it from. ``start_epoch`` as in
    ``read_range``."""

    tp: TopicPartition
    topic_id: str
    leader_epoch: int
    leader: Endpoint
    start: int
    start_epoch: int = NO_EPOCH


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
    by_leader: dict[Endpoint, list[RangeStart]] = {}
    for item in starts:
        by_leader.setdefault(item.leader, []).append(item)
    isolation_level = requests.isolation_code(isolation)
    sends = []
    for leader, items in by_leader.items():
        rows = [(item.topic_id, _row(item, fetch_bytes)) for item in items]
        request = fetch_request(rows, WAIT_MS, isolation_level, max_bytes=fetch_bytes)
        sends.append(Send(leader, FetchExchange(request), request_timeout_ms))
    found: dict[TopicPartition, FetchedPartition] = {}
    for items, answer in zip(by_leader.values(), pool.ask_all(sends)):
        for tp, row in answers_of(answer, {item.tp: item.topic_id for item in items}).items():
            if not isinstance(row, LogbusError) and len(row.records):
                found[tp] = row
    return found


def _row(item: RangeStart, fetch_bytes: int) -> FetchPartition:
    return FetchPartition(
        item.tp.partition,
        item.start,
        fetch_bytes,
        current_leader_epoch=item.leader_epoch,
        last_fetched_epoch=item.start_epoch,
    )
