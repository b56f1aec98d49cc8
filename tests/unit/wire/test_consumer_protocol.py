"""Subscriptions and assignments as Kafka's consumers write them."""

from __future__ import annotations

import pytest

from broker_lite.errors import ProtocolError
from broker_lite.model import TopicPartition
from broker_lite.wire.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

PARTITIONS = (TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1))


def test_there_and_back() -> None:
    assert decode_subscription(encode_subscription(("a", "ü"))) == ("a", "ü")
    assert decode_assignment(encode_assignment(reversed(PARTITIONS))) == PARTITIONS
    assert decode_subscription(b"") == () == decode_assignment(b"")
    assert decode_assignment(encode_assignment(())) == ()


def test_the_bytes_are_kafkas() -> None:
    assert encode_subscription(("t",)) == bytes.fromhex("0000 00000001 0001 74 ffffffff")
    assert encode_assignment([TopicPartition("t", 5)]) == bytes.fromhex(
        "0000 00000001 0001 74 00000001 00000005 ffffffff"
    )


def test_later_versions_have_more_behind() -> None:
    later = bytes.fromhex("0003 00000001 0001 74 ffffffff 00000000 ffffffff ffff")
    assert decode_subscription(later) == ("t",)
    later = bytes.fromhex("0003") + encode_assignment(PARTITIONS)[2:]
    assert decode_assignment(later) == PARTITIONS


@pytest.mark.parametrize("data", [b"\xff\xff", b"\0\0\x7f\xff\xff\xff", b"\0\0\0\0\0\x01\0\x05ab"])
def test_bytes_of_another_kind_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_assignment(data)
