"""Tests of a group's lag in records and seconds."""

from __future__ import annotations

import pytest

from broker_lite.client.administration.group_lag import lag_of
from broker_lite.errors import LogbusError, NetworkError
from broker_lite.model import CommittedOffset, ListedOffset, TopicPartition

TP = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("committed", "first", "lag"),
    [
        (9, None, (0, 0)),
        (5, ListedOffset(5, 7_000), (4, 3.0)),
        (5, ListedOffset(5, 12_000), (4, 0)),
        (5, ListedOffset(5, -1), (4, None)),
        (5, NetworkError("gone"), (4, None)),
        # The log has only markers and aborted records after offset 8.
        (8, ListedOffset(-1), (1, 0)),
    ],
)
def test_lag_in_seconds_is_the_age_of_the_first_unread_record(
    committed: int, first: ListedOffset | LogbusError | None, lag: tuple[int, float | None]
) -> None:
    found = lag_of(
        {TP: CommittedOffset(committed)},
        starts={TP: committed},
        ends={TP: ListedOffset(9)},
        firsts={} if first is None else {TP: first},
        owners={},
        now_ms=10_000,
    )
    assert (found[TP].records, found[TP].seconds) == lag
