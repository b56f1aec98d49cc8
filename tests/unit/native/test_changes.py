"""What a reader is told: of changes while it begins with something else, of commits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker_lite.client.administration.admin import Admin
from broker_lite.client.callbacks import NO_CALLBACKS
from broker_lite.client.consuming.starting import Begun, Starts
from broker_lite.config import ConsumerConfig
from broker_lite.errors import CoordinationUnavailableError, NotOwnerError
from broker_lite.metadata.znodes import NativeSubscription
from broker_lite.model import TopicPartition
from broker_lite.native import aio_consumer, consumer
from broker_lite.native.aio_consumer import NativeAsyncConsumer
from broker_lite.native.consumer import NativeConsumer
from broker_lite.native.events import PartitionStart, StreamGive, StreamLose
from broker_lite.native.session import GroupSession, raise_worst

NOWHERE = "127.0.0.1:1"
KEPT, GOING = TopicPartition("t", 0), TopicPartition("t", 1)


def told_while_asking(reader: Any) -> Any:
    """``beginnings``, in the middle of which a partition goes to another consumer."""

    def beginnings(cluster: Any, group: str, starts: Any, *_: Any) -> Any:
        reader.queue.append(StreamLose(0, GOING))
        return Begun(Starts(dict.fromkeys(starts, 5), {}), {})
        yield

    return beginnings


def give(where: TopicPartition, grant: int) -> StreamGive:
    return StreamGive(0, where, PartitionStart(None, True, "id", grant))


def test_partition_revoked_during_fetch_delivers_no_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call went on to hand out of it, for as long as the reader could take."""
    session = GroupSession(NOWHERE, "g", "me", NativeSubscription((), ".*", 1), 6000)
    reader = NativeConsumer(NOWHERE, session, topics=(), config=ConsumerConfig())
    try:
        monkeypatch.setattr(consumer, "beginnings", told_while_asking(reader))
        reader.queue.extend([give(KEPT, 1), give(GOING, 2)])
        assert reader.poll() == []
        assert reader.assignment() == [KEPT]
        assert reader.is_settled
    finally:
        reader.stop()


def test_asyncio_partition_revoked_during_fetch_delivers_no_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body() -> None:
        reader = NativeAsyncConsumer(
            NOWHERE,
            (),
            pattern=".*",
            group="g",
            admin=Admin(NOWHERE),
            zookeeper=NOWHERE,
            session_timeout_ms=6000,
            config=ConsumerConfig(),
            callbacks=NO_CALLBACKS,
        )
        monkeypatch.setattr(aio_consumer, "beginnings", told_while_asking(reader))
        reader.queue.extend([give(KEPT, 1), give(GOING, 2)])
        await reader._take_changes()
        assert reader.assignment() == [KEPT]
        await reader.close()

    asyncio.run(body())


def test_close_raises_failed_commit_despite_revoked_partition() -> None:
    """close() ignores NotOwnerError, but must not ignore another error that accompanies it."""
    down, gone = CoordinationUnavailableError("ZooKeeper does not answer"), NotOwnerError("gone")
    with pytest.raises(CoordinationUnavailableError):
        raise_worst({GOING: gone, KEPT: down})
    with pytest.raises(NotOwnerError):
        raise_worst({GOING: gone})
    raise_worst({})
