"""One fetch of many partitions from one leader: what is asked, and what each partition got.

Pure. The consumer's engine, ``read_range``, the watch over end offsets and the mirror fetch so;
who leads, when to retry and what to do with an error are theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker_lite.errors import LogbusError, NetworkError, error_for
from broker_lite.model import TopicPartition
from broker_lite.wire.fetch import FetchedPartition, FetchPartition, FetchResponse, FetchTopic

REPAIR_MS = 10_000
"""How long a damaged batch may take to be repaired where other replicas have it."""
LOCAL_BYTES_MIN = 256 << 10
"""The least that a broker answers with a stored range; a smaller partition fetch size reads no
files."""


def topics_of(rows: Iterable[tuple[str, FetchPartition]]) -> list[FetchTopic]:
    """The partitions of a request by topic id, both in the order of their first appearance."""
    by_id: dict[str, list[FetchPartition]] = {}
    for topic_id, row in rows:
        by_id.setdefault(topic_id, []).append(row)
    return [FetchTopic("", topic_id, found) for topic_id, found in by_id.items()]


def answers_of(
    answer: FetchResponse | LogbusError, topic_ids: Mapping[TopicPartition, str]
) -> dict[TopicPartition, FetchedPartition | LogbusError]:
    """What each partition of a fetch got: its rows, or the error of the answer or of its own.

    ``topic_ids`` of the partitions that were asked for. A partition that the answer leaves out gets
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
