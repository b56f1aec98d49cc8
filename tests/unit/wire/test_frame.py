"""Tests of ``FrameReceiver``: it splits a byte stream into frames, and its memory is bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_lite.errors import ProtocolError
from broker_lite.wire.frame import FIRST_BYTES, GROWTH, SCRATCH_BYTES, FrameReceiver


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big", signed=True) + body


def feed(receiver: FrameReceiver, data: bytes, step: int) -> list[bytes]:
    """Deliver ``data`` to the receiver in pieces of at most ``step`` bytes, as a socket would."""
    found = []
    while data:
        buffer = receiver.buffer()
        size = min(len(buffer), len(data), step)
        assert size > 0
        buffer[:size] = data[:size]
        data = data[size:]
        found += [bytes(frame) for frame in receiver.received(size)]
    return found


@given(st.lists(st.binary(max_size=200), max_size=20), st.integers(1, 300))
def test_frames_are_reassembled_from_any_chunks(bodies: list[bytes], step: int) -> None:
    receiver = FrameReceiver(1000, scratch=bytearray(64))
    assert feed(receiver, b"".join(map(framed, bodies)), step) == bodies
    assert receiver.is_between_frames
    assert receiver.pending_bytes == 0


def test_small_frames_are_copied_out_of_the_receivers_buffer() -> None:
    receiver = FrameReceiver(1000)
    buffer = receiver.buffer()
    data = framed(b"one") + framed(b"two")
    buffer[: len(data)] = data
    first, second = receiver.received(len(data))
    buffer[: len(data)] = bytes(len(data))
    first[0] = ord("O")
    assert (bytes(first), bytes(second)) == (b"One", b"two")
    assert first.obj is not second.obj
    assert len(first.obj) == 3


def test_large_frame_is_received_directly_into_its_buffer() -> None:
    body = bytes(range(256)) * 1024
    receiver = FrameReceiver(len(body))
    data = framed(body)
    buffer = receiver.buffer()
    buffer[:1000] = data[:1000]
    assert receiver.received(1000) == []
    assert receiver.pending_bytes == len(body)
    rest = receiver.buffer()
    assert len(rest) == len(data) - 1000
    rest[:] = data[1000:]
    (frame,) = receiver.received(len(rest))
    assert frame.obj is rest.obj
    assert len(frame.obj) == len(body)
    assert frame == body


@pytest.mark.parametrize("size", [FIRST_BYTES - 1, SCRATCH_BYTES, 5 << 20])
@pytest.mark.parametrize("step", [9 << 10, 1 << 30])
def test_frame_buffer_grows_with_received_bytes(size: int, step: int) -> None:
    receiver = FrameReceiver(size, grows=True)
    body = bytes(range(251)) * (size // 251 + 1)
    left, arrived, found = framed(body[:size]), 0, []
    while left:
        if receiver.growth_bytes:
            receiver.grow()
        buffer = receiver.buffer()
        count = min(len(buffer), len(left), step)
        buffer[:count] = left[:count]
        left, arrived = left[count:], arrived + count
        found += receiver.received(count)
        assert receiver.pending_bytes <= max(FIRST_BYTES, GROWTH * arrived)
    assert [bytes(frame) for frame in found] == [body[:size]]


def test_frame_receiver_reports_whether_it_holds_a_part_of_a_frame() -> None:
    receiver = FrameReceiver(100)
    assert receiver.is_between_frames
    feed(receiver, b"\x00\x00", 2)
    assert not receiver.is_between_frames
    feed(receiver, b"\x00\x02a", 3)
    assert not receiver.is_between_frames
    assert feed(receiver, b"b", 1) == [b"ab"]
    assert receiver.is_between_frames


@pytest.mark.parametrize("size", [-1, -(1 << 31), 101, (1 << 31) - 1])
def test_invalid_frame_length_is_refused_before_allocation(size: int) -> None:
    receiver = FrameReceiver(100)
    with pytest.raises(ProtocolError):
        feed(receiver, size.to_bytes(4, "big", signed=True), 4)
    assert receiver.pending_bytes == 0


def test_raised_frame_limit_applies_to_the_next_frame() -> None:
    receiver = FrameReceiver(10)
    assert feed(receiver, framed(b"hello"), 9) == [b"hello"]
    receiver.max_bytes = 1 << 20
    assert feed(receiver, framed(bytes(5000)), 9) == [bytes(5000)]


def test_receivers_that_share_a_scratch_buffer_do_not_mix_up_their_frames() -> None:
    scratch = bytearray(SCRATCH_BYTES)
    one, two = FrameReceiver(1000, scratch=scratch), FrameReceiver(1000, scratch=scratch)
    first, second = framed(b"a" * 10), framed(b"b" * 10)
    got: dict[str, list[bytes]] = {"one": [], "two": []}
    for position in range(0, 14, 3):
        got["one"] += feed(one, first[position : position + 3], 3)
        got["two"] += feed(two, second[position : position + 3], 3)
    assert got == {"one": [b"a" * 10], "two": [b"b" * 10]}


def test_receiver_limits_the_next_read_after_a_frame_larger_than_the_shared_buffer() -> None:
    scratch = bytearray(4 * SCRATCH_BYTES)
    receiver = FrameReceiver(1 << 20, scratch=scratch)
    for size, following in ((len(scratch) + 1, SCRATCH_BYTES), (len(scratch), len(scratch))):
        data = framed(bytes(size))
        while data:
            buffer = receiver.buffer()
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            data, frames = data[count:], receiver.received(count)
        assert [len(frame) for frame in frames] == [size]
        assert len(receiver.buffer()) == following


def test_frame_receiver_returns_an_empty_frame() -> None:
    assert feed(FrameReceiver(10), framed(b"") + framed(b"x"), 20) == [b"", b"x"]


@pytest.mark.parametrize(
    ("start", "named"),
    [
        (b"GET / HTTP/1.1\r\n", "an HTTP request to a port of Kafka's protocol"),
        (b"PRI * HTTP/2.0\r\n", "an HTTP request to a port of Kafka's protocol"),
        (b"HTTP/1.1 400 Bad Request\r\n", "answered as a web server"),
        (b"<!DOCTYPE HTML>", "answered as a web server"),
        (b"\x16\x03\x01\x02\x00", "speaks TLS"),
        (b"SSH-2.0-OpenSSH", "declares a frame of 1397966893 bytes"),
    ],
)
def test_error_names_the_protocol_of_a_peer_that_is_no_kafka_client(
    start: bytes, named: str
) -> None:
    """Regression: the broker reported an HTTP request, "GET ", as a frame of 1,195,725,856
    bytes."""
    receiver = FrameReceiver(1 << 20)
    with pytest.raises(ProtocolError, match=named):
        feed(receiver, start, len(start))
