"""The consumer's engine and collector against scripted brokers."""

from __future__ import annotations

import pickle
from typing import Any

import hand_made_log as by_hand
import pytest
from client_world import ONE, OTHER_ID, TOPIC_ID, TWO, Asked, World, view

from broker_lite.client.arrays import binary_of
from broker_lite.client.consuming.fetch_collector import (
    JOINED_BYTES,
    ROW_SCHEMA,
    ConcatenatedSlices,
    FetchCollector,
    arrow_rows,
)
from broker_lite.client.fetch.fetch_engine import FetchEngine
from broker_lite.client.in_place.partitions import InPlace
from broker_lite.client.operations.cluster import Cluster, ClusterView
from broker_lite.client.received import LogTruncatedError
from broker_lite.config import ConsumerConfig
from broker_lite.errors import (
    CorruptMessageError,
    FencedLeaderEpochError,
    LogbusError,
    NetworkError,
    OffsetOutOfRangeError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from broker_lite.machine import machine_id
from broker_lite.model import OffsetAndEpoch, TopicPartition
from broker_lite.record import arrow
from broker_lite.record.arrow import Columns
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
    """An engine and an collector in a world."""

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

    def settle(self, where: TopicPartition, error: LogbusError) -> None:
        self.out_of_range.append(where)

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


def test_what_arrives_is_handed_out_and_positions_follow() -> None:
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


def test_partitions_at_the_end_wait_in_a_lane_of_their_own() -> None:
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


def test_a_partition_that_cannot_be_read_in_place_is_sent_and_others_are_not() -> None:
    """It once had all others of its fetch sent, too."""
    bench = Bench()
    bench.in_place.refuse(T1)
    bench.begin({T1: 0})
    assert not bench.fetch().message.machine, "alone it takes no lane of its own"
    bench.give(bench.fetch(), batch(0, 2), p=1)
    assert bench.values() == [b"0", b"1"]
    bench.begin({T0: 0, T1: 0})
    asked = bench.fetch()
    assert asked_offsets(asked) == {0: 0}
    assert asked.message.machine == machine_id()
    other = bench.fetch("sent")
    assert asked_offsets(other) == {1: 0}
    assert not other.message.machine
    bench.give(other, batch(0, 2), p=1)
    bench.give(asked, batch(0, 1), p=0)
    assert sorted(bench.values()) == [b"0", b"0", b"1"]
    assert asked_offsets(bench.fetch("sent")) == {1: 2}


def test_no_more_is_fetched_than_the_reader_has_room_for() -> None:
    bench = Bench(partition_fetch_bytes=1024)
    bench.begin({T0: 0})
    bench.give(bench.fetch(), batch(0, 10, size=100))
    bench.give(bench.fetch(), batch(10, 10, size=100))
    assert bench.fetches() == []
    assert bench.advance()
    bench.world.run()
    assert asked_offsets(bench.fetch()) == {0: 20}


def test_what_the_reader_takes_wakes_nobody_who_does_not_wait_for_room() -> None:
    bench = Bench(partition_fetch_bytes=1024)
    bench.begin({T0: 0})
    bench.give(bench.fetch(), batch(0, 10, size=100))
    assert bench.advance()
    bench.collector.take_records(10)
    assert not bench.world.is_called
    # It was counted, though: two more have room, and the third waits until one is taken.
    bench.give(bench.fetch(), batch(10, 10, size=100))
    bench.give(bench.fetch(), batch(20, 10, size=100))
    assert bench.fetches() == []
    assert bench.advance()
    assert bench.world.is_called
    bench.world.run()
    assert asked_offsets(bench.fetch()) == {0: 30}


def test_a_seek_voids_what_is_under_way_and_what_arrived() -> None:
    bench = Bench()
    bench.begin({T0: 0})
    bench.give(bench.fetch(), batch(0, 3))
    assert bench.advance()
    bench.collector.take_records(1)
    bench.begin({T0: 100})
    assert asked_offsets(bench.fetch()) == {0: 100}
    bench.give(bench.fetch(), batch(100, 1))
    assert bench.values() == [b"100"]


def test_a_paused_partition_is_neither_fetched_nor_handed_out() -> None:
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


def test_the_new_leader_is_asked() -> None:
    bench = Bench()
    bench.begin({T0: 0})
    bench.leader = 2
    bench.refuse(bench.fetch(), 6)
    bench.world.run(500)
    assert bench.fetch().endpoint == TWO
    assert bench.views


def test_a_leader_that_hangs_is_left_once_it_is_deposed() -> None:
    bench = Bench()
    bench.begin({T0: 3})
    bench.world.run(2000)
    assert bench.fetch().endpoint == ONE
    bench.leader = 2
    bench.world.run(1500)
    assert bench.fetch().endpoint == TWO
    assert asked_offsets(bench.fetch()) == {0: 3}


def test_a_lost_connection_is_made_again() -> None:
    bench = Bench()
    bench.begin({T0: 7})
    bench.fetch().fail(NetworkError("gone"))
    bench.world.run(500)
    assert asked_offsets(bench.fetch()) == {0: 7}


def test_a_topic_made_again_is_not_read() -> None:
    bench = Bench()
    bench.begin({T0: 0})
    bench.topic_id = OTHER_ID
    bench.refuse(bench.fetch(), 100)
    bench.world.run(500)
    with pytest.raises(UnknownTopicIdError, match="made again"):
        bench.advance()
    with pytest.raises(UnknownTopicIdError):
        bench.advance()


def test_a_deleted_topic_ends_the_reading() -> None:
    bench = Bench()
    bench.begin({T0: 0})
    bench.error = 3
    for _ in range(10):
        for asked in bench.fetches():
            bench.refuse(asked, 100)
        bench.world.run(1000)
    with pytest.raises(UnknownTopicOrPartitionError):
        bench.advance()


def test_an_offset_out_of_range_is_the_readers_decision() -> None:
    bench = Bench()
    bench.begin({T0: 50})
    bench.refuse(bench.fetch(), 1)
    assert not bench.advance()
    assert bench.out_of_range == [T0]
    assert bench.fetches() == []
    bench.begin({T0: 60})
    assert asked_offsets(bench.fetch()) == {0: 60}


def test_a_log_that_was_truncated_behind_the_reader_is_not_read_on_as_if_nothing_was() -> None:
    """It may have other records at the reader's offset by now, in a batch that begins there."""
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
    assert not bench.collector.advance(lambda where, error: told.append(error))
    [error] = told
    assert isinstance(error, LogTruncatedError) and error.offset == 1
    assert "topic 't' partition 0 offset 3: the log was truncated" in str(error)
    assert type(pickle.loads(pickle.dumps(error))) is LogTruncatedError
    # What a seek leads to was not read before, so there is nothing to compare.
    bench.begin({T0: 1})
    (wanted,) = bench.fetch().message.topics[0].partitions
    assert (wanted.fetch_offset, wanted.last_fetched_epoch) == (1, -1)


def test_a_log_that_grew_beyond_the_reader_after_it_was_truncated_is_not_read_on() -> None:
    """Two leaders in turn that the other was elected without: what lies before the reader's offset
    is of an epoch that the log does not know, though it goes on behind it."""
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
    # Its epoch 4 goes on to 33; what was read of epoch 5 was never there.
    asked.fetched([PartitionAnswer(0, 0, 33, 33, 0, (), None, OffsetAndEpoch(33, 4))])
    bench.world.run()
    told: list[LogbusError] = []
    assert not bench.collector.advance(lambda where, error: told.append(error))
    [error] = told
    assert isinstance(error, LogTruncatedError) and (error.offset, error.epoch) == (20, 3)
    # What stays is compared as well: it may have parted before.
    bench.collector.go_on(T0, OffsetAndEpoch(20, 3))
    bench.world.run()
    (wanted,) = bench.fetch().message.topics[0].partitions
    assert (wanted.fetch_offset, wanted.last_fetched_epoch) == (20, 3)


def test_what_a_group_read_before_is_compared_with_the_log() -> None:
    """A group that was away during an unclean election began in the middle of other records."""
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
    assert not bench.collector.advance(lambda where, error: told.append(error))
    assert isinstance(told[0], LogTruncatedError) and told[0].offset == 1


def test_an_epoch_that_another_client_committed_makes_no_records_damaged() -> None:
    """Some commit the leader's present epoch rather than that of what they read."""
    bench = Bench()
    bench.collector.begin({T0: 3}, {T0: 5})
    bench.world.run()
    bench.give(bench.fetch(), batch(3, 2, epoch=4), high=5)
    assert bench.values() == [b"3", b"4"]
    assert bench.collector.commitable()[T0].leader_epoch == 4


def test_a_position_committed_by_its_number_has_its_epoch() -> None:
    bench = Bench()
    bench.begin({T0: 0})
    bench.give(bench.fetch(), batch(0, 3, epoch=4), high=3)
    assert len(bench.values()) == 3
    rows = bench.collector.stamped({T0: 3})
    assert (rows[T0].offset, rows[T0].leader_epoch) == (3, 4)
    assert bench.collector.stamped({T0: 2})[T0].leader_epoch == -1


def test_an_epoch_that_a_flipped_bit_made_up_is_no_loss() -> None:
    """The epoch is outside the CRC: where a log holds what comes next, nothing was cut off."""
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


def test_out_of_range_names_the_partition() -> None:
    bench = Bench()
    bench.begin({T0: 50})
    bench.refuse(bench.fetch(), 1)

    def refuse(where: TopicPartition, error: LogbusError) -> None:
        raise error

    with pytest.raises(OffsetOutOfRangeError, match="topic 't' partition 0 offset 50"):
        bench.collector.advance(refuse)


def test_a_wrong_crc_stops_the_reader_at_its_offset() -> None:
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


def test_whoever_tries_again_asks_again_for_a_whole_batch() -> None:
    """The second time that a batch was damaged, on another replica, nobody was asked to repair it,
    however often its reader began anew; found by the simulator."""
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


def test_skipping_goes_past_a_wrong_crc_and_says_so() -> None:
    bench = Bench(on_corrupt="skip")
    bench.begin({T0: 0})
    bad = batch(1, 2)
    bad[-1] ^= 1
    bench.give(bench.fetch(), batch(0, 1), bad, batch(3, 1))
    assert bench.values() == [b"0", b"3"]
    assert bench.collector.skipped == [(T0, 1, 3)]


def test_skipping_a_batch_without_a_header_asks_where_the_next_begins() -> None:
    bench = Bench(on_corrupt="skip")

    def next_batch(asked: Asked) -> None:
        bench.world.asked.remove(asked)
        assert asked.message.partitions[0].start_offset == 0
        answer = OffsetsForBytesResponse((BytesAnswer(0, 4, 100),))
        bench.world.call_soon(lambda: asked.on_answer(answer))

    bench.world.automatic[ApiKey.OFFSETS_FOR_BYTES] = next_batch
    bench.begin({T0: 0})
    bench.give(bench.fetch(), bytes(200))
    bench.give(bench.fetch(), batch(4, 1))
    assert bench.values() == [b"4"]
    assert bench.collector.skipped == [(T0, 0, 4)]


def test_a_batch_without_a_header_is_an_error_otherwise() -> None:
    bench = Bench()
    bench.begin({T0: 0})
    bench.give(bench.fetch(), bytes(200))
    with pytest.raises(CorruptMessageError, match="'t' partition 0 offset 0"):
        bench.advance()


def test_what_a_group_would_commit() -> None:
    bench = Bench()
    bench.begin({T0: 0, T1: 9})
    bench.give(bench.fetch(), batch(0, 3))
    assert bench.advance()
    bench.collector.take_records(2)
    committed = bench.collector.commitable()
    assert (committed[T0].offset, committed[T0].leader_epoch) == (2, 5)
    assert (committed[T1].offset, committed[T1].leader_epoch) == (9, -1)


def test_arrow_rows_and_records_may_be_mixed() -> None:
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


def test_rows_beyond_the_bound_stay_and_what_is_given_back_comes_again() -> None:
    bench = Bench()
    bench.begin({T0: 0})
    bench.give(bench.fetch(), batch(0, 5), batch(5, 2))
    bench.collector.settle()
    assert bench.advance()
    parts = ConcatenatedSlices(size_bytes=JOINED_BYTES)
    assert bench.collector.take_rows(parts, 2), "the first rows are taken whatever their size"
    parts.size_bytes = JOINED_BYTES
    assert not bench.collector.take_rows(parts, 2)
    assert bench.collector.position(T0) == 2
    bench.collector.give_back()
    assert bench.collector.position(T0) == 0


def test_all_partitions_together_have_a_bound_too() -> None:
    bench = Bench(partition_fetch_bytes=2000, fetch_max_bytes=1024)
    bench.begin({T0: 0, T1: 0})
    asked = bench.fetch()
    asked.fetched([PartitionAnswer(0, 0, 99, 99, 0, [bytes(batch(0, 20, size=100))])])
    bench.world.run()
    assert bench.fetches() == []
    bench.begin({T0: 50})
    assert asked_offsets(bench.fetch())[0] == 50


def test_positions_pass_void_batches_and_only_committed_records_are_handed_out() -> None:
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


def test_answer_of_void_batches_alone_moves_the_position() -> None:
    bench = Bench()
    bench.begin({T0: 34})
    bench.give(bench.fetch(), *by_hand.contiguous()[18:20])
    assert bench.values() == []
    assert bench.collector.position(T0) == 40
    assert asked_offsets(bench.fetch()) == {0: 40}
