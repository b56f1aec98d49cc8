"""Simulate one group that Kafka and ZooKeeper-based (native) members join while offsets expire.

Three brokers run production coordinators, and native members are production code; all use one
simulated ZooKeeper. Members of one kind or of both kinds join a group. The group is new, or a
commit without a member created it. Members are killed, stopped and cut off, or stop committing for
a long time. Then all members leave for some time, which may exceed the offset retention time.

Every write is checked as it happens:

* The group never has members of two kinds.

* Members write offsets only while the group has their kind, and no offset of a member goes back.

* A deleted group had no member and no commit for the retention time.

At the end, members of one kind continue, and the group refuses a member of the other kind. The
command ``python -m sim.either_kind`` runs many seeds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from sim import kafka_groups as base
from sim.kafka_groups import GROUP, PARTITIONS, TOPIC
from sim.scheduler import WALL_BEGAN_MS, Owner
from sim.seeded import Violation, main, play
from sim.zk import SimZk

from broker_lite.coordinator import events as ev
from broker_lite.coordinator.effects import HeartbeatResult, SyncResult
from broker_lite.coordinator.group import State
from broker_lite.errors import (
    CoordinationUnavailableError,
    InconsistentGroupProtocolError,
    LogbusError,
)
from broker_lite.metadata import znodes
from broker_lite.metadata.store import Create, Delete, Operation, Set
from broker_lite.metadata.znodes import NativeSubscription
from broker_lite.model import UNNUMBERED, CommittedOffset, TopicPartition
from broker_lite.native.events import PartitionStart
from broker_lite.native.machine import MEMBER
from broker_lite.native.member import NativeShell
from broker_lite.server.coordinators.group_coordinator import GroupCoordinator

EPISODES = 10
RETENTION_S = 60.0
CHECK_S = 20.0
"""Seconds until brokers delete an empty group without offsets.

Production brokers look for such groups less often.
"""
SLACK_S = 15.0
"""Seconds for which a member may still appear to be in a deleted group.

Responses are delayed, and a broker that is cut off from ZooKeeper still answers.
"""
NOBODY = "nobody"
"""The metadata of commits without a member: this word, and the generation that admitted them."""

T = TypeVar("T")


class KafkaMember(base.Member):
    """A Kafka member that leaves when the coordinator answers that the group is ZooKeeper-based."""

    is_turned_away = False

    async def take_part(self) -> None:
        try:
            await super().take_part()
        except InconsistentGroupProtocolError:
            self.alive, self.is_turned_away = False, True
            raise

    async def ask(
        self, what: Callable[[GroupCoordinator], Awaitable[T]], timeout_s: float = 3.0
    ) -> T:
        answer = await super().ask(what, timeout_s)
        assert isinstance(self.world, World)
        if isinstance(answer, HeartbeatResult | SyncResult) and answer.error is None:
            self.world.signed()
        return answer

    def commit_of_now(self) -> Callable[[], Awaitable[None]]:
        assert isinstance(self.world, World)
        return nothing if self.world.is_idle else super().commit_of_now()


async def nothing() -> None:
    """Do nothing in place of a member's commit while ``World.is_idle``."""


class NativeMember:
    """A production member of a ZooKeeper-based group, with one reader that commits."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.owner = Owner(self)
        self.zk: SimZk = world.service.client(self.owner.context)
        self.alive = True
        self.refused: LogbusError | None = None
        self.at: dict[TopicPartition, int] = {}
        self.grants: dict[TopicPartition, int] = {}
        self.member = NativeShell(
            GROUP,
            name,
            NativeSubscription((TOPIC,), None, 1),
            self,
            make_store=lambda: self.zk,
            now_ms=lambda: world.loop.time() * 1000,
        )
        self.spawn(self.run())

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.world.loop.create_task(coroutine, context=self.owner.context)

    @property
    def is_in(self) -> bool:
        """Return whether the member is in the group, by its own state machine and by ZooKeeper."""
        path = znodes.consumer_path(GROUP, self.name)
        is_member = self.member.machine.phase == MEMBER
        return self.alive and is_member and self.world.service.peek(path) is not None

    async def run(self) -> None:
        while True:
            try:
                await self.member.start()
                break
            except CoordinationUnavailableError:
                await asyncio.sleep(0.5)
        while self.alive and self.refused is None:
            await asyncio.sleep(0.1 + self.world.chance.random() * 0.4)
            if self.world.loop.time() * 1000 >= self.member.lease_until_ms:
                continue
            if self.is_in:
                self.world.signed()
            for tp in self.at:
                self.at[tp] += self.world.chance.randrange(1, 20)
            if self.at and not self.world.is_idle and self.world.chance.random() < 0.6:
                rows = {tp: self.row(tp) for tp in self.at}
                with suppress(LogbusError):
                    errors = await self.member.commit(rows, dict(self.grants))
                    self.world.counts["native commits"] += not errors
        self.alive = False
        await self.member.close()

    def row(self, tp: TopicPartition) -> CommittedOffset:
        now_ms = self.world.wall_ms()
        return CommittedOffset(self.at[tp], metadata=f"native {self.name}", commit_ms=now_ms)

    # The member calls the methods below.

    def assign(self, stream: int, tp: TopicPartition, start: PartitionStart) -> None:
        self.at[tp] = 0 if start.committed is None else start.committed.offset
        self.grants[tp] = start.grant

    def revoke(self, stream: int, tp: TopicPartition) -> None:
        if tp in self.at:
            row = None if self.world.is_idle else self.row(tp)
            grant = self.grants[tp]
            self.lose(stream, tp)
            self.world.loop.call_soon(self.member.settled, tp, row, grant)

    def lose(self, stream: int, tp: TopicPartition) -> None:
        self.at.pop(tp, None)
        self.grants.pop(tp, None)

    def renewed(self) -> None:
        """Ignore that the member's lease was renewed: ``run`` reads ``lease_until_ms`` itself."""

    def refuse(self, error: LogbusError) -> None:
        self.refused = error
        self.world.counts["native members turned away"] += 1

    def kill(self) -> None:
        self.alive = False
        self.owner.die()
        self.zk.kill()


class World(base.World):
    """One simulated run, determined by its seed. ``kind`` is the kind of group in the group's znode
    (native, which is ZooKeeper-based, or Kafka); None if no group exists.
    """

    SETTINGS: Mapping[str, int] = {
        "offsets_retention_minutes": int(RETENTION_S) // 60,
        "offsets_retention_check_ms": int(CHECK_S * 1000),
    }

    def __init__(self, loop: Any, seed: int) -> None:
        super().__init__(loop, seed)
        self.natives: list[NativeMember] = []
        self.kind: str | None = None
        self.is_idle = False
        """Whether members at present stay in the group without committing."""
        self.alone = asyncio.Lock()
        self.number = 0
        """The offset of the last commit without a member."""
        self._signed_at = -RETENTION_S

    def wall_ms(self) -> int:
        return WALL_BEGAN_MS + int(self.loop.time() * 1000)

    def signed(self) -> None:
        """Record that the group has a member now: a heartbeat was just confirmed, or a lease is
        valid."""
        self._signed_at = self.loop.time()

    # The methods below check each write.

    def wrote(self, session_id: int, operations: Sequence[Operation]) -> None:
        for operation in operations:
            if operation.path == znodes.group_path(GROUP):
                if isinstance(operation, Delete):
                    self.kind = None
                elif isinstance(operation, Create | Set):
                    before, self.kind = self.kind, znodes.decode_group("", operation.data)
                    self.counts["taken over"] += before is not None
        super().wrote(session_id, operations)
        count = self._coordinator.members
        if self.kind == znodes.KIND_NATIVE and (count or self._coordinator.generation):
            self.fail(f"a native group in Kafka's generation {self._coordinator}")
        inside = [row.name for row in self.natives if row.is_in]
        if self.kind != znodes.KIND_NATIVE and inside:
            self.fail(f"{inside} are in a group of kind {self.kind}")

    def _committed(self, path: str, data: bytes, generation: int) -> None:
        offset, before = znodes.decode_offset(path, data), self._offsets.get(path)
        is_native = self.kind == znodes.KIND_NATIVE
        if offset.metadata.startswith(NOBODY):
            # Members of a later generation that have an assignment already use their own commits.
            is_told = (self._incarnation, generation) in self._assigned
            is_late = offset.metadata != f"{NOBODY} {generation}"
            if is_late and is_told and self._coordinator.members:
                self.fail(f"{offset} is written beside the members of generation {generation}")
            # The offset was the highest when the commit was sent. The broker may apply the commit
            # after higher commits of members: after they have left, or while native members join.
            self.counts["set back"] += before is not None and before.offset > offset.offset
            self._offsets[path] = offset
            return
        if offset.metadata and offset.metadata.startswith("native") != is_native:
            self.fail(f"{offset} is written in a group of kind {self.kind}")
        if not is_native:
            super()._committed(path, data, generation)
            return
        if before is not None and before.offset > offset.offset:
            self.fail(f"{path} went back from {before} to {offset}")
        self._offsets[path] = offset

    def _deleted(self, path: str) -> None:
        """Check that a deleted offset was unused for the retention time, and a deleted coordinator
        znode for CHECK_S."""
        is_offset = path in self._offsets
        if is_offset or path == znodes.coordinator_path(GROUP):
            empty_s = self.loop.time() - self._signed_at
            if empty_s < (RETENTION_S if is_offset else CHECK_S) - SLACK_S:
                self.fail(f"{path} is deleted {empty_s:.1f} s after a member was there")
        if is_offset and self._offsets[path].offset >= 0:
            age_s = (self.wall_ms() - self._offsets[path].commit_ms) / 1000
            if age_s < RETENTION_S:
                self.fail(f"{path} is deleted {age_s:.1f} s after its last commit")
        super()._deleted(path)

    # The methods below run faults and clients.

    def join(self) -> None:
        self.members.append(KafkaMember(self, f"m{self.next_number()}", None))
        self.counts["joins"] += 1

    def join_natively(self) -> None:
        self.natives.append(NativeMember(self, f"n{self.next_number()}"))
        self.natives[-1].zk.lag_s = self.chance.choice((0.0, 0.3, 1.0))
        self.counts["native joins"] += 1

    @property
    def living_natives(self) -> list[NativeMember]:
        return [row for row in self.natives if row.alive]

    async def start(self) -> None:
        await super().start()
        for member in self.members:
            member.kill()
        self.loop.create_task(self.expire())

    async def expire(self) -> None:
        """Make brokers delete expired offsets from time to time."""
        while True:
            await asyncio.sleep(self.chance.random() * 4.0)
            for broker in self.brokers.values():
                if broker.serves:
                    broker.spawn(self.expire_at(broker))

    async def expire_at(self, broker: base.BrokerProcess) -> None:
        with suppress(LogbusError):
            await broker.groups.expire()

    async def commit_alone(self) -> None:
        """Commit increasing offsets without a member id, for a few seconds."""
        async with self.alone:
            for _ in range(self.chance.randrange(1, 6)):
                await asyncio.sleep(self.chance.random())
                self.number = max(self.number, *(row.offset for row in self._offsets.values()), 0)
                self.number += 1
                with suppress(LogbusError):
                    await self.commit_once(self.number)
                    self.counts["commits without a member"] += 1

    async def commit_once(self, number: int) -> None:
        chosen = self.any_broker().groups.coordinator_of(GROUP)
        if chosen is None:
            return
        broker = self.brokers[chosen.broker_id]
        partitions = self.chance.sample(range(PARTITIONS), self.chance.randrange(1, PARTITIONS))

        async def commit() -> None:
            claim = await broker.groups.claim_for_commit(GROUP, ev.Commit(UNNUMBERED, "", None, -1))
            group = broker.groups.find(GROUP)
            if group is not None and group.state is State.STABLE:
                self.fail(f"a commit without a member is admitted beside {group.view().members}")
            row = CommittedOffset(number, metadata=f"{NOBODY} {claim.value.generation}")
            rows = {TopicPartition(TOPIC, partition): row for partition in partitions}
            for error in (await broker.registry.groups.commit(GROUP, rows, claim)).values():
                if error is not None:
                    raise error

        await self.call(broker, commit, 6.0)

    def come(self) -> None:
        who = self.chance.choice(("kafka", "native", "both", "both"))
        for _ in range(self.chance.randrange(1, 4)):
            if who != "native" and len(self.living) < 4:
                self.join()
            if who != "kafka" and len(self.living_natives) < 4:
                self.join_natively()

    async def chaos(self) -> None:
        chance = self.chance
        if chance.random() < 0.5:
            self.service.lost_reply_rate = chance.random() * 0.05
            self.service.lost_request_rate = chance.random() * 0.05
        self.slow, self.lossy = chance.choice((0.0, 0.02, 0.1)), chance.choice((0.0, 0.02, 0.1))
        for _ in range(EPISODES):
            if chance.random() < 0.6:
                self.loop.create_task(self.commit_alone())
                await asyncio.sleep(chance.random() * chance.choice((0.5, 5.0)))
            self.come()
            self.is_idle = chance.random() < 0.3
            await asyncio.sleep(chance.random() * 1.5 * RETENTION_S * self.is_idle)
            for _ in range(chance.randrange(2, 12)):
                await asyncio.sleep(chance.expovariate(1.0))
                self.trouble(chance.random())
            for each in (*self.living, *self.living_natives):
                self.go(each)
            await asyncio.sleep(chance.random() * chance.choice((5.0, 3 * RETENTION_S)))

    def trouble(self, dice: float) -> None:
        natives = self.living_natives
        if dice < 0.1:
            self.come()
        elif dice < 0.15:
            self.loop.create_task(self.commit_alone())
        elif dice < 0.4 and natives:
            native = self.chance.choice(natives)
            if dice < 0.2:
                native.kill()
            elif dice < 0.3:
                native.zk.cut()
                self.later(self.chance.random() * 4.0, native.zk.heal)
            elif native.zk.connected:
                native.zk.expire()
        elif dice < 0.6:
            self.trouble_members(0.5 + self.chance.random() / 2)
        else:
            self.trouble_brokers(self.chance.random())

    def go(self, member: base.Member | NativeMember) -> None:
        if self.chance.random() < 0.3:
            member.kill()
        else:
            member.alive = False

    # The methods below check the group after the faults.

    async def settle(self) -> None:
        self.service.lost_reply_rate = self.service.lost_request_rate = 0.0
        self.slow = self.lossy = 0.0
        self.is_idle = False
        await asyncio.sleep(12.0)
        for broker in self.brokers.values():
            broker.zk.lag_s = 0.0
        for each in (*self.living, *self.living_natives):
            each.kill()
        is_open = self.kind != znodes.KIND_NATIVE and not self._coordinator.generation
        is_native = self.kind == znodes.KIND_NATIVE or (is_open and self.chance.random() < 0.5)
        mine, others = (
            (self.join_natively, self.join) if is_native else (self.join, self.join_natively)
        )
        mine()
        mine()
        await asyncio.sleep(base.SETTLE_S)
        others()
        await asyncio.sleep(5.0)
        await self.check_progress()
        self.counts["ended " + ("native" if is_native else "as Kafka's")] += 1

    def check_settled(self) -> None:
        """Check that the group's members own every partition.

        The group must have refused the last member that tried to join, which was of the other kind
        (Kafka or ZooKeeper-based).
        """
        if self.kind != znodes.KIND_NATIVE:
            super().check_settled()
            refused = self.natives[-1].refused
            if not isinstance(refused, InconsistentGroupProtocolError):
                raise Violation(f"{self.natives[-1].name} was not refused: {refused}")
            return
        owned = sorted(tp.partition for row in self.living_natives for tp in row.at)
        if owned != list(range(PARTITIONS)):
            raise Violation(f"native members own the partitions {owned}")
        last = self.members[-1]
        assert isinstance(last, KafkaMember)
        if not last.is_turned_away:
            raise Violation(f"{last.name} was not refused")


def run(seed: int) -> Counter[str]:
    """Run the simulation with one seed; return how often each event occurred.

    Raises Violation with the seed in its message.
    """
    return play(World, seed)


if __name__ == "__main__":
    main("groups that both kinds of members may join", run)
