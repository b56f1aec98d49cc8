"""Copy a cluster's topics, settings and group offsets to another cluster, and keep the copy
current.

The cluster that is copied is the source, the other one the target. One thread runs a mirror; a
second thread only prefetches (``RecordSync``). The mirror writes copied records first, then stores
its state (``MirrorCheckpoint``), then writes group offsets (``GroupSync``). The stored state is
therefore never ahead of the records. If the mirror is killed, the next one finds where to resume
(``Resumer``), and no record is lost or copied twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Event

from broker_lite.client.operations.cluster import backoff_ms
from broker_lite.client.transport.clock import monotonic_ms
from broker_lite.config.client_security import ClientSecurity
from broker_lite.errors import InvalidConfigError, LogbusError
from broker_lite.mirror import checkpoint, positions
from broker_lite.mirror.checkpoint import MirrorCheckpoint
from broker_lite.mirror.claim import SESSION_MS, MirrorClaim
from broker_lite.mirror.copies import Copies
from broker_lite.mirror.group_sync import GroupCommits, GroupSync
from broker_lite.mirror.log import MirrorLog
from broker_lite.mirror.record_sync import RecordSync
from broker_lite.mirror.resuming import Resumer
from broker_lite.mirror.source import MirrorSource
from broker_lite.mirror.target import MirrorTarget
from broker_lite.mirror.topic_sync import CHECK_MS, TopicSync
from broker_lite.model import LATEST_TIMESTAMP, TopicPartition

WAIT_MS = 250
"""Maximum milliseconds for which a broker of the source holds a fetch until new records arrive."""
SAVE_MS = 1_000
"""Milliseconds after which the mirror stores its positions again."""
SYNC_MS = 200
"""Milliseconds that the mirror spends on group offsets at a time, before it copies records
again."""
ATTEMPTS_ONCE = 3
"""Number of times that a mirror which ends by itself (``once``) retries after a temporary error."""
PROVEN_MS = 60_000
"""Milliseconds without an error after which the backoff of retries is reset."""


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
        resumer = Resumer(self.source, self.target, self._log)
        self.topic_sync = TopicSync(
            self.source,
            self.target,
            self._log,
            self._checkpoint,
            resumer,
            pattern=topics,
            replication_factor=replication_factor,
        )
        self._record_sync = RecordSync(
            self.source, self.target, self._log, self._checkpoint, resumer
        )
        self.group_sync = GroupSync(self.source, self.target, self._log, groups)
        self.name = self._target_id = ""
        self.has_begun = False
        """Whether this mirror has ever reached both clusters and taken its claim (the right to copy
        the source)."""
        self.hindrance: LogbusError | None = None
        """The temporary error after which the mirror is trying again; None while it copies."""
        self._is_once = False

    def close(self) -> None:
        """Stop the prefetching thread, release the claim (the right to copy the source), and close
        the connections."""
        self._record_sync.close()
        self.claim.close()
        self.source.close()
        self.target.close()

    def translated(self, offsets: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
        """Translate offsets at the source to offsets of the copy, using the state that a mirror has
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
        once, records = self._is_once, self._record_sync
        groups = list(self.group_sync.read()) if once else []
        syncing: Iterator[str] | None = None
        goal = self.source.ends(list(self.copies), LATEST_TIMESTAMP) if once else None
        sync_at, save_at = monotonic_ms() + CHECK_MS, monotonic_ms()
        under_way = records.begin_fetch(0)
        is_idle = False
        try:
            while not stop.is_set() and (goal is None or self._left(goal)):
                if goal is not None:
                    on_left(self._left(goal))
                walked = records.advance(under_way.result(), once=once)
                under_way = records.begin_fetch(WAIT_MS if is_idle and syncing is None else 0)
                is_idle = not records.write(walked)
                if not walked:
                    stop.wait(WAIT_MS / 1000.0)
                now_ms = monotonic_ms()
                if now_ms >= save_at:
                    self._checkpoint.save()
                    save_at = monotonic_ms() + SAVE_MS
                if now_ms >= sync_at and goal is None and syncing is None:
                    # Drop the records of the fetch in flight; the fetch below returns them again.
                    under_way.result()
                    self.topic_sync.run(self._target_id, once=once)
                    under_way = records.begin_fetch(0)
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
