"""Tests of the dispatcher: requests that are unsupported, fail or are too large get an error."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import struct

import pytest
from support.handler_world import Answered, World, ask_dispatcher, kind, run

from broker_lite.errors import (
    InvalidRequestError,
    UnknownMemberIdError,
    UnknownServerError,
    UnsupportedVersionError,
)
from broker_lite.server import dispatch
from broker_lite.server.dispatch import Dispatcher
from broker_lite.server.metrics import Metrics
from broker_lite.server.network.context import Session
from broker_lite.wire.api import VERSIONS, ApiKey, encode_call
from broker_lite.wire.calls import members
from broker_lite.wire.primitives import Writer


async def ask(dispatcher: Dispatcher, frame: bytes) -> Answered:
    return await ask_dispatcher(dispatcher, Session(7, "10.0.0.7:4711"), frame)


def dispatcher_of(world: World) -> Dispatcher:
    parts = dataclasses.replace(world.brokers[1], metrics=Metrics())
    return Dispatcher(asyncio.get_running_loop(), parts)


def old_produce(acks: int) -> bytes:
    """Return a Produce 2 request to t-0 without records, as a client of 2016 sends it."""
    writer = Writer()
    writer.i16(ApiKey.PRODUCE)
    writer.i16(2)
    writer.i32(3)
    writer.classic_nullable_string("old-timer")
    writer.i16(acks)
    writer.i32(1000)
    writer.i32(1)
    writer.classic_string("t")
    writer.i32(1)
    writer.i32(0)
    writer.i32(-1)
    return bytes(writer.buffer)


def test_unsupported_version_error_names_the_served_versions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(world: World) -> None:
        await world.start()
        dispatcher = dispatcher_of(world)
        for _ in range(3):
            reply = await ask(dispatcher, old_produce(1))
            row = (
                b"\0\1t" + b"\0\0\0\1" + bytes(4) + UnsupportedVersionError.code.to_bytes(2, "big")
            )
            assert row in reply.data
        # A request with acks=0 gets no response.
        assert "supports versions 3 to 13" in (await ask(dispatcher, old_produce(0))).refusal

    with caplog.at_level(logging.WARNING, "logbus.dispatch"):
        run(body)
    told = "PRODUCE version 2 is not supported; this broker supports versions 3 to 13"
    assert [row.getMessage() for row in caplog.records] == [
        f"10.0.0.7:4711: client 'old-timer': {told}"
    ]


def test_client_that_is_too_old_to_read_transaction_markers_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A client with Fetch 3 or older knows no control batches. It would return markers, and records
    of aborted transactions, to its application."""

    async def body(world: World) -> None:
        await world.start()
        writer = Writer()
        writer.i16(ApiKey.FETCH)
        writer.i16(3)
        writer.i32(3)
        writer.classic_nullable_string("old-timer")
        for number in (-1, 500, 1, 1 << 20, 1):
            writer.i32(number)
        writer.classic_string("t")
        for number in (1, 0):
            writer.i32(number)
        writer.i64(0)
        writer.i32(1 << 20)
        reply = await ask(dispatcher_of(world), bytes(writer.buffer))
        row = b"\0\1t" + b"\0\0\0\1" + bytes(4) + UnsupportedVersionError.code.to_bytes(2, "big")
        assert row in reply.data

    with caplog.at_level(logging.WARNING, "logbus.dispatch"):
        run(body)
    assert "FETCH version 3 is not supported; this broker supports versions 4 to" in caplog.text


@pytest.mark.parametrize("key", VERSIONS)
def test_version_below_zero_is_refused_for_each_api(
    key: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: internally, version -1 marks a SASL message without a header, so the
    dispatcher passed requests with version -1 to their handlers."""

    async def body(world: World) -> None:
        await world.start()
        frame = struct.pack(">hhih", key, -1, 3, -1) + bytes(64)
        reply = await ask(dispatcher_of(world), frame)
        if key == ApiKey.API_VERSIONS:
            assert reply.data[8:10] == UnsupportedVersionError.code.to_bytes(2, "big")
        else:
            assert "version -1 is not supported" in reply.refusal

    with caplog.at_level(logging.WARNING, "logbus.dispatch"):
        run(body)


def test_handler_with_an_unexpected_error_fails_only_its_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> None:
        raise ZeroDivisionError

    async def body(world: World) -> None:
        await world.start()
        dispatcher = dispatcher_of(world)
        request = kind("DescribeClusterRequest")(version=1)
        request.with_header(correlation_id=3, client_id="c")
        frame = bytes(request.encode(header=True, framed=True)[4:])
        with monkeypatch.context() as patch:
            patch.setitem(dispatch.HANDLERS, ApiKey.DESCRIBE_CLUSTER, fail)
            reply = await ask(dispatcher, frame)
        answers = kind("DescribeClusterResponse")
        answer = answers.decode(reply.data, version=1, header=True, framed=True)
        assert answer.error_code == UnknownServerError.code
        reply = await ask(dispatcher, frame)
        answer = answers.decode(reply.data, version=1, header=True, framed=True)
        assert answer.error_code == 0 and answer.brokers

    run(body)
    assert "ZeroDivisionError" in caplog.text


def long_join() -> bytes:
    """Return a JoinGroup request with 3 MiB of member metadata."""
    protocols = (members.JoinProtocol("range", bytes(3 << 20)),)
    join = members.JoinGroupRequest("g", 10_000, 60_000, "", None, protocols)
    return bytes(encode_call(join, 3, "c")[4:])


def assignment(size: int) -> bytes:
    """Return a SyncGroup request of ``size`` bytes from an unknown member."""
    rows = (members.Assigned("m", bytes(size)),)
    sync = members.SyncGroupRequest("g", 1, "m", None, "range", rows)
    return bytes(encode_call(sync, 3, "c")[4:])


def code_of(name: str, version: int, data: bytes) -> int:
    answer = kind(f"{name}Response").decode(data, version=version, header=True, framed=True)
    return int(answer.error_code)


def test_oversized_request_is_refused_and_the_connection_stays_open() -> None:
    """If the broker closed the connection, the leader of a large group would retry for ever.

    SyncGroup requests have a higher size limit, because the assignment of a group may be large.
    """

    async def body(world: World) -> None:
        await world.start()
        dispatcher = dispatcher_of(world)
        joined = await ask(dispatcher, long_join())
        version = members.JoinGroupRequest.VERSION
        assert code_of("JoinGroup", version, joined.data) == InvalidRequestError.code
        version = members.SyncGroupRequest.VERSION
        for size, error in ((3 << 20, UnknownMemberIdError), (16 << 20, InvalidRequestError)):
            synced = await ask(dispatcher, assignment(size))
            assert code_of("SyncGroup", version, synced.data) == error.code
        # OffsetCommit needs a response row for each partition, and the broker does not parse 3 MiB.
        frame = bytes.fromhex("0008 0002 00000003 0001 63") + bytes(3 << 20)
        assert "at most" in (await ask(dispatcher, frame)).refusal

    run(body)
