"""One fetch of many partitions from one leader: request rows and answers. Pure.

The fetch engine, ``read_range``, ``EndOffsetsWatch`` and the mirror use it; each handles leaders,
retries and errors itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker_lite.errors import LogbusError, NetworkError, error_for
from broker_lite.model import TopicPartition
from broker_lite.wire.fetch import FetchedPartition, FetchPartition, FetchResponse, FetchTopic

REPAIR_MS = 10_000
"""Milliseconds allowed for the repair of a corrupt batch that other replicas hold."""
LOCAL_BYTES_MIN = 256 << 10
"""Minimum bytes of a range that a broker answers with file positions. Local reads are off below
this partition fetch size."""


def topics_of(rows: Iterable[tuple[str, FetchPartition]]) -> list[FetchTopic]:
    """Return the partitions of a request by topic id, both in the order of first appearance."""
    by_id: dict[str, list[FetchPartition]] = {}
    for topic_id, row in rows:
        by_id.setdefault(topic_id, []).append(row)
    return [FetchTopic("", topic_id, found) for topic_id, found in by_id.items()]


def answers_of(
    answer: FetchResponse | LogbusError, topic_ids: Mapping[TopicPartition, str]
) -> dict[TopicPartition, FetchedPartition | LogbusError]:
    """Return each partition's rows or error.

    ``topic_ids`` names the requested partitions. A partition missing in the answer gets
    NetworkError.
    """
    if isinstance(answer, LogbusError):
        return dict.fromkeys(topic_ids, answer)
    if answer.error_code:
        return dict.fromkeys(topic_ids, error_for(answer.error_code))
    rows = {
        (topic.topic_id, row.partition): row for topic in answer.topics for row in topic.partitions
    }
    found: dict[TopicPartition, FetchedPartition | LogbusError] = {}
    for tp, topic_id in topic_ids.items():
        row = rows.get((topic_id, tp.partition))
        if row is None:
            found[tp] = NetworkError(f"the leader's answer to a fetch leaves out {tp}")
        else:
            found[tp] = error_for(row.error_code) if row.error_code else row
    return found
