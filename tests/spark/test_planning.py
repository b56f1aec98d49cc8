"""What the driver plans, against real brokers but without Spark: starts, limits, loss, the group.

A behaviour costs milliseconds here and seconds in a query; test_stream has what needs Spark.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from plain_connection import until_known

import pyspark_logbus as logbus
from broker_lite.errors import (
    DataLossError,
    GroupLeaseHeldError,
    InconsistentClusterIdError,
    InvalidConfigError,
    LogbusError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from broker_lite.model import CommittedOffset, Endpoint, OffsetAndEpoch, TopicPartition
from broker_lite.record.batch import iter_headers
from broker_lite.record.format import HEADER_BYTES
from broker_lite.wire import fetch
from broker_lite.wire.api import parse_header
from pyspark_logbus import group_progress, offset_reader, options, stream_planner
from pyspark_logbus.batch_planner import plan_batch
from pyspark_logbus.datasource import DefaultSource
from pyspark_logbus.partition_reader import read_ranges, skipped
from pyspark_logbus.read_task import ReadPlan, ReadTask
from pyspark_logbus.schema import source_schema
from pyspark_logbus.stream_planner import StreamPlanner

DEADLINE_S = 30
_NUMBERS = itertools.count()


@pytest.fixture
def make_topic(bus):
    def make(*counts, name=None, **config):
        """A topic whose partitions hold so many records: values 0, 1, … in each."""
        name = name or f"plan-{os.getpid()}-{next(_NUMBERS)}"
        bus.create_topic(name, partitions=len(counts), config=config)
        fill(bus, name, *counts)
        return name

    return make


def fill(bus, topic, *counts, start_ms=None):
    with bus.producer() as producer:
        for partition, count in enumerate(counts):
            for number in range(count):
                stamp = None if start_ms is None else start_ms + number
                value = str(number).encode()
                producer.send(topic, value, partition=partition, timestamp_ms=stamp)


@pytest.fixture
def planner(bus):
    made = []

    def make(**given):
        given.setdefault("metadata.max.age.ms", "100")
        given.setdefault("fetchOffset.retryIntervalMs", "50")
        parsed = options.parse(given)
        found = options.read_options(parsed, bus.bootstrap_servers, streaming=True)
        made.append(StreamPlanner(found))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def batch(bus, **given):
    found = options.read_options(options.parse(given), bus.bootstrap_servers, streaming=False)
    return [
        (r.partition, r.start, r.end) for task in plan_batch(found) for r in task
    ]  # fmt: skip


def until(call, good):
    """Call again until the result is good: what the brokers know arrives in its own time."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        result = call()
        if good(result):
            return result
        assert time.monotonic() < deadline, result
        time.sleep(0.01)


def begin_query(planner):
    """What Spark asks at the start of a query that has no checkpoint."""
    return planner.latest_offset(planner.initial_offset(), unlimited=False)


def step(planner, at, *, unlimited=False):
    """The next batch's end, once there is one."""
    return until(lambda: planner.latest_offset(at, unlimited=unlimited), lambda end: end != at)


def ends(document, topic):
    offsets = document["topics"][topic]["offsets"]
    return [offsets[number] for number in sorted(offsets, key=int)]


def rows(planner, start, end):
    return sorted(
        (r.partition, r.start, r.end) for task in planner.ranges(start, end) for r in task
    )


def values_of(bus, ranges, fail, *, request_timeout_ms=10_000):
    """What a task reads of these ranges."""
    plan = ReadPlan(
        bus.bootstrap_servers, source_schema(False), fail, "read_uncommitted", 1 << 20, 600_000,
        request_timeout_ms, "test",
    )  # fmt: skip
    return [v for found in read_ranges(ranges, plan) for v in found.column("value").to_pylist()]


def fails(call, error):
    """Call until it raises the error, and give it."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            call()
        except error as raised:
            return str(raised)
        time.sleep(0.01)
    raise AssertionError(f"no {error.__name__}")


def test_a_query_goes_on_from_offset_to_offset(planner, bus, make_topic):
    topic = make_topic(5, 3)
    plan = planner(subscribe=topic, startingOffsets="earliest")
    start = plan.initial_offset()
    assert plan.initial_offset() is start  # asked twice in the first batch
    assert ends(start, topic) == [0, 0]
    first = step(plan, start)
    assert ends(first, topic) == [5, 3]
    assert rows(plan, start, first) == [(0, 0, 5), (1, 0, 3)]
    # As JSON and back it is the same text, and nothing new is the very same text.
    again = json.loads(json.dumps(first))
    assert json.dumps(plan.latest_offset(again, unlimited=False)) == json.dumps(first)
    fill(bus, topic, 0, 2)
    second = step(plan, again)
    assert ends(second, topic) == [5, 5]
    assert rows(plan, first, second) == [(1, 3, 5)]
    report = plan.report()
    assert report["topics"] == {topic: {"0": 5, "1": 5}}
    assert report["lostRecords"] == 0


def test_repeating_the_first_batch_reads_the_same_rows_though_the_start_moved(
    planner, bus, make_topic
):
    topic = make_topic(10)
    plan = planner(subscribe=topic, startingOffsets="latest")
    start = plan.initial_offset()
    assert ends(start, topic) == [10]
    fill(bus, topic, 5)
    # The first batch's end says where the query began, so it is another document at once, with or
    # without rows: the rows are what is waited for.
    end = until(
        lambda: plan.latest_offset(start, unlimited=False), lambda end: ends(end, topic) == [15]
    )
    fill(bus, topic, 5)
    restarted = planner(subscribe=topic, startingOffsets="latest")
    later = restarted.initial_offset()
    assert ends(later, topic) == [20]
    assert rows(restarted, later, end) == [(0, 10, 15)]
    assert ends(step(restarted, end), topic) == [20]


@pytest.mark.parametrize("how", ["subscribe", "assign"])
def test_repeating_the_first_batch_whose_topic_is_gone_is_loss_of_what_it_read(
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
    with pytest.raises(DataLossError, match=rf"{gone}-0 \[0, 7\): topic {gone} \(.* is gone"):
        strict.ranges(begin, end)
    lax = planner(**given, failOnDataLoss="false")
    assert rows(lax, lax.initial_offset(), end) == [(0, 0, 3)]
    assert f"going on without {gone}-0 [0, 7)" in caplog.text
    # Once the first batch is committed the query goes on without the topic.
    fill(bus, kept, 1)
    later = until(lambda: lax.latest_offset(end, unlimited=False), lambda at: at != end)
    assert (list(later["topics"]), ends(later, kept)) == ([kept], [4])
    assert lax.report()["lostRecords"] == 7
    # A first batch that never said where it began cannot be told from a start.
    del end["begin"]
    with pytest.raises(UnknownTopicOrPartitionError, match=f"logbus topic create {gone}"):
        lax = planner(**given, failOnDataLoss="false")
        lax.ranges(lax.initial_offset(), end)


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
def test_where_a_query_starts(planner, bus, make_topic, given, expected):
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
        ({"startingOffsets": '{"%s":{"0":99,"1":0}}'}, DataLossError, r"%s-0 has \[0, 1\], not 99"),
    ],
)
def test_where_it_cannot_start(planner, make_topic, given, error, said):
    topic = make_topic(1, 1)
    given = {key: value.replace("%s", topic) for key, value in given.items()}
    with pytest.raises(error, match=said.replace("%s", topic)):
        begin_query(planner(subscribe=topic, **given))


def test_missing_topics(planner, bus, make_topic):
    name = f"missing-{os.getpid()}"
    for given in ({"subscribe": name}, {"assign": json.dumps({name: [0]})}):
        with pytest.raises(UnknownTopicOrPartitionError, match=f"logbus topic create {name}"):
            begin_query(planner(**given))
    with pytest.raises(UnknownTopicOrPartitionError, match="has only 1 partitions"):
        begin_query(planner(assign=json.dumps({make_topic(1): [0, 1]})))
    plan = planner(subscribePattern=f"{name}.*", startingOffsets="earliest")
    begin = plan.initial_offset()
    assert begin["topics"] == {}
    first = step(plan, begin)  # the first batch's end says where it began
    fill_later = make_topic(2, name=f"{name}-later")
    end = until(
        lambda: plan.latest_offset(first, unlimited=False),
        lambda end: fill_later in end["topics"] and ends(end, fill_later) == [2],
    )
    assert rows(plan, first, end) == [(0, 0, 2)]
    bus.delete_topic(fill_later)


def test_assigned_partitions_only(planner, make_topic):
    topic = make_topic(1, 2, 3)
    plan = planner(assign=json.dumps({topic: [0, 2]}), startingOffsets="earliest")
    start = plan.initial_offset()
    end = step(plan, start)
    assert end["topics"][topic]["offsets"] == {"0": 1, "2": 3}


def test_partitions_that_are_added_are_read_from_their_beginning(planner, bus, make_topic):
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
    # With newPartitionOffsets=latest it begins where it was first seen, whenever that was.
    seen = until(
        lambda: late.latest_offset(first_late, unlimited=False),
        lambda end: len(ends(end, topic)) == 2,
    )
    assert rows(late, first_late, seen) == []


def test_limits_by_rows_hold_over_a_restart_and_not_for_once(planner, bus, make_topic):
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


def test_limits_by_bytes_are_whole_batches(planner, bus, make_topic):
    topic = make_topic(0, 0)
    with bus.producer(linger_ms=0) as producer:
        for _ in range(20):  # a batch each
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
    # One batch at least, however small the budget.
    tiny = planner(subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger="1")
    assert sum(ends(step(tiny, tiny.initial_offset()), topic)) == 2


def test_available_now_ends_where_it_began_to_look(planner, bus, make_topic):
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


def test_available_now_reads_all_however_late_the_answers_are(planner, bus, make_topic):
    """Spark takes a call without news for the end of the run, and leaves the rest unread."""
    topic = make_topic(0)
    with bus.producer(linger_ms=0) as producer:
        for _ in range(20):  # a batch each
            producer.send(topic, b"x" * 1000).result()
    plan = planner(
        subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger="5000",
        minOffsetsPerTrigger="100", maxTriggerDelay="1h",
    )  # fmt: skip
    plan.prepare_for_available_now()
    answers = plan._reader.admin.offsets_for_bytes
    fails = itertools.cycle([True, False])

    def late(ranges):
        time.sleep(3 * stream_planner.PATIENCE_S)
        if next(fails):
            raise RequestTimedOutError("late")
        return answers(ranges)

    plan._reader.admin.offsets_for_bytes = late
    at, count = plan.initial_offset(), 0
    while (end := plan.latest_offset(at, unlimited=False)) != at:
        at, count = end, count + 1
    assert ends(at, topic) == [20]
    assert count >= 4


def test_bytes_are_counted_from_where_the_log_begins_now(planner, bus, make_topic):
    topic = make_topic(20)
    given = {"subscribe": topic, "startingOffsets": "earliest", "failOnDataLoss": "false"}
    start = planner(**given).initial_offset()
    bus.admin.delete_records({TopicPartition(topic, 0): 8})
    plan = planner(**given, maxBytesPerTrigger="100000")
    assert ends(step(plan, start), topic) == [20]


@pytest.mark.parametrize("counts", [(3,), (3, 0), (9, 9)])
def test_available_now_fails_when_what_it_planned_is_gone(planner, bus, make_topic, counts):
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
    assert "have been lost during running query with Trigger.AvailableNow" in said


def test_available_now_fails_when_less_is_there_than_it_planned(planner, make_topic, monkeypatch):
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
    with pytest.raises(DataLossError, match=rf"available offset which is less.*{topic}-0 has 3"):
        plan.latest_offset(first, unlimited=False)


def test_a_slow_answer_is_not_waited_for_while_a_query_runs(planner, make_topic):
    """Spark asks every 12 ms, and its other sources wait meanwhile."""
    topic = make_topic(5)
    plan = planner(subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger="100000")
    start = plan.initial_offset()
    until(plan._live.now, lambda live: live is not None and live.is_complete())
    answers, asked, answer = (
        plan._reader.admin.offsets_for_bytes, threading.Event(), threading.Event(),
    )  # fmt: skip

    def blocked(ranges):
        asked.set()
        assert answer.wait(DEADLINE_S)
        return answers(ranges)

    plan._reader.admin.offsets_for_bytes = blocked
    first = plan.latest_offset(start, unlimited=False)
    assert asked.wait(DEADLINE_S)
    # It came back, and does so again, though nothing is known yet.
    assert ends(first, topic) == ends(plan.latest_offset(start, unlimited=False), topic) == [0]
    answer.set()
    end = until(
        lambda: plan.latest_offset(start, unlimited=False), lambda end: ends(end, topic) == [5]
    )
    assert rows(plan, start, end) == [(0, 0, 5)]


def test_a_repeated_batch_of_available_now_gets_past_added_partitions(planner, bus, make_topic):
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


@pytest.mark.parametrize("count", [2, 50])
def test_a_recreated_topic_is_loss_however_long_it_is(planner, bus, make_topic, count):
    topic = make_topic(10)
    given = {"subscribe": topic, "startingOffsets": "earliest"}
    plan, lax = planner(**given), planner(**given, failOnDataLoss="false")
    first = step(plan, plan.initial_offset())
    step(lax, lax.initial_offset())
    bus.delete_topic(topic)
    make_topic(count, name=topic)
    said = fails(lambda: plan.latest_offset(first, unlimited=False), DataLossError)
    assert said.startswith("[LOGBUS_DATA_LOSS]")
    assert f"topic {topic} was deleted and made again" in said
    assert f"{topic}-0 [10, 10)" in said
    # After a restart, too: both when it plans anew and when it repeats a batch.
    restarted = planner(**given)
    assert "made again" in fails(lambda: restarted.latest_offset(first, unlimited=False),
                                 DataLossError)  # fmt: skip
    assert "made again" in fails(lambda: planner(**given).ranges(first, first), DataLossError)
    end = until(
        lambda: lax.latest_offset(first, unlimited=False),
        lambda end: end != first and ends(end, topic) == [count],
    )
    assert end["topics"][topic]["id"] != first["topics"][topic]["id"]
    assert rows(lax, first, end) == [(0, 0, count)]


def test_a_topic_that_vanishes(planner, bus, make_topic, caplog):
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
    assert f"going on without {gone}-0 [3, 7)" in caplog.text


def test_an_offset_behind_the_log_s_end(planner, bus, make_topic):
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
def test_a_topic_that_vanished_before_a_run_that_ends_by_itself(
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
    assert f"going on without {gone}-0" in caplog.text
    # A name that the checkpoint does not know is a mistake, as at the start.
    wrong = given | {how: names.replace(kept, f"{kept}-wrong")}
    with pytest.raises(UnknownTopicOrPartitionError, match=f"{kept}-wrong"):
        made = planner(**wrong)
        made.prepare_for_available_now()
        made.latest_offset(at, unlimited=once)


def test_a_leader_that_hangs_is_asked_anew_after_the_request_timeout(planner, bus, make_topic):
    """pollTimeoutMs is for all of it; with only that, one hung answer took all of the time."""
    topic = make_topic(5)
    plan = planner(subscribe=topic, startingOffsets="earliest")
    start = plan.initial_offset()
    [(item,)] = plan.ranges(start, step(plan, start))
    with socket.create_server(("127.0.0.1", 0)) as hung:
        host, port = hung.getsockname()
        elsewhere = item._replace(leader=Endpoint(host, port))
        assert len(values_of(bus, [elsewhere], True, request_timeout_ms=200)) == 5


def test_what_a_task_s_request_says(planner, make_topic):
    """client.id, isolation.level, max.partition.fetch.bytes and pollTimeoutMs, on the wire."""
    topic = make_topic(5)
    plan = planner(subscribe=topic, startingOffsets="earliest")
    start = plan.initial_offset()
    [(item,)] = plan.ranges(start, step(plan, start))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Endpoint(*silent.getsockname())
        given = {
            "subscribe": topic, "bootstrap.servers": f"{address.host}:{address.port}",
            "client.id": "mine", "isolation.level": "read_committed", "pollTimeoutMs": "300",
            "max.partition.fetch.bytes": "123456",
        }  # fmt: skip
        source = DefaultSource(given)
        reader = pickle.loads(pickle.dumps(source.streamReader(source.schema())))
        with pytest.raises(LogbusError) as raised:
            list(reader.read(ReadTask((item._replace(leader=address),))))
        assert raised.value.retriable, raised.value
        connection, _ = silent.accept()
        with connection:
            connection.settimeout(DEADLINE_S)
            size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL))
            frame = memoryview(connection.recv(size, socket.MSG_WAITALL))
    header = parse_header(frame)
    request = fetch.decode_request(frame, header.api_version, header.body_at)
    assert header.client_id == "mine"
    assert (request.max_bytes, request.isolation_level) == (123456, fetch.READ_COMMITTED)
    [wanted] = request.topics[0].partitions
    assert (wanted.fetch_offset, wanted.max_bytes) == (0, 123456)


def test_a_cluster_is_found_by_its_zookeeper(cluster, make_topic):
    topic = make_topic(5)
    source = DefaultSource({"zookeeper.connect": cluster.zookeeper, "subscribe": topic})
    reader = source.reader(source.schema())
    [task] = reader.partitions()
    assert sum(found.num_rows for found in reader.read(task)) == 5


def test_records_that_were_deleted_before_they_were_read(planner, bus, make_topic, caplog):
    topic = make_topic(20)
    where = TopicPartition(topic, 0)
    plan = planner(subscribe=topic, startingOffsets="earliest")
    start = plan.initial_offset()
    end = step(plan, start)
    bus.admin.delete_records({where: 8})
    tasks = plan.ranges(start, end)

    def read(fail):
        return list(itertools.chain.from_iterable(values_of(bus, task, fail) for task in tasks))

    with pytest.raises(DataLossError, match=rf"cannot fetch records in {topic}-0 \[0, 8\)"):
        read(True)
    assert read(False) == [str(number).encode() for number in range(8, 20)]
    assert f"skipped {topic}-0 [0, 8)" in caplog.text
    # A partition found later that lacks its first records is loss as well.
    empty = json.loads(json.dumps(start))
    empty["topics"] = {}
    del end["begin"]
    with pytest.raises(DataLossError, match=f"Added partition {topic}-0 starts from 8 instead"):
        plan.ranges(empty, end)
    lax = planner(subscribe=topic, startingOffsets="earliest", failOnDataLoss="false")
    assert rows(lax, empty, end) == [(0, 8, 20)]
    assert lax.report() is None or lax.report()["lostRecords"] == 8


def test_a_checkpoint_of_another_cluster_or_source(planner, make_topic):
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


def test_progress_goes_to_the_group_with_the_next_planning_call(planner, bus, make_topic):
    topic = make_topic(4, 2)
    plan = planner(subscribe=topic, startingOffsets="earliest")
    start = plan.initial_offset()
    end = step(plan, start)
    plan.latest_offset(end, unlimited=False)
    group = offset_reader.default_group(plan.options, start["cluster"])
    assert group.startswith("spark-")
    offsets = until(
        lambda: bus.admin.committed(group),
        lambda rows: [rows[w].offset for w in sorted(rows)] == [4, 2],
    )
    assert all(group_progress.lease_of(row.metadata)[0] for row in offsets.values())
    assert until(plan.report, lambda report: report["groupState"] == "published")["group"] == group
    plan.stop()
    rows_left = bus.admin.committed(group)
    assert all(not group_progress.lease_of(row.metadata)[0] for row in rows_left.values())


def test_the_next_run_of_a_query_publishes_though_the_last_one_s_lease_lasts(
    planner, bus, make_topic
):
    """Spark ends a run by killing its planner: it may have no time to give the lease back."""
    topic = make_topic(4)
    given = {"subscribe": topic, "startingOffsets": "earliest"}
    first = planner(**given)
    at = step(first, first.initial_offset())
    first.latest_offset(at, unlimited=False)
    group = until(first.report, lambda report: report["groupState"] == "published")["group"]
    fill(bus, topic, 3)
    following = planner(**given)  # while the first one still holds its lease
    following.prepare_for_available_now()
    end = following.latest_offset(at, unlimited=False)
    assert end["query"] == at["query"]
    assert following.latest_offset(end, unlimited=False) == end
    until(following.report, lambda report: report["groupState"] == "published")
    assert bus.admin.committed(group)[TopicPartition(topic, 0)].offset == 7


def test_what_once_read_is_published_when_it_runs_again(planner, bus, make_topic):
    """Trigger.Once asks once, before its only batch: nobody tells it that the batch was done."""
    topic = make_topic(4)
    given = {"subscribe": topic, "startingOffsets": "earliest", "groupIdPrefix": "team"}
    first = planner(**given)
    end = step(first, first.initial_offset(), unlimited=True)
    first.stop()
    where, group = TopicPartition(topic, 0), first.report()["group"]
    assert group.startswith("team-")
    assert bus.admin.committed(group)[where].offset == 0
    again = planner(**given)
    assert again.latest_offset(end, unlimited=True) == end
    again.stop()
    assert bus.admin.committed(group)[where].offset == 4


def test_a_second_query_on_the_same_group(planner, bus, make_topic, monkeypatch):
    monkeypatch.setattr(group_progress, "LEASE_MS", 1_000)
    monkeypatch.setattr(group_progress, "RENEW_MS", 100)
    topic = make_topic(4)
    one, two = planner(subscribe=topic), planner(subscribe=topic)
    at = step(one, one.initial_offset())
    until(one.report, lambda report: report["groupState"] == "published")
    at_two = step(two, two.initial_offset())
    state = until(two.report, lambda report: "held by" in report["groupState"])
    assert state["group"] == one.report()["group"]
    named = [planner(subscribe=topic, **{"group.id": f"g-{topic}"}) for _ in range(2)]
    until(
        lambda: named[0].latest_offset(at, unlimited=False) and named[0].report(),
        lambda report: report and report["groupState"] == "published",
    )
    assert "give this query another group.id" in fails(
        lambda: named[1].latest_offset(at_two, unlimited=False), GroupLeaseHeldError
    )


def test_a_query_may_start_from_its_group(planner, bus, make_topic):
    topic = make_topic(5, 5, 5)
    group = f"start-{topic}"
    bus.admin.commit_offsets(
        group, {TopicPartition(topic, 0): CommittedOffset(2), TopicPartition(topic, 1): 5}
    )
    given = {"subscribe": topic, "startingOffsets": "group", "group.id": group}
    plan = planner(**given)
    start = plan.initial_offset()
    assert ends(start, topic) == [2, 5, 0]
    latest = planner(**given, startingOffsetsFallback="latest")
    assert ends(latest.initial_offset(), topic) == [2, 5, 5]
    # The first batch is empty: with it the start is fixed, whatever the group holds by then.
    first = step(plan, start)
    assert rows(plan, start, first) == []
    assert rows(plan, first, step(plan, first)) == [(0, 2, 5), (2, 0, 5)]


def test_a_deleted_topic_s_group_offsets_are_not_its_successor_s(planner, bus, make_topic):
    topic = make_topic(9)
    group = f"recreated-{topic}"
    bus.admin.commit_offsets(group, {TopicPartition(topic, 0): 7})
    bus.delete_topic(topic)
    make_topic(8, name=topic)
    plan = planner(subscribe=topic, startingOffsets="group", **{"group.id": group})
    assert ends(plan.initial_offset(), topic) == [0]


@pytest.fixture
def make_again(cluster, bus):
    def make(topic, count):
        """Another topic of that name with so many records; every broker knows of it."""
        bus.delete_topic(topic)
        until_known(cluster.bootstrap_servers, topic, bus.create_topic(topic, partitions=1))
        fill(bus, topic, count)

    return make


def test_a_query_that_ends_leaves_a_recreated_topic_without_offsets(
    planner, bus, make_topic, make_again, caplog
):
    topic, kept = make_topic(10), make_topic(3)
    group = f"left-{topic}"
    given = {"subscribe": f"{topic},{kept}", "startingOffsets": "earliest", "group.id": group}
    plan = planner(**given)
    first = step(plan, plan.initial_offset())
    plan.latest_offset(first, unlimited=False)
    until(plan.report, lambda report: report["groupState"] == "published")
    make_again(topic, 15)
    plan.stop()
    found = bus.admin.committed(group)
    assert {where: row.offset for where, row in found.items()} == {TopicPartition(kept, 0): 3}
    assert group_progress.lease_of(found[TopicPartition(kept, 0)].metadata) == ("", 0)
    assert f"topic '{topic}' was deleted and made again" in caplog.text
    # Whoever goes on from the group reads all of the new one.
    again = planner(**(given | {"startingOffsets": "group"})).initial_offset()
    assert (ends(again, topic), ends(again, kept)) == ([0], [3])


def test_loss_is_judged_before_progress_goes_to_the_group(planner, bus, make_topic, make_again):
    topic = make_topic(10)
    group = f"judged-{topic}"
    given = {"subscribe": topic, "startingOffsets": "earliest", "group.id": group}
    strict = planner(**given)
    first = step(strict, strict.initial_offset())
    make_again(topic, 15)
    assert "made again" in fails(
        lambda: planner(**given).latest_offset(first, unlimited=False), DataLossError
    )
    fails(lambda: strict.latest_offset(first, unlimited=False), DataLossError)
    strict.stop()
    assert bus.admin.committed(group) == {}
    lax = planner(**given, failOnDataLoss="false")
    end = step(lax, first)
    assert ends(end, topic) == [15]
    lax.stop()
    assert bus.admin.committed(group) == {}
    lax = planner(**given, failOnDataLoss="false")
    until(
        lambda: lax.latest_offset(end, unlimited=False) and lax.report(),
        lambda report: report and report["groupState"] == "published",
    )
    assert bus.admin.committed(group)[TopicPartition(topic, 0)].offset == 15


def test_planning_does_not_wait_for_brokers(planner, bus, make_topic, make_cluster):
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
            # It comes back though nobody answers, and what it says is "nothing new".
            for _ in range(50):
                assert plan.latest_offset(at, unlimited=False) == at
            assert until(plan.report, lambda report: "degraded" in report)
            alone.brokers[0].start()
            fill(other, "t", 2)
            assert ends(step(plan, at), "t") == [5]
        finally:
            plan.stop()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [(0, 0, 6), (1, 0, 6)]),
        ({"startingOffsets": '{"%s":{"0":2,"1":-2}}', "endingOffsets": '{"%s":{"0":4,"1":-1}}'},
         [(0, 2, 4), (1, 0, 6)]),
        ({"startingTimestamp": "1700000000002", "endingTimestamp": "1700000000004"},
         [(0, 2, 4), (1, 2, 4)]),
        ({"startingTimestamp": "1700000000005", "endingTimestamp": "1800000000000"},
         [(0, 5, 6), (1, 5, 6)]),
        ({"startingOffsets": "earliest", "endingOffsetsByTimestamp":
          '{"%s":{"0":1700000000001,"1":1800000000000}}'}, [(0, 0, 1), (1, 0, 6)]),
        ({"minPartitions": "4"}, [(0, 0, 3), (0, 3, 6), (1, 0, 3), (1, 3, 6)]),
        ({"maxRecordsPerPartition": "4"}, [(0, 0, 3), (0, 3, 6), (1, 0, 3), (1, 3, 6)]),
        ({"maxPartitions": "1"}, [(0, 0, 6), (1, 0, 6)]),
        ({"endingOffsets": '{"%s":{"0":99,"1":6}}', "failOnDataLoss": "false"},
         [(0, 0, 6), (1, 0, 6)]),
    ],
)  # fmt: skip
def test_batches(bus, make_topic, given, expected):
    topic = make_topic(0, 0)
    fill(bus, topic, 6, 6, start_ms=1_700_000_000_000)
    given = {key: value.replace("%s", topic) for key, value in given.items()}
    assert sorted(batch(bus, subscribe=topic, **given)) == expected


def test_batches_that_cannot_be(bus, make_topic):
    topic = make_topic(6)
    with pytest.raises(DataLossError, match="endingOffsets names 99, the log ends at 6"):
        batch(bus, subscribe=topic, endingOffsets=json.dumps({topic: {"0": 99}}))
    with pytest.raises(InvalidConfigError, match="behind its end"):
        batch(
            bus, subscribe=topic, startingOffsets=json.dumps({topic: {"0": 5}}),
            endingOffsets=json.dumps({topic: {"0": 3}}),
        )  # fmt: skip
    with pytest.raises(InvalidConfigError, match="No offset matched"):
        batch(bus, subscribe=topic, startingTimestamp="1900000000000")


def test_a_log_that_was_cut_and_has_grown_again_is_loss(bus, make_cluster, caplog):
    """Ids and ends look right; only the leader epochs tell."""
    alone = make_cluster(1)
    with logbus.connect(alone.bootstrap_servers) as other:
        topic_id = other.create_topic("t", partitions=1)
        for _ in range(4):
            fill(other, "t", 5)
        found = options.read_options(
            options.parse({"subscribe": "t", "startingOffsets": "earliest"}),
            alone.bootstrap_servers,
            streaming=True,
        )
        plan = StreamPlanner(found)
        try:
            at = plan.initial_offset()
            while ends(at, "t") != [20]:
                at = step(plan, at)
        finally:
            plan.stop()
        alone.brokers[0].kill()
        [log] = Path(alone.directory).glob(f"**/{topic_id}-0/*.log")
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
        finally:
            plan.stop()
        assert (item.start, item.end) == (20, 40)
        assert 0 <= item.start_epoch < item.leader_epoch

        with pytest.raises(DataLossError, match="the log was cut and written anew"):
            values_of(other, [item], True)
        assert len(values_of(other, [item], False)) == 20
        assert "the log was cut and written anew" in caplog.text


@pytest.mark.parametrize("before", ["deleted", "damaged"])
def test_what_lies_before_a_range_after_a_new_leader_epoch_is_no_loss(make_cluster, caplog, before):
    """A batch after a change of leaders looks at the record before; that one was read long ago."""
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
            [log] = Path(alone.directory).glob(f"**/{topic_id}-0/*.log")
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
