"""Test at which offsets a query starts, and at which offsets its following batches end."""

from __future__ import annotations

import json
import os

import pytest
from support.patience import until
from support.spark_planning import batch, begin_query, ends, fails, fill, rows, step

import pyspark_logbus as logbus
from broker_lite.errors import (
    DataLossError,
    InconsistentClusterIdError,
    InvalidConfigError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from pyspark_logbus import options
from pyspark_logbus.stream_planner import StreamPlanner


def test_each_micro_batch_starts_at_the_end_offset_of_the_previous_batch(planner, bus, make_topic):
    topic = make_topic(5, 3)
    plan = planner(subscribe=topic, startingOffsets="earliest")
    start = plan.initial_offset()
    # Spark calls initial_offset twice before the first batch.
    assert plan.initial_offset() is start
    assert ends(start, topic) == [0, 0]
    first = step(plan, start)
    assert ends(first, topic) == [5, 3]
    assert rows(plan, start, first) == [(0, 0, 5), (1, 0, 3)]
    # The offset survives a conversion to JSON. Without new records, its text stays the same.
    again = json.loads(json.dumps(first))
    assert json.dumps(plan.latest_offset(again, unlimited=False)) == json.dumps(first)
    fill(bus, topic, 0, 2)
    second = step(plan, again)
    assert ends(second, topic) == [5, 5]
    assert rows(plan, first, second) == [(1, 3, 5)]
    report = plan.report()
    assert report["topics"] == {topic: {"0": 5, "1": 5}}
    assert report["lostRecords"] == 0


def test_repeated_first_batch_reads_the_same_rows_although_the_earliest_offset_has_advanced(
    planner, bus, make_topic
):
    topic = make_topic(10)
    plan = planner(subscribe=topic, startingOffsets="latest")
    start = plan.initial_offset()
    assert ends(start, topic) == [10]
    fill(bus, topic, 5)
    # The end of the first batch also stores the query's start. It therefore differs from the
    # start even without rows, so wait for the rows.
    end = until(
        lambda: plan.latest_offset(start, unlimited=False), lambda end: ends(end, topic) == [15]
    )
    fill(bus, topic, 5)
    restarted = planner(subscribe=topic, startingOffsets="latest")
    later = restarted.initial_offset()
    assert ends(later, topic) == [20]
    assert rows(restarted, later, end) == [(0, 10, 15)]
    assert ends(step(restarted, end), topic) == [20]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"startingOffsets": '{"%s":{"0":-2,"1":-1,"2":2}}'}, [0, 4, 2]),
        ({"startingOffsets": '{"%s":{"0":1,"*":"latest"}}'}, [1, 4, 4]),
        ({"startingOffsets": '{"%s":"earliest"}'}, [0, 0, 0]),
        ({"startingTimestamp": "1700000000002"}, [2, 2, 2]),
        (
            {"startingOffsetsByTimestamp": '{"%s":{"0":1700000000001,"1":5,"2":1700000000003}}'},
            [1, 0, 3],
        ),
        (
            {"startingTimestamp": "1800000000000", "startingOffsetsByTimestampStrategy": "latest"},
            [4, 4, 4],
        ),
    ],
)
def test_query_starts_at_the_offsets_of_its_options(planner, bus, make_topic, given, expected):
    topic = make_topic(0, 0, 0)
    fill(bus, topic, 4, 4, 4, start_ms=1_700_000_000_000)
    given = {key: value.replace("%s", topic) for key, value in given.items()}
    assert ends(planner(subscribe=topic, **given).initial_offset(), topic) == expected


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (
            {"startingOffsets": '{"%s":{"0":0}}'},
            InvalidConfigError,
            "you must specify all TopicPartitions",
        ),
        ({"startingOffsets": '{"%s":{"0":0,"1":0,"7":1}}'}, InvalidConfigError, "not read: %s-7"),
        ({"startingTimestamp": "1800000000000"}, InvalidConfigError, "No offset matched"),
        (
            {"startingOffsets": '{"%s":{"0":99,"1":0}}'},
            DataLossError,
            "%s-0 has offsets 0 to 1, not 99",
        ),
    ],
)
def test_start_option_with_a_missing_partition_or_an_invalid_offset_is_refused(
    planner, make_topic, given, error, said
):
    topic = make_topic(1, 1)
    given = {key: value.replace("%s", topic) for key, value in given.items()}
    with pytest.raises(error, match=said.replace("%s", topic)):
        begin_query(planner(subscribe=topic, **given))


def test_end_offset_in_the_progress_of_a_query_is_valid_in_the_offset_options(
    planner, bus, make_topic, make_again
):
    topic, other = make_topic(5, 3), make_topic(2)
    plan = planner(subscribe=f"{topic},{other}", startingOffsets="earliest")
    printed = json.dumps(step(plan, plan.initial_offset()))
    fill(bus, topic, 4, 4)
    given = {"subscribe": f"{topic},{other}", "startingOffsets": printed}
    again = planner(**given)
    start = again.initial_offset()
    assert (ends(start, topic), ends(start, other)) == ([5, 3], [2])
    assert sorted(batch(bus, **given)) == [(0, 5, 9), (1, 3, 7)]
    assert sorted(batch(bus, subscribe=f"{topic},{other}", endingOffsets=printed)) == [
        (0, 0, 2), (0, 0, 5), (1, 0, 3),
    ]  # fmt: skip
    elsewhere = printed.replace(start["cluster"], "elsewhere")
    with pytest.raises(InconsistentClusterIdError, match="offsets of cluster elsewhere"):
        batch(bus, **(given | {"startingOffsets": elsewhere}))
    with pytest.raises(InvalidConfigError, match=r"startingOffsets: .* version 2"):
        batch(bus, **(given | {"startingOffsets": printed.replace('"version": 1', '"version": 2')}))
    make_again(other, 9)
    with pytest.raises(DataLossError, match=f"topic '{other}' .* recreated"):
        batch(bus, **given)


def test_query_of_a_missing_topic_fails_and_names_the_topic(planner, bus, make_topic):
    name = f"missing-{os.getpid()}"
    for given in ({"subscribe": name}, {"assign": json.dumps({name: [0]})}):
        with pytest.raises(UnknownTopicOrPartitionError, match=f"topic '{name}' does not exist"):
            begin_query(planner(**given))
    near = make_topic(1, name=f"{name}-near")
    with pytest.raises(
        UnknownTopicOrPartitionError, match=f"{name}-naer' does not exist; did you mean '{near}'"
    ):
        begin_query(planner(subscribe=f"{name}-naer"))
    bus.delete_topic(near)
    with pytest.raises(UnknownTopicOrPartitionError, match="has only 1 partitions"):
        begin_query(planner(assign=json.dumps({make_topic(1): [0, 1]})))
    plan = planner(subscribePattern=f"{name}.*", startingOffsets="earliest")
    begin = plan.initial_offset()
    assert begin["topics"] == {}
    first = step(plan, begin)  # The first batch is empty; its end stores the query's start.
    fill_later = make_topic(2, name=f"{name}-later")
    end = until(
        lambda: plan.latest_offset(first, unlimited=False),
        lambda end: fill_later in end["topics"] and ends(end, fill_later) == [2],
    )
    assert rows(plan, first, end) == [(0, 0, 2)]
    bus.delete_topic(fill_later)


def test_query_with_option_assign_reads_only_the_assigned_partitions(planner, make_topic):
    topic = make_topic(1, 2, 3)
    plan = planner(assign=json.dumps({topic: [0, 2]}), startingOffsets="earliest")
    start = plan.initial_offset()
    end = step(plan, start)
    assert end["topics"][topic]["offsets"] == {"0": 1, "2": 3}


def test_added_partitions_are_read_from_earliest(planner, bus, make_topic):
    topic = make_topic(2)
    plan = planner(subscribe=topic, startingOffsets="latest")
    late = planner(subscribe=topic, startingOffsets="latest", newPartitionOffsets="latest")
    first = step(plan, plan.initial_offset())
    first_late = step(late, late.initial_offset())
    bus.admin.create_partitions(topic, 2)
    fill(bus, topic, 0, 3)
    whole = lambda end: ends(end, topic) == [2, 3]  # noqa: E731
    end = until(lambda: plan.latest_offset(first, unlimited=False), whole)
    assert rows(plan, first, end) == [(1, 0, 3)]
    # With newPartitionOffsets=latest, reading starts at the end that the planner saw first.
    seen = until(
        lambda: late.latest_offset(first_late, unlimited=False),
        lambda end: len(ends(end, topic)) == 2,
    )
    assert rows(late, first_late, seen) == []


def test_checkpoint_of_another_cluster_or_source_is_refused(planner, make_topic):
    topic = make_topic(1)
    plan = planner(subscribe=topic, startingOffsets="earliest")
    start = plan.initial_offset()
    other = {**start, "cluster": "elsewhere"}
    assert "use a new checkpointLocation" in fails(
        lambda: plan.latest_offset(other, unlimited=False), InconsistentClusterIdError
    )
    with pytest.raises(UnsupportedVersionError):
        plan.latest_offset({**start, "version": 2}, unlimited=False)
    with pytest.raises(UnsupportedVersionError, match="did not write"):
        plan.latest_offset({topic: {"0": 1}}, unlimited=False)


def test_planning_of_a_batch_does_not_wait_for_brokers_that_are_down(
    make_cluster, monkeypatch, caplog
):
    with (
        make_cluster(1) as alone,
        logbus.connect(alone.bootstrap_servers) as other,
    ):
        other.create_topic("t", partitions=1)
        fill(other, "t", 3)
        found = options.read_options(
            options.parse({"subscribe": "t", "startingOffsets": "earliest"}),
            alone.bootstrap_servers,
            streaming=True,
        )
        plan = StreamPlanner(found)
        try:
            at = step(plan, plan.initial_offset())
            alone.brokers[0].kill()
            # A planning call returns although no broker answers, with unchanged offsets.
            for _ in range(50):
                assert plan.latest_offset(at, unlimited=False) == at
            assert until(plan.report, lambda report: "degraded" in report)
            # The first planning call of a resumed query does not wait for a broker either.
            monkeypatch.setattr("broker_lite.client.operations.silence.FIRST_WARNING_MS", 0)
            later = StreamPlanner(found)
            assert later.latest_offset(at, unlimited=False) == at
            assert later.report() is None
            later.stop()
            told = f"bootstrap.servers={alone.bootstrap_servers}: the query waits"
            assert [line.startswith(told) for line in caplog.messages] == [True]
            alone.brokers[0].start()
            fill(other, "t", 2)
            assert ends(step(plan, at), "t") == [5]
        finally:
            plan.stop()
