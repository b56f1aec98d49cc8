"""Driver only: a query's progress, committed to its consumer group so that lag tools see it.

The checkpoint alone decides where a query goes on; this is for everybody else. A background thread
commits (planning never waits for it); what piles up meanwhile is left out but for the newest. Each
commit carries a lease in its metadata, renewed while the query runs, so that two queries do not
overwrite each other's offsets: the second publishes nothing under a default group and says so, and
fails before its first batch where ``group.id`` was given. The next run of a query has the same
lease. Each commit names its topics' ids: a deleted topic's offsets never become its successor's.
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


class Offsets(Protocol):
    """What of ``Admin`` this needs."""

    def committed(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]: ...

    def commit_each(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset | int]
    ) -> Mapping[TopicPartition, LogbusError | None]: ...


class GroupProgress:
    """Publishes one query's progress. ``publish`` and ``check`` never wait."""

    def __init__(
        self,
        admin: Offsets,
        group: str,
        *,
        explicit: bool,
        run: str,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        lease_ms: int = LEASE_MS,
        renew_ms: int = RENEW_MS,
    ) -> None:
        self.group = group
        self._admin = admin
        self._explicit = explicit
        self._run = run
        self._now_ms = now_ms
        self._lease_ms = lease_ms
        self._renew_ms = renew_ms
        self._wake = threading.Condition()
        self._wanted: SourceOffset | None = None
        self._published: SourceOffset | None = None
        self._until_ms = 0
        self._holder = ""
        self._holder_until_ms = 0
        self._holder_runs = False
        """Whether the other query renewed its lease while this one waited for it."""
        self._problem = ""
        self._replaced: dict[str, str] = {}
        """Topics that are others by now, with the ids of those whose offsets were refused."""
        self._closing = False
        self._thread: threading.Thread | None = None

    # -- the planner's thread

    def publish(self, at: SourceOffset) -> None:
        """Let the group's offsets be ``at``, soon."""
        with self._wake:
            if at is self._wanted or at == self._wanted:
                return
            self._wanted = at
            self._wake.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._loop, name="logbus-group-progress", daemon=True
            )
            self._thread.start()

    def claim(self) -> None:
        """Wait until the lease of a ``group.id`` that was given is this query's.

        A killed query renews no lease, so its lease ends by itself. Raises GroupLeaseHeldError
        once another query renews. Gives up waiting where the coordinator does not answer: the
        background thread goes on trying, and ``check`` raises later.
        """
        if self._explicit:
            with self._wake:
                self._wake.wait_for(
                    lambda: (
                        self._published is self._wanted or self._holder_runs or bool(self._problem)
                    ),
                    (self._lease_ms + 2 * self._renew_ms) / 1000,
                )
            self.check()

    def check(self) -> None:
        """Raises GroupLeaseHeldError where ``group.id`` was given and is a running query's."""
        if self._explicit and self._holder_runs:
            raise GroupLeaseHeldError(
                f"another running query ({self._holder}) publishes its progress to group.id="
                f"{self.group!r}; give this query another group.id, or stop that one"
            )

    @property
    def state(self) -> str:
        """``published``, ``pending``, ``held by another query``, ``not published: …`` for topics
        that were made again, or what went wrong."""
        if self._holder:
            return f"held by another query ({self._holder})"
        if self._problem:
            return self._problem
        if self._published is not self._wanted:
            return "pending"
        replaced = ", ".join(sorted(self._replaced))
        return f"not published: {replaced} was made again" if replaced else "published"

    def wait(self, timeout_s: float) -> bool:
        """Wait until everything is published; False if it is not by then."""
        with self._wake:
            return self._wake.wait_for(
                lambda: self._published is self._wanted or bool(self._holder), timeout_s
            )

    def close(self, timeout_s: float = 2.0) -> None:
        """Publish what is pending, give the lease back, end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)

    # -- the background thread

    def _loop(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(
                    lambda: self._closing or self._published is not self._wanted,
                    self._pause_ms() / 1000,
                )
                wanted, closing = self._wanted, self._closing
            self._turn(wanted, release=closing)
            if closing:
                return
            if self._holder or self._problem:
                with self._wake:
                    self._wake.wait_for(lambda: self._closing, RETRY_MS / 1000)

    def _pause_ms(self) -> int:
        return self._renew_ms

    def _turn(self, wanted: SourceOffset | None, *, release: bool) -> None:
        """Publish once; whatever goes wrong is remembered and tried again, never raised."""
        if wanted is None:
            return
        try:
            if self._now_ms() >= self._until_ms and not self._acquire(wanted):
                return
            self._commit(wanted, release=release)
            self._problem = ""
        except LogbusError as error:
            if not self._problem:
                log.warning("progress to group %r waits: %s", self.group, error)
            with self._wake:
                self._problem = str(error)
                self._wake.notify_all()
            return
        with self._wake:
            self._published = wanted
            self._wake.notify_all()

    def _acquire(self, wanted: SourceOffset) -> bool:
        """Take the lease: look, commit, look again; the last who committed has it."""
        holder, until_ms = self._foreign()
        if not holder:
            self._commit(wanted, release=False)
            holder, until_ms = self._foreign()
        if not holder:
            self._holder, self._holder_runs = "", False
            return True
        self._until_ms = 0
        if not self._holder:
            log.warning(
                "group %r is another query's (%s): this one publishes no progress to it%s",
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
        until_ms = self._now_ms() + self._lease_ms
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
                where.topic: at.topics[where.topic].topic_id
                for where, error in answer.items()
                if error is not None
            }
        )
        self._until_ms = 0 if release else until_ms

    def _note_replaced(self, replaced: dict[str, str]) -> None:
        """That will not pass: say it once, and go on with the other topics."""
        for topic, topic_id in replaced.items():
            if self._replaced.get(topic) != topic_id:
                log.warning(
                    "topic %r was deleted and made again: what was read of the topic before "
                    "(id %s) is not committed to group %r",
                    topic,
                    topic_id,
                    self.group,
                )
        self._replaced = replaced
