"""Tests of the limits of a micro-batch. Spark's KafkaMicroBatchSourceSuite has the same cases."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.source_offsets import ends, offset

from broker_lite.model import TopicPartition
from pyspark_logbus.admission import Admission, RangeLimits, cap, share_bytes
from pyspark_logbus.offset_ranges import ranges_between
from pyspark_logbus.offsets import SourceOffset

LONG_MAX = (1 << 63) - 1


def test_partitions_share_a_row_limit_by_backlog_and_each_gets_at_least_one_row():
    admission = Admission(RangeLimits(rows_max=10))
    start, target = offset({"t": [0, 0, 0]}), offset({"t": [101, 11, 1]})
    first = admission.next_end(0, start, target)
    assert ends(first) == [8, 1, 1]
    second = admission.next_end(1, first, target)
    assert ends(second) == [17, 2, 1]


def test_trigger_once_ignores_row_limits_and_the_maximum_delay():
    admission = Admission(RangeLimits(rows_max=10, rows_min=1000, delay_max_ms=10_000))
    admission.next_end(0, offset({"t": [0]}), offset({"t": [5]}))
    target = offset({"t": [101]})
    assert admission.next_end(1, offset({"t": [5]}), target, unlimited=True) == target


def test_row_limit_of_javas_largest_long_does_not_overflow():
    admission = Admission(RangeLimits(rows_max=LONG_MAX))
    target = offset({"t": [101, LONG_MAX - 200]})
    assert admission.next_end(0, offset({"t": [0, 1]}), target) == target


def test_batch_with_fewer_than_the_minimum_rows_waits_up_to_the_maximum_delay():
    admission = Admission(RangeLimits(rows_min=15, delay_max_ms=5_000))
    start = offset({"t": [0]})
    first = admission.next_end(0, start, offset({"t": [3]}))
    assert ends(first) == [3]
    assert admission.next_end(4_999, first, offset({"t": [17]})) is first
    assert ends(admission.next_end(4_999, first, offset({"t": [18]}))) == [18]
    second = offset({"t": [18]})
    assert admission.next_end(9_998, second, offset({"t": [19]})) is second
    assert ends(admission.next_end(9_999, second, offset({"t": [19]}))) == [19]


def test_minimum_and_maximum_rows_of_a_micro_batch_apply_together():
    admission = Admission(RangeLimits(rows_min=15, rows_max=20, delay_max_ms=5_000))
    at = offset({"t": [0]})
    at = admission.next_end(0, at, offset({"t": [10]}))
    assert ends(at) == [10]
    assert admission.next_end(1, at, offset({"t": [20]})) is at
    at = admission.next_end(2, at, offset({"t": [50]}))
    assert ends(at) == [30]
    at = admission.next_end(3, at, offset({"t": [50]}))
    assert ends(at) == [50]


def test_source_offset_is_unchanged_if_only_the_leader_of_a_partition_changed():
    start = offset({"t": [5, 7]}, epoch=1)
    target = offset({"t": [5, 7]}, epoch=2)
    assert Admission(RangeLimits()).next_end(0, start, target) is start


def test_leader_epoch_is_updated_only_for_partitions_whose_end_offset_advances():
    start = offset({"t": [5, 7]}, epoch=1)
    end = Admission(RangeLimits()).next_end(0, start, offset({"t": [6, 7]}, epoch=2))
    assert [row.leader_epoch for row in end.topics["t"].partitions.values()] == [2, 1]


def test_end_offset_below_the_start_offset_of_a_micro_batch_is_ignored():
    start = offset({"t": [5, 7]})
    assert Admission(RangeLimits()).next_end(0, start, offset({"t": [3, 7]})) is start
    assert ends(Admission(RangeLimits()).next_end(0, start, offset({"t": [3, 9]}))) == [5, 9]


def test_added_partition_starts_at_its_earliest_offset():
    start, end = offset({"t": [5]}), offset({"t": [6, 4], "u": [2]})
    found = ranges_between(start, end)
    assert [(r.topic, r.partition, r.start, r.end) for r in found] == [
        ("t", 0, 5, 6),
        ("t", 1, 0, 4),
        ("u", 0, 0, 2),
    ]


def test_option_new_partitions_latest_skips_the_existing_records_of_an_added_partition():
    start, end = offset({"t": [5]}), offset({"t": [5, 4]})
    admitted = Admission(RangeLimits(rows_max=1, new_partitions="latest")).next_end(0, start, end)
    assert ends(admitted) == [5, 4]
    assert ranges_between(start, admitted, "latest") == []


def test_recreated_topic_starts_at_its_earliest_offset():
    start = offset({"t": [5]})
    end = offset({"t": [9]}, ids={"t": "other"})
    assert [(r.start, r.end) for r in ranges_between(start, end)] == [(0, 9)]


def test_first_batch_of_a_query_is_repeated_from_its_recorded_start_offset():
    begin, end = offset({"t": [100]}), offset({"t": [120]})
    first = SourceOffset("c", end.topics, begin.topics)
    for again in (100, 110, 200):
        assert [(r.start, r.end) for r in ranges_between(offset({"t": [again]}), first)] == [
            (100, 120)
        ]
    empty = SourceOffset("c", begin.topics, begin.topics)
    assert ranges_between(offset({"t": [90]}), empty) == []
    assert Admission(RangeLimits()).next_end(0, empty, begin) is empty


def test_end_offset_follows_a_truncated_log_if_data_loss_is_allowed():
    start, now = offset({"t": [9, 9]}), offset({"t": [4, 4]})
    cut_back = frozenset([TopicPartition("t", 1)])
    end = Admission(RangeLimits()).next_end(0, start, now, cut_back=cut_back)
    assert ends(end) == [9, 4]
    assert ranges_between(start, end) == []


def test_partitions_share_a_byte_limit_in_proportion_to_their_backlog():
    a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    assert share_bytes(100, {a: (5, 60), b: (5, 40)}) is None
    assert share_bytes(100, {a: (5, 300), b: (5, 100)}) == {a: 75, b: 25}
    assert share_bytes(1, {a: (5, 300), b: (5, 100)}) == {a: 1, b: 1}
    capped = cap(offset({"t": [9, 9]}), {a: 4})
    assert ends(capped) == [4, 9]


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=1, max_size=8),
    st.integers(1, 400),
)
def test_row_limit_is_exceeded_by_at_most_one_row_per_partition(bounds, rows_max):
    start = offset({"t": [begin for begin, _ in bounds]})
    target = offset({"t": [begin + size for begin, size in bounds]})
    end = Admission(RangeLimits(rows_max=rows_max)).next_end(0, start, target)
    taken = [to - begin for to, begin in zip(ends(end), ends(start))]
    assert all(0 <= n <= size for n, (_, size) in zip(taken, bounds))
    assert sum(taken) <= rows_max + len(bounds)
    assert all(n > 0 for n, (_, size) in zip(taken, bounds) if size)
