"""``NativeConsumer``: one stream of a consumer in a native group, blocking.

Its partitions change with the group's assignment. It hands out no record while the lease is
expired, and commits by compare-and-set as the owner of a partition.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping

from broker_lite.client.callbacks import NO_CALLBACKS, Callbacks
from broker_lite.client.consuming.consumer import OPERATION_TIMEOUT_MS, Consumer
from broker_lite.client.consuming.starting import Starts
from broker_lite.client.operations import requests
from broker_lite.client.transport.blocking import monotonic_ms
from broker_lite.config import ConsumerConfig
from broker_lite.errors import ClosedError, LogbusError
from broker_lite.model import CommittedOffset, TopicPartition
from broker_lite.native.beginning import beginnings
from broker_lite.native.changes import Change, Changes
from broker_lite.native.session import GroupSession, raise_worst

LOOK_S = 0.05
"""Seconds between two checks whether a reader's thread has ended."""


class NativeConsumer(Consumer):
    """A consumer that shares partitions with the other members of its group.

    Make it with ``Bus.consumer(coordination="zookeeper")``, or several streams with
    ``Bus.create_message_streams``. Differences from ``Consumer``: a revoked partition is released
    at the next call for records, with the processed records committed. A reader that does not call
    within 300 ms is not awaited, and the next owner gets its records again. A commit of a partition
    that is no longer owned raises NotOwnerError and changes nothing.

    To process each record at most once, commit before the work and drop the partitions that
    NotOwnerError names. Automatic commits follow the work, so each record is processed at least
    once.
    """

    _defers_changes = True

    def __init__(
        self,
        bootstrap_servers: str,
        session: GroupSession,
        *,
        topics: tuple[str, ...],
        config: ConsumerConfig,
        callbacks: Callbacks = NO_CALLBACKS,
    ) -> None:
        self._prepare(bootstrap_servers, topics, session.group, config)
        self._session = session
        self._callbacks = callbacks
        self._reader: threading.Thread | None = None
        """The thread that last asked for records."""
        self._is_halting = False
        self._halted = threading.Event()
        if topics:
            deadline_ms = monotonic_ms() + OPERATION_TIMEOUT_MS
            self._pool.run(requests.known_topics(self._cluster, topics, deadline_ms))
        self.queue: deque[Change] = self._changes
        self._start_reading((), Starts({}, {}), self._is_held_back)
        self._owned = Changes(
            self.queue,
            self._intake,
            self._engine,
            session.settled,
            says_how_far=config.auto_commit,
        )
        session.add(self)

    @property
    def member_id(self) -> str:
        """Return the consumer's name in the group's registry."""
        return self._session.name

    # Reports of the member, on the member's thread.

    def wake(self) -> None:
        self._notify()

    def end(self, error: LogbusError) -> None:
        self._end = error
        self._notify()

    # The reader's part.

    def _fill(self, timeout_s: float | None, is_more: bool = False) -> bool:
        self._reader = threading.current_thread()
        return super()._fill(timeout_s, is_more)

    def _is_held_back(self) -> bool:
        return self._is_halting or self._session.is_held_back

    def _has_changes(self) -> bool:
        return self._is_halting or bool(self._owned)

    def _take_changes(self) -> None:
        if self._is_halting:
            # A reader that asks for more has processed everything before, and reads no further
            # here.
            self._halted.set()
            raise ClosedError("the consumer was closed")
        self._let_go()
        while self._owned.pending:
            self._begin()
            if not self.queue:
                break  # Partitions that no broker knows yet are tried at the next call.
            # A partition may have been lost during the request: hand out none of its records.
            self._let_go()

    def _let_go(self) -> None:
        owned = self._owned
        while (going := owned.next()) is not None:
            reads = owned.read_of(going)
            try:
                (self._callbacks.lost if going.is_lost else self._callbacks.revoked)(self, reads)
            finally:
                owned.let_go(going)

    def _begin(self) -> None:
        owned = self._owned
        deadline_ms = monotonic_ms() + OPERATION_TIMEOUT_MS
        begun = self._pool.run(
            beginnings(self._cluster, self._group(), owned.pending, self.config, deadline_ms)
        )
        owned.begin(*begun.starts)
        if begun.commits and self.config.auto_commit:
            # Without a commit, a later owner would resolve "latest" to another offset.
            grants = owned.grants(begun.commits)
            self._session.commit_soon(begun.commits, grants, lambda _: None)
        self._callbacks.assigned(self, begun.starts.offsets)

    # Commits.

    def _commit_rows(self, rows: Mapping[TopicPartition, CommittedOffset], timeout_ms: int) -> None:
        if rows:
            grants = self._owned.grants(rows)
            raise_worst(self._session.commit(rows, grants, timeout_ms / 1000))

    def _auto_commit(self) -> None:
        self._commit_due = False
        if self._is_committing:
            return
        rows = self._intake.settled()
        if rows:
            self._is_committing = True
            self._session.commit_soon(rows, self._owned.grants(rows), self._committed)

    # Closing.

    def halt(self) -> None:
        """Hand out no more records; the next call raises. Any thread may call this."""
        self._is_halting = True
        self._notify()

    def await_reader(self, deadline: float) -> bool:
        """Wait after ``halt`` until the reader has stopped, or ``deadline`` (``time.monotonic``)
        passes.

        Returns whether the calling thread may read the positions: the reader stopped, ended, or is
        this thread.
        """
        reader = self._reader
        if reader is None or self.is_read_here:
            return True
        while reader.is_alive():
            left = deadline - time.monotonic()
            if self._halted.wait(max(0.0, min(left, LOOK_S))):
                return True
            if left <= 0:
                return False
        return True

    @property
    def is_read_here(self) -> bool:
        """Return whether this thread was the last to ask for records."""
        return self._reader is threading.current_thread()

    def abandon(self) -> None:
        """End while the reader works: uncommitted records are delivered again."""
        if self._end is None:
            self._callbacks.lost(self, self._intake.assignment())

    def _forked(self) -> None:
        super()._forked()
        self._session.forget()

    def _close(self, *, is_done: bool) -> None:
        try:
            self.finish(is_done=is_done)
        finally:
            self._session.close()
            self.stop()

    def finish(self, *, is_done: bool) -> None:
        """Commit the processed positions for the last time."""
        if self._end is None:
            self._last_commit(is_done=is_done)
            self._callbacks.revoked(self, self._intake.assignment())
