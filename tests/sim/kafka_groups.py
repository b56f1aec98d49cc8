"""Simulate Kafka groups: production coordinators on a simulated ZooKeeper under random faults.

Members join, leave, die, are paused and rejoin as static members; requests and responses are late
or lost. Brokers are killed, paused, cut off from ZooKeeper, lose their sessions and receive watch
events late. Every write is checked as it happens:

* Generation numbers only grow, and each generation has one assignment.

* Only the member to which a generation assigned a partition writes the partition's offset, in that
  generation. No offset goes back.

After all faults are healed, each partition has one member, and consumption continues. The command
``python -m sim.kafka_groups --seeds 1000`` runs many seeds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from sim.disk import SimClock
from sim.groups import FairZk
from sim.scheduler import OUTSIDE, Owner, SimLoop, stream
from sim.seeded import Violation, main, play
from sim.zk import SimZk

from broker_lite.config import BrokerConfig
from broker_lite.coordinator import events as ev
from broker_lite.coordinator.effects import JoinResult
from broker_lite.errors import (
    LogbusError,
    MemberIdRequiredError,
    NetworkError,
    TopicExistsError,
    UnknownMemberIdError,
)
from broker_lite.metadata import znodes
from broker_lite.metadata.store import Create, Delete, Operation, Set
from broker_lite.model import UNNUMBERED, CommittedOffset, Endpoint, TopicPartition, topic_id_text
from broker_lite.server.cluster.administration import NewTopic
from broker_lite.server.cluster.registry import (
    SUPPORTED_FEATURES,
    Registry,
)
from broker_lite.server.coordinators.coordinator_fencing import CHECK_MS, CoordinatorFencing
from broker_lite.server.coordinators.group_coordinator import GroupCoordinator
from broker_lite.server.handlers import delete_groups
from broker_lite.server.metrics import Metrics
from broker_lite.server.network.access import Access, AccessRow, Authorizer
from broker_lite.wire.calls import groups as wire
from broker_lite.wire.consumer_protocol import encode_subscription

OPEN = Access(Authorizer(), AccessRow())
GROUP = "g"
TOPIC = "t"
PARTITIONS = 6
BROKERS = 3
SESSION_MS = 2000
REBALANCE_MS = 3000
CHAOS_S = 40.0
SETTLE_S = 25.0
QUIET_S = 4.0
MEMBERS_MAX = 6
DELETIONS = 0.1
"""Probability that a fault comes together with attempts to delete the group."""

MOVED_ON = (
    "REBALANCE_IN_PROGRESS",
    "ILLEGAL_GENERATION",
    "UNKNOWN_MEMBER_ID",
    "FENCED_INSTANCE_ID",
)
"""Errors after which a member sends no further commit in its generation.

After other errors, the member may rejoin in the same generation. Then the order of a late commit
and its next commit is undefined.
"""

Generation = tuple[int, int]
"""The group's incarnation (its number of deletions so far) and its generation number."""
NOBODY = znodes.CoordinatorZnode(-1, -1, 0, 0, None)

T = TypeVar("T")


class BrokerProcess:
    """A broker of which only the group coordinator and the registry (its metadata) run."""

    def __init__(self, world: World, broker_id: int, start_counter: int) -> None:
        self.world, self.broker_id, self.start_counter = world, broker_id, start_counter
        self.owner = Owner(self)
        self.zk: SimZk = world.service.client(self.owner.context)
        self.gone: asyncio.Future[None] = world.loop.create_future()
        self.serves = False
        config = BrokerConfig(
            broker_id=broker_id,
            group_session_timeout_min_ms=100,
            group_initial_rebalance_delay_ms=world.chance.choice((0, 200)),
            **world.SETTINGS,
        )
        clock = SimClock(world.loop)
        rng = stream(world.seed, f"broker {broker_id} {start_counter}")
        self.registry = Registry(
            config, now_ms=clock.now_ms, store=self.zk, random_bytes=rng.randbytes
        )
        self.groups = GroupCoordinator(config, self.registry, clock=clock, metrics=Metrics())
        self.spawn(self.run())

    def spawn(self, coroutine: Any) -> asyncio.Task[Any]:
        return self.world.loop.create_task(coroutine, context=self.owner.context)

    async def run(self) -> None:
        directory = topic_id_text(bytes([self.broker_id]) * 16)
        endpoint = Endpoint("sim", self.broker_id)
        with suppress(LogbusError):
            await self.registry.start(
                znodes.Registration(
                    self.broker_id,
                    endpoint,
                    directory,
                    self.start_counter,
                    features=SUPPORTED_FEATURES,
                )
            )
            self.serves = True
            self.spawn(self.ask_others())
        if not self.serves:
            self.world.later(1.0, lambda: self.world.restart(self))

    async def ask_others(self) -> None:
        """Regularly ask the other brokers whether they are now the coordinators of this broker's
        groups."""
        fencing = CoordinatorFencing(self.broker_id, self.registry, self.groups, self.ask)
        while True:
            await asyncio.sleep(CHECK_MS / 1000)
            await fencing.check()

    async def ask(
        self, broker_id: int, call: wire.FindCoordinatorRequest
    ) -> wire.FindCoordinatorResponse:
        other = self.world.brokers[broker_id]

        async def answer() -> wire.FindCoordinatorResponse:
            chosen = [(key, other.groups.coordinator_of(key)) for key in call.coordinator_keys]
            rows = [
                wire.FoundCoordinator(key, -1 if view is None else view.broker_id, "", 0, 0, None)
                for key, view in chosen
            ]
            return wire.FindCoordinatorResponse(0, tuple(rows))

        return await self.world.call(other, answer, 1.0)

    def kill(self) -> None:
        self.serves = False
        self.owner.die()
        self.zk.kill()
        if not self.gone.done():
            self.gone.set_result(None)


class Member:
    """A minimal group member that commits positions, with the eager protocol and the range
    assignor."""

    def __init__(self, world: World, name: str, instance_id: str | None) -> None:
        self.world, self.name, self.instance_id = world, name, instance_id
        self.owner = Owner(self)
        self.alive = True
        self.member_id, self.generation = "", -1
        self.incarnation = 0
        self.positions: dict[int, int] = {}
        self.broker: BrokerProcess | None = None
        world.loop.create_task(self.run(), context=self.owner.context)

    async def run(self) -> None:
        chance = self.world.chance
        while self.alive:
            try:
                await self.take_part()
            except LogbusError as error:
                self.world.counts[type(error).__name__] += 1
                if error.name in MOVED_ON:
                    self.last_words()
                self.positions = {}
                if isinstance(error, UnknownMemberIdError) or error.name == "FENCED_INSTANCE_ID":
                    self.member_id = ""
                await asyncio.sleep(chance.random() * 0.3)
        # Leave the group, unless the member never found a coordinator.
        if chance.random() < 0.8 and self.broker is not None:
            with suppress(LogbusError):
                if self.positions:
                    await self.commit()
                leaver = ev.Leaver(self.member_id, self.instance_id)
                await self.ask(lambda groups: groups.leave(GROUP, (leaver,)))

    async def take_part(self) -> None:
        """Join the group; then commit and send heartbeats until an error ends the member's
        generation."""
        await self.find_coordinator()
        await self.join()
        while self.alive:
            await asyncio.sleep(0.1 + self.world.chance.random() * 0.4)
            for partition in self.positions:
                self.positions[partition] += self.world.chance.randrange(1, 20)
            if self.world.chance.random() < 0.6:
                await self.commit()
            if self.world.chance.random() < 0.1:
                # Look up the coordinator again: some members then find a new coordinator before
                # others do.
                await self.find_coordinator()
            error = (await self.ask(lambda groups: groups.heartbeat(GROUP, self.heartbeat()))).error
            if error is not None:
                if error.name == "REBALANCE_IN_PROGRESS" and self.world.chance.random() < 0.8:
                    await self.commit()
                raise error

    def heartbeat(self) -> ev.Heartbeat:
        return ev.Heartbeat(UNNUMBERED, self.member_id, self.instance_id, self.generation)

    async def find_coordinator(self) -> None:
        asked = self.world.any_broker()
        view = asked.groups.coordinator_of(GROUP)
        if view is None:
            raise NetworkError("no broker coordinates the group")
        self.broker = self.world.brokers[view.broker_id]

    async def join(self) -> None:
        number = self.world.next_number()

        def make() -> ev.Join:
            protocols = (ev.Protocol("range", encode_subscription([TOPIC])),)
            new_id = f"{self.name}-{number}"
            return ev.Join(
                UNNUMBERED, self.member_id, self.instance_id, "sim", "/sim", SESSION_MS,
                REBALANCE_MS, "consumer", protocols, new_id, self.world.chance.random() < 0.8,
            )  # fmt: skip

        joined, claim = await self.ask(lambda groups: join(groups, make()), timeout_s=12.0)
        if isinstance(joined.error, MemberIdRequiredError):
            self.member_id = joined.member_id
            return await self.join()
        if joined.error is not None:
            raise joined.error
        self.member_id, self.generation = joined.member_id, joined.generation
        self.incarnation = self.world.incarnation_of(claim)
        parts: tuple[tuple[str, bytes], ...] = ()
        if joined.members and not joined.skip_assignment:
            ids = sorted(row.member_id for row in joined.members)
            parts = tuple(
                (name, bytes(range(n, PARTITIONS, len(ids)))) for n, name in enumerate(ids)
            )
            self.world.assigned((self.incarnation, self.generation), dict(parts))

        sync = ev.SyncGroup(UNNUMBERED, self.member_id, self.instance_id, self.generation, parts)
        synced = await self.ask(lambda groups: groups.sync(GROUP, sync), timeout_s=6.0)
        if synced.error is not None:
            raise synced.error
        asked = self.world.any_broker()
        found = await self.world.call(asked, lambda: asked.registry.groups.fetch(GROUP), 3.0)
        self.positions = {
            partition: found.get(TopicPartition(TOPIC, partition), CommittedOffset(0)).offset
            for partition in synced.assignment
        }
        return None

    def last_words(self) -> None:
        """Send a commit that the coordinator receives only after the member gave up its
        partitions."""
        chance = self.world.chance
        if self.broker is None or not self.positions or chance.random() < 0.5:
            return
        carry_out = self.commit_of_now()

        async def arrive(delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            with suppress(LogbusError):
                await carry_out()

        self.world.loop.create_task(arrive(chance.random() * 5.0), context=OUTSIDE)

    async def commit(self) -> None:
        await self.commit_of_now()()

    def commit_of_now(self) -> Callable[[], Awaitable[None]]:
        """Return a function that commits, whenever it runs, the positions and generation of this
        moment."""
        broker, member, generation = self.broker, self.member_id, self.generation
        assert broker is not None
        when = f"{self.incarnation}/{generation}"
        offsets = {
            TopicPartition(TOPIC, partition): CommittedOffset(offset, metadata=f"{when} {member}")
            for partition, offset in self.positions.items()
        }

        async def commit() -> None:
            claim = await broker.groups.claim_for_commit(
                GROUP, ev.Commit(UNNUMBERED, member, self.instance_id, generation)
            )
            for error in (await broker.registry.groups.commit(GROUP, offsets, claim)).values():
                if error is not None:
                    raise error
            self.world.counts["commits"] += 1

        return lambda: self.world.call(broker, commit, 6.0)

    async def ask(
        self, what: Callable[[GroupCoordinator], Awaitable[T]], timeout_s: float = 3.0
    ) -> T:
        broker = self.broker
        assert broker is not None
        return await self.world.call(broker, lambda: what(broker.groups), timeout_s)

    def kill(self) -> None:
        self.last_words()
        self.alive = False
        self.owner.die()


class World:
    """One simulated run, determined by its seed. ``SETTINGS`` override settings of its brokers."""

    SETTINGS: Mapping[str, int] = {}

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.loop, self.seed = loop, seed
        self.chance = stream(seed, "kafka groups")
        self.service = FairZk(stream(seed, "zookeeper"))
        self.brokers: dict[int, BrokerProcess] = {}
        self.members: list[Member] = []
        self.counts: Counter[str] = Counter()
        self.problems: list[BaseException] = []
        self.slow = 0.0
        self.lossy = 0.0
        self._number = 0
        self._assigned: dict[Generation, dict[str, bytes]] = {}
        self._incarnation = 0
        self._incarnations: dict[str, int] = {}
        """The incarnation of the group to which each coordinator's claim belongs."""
        self._coordinator = NOBODY
        self._offsets: dict[str, CommittedOffset] = {}

    def next_number(self) -> int:
        self._number += 1
        return self._number

    # The methods below check writes.

    def incarnation_of(self, claim: str | None) -> int:
        """Return the number of the group's incarnation that a coordinator owns; ``claim`` is the id
        of its ownership. A group that was deleted and recreated is another incarnation."""
        if claim is None:
            raise NetworkError("the coordinator lost the group while it answered")
        return self._incarnations[claim]

    def assigned(self, generation: Generation, parts: dict[str, bytes]) -> None:
        """Record the group leader's assignment of a generation. If the leader sends an assignment
        for this generation twice, both must be equal.
        """
        known = self._assigned.setdefault(generation, parts)
        if known != parts:
            self.fail(f"generation {generation} is assigned twice: {known}, {parts}")

    def wrote(self, session_id: int, operations: Sequence[Operation]) -> None:
        """Check that one write to ZooKeeper breaks no rule of the group protocol."""
        before = self._coordinator
        for operation in operations:
            path = operation.path
            if isinstance(operation, Delete):
                self._deleted(path)
            if not isinstance(operation, Create | Set):
                continue
            if path == znodes.coordinator_path(GROUP):
                self._claimed(znodes.decode_coordinator(path, operation.data))
            elif path.startswith(znodes.topic_offsets_path(GROUP, TOPIC) + "/"):
                self._committed(path, operation.data, before.generation)

    def _deleted(self, path: str) -> None:
        self._offsets.pop(path, None)
        if path == znodes.coordinator_path(GROUP):
            self.counts["deletions"] += 1
            self._coordinator = NOBODY
            self._incarnation += 1

    def _claimed(self, now: znodes.CoordinatorZnode) -> None:
        before, self._coordinator = self._coordinator, now
        self._incarnations[now.claim] = self._incarnation
        same = now.epoch == before.epoch and now.broker_epoch == before.broker_epoch
        if now.generation not in (before.generation, before.generation + same):
            self.fail(f"{before} was followed by {now}")
        if not same and now.epoch != before.epoch + 1:
            self.fail(f"{before} was followed by {now}")
        self.counts["generations" if same else "claims"] += 1

    def _committed(self, path: str, data: bytes, generation: int) -> None:
        """Check that an owner of the partition in ``generation`` wrote the offset, and that no
        offset goes back."""
        offset, before = znodes.decode_offset(path, data), self._offsets.get(path)
        self._offsets[path] = offset
        partition = int(path.rpartition("/")[2])
        word, _, member = offset.metadata.partition(" ")
        present = self._incarnation, generation
        if word != f"{self._incarnation}/{generation}":
            self.fail(f"{offset} is written in generation {present}")
        owners = [
            name for name, part in self._assigned.get(present, {}).items() if partition in part
        ]
        if member not in owners and not _is_again(member, owners):
            self.fail(f"{partition}: {offset} is written in generation {present} of {owners}")
        if before is not None and before.offset > offset.offset:
            self.fail(f"{partition} went back from {before} to {offset}")

    def fail(self, message: str) -> None:
        violation = Violation(f"at {self.loop.now:.3f} s: {message}")
        self.problems.append(violation)
        raise violation

    # The methods below run faults and clients.

    def any_broker(self) -> BrokerProcess:
        living = [broker for broker in self.brokers.values() if broker.serves]
        if not living:
            raise NetworkError("no broker runs")
        return self.chance.choice(living)

    async def call(
        self, broker: BrokerProcess, what: Callable[[], Awaitable[T]], timeout_s: float
    ) -> T:
        """Send a request that may be delayed, or lost with its connection."""
        await self._travel()
        if not broker.serves or self.chance.random() < self.lossy:
            raise NetworkError("refused")

        async def answer() -> Any:
            try:
                return await what()
            except LogbusError as error:
                return error

        task = broker.spawn(answer())
        await asyncio.wait(
            (task, broker.gone), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        await self._travel()
        if not task.done() or self.chance.random() < self.lossy:
            raise NetworkError("no answer")
        result = task.result()
        if isinstance(result, LogbusError):
            raise result
        return result  # type: ignore[no-any-return]

    async def _travel(self) -> None:
        chance = self.chance
        await asyncio.sleep(chance.random() * (0.005 if chance.random() > self.slow else 3.0))

    def join(self) -> None:
        instance = None
        if self.chance.random() < 0.3:
            instance = f"static{self.chance.randrange(3)}"
        name = f"{instance}/" if instance else f"m{self.next_number()}"
        self.members.append(self.new_member(name, instance))
        self.counts["joins"] += 1

    def new_member(self, name: str, instance: str | None) -> Member:
        return Member(self, name, instance)

    @property
    def living(self) -> list[Member]:
        return [member for member in self.members if member.alive]

    def restart(self, old: BrokerProcess) -> None:
        old.kill()
        if self.brokers[old.broker_id] is old:
            self.brokers[old.broker_id] = BrokerProcess(self, old.broker_id, old.start_counter + 1)

    async def start(self) -> None:
        self.service.on_write = self.wrote
        for broker_id in range(1, BROKERS + 1):
            self.brokers[broker_id] = BrokerProcess(self, broker_id, 1)
        made = False
        while not made:
            await asyncio.sleep(0.1)
            for broker in self.brokers.values():
                if broker.serves and broker.registry.is_controller:
                    topic = NewTopic(TOPIC, PARTITIONS, 1)
                    (result,) = await broker.registry.administration.create_topics([topic])
                    made = result.error is None or isinstance(result.error, TopicExistsError)
        for _ in range(self.chance.randrange(1, 5)):
            self.join()

    async def chaos(self) -> None:
        end, chance = self.loop.time() + CHAOS_S, self.chance
        if chance.random() < 0.5:
            self.service.lost_reply_rate = chance.random() * 0.05
            self.service.lost_request_rate = chance.random() * 0.05
        self.slow, self.lossy = chance.choice((0.0, 0.02, 0.1)), chance.choice((0.0, 0.02, 0.1))
        while self.loop.time() < end:
            await asyncio.sleep(chance.expovariate(1.0))
            dice = chance.random()
            if chance.random() < DELETIONS:
                self.loop.create_task(self.delete(), context=OUTSIDE)
            if dice < 0.5:
                self.trouble_members(dice * 2)
            else:
                self.trouble_brokers(dice * 2 - 1)

    def trouble_members(self, dice: float) -> None:
        living = self.living
        if dice < 0.4 or not living:
            if len(living) < MEMBERS_MAX:
                self.join()
            return
        member = self.chance.choice(living)
        if dice < 0.55:
            self.counts["leaves"] += 1
            member.alive = False
        elif dice < 0.75:
            self.counts["kills"] += 1
            member.kill()
        else:
            self.counts["stops"] += 1
            member.owner.pause()
            self.later(self.chance.random() * 6.0, lambda: member.owner.resume(self.loop))

    async def delete(self) -> None:
        """Try to delete the group several times.

        The coordinator refuses while the group has members, even if they joined at a former
        coordinator.
        """
        for _ in range(self.chance.randrange(1, 15)):
            await asyncio.sleep(self.chance.random() * 0.4)
            with suppress(LogbusError):
                asked = self.any_broker().groups.coordinator_of(GROUP)
                if asked is not None:
                    parts: Any = self.brokers[asked.broker_id]
                    await self.call(parts, partial(delete_groups.delete, parts, OPEN, GROUP), 6.0)

    def trouble_brokers(self, dice: float) -> None:
        broker = self.chance.choice(list(self.brokers.values()))
        if dice < 0.25:
            self.counts["broker kills"] += 1
            broker.kill()
            self.later(0.1 + self.chance.random() * 8.0, lambda: self.restart(broker))
        elif dice < 0.4:
            self.counts["broker stops"] += 1
            broker.owner.pause()
            broker.zk.pause()
            self.later(self.chance.random() * 8.0, lambda: self.go_on(broker))
        elif dice < 0.6:
            self.counts["cuts"] += 1
            broker.zk.cut()
            self.later(self.chance.random() * 6.0, broker.zk.heal)
        elif dice < 0.75 and broker.zk.connected and not broker.owner.paused:
            self.counts["expiries"] += 1
            broker.zk.expire()
        elif dice < 0.9:
            broker.zk.lag_s = self.chance.choice((0.0, 0.5, 2.0))
        elif self.service.running:
            self.counts["outages"] += 1
            self.service.stop()
            self.later(self.chance.random() * 5.0, self.service.start)

    def later(self, delay_s: float, function: Any) -> None:
        self.loop.call_later(delay_s, function, context=OUTSIDE)

    def go_on(self, broker: BrokerProcess) -> None:
        if not broker.owner.dead:
            broker.zk.resume()
            broker.owner.resume(self.loop)

    # The methods below check the group after the faults.

    async def settle(self) -> None:
        await asyncio.sleep(10.0)
        self.service.lost_reply_rate = self.service.lost_request_rate = 0.0
        self.slow = self.lossy = 0.0
        for broker in self.brokers.values():
            broker.zk.lag_s = 0.0
        # Leave only the newest process of each static member.
        names: set[str] = set()
        for member in reversed(self.living):  # The newest process has fenced the others.
            if member.instance_id in names:
                member.kill()
            elif member.instance_id is not None:
                names.add(member.instance_id)
        if not self.living:
            self.join()
        await asyncio.sleep(SETTLE_S)
        await self.check_progress()

    async def check_progress(self) -> None:
        """Check that members own every partition, and that all committed offsets advance."""
        self.check_settled()
        before = {path: offset.offset for path, offset in self._offsets.items()}
        await asyncio.sleep(QUIET_S)
        self.check_settled()
        for path, offset in self._offsets.items():
            if offset.offset <= before.get(path, -1):
                raise Violation(f"the committed offset of {path} no longer advances")
        if len(self._offsets) != PARTITIONS:
            raise Violation(f"only {sorted(self._offsets)} have committed offsets")

    def check_settled(self) -> None:
        owned = sorted(partition for member in self.living for partition in member.positions)
        if owned != list(range(PARTITIONS)):
            rows = {row.name: (row.generation, sorted(row.positions)) for row in self.living}
            raise Violation(f"members own the partitions {owned}: {rows}, {self._coordinator}")


async def join(groups: GroupCoordinator, request: ev.Join) -> tuple[JoinResult, str | None]:
    """Join the group; return the result and the name of the coordinator's claim (its ownership of
    the group).

    The name is None if the coordinator lost the group meanwhile.
    """
    result = await groups.join(GROUP, request)
    held = groups._groups.get(GROUP)
    return result, None if held is None else held.claim.value.claim


def _is_again(member: str, owners: list[str]) -> bool:
    """Return whether ``owners`` has the static member ``member``, perhaps with another member
    id."""
    name, is_static, _ = member.partition("/")
    return bool(is_static) and any(owner.startswith(f"{name}/") for owner in owners)


def run(seed: int) -> Counter[str]:
    """Run the simulation with one seed; return how often each event occurred.

    Raises Violation with the seed in its message.
    """
    return play(World, seed)


if __name__ == "__main__":
    main("Kafka groups", run)
