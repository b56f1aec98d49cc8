"""``NativeConsumer``: one stream of a consumer in a native group, the blocking face.

A ``Consumer`` whose partitions come and go as the group's members do, who hands out nothing while
the group's lease has run out, and who commits by compare-and-set as the partitions' owner.
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
"""How soon it is seen that a reader's thread has ended without a word."""


class NativeConsumer(Consumer):
    """Reads what its group's other members leave to it. Make it with ``Bus.consumer`` and
    ``coordination="zookeeper"``, or several streams with ``Bus.create_message_streams``.

    As ``Consumer``, with these differences. A partition that goes to another member is given up
    when this one asks for more, with what is done with committed; one that does not ask for 300 ms
    is not waited for, and what it is at comes again to the next owner. A commit of a partition
    that is not owned any more raises NotOwnerError and changes nothing. So: commit before the work
    and drop what NotOwnerError names, and each record is worked on at most once; work before the
    commit (automatic commits do) and it is at least once.
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
        """Who asked for records last."""
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
        """The consumer's name in the group's registry."""
        return self._session.name

    # What the member tells; on its thread.

    def wake(self) -> None:
        self._notify()

    def end(self, error: LogbusError) -> None:
        self._end = error
        self._notify()

    # What the reader does about it.

    def _fill(self, timeout_s: float | None, is_more: bool = False) -> bool:
        self._reader = threading.current_thread()
        return super()._fill(timeout_s, is_more)

    def _is_held_back(self) -> bool:
        return self._is_halting or self._session.is_held_back

    def _has_changes(self) -> bool:
        return self._is_halting or bool(self._owned)

    def _take_changes(self) -> None:
        if self._is_halting:
            # It asked for more, so it is done with everything; and it comes no further than here.
            self._halted.set()
            raise ClosedError("the consumer was closed")
        self._let_go()
        while self._owned.pending:
            self._begin()
            if not self.queue:
                break  # What no broker knows yet is asked for at the next call.
            # While brokers were asked something may have gone: nothing of that is handed out.
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
            # Else the end would be somewhere else for whoever takes over after a crash.
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

    # The end.

    def halt(self) -> None:
        """Hand out nothing more, whoever reads: the reader is told when it asks. Any thread."""
        self._is_halting = True
        self._notify()

    def await_reader(self, deadline: float) -> bool:
        """After ``halt``: whether the reader has stopped, was this thread, or is no more, by a time
        of ``time.monotonic``. If so the positions are the calling thread's to look at."""
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
        """Whether this thread was the last to ask for records."""
        return self._reader is threading.current_thread()

    def abandon(self) -> None:
        """The end while the reader is at its work: what was committed stays as it is, and what came
        after that comes again."""
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
        """The last commit."""
        if self._end is None:
            self._last_commit(is_done=is_done)
            self._callbacks.revoked(self, self._intake.assignment())
