"""The coordinator of Kafka consumer groups on this broker: state machines, timers, writes.

A hash maps each group to one of the live brokers, so every broker computes the same coordinator.
When a broker joins or leaves, only groups of that broker move.

The coordinator *claims* a group in ZooKeeper when the first member joins: it becomes the only
broker that may write the group's offsets. It gives up the group if the hash names another broker,
if another broker claims the group, or if this broker's registration ends. Requests that wait then
get NOT_COORDINATOR."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import TypeVar

from broker_lite.config import MINUTE, BrokerConfig
from broker_lite.coordinator import effects as fx
from broker_lite.coordinator import events as ev
from broker_lite.coordinator.group import Group
from broker_lite.errors import (
    CoordinationUnavailableError,
    CoordinatorLoadInProgressError,
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    LogbusError,
    NonEmptyGroupError,
    NotCoordinatorError,
    UnknownMemberIdError,
    WriteConflictError,
)
from broker_lite.metadata import znodes
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.metadata.group_claims import GroupClaim
from broker_lite.metadata.group_deletion import GroupAge
from broker_lite.model import MIRROR_PREFIX, UNNUMBERED, BrokerView
from broker_lite.server.clock import Clock
from broker_lite.server.cluster.registry import Registry
from broker_lite.server.coordinators.alarm import Alarm
from broker_lite.server.coordinators.parked_requests import ParkedRequests
from broker_lite.server.log_events import log_event
from broker_lite.server.metrics import Labels, Metrics
from broker_lite.server.task_set import TaskSet

R = TypeVar("R", bound=fx.Result)

logger = logging.getLogger("logbus.groups")

LOAD_WAIT_S = 3.0
"""Seconds for which a request waits until ZooKeeper confirms this broker as coordinator.

Then the client gets COORDINATOR_LOAD_IN_PROGRESS, and the write to ZooKeeper continues."""
GROUPS_MAX = 10_000
"""Maximum number of groups with members that one broker coordinates."""
GROUPS_PART = 4
"""The subscriptions and assignments of all groups take at most ``queued.max.bytes`` divided by
this.

The rest is for requests. Requests that wait for a rebalance also take memory, and the broker must
still be able to receive the requests that end the rebalance."""
HEARTBEATS = 3
"""Minimum number of heartbeats that a member sends in its session timeout, as in Kafka.

So a living member sends one in each third of its session timeout, and a broker that takes over a
group waits one such third for heartbeats."""


@dataclass(slots=True, eq=False)
class CoordinatedGroup:
    """A group that this broker coordinates, with the requests that wait for an answer.

    ``claim`` is the exclusive right to write the group's offsets. ``writing`` is the task that
    writes a new generation, or None."""

    group: Group
    claim: GroupClaim
    parked: ParkedRequests[fx.Result] = field(default_factory=ParkedRequests)
    writing: asyncio.Task[None] | None = None
    held_bytes: int = 0
    """Bytes of the group's subscriptions and assignments; they count towards the memory limit that
    all groups share."""
    members: int = 0
    """Number of members in the group's generation, as stored in ZooKeeper."""


class GroupCoordinator:
    """The group coordinator of one broker."""

    def __init__(
        self, config: BrokerConfig, registry: Registry, *, clock: Clock, metrics: Metrics
    ) -> None:
        self._config = config
        self._registry = registry
        self._clock = clock
        self._limits = ev.GroupLimits(
            config.group_session_timeout_min_ms,
            config.group_session_timeout_max_ms,
            config.group_initial_rebalance_delay_ms,
            config.group_size_max,
        )
        self._groups: dict[str, CoordinatedGroup] = {}
        self._loading: dict[str, asyncio.Task[CoordinatedGroup]] = {}
        self._checks = TaskSet()
        self._brokers: Mapping[int, BrokerView] = {}
        self._bytes_max = config.in_flight_bytes_max // GROUPS_PART
        self._held_bytes = 0
        self._alarm = Alarm(clock, self._tick)
        self._metrics = metrics
        self.commit_durations = metrics.histogram("offset_commit_duration_seconds")
        metrics.gauge("coordinated_groups", self._groups_by_state)
        metrics.gauge(
            "coordinated_members",
            lambda: sum(coordinated.group.size for coordinated in self._groups.values()),
        )
        registry.on_change(self._snapshot_changed)
        registry.on_watch(self._watch_fired)

    def _groups_by_state(self) -> Mapping[Labels, float]:
        return Counter((coordinated.group.state.value,) for coordinated in self._groups.values())

    # Methods that find the coordinator of a group.

    def coordinator_of(self, group: str) -> BrokerView | None:
        """Return the live broker that coordinates the group; None if no broker is live."""
        brokers = self._registry.live_brokers()
        staying = [view for view in brokers.values() if not view.draining]
        name = group.encode("utf-8", "surrogatepass")
        return max(staying or brokers.values(), key=lambda view: _weight(view, name), default=None)

    def check_coordinator(self, group: str) -> None:
        """Raise NotCoordinatorError unless this broker coordinates the group.

        Raise InvalidGroupIdError for an invalid name."""
        znodes.group_path(group)
        if not self._is_ours(group):
            raise NotCoordinatorError(
                f"broker {self._config.broker_id} does not coordinate group {group!r}; find its "
                "coordinator"
            )

    # Methods that handle requests of members.

    async def join(self, group: str, join: ev.Join) -> fx.JoinResult:
        """Handle JoinGroup. Return the result when the rebalance is complete or its timeout has
        passed."""
        coordinated = await self._coordinated(group)
        if coordinated is None:
            if error := self._refused_join(group, join):
                return fx.JoinResult(error, join.member_id)
            coordinated = await self._load(group)
        machine = coordinated.group
        # The check of the memory limit needs the group's state machine: only that knows how many
        # bytes the join adds to those of the member's earlier joins.
        if error := self._memory_refusal(machine.growth(join), GroupMaxSizeReachedError):
            return fx.JoinResult(error, join.member_id)
        return await self._submit(coordinated, self._counted(machine, join), fx.JoinResult)

    def _counted(self, group: Group, join: ev.Join) -> ev.Join:
        """Return the join event, with the topics' current partition counts if a static member that
        leads the group rejoins.

        From the counts, the group's state machine detects partitions that are not assigned yet."""
        if join.instance_id is None or not group.is_led_by(join.instance_id):
            return join
        topics = self._registry.snapshot.topics
        names = [name for name in group.subscribed() or () if name in topics]
        counts = {name: len(topics[name].partitions) for name in names}
        return join._replace(partition_counts=counts)

    async def sync(self, group: str, sync: ev.SyncGroup) -> fx.SyncResult:
        """Handle SyncGroup. Return the member's assignment once the group's leader has sent the
        assignments.

        If the assignments would exceed the memory limit that all groups share, the leader gets a
        retriable error."""
        coordinated = await self._coordinated(group)
        if coordinated is None:
            return fx.SyncResult(_no_member(group))
        assigned = sum(len(part) for _, part in sync.assignments)
        growth = assigned - coordinated.group.assigned_bytes
        if error := self._memory_refusal(growth, CoordinationUnavailableError):
            return fx.SyncResult(error)
        return await self._submit(coordinated, sync, fx.SyncResult)

    def _memory_refusal(self, growth: int, kind: type[LogbusError]) -> LogbusError | None:
        if growth <= 0 or self._held_bytes + growth <= self._bytes_max:
            return None
        return kind(
            f"the subscriptions and assignments of all groups would take "
            f"{self._held_bytes + growth} bytes at this broker, but at most {self._bytes_max} are "
            "allowed, a fourth of queued.max.bytes; subscribe to fewer topics, or raise "
            "queued.max.bytes"
        )

    async def heartbeat(self, group: str, heartbeat: ev.Heartbeat) -> fx.HeartbeatResult:
        coordinated = await self._coordinated(group)
        if coordinated is None:
            return fx.HeartbeatResult(_no_member(group))
        return await self._submit(coordinated, heartbeat, fx.HeartbeatResult)

    async def leave(self, group: str, members: Iterable[ev.Leaver]) -> fx.LeaveResult:
        """Handle LeaveGroup: remove members. Return an error or None for each of them."""
        leavers = tuple(members)
        coordinated = await self._coordinated_or_taken_over(group)
        if coordinated is None:
            return fx.LeaveResult(tuple(_no_member(group) for _ in leavers))
        return await self._submit(coordinated, ev.Leave(UNNUMBERED, leavers), fx.LeaveResult)

    async def claim_for_commit(self, group: str, commit: ev.Commit) -> GroupClaim:
        """Check whether an offset commit is allowed. Return the group's claim: this broker's right
        to write the group's offsets. ZooKeeper checks the claim when the offsets are written.

        Raises the error of a refused commit."""
        coordinated = await self._coordinated(group)
        if coordinated is None:
            if commit.member_id or commit.generation >= 0 or commit.instance_id is not None:
                raise _no_member(group)
            claim = await self._registry.groups.claim(group)
            if claim.kind != znodes.KIND_KAFKA and commit.is_transactional:
                # A native group (coordinated through ZooKeeper) must never have pending offsets. If
                # a native member converts a Kafka group after this check, the write of the offsets
                # fails: the conversion deletes the znode by which this broker claims the group.
                raise InconsistentGroupProtocolError(
                    f"group {group!r} is a native group (coordinated through ZooKeeper), in which "
                    "transactions cannot commit offsets; use another group"
                )
            if claim.kind != znodes.KIND_KAFKA and await self._registry.groups.native_members(
                group
            ):
                raise NonEmptyGroupError(
                    f"group {group!r} has native members (coordinated through ZooKeeper); other "
                    "clients cannot commit until these members have left"
                )
            if not claim.value.members:
                return claim
            coordinated = await self._load(group)
        result = await self._submit(coordinated, commit, fx.CommitResult)
        if result.error is not None:
            raise result.error
        return coordinated.claim

    # Methods that handle requests of administrators and of other modules.

    def find(self, group: str) -> Group | None:
        """Return the group's state machine if this broker has it in memory, else None.

        It is in memory while the group has members, and for a short time after they left."""
        coordinated = self._groups.get(group)
        return None if coordinated is None else coordinated.group

    @property
    def group_names(self) -> tuple[str, ...]:
        """The names of the groups whose state machine this broker has in memory."""
        return tuple(self._groups)

    def give_up(self, group: str, broker_id: int) -> None:
        """Drop a group, because broker ``broker_id`` coordinates it now."""
        coordinated = self._groups.get(group)
        if coordinated is not None:
            error = NotCoordinatorError(f"broker {broker_id} coordinates group {group!r} now")
            self._drop(coordinated, error)

    async def check_empty(self, group: str) -> None:
        """Return once ZooKeeper records the group as empty.

        Raises NonEmptyGroupError if the group has members, including those that joined at the
        previous coordinator and have not contacted this broker yet."""
        while (coordinated := await self._coordinated_or_taken_over(group)) is not None:
            if count := coordinated.group.size or coordinated.group.awaited:
                raise NonEmptyGroupError(f"group {group!r} has {count} members; stop them first")
            if coordinated.writing is None:
                return
            # The last members have just left. Wait for the write of the empty generation: until
            # then, the group still has members in ZooKeeper.
            await asyncio.wait([coordinated.writing])

    async def find_or_take_over(self, group: str) -> Group | None:
        """Return the group's state machine if it is in memory, or None.

        If ZooKeeper lists members, which another broker has coordinated and which may be alive,
        this broker first becomes the coordinator and creates the state machine."""
        coordinated = await self._coordinated_or_taken_over(group)
        return None if coordinated is None else coordinated.group

    async def find_described(self, group: str) -> Group | None:
        """Return the group's state machine for DescribeGroups; None if the group has no members.

        If the group's last generation had members, this broker becomes coordinator first: only then
        does it learn whether they are alive."""
        coordinated = await self._coordinated(group)
        if coordinated is None and await self.has_former_members(group):
            coordinated = await self._load(group)
        return None if coordinated is None else coordinated.group

    async def has_former_members(self, group: str) -> bool:
        """Return whether ZooKeeper lists members of a group that this broker does not have in
        memory.

        Another broker has coordinated these members, and they may be alive."""
        return await self._registry.groups.members_left(group) > 0

    def forget(self, group: str) -> None:
        """Drop a group without members from memory, because it is about to be deleted."""
        coordinated = self._groups.get(group)
        if coordinated is not None:
            self._drop(
                coordinated, NotCoordinatorError(f"group {group!r} is being deleted; join again")
            )

    def _snapshot_changed(self, snapshot: MetadataSnapshot) -> None:
        """Give up the groups that other brokers coordinate according to the new metadata."""
        if snapshot.brokers is self._brokers:
            return
        self._brokers = snapshot.brokers
        for name, coordinated in list(self._groups.items()):
            try:
                self.check_coordinator(name)
            except LogbusError as error:
                self._drop(coordinated, error)
                continue
            if coordinated.claim.value.broker_epoch != self._registry.broker_epoch:
                self._drop(
                    coordinated,
                    NotCoordinatorError(
                        "this broker has registered in ZooKeeper again, so another broker may "
                        f"coordinate group {name!r}; find its coordinator"
                    ),
                )
        # Also release this broker's claims to coordinate groups without members. Their next
        # coordinator may delete such a group, and a client may create it anew. If this broker then
        # coordinates the new group, it needs a new claim: writes with a claim on the deleted group
        # fail.
        self._registry.groups.release_others(self._is_ours)

    def _is_ours(self, group: str) -> bool:
        chosen = self.coordinator_of(group)
        return chosen is not None and chosen.broker_id == self._config.broker_id

    def _watch_fired(self, path: str | None) -> None:
        """Check in ZooKeeper whether this broker still coordinates a group. ``path`` is the group's
        znode that names the coordinator; None means all groups."""
        for coordinated in list(self._groups.values()):
            if path in (None, znodes.coordinator_path(coordinated.group.name)):
                self._watch_claim(coordinated)

    async def expire(self) -> None:
        """Delete the expired groups that this broker coordinates, and the expired offsets of
        deleted topics in its groups."""
        kept_ms = self._config.offsets_retention_minutes * MINUTE
        for group, kind in (await self._registry.groups.kinds()).items():
            try:
                self.check_coordinator(group)
                if kind == znodes.KIND_NATIVE:
                    members = await self._registry.groups.native_members(group)
                    await self._registry.groups.note_members(group, is_empty=not members)
                elif self.find(group) is None and await self.has_former_members(group):
                    # Take over the group. If its members died together with its previous
                    # coordinator, the group would otherwise never count as empty.
                    await self._load(group)
                if await self._registry.group_deletion.expire(group, partial(self._is_over, group)):
                    logger.info(
                        "group %r: deleted after the retention time of an empty group",
                        group,
                        extra=log_event("group_expired", group=group),
                    )
                    continue
                before_ms = self._clock.now_ms() - kept_ms
                count = await self._registry.group_deletion.expire_former(group, before_ms)
                if count:
                    logger.info("group %r: %d offsets of deleted topics removed", group, count)
            except (NotCoordinatorError, CoordinatorLoadInProgressError):
                continue
            except (WriteConflictError, InconsistentGroupProtocolError) as error:
                # The group got members or was recreated during the check. Check the next group.
                logger.info("group %r: cannot check whether it has expired: %s", group, error)

    def _is_over(self, group: str, age: GroupAge) -> bool:
        """Return whether the group has been empty for longer than its retention time.

        A group without offsets expires after one interval of the retention check. The group in
        which ``logbus mirror`` stores its progress never expires: without it, the mirror could copy
        records twice."""
        if group in self._groups or group.startswith(MIRROR_PREFIX):
            return False
        since_ms, newest_ms = age.empty_since_ms, age.newest_commit_ms
        kept_ms = self._config.offsets_retention_check_ms
        if newest_ms is not None:
            kept_ms = self._config.offsets_retention_minutes * MINUTE
            since_ms = max(since_ms or 0, newest_ms)
        # ``since_ms`` is None if the group has had no coordinator since the last one died. Return
        # True: the caller then makes this broker the coordinator, and the group counts as empty
        # from that time. A later call checks whether it has been empty for ``kept_ms``.
        return since_ms is None or self._clock.now_ms() - since_ms >= kept_ms

    def close(self) -> None:
        """Give up all groups, because the broker stops. Waiting requests get NOT_COORDINATOR."""
        for coordinated in list(self._groups.values()):
            self._drop(
                coordinated,
                NotCoordinatorError("this broker stops; find the group's new coordinator"),
            )
        for task in self._loading.values():
            task.cancel()
        self._checks.cancel()
        self._alarm.close()

    # Methods by which this broker becomes the coordinator of a group, and stops being it.

    async def _coordinated(self, group: str) -> CoordinatedGroup | None:
        """Return the group if this broker is its coordinator and has it in memory, else None.

        If the broker has begun to load the group, wait for the end of the load."""
        self.check_coordinator(group)
        if group in self._loading:
            return await self._load(group)
        coordinated = self._groups.get(group)
        if coordinated is not None and not coordinated.claim.held:
            self._drop(coordinated, _claimed_by_another(group))
            return None
        return coordinated

    async def _coordinated_or_taken_over(self, group: str) -> CoordinatedGroup | None:
        """Return the group, or None if it has no members.

        If ZooKeeper lists members that another broker coordinated, this broker first takes over the
        group."""
        coordinated = await self._coordinated(group)
        if coordinated is None and await self._registry.groups.kind(group) == znodes.KIND_KAFKA:
            claim = await self._registry.groups.claim(group)
            if claim.value.members:
                return await self._load(group)
        return coordinated

    def _refused_join(self, group: str, join: ev.Join) -> LogbusError | None:
        """Return the error of a join that fails whatever the group's state, or None.

        Call it for a group that is not in memory, so that a failing join does not make this broker
        the group's coordinator."""
        if join.member_id:
            return _no_member(group)
        if len(self._groups) >= GROUPS_MAX:
            return GroupMaxSizeReachedError(
                f"group {group!r} cannot be joined, because this broker coordinates the maximum of "
                f"{GROUPS_MAX} groups with members; stop the members of other groups"
            )
        error = self._memory_refusal(join.metadata_bytes, GroupMaxSizeReachedError)
        return error or Group(group, self._limits, 0).refusal(join)

    async def _load(self, group: str) -> CoordinatedGroup:
        task = self._loading.get(group)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._take_over(group))
            self._loading[group] = task
            task.add_done_callback(lambda done: self._loaded(group, done))
        try:
            return await asyncio.wait_for(asyncio.shield(task), LOAD_WAIT_S)
        except TimeoutError:
            raise CoordinatorLoadInProgressError(
                f"this broker is about to become coordinator of group {group!r}; retry"
            ) from None

    def _loaded(self, group: str, task: asyncio.Task[CoordinatedGroup]) -> None:
        del self._loading[group]
        if not task.cancelled():
            task.exception()  # Otherwise asyncio would log an exception that no request awaits.

    async def _take_over(self, group: str) -> CoordinatedGroup:
        claim = await self._registry.groups.claim(group)
        if claim.kind != znodes.KIND_KAFKA:
            logger.warning(
                "group %r is a native group, which a member of a Kafka group cannot join; use "
                "another group, or delete this one first",
                group,
            )
            raise InconsistentGroupProtocolError(
                f"group {group!r} is a native group (coordinated through ZooKeeper), which a "
                "member of a Kafka group cannot join; use another group, or delete this one first"
            )
        self.check_coordinator(group)
        known = self._groups.get(group)
        if known is not None and known.claim is claim:
            # Another request to this broker has loaded the group in the meantime.
            return known
        if known is not None:
            self._drop(known, _claimed_by_another(group))
        value = claim.value
        until_ms = self._clock.monotonic_ms() + value.session_timeout_ms // HEARTBEATS
        former = ev.Former(value.members, until_ms)
        coordinated = CoordinatedGroup(Group(group, self._limits, value.generation, former), claim)
        self._groups[group] = coordinated
        self._alarm.set(coordinated.group.deadline_ms)
        self._watch_claim(coordinated)
        logger.info(
            "group %r: this broker coordinates it in epoch %d",
            group,
            claim.value.epoch,
            extra=log_event("group_coordinated", group=group),
        )
        return coordinated

    def _drop(self, held: CoordinatedGroup, error: LogbusError) -> None:
        name = held.group.name
        if self._groups.get(name) is not held:
            return
        del self._groups[name]
        if held.writing is not None:
            held.writing.cancel()
        self._registry.groups.release(held.claim)
        self._step(held, ev.Resigned(error))
        logger.info(
            "group %r: this broker no longer coordinates it: %s",
            name,
            error.message,
            extra=log_event("group_given_up", group=name),
        )

    def _watch_claim(self, held: CoordinatedGroup) -> None:
        """Check in ZooKeeper whether this broker still coordinates the group, and watch for a
        takeover."""
        if held.writing is None and self._groups.get(held.group.name) is held:
            self._checks.start(self._check_claim(held))

    async def _check_claim(self, held: CoordinatedGroup) -> None:
        try:
            if not await self._registry.groups.is_held(held.claim):
                name = held.group.name
                self._drop(held, _claimed_by_another(name))
        except LogbusError as error:
            # ZooKeeper is not connected, so keep the group for now. After the next connection, this
            # broker checks again which groups it coordinates.
            logger.debug(
                "group %r: cannot read its coordinator in ZooKeeper: %s",
                held.group.name,
                error.message,
            )

    # Methods that pass events to the groups' state machines, and carry out the operations (effects)
    # that these return.

    async def _submit(self, held: CoordinatedGroup, request: ev.Request, kind: type[R]) -> R:
        """Pass a request to the group's state machine. Return the result, of the type ``kind``."""
        name = held.group.name
        held = self._groups.get(name, held)
        if not held.claim.held:
            raise NotCoordinatorError(
                f"group {name!r} was taken over by another broker; find its coordinator"
            )
        # The group may have become empty in the meantime. It was then dropped from memory, so add
        # it again.
        self._groups[name] = held
        result = await held.parked.ask(partial(self._step, held), request)
        assert isinstance(result, kind)
        return result

    def _step(self, held: CoordinatedGroup, event: ev.Event) -> None:
        for effect in held.group.step(self._clock.monotonic_ms(), event):
            if isinstance(effect, fx.WriteGeneration):
                loop = asyncio.get_running_loop()
                held.writing = loop.create_task(self._write(held, effect))
                continue
            self._answer(held, effect)
        self._alarm.set(held.group.deadline_ms)
        is_kept = self._groups.get(held.group.name) is held
        if held.group.is_idle and is_kept:
            # ZooKeeper has the complete state of an empty group, so drop the group from memory.
            # This broker remains its coordinator.
            del self._groups[held.group.name]
        size = held.group.held_bytes if is_kept else 0
        self._held_bytes += size - held.held_bytes
        held.held_bytes = size

    def _answer(self, held: CoordinatedGroup, answer: fx.GroupReply) -> None:
        """Answer a request; an answer to JoinGroup waits until the group's queued commits are
        written.

        A member that joins starts to read at the committed offsets, so the commits of the
        partitions' previous owners must be in ZooKeeper first."""
        reply = partial(held.parked.reply, answer.token, answer.result)
        unwritten = None
        if isinstance(answer.result, fx.JoinResult) and answer.result.error is None:
            unwritten = self._registry.groups.unwritten(held.claim)
        if unwritten is None:
            reply()
        else:
            unwritten.add_done_callback(lambda _: reply())

    async def _write(self, held: CoordinatedGroup, effect: fx.WriteGeneration) -> None:
        try:
            await self._registry.groups.begin_generation(
                held.claim,
                effect.generation,
                is_empty=effect.is_empty,
                members=effect.members,
                session_timeout_ms=effect.session_timeout_ms,
            )
        except LogbusError as error:
            held.writing = None
            self._drop(held, NotCoordinatorError(error.message))
            return
        held.writing = None
        more = effect.members - held.members
        reason = "joined" if more > 0 else "left" if more < 0 else "other"
        self._metrics.count("group_rebalances", reason)
        held.members = effect.members
        self._step(held, ev.GenerationWritten(effect.generation))
        self._watch_claim(held)
        logger.info(
            "group %r is in generation %d%s",
            held.group.name,
            effect.generation,
            ", without members" if effect.is_empty else "",
            extra=log_event("group_generation", group=held.group.name),
        )

    def _tick(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for coordinated in list(self._groups.values()):
            if coordinated.group.deadline_ms <= now_ms:
                self._step(coordinated, ev.GroupTick())
            else:
                self._alarm.set(coordinated.group.deadline_ms)


def _weight(view: BrokerView, group: bytes) -> bytes:
    """Return a hash of broker id and group.

    The live broker with the highest hash is the group's coordinator (rendezvous hashing)."""
    return blake2b(b"%d/" % view.broker_id + group, digest_size=8).digest()


def _claimed_by_another(group: str) -> NotCoordinatorError:
    return NotCoordinatorError(
        f"another broker has become coordinator of group {group!r}; find the coordinator again"
    )


def _no_member(group: str) -> UnknownMemberIdError:
    return UnknownMemberIdError(f"group {group!r} has no member with this member id; join again")
