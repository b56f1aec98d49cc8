"""Tests of how a Spark batch is divided into offset ranges and tasks, and of whether it may contain
transaction markers.

Spark's KafkaOffsetRangeCalculatorSuite has the same cases.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.source_offsets import offset

from broker_lite.model import TopicPartition
from pyspark_logbus import offset_ranges as plan
from pyspark_logbus.offset_ranges import (
    Live,
    LiveTopic,
    OffsetRange,
    has_transactions,
)

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
def test_offset_range_has_transactions_only_if_it_ends_after_the_first_transaction(
    start, end, found
):
    known = Live("c", {"t": LiveTopic("id-t", {}, {0: 7}), "u": LiveTopic("id-u", {})})
    assert has_transactions(offset({"t": start}), offset({"t": end}), known) is found


def test_new_partition_may_contain_transactions_unless_it_is_read_from_latest():
    known = Live("c", {"t": LiveTopic("id-t", {}, {1: 0})})
    start, end = offset({"t": [5]}), offset({"t": [5, 2]})
    assert has_transactions(start, end, known)
    assert not has_transactions(start, end, known, "latest")
