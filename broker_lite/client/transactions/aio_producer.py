"""``AsyncTransactionalProducer`` and ``AsyncBusTransaction``: transactions on an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import Any

from broker_lite.client.operations.transaction_requests import OffsetsToCommit
from broker_lite.client.producing.aio_producer import AsyncProducer, Sent
from broker_lite.client.producing.futures import BatchMetadata
from broker_lite.client.transactions.events import (
    AbortCall,
    BeginCall,
    Call,
    CommitCall,
    OffsetsCall,
)
from broker_lite.client.transactions.face import TransactionFace
from broker_lite.client.transactions.producer import (
    OffsetsOwner,
    Rows,
    TransactionalProducer,
    checked_offsets,
)
from broker_lite.config import ProducerConfig
from broker_lite.errors import FencedError, LogbusError, UnknownOutcomeError


class AsyncTransactionalProducer(AsyncProducer):
    """``TransactionalProducer`` for asyncio, from ``AsyncBus.producer(transactional_id=…)``."""

    _kind = TransactionalProducer
    _core: TransactionalProducer

    def __init__(self, bootstrap_servers: str, config: ProducerConfig) -> None:
        super().__init__(bootstrap_servers, config)
        self._core.on_shut = self._refuse_waiting

    def _fail(self, sent: Sent, error: LogbusError) -> None:
        super()._fail(sent, error)
        # The commit raises the error. Retrieve it here, or asyncio would log it as unretrieved.
        if not sent.cancelled():
            asyncio.Future.exception(sent)

    def _refuse(self, future: asyncio.Future[Any], error: LogbusError) -> None:
        """Fail ``future``, because its rows were not accepted, and fail the open transaction."""
        super()._refuse(future, error)
        self._core.runner.lose(error)

    def _refuse_waiting(self, error: LogbusError) -> None:
        """Fail the rows that still wait for space, so that the next transaction does not send
        them."""
        waiting, self._waiting = self._waiting, deque()
        for future, _, _ in waiting:
            if not future.done():
                super()._refuse(future, error)
        self._failed.clear()

    @property
    def is_usable(self) -> bool:
        """Whether another transaction can begin: see ``TransactionalProducer.is_usable`` for the
        conditions."""
        return self._core.is_usable

    async def begin(self) -> None:
        """Begin a transaction; see ``TransactionalProducer.begin``."""
        await self._call(BeginCall())

    async def commit(self) -> None:
        """Wait for all acknowledgements, and commit; see ``TransactionalProducer.commit``."""
        await self._queued()
        self._core.start_flush()
        await self._call(CommitCall())

    async def abort(self) -> None:
        """Abort the open transaction. If none is open, do nothing."""
        await self._call(AbortCall())

    async def send_offsets(self, source: OffsetsOwner | Rows, group: str | None = None) -> None:
        """Commit a group's offsets with the transaction; see
        ``TransactionalProducer.send_offsets``."""
        offsets = checked_offsets(source, group)
        if offsets.rows:
            await self._call(OffsetsCall(offsets.group), offsets)

    async def _call(self, call: Call, offsets: OffsetsToCommit | None = None) -> None:
        done: asyncio.Future[LogbusError | None] = self._shell.loop.create_future()

        def answered(error: LogbusError | None) -> None:
            if not done.done():
                done.set_result(error)

        self._core.runner.call(call, answered, offsets=offsets)
        error = await done
        if error is not None:
            raise error

    async def close(self, timeout_s: float | None = None) -> None:
        """Abort an open transaction, then close the producer."""
        if self._core.is_closed:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._call(AbortCall())
        except (FencedError, TimeoutError):
            # The transaction needs no abort: the coordinator has aborted it, or will when it times
            # out.
            pass
        finally:
            self._core.end()
            self._shell.close()


class AsyncBusTransaction(TransactionFace[AsyncTransactionalProducer]):
    """``BusTransaction`` for asyncio. Example: ``async with bus.transaction("id") as txn``."""

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Sent:
        """Send a record; see ``AsyncProducer.send``.

        If the producer refuses the record, the transaction cannot commit, even if the caller does
        not await the future."""
        return self._live().send(topic, value, key, headers, partition, timestamp_ms)

    async def send_arrow(
        self,
        topic: str,
        data: Any,
        *,
        key: str | None = None,
        value: str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> list[BatchMetadata]:
        """Send Arrow rows, and wait for acknowledgements; see ``AsyncProducer.send_arrow``."""
        return await self._live().send_arrow(
            topic, data, key=key, value=value, partition=partition, timestamp_ms=timestamp_ms
        )

    async def send_offsets(self, source: OffsetsOwner | Rows, group: str | None = None) -> None:
        """Commit a consumer's positions with the transaction; see
        ``TransactionalProducer.send_offsets``."""
        await self._live().send_offsets(source, group)

    async def commit(self) -> None:
        """Commit now. The end of the ``async with`` block then does nothing."""
        await self._end(self._live().commit())

    async def abort(self) -> None:
        """Abort now. The end of the ``async with`` block then does nothing."""
        await self._end(self._live().abort())

    async def _end(self, end: Awaitable[None]) -> None:
        try:
            await end
        except UnknownOutcomeError:
            raise
        except BaseException:
            await self._finish()
            raise
        await self._finish()

    async def _finish(self) -> None:
        self._is_open = False
        await self._release(self._producer)

    async def __aenter__(self) -> AsyncBusTransaction:
        try:
            await self._producer.begin()
        except BaseException:
            await self._finish()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if not self._is_open:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.abort()
        except LogbusError as problem:
            error.add_note(f"the abort of the transaction failed too: {problem}")
            if self._is_open:
                await self._finish()
