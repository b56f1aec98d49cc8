"""Tests of ``Lineage``: the leader epochs of the records that a reader has read.

The reader compares them with the leader's epochs to find where the logs diverge.
"""

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
    """Return the leader epochs known to a reader that read offsets 0 to 19 from the leader of
    epoch 7.

    Offsets 0 to 9 have leader epoch 1, offsets 10 to 14 have epoch 3, and 15 to 19 have epoch 6.
    """
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
def test_reader_finds_the_offset_at_which_the_leaders_log_diverges(
    told: tuple[int, int], goes_on_at: tuple[int, int] | None
) -> None:
    assert read().cut(OffsetAndEpoch(*told), 20, 8) == goes_on_at


def test_diverging_epoch_with_an_end_offset_beyond_the_fetch_position_is_ignored() -> None:
    assert read().cut(OffsetAndEpoch(30, 5), 20, 7) is None
    assert read().cut(OffsetAndEpoch(12, 5), 20, 7) == (12, 3)


def test_seek_back_after_a_truncation_keeps_the_leader_epochs_of_earlier_records() -> None:
    lineage = read()
    lineage.begin(12, 3)
    assert lineage.last_epoch == 3
    assert lineage.cut(OffsetAndEpoch(30, 2), 12, 8) == (10, 1)
    lineage.read([batch(12, 4, 8)], 12, 8)
    assert lineage.cut(OffsetAndEpoch(30, 7), 16, 9) == (12, 3)


def test_committed_leader_epoch_without_records_is_not_a_truncation() -> None:
    """Some clients commit the current leader epoch, which may have no records in the log.

    The log has lost records only if its last epoch with records ends below the committed offset.
    """
    lineage = Lineage()
    lineage.begin(20, 5)
    assert lineage.last_epoch == 5
    assert lineage.cut(OffsetAndEpoch(20, 4), 20, 6) is None
    assert lineage.cut(OffsetAndEpoch(18, 4), 20, 6) == (18, -1)
    lineage.read([batch(20, 3, 4), batch(23, 2, 6)], 20, 6)
    assert lineage.last_epoch == 6
    assert lineage.cut(OffsetAndEpoch(40, 5), 25, 7) == (23, 4)


def test_reported_divergence_is_never_before_the_offset_at_which_the_reader_began() -> None:
    lineage = Lineage()
    lineage.begin(3, -1)
    lineage.read([batch(0, 10, 4)], 3, 4)
    assert lineage.cut(OffsetAndEpoch(30, 2), 10, 5) == (3, -1)
    lineage.forget()
    assert lineage.last_epoch == -1
