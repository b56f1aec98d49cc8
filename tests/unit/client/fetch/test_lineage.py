"""The offset at which a log diverges from the records that a reader has read."""

from __future__ import annotations

import pytest

from broker_lite.client.arrays import binary_of
from broker_lite.client.fetch.lineage import Lineage
from broker_lite.model import OffsetAndEpoch
from broker_lite.record import arrow
from broker_lite.record.arrow import Columns
from broker_lite.record.batch import read_header, stamp
from broker_lite.record.walker import LogBatch


def batch(base: int, count: int, epoch: int) -> LogBatch:
    columns = Columns(count, None, binary_of([b"."] * count))
    buffer = bytearray(arrow.encode(columns, timestamp_ms=99))
    stamp(buffer, read_header(buffer), base, epoch)
    return LogBatch(read_header(buffer), memoryview(buffer))


def read() -> Lineage:
    """Return a lineage with 0 to 10 of epoch 1, 10 to 15 of epoch 3, 15 to 20 of epoch 6; served in
    leader epoch 7."""
    lineage = Lineage()
    lineage.begin(0, -1)
    lineage.read([batch(0, 10, 1), batch(10, 5, 3)], 0, 7)
    lineage.read([batch(15, 5, 6)], 15, 7)
    return lineage


@pytest.mark.parametrize(
    ("told", "goes_on_at"),
    [
        ((18, 6), (18, 6)),
        ((12, 5), (12, 3)),
        ((30, 5), (15, 3)),
        ((30, 2), (10, 1)),
        ((4, 1), (4, 1)),
        ((0, 0), (0, -1)),
        ((30, 0), (0, -1)),
        ((20, 6), None),
        ((25, 9), None),
    ],
    ids=str,
)
def test_logs_diverge_at_the_epoch_end_or_the_readers_next_epoch(
    told: tuple[int, int], goes_on_at: tuple[int, int] | None
) -> None:
    assert read().cut(OffsetAndEpoch(*told), 20, 8) == goes_on_at


def test_divergence_within_the_serving_leader_epoch_is_a_flipped_bit() -> None:
    assert read().cut(OffsetAndEpoch(30, 5), 20, 7) is None
    assert read().cut(OffsetAndEpoch(12, 5), 20, 7) == (12, 3)


def test_cut_keeps_the_earlier_epochs() -> None:
    lineage = read()
    lineage.begin(12, 3)
    assert lineage.last_epoch == 3
    assert lineage.cut(OffsetAndEpoch(30, 2), 12, 8) == (10, 1)
    lineage.read([batch(12, 4, 8)], 12, 8)
    assert lineage.cut(OffsetAndEpoch(30, 7), 16, 9) == (12, 3)


def test_committed_epoch_without_records_is_no_truncation() -> None:
    """Some clients commit their leader's epoch, which may have no records. This is no loss unless
    the log ends before the offset."""
    lineage = Lineage()
    lineage.begin(20, 5)
    assert lineage.last_epoch == 5
    assert lineage.cut(OffsetAndEpoch(20, 4), 20, 6) is None
    assert lineage.cut(OffsetAndEpoch(18, 4), 20, 6) == (18, -1)
    lineage.read([batch(20, 3, 4), batch(23, 2, 6)], 20, 6)
    assert lineage.last_epoch == 6
    assert lineage.cut(OffsetAndEpoch(40, 5), 25, 7) == (23, 4)


def test_divergence_is_not_before_the_start_within_a_batch() -> None:
    lineage = Lineage()
    lineage.begin(3, -1)
    lineage.read([batch(0, 10, 4)], 3, 4)
    assert lineage.cut(OffsetAndEpoch(30, 2), 10, 5) == (3, -1)
    lineage.forget()
    assert lineage.last_epoch == -1
