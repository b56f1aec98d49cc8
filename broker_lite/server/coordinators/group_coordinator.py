"""This broker's Kafka groups: their state machines, timers and generation writes.

A fixed rule maps each group to one of the live brokers, so every broker computes the same
coordinator. When a broker joins or leaves, only its own groups move. The coordinator claims a group
in ZooKeeper at the first member's request. It drops the group, with NOT_COORDINATOR for waiting
requests, in three cases: the rule names another broker, the claim is lost, or this broker's
registration ended. Loop thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b

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
from broker_lite.metadata.group_offsets import GroupAge
from broker_lite.model import MIRROR_PREFIX, BrokerView
from broker_lite.server.clock import Clock
from broker_lite.server.cluster.registry import Registry
from broker_lite.server.coordinators.alarm import Alarm
from broker_lite.server.log_events import log_event
from broker_lite.server.metrics import Labels, Metrics

logger = logging.getLogger("logbus.groups")

LOAD_WAIT_S = 3.0
"""Seconds that a request waits for a claim in ZooKeeper. It is then answered with
COORDINATOR_LOAD_IN_PROGRESS, and the claim continues.
"""
GROUPS_MAX = 10_000
"""Maximum number of groups with members on one broker."""
GROUPS_PART = 4
"""The subscriptions and assignments of all groups may occupy ``queued.max.bytes`` divided by
this number. Requests that wait for a rebalance also count towards ``queued.max.bytes``, and
requests that end a rebalance must still be read."""
HEARTBEATS = 3
"""Minimum heartbeats per session timeout, Kafka's rule for members. Within a session timeout, every
live member has therefore sent a heartbeat.
"""


@dataclass(slots=True, eq=False)
class HeldGroup:
    """A group that this broker coordinates, and the requests that wait for it."""

    group: Group
    claim: GroupClaim
    waiting: dict[int, asyncio.Future[fx.Result]] = field(default_factory=dict)
    writing: asyncio.Task[None] | None = None
    bytes_kept: int = 0
    """The group's bytes that count towards the limit of all groups."""
    members: int = 0
    """Members of the generation."""


class GroupCoordinator:
    """The group coordinator of one broker. ``clock`` measures sessions in monotonic time."""

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
        self._held: dict[str, HeldGroup] = {}
        self._loading: dict[str, asyncio.Task[HeldGroup]] = {}
        self._checking: set[asyncio.Task[None]] = set()
        self._brokers: Mapping[int, BrokerView] = {}
        self._bytes_max = config.in_flight_bytes_max // GROUPS_PART
        self._bytes_kept = 0
        self._token = 0
        self._alarm = Alarm(clock, self._tick)
        self._metrics = metrics
        self.commit_durations = metrics.histogram("offset_commit_duration_seconds")
        metrics.gauge("coordinated_groups", self._groups_by_state)
        metrics.gauge(
            "coordinated_members", lambda: sum(held.group.size for held in self._held.values())
        )
        registry.on_change(self._snapshot_changed)
        registry.on_watch(self._watch_fired)

    def _groups_by_state(self) -> Mapping[Labels, float]:
        return Counter((held.group.state.value,) for held in self._held.values())

    # Coordinator selection.

    def coordinator_of(self, group: str) -> BrokerView | None:
        """Return the live broker that coordinates the group; None if no broker is live."""
        brokers = self._registry.live_brokers()
        staying = [view for view in brokers.values() if not view.draining]
        name = group.encode("utf-8", "surrogatepass")
        return max(staying or brokers.values(), key=lambda view: _weight(view, name), default=None)

    def check_coordinator(self, group: str) -> None:
        """Raise NotCoordinatorError if another broker coordinates the group, or
        InvalidGroupIdError."""
        znodes.group_path(group)
        if not self._is_ours(group):
            raise NotCoordinatorError(
                f"broker {self._config.broker_id} does not coordinate group {group!r}; find its "
                "coordinator"
            )

    # Requests of members.

    async def join(self, group: str, make: Callable[[int], ev.Join]) -> fx.JoinResult:
        """Join a member and return once the rebalance completes, at most after the rebalance
        timeout."""
        held = await self._held_now(group)
        probe = make(0)
        if held is None:
            if error := self._refused_join(group, probe):
                return fx.JoinResult(error, probe.member_id)
            held = await self._load(group)
        machine = held.group
        # Charge the memory here, not before: the member has received its id, which was all that its
        # first request asked for.
        if error := self._no_room(machine.growth(probe), GroupMaxSizeReachedError):
            return fx.JoinResult(error, probe.member_id)
        result = await self._ask(held, lambda token: self._counted(machine, make(token)))
        assert isinstance(result, fx.JoinResult)
        return result

    def _counted(self, group: Group, join: ev.Join) -> ev.Join:
        """Return a static leader's join with the current partition counts of its topics."""
        if join.instance_id is None or not group.is_led_by(join.instance_id):
            return join
        topics = self._registry.snapshot.topics
        names = [name for name in group.subscribed() or () if name in topics]
        counts = {name: len(topics[name].partitions) for name in names}
        return join._replace(partition_counts=counts)

    async def sync(self, group: str, make: Callable[[int], ev.SyncGroup]) -> fx.SyncResult:
        """Return the member's assignment once the leader has assigned.

        If the assignment exceeds the memory limit of all groups, the leader may retry.
        """
        held = await self._held_now(group)
        if held is None:
            return fx.SyncResult(_no_member(group))
        assigned = sum(len(part) for _, part in make(0).assignments)
        growth = assigned - held.group.assigned_bytes
        if error := self._no_room(growth, CoordinationUnavailableError):
            return fx.SyncResult(error)
        result = await self._ask(held, make)
        assert isinstance(result, fx.SyncResult)
        return result

    def _no_room(self, growth: int, kind: type[LogbusError]) -> LogbusError | None:
        if growth <= 0 or self._bytes_kept + growth <= self._bytes_max:
            return None
        return kind(
            f"groups' subscriptions and assignments take {self._bytes_kept} bytes; "
            f"{self._bytes_max} are allowed, a fourth of queued.max.bytes"
        )

    async def heartbeat(
        self, group: str, make: Callable[[int], ev.Heartbeat]
    ) -> fx.HeartbeatResult:
        held = await self._held_now(group)
        if held is None:
            return fx.HeartbeatResult(_no_member(group))
        result = await self._ask(held, make)
        assert isinstance(result, fx.HeartbeatResult)
        return result

    async def leave(self, group: str, members: Iterable[ev.Leaver]) -> fx.LeaveResult:
        """Remove members; the result has an error or None for each."""
        leavers = tuple(members)
        held = await self._held_or_taken(group)
        if held is None:
            return fx.LeaveResult(tuple(_no_member(group) for _ in leavers))
        result = await self._ask(held, lambda token: ev.Leave(token, leavers))
        assert isinstance(result, fx.LeaveResult)
        return result

    async def claim_for_commit(self, group: str, make: Callable[[int], ev.Commit]) -> GroupClaim:
        """Check a commit and return the group's claim, which fences its write. Raise the error of a
        refused commit.
        """
        held = await self._held_now(group)
        if held is None:
            probe = make(0)
            if probe.member_id or probe.generation >= 0 or probe.instance_id is not None:
                raise _no_member(group)
            claim = await self._registry.groups.claim(group)
            if claim.kind != znodes.KIND_KAFKA and probe.is_transactional:
                # The write checks the claim, so it fails if a native member converts the group
                # concurrently. A native group therefore never has pending offsets.
                raise InconsistentGroupProtocolError(
                    f"group {group!r} is {claim.kind}: native groups take no offsets of "
                    "transactions; use another group"
                )
            if claim.kind != znodes.KIND_KAFKA and await self._registry.groups.native_members(
                group
            ):
                raise NonEmptyGroupError(
                    f"group {group!r} has native members; other clients cannot commit "
                    "until the members have left"
                )
            if not claim.value.members:
                return claim
            held = await self._load(group)
        result = await self._ask(held, make)
        assert isinstance(result, fx.CommitResult)
        if result.error is not None:
            raise result.error
        return held.claim

    # Requests of administrators and of other parts.

    def find(self, group: str) -> Group | None:
        """Return the group's state machine if the group has, or just had, members on this
        broker.
        """
        held = self._held.get(group)
        return None if held is None else held.group

    @property
    def held(self) -> tuple[str, ...]:
        """The names of groups with members on this broker."""
        return tuple(self._held)

    def give_up(self, group: str, broker_id: int) -> None:
        """Give up a group that another broker reports as its own."""
        held = self._held.get(group)
        if held is not None:
            error = NotCoordinatorError(f"broker {broker_id} coordinates group {group!r} now")
            self._drop(held, error)

    async def check_empty(self, group: str) -> None:
        """Return once ZooKeeper records the group as empty.

        Raise NonEmptyGroupError while the group has members, or may have: members of a former
        coordinator that have not yet contacted this one.
        """
        while (held := await self._held_or_taken(group)) is not None:
            if count := held.group.size or held.group.awaited:
                raise NonEmptyGroupError(f"group {group!r} has {count} members")
            if held.writing is None:
                return
            # Wait for the write of the empty generation; until then ZooKeeper counts members that
            # just left.
            await asyncio.wait([held.writing])

    async def find_taken(self, group: str) -> Group | None:
        """Return the group as ``find`` does; take it over first if a former coordinator's
        members may be live."""
        held = await self._held_or_taken(group)
        return None if held is None else held.group

    async def find_described(self, group: str) -> Group | None:
        """Return the group as ``find_taken`` does, but without a write to ZooKeeper if the last
        generation had no members.

        Only a take-over shows whether the members of a former coordinator are still live.
        """
        held = await self._held_now(group)
        if held is None and await self.has_left_members(group):
            held = await self._load(group)
        return None if held is None else held.group

    async def has_left_members(self, group: str) -> bool:
        """Return whether a group that this broker does not hold has a generation whose members may
        be live.
        """
        return await self._registry.groups.members_left(group) > 0

    def forget(self, group: str) -> None:
        """Drop a group without members from memory, before its deletion."""
        held = self._held.get(group)
        if held is not None:
            self._drop(held, NotCoordinatorError(f"group {group!r} is being deleted; join again"))

    def _snapshot_changed(self, snapshot: MetadataSnapshot) -> None:
        """Give up the groups that other brokers coordinate in the new snapshot."""
        if snapshot.brokers is self._brokers:
            return
        self._brokers = snapshot.brokers
        for name, held in list(self._held.items()):
            try:
                self.check_coordinator(name)
            except LogbusError as error:
                self._drop(held, error)
                continue
            if held.claim.value.broker_epoch != self._registry.broker_epoch:
                self._drop(
                    held, NotCoordinatorError("this broker registered again; find the coordinator")
                )
        # Release the claims on groups without members too: their next coordinator may delete and
        # re-create them.
        self._registry.groups.release_others(self._is_ours)

    def _is_ours(self, group: str) -> bool:
        chosen = self.coordinator_of(group)
        return chosen is not None and chosen.broker_id == self._config.broker_id

    def _watch_fired(self, path: str | None) -> None:
        """Check whether this broker still holds its claim on the group at ``path``; None checks all
        groups.
        """
        for held in list(self._held.values()):
            if path in (None, znodes.coordinator_path(held.group.name)):
                self._watch_claim(held)

    async def expire(self) -> None:
        """Delete expired groups, and expired offsets of deleted topics, among the groups
        coordinated here."""
        kept_ms = self._config.offsets_retention_minutes * MINUTE
        for group, kind in (await self._registry.groups.kinds()).items():
            try:
                self.check_coordinator(group)
                if kind == znodes.KIND_NATIVE:
                    members = await self._registry.groups.native_members(group)
                    await self._registry.groups.note_members(group, is_empty=not members)
                elif self.find(group) is None and await self.has_left_members(group):
                    # Take the group over: if its members died with its former coordinator, it would
                    # otherwise rebalance for ever.
                    await self._load(group)
                if await self._registry.groups.expire(group, partial(self._is_over, group)):
                    logger.info(
                        "group %r: deleted after the retention time of an empty group",
                        group,
                        extra=log_event("group_expired", group=group),
                    )
                    continue
                before_ms = self._clock.now_ms() - kept_ms
                count = await self._registry.groups.expire_former(group, before_ms)
                if count:
                    logger.info("group %r: %d offsets of deleted topics removed", group, count)
            except (NotCoordinatorError, CoordinatorLoadInProgressError):
                continue
            except (WriteConflictError, InconsistentGroupProtocolError) as error:
                # The group got members or was re-created during the check; continue with the
                # others.
                logger.info("group %r: cannot check its retention: %s", group, error)

    def _is_over(self, group: str, age: GroupAge) -> bool:
        """Return whether the group has exceeded its retention.

        A group without offsets has nothing to retain. A mirror's progress never expires: without
        it, the mirror could copy records twice.
        """
        if group in self._held or group.startswith(MIRROR_PREFIX):
            return False
        since_ms, newest_ms = age.empty_since_ms, age.newest_commit_ms
        kept_ms = self._config.offsets_retention_check_ms
        if newest_ms is not None:
            kept_ms = self._config.offsets_retention_minutes * MINUTE
            since_ms = max(since_ms or 0, newest_ms)
        # ``since_ms`` is None if no broker has claimed the group since its coordinator died. Claim
        # it now; its empty time starts with the claim.
        return since_ms is None or self._clock.now_ms() - since_ms >= kept_ms

    def close(self) -> None:
        """Fail all waiting requests with an error that makes clients find another coordinator."""
        for held in list(self._held.values()):
            self._drop(held, NotCoordinatorError("this broker stops; find the new coordinator"))
        for task in (*self._loading.values(), *self._checking):
            task.cancel()
        self._alarm.close()

    # Taking groups over.

    async def _held_now(self, group: str) -> HeldGroup | None:
        """Return the group if it is held here or its claim is in progress."""
        self.check_coordinator(group)
        if group in self._loading:
            return await self._load(group)
        held = self._held.get(group)
        if held is not None and not held.claim.held:
            self._drop(held, NotCoordinatorError(f"another broker claimed group {group!r}"))
            return None
        return held

    async def _held_or_taken(self, group: str) -> HeldGroup | None:
        """Return the group if it is held here; take it over if a former coordinator's members
        may be live."""
        held = await self._held_now(group)
        if held is None and await self._registry.groups.kind(group) == znodes.KIND_KAFKA:
            claim = await self._registry.groups.claim(group)
            if claim.value.members:
                return await self._load(group)
        return held

    def _refused_join(self, group: str, join: ev.Join) -> LogbusError | None:
        """Return the error of a join that is refused without a claim on the group; else None."""
        if join.member_id:
            return _no_member(group)
        if len(self._held) >= GROUPS_MAX:
            return GroupMaxSizeReachedError(f"this broker coordinates {GROUPS_MAX} groups already")
        error = self._no_room(join.metadata_bytes, GroupMaxSizeReachedError)
        return error or Group(group, self._limits, 0).refusal(join)

    async def _load(self, group: str) -> HeldGroup:
        task = self._loading.get(group)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._take_over(group))
            self._loading[group] = task
            task.add_done_callback(lambda done: self._loaded(group, done))
        try:
            return await asyncio.wait_for(asyncio.shield(task), LOAD_WAIT_S)
        except TimeoutError:
            raise CoordinatorLoadInProgressError(
                f"group {group!r} is being taken over; retry"
            ) from None

    def _loaded(self, group: str, task: asyncio.Task[HeldGroup]) -> None:
        del self._loading[group]
        if not task.cancelled():
            task.exception()  # Mark the exception as retrieved; the waiting requests receive it.

    async def _take_over(self, group: str) -> HeldGroup:
        claim = await self._registry.groups.claim(group)
        if claim.kind != znodes.KIND_KAFKA:
            logger.warning(
                "group %r is of kind %r: its members coordinate among themselves, and do not mix "
                "with Kafka's; use another group, or delete it first",
                group,
                claim.kind,
            )
            raise InconsistentGroupProtocolError(
                f"group {group!r} is {claim.kind}: Kafka members and native ones do not mix; use "
                "another group, or delete it first"
            )
        self.check_coordinator(group)
        known = self._held.get(group)
        if known is not None and known.claim is claim:
            # Another request may have created it during the check.
            return known
        if known is not None:
            self._drop(known, NotCoordinatorError(f"another broker had claimed group {group!r}"))
        value = claim.value
        until_ms = self._clock.monotonic_ms() + value.session_timeout_ms // HEARTBEATS
        former = ev.Former(value.members, until_ms)
        held = HeldGroup(Group(group, self._limits, value.generation, former), claim)
        self._held[group] = held
        self._alarm.set(held.group.deadline_ms)
        self._watch_claim(held)
        logger.info(
            "group %r: this broker coordinates it in epoch %d",
            group,
            claim.value.epoch,
            extra=log_event("group_coordinated", group=group),
        )
        return held

    def _drop(self, held: HeldGroup, error: LogbusError) -> None:
        name = held.group.name
        if self._held.get(name) is not held:
            return
        del self._held[name]
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

    def _watch_claim(self, held: HeldGroup) -> None:
        """Check that this broker still holds its claim on the group, and watch its znode."""
        if held.writing is None and self._held.get(held.group.name) is held:
            task = asyncio.get_running_loop().create_task(self._check_claim(held))
            self._checking.add(task)
            task.add_done_callback(self._checking.discard)

    async def _check_claim(self, held: HeldGroup) -> None:
        try:
            if not await self._registry.groups.is_held(held.claim):
                name = held.group.name
                self._drop(held, NotCoordinatorError(f"another broker claimed group {name!r}"))
        except LogbusError as error:
            # After a reconnection the claims of all groups are checked again.
            logger.debug("group %r: cannot check the claim: %s", held.group.name, error.message)

    # Running the machines.

    async def _ask(self, held: HeldGroup, make: Callable[[int], ev.Event]) -> fx.Result:
        held = self._held.setdefault(held.group.name, held)
        if not held.claim.held:
            raise NotCoordinatorError(
                f"group {held.group.name!r} was taken over by another broker; find its coordinator"
            )
        self._token += 1
        token = self._token
        future: asyncio.Future[fx.Result] = asyncio.get_running_loop().create_future()
        held.waiting[token] = future
        self._step(held, make(token))
        try:
            return await future
        finally:
            held.waiting.pop(token, None)

    def _step(self, held: HeldGroup, event: ev.Event) -> None:
        for effect in held.group.step(self._clock.monotonic_ms(), event):
            if isinstance(effect, fx.WriteGeneration):
                loop = asyncio.get_running_loop()
                held.writing = loop.create_task(self._write(held, effect))
                continue
            future = held.waiting.pop(effect.token, None)
            if future is not None:
                self._answer(held, future, effect.result)
        self._alarm.set(held.group.deadline_ms)
        is_kept = self._held.get(held.group.name) is held
        if held.group.is_idle and is_kept:
            # ZooKeeper holds the complete state of an empty group, so drop the group from memory.
            # The claim stays.
            del self._held[held.group.name]
        size = held.group.held_bytes if is_kept else 0
        self._bytes_kept += size - held.bytes_kept
        held.bytes_kept = size

    def _answer(
        self, held: HeldGroup, future: asyncio.Future[fx.Result], result: fx.Result
    ) -> None:
        """Answer a request once the group's pending commits are written.

        A member that joins starts reading at the committed offsets. The commits of previous owners
        must be written first, even if the member joins without a new generation.
        """

        def answer(_: object = None) -> None:
            if not future.done():
                future.set_result(result)

        unwritten = None
        if isinstance(result, fx.JoinResult) and result.error is None:
            unwritten = self._registry.groups.unwritten(held.claim)
        if unwritten is None:
            answer()
        else:
            unwritten.add_done_callback(answer)

    async def _write(self, held: HeldGroup, effect: fx.WriteGeneration) -> None:
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
        for held in list(self._held.values()):
            if held.group.deadline_ms <= now_ms:
                self._step(held, ev.GroupTick())
            else:
                self._alarm.set(held.group.deadline_ms)


def _weight(view: BrokerView, group: bytes) -> bytes:
    """Return the broker's weight for the group; the live broker with the highest weight
    coordinates it."""
    return blake2b(b"%d/" % view.broker_id + group, digest_size=8).digest()


def _no_member(group: str) -> UnknownMemberIdError:
    return UnknownMemberIdError(f"group {group!r} has no member of that id here; join again")
