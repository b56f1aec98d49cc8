"""Tests of how a task of Spark's sink converts Arrow batches to columns for the producer; without
a broker."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest

from broker_lite.config import ProducerConfig
from broker_lite.errors import (
    ClosedError,
    InvalidPartitionsError,
    InvalidRecordError,
    NullTopicError,
)
from broker_lite.record import arrow
from broker_lite.record.arrow import HEADERS_TYPE
from pyspark_logbus import options
from pyspark_logbus import partition_writer as writer
from pyspark_logbus.schema import SinkColumns
from pyspark_logbus.writers import LogbusStreamWriter, LogbusWriter, RowsWritten


def test_log_message_of_an_aborted_batch_warns_that_written_rows_stay_in_the_topic(caplog):
    found = options.write_options(options.parse({"topic": "t"}), "h:1")
    columns = SinkColumns(value=0)
    LogbusWriter(found, columns).abort([None, RowsWritten({"t": 1})])
    LogbusStreamWriter(found, columns).abort([None], 7)
    first, second = caplog.messages
    assert first == "a batch write failed: rows that its tasks have written stay in the log"
    assert second.startswith("micro-batch 7 failed: rows that its tasks have written stay")


def test_arrow_batch_with_rows_of_a_single_topic_is_not_copied():
    batch = pa.record_batch({"value": ["a", "b"]})
    [(topic, part)] = writer.by_topic(batch, "t", SinkColumns(value=0))
    assert (topic, part) == ("t", batch)
    columns = SinkColumns(value=0, topic=1)
    same = pa.record_batch({"value": ["a", "b"], "topic": ["u", "u"]})
    [(topic, part)] = writer.by_topic(same, "", columns)
    assert topic == "u" and part is same


def test_rows_reach_their_topics_in_order():
    batch = pa.record_batch({"value": ["1", "2", "3", "4"], "topic": ["x", "y", "x", "y"]})
    found = dict(writer.by_topic(batch, "", SinkColumns(value=0, topic=1)))
    assert {name: part.column(0).to_pylist() for name, part in found.items()} == {
        "x": ["1", "3"],
        "y": ["2", "4"],
    }


def test_row_with_a_null_topic_fails_before_any_row_is_sent():
    batch = pa.record_batch({"value": ["1", "2"], "topic": ["x", None]})
    with pytest.raises(NullTopicError, match="null topic present in the data"):
        next(writer.by_topic(batch, "", SinkColumns(value=0, topic=1)))


def test_empty_batch_sends_nothing():
    batch = pa.record_batch({"value": pa.array([], pa.string())})
    assert list(writer.by_topic(batch, "t", SinkColumns(value=0))) == []


@pytest.mark.parametrize("wrong", [-1, 3])
def test_sink_refuses_a_row_for_an_unknown_partition(wrong):
    with pytest.raises(InvalidPartitionsError, match=rf"partition {wrong} of topic 't'"):
        writer.check_partitions("t", np.array([0, wrong], np.int32), 3)
    writer.check_partitions("t", np.array([0, 2], np.int32), 3)
    writer.check_partitions("t", np.array([], np.int32), 3)


def test_strings_become_bytes_and_nulls_stay_null():
    batch = pa.record_batch({"value": ["é", None], "key": pa.array([None, b"k"], pa.binary())})
    found = writer.to_columns(batch, SinkColumns(value=0, key=1))
    assert found.value.to_pylist() == ["é".encode(), None]
    assert found.value.type == pa.binary()
    assert found.key.to_pylist() == [None, b"k"]
    assert found.timestamp is None and found.headers is None
    # The binary column shares the string column's memory, so nothing was copied.
    assert found.value.buffers()[2].address == batch.column(0).buffers()[2].address


def test_sink_omits_columns_that_are_all_null():
    batch = pa.record_batch(
        {"value": pa.nulls(2, pa.string()), "headers": pa.nulls(2, HEADERS_TYPE)}
    )
    found = writer.to_columns(batch, SinkColumns(value=0, headers=1))
    assert found.value is None and found.headers is None and found.row_count == 2


def test_headers_keep_duplicates_nulls_and_empty_values():
    given = [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None, []]
    batch = pa.record_batch({"value": ["1", "2", "3"], "headers": pa.array(given, HEADERS_TYPE)})
    found = writer.to_columns(batch, SinkColumns(value=0, headers=1))
    assert found.headers.to_pylist() == given
    arrow.encode(found, compression="none", timestamp_ms=5)


def test_header_without_key_is_refused():
    headers = pa.array([[{"key": None, "value": b"1"}]], HEADERS_TYPE)
    batch = pa.record_batch({"value": ["1"], "headers": headers})
    with pytest.raises(InvalidRecordError, match="header's key is null"):
        writer.to_columns(batch, SinkColumns(value=0, headers=1))


@pytest.mark.parametrize("zone", ["UTC", None])
def test_timestamps_are_rounded_down_to_milliseconds_and_null_becomes_the_present_time(zone):
    stamps = pa.array([1_999, -1, None], pa.timestamp("us", zone))
    batch = pa.record_batch({"value": ["1", "2", "3"], "timestamp": stamps})
    before = datetime.datetime.now(datetime.UTC).timestamp() * 1000 - 1
    found = writer.to_columns(batch, SinkColumns(value=0, timestamp=1)).timestamp
    first, second, third = found.cast(pa.int64()).to_pylist()
    assert (first, second) == (1, -1)
    assert third >= before
    assert found.type == arrow.TIMESTAMP_TYPE


def test_producer_of_a_task_uses_the_options_of_the_query():
    given = {
        "kafka.acks": "1", "kafka.compression.type": "lz4", "linger.ms": "7",
        "batch.size": "1000", "max.request.size": "2000", "buffer.memory": "70000",
        "delivery.timeout.ms": "300", "max.block.ms": "400", "retry.backoff.ms": "5",
        "request.timeout.ms": "60", "client.id": "mine",
    }  # fmt: skip
    config = writer.producer_config(options.write_options(options.parse(given), "h:1"))
    assert config == ProducerConfig(
        acks="1", compression="lz4", linger_ms=7, batch_bytes=1000, max_request_bytes=2000,
        buffer_bytes=70_000, delivery_timeout_ms=300, max_block_ms=400, retry_backoff_ms=5,
        request_timeout_ms=60, client_id="mine", idempotence=False, has_answered=True,
    )  # fmt: skip


def test_worker_caches_only_the_last_few_producers(monkeypatch):
    """A Spark worker outlives its queries, so without a limit it would keep the producers of all
    of them."""
    monkeypatch.setattr(writer, "_sinks", {})
    made = []
    for number in range(writer.SINKS_MAX + 2):
        given = options.parse({"topic": "t", "client.id": f"c{number}"})
        found = options.write_options(given, "127.0.0.1:1")
        made.append(writer.sink_for(found))
        assert writer.sink_for(found) is made[-1]
    assert list(writer._sinks.values()) == made[2:]
    for sink in made[:2]:
        with pytest.raises(ClosedError):
            sink.producer.send("t", b"x")
    for sink in made[2:]:
        sink.producer.close(0)
