"""Tests of the batch walker, which iterates over the batches in fetched bytes of hand-made logs.

A *void* batch has no rows for the reader: it is a control batch, empty, or of an aborted
transaction.
"""

from __future__ import annotations

import pytest
from support import hand_made_log as by_hand

from broker_lite.record import format as fmt
from broker_lite.record.batch import read_header
from broker_lite.record.walker import BadBatch, BatchWalker, LogBatch, WalkPolicy

OWN_LOG = WalkPolicy()
KAFKA_LOG = WalkPolicy(allows_gaps=True, orders_epochs=False)


def walked(batches: list[bytes], policy: WalkPolicy = OWN_LOG, offset: int = 0) -> list[LogBatch]:
    return list(BatchWalker(policy, offset).walk(b"".join(batches)))


def bad(batches: list[bytes], walker: BatchWalker) -> tuple[list[int], BadBatch]:
    """Return the base offsets of the valid batches, and the error that the walk raises after
    them."""
    good: list[int] = []
    with pytest.raises(BadBatch) as caught:
        good.extend(each.header.base_offset for each in walker.walk(b"".join(batches)))
    return good, caught.value


def row_batches(batches: list[bytes]) -> list[int]:
    """Return the base offsets of the batches with rows, even of aborted transactions."""
    headers = [read_header(each) for each in batches]
    return [h.base_offset for h in headers if h.record_count and not h.is_control]


def test_batch_walker_advances_by_the_last_offset_of_a_batch_not_by_its_record_count() -> None:
    batches = by_hand.contiguous()
    walker = BatchWalker(OWN_LOG, 0)
    found = list(walker.walk(b"".join(batches)))
    assert [bytes(each.buffer) for each in found] == batches
    assert [each.position for each in found] == [
        sum(map(len, batches[:n])) for n in range(len(batches))
    ]
    assert (walker.offset, walker.position) == (by_hand.END, sum(map(len, batches)))


def test_batch_walker_marks_control_and_empty_batches_as_without_rows() -> None:
    batches = by_hand.contiguous()
    seen = [each.header.base_offset for each in walked(batches) if not each.is_void]
    assert seen == row_batches(batches)


@pytest.mark.parametrize("policy", [OWN_LOG, KAFKA_LOG])
def test_batch_walker_marks_each_batch_of_an_aborted_transaction_as_without_rows(
    policy: WalkPolicy,
) -> None:
    batches = by_hand.contiguous() if policy is OWN_LOG else by_hand.with_gaps()
    found = walked(batches, policy._replace(aborted=by_hand.ABORTED))
    seen = [each.header.base_offset for each in found if not each.is_void]
    assert seen == [n for n in row_batches(batches) if n not in (11, 18, 29, 31, 45)]
    assert len(found) == len(batches)


def test_non_transactional_batch_is_returned_although_its_producer_has_an_aborted_transaction() -> (
    None
):
    batches = [by_hand.rows([0], pid=1), by_hand.rows([1]), by_hand.rows([2], pid=1)]
    plain = bytearray(batches[2])
    batches[2] = by_hand.finished(plain, 2, 3, attributes=0)
    found = walked(batches, OWN_LOG._replace(aborted=[(1, 0)]))
    assert [each.is_void for each in found] == [True, False, False]


def test_iteration_that_starts_in_an_aborted_transaction_skips_the_rest_of_it() -> None:
    batches = by_hand.contiguous()[6:]
    found = walked(batches, OWN_LOG._replace(aborted=by_hand.ABORTED), 18)
    assert [each.header.base_offset for each in found if not each.is_void][:2] == [24, 32]


def test_aborted_transaction_that_spans_several_buffers_is_skipped() -> None:
    whole = walked(by_hand.contiguous(), OWN_LOG._replace(aborted=by_hand.ABORTED))
    walker = BatchWalker(OWN_LOG._replace(aborted=by_hand.ABORTED), 0)
    single = [each for data in by_hand.contiguous() for each in walker.walk(data)]
    assert [each.is_void for each in single] == [each.is_void for each in whole]


def test_corrupt_abort_marker_stops_the_iteration_over_fetched_batches() -> None:
    batches = by_hand.contiguous()
    torn = bytearray(batches[7])
    torn[-3] ^= 1
    batches[7] = bytes(torn)
    walker = BatchWalker(OWN_LOG._replace(aborted=by_hand.ABORTED), 0)
    good, error = bad(batches, walker)
    assert (good[-1], error.offset) == (18, 19)
    assert walker.offset == 19


def test_offset_gap_is_corruption_in_a_logbus_log_and_allowed_in_a_kafka_log() -> None:
    batches = by_hand.with_gaps()
    good, error = bad(batches, BatchWalker(OWN_LOG, 0))
    assert (good[-1], error.offset) == (20, 21)
    assert "offsets 24 to 25, where offset 21 must follow" in error.reason
    walker = BatchWalker(KAFKA_LOG, 0)
    assert len(list(walker.walk(b"".join(batches)))) == len(batches)
    assert walker.offset == by_hand.END


@pytest.mark.parametrize("policy", [OWN_LOG, KAFKA_LOG])
def test_batch_that_overlaps_the_previous_one_is_corrupt(policy: WalkPolicy) -> None:
    batches = [by_hand.rows([0, 1]), by_hand.rows([1, 2])]
    good, error = bad(batches, BatchWalker(policy, 0))
    assert (good, error.offset) == ([0], 2)


def test_batch_below_the_fetch_offset_counts_as_corrupt_only_in_a_logbus_log() -> None:
    batches = by_hand.contiguous()[:3]
    found = walked(batches, KAFKA_LOG, 5)
    assert [each.header.base_offset for each in found] == [3, 11]
    assert bad(batches, BatchWalker(OWN_LOG, 5))[1].position == 0


def test_iteration_that_requires_a_batch_boundary_refuses_an_offset_inside_a_batch() -> None:
    batches = by_hand.contiguous()[1:3]
    assert len(walked(batches, OWN_LOG, 8)) == 2
    assert bad(batches, BatchWalker(OWN_LOG, 8, at_boundary=True))[0] == []


def test_batch_with_a_falling_or_too_high_leader_epoch_is_corrupt() -> None:
    batches = [
        by_hand.finished(bytearray(by_hand.rows([n])), n, n + 1, leader_epoch=epoch)
        for n, epoch in enumerate((4, 5, 3))
    ]
    assert bad(batches, BatchWalker(OWN_LOG, 0))[0] == [0, 1]
    assert bad(batches, BatchWalker(OWN_LOG._replace(leader_epoch=4), 0))[0] == [0]
    assert bad(batches, BatchWalker(OWN_LOG, 0, epoch=5))[0] == []
    assert len(walked(batches, OWN_LOG._replace(orders_epochs=False))) == 3


def test_batch_walker_detects_a_wrong_crc_only_if_crc_checks_are_enabled() -> None:
    batches = [by_hand.rows([0]), by_hand.rows([1]), by_hand.rows([2])]
    batches[1] = batches[1][:-2] + b"xx"
    assert len(walked(batches)) == 3
    good, error = bad(batches, BatchWalker(OWN_LOG._replace(checks_crc=True), 0))
    assert good == [0] and error.header is not None and error.header.base_offset == 1


def test_batch_walker_reports_the_full_size_of_a_partly_buffered_batch() -> None:
    first, second = by_hand.rows([0]), by_hand.rows([1], size=1000)
    walker = BatchWalker(OWN_LOG, 0)
    assert len(list(walker.walk(first + second[:-1]))) == 1
    assert (walker.position, walker.needed_bytes) == (len(first), len(second))
    assert list(walker.walk(second[:60])) == [] and walker.needed_bytes == 0
    assert len(list(walker.walk(second))) == 1 and walker.offset == 2


def test_iteration_over_batch_headers_needs_no_batch_bodies() -> None:
    batches = by_hand.contiguous(size=500)
    walker = BatchWalker(OWN_LOG, 0)
    data = b"".join(batches)
    start = len(batches[0])
    found = list(walker.walk(data[: start + fmt.HEADER_BYTES], headers_only=True))
    assert [len(each.buffer) for each in found] == [0, 0]
    assert walker.position == start + len(batches[1])


def test_batch_that_extends_beyond_the_file_range_to_read_is_corrupt() -> None:
    data = by_hand.rows([0])
    walker = BatchWalker(OWN_LOG, 0, position=7, end=7 + len(data) - 1)
    good, error = bad([data], walker)
    assert good == [] and error.position == 7 and "is cut" in error.reason
