"""Tests of ``fetch_request``, which builds a Fetch request, and of ``answers_of``, which splits
its response by partition."""

from __future__ import annotations

from broker_lite.client.fetch.fetches import answers_of, fetch_request
from broker_lite.errors import (
    LogbusError,
    NetworkError,
    NotLeaderError,
    RequestTimedOutError,
    UnknownServerError,
)
from broker_lite.model import TopicPartition
from broker_lite.wire.fetch import (
    READ_COMMITTED,
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchResponse,
)

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
IDS = {T0: "T", T1: "T", U0: "U"}


def row(partition: int, error_code: int = 0) -> FetchedPartition:
    return FetchedPartition(partition, error_code, 9, 9, 0, memoryview(b""), None, None, -1, -1)


def test_fetch_request_groups_partitions_by_topic_in_order() -> None:
    rows = [("U", FetchPartition(0, 5, 1)), ("T", FetchPartition(1, 6, 1))]
    rows.append(("U", FetchPartition(2, 7, 1)))
    topics = fetch_request(rows, 0, READ_COMMITTED).topics
    assert [topic.topic_id for topic in topics] == ["U", "T"]
    assert [p.fetch_offset for p in topics[0].partitions] == [5, 7]


def test_partition_missing_in_a_fetch_response_gets_a_network_error() -> None:
    answer = FetchResponse(0, 0, [FetchedTopic("", "T", [row(1), row(0, 6), row(7)])], 0)
    found = answers_of(answer, IDS)
    assert found[T1] == row(1)
    assert isinstance(found[T0], NotLeaderError)
    assert isinstance(found[U0], NetworkError) and "u-0" in str(found[U0])
    assert list(found) == [T0, T1, U0]


def test_error_of_a_whole_fetch_response_applies_to_each_partition() -> None:
    late: LogbusError = RequestTimedOutError("late")
    assert answers_of(late, IDS) == dict.fromkeys(IDS, late)
    refused = answers_of(FetchResponse(-1, 0, [], 0), IDS)
    assert all(isinstance(each, UnknownServerError) for each in refused.values())
    assert len(refused) == 3
