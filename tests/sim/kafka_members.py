"""Simulate logbus members of Kafka groups with production coordinators.

All faults of ``kafka_groups`` occur here too. A member is production code from its state machine to
its commits, but reads no records. While the member's lease holds, a poll increments a number that
stands for the position. Some polls come so late that the member has left the group. The checks are
those of ``kafka_groups``, with one exception: a cooperative member may still commit a partition
that it must give up, if no member owns the partition in the new generation. The command ``python -m
sim.kafka_members --seeds 1000`` runs many seeds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from sim import kafka_groups as base
from sim.kafka_groups import GROUP, PARTITIONS, REBALANCE_MS, SESSION_MS, TOPIC
from sim.scheduler import Owner
from sim.seeded import main, play
from sim.shell import LoopShell
from sim.sim_consumer import SimConsumer

from broker_lite.client.consuming.reader_core import ReaderCore
from broker_lite.client.consuming.waits import Task
from broker_lite.client.membership.kafka_membership import KafkaMembership
from broker_lite.client.membership.settings import MemberConfig
from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.transport.steps import Send
from broker_lite.coordinator import events as ev
from broker_lite.errors import LogbusError, wire_code
from broker_lite.metadata import znodes
from broker_lite.model import NO_OFFSET, UNNUMBERED, CommittedOffset, Endpoint, TopicPartition
from broker_lite.wire.calls import cluster as cluster_calls
from broker_lite.wire.calls import groups, members, offsets
from broker_lite.wire.consumer_protocol import decode_assignment

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
STUCK_MS = 4000


class Wire(LoopShell):
    """A shell that passes a member's requests to a broker's coordinator as Python values.

    A *shell* sends the requests that the client decides on. Each request calls the coordinator as
    the broker's handler does.
    """

    def __init__(self, owner: MachineMember) -> None:
        super().__init__(owner.world.loop)
        self.owner, self.world = owner, owner.world
        self.tasks: set[asyncio.Task[None]] = set()
        self.joined: dict[tuple[str, int], int] = {}
        """The incarnation of the group in which a member joined a generation."""
        self.claim: str | None = None
        """The claim of the coordinator that created the member's generation."""

    def request(self, send: Send, on_answer: Callable[[Any], None]) -> None:
        exchange: Any = send.exchange

        async def ask() -> None:
            broker = self.world.brokers[send.endpoint.port]
            try:
                answer = await self.world.call(
                    broker, lambda: self.answer(broker, exchange.call), send.timeout_ms / 1000
                )
            except LogbusError as error:
                answer = error
            on_answer(answer)

        task = self.loop.create_task(ask())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    # The methods below answer requests in the broker's place.

    async def answer(self, broker: base.BrokerProcess, call: Any) -> Any:
        match call:
            case cluster_calls.MetadataRequest():
                return self.metadata()
            case groups.FindCoordinatorRequest():
                view = broker.groups.coordinator_of(GROUP)
                row = (
                    (-1, "", -1, 15) if view is None else (view.broker_id, "sim", view.broker_id, 0)
                )
                found = groups.FoundCoordinator(GROUP, *row, None)
                return groups.FindCoordinatorResponse(0, (found,))
            case groups.OffsetFetchRequest():
                return await self.fetch_offsets(broker, call.groups[0].topics)
            case offsets.ListOffsetsRequest(topics):
                rows = tuple(
                    offsets.ListedPartition(row.partition_index, 0, -1, 0, 0)
                    for row in topics[0].partitions
                )
                return offsets.ListOffsetsResponse(0, (offsets.ListedTopic(TOPIC, rows),))
            case groups.OffsetCommitRequest():
                return await self.commit(broker, call)
            case members.JoinGroupRequest():
                return await self.join(broker, call)
            case members.SyncGroupRequest():
                return await self.sync(broker, call)
            case members.HeartbeatRequest():
                return members.HeartbeatResponse(0, await self.beat(broker, call))
            case members.LeaveGroupRequest():
                leaver = ev.Leaver(call.member_id, call.group_instance_id)
                await broker.groups.leave(GROUP, (leaver,))
                return members.LeaveGroupResponse(0, 0, ())
        raise AssertionError(call)

    def metadata(self) -> cluster_calls.MetadataResponse:
        living = [number for number, row in self.world.brokers.items() if row.serves]
        brokers = tuple(cluster_calls.MetadataBroker(n, "sim", n, None) for n in living)
        leader = living[0] if living else -1
        rows = tuple(
            cluster_calls.MetadataPartition(0, partition, leader, 0, (leader,), (leader,), ())
            for partition in range(PARTITIONS)
        )
        topic = cluster_calls.MetadataTopic(0, TOPIC, TOPIC_ID, False, rows)
        return cluster_calls.MetadataResponse(0, brokers, "sim", leader, (topic,))

    async def fetch_offsets(
        self, broker: base.BrokerProcess, topics: tuple[groups.OffsetFetchTopic, ...] | None
    ) -> groups.OffsetFetchResponse:
        code, rows = 0, []
        try:
            offsets = {
                tp.partition: row.offset
                for tp, row in (await broker.registry.groups.fetch(GROUP)).items()
            }
            for partition in sorted(offsets) if topics is None else topics[0].partition_indexes:
                offset = offsets.get(partition, NO_OFFSET)
                rows.append(groups.FetchedOffset(partition, offset, -1, "", 0))
        except LogbusError as error:
            code = wire_code(error)
        found = (groups.FetchedOffsetsTopic(TOPIC, tuple(rows)),)
        return groups.OffsetFetchResponse(0, (groups.FetchedOffsetsGroup(GROUP, found, code),))

    async def commit(
        self, broker: base.BrokerProcess, call: groups.OffsetCommitRequest
    ) -> groups.OffsetCommitResponse:
        generation, member = call.generation_id_or_member_epoch, call.member_id
        when = f"{self.joined[member, generation]}/{generation}"
        rows = {
            TopicPartition(TOPIC, row.partition_index): CommittedOffset(
                row.committed_offset, metadata=f"{when} {member}"
            )
            for row in call.topics[0].partitions
        }
        try:
            claim = await broker.groups.claim_for_commit(
                GROUP, ev.Commit(UNNUMBERED, member, call.group_instance_id, generation)
            )
            found = await broker.registry.groups.commit(GROUP, rows, claim)
            codes = {tp: 0 if bad is None else wire_code(bad) for tp, bad in found.items()}
            self.world.counts["commits"] += 1
        except LogbusError as error:
            codes = dict.fromkeys(rows, wire_code(error))
        listed = tuple(groups.CommittedPartition(w.partition, code) for w, code in codes.items())
        return groups.OffsetCommitResponse(0, (groups.CommittedTopic(TOPIC, listed),))

    async def join(
        self, broker: base.BrokerProcess, call: members.JoinGroupRequest
    ) -> members.JoinGroupResponse:
        number = self.world.next_number()
        if not call.member_id:
            self.owner.took_at = self.loop.time()
        request = ev.Join(
            UNNUMBERED, call.member_id, call.group_instance_id, "sim", "/sim",
            call.session_timeout_ms, call.rebalance_timeout_ms, members.CONSUMER,
            tuple(ev.Protocol(*row) for row in call.protocols), f"{self.owner.name}-{number}",
        )  # fmt: skip
        try:
            found, claim = await base.join(broker.groups, request)
            if found.error is None:
                incarnation = self.world.incarnation_of(claim)
                self.joined[found.member_id, found.generation] = incarnation
                self.claim = claim
        except LogbusError as error:
            return members.JoinGroupResponse(
                0, wire_code(error), -1, None, None, "", False, call.member_id
            )
        return members.JoinGroupResponse(
            0,
            0 if found.error is None else wire_code(found.error),
            found.generation,
            found.protocol_type,
            found.protocol_name,
            found.leader,
            found.skip_assignment,
            found.member_id,
            tuple(members.JoinedMember(*row) for row in found.members),
        )

    async def sync(
        self, broker: base.BrokerProcess, call: members.SyncGroupRequest
    ) -> members.SyncGroupResponse:
        parts = tuple((row.member_id, row.assignment) for row in call.assignments)
        if parts:
            shares = {name: decode_assignment(data) for name, data in parts}
            self.world.assigned(
                (self.joined[call.member_id, call.generation_id], call.generation_id),
                {name: bytes(tp.partition for tp in share) for name, share in shares.items()},
            )
        try:
            found = await broker.groups.sync(
                GROUP,
                ev.SyncGroup(
                    UNNUMBERED, call.member_id, call.group_instance_id, call.generation_id, parts
                ),
            )
        except LogbusError as error:
            return members.SyncGroupResponse(0, wire_code(error), None, None, b"")
        code = 0 if found.error is None else wire_code(found.error)
        return members.SyncGroupResponse(0, code, None, None, found.assignment)

    async def beat(self, broker: base.BrokerProcess, call: members.HeartbeatRequest) -> int:
        try:
            found = await broker.groups.heartbeat(
                GROUP,
                ev.Heartbeat(
                    UNNUMBERED, call.member_id, call.group_instance_id, call.generation_id
                ),
            )
        except LogbusError as error:
            return wire_code(error)
        return 0 if found.error is None else wire_code(found.error)


class MachineMember(base.Member):
    """The process of a client that has one consumer, which is a member of the group."""

    def __init__(self, world: World, name: str, instance_id: str | None) -> None:
        self.world, self.name, self.instance_id = world, name, instance_id
        self.owner = Owner(self)
        self.alive = True
        self.took_at = -1.0
        """The time at which the member's last join without a member id reached a coordinator.

        From then on the member owns its static name, even if another process with that name
        started later.
        """
        self.wire = Wire(self)
        bootstrap = tuple(Endpoint("sim", number) for number in world.brokers)
        config = MemberConfig(
            start="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=300,
            max_poll_interval_ms=STUCK_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            request_timeout_ms=3000,
            group_instance_id=instance_id or "",
            assignors=world.assignors,
        )
        self.reader = SimConsumer(
            self.wire,
            Cluster(bootstrap, self.wire.now_ms),
            config,
            group=GROUP,
            joining=self.joining,
        )
        self.core = self.reader.core
        world.loop.create_task(self.run(), context=self.owner.context)

    def joining(self, reader: ReaderCore) -> KafkaMembership:
        self.membership = KafkaMembership(
            reader, topics=(TOPIC,), pattern=None, lease_clock=self.wire.now_ms
        )
        self.member = self.membership.member
        return self.membership

    @property
    def positions(self) -> dict[int, int]:  # type: ignore[override]
        return {tp.partition: at for tp, at in self.reader.positions().items()}

    @property
    def generation(self) -> int:  # type: ignore[override]
        return self.member.machine.generation

    def kill(self) -> None:
        self.alive = False
        self.owner.die()

    async def run(self) -> None:
        chance, core = self.world.chance, self.core
        while not await self.attempt(core.membership.join()) and self.member.refused is None:
            pass
        while self.alive and self.member.refused is None:
            is_stuck = chance.random() < 0.01 and not self.world.is_calm
            await asyncio.sleep(6.0 if is_stuck else 0.02 + chance.random() * 0.2)
            core.begin_poll()
            self.world.counts["idle"] += self.member.is_idle
            # Commit automatically at times. Nothing waits for the result, so the commit may arrive
            # when another member already owns the partitions.
            core.commit_due |= chance.random() < 0.2
            # A poll that raises an error returns no records.
            if await self.attempt(core.fill(0)) and not self.membership.is_held_back():
                for tp in self.reader.assignment():
                    self.world.handed_out(self, tp)
                    self.reader.move(tp, chance.randrange(1, 20))
            if chance.random() < 0.2:
                await self.attempt(core.commit())
        if self.member.refused is None and chance.random() < 0.8:
            await self.attempt(core.commit())
            self.member.close()
            await asyncio.sleep(4.0)
        self.alive = False
        self.owner.die()

    async def attempt(self, task: Task[Any]) -> bool:
        """Run a task of this member's consumer (a generator), such as a poll or a commit. If the
        task fails, count its error.

        Return whether the task succeeded.
        """
        try:
            await self.reader.run(task)
        except LogbusError as error:
            self.world.counts[type(error).__name__] += 1
            return False
        return True

    def would_hand_out(self, tp: TopicPartition) -> bool:
        """Return whether a poll now would return records of the partition.

        A poll first drops the partitions that the member's state machine does not own.
        """
        return (
            self.alive
            and not self.owner.paused
            and tp in self.reader.assignment()
            and tp in self.member.machine.owned
            and self.wire.now_ms() < self.member.lease_until_ms
        )


class World(base.World):
    """One simulated run, determined by its seed; all members use the same assignors."""

    def __init__(self, loop: Any, seed: int) -> None:
        super().__init__(loop, seed)
        choices = ("range,cooperative-sticky", "cooperative-sticky", "sticky")
        self.assignors = self.chance.choice(choices)
        self.is_calm = False

    def handed_out(self, reader: MachineMember, tp: TopicPartition) -> None:
        """Check that no other member of the reader's coordinator would return records of the
        partition.

        The check ignores members of another coordinator, because a replaced coordinator without a
        connection to ZooKeeper still answers its own members' heartbeats.
        """
        self.counts["handed out"] += 1
        for other in self.members:
            assert isinstance(other, MachineMember)
            if other is reader or not other.would_hand_out(tp):
                continue
            if other.wire.claim != reader.wire.claim:
                self.counts["read by two after a move"] += 1
            elif self.is_former(reader) or self.is_former(other):
                self.counts["read by a former process"] += 1
            else:
                self.fail(f"{tp} is handed out by {reader.name}, and would be by {other.name}")

    def is_former(self, member: MachineMember) -> bool:
        """Return whether another process has taken over this member's group.instance.id.

        The former process learns this from the response to its next heartbeat. If it has not
        received the response to its own join, it repeats the join and so takes the id back.
        """
        return member.instance_id is not None and any(
            isinstance(other, MachineMember)
            and other.instance_id == member.instance_id
            and other.took_at > member.took_at
            for other in self.members
        )

    def new_member(self, name: str, instance: str | None) -> MachineMember:
        return MachineMember(self, name, instance)

    def assigned(self, generation: base.Generation, parts: dict[str, bytes]) -> None:
        super().assigned(generation, parts)
        given = sorted(partition for part in parts.values() for partition in part)
        if len(set(given)) != len(given):
            self.fail(f"generation {generation} gives a partition twice: {parts}")

    def _committed(self, path: str, data: bytes, generation: int) -> None:
        """Check a commit; the former owner may commit a partition that has no owner yet."""
        partition = int(path.rpartition("/")[2])
        parts = self._assigned.get((self._incarnation, generation), {})
        if self.assignors == "cooperative-sticky" and not any(
            partition in p for p in parts.values()
        ):
            offset, before = znodes.decode_offset(path, data), self._offsets.get(path)
            self._offsets[path] = offset
            if before is not None and before.offset > offset.offset:
                self.fail(f"{partition} went back from {before} to {offset}")
            return
        super()._committed(path, data, generation)

    async def settle(self) -> None:
        self.is_calm = True
        await super().settle()


def run(seed: int) -> Counter[str]:
    """Run the simulation with one seed; return how often each event occurred.

    Raises Violation with the seed in its message.
    """
    return play(World, seed)


if __name__ == "__main__":
    main("logbus's members of Kafka groups", run)
