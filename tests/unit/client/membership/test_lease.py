"""A member hands out records only while its lease lasts: its partitions may be another's then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from data_calls import rows_batch

from broker_lite.client.callbacks import NO_CALLBACKS
from broker_lite.client.fetch.fetch_engine import Arrival
from broker_lite.client.membership import consumer
from broker_lite.client.membership.aio_consumer import AsyncMemberConsumer
from broker_lite.client.membership.beginning import FirstLook
from broker_lite.client.membership.consumer import MemberConsumer
from broker_lite.client.membership.member import MemberShell
from broker_lite.client.membership.settings import MemberConfig
from broker_lite.model import TopicPartition
from broker_lite.record.batch import read_header
from broker_lite.record.walker import LogBatch

NOWHERE = "127.0.0.1:1"
WHERE = TopicPartition("t", 0)
CONFIG = MemberConfig(auto_commit=False)
FOR_EVER = float("inf")


def arrive(reader: Any) -> None:
    """A batch of three records was fetched for ``reader``, which owns its partition."""
    intake = reader._intake
    intake.begin({WHERE: 0})
    octets = memoryview(rows_batch([b"0", b"1", b"2"]))
    batch = LogBatch(read_header(octets), octets)
    intake._engine.arrivals.append(
        Arrival(WHERE, intake._generations[WHERE], [batch], len(octets), None)
    )


def test_member_hands_out_nothing_after_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked(*_: Any) -> Any:
        return FirstLook({})
        yield

    monkeypatch.setattr(consumer, "first_look", looked)
    monkeypatch.setattr(MemberConsumer, "_await_first_part", lambda self: None)
    monkeypatch.setattr(MemberShell, "start", lambda self: None)
    reader = MemberConsumer(NOWHERE, ("t",), group="g", config=CONFIG)
    try:
        arrive(reader)
        assert reader.poll() == []
        assert reader.poll_arrow().num_rows == 0
        reader._member.lease_until_ms = FOR_EVER
        assert [record.value for record in reader.poll(max_records=1)] == [b"0"]
        # Also of a batch that is open.
        reader._member.lease_until_ms = 0
        assert reader.poll() == []
        reader._member.lease_until_ms = FOR_EVER
        assert [record.value for record in reader.poll()] == [b"1", b"2"]
    finally:
        reader.stop()


def test_asyncio_member_hands_out_nothing_after_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    async def started(_: Any) -> None:
        """No broker is asked."""

    monkeypatch.setattr(AsyncMemberConsumer, "_start", started)

    async def body() -> None:
        reader = AsyncMemberConsumer(
            NOWHERE, ("t",), group="g", pattern=None, config=CONFIG, callbacks=NO_CALLBACKS
        )
        arrive(reader)
        assert await reader.poll() == []
        reader._member.lease_until_ms = FOR_EVER
        assert [record.value for record in await reader.poll(max_records=1)] == [b"0"]
        reader._member.lease_until_ms = 0
        assert await reader.poll() == []
        reader._member.lease_until_ms = FOR_EVER
        assert [record.value for record in await reader.poll()] == [b"1", b"2"]
        await reader.close()

    asyncio.run(body())
