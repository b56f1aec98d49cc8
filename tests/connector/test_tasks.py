"""Test the offset ranges of a batch query, and the requests of its tasks."""

from __future__ import annotations

import json
import pickle
import socket

import pytest
from support.spark_planning import DEADLINE_S, batch, fill, step, values_of

from broker_lite.client.fetch import range_reader, small_ranges
from broker_lite.client.fetch.small_ranges import SmallRange, read_small_ranges
from broker_lite.client.transport.pool import shared_pool
from broker_lite.errors import (
    DataLossError,
    InvalidConfigError,
    LogbusError,
    UnsupportedVersionError,
)
from broker_lite.model import Endpoint, TopicPartition
from broker_lite.wire import fetch
from broker_lite.wire.api import parse_header
from broker_lite.wire.calls import offsets as offset_calls
from pyspark_logbus.datasource import DefaultSource
from pyspark_logbus.offset_ranges import TASKS_MIN
from pyspark_logbus.read_task import ReadTask
from pyspark_logbus.topic_frame import plan_part


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
def test_batch_query_reads_exactly_the_offsets_from_its_start_to_its_end(
    bus, make_topic, given, expected
):
    topic = make_topic(0, 0)
    fill(bus, topic, 6, 6, start_ms=1_700_000_000_000)
    given = {key: value.replace("%s", topic) for key, value in given.items()}
    assert sorted(batch(bus, subscribe=topic, **given)) == expected


def test_batch_query_is_planned_although_an_older_broker_lacks_newer_requests(
    bus, make_topic, monkeypatch
):
    # Use a tag that the broker does not know, as brokers of earlier versions do not know 10000.
    monkeypatch.setattr(offset_calls, "TAG_BOUNDS", 10_099)
    topic = make_topic(0, 0)
    fill(bus, topic, 6, 4)
    tp = TopicPartition(topic, 0)
    with pytest.raises(UnsupportedVersionError, match="upgrade the brokers"):
        bus.admin.log_bounds({tp: bus.admin.cluster([topic]).topic_id(topic)}, 1)
    bus.admin.delete_records({tp: 2})
    assert sorted(batch(bus, subscribe=topic)) == [(0, 2, 6), (1, 0, 4)]


def test_batch_query_with_an_invalid_offset_range_is_refused(bus, make_topic):
    topic = make_topic(6)
    with pytest.raises(DataLossError, match="endingOffsets names 99, the log ends at 6"):
        batch(bus, subscribe=topic, endingOffsets=json.dumps({topic: {"0": 99}}))
    with pytest.raises(InvalidConfigError, match="No offset matched"):
        batch(bus, subscribe=topic, startingTimestamp="1900000000000")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"startingOffsets": '{"%s":{"0":5}}', "endingOffsets": '{"%s":{"0":3}}'}, (5, 3)),
        ({"startingTimestamp": "1700000000005", "endingTimestamp": "1700000000002"}, (5, 2)),
        ({"startingTimestamp": "1700000000005", "endingOffsets": '{"%s":{"0":2}}'}, (5, 2)),
        ({"startingOffsets": '{"%s":{"0":4}}', "endingTimestamp": "1700000000001"}, (4, 1)),
        # Both timestamps resolve to the same offset, because no record is between them.
        ({"startingTimestamp": "2", "endingTimestamp": "1"}, (0, 0)),
    ],
)
def test_error_for_an_end_offset_below_the_start_offset_names_both_offsets(
    bus, make_topic, given, named
):
    topic = make_topic(0)
    fill(bus, topic, 6, start_ms=1_700_000_000_000)
    given = {key: value.replace("%s", topic) for key, value in given.items()}
    first, last = given
    with pytest.raises(InvalidConfigError) as raised:
        batch(bus, subscribe=topic, **given)
    assert f"{first} is after {last}: {topic}-0 starts at offset {named[0]} and ends at" in str(
        raised.value
    )
    assert f"ends at offset {named[1]};" in str(raised.value)


def test_offset_range_that_ends_before_the_log_start_yields_no_rows(bus, make_topic):
    topic = make_topic(6)
    bus.admin.delete_records({TopicPartition(topic, 0): 4})
    assert batch(bus, subscribe=topic, endingOffsets=json.dumps({topic: {"0": 3}})) == []


def test_request_to_a_hanging_leader_is_retried_after_its_timeout(planner, bus, make_topic):
    """Regression: pollTimeoutMs limits the whole read, and one hanging request used all of this
    time."""
    topic = make_topic(5)
    plan = planner(subscribe=topic, startingOffsets="earliest")
    start = plan.initial_offset()
    [(item,)] = plan.ranges(start, step(plan, start))
    with socket.create_server(("127.0.0.1", 0)) as hung:
        host, port = hung.getsockname()
        elsewhere = item._replace(leader=Endpoint(host, port))
        assert len(values_of(bus, [elsewhere], True, request_timeout_ms=200)) == 5


def test_fetch_request_of_a_task_uses_the_options_of_the_query(planner, make_topic):
    """The test decodes the request that a task sends: client.id, isolation.level and byte
    limits."""
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


def test_second_action_on_a_dataframe_fails_with_advice_if_its_records_were_deleted(
    bus, make_topic
):
    topic = make_topic(5)
    source = DefaultSource({"bootstrap.servers": bus.bootstrap_servers, "subscribe": topic})
    reader = source.reader(source.schema())
    [task] = reader.partitions()
    assert sum(found.num_rows for found in reader.read(task)) == 5
    bus.admin.delete_records({TopicPartition(topic, 0): 3})
    with pytest.raises(DataLossError, match=r"keeps the offsets of its first action: load\(\) it"):
        list(reader.read(task))
    [task] = reader.partitions()
    assert sum(found.num_rows for found in reader.read(task)) == 2


def test_query_with_a_time_range_fetches_only_the_records_of_that_time(bus, make_topic):
    topic, hour_ms, start_ms = make_topic(0), 3_600_000, 1_700_006_400_000
    with bus.producer() as producer:
        for hour in range(30 * 24):
            stamp = start_ms + hour * hour_ms
            producer.send(topic, b"", partition=0, timestamp_ms=stamp)
    day = plan_part(topic, since=start_ms + 240 * hour_ms, until=start_ms + 264 * hour_ms, now_ms=0)
    assert batch(bus, **day.options) == [(0, 240, 265)]
    newest = plan_part(topic, since=start_ms + 1000 * hour_ms, now_ms=0)
    assert batch(bus, **newest.options) == []


def test_batch_query_reads_many_small_partitions_in_few_tasks(bus, make_topic, monkeypatch):
    topic = make_topic(*range(1, 41))
    source = DefaultSource({"bootstrap.servers": bus.bootstrap_servers, "subscribe": topic})
    reader = source.reader(source.schema())
    tasks = reader.partitions()
    assert len(tasks) == TASKS_MIN
    asked = []
    session = range_reader._RangeSession
    ask = session._fetch_once
    monkeypatch.setattr(session, "_fetch_once", lambda *given: asked.append(1) or ask(*given))
    found = [row for task in tasks for part in reader.read(task) for row in part.to_pylist()]
    assert not asked
    # The rows of each partition must keep their order.
    for partition in range(40):
        rows = [row for row in found if row["partition"] == partition]
        assert [row["offset"] for row in rows] == list(range(partition + 1))
        assert [row["value"] for row in rows] == [b"%d" % n for n in range(partition + 1)]
    for given, count in (({"minPartitions": "1"}, 40), ({"maxPartitions": "3"}, 3)):
        other = DefaultSource(source.options | given)
        assert len(other.reader(other.schema()).partitions()) == count


def test_micro_batch_of_many_small_partitions_has_few_tasks(planner, make_topic):
    topic = make_topic(*[2] * 20)
    plan = planner(subscribe=topic, startingOffsets="earliest")
    start = plan.initial_offset()
    tasks = plan.ranges(start, step(plan, start, unlimited=True))
    assert len(tasks) == TASKS_MIN
    assert sorted((item.partition, item.start, item.end) for task in tasks for item in task) == [
        (partition, 0, 2) for partition in range(20)
    ]


def test_task_takes_no_rows_of_a_small_range_from_an_incomplete_or_damaged_response(
    planner, make_topic, monkeypatch
):
    topic = make_topic(5, 5)
    plan = planner(subscribe=topic, startingOffsets="earliest")
    start = plan.initial_offset()
    ranges = [
        SmallRange(
            TopicPartition(topic, item.partition), item.topic_id, item.leader_epoch, item.leader,
            item.start, item.end,
        )
        for task in plan.ranges(start, step(plan, start)) for item in task
    ]  # fmt: skip

    def rows(first):
        found = read_small_ranges(
            [first, ranges[1]], pool=shared_pool(), fetch_bytes=1 << 20,
            isolation="read_uncommitted", request_timeout_ms=DEADLINE_S * 1000,
        )  # fmt: skip
        return [each and sum(part.row_count for part in each) for each in found]

    assert rows(ranges[0]) == [5, 5]
    assert rows(ranges[0]._replace(start=2, end=4)) == [2, 5]
    assert rows(ranges[0]._replace(end=8)) == [None, 5]
    assert rows(ranges[0]._replace(leader_epoch=99)) == [None, 5]
    decode = small_ranges.decode_all

    def damaged(items, tp, *given):
        if tp.partition == 0:
            items = [[each._replace(buffer=bytes(len(each.buffer))) for each in items[0]]]
        return decode(items, tp, *given)

    monkeypatch.setattr(small_ranges, "decode_all", damaged)
    assert rows(ranges[0]) == [None, 5]


def test_spark_source_finds_the_brokers_through_zookeeper(cluster, make_topic):
    topic = make_topic(5)
    source = DefaultSource({"zookeeper.connect": cluster.zookeeper, "subscribe": topic})
    reader = source.reader(source.schema())
    [task] = reader.partitions()
    assert sum(found.num_rows for found in reader.read(task)) == 5
