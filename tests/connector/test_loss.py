"""Test lost records: an error names their offset ranges, or failOnDataLoss=false skips them."""

from __future__ import annotations

import itertools
import json

import pytest
from support.log_batches import iter_headers, segments_of
from support.patience import until
from support.spark_planning import begin_query, ends, fails, fill, rows, step, values_of

import pyspark_logbus as logbus
from broker_lite.client.administration.admin import Admin
from broker_lite.errors import DataLossError, UnknownTopicOrPartitionError
from broker_lite.model import TopicPartition
from broker_lite.record.format import HEADER_BYTES
from pyspark_logbus import options
from pyspark_logbus.partition_reader import skipped
from pyspark_logbus.stream_planner import StreamPlanner


@pytest.mark.parametrize("how", ["subscribe", "assign"])
def test_first_batch_repeated_after_a_restart_reports_records_of_a_deleted_topic_as_lost(
    planner, bus, make_topic, how, caplog
):
    kept, gone = make_topic(3), make_topic(7)
    names = f"{kept},{gone}" if how == "subscribe" else json.dumps({kept: [0], gone: [0]})
    given = {how: names, "startingOffsets": "earliest"}
    plan = planner(**given)
    end = until(
        lambda: begin_query(plan), lambda end: (ends(end, kept), ends(end, gone)) == ([3], [7])
    )
    bus.delete_topic(gone)
    strict = planner(**given)
    begin = strict.initial_offset()
    with pytest.raises(DataLossError, match=rf"{gone}-0 \[0, 7\): topic {gone} \(.* was deleted"):
        strict.ranges(begin, end)
    lax = planner(**given, failOnDataLoss="false")
    assert rows(lax, lax.initial_offset(), end) == [(0, 0, 3)]
    assert f"the query continues without {gone}-0 [0, 7)" in caplog.text
    # Spark commits the first batch; the query then continues without the deleted topic.
    fill(bus, kept, 1)
    # The planner may see the other topic's new record before or after the deletion.
    later = until(lambda: lax.latest_offset(end, unlimited=False), lambda at: ends(at, kept) == [4])
    assert list(later["topics"]) == [kept]
    assert lax.report()["lostRecords"] == 7
    # Without stored start offsets, the batch looks like the first batch of a new query.
    del end["begin"]
    with pytest.raises(UnknownTopicOrPartitionError, match=f"topic '{gone}' does not exist"):
        lax = planner(**given, failOnDataLoss="false")
        lax.ranges(lax.initial_offset(), end)


@pytest.mark.parametrize("count", [2, 50])
def test_recreated_topic_is_data_loss_however_many_records_it_has(planner, bus, make_topic, count):
    topic = make_topic(10)
    given = {"subscribe": topic, "startingOffsets": "earliest"}
    plan, lax = planner(**given), planner(**given, failOnDataLoss="false")
    first = step(plan, plan.initial_offset())
    step(lax, lax.initial_offset())
    bus.delete_topic(topic)
    make_topic(count, name=topic)
    said = fails(lambda: plan.latest_offset(first, unlimited=False), DataLossError)
    assert said.startswith("[LOGBUS_DATA_LOSS]")
    assert f"topic {topic} was deleted and recreated" in said
    assert f"{topic}-0 [10, 10)" in said
    # A restarted query must report the loss when it plans a new batch and when it repeats one.
    restarted = planner(**given)
    assert "recreated" in fails(lambda: restarted.latest_offset(first, unlimited=False),
                                 DataLossError)  # fmt: skip
    assert "recreated" in fails(lambda: planner(**given).ranges(first, first), DataLossError)
    end = until(
        lambda: lax.latest_offset(first, unlimited=False),
        lambda end: end != first and ends(end, topic) == [count],
    )
    assert end["topics"][topic]["id"] != first["topics"][topic]["id"]
    assert rows(lax, first, end) == [(0, 0, count)]


def test_each_recreation_of_a_topic_is_logged_and_counted(planner, bus, make_topic, caplog):
    """Regression: later losses at the same offset were neither logged nor counted."""
    topic = make_topic(5)
    plan = planner(subscribe=topic, startingOffsets="earliest", failOnDataLoss="false")

    def read(at):
        return until(
            lambda: plan.latest_offset(at, unlimited=False),
            lambda end: topic in end["topics"] and ends(end, topic) == [5],
        )

    at = read(plan.initial_offset())
    for count in (1, 2, 3):
        fill(bus, topic, 3)
        until(plan._live.now, lambda live: live.topics[topic].ends[0].offset == 8)
        bus.delete_topic(topic)
        make_topic(5, name=topic)
        at = read(at)
        assert plan.report()["lostRecords"] == 3 * count
        assert caplog.text.count(f"the query continues without {topic}-0 [5, 8)") == count


def test_planner_drops_the_state_of_deleted_topics(planner, bus, make_topic):
    first = make_topic(1)
    plan = planner(
        subscribePattern=f"{first}.*", startingOffsets="earliest", failOnDataLoss="false"
    )

    def planned(at, expected):
        return until(
            lambda: plan.latest_offset(at, unlimited=False),
            lambda end: {name: ends(end, name) for name in end["topics"]} == expected,
        )

    at = planned(plan.initial_offset(), {first: [1]})
    for number in range(3):
        name = make_topic(1, 1, name=f"{first}-{number}")
        at = planned(at, {first: [1], name: [1, 1]})
        bus.delete_topic(name)
        at = planned(at, {first: [1]})
    plan.latest_offset(at, unlimited=False)
    assert list(plan._live.seen) == [at["topics"][first]["id"]]
    assert not plan._losses._accepted


def test_deleted_topic_of_a_running_query_is_data_loss(planner, bus, make_topic, caplog):
    kept, gone = make_topic(1), make_topic(7)
    given = {"subscribe": f"{kept},{gone}", "startingOffsets": "earliest"}
    plan, lax = planner(**given), planner(**given, failOnDataLoss="false")
    start = plan.initial_offset()
    partly = json.loads(json.dumps(start))
    partly["topics"][gone]["offsets"]["0"] = 3
    step(plan, partly)
    step(lax, partly)
    bus.delete_topic(gone)
    said = fails(lambda: plan.latest_offset(partly, unlimited=False), DataLossError)
    assert f"{gone}-0 [3, 7)" in said
    end = until(
        lambda: lax.latest_offset(partly, unlimited=False),
        lambda end: end != partly and gone not in end["topics"],
    )
    assert rows(lax, partly, end) == [(0, 0, 1)]
    assert lax.report()["lostRecords"] == 4
    assert f"the query continues without {gone}-0 [3, 7)" in caplog.text


def test_new_topic_deleted_before_its_first_batch_is_no_data_loss(planner, bus, make_topic, caplog):
    """Regression: the failed lookup of the topic's start offset ended even a query with
    failOnDataLoss=false."""
    kept = make_topic(1)
    given = {"subscribePattern": f"{kept}.*", "startingOffsets": "earliest"}
    lax, strict = planner(**given, failOnDataLoss="false"), planner(**given)
    first = until(lambda: begin_query(lax), lambda end: ends(end, kept) == [1])
    step(strict, first | {"topics": {}})
    gone = make_topic(3, name=f"{kept}-gone")
    end = until(
        lambda: lax.latest_offset(first, unlimited=False),
        lambda end: gone in end["topics"] and ends(end, gone) == [3],
    )
    fill(bus, kept, 2)
    end = until(lambda: lax.latest_offset(end, unlimited=False), lambda end: ends(end, kept) == [3])
    bus.delete_topic(gone)
    assert rows(lax, first, end) == [(0, 1, 3)]
    assert f"the query continues without {gone}-0 [0, 3)" in caplog.text
    with pytest.raises(DataLossError, match=rf"{gone}-0 \[0, 3\)"):
        strict.ranges(first, end)


def test_topic_deleted_while_a_task_fetches_is_data_loss(
    planner, bus, make_topic, monkeypatch, caplog
):
    """Regression: if the topic's first records had been deleted before, the topic's deletion ended
    even a query with failOnDataLoss=false."""
    topic = make_topic(5)
    plan = planner(subscribe=topic, startingOffsets="earliest")
    begin = plan.initial_offset()
    [task] = plan.ranges(begin, step(plan, begin))
    bus.admin.delete_records({TopicPartition(topic, 0): 2})
    ask = Admin.list_offsets

    def late(*given, **more):
        bus.delete_topic(topic, if_exists=True)
        return ask(*given, **more)

    monkeypatch.setattr(Admin, "list_offsets", late)
    assert values_of(bus, task, False) == []
    assert f"skipped {topic}-0 [0, 5)" in caplog.text


def test_position_beyond_the_log_end_is_data_loss(planner, bus, make_topic):
    topic = make_topic(5)
    given = {"subscribe": topic, "startingOffsets": "earliest"}
    at = planner(**given).initial_offset()
    at["topics"][topic]["offsets"]["0"] = 9
    plan, lax = planner(**given), planner(**given, failOnDataLoss="false")
    said = fails(lambda: plan.latest_offset(at, unlimited=False), DataLossError)
    assert "offset was changed from 9 to 5" in said
    end = step(lax, at)
    assert (ends(end, topic), rows(lax, at, end)) == ([5], [])
    fill(bus, topic, 2)
    assert rows(lax, end, step(lax, end)) == [(0, 5, 7)]


@pytest.mark.parametrize("how", ["subscribe", "assign"])
@pytest.mark.parametrize("once", [False, True])
def test_topic_deleted_before_an_available_now_run_is_data_loss(
    planner, bus, make_topic, how, once, caplog
):
    kept, gone = make_topic(1), make_topic(7)
    names = f"{kept},{gone}" if how == "subscribe" else json.dumps({kept: [0], gone: [0]})
    given = {how: names, "startingOffsets": "earliest"}
    plan = planner(**given)
    plan.prepare_for_available_now()
    at = step(plan, plan.initial_offset())
    bus.delete_topic(gone)
    fill(bus, kept, 2)

    def restarted(**more):
        made = planner(**given, **more)
        if not once:
            made.prepare_for_available_now()
        return made

    said = fails(lambda: restarted().latest_offset(at, unlimited=once), DataLossError)
    assert f"{gone}-0 [7, ?): topic {gone}" in said
    assert "failOnDataLoss=false" in said
    lax = restarted(failOnDataLoss="false")
    end = until(
        lambda: lax.latest_offset(at, unlimited=once), lambda end: gone not in end["topics"]
    )
    assert rows(lax, at, end) == [(0, 1, 3)]
    assert f"the query continues without {gone}-0" in caplog.text
    # A missing topic is an error, not data loss, if the checkpoint does not have it.
    wrong = given | {how: names.replace(kept, f"{kept}-wrong")}
    with pytest.raises(UnknownTopicOrPartitionError, match=f"{kept}-wrong"):
        made = planner(**wrong)
        made.prepare_for_available_now()
        made.latest_offset(at, unlimited=once)


def test_records_deleted_before_reading_are_data_loss(planner, bus, make_topic, caplog):
    topic = make_topic(20)
    tp = TopicPartition(topic, 0)
    plan = planner(subscribe=topic, startingOffsets="earliest")
    start = plan.initial_offset()
    end = step(plan, start)
    bus.admin.delete_records({tp: 8})
    tasks = plan.ranges(start, end)

    def read(fail):
        return list(itertools.chain.from_iterable(values_of(bus, task, fail) for task in tasks))

    with pytest.raises(DataLossError, match=rf"cannot fetch records in {topic}-0 \[0, 8\)"):
        read(True)
    assert read(False) == [str(number).encode() for number in range(8, 20)]
    assert f"skipped {topic}-0 [0, 8)" in caplog.text
    # Missing first records of a partition that the query found later are data loss too.
    empty = json.loads(json.dumps(start))
    empty["topics"] = {}
    del end["begin"]
    with pytest.raises(DataLossError, match=f"Added partition {topic}-0 starts from 8 instead"):
        plan.ranges(empty, end)
    lax = planner(subscribe=topic, startingOffsets="earliest", failOnDataLoss="false")
    assert rows(lax, empty, end) == [(0, 8, 20)]
    assert lax.report() is None or lax.report()["lostRecords"] == 8


def test_repeated_batch_counts_records_that_were_deleted_before_the_restart_as_lost(
    planner, bus, make_topic, caplog
):
    """A query that failed at these records may be restarted with failOnDataLoss=false.

    It then repeats its batch and counts the missing records.
    """
    topic = make_topic(10, 10)
    given = {"subscribe": topic, "startingOffsets": "earliest"}
    plan = planner(**given)
    first = until(lambda: begin_query(plan), lambda end: ends(end, topic) == [10, 10])
    fill(bus, topic, 10, 10)
    second = until(
        lambda: plan.latest_offset(first, unlimited=False), lambda e: ends(e, topic) == [20, 20]
    )
    bus.admin.delete_records({TopicPartition(topic, 0): 13, TopicPartition(topic, 1): 20})
    with pytest.raises(
        DataLossError, match=rf"{topic}-0 \[10, 13\): records before offset 13 were"
    ):
        planner(**given).ranges(first, second)
    lax = planner(**given, failOnDataLoss="false")
    assert rows(lax, first, second) == [(0, 13, 20)]
    assert f"the query continues without {topic}-1 [10, 20)" in caplog.text
    assert lax.latest_offset(second, unlimited=False) == second
    assert lax.report()["lostRecords"] == 13


@pytest.mark.parametrize("how", ["subscribe", "assign"])
def test_unsubscribed_topic_is_not_reported_as_deleted(planner, bus, make_topic, how):
    kept, left = make_topic(3), make_topic(7)
    named = {
        "subscribe": (f"{kept},{left}", kept),
        "assign": (json.dumps({kept: [0], left: [0]}), json.dumps({kept: [0]})),
    }
    before, after = named[how]
    plan = planner(**{how: before, "startingOffsets": "earliest"})
    first = until(
        lambda: begin_query(plan), lambda end: (ends(end, kept), ends(end, left)) == ([3], [7])
    )
    strict, lax = planner(**{how: after}), planner(**{how: after, "failOnDataLoss": "false"})
    said = fails(lambda: strict.latest_offset(first, unlimited=False), DataLossError)
    assert f"{left}-0 [7, ?): the query no longer subscribes to it, but to {how} {kept}" in said
    assert "deleted" not in said
    with pytest.raises(DataLossError, match=rf"{left}-0 \[0, 7\): the query no longer subscribes"):
        planner(**{how: after}).ranges(first, first)
    end = until(
        lambda: lax.latest_offset(first, unlimited=False), lambda end: left not in end["topics"]
    )
    assert ends(end, kept) == [3]
    assert lax.report()["lostRecords"] == 0


def test_log_that_was_truncated_and_grew_again_is_data_loss(bus, make_cluster, caplog):
    """Topic id and end offset are as expected; only the leader epochs show the truncation."""
    alone = make_cluster(1)
    with logbus.connect(alone.bootstrap_servers) as other:
        topic_id = other.create_topic("t", partitions=1)
        small_id = other.create_topic("small", partitions=1)
        fill(other, "small", 5)
        for _ in range(4):
            fill(other, "t", 5)
        found = options.read_options(
            options.parse({"subscribe": "t", "startingOffsets": "earliest"}),
            alone.bootstrap_servers,
            streaming=True,
        )
        plan = StreamPlanner(found)
        try:
            first = at = plan.initial_offset()
            while ends(at, "t") != [20]:
                at = step(plan, at)
        finally:
            plan.stop()
        alone.brokers[0].kill()
        [log] = segments_of(alone.directory, topic_id)
        position = next(
            p for p, header in iter_headers(log.read_bytes()) if header.base_offset == 10
        )
        with log.open("r+b") as file:
            file.truncate(position)
        alone.brokers[0].start()
        fill(other, "t", 30)
        plan = StreamPlanner(found)
        try:
            end = until(
                lambda: plan.latest_offset(at, unlimited=False), lambda end: ends(end, "t") == [40]
            )
            [(item,)] = plan.ranges(at, end)
            [(again,)] = plan.ranges(first, at)
        finally:
            plan.stop()
        assert (item.start, item.end) == (20, 40)
        assert 0 <= item.start_epoch < item.leader_epoch

        with pytest.raises(DataLossError, match="the log was truncated"):
            values_of(other, [item], True)
        # A fetch for several small ranges must detect the truncation too.
        small = item._replace(
            topic="small", topic_id=small_id, start=0, end=5, start_epoch=-1, stored_bytes=9
        )
        with pytest.raises(DataLossError, match="the log was truncated"):
            values_of(other, [item._replace(stored_bytes=9), small], True)
        assert len(values_of(other, [item], False)) == 20
        assert "the log was truncated" in caplog.text
        with pytest.raises(DataLossError, match=r"t-0 \[10, 20\): the log was truncated"):
            values_of(other, [again], True)


@pytest.mark.parametrize("before", ["deleted", "damaged"])
def test_loss_of_a_record_that_the_query_already_read_is_no_data_loss(make_cluster, caplog, before):
    """At its first range in a new leader epoch, a task checks the leader epoch of the record before
    the range.

    The query has already read that record, so its deletion or damage is no data loss.
    """
    alone = make_cluster(1)
    with logbus.connect(alone.bootstrap_servers) as other:
        topic_id = other.create_topic("t", partitions=1)
        for _ in range(2):
            fill(other, "t", 50)
        given = {"subscribe": "t", "startingOffsets": "earliest"}
        found = options.read_options(options.parse(given), alone.bootstrap_servers, streaming=True)
        plan = StreamPlanner(found)
        try:
            at = plan.initial_offset()
            while ends(at, "t") != [100]:
                at = step(plan, at)
            if before == "deleted":
                other.admin.delete_records({TopicPartition("t", 0): 100})
        finally:
            plan.stop()
        alone.brokers[0].kill()
        alone.brokers[0].start()
        fill(other, "t", 50)
        if before == "damaged":
            [log] = segments_of(alone.directory, topic_id)
            held = log.read_bytes()
            position = next(p for p, header in iter_headers(held) if header.last_offset == 99)
            with log.open("r+b") as file:
                file.seek(position + HEADER_BYTES + 8)
                file.write(bytes([held[position + HEADER_BYTES + 8] ^ 0xFF]))
        plan = StreamPlanner(found)
        try:
            end = until(
                lambda: plan.latest_offset(at, unlimited=False),
                lambda end: ends(end, "t") == [150],
            )
            [(item,)] = plan.ranges(at, end)
        finally:
            plan.stop()
        assert 0 <= item.start_epoch < item.leader_epoch
        lost = skipped.records
        for fail in (True, False):
            assert len(values_of(other, [item], fail)) == 50
        assert skipped.records == lost
        assert "LOGBUS_DATA_LOSS" not in caplog.text
