"""Test how a task of Spark's sink writes to real brokers, without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from support.patience import until
from support.spark_queries import records

from broker_lite.bus import connect
from broker_lite.client.producing.delivery import Delivery
from broker_lite.client.producing.producer import Producer
from broker_lite.errors import (
    DeliveryTimedOutError,
    InvalidPartitionsError,
    InvalidRecordError,
    MessageTooLargeError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import LATEST_TIMESTAMP, TopicPartition
from broker_lite.record.arrow import HEADERS_TYPE
from pyspark_logbus import exactly_once, options
from pyspark_logbus.exactly_once import TaskIdentity
from pyspark_logbus.partition_writer import write_attempt, write_batches
from pyspark_logbus.schema import SinkColumns


@pytest.fixture
def write(bus):
    def write(rows, columns, **given):
        found = options.write_options(options.parse(given), bus.bootstrap_servers)
        return write_batches([pa.record_batch(rows)], found, columns)

    return write


def ends(bus, topic):
    places = bus.admin.cluster((topic,)).partitions_of(topic)
    found = bus.admin.list_offsets(dict.fromkeys(places, LATEST_TIMESTAMP))
    return [found[place].offset for place in sorted(found)]


def test_sink_can_write_to_a_newly_added_partition(bus, topic, write):
    """A task caches partition counts for a minute.

    Before it refuses a higher partition, it looks up the present count.
    """
    columns = SinkColumns(value=0, partition=1)
    name = f"{topic}-grows"
    bus.create_topic(name, partitions=1)
    write({"value": [b"a"], "partition": pa.array([0], pa.int32())}, columns, topic=name)
    bus.admin.create_partitions(name, 2)

    def written():
        try:
            return write(
                {"value": [b"b"], "partition": pa.array([1], pa.int32())}, columns, topic=name
            )
        except InvalidPartitionsError:
            return None  # The broker that answered may not know the partition yet.

    until(written)
    assert ends(bus, name) == [1, 1]
    with pytest.raises(InvalidPartitionsError, match="it has 2 partitions"):
        write({"value": [b"b"], "partition": pa.array([2], pa.int32())}, columns, topic=name)


def test_exactly_once_sink_can_write_to_a_newly_added_partition(bus, topic):
    """Regression: the producer of a worker process refused partitions that were added after its
    start."""
    name = f"{topic}-grows"
    bus.create_topic(name, partitions=1)
    given = {"topic": name, "deliveryGuarantee": "exactly_once"}
    found = options.write_options(options.parse(given), bus.bootstrap_servers)

    def write(batch):
        rows = {"value": [str(batch).encode()], "partition": pa.array([batch], pa.int32())}
        identity = TaskIdentity(name, "run", batch, 0, batch)
        columns = SinkColumns(value=0, partition=1)
        attempt = write_attempt([pa.record_batch(rows)], found, columns, identity)
        exactly_once.commit(found, [attempt], batch)

    def is_known(server):
        with connect(server) as asked:
            return len(asked.admin.cluster((name,)).partitions_of(name)) == 2

    write(0)
    bus.admin.create_partitions(name, 2)
    until(lambda: all(map(is_known, bus.bootstrap_servers.split(","))))
    write(1)
    assert [(r.partition, r.value) for r in records(bus, name)] == [(0, b"0"), (1, b"1")]


@pytest.mark.parametrize(
    ("topics", "wrong", "error"),
    [
        (["%s", "nowhere"], {}, UnknownTopicOrPartitionError),
        (["%s", "%s-other"], {"partition": pa.array([0, 7], pa.int32())}, InvalidPartitionsError),
        (
            ["%s", "%s-other"],
            {"headers": pa.array([None, [{"key": None, "value": b""}]], HEADERS_TYPE)},
            InvalidRecordError,
        ),
    ],
)
def test_sink_refuses_an_invalid_batch_before_it_sends_any_row(
    bus, topic, write, topics, wrong, error, monkeypatch
):
    """Regression: rows for the first topic were sent before the second topic was checked."""
    sent = []
    monkeypatch.setattr(Producer, "send_columns", lambda _, *given: sent.append(given))
    bus.create_topic(f"{topic}-other", partitions=1)
    named = [name.replace("%s", topic) for name in topics]
    rows = {"value": [b"a", b"b"], "topic": named} | wrong
    columns = SinkColumns(value=0, topic=1, **dict.fromkeys(wrong, 2))
    with pytest.raises(error):
        write(rows, columns)
    assert sent == []


def test_sink_refuses_a_row_above_max_request_size(topic, write):
    rows, columns = {"value": [b"x" * 5000]}, SinkColumns(value=0)
    with pytest.raises(MessageTooLargeError, match=r"max\.request\.size"):
        write(rows, columns, topic=topic, **{"max.request.size": "4000"})
    assert write(rows, columns, topic=topic) == {topic: 1}


def test_request_is_retried_after_retry_backoff_ms(bus, topic, write, cluster, monkeypatch):
    """Each further retry waits twice as long. All retries together end at delivery.timeout.ms."""
    pauses, later = [], Delivery._later

    def noted(self, part, batch, error, now_ms):
        later(self, part, batch, error, now_ms)
        pauses.append(part.retry_at_ms - now_ms)

    monkeypatch.setattr(Delivery, "_later", noted)
    name, columns = f"{topic}-alone", SinkColumns(value=0)
    bus.create_topic(name, partitions=1, replication_factor=1)
    given = {
        "topic": name, "kafka.retry.backoff.ms": "7", "request.timeout.ms": "100",
        "delivery.timeout.ms": "1000",
    }  # fmt: skip
    write({"value": [b"a"]}, columns, **given)
    leader = bus.admin.cluster((name,)).partition(TopicPartition(name, 0)).leader
    pauses.clear()
    broker = next(broker for broker in cluster.brokers if broker.id == leader)
    broker.pause()
    try:
        with pytest.raises(DeliveryTimedOutError):
            write({"value": [b"b"]}, columns, **given)
    finally:
        broker.resume()
    assert pauses[:4] == [7, 14, 28, 56]
