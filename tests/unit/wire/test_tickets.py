"""Tests of the datagrams with which a reader gets an open segment file for its secret ticket."""

from __future__ import annotations

import pytest

from broker_lite.wire.tickets import MESSAGE_BYTES, Redemption, decode, encode, socket_name

SECRET = bytes(range(16))


@pytest.mark.parametrize(
    ("wants_direct", "octets"),
    [(False, "000102030405060708090a0b0c0d0e0f 00"), (True, "000102030405060708090a0b0c0d0e0f 01")],
)
def test_request_for_a_file_descriptor_is_encoded_and_decoded(
    wants_direct: bool, octets: str
) -> None:
    redemption = Redemption(SECRET, wants_direct)
    assert encode(redemption) == bytes.fromhex(octets)
    assert decode(bytes.fromhex(octets)) == redemption


def test_file_descriptor_request_of_a_wrong_length_is_not_decoded() -> None:
    for size in (*range(MESSAGE_BYTES), MESSAGE_BYTES + 1, 100):
        assert decode(bytes(size)) is None


def test_name_of_the_brokers_unix_socket_is_abstract_and_at_most_107_bytes_long() -> None:
    name = socket_name(b"\xfe" * 16)
    assert name == b"\0logbus-" + b"fe" * 16
    assert len(name) <= 107
