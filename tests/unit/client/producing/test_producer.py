"""Tests of ``Producer``: its futures after its thread crashed or after a fork, and rows that wait
for ``linger.ms``.
"""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest
from support.client_world import TOPIC_ID, Asked, World

from broker_lite.client.producing.accumulator import columns_of, tables_of
from broker_lite.client.producing.futures import RecordFuture
from broker_lite.client.producing.producer import (
    BACKLOG_LINGER_MS,
    FAILURES_KEPT,
    Producer,
)
from broker_lite.config import ProducerConfig
from broker_lite.errors import (
    ClosedError,
    InvalidPartitionsError,
    InvalidSchemaError,
    LogbusError,
    NoBrokersError,
)
from broker_lite.wire.api import ApiKey
from broker_lite.wire.calls.cluster import (
    MetadataBroker,
    MetadataPartition,
    MetadataResponse,
    MetadataTopic,
)
from broker_lite.wire.calls.producers import InitProducerIdResponse


def producer_in(world: World, leaders: tuple[int, ...] = (1,)) -> Producer:
    """Return a producer on the simulated network ``world``, where tests answer Produce requests.
    Partition i of topic ``t`` has the leader ``leaders[i]``.
    """

    def reply(answer: Any) -> Any:
        def answered(asked: Asked) -> None:
            world.asked.remove(asked)
            world.call_soon(lambda: asked.on_answer(answer))

        return answered

    rows = tuple(MetadataPartition(0, n, each, 5, (1,), (1,), ()) for n, each in enumerate(leaders))
    topic = MetadataTopic(0, "t", TOPIC_ID, False, rows)
    brokers = (MetadataBroker(1, "one", 1, None),)
    world.automatic[ApiKey.METADATA] = reply(MetadataResponse(0, brokers, "c", 1, (topic,)))
    world.automatic[ApiKey.INIT_PRODUCER_ID] = reply(InitProducerIdResponse(0, 0, 7, 0))
    producer = Producer("one:1", ProducerConfig(), shell=world)
    producer._cluster.now_ms = world.now_ms
    return producer


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_flush_and_close_report_unacknowledged_records_after_the_thread_crashed() -> None:
    def fail() -> None:
        raise RuntimeError("planted")

    # Nothing listens on port 1, so the records still wait for metadata when the thread ends.
    producers = [Producer("127.0.0.1:1") for _ in range(2)]
    for producer in producers:
        sent = producer.send("t", b"x")
        assert producer._reactor is not None
        producer._reactor.call_soon(fail)
        producer._reactor._thread.join(30)
        assert sent.done()
    with pytest.raises(ClosedError, match="planted"):
        producers[0].flush()
    producers[0].close()
    with pytest.raises(ClosedError, match="planted"):
        producers[1].close()


@pytest.mark.parametrize("end", ["crash", "fork"])
def test_in_flight_record_fails_after_a_producer_crash_or_a_process_fork(end: str) -> None:
    """Regression: ``result`` returned metadata with offset -1, as if the broker had acknowledged
    the record."""
    world = World()
    producer = producer_in(world)
    sent = producer.send("t", b"x")
    world.run(100)
    assert world.the(ApiKey.PRODUCE)
    if end == "crash":
        with pytest.raises(RuntimeError):
            producer._crashed(RuntimeError("planted"))
    else:
        producer._forked()
    with pytest.raises(ClosedError):
        sent.result(0)
    assert isinstance(sent.exception(0), ClosedError)


def test_record_is_sent_while_batches_of_another_partition_wait_for_a_leader() -> None:
    """Regression: new rows of a topic were not sent while any batch of the topic waited. One
    partition without a leader delayed the records of all others until ``delivery.timeout.ms``."""
    world = World()
    producer = producer_in(world, leaders=(-1, 1))
    producer.send("t", b"waits", partition=0)
    world.run(1000)
    producer.send("t", b"is sent", partition=1)
    world.run(producer.config.linger_ms + BACKLOG_LINGER_MS)
    [row] = world.the(ApiKey.PRODUCE).message.topics[0].partitions
    assert row.partition == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": b"t"},
        {"topic": None},
        {"value": "\ud800"},
        {"key": "\ud800"},
        {"headers": 5},
        {"headers": [("\ud800", b"x")]},
        {"partition": 1 << 40},
    ],
)
def test_send_refuses_an_argument_that_cannot_be_encoded(wrong: dict[str, Any]) -> None:
    """Regression: a topic name that was no text, a header name that was no Unicode and a partition
    of more than 32 bits ended the producer's thread, and all its records failed."""
    world = World()
    producer = producer_in(world)
    with pytest.raises(LogbusError):
        producer.send(**{"topic": "t", "value": b"x", **wrong})
    producer.send("t", b"good")
    world.run(100)
    assert world.the(ApiKey.PRODUCE)


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": b"t"},
        {"partition": "0"},
        {"partition": 1 << 40},
        {"timestamp_ms": 1.5},
        {"timestamp_ms": 1 << 70},
    ],
)
def test_send_arrow_refuses_an_argument_that_cannot_be_encoded(wrong: dict[str, Any]) -> None:
    """Regression: an invalid argument ended the producer's thread, and all records of the producer
    failed.
    """
    world = World()
    producer = producer_in(world)
    rows = pa.record_batch({"value": pa.array([b"x"])})
    with pytest.raises(LogbusError):
        producer.send_arrow(**{"topic": "t", "data": rows, **wrong})
    producer.send("t", b"good")
    world.run(100)
    assert world.the(ApiKey.PRODUCE)


def test_flush_raises_the_next_error_after_many_errors_that_futures_have_returned() -> None:
    """Regression: the producer kept the first hundred errors for ``flush``, also those that futures
    had already returned. A later error was then lost."""
    world = World()
    producer = producer_in(world)
    for _ in range(FAILURES_KEPT):
        sent = producer.send("t", b"x", partition=9)
        world.run(100)
        assert isinstance(sent.exception(), InvalidPartitionsError)
    producer.send("t", b"x", partition=9)
    world.run(100)
    with pytest.raises(InvalidPartitionsError):
        producer.flush()
    producer.flush()


def test_send_arrow_leaves_out_the_index_of_a_filtered_pandas_frame() -> None:
    """Regression: the frame was refused because of the column that holds its index."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"value": ["a", "b", "c"]})
    [batch] = tables_of(frame[frame.value > "a"])
    columns, _ = columns_of(batch, None, None)
    assert columns.value.to_pylist() == [b"b", b"c"]


def test_send_arrow_refuses_a_column_key_if_the_argument_key_names_another_column() -> None:
    """Regression: with ``key="id"`` the column ``key`` was left out of the records without an
    error."""
    table = pa.table({"id": [b"1"], "key": [b"k"], "value": [b"v"]})
    with (
        Producer("127.0.0.1:1") as producer,
        pytest.raises(InvalidSchemaError, match="column 'key' is not a field of a record"),
    ):
        producer.send_arrow("t", table, key="id")


def test_send_arrow_refuses_two_columns_of_one_name() -> None:
    """Regression: pyarrow's KeyError reached the caller."""
    [batch] = pa.table([[b"k"], [b"v"], [b"w"]], names=["key", "value", "value"]).to_batches()
    with pytest.raises(InvalidSchemaError, match="there are 2 columns 'value'; keep one"):
        columns_of(batch, None, None)


def test_errors_of_a_closed_producer_keep_no_stack_frames_of_earlier_calls() -> None:
    """Regression: each ``send``, and each ``result`` of a failed record, made the traceback of one
    error object longer."""
    producer = producer_in(World())
    sent = producer.send("t", b"x")
    producer.end()
    for call in (lambda: sent.result(0), lambda: producer.send("t", b"x")):
        lengths = set()
        for _ in range(3):
            with pytest.raises(ClosedError) as caught:
                call()
            lengths.add(len(caught.traceback))
        assert len(lengths) == 1


@pytest.mark.parametrize("call", ["flush", "close", "result"])
def test_callback_that_waits_for_other_records_gets_an_error(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: the producer's thread, which runs the callbacks, waited for itself for ever."""
    producer = Producer("127.0.0.1:1")
    first, second = producer.send("t", b"x"), producer.send("u", b"x")
    called = threading.Event()

    def wait(_: RecordFuture) -> None:
        calls = {"flush": producer.flush, "close": producer.close, "result": second.result}
        try:
            calls[call]()
        finally:
            called.set()

    first.add_done_callback(wait)
    assert producer._reactor is not None
    producer._reactor.call_soon(lambda: first.outcome.finish(NoBrokersError("planted")))
    assert called.wait(60)
    producer.end()
    assert "a callback of a sent record waits for other records" in caplog.text
