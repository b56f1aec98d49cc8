"""Tests that every znode is encoded to its recorded bytes, on which older brokers rely."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_lite.errors import InvalidGroupIdError, UnsupportedVersionError
from broker_lite.metadata import znodes as z
from broker_lite.model import (
    CommittedOffset,
    Endpoint,
    LeaderAndIsr,
    ReplicaId,
    TopicPartition,
)

REGISTRATION = z.Registration(1, Endpoint("h", 9092), "D", 3, "r1", {"columns": 1})
DRAINING = dataclasses.replace(REGISTRATION, draining=True)
STATE = LeaderAndIsr(1, 5, (ReplicaId(1, "D"), ReplicaId(2, "E")), 2, 7, 99)
OFFSET = CommittedOffset(5, 2, "note", "T" * 22, 1234)

BYTES = [
    (
        z.encode_registration(REGISTRATION),
        b'{"version":1,"broker":1,"listeners":[{"name":"PLAINTEXT","host":"h","port":9092,'
        b'"inter_broker":true}],"directory_id":"D","start_counter":3,"rack":"r1",'
        b'"features":{"columns":1},"partitions":{}}',
    ),
    (z.encode_disk(z.DiskZnode(1, 3)), b'{"version":1,"broker":1,"start_counter":3}'),
    (
        z.encode_assignment(z.Assignment("T", ((1,), (2, 3)))),
        b'{"version":1,"topic_id":"T","partitions":{"0":[1],"1":[2,3]}}',
    ),
    (
        z.encode_assignment(z.Assignment("T", ((1, 2),), {0: z.Move((2,), (1,))})),
        b'{"version":2,"topic_id":"T","partitions":{"0":[1,2]},'
        b'"moves":{"0":{"adding":[2],"removing":[1]}}}',
    ),
    (
        z.encode_registration(DRAINING),
        b'{"version":2,"broker":1,"listeners":[{"name":"PLAINTEXT","host":"h","port":9092,'
        b'"inter_broker":true}],"directory_id":"D","start_counter":3,"rack":"r1",'
        b'"features":{"columns":1},"partitions":{},"draining":true}',
    ),
    (
        z.encode_state(STATE),
        b'{"version":1,"leader":1,"leader_epoch":5,"leader_broker_epoch":99,"isr":'
        b'[{"broker":1,"directory":"D"},{"broker":2,"directory":"E"}],"controller_epoch":2}',
    ),
    (z.encode_controller(1, 99), b'{"version":1,"broker":1,"broker_epoch":99}'),
    (z.encode_controller_epoch(4), b'{"version":1,"epoch":4}'),
    (z.encode_features({"b": 2, "a": 1}), b'{"version":1,"features":{"a":1,"b":2}}'),
    (
        z.encode_config({"retention.ms": "5"}),
        b'{"version":1,"config":{"retention.ms":"5"}}',
    ),
    (z.encode_cluster_id("C"), b'{"version":1,"id":"C"}'),
    (
        z.encode_pending(z.PendingOffsets("copier", {TopicPartition("t", 3): OFFSET})),
        b'{"version":1,"transactional_id":"copier","rows":[{"topic":"t","partition":3,"offset":5,'
        b'"leader_epoch":2,"metadata":"note","topic_id":"TTTTTTTTTTTTTTTTTTTTTT",'
        b'"commit_ms":1234}]}',
    ),
    (
        z.encode_offset(OFFSET, added_zxid=77),
        b'{"version":1,"offset":5,"leader_epoch":2,"metadata":"note",'
        b'"topic_id":"TTTTTTTTTTTTTTTTTTTTTT","commit_ms":1234,"added_zxid":77}',
    ),
    (
        z.encode_producer_ids(z.ProducerIdBlock(1, 0, 1000)),
        b'{"version":1,"broker":1,"first":0,"next":1000}',
    ),
    (z.encode_group("kafka"), b'{"version":1,"kind":"kafka"}'),
    (
        z.encode_coordinator(z.CoordinatorZnode(1, 99, 2, 7, None, "99-3", 4, 45_000)),
        b'{"version":1,"broker":1,"broker_epoch":99,"epoch":2,"generation":7,'
        b'"empty_since_ms":null,"claim":"99-3","members":4,"session_timeout_ms":45000}',
    ),
    (
        z.encode_offset(OFFSET),
        b'{"version":1,"offset":5,"leader_epoch":2,"metadata":"note",'
        b'"topic_id":"TTTTTTTTTTTTTTTTTTTTTT","commit_ms":1234}',
    ),
]


@pytest.mark.parametrize(("encoded", "golden"), BYTES)
def test_each_znode_is_encoded_to_its_recorded_bytes(encoded: bytes, golden: bytes) -> None:
    assert encoded == golden


def test_each_znode_is_decoded_to_the_values_that_were_encoded() -> None:
    assert z.decode_registration("/p", z.encode_registration(REGISTRATION)) == REGISTRATION
    assert z.decode_registration("/p", z.encode_registration(DRAINING)) == DRAINING
    of_earlier_release = z.encode_registration(REGISTRATION).replace(
        b'"partitions":{}', b'"partitions":{"a":[1]}'
    )
    assert z.decode_registration("/p", of_earlier_release) == REGISTRATION
    moving = z.Assignment("T", ((1, 2), (3,)), {0: z.Move((2,), (1,))})
    assert z.decode_assignment("/p", z.encode_assignment(moving)) == moving
    assert z.decode_disk("/p", z.encode_disk(z.DiskZnode(1, 3))) == z.DiskZnode(1, 3)
    assignment = z.Assignment("T", tuple((n,) for n in range(12)))
    assert z.decode_assignment("/p", z.encode_assignment(assignment)) == assignment
    assert z.decode_state("/p", z.encode_state(STATE), 7) == STATE
    assert z.decode_controller("/p", z.encode_controller(1, 99)) == (1, 99)
    assert z.decode_offset("/p", z.encode_offset(OFFSET)) == OFFSET
    assert z.decode_offset("/p", z.encode_offset(OFFSET, added_zxid=77)) == OFFSET
    pending = z.PendingOffsets("copier", {TopicPartition("t", 3): OFFSET})
    assert z.decode_pending("/p", z.encode_pending(pending)) == pending
    part = z.PendingPart(z.TransactionKey(1000, 3, 12), 1)
    assert str(part) == "1000-3-12-1" and z.decode_part(str(part)) == part
    block = z.ProducerIdBlock(1, 0, 1000)
    assert z.decode_producer_ids("/p", z.encode_producer_ids(block)) == block


@pytest.mark.parametrize(
    "data",
    [b"", b"x", b"[]", b"1", b"{}", b'{"version":3,"epoch":1}', b'{"version":"1","epoch":1}'],
)
def test_error_names_the_path_of_an_unreadable_znode(data: bytes) -> None:
    with pytest.raises(UnsupportedVersionError, match="/controller_epoch"):
        z.decode_controller_epoch(z.CONTROLLER_EPOCH, data)


@pytest.mark.parametrize("name", ["", "x", "1-2-3", "1-2-3-4-5", "1-2-3-x"])
def test_malformed_name_of_a_znode_of_pending_offsets_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedVersionError, match="logbus does not use"):
        z.decode_part(name)


def test_error_names_the_path_of_a_znode_with_a_missing_key() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"/p has no field 'leader'"):
        z.decode_state("/p", b'{"version":1}', 0)


@given(st.text(min_size=1, max_size=40))
def test_group_name_is_encoded_as_one_path_element(group: str) -> None:
    path = z.group_path(group)
    encoded = path.removeprefix(f"{z.CONSUMERS}/")
    assert "/" not in encoded and encoded not in ("", ".", "..")
    assert encoded.isascii() and encoded.isprintable()
    assert z.group_name(encoded) == group


def test_group_names_are_percent_encoded_only_where_needed() -> None:
    assert z.group_path("spark-1a_B.c~") == "/consumers/spark-1a_B.c~"
    assert z.group_path("..") == "/consumers/%2E%2E"
    assert z.group_path("a/b ü") == "/consumers/a%2Fb%20%C3%BC"
    for bad in ("", "x" * 751, "/" * 251, "\ud800"):
        with pytest.raises(InvalidGroupIdError):
            z.group_path(bad)
