"""Tests of the planning of a query's batches: offset ranges, limits of rows and bytes, data loss.

Spark's KafkaOffsetRangeCalculatorSuite and KafkaMicroBatchSourceSuite have the same cases.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_lite.model import OffsetAndEpoch, TopicPartition
from pyspark_logbus import offset_ranges as plan
from pyspark_logbus.offset_ranges import (
    Admission,
    Live,
    LiveTopic,
    OffsetRange,
    RangeLimits,
    has_transactions,
)
from pyspark_logbus.offsets import SourceOffset, TopicOffsets
from pyspark_logbus.query_options import Topics

LONG_MAX = (1 << 63) - 1


def ranges(*bounds):
    return [OffsetRange("topic", p, start, end) for p, (start, end) in enumerate(bounds)]


def cuts(found):
    """Return the (start, end) offsets of the split ranges, by partition."""
    by_partition = {}
    for item in found:
        by_partition.setdefault(item.partition, []).append((item.start, item.end))
    return by_partition


@pytest.mark.parametrize(
    ("name", "minimum", "maximum", "given", "expected"),
    [
        ("N to N", 0, 0, [(1, 2), (1, 2)], [[(1, 2)], [(1, 2)]]),
        ("empty ranges ignored", 0, 0, [(1, 2), (1, 1)], [[(1, 2)]]),
        ("min 3: N to N", 3, 0, [(1, 2)] * 3, [[(1, 2)]] * 3),
        ("min 4: 1 to N", 4, 0, [(1, 5)], [[(1, 2), (2, 3), (3, 4), (4, 5)]]),
        (
            "min 4: N skewed",
            4,
            0,
            [(1, 5), (1, 21)],
            [[(1, 5)], [(1, 7), (7, 14), (14, 21)]],
        ),
        (
            "SPARK-30656 empty ignored, rest split",
            4,
            0,
            [(1, 1), (1, 5), (1, 21)],
            [[], [(1, 5)], [(1, 7), (7, 14), (14, 21)]],
        ),
        (
            "SPARK-30656 very skewed",
            4,
            0,
            [(1, 2), (1, 1001)],
            [[(1, 2)], [(1, 334), (334, 667), (667, 1001)]],
        ),
        ("min below the number of partitions", 4, 0, [(1, 5)] * 5, [[(1, 5)]] * 5),
        ("min 3 inexact", 3, 0, [(1, 11)], [[(1, 4), (4, 7), (7, 11)]]),
        (
            "SPARK-28489 never drop offsets",
            6,
            0,
            [(0, 10), (0, 10), (0, 1)],
            [[(0, 3), (3, 6), (6, 10)], [(0, 3), (3, 6), (6, 10)], [(0, 1)]],
        ),
        (
            "SPARK-36576 0 small 3 large",
            9,
            0,
            [(0, 10000), (0, 15000), (0, 20000)],
            [
                [(0, 5000), (5000, 10000)],
                [(0, 5000), (5000, 10000), (10000, 15000)],
                [(0, 5000), (5000, 10000), (10000, 15000), (15000, 20000)],
            ],
        ),
        (
            "SPARK-36576 1 small 2 large",
            6,
            0,
            [(0, 500), (0, 12000), (0, 15001)],
            [
                [(0, 500)],
                [(0, 6000), (6000, 12000)],
                [(0, 5000), (5000, 10000), (10000, 15001)],
            ],
        ),
        (
            "SPARK-36576 2 small 1 large",
            6,
            0,
            [(0, 1), (0, 1), (0, 10000)],
            [[(0, 1)], [(0, 1)], [(0, 2500), (2500, 5000), (5000, 7500), (7500, 10000)]],
        ),
        ("SPARK-49259 max 4 fits", 0, 4, [(1, 5)], [[(1, 5)]]),
        ("SPARK-49259 max 4", 0, 4, [(1, 6)], [[(1, 3), (3, 6)]]),
        (
            "SPARK-49259 max 20, three partitions",
            0,
            20,
            [(1, 40), (1, 50), (1, 60)],
            [
                [(1, 20), (20, 40)],
                [(1, 17), (17, 33), (33, 50)],
                [(1, 20), (20, 40), (40, 60)],
            ],
        ),
        ("SPARK-49259 min 1 max 20", 1, 20, [(1, 40)], [[(1, 20), (20, 40)]]),
        (
            "SPARK-49259 min 4 max 20",
            4,
            20,
            [(0, 40)],
            [[(0, 10), (10, 20), (20, 30), (30, 40)]],
        ),
    ],
)
def test_offset_ranges_are_split_as_in_sparks_kafka_connector(
    name, minimum, maximum, given, expected
):
    found = cuts(plan.split_ranges(ranges(*given), minimum, maximum))
    assert found == {p: cut for p, cut in enumerate(expected) if cut}, name


@given(
    st.lists(st.integers(0, 10_000), max_size=12),
    st.integers(0, 40),
    st.integers(0, 5_000),
    st.integers(0, 8),
)
def test_split_ranges_cover_every_offset_once(sizes, minimum, maximum, tasks_max):
    given_ranges = ranges(*((3, 3 + size) for size in sizes))
    parts = plan.split_ranges(given_ranges, minimum, maximum)
    tasks = plan.join_ranges(parts, tasks_max)
    read = sorted(item for task in tasks for item in task)
    by_partition = cuts(read)
    for item in given_ranges:
        cut = by_partition.get(item.partition, [])
        assert [start for start, _ in cut] == ([item.start] if item.size else []) + [
            end for _, end in cut[:-1]
        ]
        assert not cut or cut[-1][1] == item.end
    if maximum and not tasks_max:
        assert all(item.size <= maximum for item in read)
    if tasks_max:
        assert len(tasks) <= tasks_max or len(tasks) == 0


def test_small_offset_ranges_are_grouped_into_balanced_tasks_in_partition_order():
    parts = plan.split_ranges(ranges((0, 100), (0, 10), (0, 10), (0, 90)), 0, 50)
    tasks = plan.join_ranges(parts, 2)
    assert sorted(sum(item.size for item in task) for task in tasks) == [105, 105]
    for task in tasks:
        assert list(task) == sorted(task)


def test_small_ranges_share_a_task_and_large_ranges_do_not():
    large = plan.TASK_BYTES
    few = [item._replace(stored_bytes=10) for item in ranges(*[(0, 5)] * plan.TASKS_MIN)]
    assert plan.join_small_ranges(few) == [(item,) for item in few]
    many = [item._replace(stored_bytes=100) for item in ranges(*[(0, 5)] * 60)]
    mixed = [item._replace(stored_bytes=large if item.partition in (3, 9) else 100)
             for item in many]  # fmt: skip
    tasks = plan.join_small_ranges(mixed)
    assert len(tasks) == plan.TASKS_MIN
    assert [task[0].partition for task in tasks if task[0].stored_bytes == large] == [3, 9]
    assert all(len(task) == 1 for task in tasks if task[0].stored_bytes == large)
    assert sorted(item for task in tasks for item in task) == mixed
    # Sixty ranges of a quarter of TASK_BYTES need at least fifteen tasks.
    much = [item._replace(stored_bytes=large // 4) for item in many]
    assert len(plan.join_small_ranges(much)) >= 15
    # If the brokers report no sizes, each range is a task.
    assert len(plan.join_small_ranges(ranges(*[(0, 5)] * 60))) == 60


def test_stored_bytes_of_a_range_are_counted_from_its_start_offset():
    given = ranges((0, 100), (50, 60), (0, 10))
    reached = ((50, 4_000), (80, 3_000), (0, 0))
    reach = {TopicPartition(item.topic, item.partition): at for item, at in zip(given, reached)}
    found = plan.with_stored_bytes(given, reach)
    assert [item.stored_bytes for item in found] == [8_000, 1_000, -1]
    parts = plan.split_ranges(found[:1], 0, 25)
    assert [part.stored_bytes for part in parts] == [2_000] * 4


def offset(topics, *, cluster="c", ids=None, epoch=0):
    return SourceOffset(
        cluster,
        {
            name: TopicOffsets(
                (ids or {}).get(name, f"id-{name}"),
                {p: OffsetAndEpoch(o, epoch) for p, o in enumerate(ends)},
            )
            for name, ends in topics.items()
        },
    )


def live(topics, *, ids=None, epoch=0):
    return Live(
        "c",
        {
            name: LiveTopic(
                (ids or {}).get(name, f"id-{name}"),
                {p: OffsetAndEpoch(o, epoch) for p, o in enumerate(ends)},
            )
            for name, ends in topics.items()
        },
    )


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        ([5, 9], [7, 9], False),
        ([5, 9], [8, 9], True),
        # Partition 1 of ``t`` has no known transaction, so its range has none.
        ([5, 0], [7, 9], False),
        # The batch begins after the first transaction marker, but it may contain later ones.
        ([20, 9], [21, 9], True),
    ],
)
def test_batch_has_transactions_only_if_it_ends_after_the_first_transaction_of_a_partition(
    start, end, found
):
    known = Live("c", {"t": LiveTopic("id-t", {}, {0: 7}), "u": LiveTopic("id-u", {})})
    assert has_transactions(offset({"t": start}), offset({"t": end}), known) is found


def test_batch_with_a_new_partition_has_transactions_unless_the_partition_starts_at_latest():
    known = Live("c", {"t": LiveTopic("id-t", {}, {1: 0})})
    start, end = offset({"t": [5]}), offset({"t": [5, 2]})
    assert has_transactions(start, end, known)
    assert not has_transactions(start, end, known, "latest")


def ends(at, name="t"):
    return [at.topics[name].partitions[p].offset for p in sorted(at.topics[name].partitions)]


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


def test_new_leader_epoch_is_stored_only_with_an_end_offset_that_advances():
    start = offset({"t": [5, 7]}, epoch=1)
    end = Admission(RangeLimits()).next_end(0, start, offset({"t": [6, 7]}, epoch=2))
    assert [row.leader_epoch for row in end.topics["t"].partitions.values()] == [2, 1]


def test_end_offset_below_the_start_of_a_partition_is_ignored():
    start = offset({"t": [5, 7]})
    assert Admission(RangeLimits()).next_end(0, start, offset({"t": [3, 7]})) is start
    assert ends(Admission(RangeLimits()).next_end(0, start, offset({"t": [3, 9]}))) == [5, 9]


def test_added_partition_starts_at_its_earliest_offset():
    start, end = offset({"t": [5]}), offset({"t": [6, 4], "u": [2]})
    found = plan.ranges_between(start, end)
    assert [(r.topic, r.partition, r.start, r.end) for r in found] == [
        ("t", 0, 5, 6),
        ("t", 1, 0, 4),
        ("u", 0, 0, 2),
    ]


def test_added_partition_with_new_partitions_latest_starts_at_its_first_known_end_offset():
    start, end = offset({"t": [5]}), offset({"t": [5, 4]})
    admitted = Admission(RangeLimits(rows_max=1, new_partitions="latest")).next_end(0, start, end)
    assert ends(admitted) == [5, 4]
    assert plan.ranges_between(start, admitted, "latest") == []


def test_recreated_topic_starts_at_its_earliest_offset():
    start = offset({"t": [5]})
    end = offset({"t": [9]}, ids={"t": "other"})
    assert [(r.start, r.end) for r in plan.ranges_between(start, end)] == [(0, 9)]


def test_repeated_first_batch_has_the_same_rows_although_the_start_offset_has_changed():
    begin, end = offset({"t": [100]}), offset({"t": [120]})
    first = SourceOffset("c", end.topics, begin.topics)
    for again in (100, 110, 200):
        assert [(r.start, r.end) for r in plan.ranges_between(offset({"t": [again]}), first)] == [
            (100, 120)
        ]
    empty = SourceOffset("c", begin.topics, begin.topics)
    assert plan.ranges_between(offset({"t": [90]}), empty) == []
    assert Admission(RangeLimits()).next_end(0, empty, begin) is empty


def find_losses(start, now, topics=None, seen=()):
    return plan.find_losses(start, now, topics or Topics(names=tuple(start.topics)), dict(seen))


def test_partition_with_an_unknown_end_offset_has_neither_loss_nor_new_data():
    start = offset({"t": [5, 6]})
    now = live({"t": [-1, 9, -1]})
    assert find_losses(start, now) == []
    assert not now.is_complete()
    assert ends(Admission(RangeLimits()).next_end(0, start, now.offset())) == [5, 9]


def test_end_offset_follows_a_truncated_log_back_if_data_loss_is_allowed():
    start, now = offset({"t": [9, 9]}), offset({"t": [4, 4]})
    cut_back = frozenset([TopicPartition("t", 1)])
    end = Admission(RangeLimits()).next_end(0, start, now, cut_back=cut_back)
    assert ends(end) == [9, 4]
    assert plan.ranges_between(start, end) == []


def test_lost_range_of_a_deleted_topic_ends_at_its_last_known_end_offset():
    found = find_losses(offset({"t": [5]}), live({}), seen={"id-t": {0: 8}})
    assert [(loss.first, loss.end, loss.rows) for loss in found] == [(5, 8, 3)]
    assert "t-0 [5, 8)" in str(found[0])


def test_error_for_data_loss_names_the_lost_offset_ranges():
    start = offset({"gone": [3], "new": [4], "less": [5, 6], "fine": [7], "short": [8]})
    now = live({"new": [9], "less": [5], "fine": [7], "short": [2]}, ids={"new": "other"})
    found = {(loss.kind, loss.topic, loss.partition): loss for loss in find_losses(start, now)}
    assert set(found) == {
        ("gone", "gone", 0),
        ("recreated", "new", 0),
        ("gone", "less", 1),
        ("regressed", "short", 0),
    }
    regressed = found["regressed", "short", 0]
    assert (regressed.first, regressed.end, regressed.rows) == (2, 8, 6)
    message = str(plan.data_loss(found.values()))
    assert message.startswith("[LOGBUS_DATA_LOSS]")
    for said in ("offset was changed from 8 to 2", "id-new, now other", "failOnDataLoss=false"):
        assert said in message


@pytest.mark.parametrize(
    ("topics", "dropped"),
    [
        (Topics(names=("kept",)), [("left", 0), ("left", 1)]),
        (Topics(pattern="kep."), [("left", 0), ("left", 1)]),
        (
            Topics(partitions=(TopicPartition("kept", 0), TopicPartition("left", 1))),
            [("left", 0)],
        ),
    ],
)
def test_unsubscribed_partition_is_not_reported_as_deleted(topics, dropped):
    found = find_losses(offset({"kept": [3], "left": [5, 6]}), live({"kept": [3]}), topics)
    found = [loss for loss in found if loss.kind != "gone"]
    assert [(loss.kind, loss.topic, loss.partition) for loss in found] == [
        ("unsubscribed", *partition) for partition in dropped
    ]
    said = str(plan.data_loss(found))
    assert f"no longer subscribes to it, but to {topics.describe()}" in said
    assert "Subscribe to them again, or set failOnDataLoss=false to drop them" in said
    assert "gone" not in said
    assert "deleted" not in said


def test_recreated_topic_is_detected_even_if_its_log_is_longer_than_the_former_log():
    start = offset({"t": [5]})
    now = live({"t": [500]}, ids={"t": "other"})
    assert [loss.kind for loss in find_losses(start, now)] == ["recreated"]


def test_partitions_share_a_byte_limit_in_proportion_to_their_backlog():
    a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    assert plan.share_bytes(100, {a: (5, 60), b: (5, 40)}) is None
    assert plan.share_bytes(100, {a: (5, 300), b: (5, 100)}) == {a: 75, b: 25}
    assert plan.share_bytes(1, {a: (5, 300), b: (5, 100)}) == {a: 1, b: 1}
    capped = plan.cap(offset({"t": [9, 9]}), {a: 4})
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
