"""Test the limits of a micro-batch (rows, bytes, availableNow), and how long planning waits.

With maxBytesPerTrigger, the planner asks the brokers at which offset a partition reaches its share
of the bytes: this is the *lookup* in the names below.
"""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace

import pytest
from support.patience import until
from support.spark_planning import DEADLINE_S, ends, fails, fill, rows, step

from broker_lite.errors import (
    DataLossError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import OffsetAndEpoch, TopicPartition
from pyspark_logbus import stream_planner


def test_max_offsets_per_trigger_applies_after_a_restart_but_not_with_trigger_once(
    planner, bus, make_topic
):
    topic = make_topic(101, 11, 1)
    given = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "10"}
    plan = planner(**given)
    start = plan.initial_offset()
    first = until(
        lambda: plan.latest_offset(start, unlimited=False),
        lambda end: end != start and sum(ends(end, topic)) == 10,
    )
    assert ends(first, topic) == [8, 1, 1]
    restarted = planner(**given)
    assert ends(step(restarted, first), topic) == [17, 2, 1]
    assert ends(step(planner(**given), first, unlimited=True), topic) == [101, 11, 1]


def test_query_progress_reports_the_lag_that_remains_after_the_batch(planner, make_topic):
    """A query that has read everything has lag 0, as in offsetsBehindLatest of Spark's Kafka
    source."""
    topic = make_topic(8, 2)
    plan = planner(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="5")
    at, lags = plan.initial_offset(), []
    while sum(ends(at, topic)) < 10:
        at = step(plan, at)
        report = plan.report()
        lags.append(report["lagAfterBatchTotal"])
        assert report["lagAfterBatchTotal"] == 10 - sum(ends(at, topic))
        assert [report["lagAfterBatch"][topic][p] for p in "01"] == [
            8 - ends(at, topic)[0],
            2 - ends(at, topic)[1],
        ]
    assert len(lags) >= 2
    assert lags[-1] == 0
    # A trigger without new records still reports lag 0.
    assert plan.latest_offset(at, unlimited=False) == at
    assert plan.report()["lagAfterBatchTotal"] == 0


def test_max_bytes_per_trigger_is_rounded_to_whole_batches(planner, bus, make_topic):
    topic = make_topic(0, 0)
    with bus.producer(linger_ms=0) as producer:
        for _ in range(20):  # Each record becomes a batch of its own.
            for partition in (0, 1):
                producer.send(topic, b"x" * 1000, partition=partition).result()
    plan = planner(subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger="8000")
    at, taken = plan.initial_offset(), []
    while sum(ends(at, topic)) < 40:
        end = step(plan, at)
        taken.append(sum(ends(end, topic)) - sum(ends(at, topic)))
        at = end
    assert sum(taken) == 40
    assert all(1 <= rows <= 12 for rows in taken[1:]), taken
    # A micro-batch has at least one batch, even with a tiny limit.
    tiny = planner(subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger="1")
    assert sum(ends(step(tiny, tiny.initial_offset()), topic)) == 2


def test_available_now_stops_at_the_log_ends_that_it_saw_at_its_start(planner, bus, make_topic):
    topic = make_topic(15)
    plan = planner(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="5")
    plan.prepare_for_available_now()
    at, count = plan.initial_offset(), 0
    while True:
        end = plan.latest_offset(at, unlimited=False)
        if end == at:
            break
        if not count:
            fill(bus, topic, 7)
            bus.admin.create_partitions(topic, 2)
        at, count = end, count + 1
    assert (count, ends(at, topic)) == (3, [15])


def test_available_now_with_a_byte_limit_reads_all_records_although_offset_lookups_fail(
    planner, bus, make_topic
):
    """A slow or failed lookup must not end the run early.

    Spark ends an availableNow run as soon as a planning call returns no new offsets.
    """
    topic = make_topic(0)
    with bus.producer(linger_ms=0) as producer:
        for _ in range(20):  # Each record becomes a batch of its own.
            producer.send(topic, b"x" * 1000).result()
    plan = planner(
        subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger="5000",
        minOffsetsPerTrigger="100", maxTriggerDelay="1h",
    )  # fmt: skip
    plan.prepare_for_available_now()
    answers = plan._reader.admin.offsets_for_bytes
    fails = itertools.cycle([True, False])

    def late(ranges, topic_ids):
        time.sleep(3 * stream_planner.PATIENCE_S)
        if next(fails):
            raise RequestTimedOutError("late")
        return answers(ranges, topic_ids)

    plan._reader.admin.offsets_for_bytes = late
    at, count = plan.initial_offset(), 0
    while (end := plan.latest_offset(at, unlimited=False)) != at:
        at, count = end, count + 1
    assert ends(at, topic) == [20]
    assert count >= 4


def test_max_bytes_per_trigger_counts_only_bytes_of_records_that_are_not_deleted(
    planner, bus, make_topic
):
    topic = make_topic(20)
    given = {"subscribe": topic, "startingOffsets": "earliest", "failOnDataLoss": "false"}
    start = planner(**given).initial_offset()
    bus.admin.delete_records({TopicPartition(topic, 0): 8})
    plan = planner(**given, maxBytesPerTrigger="100000")
    assert ends(step(plan, start), topic) == [20]


@pytest.mark.parametrize("counts", [(3,), (3, 0), (9, 9)])
def test_available_now_fails_if_one_of_its_topics_is_deleted_during_the_run(
    planner, bus, make_topic, counts
):
    topic = make_topic(5, 5)
    plan = planner(
        subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="2",
        failOnDataLoss="false",
    )  # fmt: skip
    plan.prepare_for_available_now()
    first = step(plan, plan.initial_offset())
    bus.delete_topic(topic)
    make_topic(*counts, name=topic)
    said = fails(lambda: plan.latest_offset(first, unlimited=False), DataLossError)
    assert "was deleted before this run with Trigger.AvailableNow read it to the end" in said


def test_available_now_fails_if_a_log_now_ends_before_the_planned_end_offset(
    planner, make_topic, monkeypatch
):
    topic = make_topic(5)
    plan = planner(
        subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="2",
        failOnDataLoss="false",
    )  # fmt: skip
    plan.prepare_for_available_now()
    first = step(plan, plan.initial_offset())
    live = plan._live.now()
    shorter = replace(live.topics[topic], ends={0: OffsetAndEpoch(3, 9)})
    monkeypatch.setattr(plan._live, "now", lambda: replace(live, topics={topic: shorter}))
    with pytest.raises(DataLossError, match=rf"{topic}-0 ends at offset 3, .* read up to 5"):
        plan.latest_offset(first, unlimited=False)


def test_planning_with_a_byte_limit_does_not_wait_for_a_slow_offset_lookup(planner, make_topic):
    """Spark calls the planner every 12 ms. During a call, the query's other sources wait."""
    topic = make_topic(5)
    plan = planner(subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger="100000")
    start = plan.initial_offset()
    until(plan._live.now, lambda live: live is not None and live.is_complete())
    answers, asked, answer = (
        plan._reader.admin.offsets_for_bytes, threading.Event(), threading.Event(),
    )  # fmt: skip

    def blocked(ranges, topic_ids):
        asked.set()
        assert answer.wait(DEADLINE_S)
        return answers(ranges, topic_ids)

    plan._reader.admin.offsets_for_bytes = blocked
    first = plan.latest_offset(start, unlimited=False)
    assert asked.wait(DEADLINE_S)
    # Both planning calls return while the lookup still waits for its response.
    assert ends(first, topic) == ends(plan.latest_offset(start, unlimited=False), topic) == [0]
    answer.set()
    end = until(
        lambda: plan.latest_offset(start, unlimited=False), lambda end: ends(end, topic) == [5]
    )
    assert rows(plan, start, end) == [(0, 0, 5)]


def test_max_trigger_delay_does_not_begin_anew_after_an_offset_lookup(planner, make_topic):
    """Regression: the batch waited for maxTriggerDelay once more after the lookup."""
    topic = make_topic(5)
    plan = planner(
        subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger="100000",
        minOffsetsPerTrigger="100", maxTriggerDelay="1h",
    )  # fmt: skip
    start = plan.initial_offset()
    until(plan._live.now, lambda live: live is not None and live.is_complete())
    answers, answer = plan._reader.admin.offsets_for_bytes, threading.Event()

    def blocked(ranges, topic_ids):
        assert answer.wait(DEADLINE_S)
        return answers(ranges, topic_ids)

    plan._reader.admin.offsets_for_bytes = blocked
    # Spark runs the first batch even without rows.
    first = plan.latest_offset(start, unlimited=False)
    assert ends(first, topic) == [0]
    answer.set()
    end = until(
        lambda: plan.latest_offset(first, unlimited=False), lambda end: ends(end, topic) == [5]
    )
    # The delay counts from the batch's start.
    assert plan.latest_offset(end, unlimited=False) == end


def test_planning_of_a_byte_limited_batch_retries_a_failed_offset_lookup(planner, bus, make_topic):
    """The broker answers the lookup as if the topic were deleted. No new records arrive afterwards
    that would cause another lookup.
    """
    topic = make_topic(5)
    plan = planner(subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger="100000")
    first = until(
        lambda: plan.latest_offset(plan.initial_offset(), unlimited=False),
        lambda end: ends(end, topic) == [5],
    )
    fill(bus, topic, 3)
    until(plan._live.now, lambda live: live.topics[topic].ends[0].offset == 8)
    answers, failed = plan._reader.admin.offsets_for_bytes, []

    def gone_once(ranges, topic_ids):
        if not failed:
            failed.append(ranges)
            raise UnknownTopicOrPartitionError("just deleted")
        return answers(ranges, topic_ids)

    plan._reader.retrying = lambda call: call()
    plan._reader.admin.offsets_for_bytes = gone_once
    assert ends(step(plan, first), topic) == [8]
    assert failed


def test_slow_offset_lookup_of_a_deleted_topic_does_not_delay_other_topics(
    planner, bus, make_topic
):
    """The lookup for the deleted topic waits until its request times out."""
    gone, stays = make_topic(5), make_topic(5)
    plan = planner(
        subscribePattern=f"{gone}|{stays}", startingOffsets="earliest", failOnDataLoss="false",
        maxBytesPerTrigger="100000",
    )  # fmt: skip
    first = until(
        lambda: plan.latest_offset(plan.initial_offset(), unlimited=False),
        lambda end: all(ends(end, topic) == [5] for topic in (gone, stays)),
    )
    answers, asked, over = plan._reader.admin.offsets_for_bytes, threading.Event(), []

    def waits(ranges, topic_ids):
        if TopicPartition(gone, 0) not in ranges:
            return answers(ranges, topic_ids)
        asked.set()
        over.append(threading.Event())
        assert over[-1].wait(DEADLINE_S)
        raise UnknownTopicOrPartitionError("still not there")

    plan._reader.admin.offsets_for_bytes = waits
    fill(bus, gone, 1)
    fill(bus, stays, 3)
    until(lambda: plan.latest_offset(first, unlimited=False), lambda _: asked.is_set())
    bus.delete_topic(gone)
    try:
        assert ends(step(plan, first), stays) == [8]
    finally:
        for each in over:
            each.set()


def test_offset_lookup_for_a_byte_limit_uses_the_new_id_of_a_recreated_topic(
    planner, bus, make_topic
):
    """Regression: the lookup always sent the id of the deleted topic, so the query stopped."""
    topic = make_topic(5, 5)
    plan = planner(
        subscribe=topic, startingOffsets="earliest", failOnDataLoss="false",
        maxBytesPerTrigger="100000",
    )  # fmt: skip
    first = until(
        lambda: plan.latest_offset(plan.initial_offset(), unlimited=False),
        lambda end: ends(end, topic) == [5, 5],
    )
    bus.delete_topic(topic)
    make_topic(3, name=topic)
    end = until(
        lambda: plan.latest_offset(first, unlimited=False),
        # The planner may see the deleted topic before the recreated topic.
        lambda end: topic in end["topics"] and ends(end, topic) == [3],
    )
    assert rows(plan, first, end) == [(0, 0, 3)]


def test_restarted_available_now_query_repeats_its_batch_before_it_reads_new_partitions(
    planner, bus, make_topic
):
    topic = make_topic(5)
    given = {"subscribe": topic, "startingOffsets": "earliest"}
    plan = planner(**given)
    plan.prepare_for_available_now()
    start = plan.initial_offset()
    planned = step(plan, start)
    bus.admin.create_partitions(topic, 3)
    fill(bus, topic, 0, 2, 2)
    restarted = planner(**given)
    restarted.prepare_for_available_now()
    assert rows(restarted, restarted.initial_offset(), planned) == [(0, 0, 5)]
    rest = step(restarted, planned)
    assert ends(rest, topic) == [5, 2, 2]
    assert rows(restarted, planned, rest) == [(1, 0, 2), (2, 0, 2)]
