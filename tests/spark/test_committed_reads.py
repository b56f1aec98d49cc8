"""Read a topic with committed, aborted and open transactions with Spark's source."""

from __future__ import annotations

import pytest
from support.patience import until

from broker_lite.client import EndOffsetsWatch
from broker_lite.model import TopicPartition
from pyspark_logbus.progress_listener import LagListener

ROW_BYTES = 40_000
"""Size of a value: ten values exceed the smallest range that a task reads from files."""
COMMITTED = {"isolation.level": "read_committed", "startingOffsets": "earliest"}


def value(word, number):
    return f"{word}-{number}".ljust(ROW_BYTES).encode()


def send(producer, topic, word, count):
    for number in range(count):
        producer.send(topic, value(word, number), partition=0)
    producer.flush()


def words(frame):
    """Return the values without their padding, in offset order.

    The function sorts in Python: to sort the rows, Spark would read them twice.
    """
    rows = frame.selectExpr("offset", "rtrim(string(value))").collect()
    return [text for _, text in sorted(rows)]


def named(**counts):
    return [f"{word}-{number}" for word, count in counts.items() for number in range(count)]


@pytest.fixture
def mixed(queries, bus):
    """Yield a topic and the producer of its open transaction.

    The topic has plain, committed, aborted, committed, open and plain records, in this order.
    """
    topic = queries.topic(0)
    with bus.producer() as plain, bus.producer(transactional_id=f"one-{topic}") as producer:
        send(plain, topic, "plain", 5)
        for word, end in (("kept", producer.commit), ("void", producer.abort)):
            producer.begin()
            send(producer, topic, word, 10)
            end()
        producer.begin()
        send(producer, topic, "more", 10)
        producer.commit()
        with bus.producer(transactional_id=f"two-{topic}") as waiting:
            waiting.begin()
            send(waiting, topic, "open", 5)
            send(plain, topic, "late", 3)
            yield topic, waiting


def test_end_offsets_watch_returns_the_offset_of_the_first_transactional_record(mixed, bus):
    topic, _ = mixed
    with EndOffsetsWatch(bus.bootstrap_servers, [topic]) as watch:
        assert watch.wait_ready(20)
        end = watch.snapshot().ends[TopicPartition(topic, 0)]
        assert (end.offset, end.transactions_from) == (5 + 11 + 11 + 11, 5)


@pytest.mark.parametrize("local", ["true", "false"])
def test_spark_batch_query_reads_committed_rows_below_the_first_open_transaction(
    queries, mixed, local
):
    topic, waiting = mixed
    given = {"subscribe": topic, "localReads": local}
    committed = queries.read(**given, **COMMITTED)
    assert words(committed) == named(plain=5, kept=10, more=10)
    everything = queries.read(**given, **{"isolation.level": "read_uncommitted"})
    assert words(everything) == named(plain=5, kept=10, void=10, more=10, open=5, late=3)
    waiting.commit()
    # Spark plans once for each load(), so the second action reads the same rows.
    assert words(committed) == named(plain=5, kept=10, more=10)
    again = queries.read(**given, **COMMITTED)
    assert words(again) == named(plain=5, kept=10, more=10, open=5, late=3)


@pytest.mark.parametrize("local", ["true", "false"])
def test_spark_stream_reads_committed_rows_and_reports_no_missing_rows(queries, mixed, local):
    topic, waiting = mixed
    seen, lags = [], []
    listener = LagListener(lags.append)
    queries.spark.streams.addListener(listener)
    frame = queries.stream(subscribe=topic, localReads=local, maxOffsetsPerTrigger="8", **COMMITTED)
    queries.start(frame, each=lambda batch, _: seen.extend(words(batch)))
    until(lambda: len(seen) == 25)
    waiting.commit()
    until(lambda: len(seen) == 33)
    assert seen == named(plain=5, kept=10, more=10, open=5, late=3)
    until(lambda: sum(lag.rows for lag in lags) == 33)
    queries.spark.streams.removeListener(listener)
    # maxOffsetsPerTrigger counts offsets. Of the 47 offsets, 14 have no row: markers and the
    # aborted records.
    assert len(lags) >= 6
    assert max(lag.rows for lag in lags) <= 8
    assert {lag.missing_rows for lag in lags} == {0, None}
    assert {lag.lost_records for lag in lags} == {0}
