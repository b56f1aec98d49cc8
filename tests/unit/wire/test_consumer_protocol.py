"""Tests of the codec for subscriptions and assignments of Kafka's consumers."""

from __future__ import annotations

import pytest
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from broker_lite.errors import ProtocolError
from broker_lite.model import TopicPartition
from broker_lite.wire.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_member,
    decode_sticky,
    encode_assignment,
    encode_member,
    encode_sticky,
    encode_subscription,
)

PARTITIONS = (TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1))


def test_subscription_and_assignment_round_trip() -> None:
    assert decode_member(encode_subscription(("a", "ü"))) == Subscription(("a", "ü"))
    assert decode_assignment(encode_assignment(reversed(PARTITIONS))) == PARTITIONS
    assert decode_assignment(b"") == ()
    assert decode_assignment(encode_assignment(())) == ()


def test_subscription_and_assignment_encode_to_kafkas_bytes() -> None:
    assert encode_subscription(("t",)) == bytes.fromhex("0000 00000001 0001 74 ffffffff")
    assert encode_assignment([TopicPartition("t", 5)]) == bytes.fromhex(
        "0000 00000001 0001 74 00000001 00000005 ffffffff"
    )


MEMBER = Subscription(("t", "ü"), b"own", PARTITIONS, 7, "rack")


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_subscription_of_each_version_is_encoded_as_kafka_python_encodes_it(version: int) -> None:
    data = encode_member(MEMBER, version)
    kept = {
        0: Subscription(MEMBER.topics, b"own"),
        1: Subscription(MEMBER.topics, b"own", PARTITIONS),
        2: MEMBER._replace(rack=None),
        3: MEMBER,
    }
    assert decode_member(data) == kept[version]
    theirs = ConsumerProtocolSubscription.decode(data)
    assert theirs.version == version and list(theirs.topics) == ["t", "ü"]
    assert bytes(theirs.user_data) == b"own"
    if version >= 1:
        owned = [(row.topic, list(row.partitions)) for row in theirs.owned_partitions]
        assert owned == [("a", [0, 2]), ("b", [1])]
    if version >= 2:
        assert theirs.generation_id == 7
    assert theirs.encode() == data


def test_member_without_user_data_encodes_null() -> None:
    assert encode_member(Subscription(("t",)), 1) == bytes.fromhex(
        "0001 00000001 0001 74 ffffffff 00000000"
    )
    assert decode_member(encode_member(Subscription(("t",)), 3)) == Subscription(("t",))
    with pytest.raises(ProtocolError):
        decode_member(b"\xff\xff")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_subscription_of_a_later_version_may_end_after_the_fields_of_version_0(
    version: int,
) -> None:
    """@platformatic/kafka and older Go clients write a later version number but only the fields
    of version 0."""
    data = bytearray(encode_member(Subscription(("t",), b"own"), 0))
    data[1] = version
    assert decode_member(data) == Subscription(("t",), b"own")
    with pytest.raises(ProtocolError):
        decode_member(data + b"\0")


def test_sticky_assignor_user_data_is_decoded() -> None:
    data = encode_sticky(PARTITIONS, 4)
    assert data == bytes.fromhex(
        "00000002 0001 61 00000002 00000000 00000002 0001 62 00000001 00000001 00000004"
    )
    assert decode_sticky(data) == (PARTITIONS, 4)
    assert decode_sticky(data[:-4]) == (PARTITIONS, -1), "older user data has no generation"
    assert decode_sticky(b"") == decode_sticky(b"\0\0\0\5") == ((), -1)


def test_trailing_fields_of_later_versions_are_ignored() -> None:
    later = bytes.fromhex("0003 00000001 0001 74 ffffffff 00000000 ffffffff ffff")
    assert decode_member(later).topics == ("t",)
    later = bytes.fromhex("0003") + encode_assignment(PARTITIONS)[2:]
    assert decode_assignment(later) == PARTITIONS


@pytest.mark.parametrize("data", [b"\xff\xff", b"\0\0\x7f\xff\xff\xff", b"\0\0\0\0\0\x01\0\x05ab"])
def test_malformed_assignment_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_assignment(data)


@pytest.mark.parametrize("data", [b"", b"\0\1" + b"\xff" * 4, b"\0\1\0\0\0\0" + b"\xff" * 8])
def test_subscription_with_a_null_list_is_refused(data: bytes) -> None:
    """A null list crashes a Java consumer that leads the group, so brokers refuse the
    subscription."""
    with pytest.raises(ProtocolError):
        decode_member(data)
