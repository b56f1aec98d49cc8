"""Commit a query's progress to its consumer group, for tools that show a group's lag.

The checkpoint alone decides where a query resumes. A background thread on the driver commits the
newest offsets, so the planning of batches never waits for a commit.

Two queries must not overwrite each other's offsets, so one query at a time has the group's lease: a
text in the metadata of its committed offsets. The query renews the lease while it runs, and all
runs of one checkpoint share it. If another query has the lease, a query with a default group
publishes nothing and logs a warning; a query with ``group.id`` fails before its first batch.
Commits have topic ids, so offsets of a deleted topic never apply to a new topic of the same name.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from broker_lite.client.administration.query_lease import holder_of, lease_text
from broker_lite.errors import GroupLeaseHeldError, LogbusError, UnknownTopicIdError
from broker_lite.model import CommittedOffset, TopicPartition
from pyspark_logbus.offsets import SourceOffset

log = logging.getLogger("pyspark_logbus")

LEASE_MS = 15_000
RENEW_MS = 5_000
RETRY_MS = 1_000
"""Times in milliseconds: the life of a lease (``LEASE_MS``), the pause between its renewals
(``RENEW_MS``), and the pause before a failed commit is retried (``RETRY_MS``)."""
CLOSE_S = 10.0
"""Maximum seconds for which a stopping query tries to release its group's lease. Without a release,
another query can commit to the group only once the lease has expired."""


class Offsets(Protocol):
    """The methods of ``Admin`` that this module calls."""

    def committed(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]: ...

    def commit_each(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset | int]
    ) -> Mapping[TopicPartition, LogbusError | None]: ...


class GroupProgress:
    """Commits one query's progress to its consumer group. ``publish`` and ``check`` never wait.

    ``explicit`` means that the query has the option ``group.id``. ``run`` identifies the query as
    holder of the group's lease (its right to commit): it is equal for all runs of one checkpoint.
    """

    def __init__(
        self,
        admin: Offsets,
        group: str,
        *,
        explicit: bool,
        run: str,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self.group = group
        self._admin = admin
        self._explicit = explicit
        self._run = run
        self._now_ms = now_ms
        self._wake = threading.Condition()
        self._newest: SourceOffset | None = None
        self._published: SourceOffset | None = None
        self._until_ms = 0
        self._holder = ""
        self._holder_until_ms = 0
        self._holder_runs = False
        """Whether the query that has the group's lease renewed it while this query waited for the
        lease to expire. The renewal shows that the other query is running."""
        self._problem = ""
        self._replaced: dict[str, str] = {}
        """The recreated topics for which the coordinator refused offsets: by name, the old topic id
        in those offsets."""
        self._closing = False
        self._ends_s = float("inf")
        """Monotonic time (s) at which the background thread gives up the release of the lease."""
        self._thread: threading.Thread | None = None

    # Methods that the planner's thread calls.

    def publish(self, at: SourceOffset) -> None:
        """Let the background thread commit ``at`` as the group's offsets."""
        with self._wake:
            if at is self._newest or at == self._newest:
                return
            self._newest = at
            self._wake.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._loop, name="logbus-group-progress", daemon=True
            )
            self._thread.start()

    def claim(self) -> None:
        """If the query has the option ``group.id``, wait until it has that group's lease (the right
        to commit).

        Raises GroupLeaseHeldError if another query renews the lease, because that query is running.
        A killed query does not renew its lease, which then expires. If the coordinator does not
        answer, this method stops waiting. The background thread then keeps trying to get the lease,
        and a later ``check`` raises GroupLeaseHeldError if another query has it.
        """
        if self._explicit:
            with self._wake:
                self._wake.wait_for(
                    lambda: (
                        self._published is self._newest or self._holder_runs or bool(self._problem)
                    ),
                    (LEASE_MS + 2 * RENEW_MS) / 1000,
                )
            self.check()

    def check(self) -> None:
        """Raise GroupLeaseHeldError if this query has the option ``group.id``, and another running
        query has that group's lease."""
        if self._explicit and self._holder_runs:
            raise GroupLeaseHeldError(
                f"another running query ({self._holder}) publishes its progress to group.id="
                f"{self.group!r}; give this query another group.id, or stop that one"
            )

    @property
    def state(self) -> str:
        """Return whether the newest offsets are committed, as a text for Spark's progress report:
        ``published``, ``pending``, ``held by another query``, ``not published: …`` for recreated
        topics, or the text of the last error."""
        if self._holder:
            return f"held by another query ({self._holder})"
        if self._problem:
            return self._problem
        if self._published is not self._newest:
            return "pending"
        replaced = ", ".join(sorted(self._replaced))
        return f"not published: {replaced} was recreated" if replaced else "published"

    def wait(self, timeout_s: float) -> bool:
        """Wait until the newest offsets are committed, or cannot be, because another query has the
        lease.

        Returns False after ``timeout_s`` seconds.
        """
        with self._wake:
            return self._wake.wait_for(
                lambda: self._published is self._newest or bool(self._holder), timeout_s
            )

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Commit the newest offsets, release the group's lease and end the background thread. Waits
        at most ``timeout_s`` seconds."""
        with self._wake:
            self._ends_s = time.monotonic() + timeout_s
            self._closing = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)

    # Methods that run on the background thread.

    def _loop(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(
                    lambda: self._closing or self._published is not self._newest,
                    RENEW_MS / 1000,
                )
                newest, closing = self._newest, self._closing
            self._turn(newest, release=closing)
            if closing:
                left_s = self._ends_s - time.monotonic()
                if not self._problem or left_s <= 0:
                    return
                time.sleep(min(RETRY_MS / 1000, left_s))
            elif self._holder or self._problem:
                with self._wake:
                    self._wake.wait_for(lambda: self._closing, RETRY_MS / 1000)

    def _turn(self, newest: SourceOffset | None, *, release: bool) -> None:
        """Try once to commit the offsets ``newest`` to the group, and with ``release`` give up the
        lease. An error is stored, not raised: ``state`` returns its text, and the thread tries
        again."""
        if newest is None:
            return
        try:
            if self._now_ms() >= self._until_ms and not self._acquire(newest):
                return
            self._commit(newest, release=release)
            self._problem = ""
        except LogbusError as error:
            if not self._problem:
                log.warning(
                    "progress is not committed to group %r yet, and is retried: %s",
                    self.group,
                    error,
                )
            with self._wake:
                self._problem = str(error)
                self._wake.notify_all()
            return
        with self._wake:
            self._published = newest
            self._wake.notify_all()

    def _acquire(self, newest: SourceOffset) -> bool:
        """Try to acquire the group's lease (the right to commit), and return whether this query has
        it.

        If no other query has the lease, this method commits a lease and reads it back. If two
        queries do so at the same time, the later commit replaces the other lease.
        """
        holder, until_ms = self._foreign()
        if not holder:
            self._commit(newest, release=False)
            holder, until_ms = self._foreign()
        if not holder:
            self._holder, self._holder_runs = "", False
            return True
        self._until_ms = 0
        if not self._holder:
            log.warning(
                "group %r: another query (%s) publishes to it; this query publishes nothing%s",
                self.group,
                holder,
                "" if self._explicit else "; give it a group.id of its own to see its lag",
            )
        with self._wake:
            if holder != self._holder:
                self._holder, self._holder_until_ms = holder, until_ms
            self._holder_runs = until_ms > self._holder_until_ms
            self._wake.notify_all()
        return False

    def _foreign(self) -> tuple[str, int]:
        commits = self._admin.committed(self.group).values()
        return holder_of(commits, self._now_ms(), besides=self._run)

    def _commit(self, at: SourceOffset, *, release: bool) -> None:
        until_ms = self._now_ms() + LEASE_MS
        text = "" if release else lease_text(self._run, until_ms)
        rows: dict[TopicPartition, CommittedOffset | int] = {
            TopicPartition(name, number): CommittedOffset(
                end.offset, end.leader_epoch, text, topic.topic_id
            )
            for name, topic in at.topics.items()
            for number, end in topic.partitions.items()
        }
        answer = self._admin.commit_each(self.group, rows) if rows else {}
        errors = [error for error in answer.values() if error is not None]
        lasting = [error for error in errors if not isinstance(error, UnknownTopicIdError)]
        if lasting:
            raise lasting[0]
        self._note_replaced(
            {
                tp.topic: at.topics[tp.topic].topic_id
                for tp, error in answer.items()
                if error is not None
            }
        )
        self._until_ms = 0 if release else until_ms

    def _note_replaced(self, replaced: dict[str, str]) -> None:
        """Warn once about each recreated topic, for which the coordinator refused the offsets."""
        for topic, topic_id in replaced.items():
            if self._replaced.get(topic) != topic_id:
                log.warning(
                    "topic %r was deleted and recreated: the progress in the deleted topic "
                    "(id %s) is not committed to group %r",
                    topic,
                    topic_id,
                    self.group,
                )
        self._replaced = replaced
