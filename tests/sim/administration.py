"""An administrator that reassigns partitions, adds partitions and elects leaders under faults.

``Administrator`` records which replicas each partition may have at the end of the run: the target
of the last accepted reassignment, or of a request whose outcome is unknown. A refused request must
change nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import permutations

from sim.checker import Violation
from sim.cluster import SimCluster, pick
from sim.history import History
from sim.process import Process
from sim.workload import Client

from broker_lite.errors import (
    ElectionNotNeededError,
    InvalidReplicaAssignmentError,
    LogbusError,
    NotControllerError,
)
from broker_lite.metadata import znodes
from broker_lite.model import PartitionKey, TopicPartition

PARTITIONS_MAX = 4
NO_SUCH_BROKER = 99
Brokers = tuple[int, ...]
Outcomes = dict[TopicPartition, LogbusError | None]


class Administrator(Client):
    """A client that sends administration requests for ``topic`` and for ``others``.

    ``on_added`` is called with each partition that was added to ``topic``. ``others`` are topics
    that the workload creates and deletes; the administrator reassigns their partitions too.
    """

    def __init__(
        self,
        cluster: SimCluster,
        history: History,
        topic: str,
        keys: Sequence[PartitionKey],
        others: Sequence[str],
        on_added: Callable[[PartitionKey], None],
    ) -> None:
        super().__init__(cluster, history, "administrator")
        self.topic = topic
        self.others = others
        self.keys = list(keys)
        self.on_added = on_added
        self._ever: dict[int, set[Brokers]] = {}
        """Every requested replica set by partition, beginning with the first assignment."""
        self._certain: dict[int, set[Brokers]] = {}
        """The replica sets that each partition may have at the end."""
        self._unsure: dict[int, list[Brokers]] = {}
        """Replica sets of requests with unknown outcome. The controller may receive such a request
        late, when a link heals."""
        self._may_go_back: set[int] = set()
        """Partitions for which a cancellation may arrive late."""
        self._was_sent_on = False
        """Whether a broker refused the last request, which was then sent to the controller."""
        self._requests = asyncio.Lock()
        for key in keys:
            self._note_made(key.partition)

    def _note_made(self, partition: int) -> None:
        first = assignment(self.cluster, self.topic).replicas[partition]
        self._ever[partition], self._certain[partition] = {first}, {first}
        self._unsure[partition] = []

    async def run(self) -> None:
        """Send requests until the task is cancelled."""
        while True:
            await self.pause(self.cluster.options.administrator_pause_s)
            kind = pick(self.rng, (self._move, self._cancel, self._cancel, self._prefer, self._add))
            async with self._requests:
                await kind()

    async def stop(self) -> None:
        """Make ``run`` send no further request; wait until its present request is answered."""
        await self._requests.acquire()

    # The methods below send requests.

    async def _ask(self, function: Callable[[Process], Awaitable[Outcomes]]) -> Outcomes | None:
        """Send a request to the controller; return the response, or None if the outcome is unknown.

        Even NOT_CONTROLLER leaves the outcome unknown: a controller may be deposed half way through
        the request.
        """
        broker_id = pick(self.rng, list(self.cluster.disks))
        self._was_sent_on = False
        for _ in range(3):
            try:
                return await self.call(broker_id, function)
            except NotControllerError:
                process = self.cluster.serving(broker_id)
                controller = -1 if process is None else process.registry.snapshot.controller_id
                if controller < 0 or controller == broker_id:
                    return None
                broker_id = controller
                self._was_sent_on = True
            except LogbusError as error:
                self.cluster.trace(self.name, "failed", type(error).__name__)
                return None
        return None

    def _target(self) -> Brokers:
        brokers = list(self.cluster.disks)
        least = min(2, self.cluster.options.replication_factor)
        return tuple(self.rng.sample(brokers, self.rng.randint(least, min(len(brokers), 3))))

    async def _move(self) -> None:
        chance = self.rng.random()
        if chance < 0.2:
            await (self._move_others() if chance < 0.15 else self._move_nowhere())
            return
        targets = {n: self._target() for n in self._ever if self.rng.random() < 0.6}
        await self._reassign(targets)

    async def _reassign(self, targets: dict[int, Brokers]) -> bool:
        if not targets:
            return True
        for partition, target in targets.items():
            self._ever[partition].add(target)
            self._unsure[partition].append(target)
        wanted = {TopicPartition(self.topic, n): target for n, target in targets.items()}
        self.cluster.trace(self.name, "moves", *[f"{n}:{t}" for n, t in targets.items()])
        outcomes = await self._ask(lambda process: process.registry.administration.reassign(wanted))
        if outcomes is None:
            return False
        for (_, partition), error in outcomes.items():
            self._unsure[partition].remove(targets[partition])
            self.cluster.count("moves" if error is None else "moves refused")
            if error is None:
                self._certain[partition] = {targets[partition]}
            elif not isinstance(error, InvalidReplicaAssignmentError):
                raise Violation(f"{self.name}: {error}")
        return not any(outcomes.values())

    async def _move_nowhere(self) -> None:
        """Reassign a partition to a broker that does not exist; check that the controller
        refuses."""
        wanted = {TopicPartition(self.topic, 0): (1, NO_SUCH_BROKER)}
        outcomes = await self._ask(lambda process: process.registry.administration.reassign(wanted))
        if outcomes is not None and not all(outcomes.values()):
            raise Violation(f"{self.name}: a move to broker {NO_SUCH_BROKER} was accepted")

    async def _move_others(self) -> None:
        """Reassign a partition of the topics ``others``, which may be deleted or recreated
        meanwhile."""
        wanted = {TopicPartition(pick(self.rng, self.others), 0): self._target()}
        await self._ask(lambda process: process.registry.administration.reassign(wanted))

    async def _cancel(self) -> None:
        """Start a reassignment and soon cancel it; the reassignment may already be complete."""
        partition = pick(self.rng, list(self._ever))
        await self._reassign({partition: self._target()})
        await self.pause(0.1)
        wanted = {TopicPartition(self.topic, partition): None}
        certain, self._certain[partition] = self._certain[partition], self._ever[partition]
        was_sure, self._may_go_back = self._may_go_back, self._may_go_back | {partition}
        outcomes = await self._ask(lambda process: process.registry.administration.reassign(wanted))
        if outcomes is not None and not self._was_sent_on:
            self._may_go_back = was_sure
            if any(outcomes.values()):
                self._certain[partition] = certain
            else:
                self.cluster.count("moves taken back")

    async def _prefer(self) -> None:
        wanted = [TopicPartition(self.topic, pick(self.rng, list(self._ever)))]
        outcomes = await self._ask(
            lambda process: process.registry.administration.elect_leaders(wanted)
        )
        if outcomes is not None and not any(outcomes.values()):
            self.cluster.count("preferred leaders elected")

    async def _add(self) -> None:
        count = len(self.keys) + 1
        if count > PARTITIONS_MAX:
            return

        async def add(process: Process) -> Outcomes:
            result = await process.registry.administration.create_partitions(self.topic, count)
            if result.error is not None:
                raise result.error
            return {}

        await self._ask(add)
        self.look()

    def look(self) -> None:
        """Record the partitions that the administrator's requests have added so far."""
        for partition in range(len(self.keys), len(assignment(self.cluster, self.topic).replicas)):
            key = PartitionKey(self.keys[0].topic_id, partition)
            self.keys.append(key)
            self._note_made(partition)
            self.cluster.count("partitions added")
            self.on_added(key)

    # The methods below run at the end of a seed, without faults.

    def check_places(self, keys: Sequence[PartitionKey]) -> None:
        """Check that the replicas of every partition are those of its last accepted
        reassignment."""
        found = assignment(self.cluster, self.topic)
        for partition in [key.partition for key in keys]:
            allowed = self._certain[partition].union(self._unsure[partition])
            # A cancelled reassignment restores the earlier replicas, in any order.
            is_free = partition in self._may_go_back or allowed >= self._ever[partition]
            if is_free:
                allowed = {row for one in self._ever[partition] for row in permutations(one)}
            if found.replicas[partition] not in allowed:
                raise Violation(
                    f"partition {partition} is on {found.replicas[partition]}; it should be on "
                    f"{' or '.join(map(str, sorted(allowed)))}"
                )

    async def finish(
        self, keys: Sequence[PartitionKey], settled: Callable[[], Awaitable[None]]
    ) -> None:
        """Reassign every partition after the last fault; check replicas and preferred leader."""
        await self.place(keys, {key.partition: self._target() for key in keys}, settled)

    async def place(
        self,
        keys: Sequence[PartitionKey],
        targets: dict[int, Brokers],
        settled: Callable[[], Awaitable[None]],
    ) -> None:
        """Reassign partitions to ``targets``; make the first replica of each the leader."""
        while not await self._reassign(targets):
            await self.pause()
        await settled()
        replicas = assignment(self.cluster, self.topic).replicas
        found = {partition: replicas[partition] for partition in targets}
        if found != targets:
            raise Violation(f"partitions should be on {targets} and are on {found}")
        wanted = [TopicPartition(self.topic, partition) for partition in targets]
        while not _is_done(
            await self._ask(lambda process: process.registry.administration.elect_leaders(wanted))
        ):
            await self.pause()
        await settled()
        for key in keys:
            state = self.cluster.checker.state(key)
            assert state is not None
            if state.leader != targets[key.partition][0]:
                raise Violation(f"{key}: the preferred leader of {targets} does not lead: {state}")


def _is_done(outcomes: Outcomes | None) -> bool:
    return outcomes is not None and all(
        error is None or isinstance(error, ElectionNotNeededError) for error in outcomes.values()
    )


def assignment(cluster: SimCluster, topic: str) -> znodes.Assignment:
    """Return the replicas of each partition, as ZooKeeper stores them."""
    path = znodes.topic_path(topic)
    znode = cluster.zk.peek(path)
    assert znode is not None
    return znodes.decode_assignment(path, znode.data)
