"""Tests of ``read_small_ranges``, which reads small ranges of many partitions with one fetch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from support import hand_made_log as by_hand
from support.client_world import ONE, TOPIC_ID

from broker_lite.client.fetch.small_ranges import SmallRange, read_small_ranges
from broker_lite.client.received import offsets_of
from broker_lite.client.transport.pool import Pool
from broker_lite.client.transport.steps import Send
from broker_lite.errors import NetworkError
from broker_lite.model import NO_EPOCH, TopicPartition
from broker_lite.record.batch import read_header
from broker_lite.wire import fetch


class OneAnswer:
    """A pool whose leader answers a fetch of partition 0 from offset ``start`` with these batches,
    but for those that end before ``start``."""

    def __init__(self, batches: Sequence[bytes], start: int) -> None:
        wanted = [each for each in batches if read_header(each).next_offset > start]
        row = fetch.PartitionAnswer(
            0, 0, by_hand.END, by_hand.END, 0, wanted, by_hand.aborted_from(start)
        )
        parts = fetch.encode_response([fetch.TopicAnswer("", TOPIC_ID, [row])], 17, 1)
        self._frame = memoryview(b"".join(bytes(cast(Any, part)) for part in parts))[4:]
        self.requests: list[fetch.FetchRequest] = []

    def ask_all(self, sends: Sequence[Send]) -> list[Any]:
        self.requests += [cast(Any, send.exchange).request for send in sends]
        return [send.exchange.answer(self._frame) for send in sends]


def offsets_read(pool: Any, start: int, end: int, start_epoch: int = NO_EPOCH) -> list[int] | None:
    tp = TopicPartition("t", 0)
    wanted = SmallRange(tp, TOPIC_ID, by_hand.EPOCH, ONE, start, end, start_epoch)
    [found] = read_small_ranges(
        [wanted],
        pool=cast(Pool, pool),
        fetch_bytes=1 << 20,
        isolation="read_committed",
        request_timeout_ms=1000,
    )
    if found is None:
        return None
    return [offset for rows in found for offset in offsets_of(rows).tolist()]


@pytest.mark.parametrize("end", [by_hand.END, 30, 17])
@pytest.mark.parametrize("start", [0, 1, 12, 16])
def test_small_range_has_exactly_its_committed_records(start: int, end: int) -> None:
    pool = OneAnswer(by_hand.contiguous(), start)
    expected = [offset for offset in by_hand.COMMITTED if start <= offset < end]
    assert offsets_read(pool, start, end) == expected


def test_small_range_that_the_fetch_did_not_return_completely_is_left_to_the_caller() -> None:
    batches = by_hand.contiguous()
    assert offsets_read(OneAnswer(batches[:-2], 0), 0, by_hand.END) is None
    damaged = bytearray(batches[0])
    damaged[-1] ^= 1
    assert offsets_read(OneAnswer([bytes(damaged), *batches[1:]], 0), 0, by_hand.END) is None


def test_fetch_of_a_small_range_has_the_epoch_of_earlier_records_if_it_is_later() -> None:
    pool = OneAnswer(by_hand.contiguous(), 0)
    later = by_hand.EPOCH + 1
    assert offsets_read(pool, 0, 1, start_epoch=later) == [0]
    [[row]] = [topic.partitions for topic in pool.requests[0].topics]
    assert (row.current_leader_epoch, row.last_fetched_epoch) == (later, later)


def test_small_range_of_a_leader_that_does_not_answer_is_left_to_the_caller() -> None:
    class Silent:
        def ask_all(self, sends: Sequence[Send]) -> list[Any]:
            return [NetworkError("gone") for _ in sends]

    assert offsets_read(Silent(), 0, by_hand.END) is None
