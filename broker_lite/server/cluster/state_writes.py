"""Write partition states (leader and ISR) to ZooKeeper, for the partitions that this broker leads.

One ZooKeeper transaction writes many states, and a notice that tells other brokers of the change.
The transaction fails if one of these has changed since this broker read it:

- the state of one of the partitions;
- /controller_epoch, because a controller elected meanwhile may not have read these states;
- the list of change notices, because a topic may have been deleted and created anew.

Writes that are unfinished when the ZooKeeper session ends are dropped."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from broker_lite.errors import CoordinationUnavailableError
from broker_lite.metadata import loader, znodes
from broker_lite.metadata.notices import Notices, announce, merge, states_changed
from broker_lite.metadata.store import (
    RETRY_S,
    Check,
    MetadataStore,
    Operation,
    Refused,
    write_surely,
)
from broker_lite.model import (
    BrokerView,
    LeaderAndIsr,
    PartitionKey,
    ReplicaId,
    StateChange,
    TopicPartition,
    TopicView,
)
from broker_lite.replication.cluster_metadata import as_written
from broker_lite.replication.controller_effects import STATES_PER_WRITE_MAX
from broker_lite.replication.election import withdrawn
from broker_lite.server.cluster.controller_writes import set_state

_log = logging.getLogger(__name__)

WITHDRAWALS_MAX = 20
"""Maximum number of attempts of ``withdraw`` while writes of other brokers conflict with it."""


class _SessionEnded(Exception):
    """The ZooKeeper session ended during a write."""


class StateWrites:
    """Writes states (leader and ISR) of partitions for one broker.

    ``wait_connected`` returns when ZooKeeper is connected. ``snapshot`` returns the topics that the
    broker read last, ``live`` the registered brokers that are not suspected to be dead."""

    def __init__(
        self,
        store: MetadataStore,
        broker_id: int,
        *,
        wait_connected: Callable[[], Awaitable[None]],
        snapshot: Callable[[], loader.TopicsSnapshot],
        live: Callable[[], Mapping[int, BrokerView]],
    ) -> None:
        self._store = store
        self._broker_id = broker_id
        self._wait_connected = wait_connected
        self._topics_snapshot = snapshot
        self._live = live
        self._one_at_a_time = asyncio.Lock()

    async def write(self, changes: Sequence[StateChange]) -> list[LeaderAndIsr | None]:
        """Write partition states. Return each written state, in order; None for a refused one."""
        return await self._write(changes, self._topics_snapshot, self._live())

    async def _write(
        self,
        changes: Sequence[StateChange],
        snapshot: Callable[[], loader.TopicsSnapshot],
        live: Mapping[int, BrokerView],
    ) -> list[LeaderAndIsr | None]:
        session_id = self._store.session_id
        outcomes: list[LeaderAndIsr | None] = [None] * len(changes)
        topics = snapshot().topics
        left = {
            at: change for at, change in enumerate(changes) if _may_be_written(change, topics, live)
        }
        async with self._one_at_a_time:
            try:
                while left:
                    some = dict(list(left.items())[:STATES_PER_WRITE_MAX])
                    for at in await self._write_some(some, snapshot, session_id):
                        state = left[at].state
                        outcomes[at] = dataclasses.replace(state, version=state.version + 1)
                    for at in some:
                        del left[at]
            except _SessionEnded:
                _log.info(
                    "the ZooKeeper session ended; %d changes of partition states were not written",
                    len(left),
                )
        return outcomes

    async def _write_some(
        self,
        changes: dict[int, StateChange],
        snapshot: Callable[[], loader.TopicsSnapshot],
        session_id: int,
    ) -> list[int]:
        """Write partition states in one ZooKeeper transaction. Return the keys of the ``changes``
        that were written.

        A change that conflicts with another broker's write is dropped, and the others are tried
        again. Raises _SessionEnded."""
        left = dict(changes)

        async def reconnected() -> None:
            await self._reconnected(session_id)

        while left:
            try:
                notices, epoch = await asyncio.gather(
                    loader.load_notices(self._store), self._store.get(znodes.CONTROLLER_EPOCH)
                )
                left = await self._still_valid(left, snapshot(), notices)
            except CoordinationUnavailableError:
                await reconnected()
                continue
            if not left or epoch is None:
                break
            rows = list(left.items())
            content = states_changed(as_written(change for _, change in rows))
            operations: list[Operation] = [
                Check(znodes.CONTROLLER_EPOCH, epoch.version),
                *(set_state(change) for _, change in rows),
                announce(notices, content).write,
            ]
            refused = await write_surely(self._store, operations, reconnected)
            if refused is None:
                return list(left)
            self._drop_refused(left, rows, refused)
        return []

    def _drop_refused(
        self, left: dict[int, StateChange], rows: list[tuple[int, StateChange]], refused: Refused
    ) -> None:
        """Remove from ``left`` the one change of ``rows`` that made ZooKeeper refuse the write.

        If the controller epoch or the list of change notices had changed instead, remove nothing:
        the caller tries all changes again."""
        at = refused.position - 1
        if 0 <= at < len(rows):
            number, change = rows[at]
            _log.info(
                "another broker changed the state of %s; this broker drops its own change",
                TopicPartition(change.topic, change.partition),
            )
            del left[number]

    async def _still_valid(
        self, changes: dict[int, StateChange], snapshot: loader.TopicsSnapshot, notices: Notices
    ) -> dict[int, StateChange]:
        """Return the changes that still apply to the topics in ZooKeeper.

        Changes of topics that were deleted or created anew are left out. So are those that add a
        replica to an ISR although the partition has moved to other brokers: the replica's log may
        be deleted."""
        ids = {change.topic for change in changes.values()}
        merged = merge(notices, snapshot.sequence)
        doubtful = [
            name for name in sorted(ids) if merged is None or merged.topics.get(name, ()) is None
        ]
        assignments: dict[str, znodes.Assignment] = {
            name: znodes.Assignment(
                topic.topic_id, tuple(view.replicas for view in topic.partitions)
            )
            for name, topic in snapshot.topics.items()
            if name in ids
        }
        for name in doubtful:
            path = znodes.topic_path(name)
            znode = await self._store.get(path)
            assignments.pop(name, None)
            if znode is not None:
                assignments[name] = znodes.decode_assignment(path, znode.data)
        return {
            at: change
            for at, change in changes.items()
            if _is_assigned(
                change, snapshot.topics.get(change.topic), assignments.get(change.topic)
            )
        }

    async def _reconnected(self, session_id: int) -> None:
        await asyncio.sleep(RETRY_S)
        await self._wait_connected()
        if self._store.session_id != session_id:
            raise _SessionEnded

    # Methods that remove this broker's replicas from ISRs.

    async def withdraw(
        self, directory_id: str, partitions: Collection[PartitionKey]
    ) -> frozenset[PartitionKey]:
        """Remove this broker's replicas in data directory ``directory_id`` from the partitions'
        ISRs.

        Return the partitions whose ISR changed. Call it before the broker registers, so that none
        of these replicas is elected meanwhile. Another live ISR member takes over leadership; if
        there is none, the partition has no leader. A replica stays if it is the only member. Raises
        CoordinationUnavailableError."""
        notices = await loader.load_notices(self._store)
        snapshot = loader.TopicsSnapshot(await loader.load_topics(self._store), notices.sequence)
        live = await loader.load_brokers(self._store)
        live.pop(self._broker_id, None)
        own = ReplicaId(self._broker_id, directory_id)
        left = {
            PartitionKey(topic.topic_id, view.partition): (topic, view)
            for topic in snapshot.topics.values()
            for view in topic.partitions
            if PartitionKey(topic.topic_id, view.partition) in partitions
        }
        done = set()
        for _ in range(WITHDRAWALS_MAX):
            changes: dict[PartitionKey, StateChange] = {}
            for key, (topic, view) in list(left.items()):
                states = await loader.load_states(self._store, topic.name, [view.partition])
                state = states.get(view.partition)
                changed = None if state is None else withdrawn(state, view.replicas, own, live)
                if changed is None:
                    del left[key]
                else:
                    changes[key] = StateChange(topic.name, view.partition, changed, key.topic_id)
            if not changes:
                break
            outcomes = await self._write(list(changes.values()), lambda: snapshot, live)
            for key, outcome in zip(changes, outcomes):
                if outcome is not None:
                    done.add(key)
                    del left[key]
        return frozenset(done)


def _is_assigned(
    change: StateChange, topic: TopicView | None, assignment: znodes.Assignment | None
) -> bool:
    """Return whether a change still applies to its topic. ``assignment`` is the decoded content of
    the topic's znode.

    The topic must have the change's topic id, and each added ISR member must be an assigned
    replica. ``topic`` is the topic as this broker read it last."""
    if assignment is None or assignment.topic_id != change.topic_id:
        return False
    if topic is None or change.partition >= min(len(topic.partitions), len(assignment.replicas)):
        return False
    known = topic.partitions[change.partition].state.isr
    return all(
        replica in known or replica.broker_id in assignment.replicas[change.partition]
        for replica in change.state.isr
    )


def _may_be_written(
    change: StateChange, topics: Mapping[str, TopicView], live: Mapping[int, BrokerView]
) -> bool:
    """Return whether each added ISR member is an assigned replica, and its broker is live, not
    draining, and has no full disk."""
    topic = topics.get(change.topic)
    if topic is None or topic.topic_id != change.topic_id:
        return False
    if change.partition >= len(topic.partitions):
        return False
    view = topic.partitions[change.partition]
    for replica in set(change.state.isr) - set(view.state.isr):
        broker = live.get(replica.broker_id) if replica.broker_id in view.replicas else None
        if (
            broker is None
            or not broker.takes_records
            or broker.directory_id != replica.directory_id
        ):
            return False
    return True
