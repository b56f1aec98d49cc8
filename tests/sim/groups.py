"""Simulate ZooKeeper-based groups: production members under random faults.

Consumers (module ``native_readers``) join, leave, are killed, stopped and cut off, lose their
sessions, are slow and receive watch events late. Topics grow, are deleted and recreated, and an
administrator resets offsets. Every write is checked as it happens: only a partition's owner writes
its offset, and only a reset moves the offset back. Only the owner may return records. After all
faults are healed, each partition has the owner that the range algorithm assigns, and within it the
assigned stream (one of the owner's readers), and consumption continues. The command
``python -m sim.groups --seeds 1000`` runs many seeds.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

from sim.native_readers import GROUP, Reader
from sim.scheduler import OUTSIDE, SimLoop, stream
from sim.seeded import Violation, main, play
from sim.zk import ZkService

from broker_lite.metadata import znodes
from broker_lite.metadata.store import Create, Delete, Operation, Set
from broker_lite.metadata.znodes import Assignment, NativeSubscription
from broker_lite.model import CommittedOffset, TopicPartition
from broker_lite.native.assignment import assign, covers
from broker_lite.native.machine import MEMBER

SESSION_S = 3.0
CHAOS_S = 40.0
SETTLE_S = 12.0
QUIET_S = 4.0
REQUESTS_PER_S_MAX = 3
"""Maximum requests per second of an idle member to ZooKeeper, except commits.

The member sends two heartbeats per second, and sometimes reads the whole group.
"""
TOPICS = ("alpha", "beta", "beta-two")


class FairZk(ZkService):
    """A ZooKeeper that expires a session only after the whole timeout passes without a heartbeat.

    The members' leases depend on this rule.
    """

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng, session_timeout_s=SESSION_S)
        self._silences: Counter[int] = Counter()

    def watch_silence(self, session: Any) -> None:
        self._silences[session.session_id] += 1
        number = self._silences[session.session_id]

        def expire() -> None:
            is_silent = not session.connected or session.client.is_paused
            is_same = self._silences[session.session_id] == number
            if self.running and session.alive and is_silent and is_same:
                self.end_session(session)

        self.loop.call_later(self.session_timeout_s, expire, context=OUTSIDE)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()


class World:
    """One simulated run, determined by its seed."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.loop = loop
        self.chance = stream(seed, "groups")
        self.service = FairZk(stream(seed, "zookeeper"))
        self.admin = self.service.open_session(self.service.client(OUTSIDE))
        self.readers: list[Reader] = []
        self.counts: Counter[str] = Counter()
        self.requests = 0
        self.is_calm = False
        """Whether the faults are over. The group then settles, and no reader is slow."""
        self.problems: list[BaseException] = []
        self.topics: dict[str, Assignment] = {}
        self._offsets: dict[str, CommittedOffset] = {}
        self._number = 0
        self._topic_number = 0

    # The methods below check writes and reads.

    def wrote(self, session_id: int, operations: Sequence[Operation]) -> None:
        """Check the offsets in one write to ZooKeeper: the writer owns the partition, and no offset
        goes back."""
        self.count_claims(operations)
        deleted = {each.path for each in operations if isinstance(each, Delete)}
        for operation in operations:
            _, _, kind, *rest = f"{operation.path}/".split("/")[1:] + [""] * 3
            if kind == "offsets" and rest[0] and not rest[1]:
                self.met(rest[0], operation)
            if kind != "offsets" or len(rest) < 3 or not rest[1] or isinstance(operation, Delete):
                continue
            assert isinstance(operation, Create | Set)
            tp = TopicPartition(rest[0], int(rest[1]))
            offset = znodes.decode_offset(operation.path, operation.data)
            before = self._offsets.get(operation.path)
            self._offsets[operation.path] = offset
            if session_id == self.admin.session_id:
                continue
            owner_path = znodes.owner_path(GROUP, *tp)
            owner = self.service.peek(owner_path)
            if owner_path not in deleted and (owner is None or owner.session_id != session_id):
                raise Violation(f"{tp} was written by {session_id}, its owner is {owner}")
            if before and before.topic_id == offset.topic_id and offset.offset < before.offset:
                raise Violation(f"{tp} went back from {before.offset} to {offset.offset}")
            self.counts["commits"] += before is None or before.offset < offset.offset

    def met(self, topic: str, operation: Operation) -> None:
        """Check that the group reads a topic from its beginning if the topic was created after a
        member joined.

        This holds for every value of the member's option ``start``.
        """
        assigned = self.service.peek(znodes.topic_path(topic))
        if not isinstance(operation, Create | Set) or not operation.data or assigned is None:
            return
        first = znodes.decode_first_read(operation.path, operation.data)
        if self.topics[topic].topic_id != first.topic_id or not first.partition_count:
            return
        for name in self.service.peek_children(znodes.consumers_path(GROUP)):
            path = znodes.consumer_path(GROUP, name)
            member = self.service.peek(path)
            assert member is not None
            if member.created_zxid < assigned.created_zxid and covers(
                znodes.decode_subscription(path, member.data), topic
            ):
                self.fail(f"{topic} came after {name}, and is read from its end")

    def count_claims(self, operations: Sequence[Operation]) -> None:
        owners = f"{znodes.owners_path(GROUP)}/"
        for each in operations:
            is_claim = isinstance(each, Create) and each.ephemeral and each.path.startswith(owners)
            self.counts["claims"] += is_claim

    def handed_out(self, reader: Reader, tp: TopicPartition) -> None:
        self.counts["handed out"] += 1
        owner = self.service.peek(znodes.owner_path(GROUP, *tp))
        if owner is not None and owner.session_id == reader.zk.session_id:
            return
        # A reader learns late that its session expired, so allow it SESSION_S seconds.
        if self.loop.time() - reader.expired_at > SESSION_S:
            self.fail(f"{tp} was handed out by {reader.name}; its owner is {owner}")

    def fail(self, message: str) -> NoReturn:
        """Store a Violation and raise it. The run fails with the first stored Violation, even if a
        task hides the raised one.
        """
        violation = Violation(f"at {self.loop.now:.3f} s: {message}")
        self.problems.append(violation)
        raise violation

    # The methods below run faults and clients.

    def administrate(self, operations: Sequence[Operation]) -> None:
        """Write to ZooKeeper as an administrator, in a session that no fault hits."""
        refused = self.service.write(self.admin, operations)
        assert refused is None, refused

    @property
    def living(self) -> list[Reader]:
        return [reader for reader in self.readers if reader.alive]

    def join(self) -> None:
        self._number += 1
        streams = self.chance.choice((1, 1, 1, 2, 3))
        subscription = self.chance.choice(
            (
                NativeSubscription(("alpha",), None, streams),
                NativeSubscription(("alpha", "beta"), None, streams),
                NativeSubscription((), "beta.*", streams),
                NativeSubscription(TOPICS, None, streams),
            )
        )
        name = f"c{self.chance.randrange(1000):03}-{self._number}"
        self.readers.append(Reader(self, name, subscription))
        self.counts["joins"] += 1

    def set_topic(self, topic: str, count: int, *, is_new: bool = False) -> None:
        known = self.topics.get(topic)
        if known is None or is_new:
            self._topic_number += 1
            known = Assignment(f"id{self._topic_number}", ())
        value = known._replace(replicas=((1,),) * max(count, len(known.replicas)))
        path, data = znodes.topic_path(topic), znodes.encode_assignment(value)
        if topic in self.topics:
            self.administrate([Set(path, data)])
        else:
            self.administrate([Create(path, data)])
        self.topics[topic] = value

    def delete_topic(self, topic: str) -> None:
        if self.topics.pop(topic, None) is not None:
            self.administrate([Delete(znodes.topic_path(topic))])

    def reset(self) -> None:
        """Reset an offset while the group has members."""
        path = self.chance.choice(sorted(self._offsets))
        znode = self.service.peek(path)
        if znode is not None:
            offset = znodes.decode_offset(path, znode.data)
            data = znodes.encode_offset(offset._replace(offset=self.chance.randrange(500)))
            self.administrate([Set(path, data, znode.version)])

    async def start(self) -> None:
        self.service.on_write = self.wrote
        count_requests(self)
        for path in znodes.PERSISTENT_PATHS:
            self.administrate([Create(path)])
        for topic in TOPICS[: self.chance.randrange(1, 4)]:
            self.set_topic(topic, self.chance.randrange(1, 10))
        for _ in range(self.chance.randrange(1, 6)):
            self.join()

    async def chaos(self) -> None:
        end = self.loop.time() + CHAOS_S
        chance = self.chance
        if chance.random() < 0.5:
            self.service.lost_reply_rate = chance.random() * 0.05
            self.service.lost_request_rate = chance.random() * 0.05
        while self.loop.time() < end:
            await asyncio.sleep(chance.expovariate(1.5))
            await self.fault(chance.random())

    async def fault(self, dice: float) -> None:
        chance, living = self.chance, self.living
        reader = chance.choice(living) if living else None
        if dice < 0.2 and len(living) < 8:
            self.join()
        elif dice < 0.27 and reader is not None and not reader.owner.paused:
            self.counts["leaves"] += 1
            reader.spawn(reader.leave())
        elif dice < 0.37 and reader is not None:
            self.counts["kills"] += 1
            reader.kill()
        elif dice < 0.47 and reader is not None:
            self.counts["stops"] += 1
            reader.owner.pause()
            reader.zk.pause()
            self.later(chance.random() * 2 * SESSION_S, lambda: self.go_on(reader))
        elif dice < 0.59 and reader is not None:
            self.counts["cuts"] += 1
            reader.zk.cut()
            self.later(chance.random() * 1.5 * SESSION_S, reader.zk.heal)
        elif dice < 0.64 and reader is not None and reader.zk.connected:
            self.counts["expiries"] += 1
            reader.expired_at = self.loop.time()
            reader.zk.expire()
        elif dice < 0.72 and reader is not None:
            reader.zk.lag_s = chance.choice((0.0, 0.05, 0.5, 2.0))
        elif dice < 0.75 and self.service.running:
            self.counts["outages"] += 1
            self.service.stop()
            self.later(chance.random() * 2 * SESSION_S, self.service.start)
        elif self.service.running:
            self.administer(chance.random())

    def administer(self, dice: float) -> None:
        topic = self.chance.choice(TOPICS)
        if dice < 0.4:
            self.counts["grown"] += 1
            self.set_topic(topic, self.chance.randrange(1, 12))
        elif dice < 0.6:
            self.counts["deleted"] += 1
            self.delete_topic(topic)
        elif dice < 0.75:
            # Recreate the topic before any member can see the deletion.
            self.delete_topic(topic)
            self.set_topic(topic, self.chance.randrange(1, 8))
        elif self._offsets:
            self.counts["resets"] += 1
            self.reset()

    def later(self, delay_s: float, function: Any) -> None:
        self.loop.call_later(delay_s, function, context=OUTSIDE)

    def go_on(self, reader: Reader) -> None:
        if reader.alive:
            reader.zk.resume()
            reader.owner.resume(self.loop)

    # The methods below check the group after the faults.

    async def settle(self) -> None:
        await asyncio.sleep(2 * SESSION_S)
        self.is_calm = True
        self.service.lost_reply_rate = self.service.lost_request_rate = 0.0
        for reader in self.readers:
            reader.zk.lag_s = 0.0
        if not self.living:
            self.join()
        if not self.topics:
            self.set_topic("alpha", 3)
        await asyncio.sleep(SETTLE_S)
        self.check_settled()
        before = {path: offset.offset for path, offset in self._offsets.items()}
        requests = self.requests
        await asyncio.sleep(QUIET_S)
        self.check_settled()
        each = (self.requests - requests) / QUIET_S / len(self.living)
        if each > REQUESTS_PER_S_MAX:
            raise Violation(f"{each:.1f} requests a second from each idle member")
        for tp in self.expected():
            path = znodes.offset_path(GROUP, *tp)
            if self._offsets[path].offset <= before[path]:
                raise Violation(
                    f"the committed offset of {tp} no longer advances: {self._offsets[path]}"
                )

    def expected(self) -> dict[TopicPartition, znodes.OwnerZnode]:
        subscriptions = {reader.name: reader.subscription for reader in self.living}
        return assign(subscriptions, {t: len(row.replicas) for t, row in self.topics.items()})

    def check_settled(self) -> None:
        for reader in self.living:
            if reader.refused is not None:
                raise Violation(f"{reader.name} was refused: {reader.refused}")
            machine = reader.member.machine
            if machine.phase != MEMBER or not machine.ownership.is_settled:
                raise Violation(f"{reader.name} is not settled: {machine.phase}")
        expected = self.expected()
        for tp, owner in expected.items():
            path = znodes.owner_path(GROUP, *tp)
            znode = self.service.peek(path)
            if znode is None or znodes.decode_owner(path, znode.data) != owner:
                raise Violation(f"{tp} should be owned by {owner}; its znode is {znode}")
        for topic in TOPICS:
            for name in self.service.peek_children(znodes.topic_owners_path(GROUP, topic)):
                if TopicPartition(topic, int(name)) not in expected:
                    raise Violation(f"{topic}-{name} has an owner and should have none")
        for reader in self.living:
            mine = {w: row.stream for w, row in expected.items() if row.consumer == reader.name}
            if reader.positions() != mine:
                raise Violation(f"{reader.name} reads {reader.positions()}, owns {mine}")
            assert all(covers(reader.subscription, tp.topic) for tp in mine)


def count_requests(world: World) -> None:
    """Count the requests that members send to ZooKeeper, except commits."""
    service = world.service
    for name in ("get", "children", "sync", "write"):
        original = getattr(service, name)

        def counted(*values: Any, _original: Any = original) -> Any:
            world.requests += not is_commit(values[-1])
            return _original(*values)

        setattr(service, name, counted)


def is_commit(asked: object) -> bool:
    """Return whether the operations of a write to ZooKeeper only set offsets."""
    return isinstance(asked, tuple) and not any(isinstance(each, Create | Delete) for each in asked)


def run(seed: int) -> Counter[str]:
    """Run the simulation with one seed; return how often each event occurred.

    Raises Violation with the seed in its message.
    """
    return play(World, seed)


if __name__ == "__main__":
    main("native groups", run)
