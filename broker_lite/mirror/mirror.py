"""Copy a cluster's topics, settings and group offsets to another cluster, and keep the copy
current.

The cluster that is copied is the source, the other one the target. One thread runs a mirror; a
second thread only prefetches. The mirror writes copied records first, then stores its state
(``MirrorCheckpoint``), then writes group offsets (``GroupSync``). The stored state is therefore
never ahead of the records. If the mirror is killed, the next one finds where to resume
(``Resumer``), and no record is lost or copied twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any

from broker_lite.client.fetch.position import Corrupt, Failed, Retry
from broker_lite.client.operations.cluster import backoff_ms
from broker_lite.client.received import WalkResult
from broker_lite.client.transport.clock import monotonic_ms
from broker_lite.config.client_security import ClientSecurity
from broker_lite.errors import (
    InvalidConfigError,
    LogbusError,
    OffsetOutOfRangeError,
    UnknownTopicIdError,
)
from broker_lite.mirror import checkpoint, positions
from broker_lite.mirror.checkpoint import MirrorCheckpoint
from broker_lite.mirror.claim import SESSION_MS, MirrorClaim
from broker_lite.mirror.copies import Copies, Copy
from broker_lite.mirror.group_sync import GroupCommits, GroupSync
from broker_lite.mirror.log import MirrorLog
from broker_lite.mirror.resuming import Resumer
from broker_lite.mirror.rewrite import RewrittenBatch, rewrite
from broker_lite.mirror.source import MirrorSource
from broker_lite.mirror.target import MirrorTarget
from broker_lite.mirror.topic_sync import CHECK_MS, TopicSync
from broker_lite.model import LATEST_TIMESTAMP, TopicPartition
from broker_lite.wire.fetch import FetchedPartition

WAIT_MS = 250
"""Maximum milliseconds for which a broker of the source holds a fetch until new records arrive."""
SAVE_MS = 1_000
"""Milliseconds after which the mirror stores its positions again."""
SYNC_MS = 200
"""Milliseconds that the mirror spends on group offsets at a time, before it copies records
again."""
ATTEMPTS_ONCE = 3
"""Number of times that a mirror with ``once`` retries after a temporary error."""
REFUSED_MS = 10_000
"""Milliseconds for which fetches of a partition may fail before the mirror logs the error. The
election of a new leader takes less time."""
PROVEN_MS = 60_000
"""Milliseconds without an error after which the backoff of retries is reset."""

Fetched = dict[TopicPartition, FetchedPartition | LogbusError]


class Mirror:
    """A mirror from the cluster ``source`` to the cluster ``target``. Call ``run``, and ``close``
    at the end.

    ``topics`` and ``groups`` are regular expressions that match whole names. The mirror passes each
    line of its log to ``tell``. Without ``source_security`` or ``target_security``, it uses the
    security settings that ``security_for`` finds for the cluster."""

    def __init__(
        self,
        source: str,
        target: str,
        *,
        topics: str = ".*",
        groups: str = ".*",
        replication_factor: int = -1,
        session_timeout_ms: int = SESSION_MS,
        source_security: ClientSecurity | None = None,
        target_security: ClientSecurity | None = None,
        tell: Callable[[str], None],
    ) -> None:
        name = "logbus-mirror"
        self.source = MirrorSource(source, name, source_security)
        self.target = MirrorTarget(target, name, target_security)
        self.claim = MirrorClaim(target, name, session_timeout_ms, target_security)
        self._log = MirrorLog(tell)
        self.copies = Copies(self._log)
        self._checkpoint = MirrorCheckpoint(
            self.target, self.claim, self.copies, replication_factor
        )
        self._resumer = Resumer(self.source, self.target, self._log)
        self.topic_sync = TopicSync(
            self.source,
            self.target,
            self._log,
            self._checkpoint,
            self._resumer,
            pattern=topics,
            replication_factor=replication_factor,
        )
        self.group_sync = GroupSync(self.source, self.target, self._log, groups)
        self.name = self._target_id = ""
        self.has_begun = False
        """Whether this mirror has ever reached both clusters and taken its claim (the right to copy
        the source)."""
        self.hindrance: LogbusError | None = None
        """The temporary error after which the mirror is trying again; None while it copies."""
        self._is_once = False
        self._executor = ThreadPoolExecutor(1, "logbus-mirror-fetch")

    def close(self) -> None:
        """Stop the prefetching thread, release the claim (the right to copy the source), and close
        the connections."""
        self._executor.shutdown(wait=True)
        self.claim.close()
        self.source.close()
        self.target.close()

    def translated(self, offsets: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
        """Translate offsets at the source to offsets of the copy, with the state that a mirror has
        stored on the target.

        ``offsets`` has an offset for each topic and partition number. Raises InvalidConfigError for
        an offset if the records before it are not all copied yet."""
        return checkpoint.translated(self.source, self.target, offsets)

    def open(self, stop: Event) -> bool:
        """Connect to both clusters, take the claim (the right to copy the source), create missing
        topics, and find where the copy of each partition resumes. Return False if ``stop`` is set
        before the claim is taken."""
        self.source.check_versions()
        mine = self.source.describe().cluster_id
        self._target_id = self.target.admin.describe_cluster().cluster_id
        if mine == self._target_id:
            raise InvalidConfigError(
                f"--from and --to are the same cluster, {mine}; name another cluster"
            )
        self.name = positions.name_for(mine)
        if not self.claim.acquire(self.name, stop):
            return False
        self._checkpoint.open(self.name)
        self.copies.restart()
        self.topic_sync.run(self._target_id, once=self._is_once)
        self._checkpoint.save()
        self.has_begun, self.hindrance = True, None
        return True

    # Methods that copy records.

    def _begin_fetch(self, wait_ms: int) -> Future[Fetched]:
        positions = [copy.position for copy in self.copies.values()]
        return self._executor.submit(self.source.fetch, positions, wait_ms)

    def _advance(self, fetched: Fetched) -> dict[TopicPartition, WalkResult]:
        """Advance each partition past its fetched batches, and return the batches.

        After a failed fetch, retry, resume at another offset, or stop copying the topic."""
        good: dict[TopicPartition, WalkResult] = {}
        for tp, row in fetched.items():
            copy = self.copies.get(tp)
            if copy is None:
                continue
            match copy.position.evaluate(row):
                case WalkResult() as walked:
                    copy.refused_since_ms = 0.0
                    good[tp] = walked
                case Corrupt(error) | Failed(error) | Retry(LogbusError() as error):
                    self._refused(copy, error)
        return good

    def _refused(self, copy: Copy, error: LogbusError) -> None:
        topic = copy.tp.topic
        if isinstance(error, OffsetOutOfRangeError):
            self._resumer.handle_missing_offset(copy, error)
            if copy.is_cut:
                # The source lost records. Store the loss before the mirror copies the records that
                # the source has at the same offsets now.
                self._checkpoint.save()
        elif isinstance(error, UnknownTopicIdError) and self._is_gone(copy):
            self.copies.set_aside(topic, UnknownTopicIdError("the topic was deleted at the source"))
        elif not error.retriable:
            self.copies.set_aside(topic, error)
        else:
            self._tolerate(copy, error)

    def _tolerate(self, copy: Copy, error: LogbusError) -> None:
        """Ignore a partition's retriable fetch errors for REFUSED_MS, then log the error.

        A mirror that runs ``once`` raises the error instead."""
        now_ms = monotonic_ms()
        copy.refused_since_ms = copy.refused_since_ms or now_ms
        if now_ms - copy.refused_since_ms < REFUSED_MS:
            return
        text = f"{copy.tp}: the next records cannot be fetched: {error.message}"
        if self._is_once:
            raise type(error)(text)
        self._log.write_once(f"{text}; trying again")

    def _is_gone(self, copy: Copy) -> bool:
        view = self.source.admin.cluster((copy.tp.topic,))
        return view.topic_id(copy.tp.topic) != copy.source_id

    def _write(self, good: Mapping[TopicPartition, WalkResult], froms: Mapping[Any, int]) -> bool:
        pieces: dict[TopicPartition, list[RewrittenBatch]] = {}
        for tp, walked in good.items():
            copy = self.copies.get(tp)
            if copy is None:
                continue
            try:
                rewritten = [rewrite(batch, tp, froms[tp]) for batch in walked.batches]
            except LogbusError as error:
                self.copies.set_aside(tp.topic, error)
                continue
            pieces[tp] = [piece for piece in rewritten if piece is not None]
        refused = self.target.write(pieces, self._written)
        for tp, why in refused.items():
            if tp.topic not in self.copies.aside:
                self.copies.set_aside(tp.topic, why)
        for tp, walked in good.items():
            if tp in self.copies:
                self.copies[tp].passed(walked.next_offset)
        return any(pieces.values())

    def _written(self, tp: TopicPartition, piece: RewrittenBatch, offset: int) -> None:
        copy = self.copies.get(tp)
        if copy is not None and copy.record_write(piece, offset):
            self._log.write_once(f"topic {tp.topic}: another client writes to the copy")

    # Methods that run the mirror.

    def run(
        self,
        *,
        once: bool,
        stop: Event,
        on_sync: Callable[[], None],
        on_left: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Copy until ``stop`` is set. With ``once``, copy only up to the source's end offsets at
        the beginning of the call.

        Calls ``on_sync`` after each check of topics and groups (``CHECK_MS``), and when the copy
        ends. With ``once``, calls ``on_left`` before each write with the number of offsets left to
        copy.

        Logs and retries temporary errors. With ``once``, raises them after ATTEMPTS_ONCE retries.
        Raises NonEmptyGroupError if another mirror of the source is running, FencedInstanceIdError
        if another mirror has taken over, and with ``once`` InvalidConfigError if no topic
        matches."""
        self._is_once = once
        attempt, began_ms = 0, monotonic_ms()
        try:
            while not stop.is_set():
                try:
                    if self.open(stop):
                        began_ms = monotonic_ms()
                        self._copy(stop, on_sync, on_left)
                    return
                except LogbusError as error:
                    if not error.retriable or (once and attempt >= ATTEMPTS_ONCE):
                        raise
                    self.hindrance = error
                    attempt = 0 if monotonic_ms() - began_ms > PROVEN_MS else attempt
                    self._log.write(f"{error}; trying again")
                    self.target.forget()
                    stop.wait(backoff_ms(attempt, 250) / 1000.0)
                    attempt += 1
        finally:
            self.claim.release()

    def _copy(
        self, stop: Event, on_sync: Callable[[], None], on_left: Callable[[int], None]
    ) -> None:
        once = self._is_once
        groups = list(self.group_sync.read()) if once else []
        syncing: Iterator[str] | None = None
        goal = self.source.ends(list(self.copies), LATEST_TIMESTAMP) if once else None
        sync_at, save_at = monotonic_ms() + CHECK_MS, monotonic_ms()
        under_way = self._begin_fetch(0)
        is_idle = False
        try:
            while not stop.is_set() and (goal is None or self._left(goal)):
                if goal is not None:
                    on_left(self._left(goal))
                froms = {w: copy.position.offset for w, copy in self.copies.items()}
                good = self._advance(under_way.result())
                under_way = self._begin_fetch(WAIT_MS if is_idle and syncing is None else 0)
                is_idle = not self._write(good, froms)
                if not good:
                    stop.wait(WAIT_MS / 1000.0)
                now_ms = monotonic_ms()
                if now_ms >= save_at:
                    self._checkpoint.save()
                    save_at = monotonic_ms() + SAVE_MS
                if now_ms >= sync_at and goal is None and syncing is None:
                    # Drop the records of the fetch in flight; the fetch below returns them again.
                    under_way.result()
                    self.topic_sync.run(self._target_id, once=self._is_once)
                    under_way = self._begin_fetch(0)
                    syncing = self._sync_groups(self.group_sync.read())
                if syncing is not None and _is_over(syncing, SYNC_MS):
                    on_sync()
                    syncing, sync_at = None, monotonic_ms() + CHECK_MS
        finally:
            under_way.exception()
        self._checkpoint.save()
        for _ in self._sync_groups(groups if once else self.group_sync.read()):
            pass
        on_sync()

    def _sync_groups(self, at_source: Iterable[GroupCommits]) -> Iterator[str]:
        return self.group_sync.write(self.name, self.copies, at_source)

    def _left(self, goal: Mapping[TopicPartition, int]) -> int:
        """Return the number of source offsets left to copy, up to each partition's offset in
        ``goal``."""
        return sum(
            max(goal.get(tp, 0) - copy.known.source_next, 0) for tp, copy in self.copies.items()
        )


def _is_over(steps: Iterator[str], time_ms: float) -> bool:
    """Run the generator ``steps`` for about ``time_ms`` milliseconds, but at least one step. Return
    whether it has ended."""
    until_ms = monotonic_ms() + time_ms
    while next(steps, None) is not None:
        if monotonic_ms() >= until_ms:
            return False
    return True
