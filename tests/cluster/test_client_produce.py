"""The producer on real brokers: partitioning, results and refused records."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from support.faces import Face
from support.java_partitions import partition_for

from broker_lite.bus import Bus
from broker_lite.config import ProducerConfig
from broker_lite.errors import (
    BufferFullError,
    ClosedError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidRecordError,
    InvalidSchemaError,
    LogbusError,
    MessageTooLargeError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import LATEST_TIMESTAMP, TopicPartition


def everything(bus: Bus, topic: str, count: int) -> list[tuple[int, int, bytes | None]]:
    found: list[tuple[int, int, bytes | None]] = []
    with bus.consumer(topic, start="earliest") as consumer:
        while len(found) < count:
            found += [(r.partition, r.offset, r.value) for r in consumer.poll(5.0)]
        assert consumer.poll(0.1) == []
    return found


def test_record_keeps_key_headers_and_timestamp(face_bus: Bus, topic: str) -> None:
    with face_bus.producer(acks="all", linger_ms=5, compression="lz4") as producer:
        sent = producer.send(
            topic, b"value", key=b"k", headers=[("h", b"x")], partition=None, timestamp_ms=123
        ).result(30)
    assert sent == (topic, partition_for(b"k", 3), 0, 123)
    with face_bus.consumer(topic, start="earliest") as consumer:
        record = next(iter(consumer))
    assert record == (topic, sent.partition, 0, 123, b"k", b"value", [("h", b"x")])


def test_consumer_reads_a_backlog_that_the_broker_dropped_from_the_page_cache(
    bus: Bus, topic: str
) -> None:
    """The test produces 24 MB before a consumer reads. The broker keeps only
    ``unread.cached.bytes``, 4 MB, of unread records cached."""
    name = f"{topic}-unread"
    bus.create_topic(name, 1, replication_factor=1)
    batch = pa.record_batch({"value": pa.array([b"%01000d" % n for n in range(1000)])})
    with bus.producer() as producer:
        for _ in range(24):
            producer.send_arrow(name, batch)
        producer.flush(30)
        values = [value for _, _, value in everything(bus, name, 24_000)]
        assert values == batch.column("value").to_pylist() * 24
        producer.send_arrow(name, batch)
        producer.flush(30)
    assert len(everything(bus, name, 25_000)) == 25_000


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_many_records_arrive_once_and_in_order(bus: Bus, topic: str, compression: str) -> None:
    with bus.producer(compression=compression, batch_bytes=20_000) as producer:
        futures = [
            producer.send(topic, b"%d" % n, key=b"k%d" % (n % 50) if n % 2 else None)
            for n in range(20_000)
        ]
        producer.flush(30)
        assert all(future.done() for future in futures)
        places = {n: futures[n].result() for n in range(0, 20_000, 97)}
    found = everything(bus, topic, 20_000)
    assert sorted(int(value or b"") for _, _, value in found) == list(range(20_000))
    at = {(partition, offset): value for partition, offset, value in found}
    for n, place in places.items():
        assert at[place.partition, place.offset] == b"%d" % n
    for key in range(1, 50, 2):
        own = partition_for(b"k%d" % key, 3)
        numbers = [int(v or b"") for p, _, v in found if p == own and int(v or b"") % 50 == key]
        assert numbers == sorted(numbers)


def test_records_without_keys_are_spread_over_all_partitions(bus: Bus, topic: str) -> None:
    with bus.producer(linger_ms=0) as producer:
        used = {producer.send(topic, b"v").result(30).partition for _ in range(12)}
    assert used == {0, 1, 2}


def test_values_may_be_text_or_none_and_headers_may_be_dicts(bus: Bus, topic: str) -> None:
    with bus.producer() as producer:
        producer.send(topic, "grün", key="ключ", headers={"a": "b"}, partition=1)
        producer.send(topic, None, key=b"gone", partition=1)
        producer.send(topic, b"", partition=1)
    with bus.consumer(topic, partitions=[1], start="earliest") as consumer:
        found = consumer.poll(10.0)
    assert [(r.key, r.value, r.headers) for r in found] == [
        ("ключ".encode(), "grün".encode(), [("a", b"b")]),
        (b"gone", None, []),
        (None, b"", []),
    ]


def test_several_threads_can_share_a_producer(bus: Bus, topic: str) -> None:
    with bus.producer() as producer:

        def work(number: int) -> None:
            for n in range(2000):
                producer.send(topic, b"%d-%d" % (number, n), partition=number)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = everything(bus, topic, 6000)
    for number in range(3):
        values = [value for partition, _, value in sorted(found) if partition == number]
        assert values == [b"%d-%d" % (number, n) for n in range(2000)]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_producer_waits_for_the_acknowledgements_that_the_acks_setting_requires(
    bus: Bus, topic: str, acks: str
) -> None:
    # Wait for the leader: with acks=0, a send to a leader that does not serve yet is lost silently.
    bus.admin.list_offsets({TopicPartition(topic, 0): LATEST_TIMESTAMP})
    with bus.producer(acks=acks) as producer:
        sent = producer.send(topic, b"v", partition=0).result(30)
    assert sent.offset == (-1 if acks == "0" else 0)
    assert everything(bus, topic, 1) == [(0, 0, b"v")]


def test_records_of_a_log_append_time_topic_get_the_time_of_the_broker(bus: Bus) -> None:
    bus.create_topic("appended", 1, config={"message.timestamp.type": "LogAppendTime"})
    with bus.producer() as producer:
        sent = producer.send("appended", b"v", timestamp_ms=5).result(30)
    assert sent.timestamp_ms > 1_600_000_000_000
    with bus.consumer("appended", start="earliest") as consumer:
        rows = consumer.poll_arrow(10.0)
    assert rows.column("timestampType").to_pylist() == [1]
    assert rows.column("timestamp").cast("int64").to_pylist() == [sent.timestamp_ms * 1000]


def test_send_refuses_invalid_arguments_at_once(face_bus: Bus, topic: str) -> None:
    with face_bus.producer(max_request_bytes=10_000) as producer:
        with pytest.raises(MessageTooLargeError, match=r"max\.request\.size"):
            producer.send(topic, b"x" * 10_000)
        with pytest.raises(InvalidRecordError, match="give bytes, str or None"):
            producer.send(topic, 5)  # type: ignore[arg-type]
        with pytest.raises(InvalidRecordError, match="pairs"):
            producer.send(topic, b"v", headers=[1])
        with pytest.raises(InvalidPartitionsError):
            producer.send(topic, b"v", partition=-1)
        with pytest.raises(MessageTooLargeError):
            producer.send_arrow(topic, pa.table({"value": [b"x" * 10_000]}))
        with pytest.raises(InvalidSchemaError, match="it must be binary or string"):
            producer.send_arrow(topic, pa.table({"value": [1]}))
        with pytest.raises(InvalidSchemaError, match="no column 'value'"):
            producer.send_arrow(topic, pa.table({"a": [b"x"]}))
        with pytest.raises(InvalidSchemaError, match="is not a field of a record"):
            producer.send_arrow(topic, pa.table({"value": [b"x"], "other": [1]}))
    with pytest.raises(InvalidConfigError, match="did you mean 'linger_ms'"):
        face_bus.producer(linger=5)


def test_asynchronous_send_error_is_raised_by_result_and_flush(face_bus: Bus, topic: str) -> None:
    producer = face_bus.producer()
    with pytest.raises(InvalidPartitionsError, match="has 3 partitions"):
        producer.send(topic, b"v", partition=3).result(30)
    producer.flush(30)
    producer.send(topic, b"v", partition=7)
    with pytest.raises(InvalidPartitionsError):
        producer.flush(30)
    with pytest.raises(UnknownTopicOrPartitionError, match="logbus topic create missing"):
        producer.send("missing", b"v").result(30)
    producer.close()
    with pytest.raises(ClosedError):
        producer.send(topic, b"v")


def test_topic_with_a_smaller_batch_limit_gets_smaller_batches(bus: Bus) -> None:
    bus.create_topic("narrow", 1, config={"max.message.bytes": "5000"})
    with bus.producer() as producer:
        futures = [producer.send("narrow", bytes([65 + n]) * 1000) for n in range(20)]
        assert [future.result(30).offset for future in futures] == list(range(20))
        # The producer uses the lower limit from now on.
        assert 2500 <= producer._sender.batch_bytes("narrow") <= 5000
        large = producer.send("narrow", b"x" * 6000)
        after = producer.send("narrow", b"y")
        with pytest.raises(MessageTooLargeError, match="narrow-0"):
            large.result(30)
        assert after.result(30).offset == 20


def test_send_blocks_while_buffer_memory_is_full(bus: Bus, topic: str) -> None:
    with bus.producer(buffer_bytes=70_000, batch_bytes=10_000, linger_ms=60_000) as producer:
        for _ in range(2000):
            producer.send(topic, b"x" * 1000)
            assert producer._used_bytes <= 90_000
    with bus.consumer(topic, start="earliest") as consumer:
        assert sum(consumer.lag().values()) == 2000


def test_records_keep_their_order_while_buffer_memory_is_full(face_bus: Bus, topic: str) -> None:
    with face_bus.producer(buffer_bytes=70_000, batch_bytes=10_000) as producer:
        sent = [producer.send(topic, b"x" * 1000, partition=0) for _ in range(1000)]
        assert [each.result(30).offset for each in sent] == list(range(1000))


def test_send_with_full_buffer_memory_times_out_while_no_broker_answers(face: Face) -> None:
    config = ProducerConfig(buffer_bytes=70_000, batch_bytes=10_000, max_block_ms=50)
    producer = face.make_producer("127.0.0.1:1", config)
    sent = []
    with pytest.raises(BufferFullError, match=r"max\.block\.ms=50"):
        for _ in range(120):
            sent.append(producer.send("t", b"x" * 1000))
        sent[-1].result()
    with pytest.raises(LogbusError):
        producer.close(0)
    for each in sent:
        with pytest.raises(LogbusError):
            each.result()


def test_arrow_tables_are_read_back_as_they_were_sent(face_bus: Bus, topic: str) -> None:
    table = pa.table(
        {
            "key": pa.array(["a", None, "c"]),
            "value": pa.array([b"1", b"2", None], pa.large_binary()),
            "partition": pa.array([2, 0, None], pa.int64()),
            "timestamp": pa.array([1_000_000, 2_000_000, None], pa.timestamp("us")),
            "headers": pa.array(
                [[{"key": "h", "value": b"x"}], None, []],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    with face_bus.producer() as producer:
        sent = producer.send_arrow(topic, table, timestamp_ms=7).result(30)
    own = partition_for(b"c", 3)
    assert sum(row.row_count for row in sent) == 3
    with face_bus.consumer(topic, start="earliest") as consumer:
        rows = []
        while len(rows) < 3:
            rows += consumer.poll_arrow(5.0, headers=True).to_pylist()
    found = {row["value"]: row for row in rows}
    assert (found[b"1"]["key"], found[b"1"]["partition"]) == (b"a", 2)
    assert found[b"1"]["headers"] == [{"key": "h", "value": b"x"}]
    assert (found[b"2"]["key"], found[b"2"]["partition"]) == (None, 0)
    assert (found[None]["key"], found[None]["partition"]) == (b"c", own)
    assert found[None]["timestamp"].timestamp() == pytest.approx(0.007)
    assert found[b"2"]["timestamp"].timestamp() == pytest.approx(2)


def test_large_tables_are_split_into_batches(bus: Bus, topic: str) -> None:
    table = pa.table({"msg": pa.array([b"%06d" % n * 30 for n in range(30_000)])})
    with bus.producer(batch_bytes=200_000) as producer:
        future = producer.send_arrow(topic, table, value="msg", partition=1)
        rows = future.result(30)
    assert [row.base_offset for row in rows] == [
        sum(other.row_count for other in rows[:n]) for n in range(len(rows))
    ]
    assert len(rows) > 20
    with bus.consumer(topic, partitions=[1], start="earliest") as consumer:
        values: list[bytes] = []
        while len(values) < 30_000:
            values += consumer.poll_arrow(5.0).column("value").to_pylist()
    assert values == table.column("msg").to_pylist()


class Streams:
    """An object that exports an Arrow stream, as polars and pandas frames do."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def test_any_arrow_stream_object_can_be_sent(bus: Bus, topic: str) -> None:
    table = pa.table({"value": ["a", "b"], "k": ["x", "x"]})
    with bus.producer() as producer:
        producer.send_arrow(topic, Streams(table), key="k")
        producer.send_arrow(topic, table.to_reader(), key="k")
        producer.send_arrow(topic, table.to_batches()[0], key="k")
    found = everything(bus, topic, 6)
    assert {partition for partition, _, _ in found} == {partition_for(b"x", 3)}
    assert [value for _, _, value in found] == [b"a", b"b"] * 3


def test_consumer_reads_every_record_of_the_producer(face_bus: Bus, topic: str) -> None:
    assert topic in face_bus.topics()
    with face_bus.producer() as producer:
        sent = [producer.send(topic, b"%d" % n, partition=2) for n in range(1000)]
        producer.flush(30)
        offsets = [each.result(30).offset for each in sent]
        assert offsets == list(range(1000))
    with face_bus.consumer(topic, group=topic, start="earliest") as consumer:
        values = []
        for record in consumer:
            values.append(record.value)
            if len(values) == 900:
                break
        values += consumer.poll_arrow(10.0, max_rows=50).column("value").to_pylist()
        while len(values) < 1000:
            values += [record.value for record in consumer.poll(10.0)]
        assert values == [b"%d" % n for n in range(1000)]
        assert consumer.poll(0.1) == []
        assert set(consumer.lag().values()) == {0}
    with pytest.raises(ClosedError):
        consumer.poll()
