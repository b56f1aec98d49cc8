"""``Consumer``: the blocking consumer. It returns records one by one, in lists or as Arrow, and
waits at the end of the log.

Its background thread prefetches records (``fetch_engine``) and sends automatic commits. The calling
thread does all else: it decodes records, and looks up and commits offsets over pooled connections.
Only one thread at a time may call a consumer."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import pyarrow as pa

from broker_lite.client.callbacks import NO_CALLBACKS, Callbacks
from broker_lite.client.closing import ClosedByWith
from broker_lite.client.consuming.arrow_rows import arrow_rows
from broker_lite.client.consuming.face import ConsumerFace
from broker_lite.client.consuming.no_membership import standalone
from broker_lite.client.consuming.reader_core import Joining, ReaderCore
from broker_lite.client.consuming.waits import Await, RunOperation, Task, Wait
from broker_lite.client.discovery import security_for
from broker_lite.client.in_place.partitions import InPlace
from broker_lite.client.operations.cluster import cluster_at
from broker_lite.client.received import Record
from broker_lite.client.transport.clock import monotonic_ms
from broker_lite.client.transport.pool import Pool
from broker_lite.client.transport.reactor import Reactor
from broker_lite.config import ConsumerConfig
from broker_lite.errors import ClosedError
from broker_lite.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    CommittedOffset,
    TopicPartition,
)

WAIT_SLICE_S = 3600.0
"""Maximum seconds of one ``Condition.wait``, which rejects an infinite number. A longer wait
repeats it."""

T = TypeVar("T")


class Consumer(ConsumerFace, ClosedByWith):
    """The blocking consumer. Create it with ``Bus.consumer``.

    With a group, it starts at the group's committed offsets and commits every
    ``auto_commit_interval_ms`` unless ``auto_commit=False``. Without a group, its positions are not
    stored. A partition without a committed offset starts where the option ``start`` says:
    "earliest", "latest" (default) or "none" (an error). Partitions created later are read from
    their beginning.

    With automatic commits, each record is processed at least once. A record that ``poll`` returned
    counts as processed at the next poll, an iterated record at the next iteration. If a ``with``
    block ends without an error, all returned records count as processed. After a crash or an error,
    the group reads again the records that were being processed.

    ``joining`` is a function that makes the consumer a member of the group. Without it, the
    consumer reads all its partitions alone. A member shares the partitions with others:

    - Assignments change only within calls that ask for records. Before a revocation the consumer
      commits the processed records (unless ``auto_commit=False``) and calls ``on_revoke``.
    - It returns no records if its last heartbeat is so old that another member may own its
      partitions.
    - A commit of a partition that the member lost raises NotOwnerError and changes nothing. To
      process each record at most once, turn automatic commits off, commit the records before you
      process them, and drop those of the partitions that NotOwnerError names."""

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
        cluster = cluster_at(bootstrap_servers, security.user, has_answered=config.has_answered)
        self._condition = threading.Condition()
        self._pool = Pool(config.client_id, security)
        self._reactor = Reactor(config.client_id, "logbus-consumer", security)
        self.core = ReaderCore(
            self,
            self._reactor,
            cluster,
            config,
            group=group,
            joining=joining or standalone(tuple(dict.fromkeys(topics)), partitions),
            callbacks=callbacks,
            notify=self._notify,
            in_place=InPlace(self._reactor.is_to_this_machine) if config.local_reads else None,
        )
        self._reactor.start(self._crashed)
        _consumers.add(self)
        try:
            self.run(self.core.start())
        except BaseException:
            try:
                self.run(self.core.membership.leave())
            finally:
                self.stop()
            raise

    def run(self, task: Task[T]) -> T:
        """Run a task (generator) of ``ReaderCore`` on the calling thread, and return its result."""
        try:
            step = next(task)
            while True:
                try:
                    result = self._perform(step)
                except BaseException as error:
                    step = task.throw(error)
                else:
                    step = task.send(result)
        except StopIteration as stop:
            outcome: T = stop.value
            return outcome

    def _perform(self, step: RunOperation | Wait | Await) -> Any:
        match step:
            case RunOperation(operation):
                return self._pool.run(operation)
            case Wait(is_over, deadline_ms):
                with self._condition:
                    while not is_over() and (left_ms := deadline_ms - monotonic_ms()) > 0:
                        self._condition.wait(min(left_ms / 1000.0, WAIT_SLICE_S))
        return None

    # Methods that return records.

    def __iter__(self) -> Iterator[Record]:
        """Yield records forever. At the end of the log, wait for new records."""
        return self.core.each_record(lambda: self.run(self.core.fill(None)))

    def poll(self, timeout_s: float = 0.0, max_records: int = 10_000) -> list[Record]:
        """Return the next records, in order within each partition, or [] after ``timeout_s``
        seconds.

        With ``timeout_s`` 0, return only records already received. Raises

        - CorruptMessageError, unless ``on_corrupt="skip"``: ``seek`` past the offset to continue;
        - OffsetOutOfRangeError for an offset outside the log with ``start="none"``: ``seek`` to an
          offset in the log;
        - UnknownTopicIdError or UnknownTopicOrPartitionError for a deleted topic;
        - ClosedError after ``close``."""
        core = self.core
        core.begin_poll()
        if max_records > 0 and (core.is_ready() or self.run(core.fill(timeout_s))):
            return core.take_records(max_records)
        return []

    def poll_arrow(
        self, timeout_s: float = 0.0, *, headers: bool = False, max_rows: int | None = None
    ) -> pa.RecordBatch:
        """Return the next records as an Arrow record batch, with 0 rows after ``timeout_s``
        seconds.

        The columns are those of Spark's Kafka source: key, value, topic, partition, offset,
        timestamp (microseconds, UTC) and timestampType; ``headers=True`` adds headers. A timestamp
        that is negative or does not fit microseconds is null. Without ``max_rows``, whole stored
        batches are added until there are 4096 rows or no further batch has arrived. A single stored
        batch is not copied; several are concatenated. Errors are those of ``poll``."""
        core = self.core
        core.begin_poll()
        if max_rows != 0 and (core.is_ready() or self.run(core.fill(timeout_s))):
            return core.take_rows(headers=headers, max_rows=max_rows)
        return arrow_rows((), headers=headers)

    # Methods that seek, and that return offsets and lag.

    def seek_to_beginning(self, *tps: TopicPartition) -> None:
        """Seek to the oldest record of these partitions, by default of all."""
        self.seek_to_time(EARLIEST_TIMESTAMP, *tps)

    def seek_to_end(self, *tps: TopicPartition) -> None:
        """Seek to the end of these partitions, by default of all."""
        self.seek_to_time(LATEST_TIMESTAMP, *tps)

    def seek_to_time(self, timestamp_ms: int, *tps: TopicPartition) -> None:
        """Seek to the first record at or after a timestamp (ms since 1970), or else to the end.

        Without partitions, seek in all partitions."""
        self.run(self.core.seek_to_timestamp(int(timestamp_ms), self._chosen(tps)))

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Return the end offset of each assigned partition, as its leader reports it."""
        return self.run(self.core.list_offsets(LATEST_TIMESTAMP, self.assignment()))

    def beginning_offsets(self) -> dict[TopicPartition, int]:
        """Return the oldest available offset of each assigned partition, from its leader."""
        return self.run(self.core.list_offsets(EARLIEST_TIMESTAMP, self.assignment()))

    def lag(self) -> dict[TopicPartition, int]:
        """Return the number of offsets from each assigned partition's position to the end of its
        log."""
        return self._behind(self.end_offsets())

    # Methods that read and write the group's committed offsets.

    def committed(self) -> dict[TopicPartition, CommittedOffset]:
        """Return the group's committed offset of each assigned partition, if it has one.

        Raises InvalidGroupIdError if the consumer has no group."""
        return self.run(self.core.committed())

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset | int] | None = None) -> None:
        """Commit ``offsets``; if None, commit the position of every partition.

        A committed offset, like a position, is that of the next record to read. Raises
        UnknownTopicIdError if the topic was recreated; for a group member also NotOwnerError if
        another member owns the partition, and RebalanceInProgressError if a rebalance lasts too
        long: commit again. An error in one partition does not prevent the commit of the others."""
        self.run(self.core.commit(offsets))

    # Methods that close or stop the consumer.

    def close(self) -> None:
        """Make the last automatic commit, leave the group and stop the background thread.

        With automatic commits, all returned records count as processed. But if Python is handling
        an error, as in ``finally: consumer.close()``, the records of the last call do not: the
        group reads them again."""
        self._exit(is_done=sys.exc_info()[0] is None)

    def _exit(self, *, is_done: bool) -> None:
        if self.core.is_closing:
            return  # ``close`` was called again, for example by a callback.
        try:
            self.run(self.core.close(is_done=is_done))
        finally:
            self.stop()

    def stop(self) -> None:
        """Stop the background thread without a last commit and without leaving the group."""
        self.core.stop(ClosedError("the consumer was closed; create another consumer"))
        self._reactor.stop()
        self.core.engine.close()
        self._pool.close()

    # Methods that the I/O thread calls, and one that a forked child calls.

    def _notify(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def _crashed(self, error: BaseException) -> None:
        self.core.stop(
            ClosedError(f"the consumer's thread ended: {error!r}; create another consumer")
        )
        raise error

    def _forked(self) -> None:
        self._condition = threading.Condition()
        self.core.stop(
            ClosedError(
                "this consumer was created before a fork; create another one in this process"
            )
        )
        self.core.engine.close()


_consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for consumer in list(_consumers):
        consumer._forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
