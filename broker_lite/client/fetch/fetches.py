"""Build a fetch request for many partitions of one leader, and split its response, without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker_lite.errors import LogbusError, NetworkError, error_for
from broker_lite.model import TopicPartition
from broker_lite.record.format import BODY_VERSION
from broker_lite.security.acls import Operation, ResourceKind
from broker_lite.security.denials import named
from broker_lite.wire.fetch import (
    BYTES_UNLIMITED,
    FLAG_CHECKS_CRC,
    FLAG_ENDS_ONLY,
    FLAG_REPAIR,
    NO_FILES,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FileOffer,
)


def fetch_request(
    rows: Iterable[tuple[str, FetchPartition]],
    wait_ms: int,
    isolation_level: int,
    *,
    min_bytes: int = 1,
    max_bytes: int = BYTES_UNLIMITED,
    is_repair: bool = False,
    ends_only: bool = False,
    files: FileOffer = NO_FILES,
) -> FetchRequest:
    """Return a fetch request. ``rows`` has each partition's topic id and its request entry.

    With ``is_repair``, after a corrupt batch, the leader checks CRCs before it answers. With
    ``ends_only``, it answers with end offsets and no records. With ``files``, a leader on this
    machine may answer with the position of the records in its segment file."""
    flags = FLAG_REPAIR if is_repair else FLAG_CHECKS_CRC
    if ends_only:
        flags |= FLAG_ENDS_ONLY
    return FetchRequest(
        _topics_of(rows),
        wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        columns_body_version=BODY_VERSION,
        flags=flags,
        files=files,
    )


def _topics_of(rows: Iterable[tuple[str, FetchPartition]]) -> list[FetchTopic]:
    by_id: dict[str, list[FetchPartition]] = {}
    for topic_id, row in rows:
        by_id.setdefault(topic_id, []).append(row)
    return [FetchTopic("", topic_id, partitions) for topic_id, partitions in by_id.items()]


def answers_of(
    answer: FetchResponse | LogbusError, topic_ids: Mapping[TopicPartition, str], user: str = ""
) -> dict[TopicPartition, FetchedPartition | LogbusError]:
    """Return the data or the error of each requested partition, the keys of ``topic_ids``.

    A partition that the response lacks gets NetworkError. If the whole fetch failed, ``answer`` is
    the error, which all partitions get. ``user`` is the client's user, for error messages."""
    if isinstance(answer, LogbusError):
        return dict.fromkeys(topic_ids, answer)
    if answer.error_code:
        return dict.fromkeys(topic_ids, error_for(answer.error_code))
    rows = {
        (topic.topic_id, row.partition): row for topic in answer.topics for row in topic.partitions
    }
    answers: dict[TopicPartition, FetchedPartition | LogbusError] = {}
    for tp, topic_id in topic_ids.items():
        row = rows.get((topic_id, tp.partition))
        if row is None:
            answers[tp] = NetworkError(f"the leader's response to a fetch lacks {tp}")
        else:
            answers[tp] = _refusal(row.error_code, user, tp.topic) if row.error_code else row
    return answers


def _refusal(code: int, user: str, topic: str) -> LogbusError:
    return named(error_for(code), user, Operation.READ, ResourceKind.TOPIC, topic)
