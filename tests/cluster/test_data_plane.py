"""Send produce and fetch requests to real brokers; check offsets, limits, waits and errors."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator

import pytest
from kafka.protocol.consumer import FetchResponse
from kafka.protocol.producer import ProduceResponse
from support.data_calls import (
    RAW,
    ROWS_ONLY,
    Place,
    batches,
    columns_batch,
    fetch_request,
    find_topic,
    list_offsets,
    make_topic,
    offsets_for_bytes,
    produce_request,
    read,
    rows,
    rows_batch,
    send_batch,
    values,
)
from support.plain_connection import PlainConnection

from broker_lite import errors
from broker_lite.client.administration.admin import Admin
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TopicPartition
from broker_lite.record.batch import set_crc
from broker_lite.wire import fetch, produce

_NAMES = (f"plane-{os.getpid()}-{n}" for n in itertools.count())


@pytest.fixture
def place(cluster: LocalCluster) -> Place:
    return make_topic(cluster, next(_NAMES))


@pytest.fixture
def leader(place: Place) -> Iterator[PlainConnection]:
    with PlainConnection(place.address) as connection:
        yield connection


def test_arrow_batch_is_fetched_as_it_was_produced(place: Place, leader: PlainConnection) -> None:
    sent = [b"v%d" % n for n in range(100)]
    first = send_batch(leader, place, columns_batch(sent))
    second = send_batch(leader, place, columns_batch([b"w"]))
    assert (first.error_code, first.base_offset) == (0, 0)
    assert (second.error_code, second.base_offset) == (0, 100)
    got = read(leader, place, 0)
    assert (got.error_code, got.high_watermark, got.last_stable_offset) == (0, 101, 101)
    assert [(h.base_offset, h.leader_epoch, h.is_columns) for _, h in batches(got.records)] == [
        (0, 0, True),
        (100, 0, True),
    ]
    assert values(got.records) == [*sent, b"w"]


def test_client_that_cannot_read_arrow_batches_gets_kafka_record_batches(
    place: Place, leader: PlainConnection
) -> None:
    """The broker converts columnar batches to rows, and keeps offsets, leader epochs and
    timestamps."""
    send_batch(leader, place, columns_batch([b"a", b"b"], timestamp_ms=77))
    send_batch(leader, place, rows_batch([b"c", b"d"]))
    send_batch(leader, place, columns_batch([b"e"], timestamp_ms=78))
    for version in (4, 11, 12, 17):
        got = read(leader, place, 0, reader=ROWS_ONLY, version=version)
        found = rows(got.records)
        assert [(r.offset, r.value) for r in found] == list(
            enumerate([b"a", b"b", b"c", b"d", b"e"])
        )
        assert [r.timestamp_ms for r in found] == [77, 77, 1000, 1001, 78]
        assert all(h.magic == 2 and h.leader_epoch == 0 for _, h in batches(got.records))
    from_middle = read(leader, place, 4, reader=ROWS_ONLY)
    assert [r.value for r in rows(from_middle.records)] == [b"e"]


def test_fetch_that_converts_arrow_batches_to_rows_respects_the_byte_limit(
    place: Place, leader: PlainConnection
) -> None:
    for _ in range(5):
        send_batch(leader, place, columns_batch([bytes(1000)] * 10))
    got = read(leader, place, 0, reader=ROWS_ONLY, partition_bytes=25_000)
    assert len(batches(got.records)) == 2
    tiny = read(leader, place, 0, reader=ROWS_ONLY, partition_bytes=10)
    assert len(batches(tiny.records)) == 1


def test_fetch_returns_at_least_one_batch_and_then_respects_the_byte_limit(
    place: Place, leader: PlainConnection
) -> None:
    for _ in range(4):
        send_batch(leader, place, rows_batch([bytes(5000)]))
    assert len(batches(read(leader, place, 0, partition_bytes=1).records)) == 1
    assert len(batches(read(leader, place, 0, max_bytes=1).records)) == 1
    assert len(batches(read(leader, place, 0, partition_bytes=11_000).records)) == 2
    assert len(batches(read(leader, place, 0).records)) == 4


def test_partitions_of_a_fetch_share_its_byte_limit(cluster: LocalCluster) -> None:
    place = make_topic(cluster, next(_NAMES), partitions=6)
    mine = [p for p in range(6) if p % 3 == 0]
    with PlainConnection(place.address) as leader:
        for partition in mine:
            for _ in range(3):
                sent = send_batch(leader, place, rows_batch([bytes(5000)]), partition=partition)
                assert sent.error_code == 0
        leader.send(fetch_request(place, 0, partitions=mine, max_bytes=21_000))
        got = fetch.decode_response(leader.receive()).topics[0].partitions
        assert [len(batches(row.records)) for row in got] == [3, 1]
        leader.send(fetch_request(place, 0, partitions=mine, max_bytes=1))
        got = fetch.decode_response(leader.receive()).topics[0].partitions
        assert [len(batches(row.records)) for row in got] == [1, 0]


def test_fetch_waits_for_records(place: Place, leader: PlainConnection) -> None:
    leader.send(fetch_request(place, 0, max_wait_ms=30_000))
    with PlainConnection(place.address) as other:
        send_batch(other, place, rows_batch([b"news"]))
    got = fetch.decode_response(leader.receive()).topics[0].partitions[0]
    assert values(got.records) == [b"news"]


def test_fetch_waits_for_minimum_bytes(place: Place, leader: PlainConnection) -> None:
    leader.send(fetch_request(place, 0, max_wait_ms=30_000, min_bytes=12_000))
    with PlainConnection(place.address) as other:
        for _ in range(3):
            send_batch(other, place, rows_batch([bytes(5000)]))
    got = fetch.decode_response(leader.receive()).topics[0].partitions[0]
    assert len(batches(got.records)) == 3


def test_fetch_returns_after_its_maximum_wait(place: Place, leader: PlainConnection) -> None:
    send_batch(leader, place, rows_batch([b"x"]))
    empty = read(leader, place, 1, max_wait_ms=30)
    assert (empty.error_code, len(empty.records), empty.high_watermark) == (0, 0, 1)
    for wait_ms in (30, 0):
        little = read(leader, place, 0, max_wait_ms=wait_ms, min_bytes=1 << 20)
        assert values(little.records) == [b"x"]


def test_ends_only_fetch_waits_for_new_records_but_returns_none(
    place: Place, leader: PlainConnection
) -> None:
    ends = (1, fetch.FLAG_ENDS_ONLY)
    leader.send(fetch_request(place, 0, max_wait_ms=30_000, reader=ends))
    with PlainConnection(place.address) as other:
        send_batch(other, place, rows_batch([b"x", b"y"]))
    got = fetch.decode_response(leader.receive()).topics[0].partitions[0]
    assert (got.high_watermark, len(got.records)) == (2, 0)
    again = read(leader, place, 2, max_wait_ms=30, reader=ends)
    assert (again.high_watermark, len(again.records)) == (2, 0)


def test_produce_request_of_any_version_and_acks_appends_its_batch(
    place: Place, leader: PlainConnection
) -> None:
    for n, version in enumerate(range(3, 14)):
        sent = send_batch(leader, place, rows_batch([b"%d" % version]), version=version)
        assert (sent.error_code, sent.base_offset) == (0, n)
    assert send_batch(leader, place, rows_batch([b"one"]), acks=1).base_offset == 11
    leader.send(produce_request(place, rows_batch([b"none"]), acks=0))
    assert send_batch(leader, place, rows_batch([b"all"])).base_offset == 13
    assert values(read(leader, place, 11).records) == [b"one", b"none", b"all"]


def test_resent_batch_is_not_appended_again(place: Place, leader: PlainConnection) -> None:
    def batch(sequence: int) -> bytes:
        return rows_batch([b"a", b"b"], producer_id=7, producer_epoch=0, base_sequence=sequence)

    assert send_batch(leader, place, batch(0)).base_offset == 0
    assert send_batch(leader, place, batch(2)).base_offset == 2
    assert send_batch(leader, place, batch(0)).base_offset == 0
    gap = send_batch(leader, place, batch(8))
    assert gap.error_code == errors.OutOfOrderSequenceError.code
    assert read(leader, place, 0).high_watermark == 4


def test_pipelined_requests_are_answered_in_order(place: Place, leader: PlainConnection) -> None:
    requests = []
    for n in range(200):
        requests.append(produce_request(place, rows_batch([b"%d" % n])))
        requests.append(fetch_request(place, 0, partition_bytes=1))
    sender = threading.Thread(target=lambda: leader.send(b"".join(requests)))
    sender.start()
    offsets = []
    receive = _frames(leader)
    for _ in range(200):
        offsets.append(produce.decode_response(next(receive)).topics[0].partitions[0].base_offset)
        fetch.decode_response(next(receive))
    sender.join()
    assert offsets == list(range(200))


def _frames(connection: PlainConnection) -> Iterator[memoryview]:
    """Yield the response frames of a connection; several frames may arrive in one read."""
    waiting: list[memoryview] = []
    while True:
        if not waiting:
            size = connection._socket.recv_into(connection._receiver.buffer())
            assert size
            waiting = connection._receiver.received(size)
        while waiting:
            yield waiting.pop(0)


# The next tests send requests that the broker must refuse.


def test_invalid_batch_is_refused_and_takes_no_offset(
    place: Place, leader: PlainConnection
) -> None:
    good = rows_batch([b"good"])
    flipped = bytearray(good)
    flipped[-1] ^= 1
    magic = bytearray(good)
    magic[16] = 1
    longer = bytearray(good)
    longer[11] += 1
    cut = good[:-1]
    two = good + good
    offset = bytearray(good)
    offset[7] = 5
    cases = {
        "crc": (bytes(flipped), errors.CorruptMessageError),
        "magic": (bytes(magic), errors.CorruptMessageError),
        "length": (bytes(longer), errors.CorruptMessageError),
        "cut": (cut, errors.CorruptMessageError),
        "header": (good[:30], errors.CorruptMessageError),
        "two": (two, errors.InvalidRecordError),
        "base offset": (bytes(offset), errors.InvalidRecordError),
        "empty": (b"", errors.InvalidRecordError),
        "control": (rows_batch([b"x"], attributes=0x20), errors.InvalidRecordError),
        "transaction": (
            rows_batch([b"x"], attributes=0x10, producer_id=1, producer_epoch=0, base_sequence=0),
            errors.TransactionalIdAuthorizationError,
        ),
        "too large": (rows_batch([bytes(9 << 20)]), errors.MessageTooLargeError),
    }
    for name, (batch, error) in cases.items():
        sent = send_batch(leader, place, batch)
        assert sent.error_code == error.code, name
        assert sent.base_offset == -1
        assert sent.error_message, name
    assert send_batch(leader, place, good).base_offset == 0


def test_arrow_batch_with_a_corrupted_header_byte_is_refused(
    place: Place, leader: PlainConnection
) -> None:
    good = columns_batch([b"some", b"values"])
    # Corrupt one byte each of: body version, flags, schema id, reserved field, both record counts.
    for position in (61, 63, 66, 71, 26, 60):
        bad = bytearray(good)
        bad[position] ^= 0x55
        set_crc(bad)
        sent = send_batch(leader, place, bytes(bad))
        refusals = (errors.CorruptMessageError.code, errors.InvalidRecordError.code)
        assert sent.error_code in refusals, position
    assert send_batch(leader, place, good).base_offset == 0


def test_requests_for_missing_partitions_are_refused(
    cluster: LocalCluster, place: Place, leader: PlainConnection
) -> None:
    batch = rows_batch([b"x"])
    gone = place._replace(topic_id="abcdefghijklmnopqrstuQ", name="no-such-topic")
    assert send_batch(leader, gone, batch).error_code == errors.UnknownTopicIdError.code
    missing = errors.UnknownTopicOrPartitionError.code
    assert send_batch(leader, gone, batch, version=9).error_code == missing
    assert send_batch(leader, place, batch, partition=9).error_code == missing
    assert read(leader, gone, 0).error_code == errors.UnknownTopicIdError.code
    assert read(leader, gone, 0, version=12).error_code == missing
    assert list_offsets(leader, "no-such-topic", -1).error_code == missing
    assert send_batch(leader, place, batch, acks=2).error_code == 21
    other = next(b for b in cluster.brokers if b.id != place.leader)
    with PlainConnection(other.endpoint) as stranger:
        sent = send_batch(stranger, place, batch)
        assert sent.error_code == errors.NotLeaderError.code
        assert (sent.leader_id, sent.leader_epoch) == (place.leader, 0)
        got = read(stranger, place, 0)
        assert got.error_code == errors.NotLeaderError.code
        assert (got.leader_id, got.leader_epoch) == (place.leader, 0)
        assert list_offsets(stranger, place.name, -1).error_code == errors.NotLeaderError.code


def test_not_leader_error_of_a_follower_names_the_leader_and_its_address(
    cluster: LocalCluster, place: Place
) -> None:
    """The Java client and franz-go switch to a new leader only if the response has the leader's
    address."""
    other = next(b for b in cluster.brokers if b.id != place.leader)
    with PlainConnection(other.endpoint) as stranger:
        stranger.send(produce_request(place, rows_batch([b"x"])))
        sent = ProduceResponse.decode(stranger.receive(), version=13, header=True)
        stranger.send(fetch_request(place, 0))
        got = FetchResponse.decode(stranger.receive(), version=17, header=True)
    for answer in (sent, got):
        (node,) = answer.node_endpoints
        assert (node.node_id, f"{node.host}:{node.port}") == (place.leader, place.address)


def test_requests_with_a_stale_or_future_leader_epoch_are_refused(
    place: Place, leader: PlainConnection
) -> None:
    unknown = errors.UnknownLeaderEpochError.code
    assert read(leader, place, 0, epoch=0).error_code == 0
    assert read(leader, place, 0, epoch=1).error_code == unknown
    assert list_offsets(leader, place.name, -1, epoch=0).error_code == 0
    assert list_offsets(leader, place.name, -1, epoch=1).error_code == unknown


def test_fetch_outside_the_log_is_out_of_range(place: Place, leader: PlainConnection) -> None:
    send_batch(leader, place, rows_batch([b"a", b"b"]))
    send_batch(leader, place, rows_batch([b"c"]))
    beyond = read(leader, place, 4)
    assert beyond.error_code == errors.OffsetOutOfRangeError.code
    assert (beyond.high_watermark, beyond.log_start_offset) == (3, 0)
    assert read(leader, place, 3).error_code == 0


def test_connection_is_closed_if_a_batch_with_acks_0_is_refused(
    place: Place, leader: PlainConnection
) -> None:
    leader.send(produce_request(place, rows_batch([b"x"]), acks=0, partition=9))
    with pytest.raises(EOFError):
        leader.receive()


# The next tests look up offsets.


def test_list_offsets_finds_latest_earliest_and_timestamps(
    place: Place, leader: PlainConnection
) -> None:
    none = list_offsets(leader, place.name, 5)
    assert (none.error_code, none.offset, none.timestamp) == (0, -1, -1)
    send_batch(leader, place, rows_batch([b"a", b"b"]))
    send_batch(leader, place, columns_batch([b"c"], timestamp_ms=5000))
    send_batch(leader, place, columns_batch([b"d"], timestamp_ms=4000))
    latest = list_offsets(leader, place.name, -1)
    assert (latest.offset, latest.leader_epoch, latest.timestamp) == (4, 0, -1)
    assert list_offsets(leader, place.name, -2).offset == 0
    greatest = list_offsets(leader, place.name, -3)
    assert (greatest.offset, greatest.timestamp) == (2, 5000)
    by_time = list_offsets(leader, place.name, 1001)
    assert (by_time.offset, by_time.timestamp) == (1, 1001)
    assert list_offsets(leader, place.name, 5001).offset == -1
    assert list_offsets(leader, place.name, -7).error_code == errors.UnsupportedVersionError.code


def test_offset_lookup_by_byte_distance_returns_a_batch_boundary(
    place: Place, leader: PlainConnection
) -> None:
    assert offsets_for_bytes(leader, place, 0, 1000).end_offset == 0
    for _ in range(10):
        send_batch(leader, place, rows_batch([bytes(5000)] * 2))
    one = offsets_for_bytes(leader, place, 0, 1)
    assert (one.error_code, one.end_offset) == (0, 2)
    half = offsets_for_bytes(leader, place, 0, 55_000)
    assert half.end_offset % 2 == 0 and 2 <= half.end_offset <= 10
    everything = offsets_for_bytes(leader, place, 0, 1 << 30)
    assert everything.end_offset == 20
    assert offsets_for_bytes(leader, place, 99, 1).error_code == errors.OffsetOutOfRangeError.code


def test_fetch_below_the_log_start_fails_with_offset_out_of_range(
    cluster: LocalCluster, place: Place, leader: PlainConnection
) -> None:
    for _ in range(4):
        send_batch(leader, place, rows_batch([b"a", b"b"]))
    tp = TopicPartition(place.name, 0)
    with Admin(cluster.bootstrap_servers) as admin:
        assert admin.delete_records({tp: 4}) == {tp: 4}
        with pytest.raises(errors.OffsetOutOfRangeError):
            admin.delete_records({tp: 9})
    assert list_offsets(leader, place.name, -2).offset == 4
    below = read(leader, place, 3)
    assert (below.error_code, below.log_start_offset) == (1, 4)
    assert values(read(leader, place, 4).records) == [b"a", b"b", b"a", b"b"]


# The next tests recreate topics and change their settings.


def test_recreated_topic_has_a_new_id(
    cluster: LocalCluster, place: Place, leader: PlainConnection
) -> None:
    send_batch(leader, place, rows_batch([b"old"]))
    with PlainConnection(place.address) as waiting, Admin(cluster.bootstrap_servers) as admin:
        waiting.send(fetch_request(place, 1, max_wait_ms=30_000))
        admin.delete_topic(place.name)
        told = fetch.decode_response(waiting.receive()).topics[0].partitions[0]
        assert told.error_code == errors.UnknownTopicIdError.code
        admin.create_topic(place.name, 3, 1, {})
        again = find_topic(cluster, place.name)
    assert again.topic_id != place.topic_id
    with PlainConnection(again.address) as leader_now:
        assert read(leader_now, again, 0).high_watermark == 0
        old = send_batch(leader_now, place, rows_batch([b"late"]))
        assert old.error_code == errors.UnknownTopicIdError.code


def test_topic_settings_take_effect_at_once(cluster: LocalCluster, place: Place) -> None:
    with Admin(cluster.bootstrap_servers) as admin, PlainConnection(place.address) as leader:
        batch = rows_batch([bytes(5000)])
        assert send_batch(leader, place, batch).error_code == 0
        admin.alter_configs(place.name, {"max.message.bytes": "2048"})
        too_large = errors.MessageTooLargeError.code
        while send_batch(leader, place, batch).error_code != too_large:
            pass
        admin.alter_configs(
            place.name, {"max.message.bytes": None, "message.timestamp.type": "LogAppendTime"}
        )
        while (sent := send_batch(leader, place, batch)).log_append_time_ms == -1:
            pass
        row = rows(read(leader, place, sent.base_offset).records)[-1]
        assert row.timestamp_ms == sent.log_append_time_ms


def test_unflushed_records_are_hidden_until_flush_messages_is_reached(
    cluster: LocalCluster,
) -> None:
    config = {"flush.messages": "100", "flush.ms": "3600000"}
    place = make_topic(cluster, next(_NAMES), config=config)
    with PlainConnection(place.address) as leader:
        # A new leader flushes its log once; the first 100 records do not count for the next flush.
        assert send_batch(leader, place, rows_batch([b"w"] * 100), acks=-1).error_code == 0
        assert send_batch(leader, place, rows_batch([b"x"]), acks=1).error_code == 0
        assert read(leader, place, 0).high_watermark == 100
        assert send_batch(leader, place, rows_batch([b"z"] * 99), acks=-1).error_code == 0
        assert read(leader, place, 0).high_watermark == 200


def test_acks_all_waits_until_flush_ms_flushes_the_records(cluster: LocalCluster) -> None:
    config = {"flush.messages": "100", "flush.ms": "300"}
    place = make_topic(cluster, next(_NAMES), config=config)
    with PlainConnection(place.address) as leader:
        assert send_batch(leader, place, rows_batch([b"x"]), acks=1).error_code == 0
        assert values(read(leader, place, 0, max_wait_ms=30_000).records) == [b"x"]
        assert send_batch(leader, place, rows_batch([b"y"]), acks=-1).error_code == 0
        assert read(leader, place, 0).high_watermark == 2


def test_fetch_returns_the_same_bytes_whether_or_not_the_broker_checks_crcs(
    place: Place, leader: PlainConnection
) -> None:
    for n in range(20):
        send_batch(leader, place, columns_batch([b"%d" % n] * 50))
    raw = read(leader, place, 0, reader=RAW)
    checked = read(leader, place, 0, reader=(1, 0))
    assert raw.records == checked.records
    assert len(batches(raw.records)) == 20
