"""``AsyncConsumer``: the asyncio consumer. It fetches and decodes on the running event loop.

It runs the tasks (generators) of ``ReaderCore``, as ``Consumer`` does, and awaits where
``Consumer`` blocks. Rows leave the buffer only after a method's last await, so a cancelled call
loses none. Call all methods on the loop's thread."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Self, TypeVar

import pyarrow as pa

from broker_lite.client.callbacks import NO_CALLBACKS, Callbacks
from broker_lite.client.closing import ClosedByAsyncWith
from broker_lite.client.consuming.arrow_rows import arrow_rows
from broker_lite.client.consuming.face import ConsumerFace
from broker_lite.client.consuming.no_membership import standalone
from broker_lite.client.consuming.reader_core import Joining, ReaderCore
from broker_lite.client.consuming.waits import FOREVER_MS, Await, RunOperation, Task, Wait
from broker_lite.client.discovery import security_for
from broker_lite.client.operations.cluster import cluster_at
from broker_lite.client.received import Record
from broker_lite.client.transport.loop import LoopShell
from broker_lite.config import ConsumerConfig
from broker_lite.errors import ClosedError
from broker_lite.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    CommittedOffset,
    TopicPartition,
)

T = TypeVar("T")


class AsyncConsumer(ConsumerFace, ClosedByAsyncWith):
    """``Consumer`` for asyncio: ``async for record in consumer`` waits at the end of the log.

    With automatic commits, records that were being processed at a crash or an exception in the
    ``async with`` block are read again. Callbacks may be coroutine functions."""

    def __init__(
        self,
        bootstrap_servers: str,
        topics: Iterable[str] = (),
        *,
        group: str | None = None,
        partitions: Iterable[TopicPartition | int] | None = None,
        config: ConsumerConfig | None = None,
        callbacks: Callbacks = NO_CALLBACKS,
        joining: Joining | None = None,
    ) -> None:
        config = config or ConsumerConfig()
        security = security_for(bootstrap_servers, config.security)
        self._shell = LoopShell(config.client_id, security)
        self._woken = asyncio.Event()
        self._is_starting = False
        """Whether a task runs ``start`` now; another task that calls it waits."""
        self._is_started = False
        self.core = ReaderCore(
            self,
            self._shell,
            cluster_at(bootstrap_servers, security.user, has_answered=config.has_answered),
            config,
            group=group,
            joining=joining or standalone(tuple(dict.fromkeys(topics)), partitions),
            callbacks=callbacks,
            notify=self._woken.set,
        )

    async def start(self) -> None:
        """Find partitions and starting offsets, or join the group.

        ``async with`` and the first read call it. If two tasks call it, the second waits for the
        first; if the first fails or is cancelled, the second starts the consumer itself."""
        if not self._is_started:
            await self._perform(Wait(lambda: not self._is_starting))
        if self._is_started:
            return
        self._is_starting = True
        try:
            await self.run(self.core.start())
            self._is_started = True
        except BaseException:
            self._is_started = False
            raise
        finally:
            self._is_starting = False
            self._woken.set()

    async def run(self, task: Task[T]) -> T:
        """Run a reader's task (generator) on the event loop: await each step that it yields. Return
        its result."""
        try:
            step = next(task)
            while True:
                try:
                    result = await self._perform(step)
                except BaseException as error:
                    step = task.throw(error)
                else:
                    step = task.send(result)
        except StopIteration as stop:
            outcome: T = stop.value
            return outcome

    async def _perform(self, step: RunOperation | Wait | Await) -> Any:
        match step:
            case RunOperation(operation):
                return await self._shell.run(operation)
            case Wait(is_over, deadline_ms):
                while not is_over() and (left_ms := deadline_ms - self._shell.now_ms()) > 0:
                    self._woken.clear()
                    left_s = None if left_ms == FOREVER_MS else left_ms / 1000.0
                    try:
                        async with asyncio.timeout(left_s):
                            await self._woken.wait()
                    except TimeoutError:
                        break
            case Await(value) if inspect.isawaitable(value):
                # Mark the consumer as started, so that other tasks can call its methods: the
                # rebalance callback may wait for these tasks.
                self._is_starting, self._is_started = False, True
                self._woken.set()
                await value
        return None

    # Methods that return records.

    async def __aiter__(self) -> AsyncIterator[Record]:
        await self.start()
        core = self.core
        while True:
            for record in core.each_record(lambda: False):
                yield record
            await self.run(core.fill(None))

    async def poll(self, timeout_s: float = 0.0, max_records: int = 10_000) -> list[Record]:
        """Return the next records, or [] after ``timeout_s``. See ``Consumer.poll``."""
        await self.start()
        core = self.core
        core.begin_poll()
        if max_records > 0 and (core.is_ready() or await self.run(core.fill(timeout_s))):
            return core.take_records(max_records)
        await asyncio.sleep(0)  # Let fetches run even if the caller polls in a tight loop.
        return []

    async def poll_arrow(
        self, timeout_s: float = 0.0, *, headers: bool = False, max_rows: int | None = None
    ) -> pa.RecordBatch:
        """Return the next records as an Arrow record batch. See ``Consumer.poll_arrow``."""
        await self.start()
        core = self.core
        core.begin_poll()
        if max_rows != 0 and (core.is_ready() or await self.run(core.fill(timeout_s))):
            return core.take_rows(headers=headers, max_rows=max_rows)
        await asyncio.sleep(0)
        return arrow_rows((), headers=headers)

    # Methods that seek, and that return offsets and lag.

    async def seek_to_beginning(self, *tps: TopicPartition) -> None:
        """Seek to the oldest record of these partitions, or of all."""
        await self.seek_to_time(EARLIEST_TIMESTAMP, *tps)

    async def seek_to_end(self, *tps: TopicPartition) -> None:
        """Seek to the end of these partitions, or of all."""
        await self.seek_to_time(LATEST_TIMESTAMP, *tps)

    async def seek_to_time(self, timestamp_ms: int, *tps: TopicPartition) -> None:
        """Seek to the first record at or after a timestamp (ms since 1970), or else to the end.

        Without partitions, seek in all partitions."""
        await self.start()
        await self.run(self.core.seek_to_timestamp(int(timestamp_ms), self._chosen(tps)))

    async def end_offsets(self) -> dict[TopicPartition, int]:
        """Return the end offset of each assigned partition, as its leader reports it."""
        await self.start()
        return await self.run(self.core.list_offsets(LATEST_TIMESTAMP, self.assignment()))

    async def beginning_offsets(self) -> dict[TopicPartition, int]:
        """Return the oldest available offset of each assigned partition, from its leader."""
        await self.start()
        return await self.run(self.core.list_offsets(EARLIEST_TIMESTAMP, self.assignment()))

    async def lag(self) -> dict[TopicPartition, int]:
        """Return the number of offsets from each assigned partition's position to the end of its
        log."""
        return self._behind(await self.end_offsets())

    # Methods that read and write the group's committed offsets.

    async def committed(self) -> dict[TopicPartition, CommittedOffset]:
        """Return the group's committed offsets of the assigned partitions."""
        await self.start()
        return await self.run(self.core.committed())

    async def commit(
        self, offsets: Mapping[TopicPartition, CommittedOffset | int] | None = None
    ) -> None:
        """Commit ``offsets``, or every position if None; see ``Consumer.commit``.

        An offset is that of the next record to read."""
        await self.run(self.core.commit(offsets))

    # Methods that start and close the consumer.

    async def close(self) -> None:
        """Make the last automatic commit, leave the group and stop. See ``Consumer.close``."""
        await self._exit(is_done=sys.exc_info()[0] is None)

    async def _exit(self, *, is_done: bool) -> None:
        if self.core.is_closing:
            return  # A callback or another task has called ``close`` again.
        try:
            await self.run(self.core.close(is_done=is_done))
        finally:
            self.core.stop(ClosedError("the consumer was closed; create another consumer"))
            self._shell.close()
            self.core.engine.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self._exit(is_done=False)
            raise
        return self
