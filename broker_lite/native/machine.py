"""One consumer of a native group (without a coordinator) as a state machine without I/O.

``step(now_ms, event)`` receives an event and returns operations (``events`` defines both). To join,
the machine records in ZooKeeper that the group is native, and registers the consumer. After each
change of the group's znodes, it reads the consumers and partitions (``view``), computes the
assignment, and claims or releases partitions accordingly (``ownership``). The read begins 20 ms
after a change. For each further change within a second this delay doubles, so that one read covers
several changes.

The lease is the time in which the consumer may return records. It ends at ``lease_until_ms``: the
time at which the last confirmed heartbeat was sent, plus the session timeout, less a margin.
``wake_ms`` is the time at which the machine wants the next NativeTick."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial

from broker_lite.errors import (
    CoordinationUnavailableError,
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    LogbusError,
)
from broker_lite.metadata import znodes
from broker_lite.metadata.group_kind import is_open, made_native
from broker_lite.metadata.store import (
    Check,
    ChildrenChanged,
    Create,
    DataChanged,
    Delete,
    Refused,
    SessionLost,
    Set,
    Suspended,
    Znode,
)
from broker_lite.metadata.znodes import NativeSubscription, OwnerZnode
from broker_lite.model import TopicPartition
from broker_lite.native.events import (
    ALL,
    Beaten,
    CommitAnswer,
    Effect,
    Event,
    Got,
    Listed,
    NativeTick,
    RefuseJoin,
    RequestFailed,
    Restart,
    SessionConnected,
    Settled,
    StreamCommit,
    WriteDone,
)
from broker_lite.native.ownership import Ownership
from broker_lite.native.pending_requests import PendingRequests, backoff_ms
from broker_lite.native.view import View

MEMBERS_MAX = 1000
"""Maximum number of consumers of a group. Each consumer reads the registrations of all others, so
the load on ZooKeeper grows with the square of their number."""
BEATS_PER_TIMEOUT = 6
"""Number of heartbeats in one session timeout."""
MARGIN_PART = 4
"""The lease, the time in which the consumer may return records, ends earlier than the session, by
the session timeout divided by this number. The margin covers clock drift, and the time by which a
ZooKeeper follower lags behind its leader."""
READ_DELAY_MS = 20
READ_DELAY_MAX_MS = 640
"""Maximum delay (ms) between a change in ZooKeeper and the consumer's read of it. The delay begins
at ``READ_DELAY_MS`` and grows while changes follow each other."""
CALM_MS = 1000
"""If the group's znodes were not read for this many milliseconds, the delay of the next read is
``READ_DELAY_MS`` again."""
REFRESH_MS = 30_000
"""Milliseconds between two reads of all znodes of the group, even if no watch fired."""

DOWN, JOINING, MEMBER, ENDED = "down", "joining", "member", "ended"


class NativeMachine:
    """The state of one consumer in a native group (without a coordinator). ``consumer`` is its
    name, which no earlier consumer of the group has used."""

    def __init__(self, group: str, consumer: str, subscription: NativeSubscription) -> None:
        self.phase = DOWN
        self.lease_until_ms = 0
        self._group = group
        self._consumer = consumer
        self._subscription = subscription
        self._requests = PendingRequests()
        self.view = View(self._requests, group, subscription, self._view_read)
        self.ownership = Ownership(self._requests, group, consumer)
        self._owners: dict[TopicPartition, OwnerZnode] | None = None
        """The owner of each partition in the previous assignment; None before the first
        assignment."""
        self._timeout_ms = 0
        self._is_registered = False
        self._join_ms: int | None = None
        self._join_tries = 0
        self._read_ms: int | None = None
        self._last_read_ms = -CALM_MS
        self._recent_changes = 0
        self._beat_ms: int | None = None
        self._refresh_ms = 0

    @property
    def wake_ms(self) -> int | None:
        """The time in ms at which the next NativeTick (timer event) is due, or None."""
        times = [self.ownership.next_ms()]
        if self.phase != DOWN:
            times += [self._join_ms, self._beat_ms]
            times += [] if self.view.is_reading else [self._read_ms]
        if self.phase == MEMBER:
            times.append(self._refresh_ms)
        return min((each for each in times if each is not None), default=None)

    def step(self, now_ms: int, event: Event) -> list[Effect]:
        """Handle an event at the time ``now_ms``. Return its effects (requests and other actions),
        which the caller must carry out in order."""
        self._requests.now_ms = now_ms
        if self.phase == ENDED:
            return self._after_the_end(event)
        try:
            self._handle(event)
            self._pass_time()
        except LogbusError as error:
            # End the member. Either a later version of logbus, or another application, wrote a
            # znode that this version cannot read, or ZooKeeper refuses the consumer's requests.
            self._end(error)
        out, self._requests.out = self._requests.out, []
        return out

    def _handle(self, event: Event) -> None:
        match event:
            case SessionConnected():
                self._connected(event)
            case Suspended():
                self._suspend()
            case SessionLost():
                self._suspend()
                self._lose_all()
            case DataChanged(path):
                self.view.mark(path)
                self.ownership.owner_changed(path)
            case ChildrenChanged(path):
                self.view.mark(path)
            case Got(tag, value) | Listed(tag, value) | WriteDone(tag, value):
                self._requests.answered(tag, value)
            case Beaten(tag):
                self._requests.answered(tag, None)
            case RequestFailed(tag, error) if self._requests.is_pending(tag):
                if error is not None:
                    raise error
                self._start_over()
            case StreamCommit():
                self._commit(event)
            case Settled(tp, offset, grant):
                self.ownership.settled(tp, offset, grant)
            case NativeTick():
                pass

    # Methods that handle ZooKeeper's connection and session.

    def _connected(self, event: SessionConnected) -> None:
        self._requests.session_id = event.session_id
        self._timeout_ms = event.session_timeout_ms
        if event.new_session:
            self._lose_all()
        self._resume()

    def _suspend(self) -> None:
        self.phase = DOWN
        self._requests.forget()
        self.view.forget()
        self.ownership.suspend()
        self._join_ms = self._read_ms = self._beat_ms = None

    def _resume(self) -> None:
        self.phase = JOINING
        self._join_tries = 0
        if self._is_registered:
            path = znodes.consumer_path(self._group, self._consumer)
            self._requests.get(path, self._check_registration)
            self.ownership.resume()
        else:
            self._join()

    def _start_over(self) -> None:
        """After a request failed on an open connection, join again after a backoff, as if the
        connection had been lost and restored."""
        self._suspend()
        self.phase = JOINING
        self._join_ms = self._requests.now_ms + backoff_ms(self._join_tries)
        self._join_tries += 1

    def _lose_all(self) -> None:
        self._is_registered = False
        self._owners = None
        self.lease_until_ms = 0
        self.ownership.lose_all()

    def _restart(self) -> None:
        """Begin a new ZooKeeper session, because another client deleted this consumer's
        registration.

        The end of the old session removes the consumer's owner znodes. Other consumers, which are
        assigned the partitions now, can then own them."""
        self._suspend()
        self._lose_all()
        self._requests.out.append(Restart())

    def _end(self, error: LogbusError) -> None:
        self._suspend()
        self._lose_all()
        self.phase = ENDED
        self._requests.out.append(RefuseJoin(error))

    def _after_the_end(self, event: Event) -> list[Effect]:
        if isinstance(event, StreamCommit):
            error = CoordinationUnavailableError(
                f"the consumer has left group {self._group!r}; create another consumer"
            )
            return [CommitAnswer(event.number, {ALL: error})]
        return []

    # Methods that join the group.

    def _join(self) -> None:
        self._join_ms = None
        self._requests.get(znodes.group_path(self._group), self._group_read)

    def _join_later(self) -> None:
        self._join_ms = self._requests.now_ms + backoff_ms(self._join_tries)
        self._join_tries += 1

    def _group_read(self, znode: Znode | None) -> None:
        path = znodes.group_path(self._group)
        paths = [
            znodes.consumers_path(self._group),
            znodes.owners_path(self._group),
            znodes.offsets_path(self._group),
        ]
        if znode is None:
            native = znodes.encode_group(znodes.KIND_NATIVE)
            operations = [Create(path, native), *(Create(path) for path in paths)]
            self._requests.write(operations, lambda _: self._join_again())
            return
        kind = znodes.decode_group(path, znode.data)
        if kind != znodes.KIND_NATIVE:
            coordinator = znodes.coordinator_path(self._group)
            self._requests.get(coordinator, partial(self._take_over, kind, znode))
            return
        for path in paths:
            self._requests.write([Create(path)], lambda _: None)
        self._requests.list(paths[0], partial(self._counted, znode.version))

    def _take_over(self, kind: str, znode: Znode, coordinator: Znode | None) -> None:
        """Begin to convert an existing group to a native group (without a coordinator). Raises
        InconsistentGroupProtocolError if the group has, or ever had, Kafka consumers as members."""
        if not is_open(self._group, kind, coordinator):
            raise InconsistentGroupProtocolError(
                f"group {self._group!r} is a Kafka group, which is coordinated by brokers; give "
                "another group, leave coordination='zookeeper' out, or delete this group when it "
                f"is empty: logbus groups delete {shlex.quote(self._group)}"
            )
        pending = znodes.pending_path(self._group)
        self._requests.list(pending, partial(self._convert, znode, coordinator))

    def _convert(self, znode: Znode, coordinator: Znode | None, pending: list[str] | None) -> None:
        """Record in ZooKeeper that the group is native (without a coordinator). If the group has
        pending offsets (of open transactions), try again later."""
        if pending:
            self._join_later()
            return
        has_pending = pending is not None
        operations = made_native(self._group, znode, coordinator, has_pending=has_pending)
        self._requests.write(operations, lambda _: self._join_again())

    def _join_again(self) -> None:
        """Continue to join after a write of the group's znode: read this znode again, because
        another client may have written first.

        The first such read is immediate, further reads wait for a backoff."""
        if self._join_tries == 0:
            self._join_tries = 1
            self._join()
        else:
            self._join_later()

    def _counted(self, version: int, names: list[str] | None) -> None:
        if names is not None and len(names) >= MEMBERS_MAX:
            raise self._is_full(len(names))
        path = znodes.consumer_path(self._group, self._consumer)
        data = znodes.encode_subscription(self._subscription)
        self._requests.write(
            [
                Check(znodes.group_path(self._group), version),
                Create(path, data, ephemeral=True),
                # Write this znode to update its modification time, from which brokers see when the
                # group last had a member.
                Set(znodes.consumers_path(self._group), b""),
            ],
            self._registered,
        )

    def _registered(self, refused: Refused | None) -> None:
        if refused is not None and refused.reason == "exists":
            # The registration exists already. Read it: this session may have created it
            # (ZooKeeper's answer was lost), or an earlier session of this consumer, which expires
            # soon.
            path = znodes.consumer_path(self._group, self._consumer)
            self._requests.get(path, self._check_registration)
        elif refused is not None:
            self._join_later()
        else:
            self._confirm()
            self._check_kind(self._enter)

    def _check_kind(self, then: Callable[[], None]) -> None:
        """Check, after the consumer's registration, that the group is still native (without a
        coordinator). If so, call ``then``.

        Just before its registration, the group may have been deleted and recreated as a Kafka
        group. The version of its znode does not show this, because it is 0 for every new group.
        Once the consumer is registered, no broker deletes the group any more."""
        path = znodes.group_path(self._group)
        self._requests.get(path, partial(self._kind_read, path, then))

    def _kind_read(self, path: str, then: Callable[[], None], znode: Znode | None) -> None:
        if znode is None:
            self._join_later()
            return
        me = Delete(znodes.consumer_path(self._group, self._consumer))
        try:
            is_native = znodes.decode_group(path, znode.data) == znodes.KIND_NATIVE
        except LogbusError:
            self._requests.write([me], lambda _: None)
            raise
        if is_native:
            then()
        else:
            # The group was recreated as a Kafka group. Remove the registration, and join again like
            # a new consumer, which then reports the error.
            self._requests.write([me], lambda _: None)
            self._join_later()

    def _check_registration(self, znode: Znode | None) -> None:
        if znode is not None and znode.session_id == self._requests.session_id:
            # Do not extend the lease: a ZooKeeper server that lags behind its leader may have
            # answered this read, so the read does not prove that the session is alive.
            if self._is_registered:
                self._enter_again()
            else:
                self._check_kind(self._enter_again)
        elif self._is_registered:
            self._restart()
        else:
            self._join_later()

    def _enter_again(self) -> None:
        self._enter()
        self._beat()

    def _enter(self) -> None:
        self.phase = MEMBER
        self._is_registered = True
        self._join_tries = 0
        self._beat_ms = self._requests.now_ms + self._timeout_ms // BEATS_PER_TIMEOUT
        self._refresh_ms = self._requests.now_ms + REFRESH_MS
        self._read_ms = self._requests.now_ms

    # Methods that extend the member's lease on its partitions.

    def _confirm(self) -> None:
        """Extend the lease, the time in which the consumer may return records: ZooKeeper's answer
        proves that the session was alive when the request was sent."""
        margin_ms = self._timeout_ms // MARGIN_PART
        until_ms = self._requests.sent_ms + self._timeout_ms - margin_ms
        self.lease_until_ms = max(self.lease_until_ms, until_ms)

    def _beat(self) -> None:
        self._beat_ms = None
        self._requests.beat(lambda _: self._beaten())

    def _beaten(self) -> None:
        self._confirm()
        interval_ms = self._timeout_ms // BEATS_PER_TIMEOUT
        self._beat_ms = max(self._requests.now_ms, self._requests.sent_ms + interval_ms)

    # Methods that handle changes of the group's znodes, the passing of time, and commits.

    def _view_read(self) -> None:
        if self._consumer not in self.view.members:
            self._restart()
            return
        self._last_read_ms = self._requests.now_ms
        owners, before = self.view.owners(), self._owners
        if before is None:
            self._check_rank()
            before = self.view.owners(without=self._consumer)
        self._owners = owners
        mine = {
            tp: (owner.stream, self.view.topics[tp.topic])
            for tp, owner in owners.items()
            if owner.consumer == self._consumer
        }
        owned_by_others = {
            tp
            for tp in mine
            if tp in before
            and before[tp].consumer != self._consumer
            and before[tp].consumer in self.view.members
        }
        self.ownership.set_target(mine, owned_by_others)

    def _check_rank(self) -> None:
        """If the group has too many consumers, leave it and raise GroupMaxSizeReachedError. If
        several registered together, those that ZooKeeper registered first stay."""
        rank = self.view.rank_of(self._consumer)
        if rank >= MEMBERS_MAX:
            me = znodes.consumer_path(self._group, self._consumer)
            self._requests.write([Delete(me)], lambda _: None)
            raise self._is_full(rank)

    def _is_full(self, count: int) -> GroupMaxSizeReachedError:
        return GroupMaxSizeReachedError(
            f"group {self._group!r} has {count} consumers, and a native group may have at most "
            f"{MEMBERS_MAX}; stop some or use another group"
        )

    def _pass_time(self) -> None:
        now_ms = self._requests.now_ms
        if self.ownership.is_unregistered and self.phase == MEMBER:
            self.ownership.is_unregistered = False
            self._restart()
        self.ownership.pass_time()
        for topic in self.ownership.unready:
            self.view.mark_topic(topic)
        self.ownership.unready.clear()
        if self._join_ms is not None and self._join_ms <= now_ms:
            self._join_ms = None
            self._resume_joining()
        if self.phase != MEMBER:
            return
        if self._beat_ms is not None and self._beat_ms <= now_ms:
            self._beat()
        if self._refresh_ms <= now_ms:
            self._refresh_ms = now_ms + REFRESH_MS
            self.view.mark_all()
        if self.view.is_stale and not self.view.is_reading and self._read_ms is None:
            self._read_ms = now_ms + self._damping_ms()
        if self._read_ms is not None and self._read_ms <= now_ms and not self.view.is_reading:
            self._read_ms = None
            self.view.read()

    def _resume_joining(self) -> None:
        tries = self._join_tries
        self._resume()
        self._join_tries = tries

    def _damping_ms(self) -> int:
        """Return the delay (ms) between a change of the group's znodes and their next read. The
        delay doubles with each change that comes within ``CALM_MS`` after the last read."""
        is_calm = self._requests.now_ms - self._last_read_ms >= CALM_MS
        self._recent_changes = 0 if is_calm else self._recent_changes + 1
        return min(READ_DELAY_MS << min(self._recent_changes, 10), READ_DELAY_MAX_MS)

    def _commit(self, event: StreamCommit) -> None:
        if self.phase == DOWN:
            error = CoordinationUnavailableError("ZooKeeper does not answer; commit again later")
            self._requests.out.append(CommitAnswer(event.number, {ALL: error}))
        else:
            self.ownership.commit(event)
