"""Tests of a consumer's fetch engine, which fetches from brokers, and of its fetch collector.

The collector returns the fetched records to the consumer. The test answers all requests.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from support import hand_made_log as by_hand
from support.client_world import ONE, OTHER_ID, TOPIC_ID, TWO, Asked, World, view

from broker_lite.client.arrays import binary_of
from broker_lite.client.consuming.arrow_rows import (
    JOINED_BYTES,
    ROW_SCHEMA,
    ConcatenatedSlices,
    arrow_rows,
)
from broker_lite.client.consuming.fetch_collector import FetchCollector
from broker_lite.client.fetch.fetch_engine import FetchEngine
from broker_lite.client.in_place.partitions import InPlace
from broker_lite.client.operations.cluster import Cluster, ClusterView
from broker_lite.client.operations.overdue import LATE_MS
from broker_lite.client.operations.silence import WARNING_MS
from broker_lite.client.received import MILLIS_MAX, LogTruncatedError, Slice
from broker_lite.config import ConsumerConfig
from broker_lite.errors import (
    CorruptMessageError,
    FencedLeaderEpochError,
    LogbusError,
    NetworkError,
    OffsetOutOfRangeError,
    TopicAuthorizationError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from broker_lite.machine import machine_id
from broker_lite.model import OffsetAndEpoch, TopicPartition
from broker_lite.record import arrow
from broker_lite.record.arrays import fixed
from broker_lite.record.arrow import TIMESTAMP_TYPE, Columns
from broker_lite.record.batch import read_header, stamp
from broker_lite.wire.api import ApiKey
from broker_lite.wire.calls.cluster import (
    MetadataBroker,
    MetadataPartition,
    MetadataResponse,
    MetadataTopic,
)
from broker_lite.wire.calls.offsets import BytesAnswer, OffsetsForBytesResponse
from broker_lite.wire.fetch import FLAG_REPAIR, PartitionAnswer

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def batch(base: int, count: int, size: int = 1, epoch: int = 5) -> bytearray:
    values = [b"%d" % (base + row) + b"." * (size - 1) for row in range(count)]
    buffer = bytearray(arrow.encode(Columns(count, None, binary_of(values)), timestamp_ms=99))
    stamp(buffer, read_header(buffer), base, epoch)
    return buffer


class Bench:
    """A fetch engine and its collector; the test answers the engine's requests."""

    def __init__(self, known: ClusterView | None = None, **options: Any) -> None:
        self.world = World()
        self.cluster = Cluster((ONE,), self.world.now_ms, view=known or view())
        self.views: list[ClusterView] = []
        config = ConsumerConfig(**options)
        self.in_place = InPlace(lambda endpoint, lane: True)
        self.engine = FetchEngine(
            self.world,
            self.cluster,
            config,
            on_fetched=lambda: None,
            on_view=self.views.append,
            in_place=self.in_place,
        )
        self.collector = FetchCollector(self.engine, skips_corrupt=config.on_corrupt == "skip")
        self.out_of_range: list[TopicPartition] = []
        self.topic_id, self.leader, self.leader_epoch, self.error = TOPIC_ID, 1, 5, 0
        self.world.automatic[ApiKey.METADATA] = self.answer_metadata

    def answer_metadata(self, asked: Asked) -> None:
        brokers = (MetadataBroker(1, "one", 1, None), MetadataBroker(2, "two", 2, None))
        rows = (
            ()
            if self.error
            else tuple(
                MetadataPartition(0, each, self.leader, self.leader_epoch, (1,), (1,), ())
                for each in (0, 1)
            )
        )
        topic = MetadataTopic(self.error, "t", self.topic_id, False, rows)
        self.world.asked.remove(asked)
        answer = MetadataResponse(0, brokers, "c", 1, (topic,))
        self.world.call_soon(lambda: asked.on_answer(answer))

    def begin(self, offsets: dict[TopicPartition, int]) -> None:
        self.collector.begin(offsets)
        self.world.run()

    def fetches(self) -> list[Asked]:
        return [asked for asked in self.world.asked if asked.api_key == ApiKey.FETCH]

    def fetch(self, lane: str = "fetch") -> Asked:
        (found,) = [asked for asked in self.fetches() if asked.lane == lane]
        return found

    def give(self, asked: Asked, *batches: bytes | bytearray, high: int = 1000, p: int = 0) -> None:
        records = [bytes(each) for each in batches]
        asked.fetched([PartitionAnswer(p, 0, high, high, 0, records)])
        self.world.run()

    def refuse(self, asked: Asked, code: int) -> None:
        asked.fetched([PartitionAnswer(0, code)])
        self.world.run()

    def settle(self, tp: TopicPartition, error: LogbusError) -> None:
        self.out_of_range.append(tp)

    def advance(self) -> bool:
        return self.collector.advance(self.settle)

    def values(self) -> list[bytes | None]:
        found: list[bytes | None] = []
        while self.advance():
            found += [record.value for record in self.collector.take_records(1000)]
            self.world.run()
        return found


def asked_offsets(asked: Asked) -> dict[int, int]:
    return {
        row.partition: row.fetch_offset
        for topic in asked.message.topics
        for row in topic.partitions
    }


def test_fetched_records_are_returned_and_positions_advance() -> None:
    bench = Bench()
    bench.begin({T0: 11})
    asked = bench.fetch()
    assert asked_offsets(asked) == {0: 11}
    assert asked.message.topics[0].topic_id == TOPIC_ID
    bench.give(asked, batch(10, 3), batch(13, 1))
    assert bench.collector.position(T0) == 11
    assert bench.advance()
    (first,) = bench.collector.take_records(1)
    assert (first.offset, bench.collector.position(T0)) == (11, 12)
    assert bench.values() == [b"12", b"13"]
    assert bench.collector.position(T0) == 14
    assert asked_offsets(bench.fetch()) == {0: 14}


def test_partitions_at_the_log_end_are_long_polled_on_a_separate_connection() -> None:
    bench = Bench()
    bench.begin({T0: 0, T1: 0})
    asked = bench.fetch()
    assert asked.message.max_wait_ms == 0
    asked.fetched(
        [PartitionAnswer(0, 0, 5, 5, 0, []), PartitionAnswer(1, 0, 5, 5, 0, [bytes(batch(0, 2))])]
    )
    bench.world.run()
    lanes = {each.lane: each for each in bench.fetches()}
    assert asked_offsets(lanes["fetch"]) == {1: 2}
    assert asked_offsets(lanes["tail"]) == {0: 0}
    assert lanes["tail"].message.max_wait_ms == 500


def test_only_a_partition_whose_local_read_failed_is_fetched_over_the_network() -> None:
    """The other partitions are still read from the broker's files on this machine."""
    bench = Bench()
    bench.in_place.refuse(T1)
    bench.begin({T1: 0})
    assert not bench.fetch().message.files.machine, (
        "a single partition needs no separate connection"
    )
    bench.give(bench.fetch(), batch(0, 2), p=1)
    assert bench.values() == [b"0", b"1"]
    bench.begin({T0: 0, T1: 0})
    asked = bench.fetch()
    assert asked_offsets(asked) == {0: 0}
    assert asked.message.files.machine == machine_id()
    other = bench.fetch("sent")
    assert asked_offsets(other) == {1: 0}
    assert not other.message.files.machine
    bench.give(other, batch(0, 2), p=1)
    bench.give(asked, batch(0, 1), p=0)
    assert sorted(bench.values()) == [b"0", b"0", b"1"]
    assert asked_offsets(bench.fetch("sent")) == {1: 2}


def test_full_fetch_buffer_of_a_partition_stops_its_fetches() -> None:
    bench = Bench(partition_fetch_bytes=1024)
    bench.begin({T0: 0})
    bench.give(bench.fetch(), batch(0, 10, size=100))
    bench.give(bench.fetch(), batch(10, 10, size=100))
    assert bench.fetches() == []
    assert bench.advance()
    bench.world.run()
    assert asked_offsets(bench.fetch()) == {0: 20}


def test_taking_batches_resumes_fetches_only_if_the_fetch_buffer_was_full() -> None:
    bench = Bench(partition_fetch_bytes=1024)
    bench.begin({T0: 0})
    bench.give(bench.fetch(), batch(0, 10, size=100))
    assert bench.advance()
    bench.collector.take_records(10)
    assert not bench.world.is_called
    # Two more batches fill the buffer, so the next fetch waits until a batch is taken.
    bench.give(bench.fetch(), batch(10, 10, size=100))
    bench.give(bench.fetch(), batch(20, 10, size=100))
    assert bench.fetches() == []
    assert bench.advance()
    assert bench.world.is_called
    bench.world.run()
    assert asked_offsets(bench.fetch()) == {0: 30}


def test_seek_discards_fetches_in_flight_and_queued_batches() -> None:
    bench = Bench()
    bench.begin({T0: 0})
    bench.give(bench.fetch(), batch(0, 3))
    assert bench.advance()
    bench.collector.take_records(1)
    bench.begin({T0: 100})
    assert asked_offsets(bench.fetch()) == {0: 100}
    bench.give(bench.fetch(), batch(100, 1))
    assert bench.values() == [b"100"]


def test_paused_partition_is_neither_fetched_nor_returned() -> None:
    bench = Bench()
    bench.begin({T0: 0})
    bench.give(bench.fetch(), batch(0, 3))
    assert bench.advance()
    bench.collector.take_records(1)
    bench.collector.pause([T0], True)
    bench.world.run()
    assert not bench.advance()
    assert bench.collector.paused() == [T0]
    assert bench.collector.position(T0) == 1
    bench.collector.pause([T0], False)
    bench.world.run()
    bench.give(bench.fetch(), batch(0, 3))
    assert bench.values() == [b"1", b"2"]


def test_fetch_follows_the_partition_to_a_new_leader() -> None:
    bench = Bench()
    bench.begin({T0: 0})
    bench.leader = 2
    bench.refuse(bench.fetch(), 6)
    bench.world.run(500)
    assert bench.fetch().endpoint == TWO
    assert bench.views


def test_request_to_a_hung_leader_is_repeated_at_the_next_leader() -> None:
    bench = Bench()
    bench.begin({T0: 3})
    bench.world.run(2000)
    assert bench.fetch().endpoint == ONE
    bench.leader = 2
    bench.world.run(1500)
    assert bench.fetch().endpoint == TWO
    assert asked_offsets(bench.fetch()) == {0: 3}


def test_fetch_is_retried_after_a_lost_connection() -> None:
    bench = Bench()
    bench.begin({T0: 7})
    bench.fetch().fail(NetworkError("gone"))
    bench.world.run(500)
    assert asked_offsets(bench.fetch()) == {0: 7}


def test_consumer_that_waits_for_silent_brokers_logs_that_it_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.cluster.has_answered = True
    bench.begin({T0: 7})

    def refuse(asked: Asked) -> None:
        bench.world.call_soon(lambda: asked.fail(NetworkError("refused")))

    bench.world.automatic |= {ApiKey.METADATA: refuse, ApiKey.FETCH: refuse}
    bench.fetch().fail(NetworkError("gone"))
    bench.world.run(WARNING_MS - 1)
    assert not caplog.messages
    bench.world.run(5_000)
    (said,) = caplog.messages
    assert "bootstrap.servers=one:1: the consumer waits, for 1" in said
    assert "refused" in said
    bench.world.automatic = {ApiKey.METADATA: bench.answer_metadata}
    bench.world.run(5_000)
    assert caplog.messages[1:] == ["bootstrap.servers=one:1: brokers answer again"]
    assert asked_offsets(bench.fetch()) == {0: 7}


def test_no_fetch_is_sent_to_a_broker_while_it_throttles_the_consumer() -> None:
    """Regression: the next fetch waited at the broker, which did not read it. The consumer asked
    for new metadata twice a second, and connected again after ``request.timeout.ms``."""
    bench = Bench(view(leaders=(1, 2)))
    bench.begin({T0: 0, T1: 0})
    first, other = bench.fetches()
    assert (first.endpoint, other.endpoint) == (ONE, TWO)
    rows = [PartitionAnswer(0, 0, 9, 9, 0, [bytes(batch(0, 2))])]
    first.fetched(rows, throttle_time_ms=LATE_MS - 1)
    bench.world.run(LATE_MS - 2)
    assert bench.values() == [b"0", b"1"]
    assert bench.fetches() == [other]
    bench.world.run(1)
    assert [asked_offsets(each) for each in bench.fetches() if each is not other] == [{0: 2}]


def test_recreated_topic_stops_the_reader_with_unknown_topic_id() -> None:
    bench = Bench()
    bench.begin({T0: 0})
    bench.topic_id = OTHER_ID
    bench.refuse(bench.fetch(), 100)
    bench.world.run(500)
    with pytest.raises(UnknownTopicIdError, match="recreated"):
        bench.advance()
    with pytest.raises(UnknownTopicIdError):
        bench.advance()


def test_deleted_topic_stops_the_reader() -> None:
    bench = Bench()
    bench.begin({T0: 0})
    bench.error = 3
    for _ in range(10):
        for asked in bench.fetches():
            bench.refuse(asked, 100)
        bench.world.run(1000)
    with pytest.raises(UnknownTopicOrPartitionError):
        bench.advance()


def test_out_of_range_error_stops_fetches_until_the_reader_sets_another_offset() -> None:
    bench = Bench()
    bench.begin({T0: 50})
    bench.refuse(bench.fetch(), 1)
    assert not bench.advance()
    assert bench.out_of_range == [T0]
    assert bench.fetches() == []
    bench.begin({T0: 60})
    assert asked_offsets(bench.fetch()) == {0: 60}


def test_truncation_below_the_position_is_reported() -> None:
    """After a truncation, the log may have other records at the reader's offset."""
    bench = Bench()
    bench.begin({T0: 0})
    bench.give(bench.fetch(), batch(0, 3, epoch=4), high=3)
    assert bench.values() == [b"0", b"1", b"2"]
    asked = bench.fetch("tail")
    (wanted,) = asked.message.topics[0].partitions
    assert (wanted.fetch_offset, wanted.last_fetched_epoch) == (3, 4)
    asked.fetched([PartitionAnswer(0, 0, 9, 9, 0, (), None, OffsetAndEpoch(1, 4))])
    bench.world.run()
    told: list[LogbusError] = []
    assert not bench.collector.advance(lambda tp, error: told.append(error))
    [error] = told
    assert isinstance(error, LogTruncatedError) and error.offset == 1
    assert "topic 't' partition 0 offset 3: the log was truncated" in str(error)
    assert type(pickle.loads(pickle.dumps(error))) is LogTruncatedError
    # After a seek, the last fetched epoch is unknown, so the leader compares none.
    bench.begin({T0: 1})
    (wanted,) = bench.fetch().message.topics[0].partitions
    assert (wanted.fetch_offset, wanted.last_fetched_epoch) == (1, -1)


def test_truncation_is_reported_even_if_the_log_grew_past_the_position_again() -> None:
    """After two unclean elections, the log has records at the reader's offset again.

    Only their leader epochs differ from those of the records that the reader has read.
    """
    bench = Bench()
    bench.begin({T0: 0})
    bench.give(bench.fetch(), batch(0, 20, epoch=3), batch(20, 10, epoch=5), high=30)
    assert len(bench.values()) == 30
    bench.leader_epoch = 6
    bench.refuse(bench.fetch("tail"), FencedLeaderEpochError.code)
    bench.world.run(1000.0)
    asked = bench.fetch("tail")
    (wanted,) = asked.message.topics[0].partitions
    assert (wanted.fetch_offset, wanted.last_fetched_epoch) == (30, 5)
    # In the new leader's log, epoch 4 ends at 33. The reader has read records of epoch 5.
    asked.fetched([PartitionAnswer(0, 0, 33, 33, 0, (), None, OffsetAndEpoch(33, 4))])
    bench.world.run()
    told: list[LogbusError] = []
    assert not bench.collector.advance(lambda tp, error: told.append(error))
    [error] = told
    assert isinstance(error, LogTruncatedError) and (error.offset, error.epoch) == (20, 3)
    # The reader resumes at 20. Its next fetch names epoch 3, so that the leader can detect that the
    # logs diverge even earlier.
    bench.collector.resume_at(T0, OffsetAndEpoch(20, 3))
    bench.world.run()
    (wanted,) = bench.fetch().message.topics[0].partitions
    assert (wanted.fetch_offset, wanted.last_fetched_epoch) == (20, 3)


def test_truncation_below_a_committed_offset_is_reported() -> None:
    """Regression: after an unclean election had truncated the log below a group's offset,
    the group continued there without an error, and skipped records."""
    bench = Bench()
    bench.collector.begin({T0: 3}, {T0: 4})
    bench.world.run()
    asked = bench.fetch()
    (wanted,) = asked.message.topics[0].partitions
    assert (wanted.fetch_offset, wanted.last_fetched_epoch) == (3, 4)
    assert bench.collector.commitable()[T0].leader_epoch == 4
    asked.fetched([PartitionAnswer(0, 0, 9, 9, 0, (), None, OffsetAndEpoch(1, 4))])
    bench.world.run()
    told: list[LogbusError] = []
    assert not bench.collector.advance(lambda tp, error: told.append(error))
    assert isinstance(told[0], LogTruncatedError) and told[0].offset == 1


def test_records_with_an_older_epoch_than_the_committed_offset_are_delivered() -> None:
    """Some clients commit an offset with the current leader epoch, not with that of the last
    record."""
    bench = Bench()
    bench.collector.begin({T0: 3}, {T0: 5})
    bench.world.run()
    bench.give(bench.fetch(), batch(3, 2, epoch=4), high=5)
    assert bench.values() == [b"3", b"4"]
    assert bench.collector.commitable()[T0].leader_epoch == 4


def test_offset_to_commit_has_the_leader_epoch_of_the_last_record() -> None:
    bench = Bench()
    bench.begin({T0: 0})
    bench.give(bench.fetch(), batch(0, 3, epoch=4), high=3)
    assert len(bench.values()) == 3
    rows = bench.collector.stamped({T0: 3})
    assert (rows[T0].offset, rows[T0].leader_epoch) == (3, 4)
    assert bench.collector.stamped({T0: 2})[T0].leader_epoch == -1


def test_flipped_bit_in_a_leader_epoch_is_not_reported_as_truncation() -> None:
    """The CRC does not cover the leader epoch.

    The log still has all records, so nothing was truncated.
    """
    bench = Bench()
    bench.begin({T0: 0})
    bench.give(bench.fetch(), batch(0, 3, epoch=4), high=3)
    assert len(bench.values()) == 3
    asked = bench.fetch("tail")
    asked.fetched([PartitionAnswer(0, 0, 9, 9, 0, (), None, OffsetAndEpoch(3, 3))])
    bench.world.run()
    assert not bench.advance()
    (again,) = bench.fetches()
    (wanted,) = again.message.topics[0].partitions
    assert (wanted.fetch_offset, wanted.last_fetched_epoch) == (3, -1)


def test_traceback_of_an_error_raised_at_every_poll_does_not_grow() -> None:
    """Regression: each raise of the same error object made its traceback longer. A program that
    polled on after an error used more and more memory."""
    bench = Bench()
    bench.begin({T0: 0})
    bench.refuse(bench.fetch(), TopicAuthorizationError.code)
    lengths = set()
    for _ in range(3):
        with pytest.raises(TopicAuthorizationError) as caught:
            bench.advance()
        lengths.add(len(caught.traceback))
    assert len(lengths) == 1


def test_out_of_range_error_names_the_partition() -> None:
    bench = Bench()
    bench.begin({T0: 50})
    bench.refuse(bench.fetch(), 1)

    def refuse(tp: TopicPartition, error: LogbusError) -> None:
        raise error

    with pytest.raises(OffsetOutOfRangeError, match="topic 't' partition 0 offset 50"):
        bench.collector.advance(refuse)


def test_batch_with_a_wrong_crc_stops_the_reader_at_the_batchs_offset() -> None:
    bench = Bench()
    bench.begin({T0: 0})
    bad = batch(1, 2)
    bad[-1] ^= 1
    bench.give(bench.fetch(), batch(0, 1), bad, batch(3, 1))
    assert bench.advance()
    assert [record.value for record in bench.collector.take_records(9)] == [b"0"]
    for _ in range(2):
        with pytest.raises(CorruptMessageError, match="'t' partition 0 offset 1"):
            bench.advance()
    assert bench.collector.position(T0) == 1
    bench.begin({T0: 3})
    bench.give(bench.fetch(), batch(3, 1))
    assert bench.values() == [b"3"]


def test_each_retry_after_a_corrupt_batch_asks_the_leader_to_repair_the_batch() -> None:
    """Regression: not every retry asked, so a batch that was also corrupt on a second replica was
    never repaired."""
    bench = Bench(view(isr=(1, 2)))
    bad = batch(0, 2)
    bad[-1] ^= 1
    for _ in range(2):
        bench.begin({T0: 0})
        bench.give(bench.fetch(), bad)
        assert not bench.advance()
        bench.world.run()
        asked = bench.fetch()
        assert asked.message.flags == FLAG_REPAIR
        bench.give(asked, batch(0, 2))
        assert bench.values() == [b"0", b"1"]


def test_batch_with_a_wrong_crc_that_is_skipped_is_reported() -> None:
    bench = Bench(on_corrupt="skip")
    bench.begin({T0: 0})
    bad = batch(1, 2)
    bad[-1] ^= 1
    bench.give(bench.fetch(), batch(0, 1), bad, batch(3, 1))
    assert bench.values() == [b"0", b"3"]
    assert bench.collector.skipped == [(T0, 1, 3)]


def with_next_batch_at(offset: int) -> Bench:
    """Return a reader that fetched an unreadable batch at offset 0, and skips corrupt batches."""
    bench = Bench(on_corrupt="skip")

    def next_batch(asked: Asked) -> None:
        bench.world.asked.remove(asked)
        assert asked.message.partitions[0].start_offset == 0
        answer = OffsetsForBytesResponse((BytesAnswer(0, offset, 100),))
        bench.world.call_soon(lambda: asked.on_answer(answer))

    bench.world.automatic[ApiKey.OFFSETS_FOR_BYTES] = next_batch
    bench.begin({T0: 0})
    bench.give(bench.fetch(), bytes(200))
    return bench


def test_skipping_a_batch_with_an_unreadable_header_looks_up_the_next_batch() -> None:
    bench = with_next_batch_at(4)
    bench.give(bench.fetch(), batch(4, 1))
    assert bench.values() == [b"4"]
    assert bench.collector.skipped == [(T0, 0, 4)]


def test_unreadable_last_batch_is_an_error_even_if_corrupt_batches_are_skipped() -> None:
    with pytest.raises(CorruptMessageError, match=r"'t' partition 0 offset 0: .* no batch follows"):
        with_next_batch_at(0).advance()


def test_unreadable_batch_header_is_an_error_unless_corrupt_batches_are_skipped() -> None:
    bench = Bench()
    bench.begin({T0: 0})
    bench.give(bench.fetch(), bytes(200))
    with pytest.raises(CorruptMessageError, match="'t' partition 0 offset 0"):
        bench.advance()


def test_offset_to_commit_follows_the_last_record_that_was_returned() -> None:
    bench = Bench()
    bench.begin({T0: 0, T1: 9})
    bench.give(bench.fetch(), batch(0, 3))
    assert bench.advance()
    bench.collector.take_records(2)
    committed = bench.collector.commitable()
    assert (committed[T0].offset, committed[T0].leader_epoch) == (2, 5)
    assert (committed[T1].offset, committed[T1].leader_epoch) == (9, -1)


def test_reader_can_take_records_and_arrow_rows_in_turn() -> None:
    bench = Bench()
    bench.begin({T0: 0})
    bench.give(bench.fetch(), batch(0, 5), batch(5, 2))
    assert bench.advance()
    bench.collector.take_records(1)
    parts = ConcatenatedSlices()
    assert bench.collector.take_rows(parts, 2)
    assert bench.advance()
    assert bench.collector.take_rows(parts, None)
    rows = arrow_rows(parts.slices, headers=False)
    rows.validate(full=True)
    assert rows.schema == ROW_SCHEMA
    assert rows.column("offset").to_pylist() == [1, 2, 3, 4]
    assert rows.column("topic").to_pylist() == ["t"] * 4
    assert rows.column("timestamp").cast("int64").to_pylist() == [99_000] * 4
    assert bench.values() == [b"5", b"6"]
    assert arrow_rows([], headers=True).num_rows == 0


def test_arrow_timestamp_beyond_the_microsecond_range_is_null() -> None:
    """Regression: nanoseconds, which some producers send as milliseconds, overflowed and became
    wrong times."""
    tp, latest = TopicPartition("t", 0), MILLIS_MAX
    times = fixed(np.array([0, latest, latest + 1, 1_700_000_000_000_000_000]), TIMESTAMP_TYPE)
    columns = Columns(4, None, None, times)
    encoded = arrow.encode(columns, timestamp_ms=0)
    rows = Slice(read_header(encoded), columns, 0, 4)
    found = arrow_rows([(tp, rows)], headers=False).column("timestamp")
    assert found.cast("int64").to_pylist() == [0, latest * 1000, None, None]


def test_collector_rewind_undoes_the_position_advance_of_the_taken_rows() -> None:
    bench = Bench()
    bench.begin({T0: 0})
    bench.give(bench.fetch(), batch(0, 5), batch(5, 2))
    bench.collector.settle()
    assert bench.advance()
    parts = ConcatenatedSlices(size_bytes=JOINED_BYTES)
    assert bench.collector.take_rows(parts, 2), "the first rows are taken even above the limit"
    parts.size_bytes = JOINED_BYTES
    assert not bench.collector.take_rows(parts, 2)
    assert bench.collector.position(T0) == 2
    bench.collector.rewind()
    assert bench.collector.position(T0) == 0


def test_fetch_engine_stops_fetching_at_the_limit_of_buffered_bytes() -> None:
    bench = Bench(partition_fetch_bytes=2000, fetch_max_bytes=1024)
    bench.begin({T0: 0, T1: 0})
    asked = bench.fetch()
    asked.fetched([PartitionAnswer(0, 0, 99, 99, 0, [bytes(batch(0, 20, size=100))])])
    bench.world.run()
    assert bench.fetches() == []
    bench.begin({T0: 50})
    assert asked_offsets(bench.fetch())[0] == 50


def test_control_and_aborted_batches_advance_positions_and_yield_no_records() -> None:
    bench = Bench()
    bench.begin({T0: 0})
    answer = PartitionAnswer(
        0, 0, by_hand.END, by_hand.END, 0, by_hand.contiguous(), by_hand.aborted_from(0)
    )
    bench.fetch().fetched([answer])
    bench.world.run()
    assert bench.values() == [by_hand.value_at(at) for at in by_hand.COMMITTED]
    assert bench.collector.position(T0) == by_hand.END
    assert asked_offsets(bench.fetch("tail")) == {0: by_hand.END}


def test_fetch_response_with_only_control_batches_advances_the_position() -> None:
    bench = Bench()
    bench.begin({T0: 34})
    bench.give(bench.fetch(), *by_hand.contiguous()[18:20])
    assert bench.values() == []
    assert bench.collector.position(T0) == 40
    assert asked_offsets(bench.fetch()) == {0: 40}
