"""Read small offset ranges of many partitions with one fetch from each leader, for Spark's tasks
and the console.

A thousand ranges would take seconds with ``read_range``, which makes a round trip for each. A
``FetchPosition`` builds each range's part of the request and checks its answer, as for
``read_range``. The caller reads a range with ``read_range`` if the common fetch does not return it
completely. Any thread may call this module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from broker_lite.client.fetch.fetches import answers_of, fetch_request
from broker_lite.client.fetch.position import Evaluation, FetchPosition
from broker_lite.client.fetch.range_reader import WAIT_MS, FetchedBatch
from broker_lite.client.operations import offset_requests
from broker_lite.client.received import Slice, WalkResult, decode_all
from broker_lite.client.transport.pool import Pool
from broker_lite.client.transport.steps import FetchExchange, Send
from broker_lite.errors import LogbusError
from broker_lite.model import NO_EPOCH, Endpoint, TopicPartition
from broker_lite.wire.fetch import FetchedPartition


class SmallRange(NamedTuple):
    """The offsets ``start`` to ``end`` (exclusive) of a partition, and its leader.

    ``read_range`` explains ``start_epoch``."""

    tp: TopicPartition
    topic_id: str
    leader_epoch: int
    leader: Endpoint
    start: int
    end: int
    start_epoch: int = NO_EPOCH


def read_small_ranges(
    ranges: Sequence[SmallRange],
    *,
    pool: Pool,
    fetch_bytes: int,
    isolation: str,
    request_timeout_ms: float,
) -> Iterator[list[FetchedBatch] | None]:
    """Yield the decoded batches of each range, in the order of ``ranges``.

    Yield None for a range that was not fetched completely, or whose batches are corrupt. The one
    request to each leader asks for at most ``fetch_bytes``. ``ranges`` may contain each partition
    only once."""
    positions: dict[TopicPartition, FetchPosition] = {}
    by_leader: dict[Endpoint, list[SmallRange]] = {}
    for item in ranges:
        position = FetchPosition(item.tp, item.topic_id, item.start, last_epoch=item.start_epoch)
        positions[item.tp] = position
        by_leader.setdefault(item.leader, []).append(item)
    isolation_level = offset_requests.isolation_code(isolation)
    sends = []
    for leader, items in by_leader.items():
        rows = [positions[item.tp].request(item.leader_epoch, fetch_bytes) for item in items]
        request = fetch_request(rows, WAIT_MS, isolation_level, max_bytes=fetch_bytes)
        sends.append(Send(leader, FetchExchange(request), request_timeout_ms))
    answers: dict[TopicPartition, FetchedPartition | LogbusError] = {}
    for items, answer in zip(by_leader.values(), pool.ask_all(sends)):
        answers |= answers_of(answer, {item.tp: item.topic_id for item in items})
    for item in ranges:
        yield _rows(item, positions[item.tp].evaluate(answers.pop(item.tp)))


def _rows(item: SmallRange, evaluation: Evaluation) -> list[FetchedBatch] | None:
    if not isinstance(evaluation, WalkResult) or evaluation.next_offset < item.end:
        return None
    rows = []
    for item_rows in decode_all([[*evaluation.batches]], item.tp, item.start, item.end):
        if not isinstance(item_rows, Slice):
            return None
        rows.append(item_rows)
    return rows
