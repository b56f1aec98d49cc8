"""The membership in a native group (without a coordinator), as the reader of one stream uses it.

All streams of a consumer share one ``session.GroupSession``, which owns partitions in ZooKeeper and
commits their offsets."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial

from broker_lite.client.consuming.assignment import Release
from broker_lite.client.consuming.changes import MemberIdentity, StartBasis
from broker_lite.client.consuming.deleted_topics import DeletedTopics
from broker_lite.client.consuming.reader_core import ReaderCore
from broker_lite.client.consuming.starting import StartPlan
from broker_lite.client.consuming.waits import Await, Request, RunOperation, Task
from broker_lite.client.operations import requests
from broker_lite.client.transport.steps import Operation
from broker_lite.errors import ClosedError, InvalidConfigError
from broker_lite.model import CommittedOffset, TopicPartition
from broker_lite.native.beginning import beginnings
from broker_lite.native.session import GroupSession

DELETED_TOPIC_DELAY_MS = 5000
"""Milliseconds by which the error of a deleted topic is delayed. The group usually learns of the
deletion in this time and revokes the partition, so that the reader gets no error."""
THREAD_CHECK_S = 0.05
"""Seconds between two checks whether the thread that reads a stream has ended."""


class NativeMembership:
    """The membership in a native group (without a coordinator), for the reader of one of the
    consumer's streams.

    When a partition is revoked, the consumer waits at most 300 ms for the reader to stop. If the
    reader takes longer, the partition's next owner receives the unprocessed records again."""

    followed_topics = ()
    reports_positions = True
    is_settled = True

    def __init__(self, reader: ReaderCore, *, session: GroupSession, topics: Sequence[str]) -> None:
        self._reader = reader
        self._session = session
        self._topics = topics
        self._thread: threading.Thread | None = None
        """The thread that last asked this stream for records."""
        self._is_halting = False
        self._halted = threading.Event()
        reader.assignment.deleted_topics = DeletedTopics(
            reader.collector, reader.engine, DELETED_TOPIC_DELAY_MS
        )
        session.add(reader)

    @property
    def member_id(self) -> str:
        """The name under which the consumer is registered in the group."""
        return self._session.name

    def identity(self, grants: Mapping[TopicPartition, int | None]) -> MemberIdentity:
        raise InvalidConfigError(
            f"group {self._session.group!r} is coordinated through ZooKeeper, so no transaction "
            "can commit its offsets; create the consumer with coordination='kafka'"
        )

    def join(self) -> Task[None]:
        reader = self._reader
        if self._topics:
            yield RunOperation(
                requests.known_topics(reader.cluster, self._topics, reader.deadline_ms())
            )
        yield Await(self._session.enter())

    def record_poll(self) -> None:
        self._thread = threading.current_thread()

    def is_held_back(self) -> bool:
        """Return whether the reader must return no records: the time in which the consumer may
        return records (its lease) has expired, or the stream is closing."""
        return self._is_halting or self._session.is_held_back

    def is_due(self) -> bool:
        return self._is_halting

    def check(self) -> None:
        if self._is_halting:
            # The user asks for more records, so all returned ones are processed. Return no more,
            # because the stream is closing.
            self._halted.set()
            raise ClosedError("the consumer was closed; create another consumer")

    def beginnings(
        self, pending: Mapping[TopicPartition, StartBasis | None], deadline_ms: float
    ) -> Operation[StartPlan]:
        reader = self._reader
        known = {tp: row for tp, row in pending.items() if row is not None}
        return beginnings(reader.cluster, self._session.group, known, reader.config, deadline_ms)

    def holds(self, tp: TopicPartition, grant: int | None) -> bool:
        return True

    def commit(
        self,
        rows: Mapping[TopicPartition, CommittedOffset],
        grants: Mapping[TopicPartition, int],
        deadline_ms: float,
    ) -> Request:
        return Request(partial(self._session.commit_soon, rows, grants))

    def released(self, release: Release, settled: Mapping[TopicPartition, CommittedOffset]) -> None:
        for tp, grant in release.grants.items():
            if not release.is_lost and grant is not None:
                self._session.settled(tp, settled.get(tp), grant)

    def leave(self) -> Task[None]:
        yield Await(self._session.leave())

    # Methods with which all streams of one consumer are closed together.

    def halt(self) -> None:
        """Make the stream return no more records: the next call raises ClosedError. Any thread may
        call this."""
        self._is_halting = True
        self._reader.notify()

    def await_reader(self, deadline: float) -> bool:
        """Wait after ``halt`` until the thread that reads the stream has stopped, at most until
        ``deadline`` (on ``time.monotonic``).

        Return whether the calling thread may use the stream's positions now. It may if the reading
        thread has ended or has noticed ``halt`` (because it asked for records again), or if the
        caller is that thread."""
        thread = self._thread
        if thread is None or self.is_read_here:
            return True
        while thread.is_alive():
            left = deadline - time.monotonic()
            if self._halted.wait(max(0.0, min(left, THREAD_CHECK_S))):
                return True
            if left <= 0:
                return False
        return True

    @property
    def is_read_here(self) -> bool:
        """Whether the calling thread is the one that last asked this stream for records."""
        return self._thread is threading.current_thread()
