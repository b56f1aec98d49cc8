"""Check invariants after every step of every replica and every write to ZooKeeper.

Invariants have the names of the TLA+ models of Kafka's protocol, such as StrongISR. The checker
derives *true* values, which no broker knows. A partition's true high watermark is the highest that
any leader ever returned. Its true records are the records below that offset. ``observing`` wraps
``Partition.step``, so that ``stepped`` checks each step of a replica. ``written`` checks each write
to ZooKeeper.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sim.scheduler import OWNER
from support.log_batches import iter_headers

from broker_lite.metadata import znodes
from broker_lite.metadata.store import Create, Delete, Operation, Set
from broker_lite.model import NO_BROKER, LeaderAndIsr, PartitionKey, ReplicaId
from broker_lite.replication.effects import AnswerFollower, AppendFetched, StartAt, Truncate
from broker_lite.replication.events import Fetched, FollowerFetched, Truncated
from broker_lite.replication.partition import Partition
from broker_lite.storage.log import Log
from broker_lite.storage.manager import LogManager

if TYPE_CHECKING:
    from sim.cluster import SimCluster
    from sim.process import Process
    from sim.transaction_truth import TransactionTruth

READ_BYTES = 1 << 20
COMES_BACK_S = 8.0
"""Maximum time, in seconds, until the controller notices that a broker registered again."""


class Violation(AssertionError):
    """Raised when an invariant of the replication protocol does not hold."""


class Entry(NamedTuple):
    """The identity of a committed batch: offsets, leader epoch and CRC."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int


class _Truth:
    """The committed batches of one partition: those below the highest high watermark that any
    leader ever returned.
    """

    __slots__ = ("entries", "starts")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.starts: list[int] = []

    @property
    def end(self) -> int:
        """Return the partition's true high watermark: the highest that any leader has reached."""
        return self.entries[-1].next_offset if self.entries else 0

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.starts.append(entry.base_offset)

    def at(self, offset: int) -> Entry:
        return self.entries[bisect_right(self.starts, offset) - 1]


@contextmanager
def observing() -> Iterator[None]:
    """Make every step of every simulated replica call the cluster's checker."""
    step, delete, set_aside = Partition.step, LogManager.delete, LogManager.set_aside

    def forgotten(self: LogManager, key: PartitionKey) -> None:
        owner = OWNER.get()
        if owner is not None:
            owner.of.cluster.checker.forgotten(self.data.directory_id, key)

    def deleted(self: LogManager, key: PartitionKey, now_ms: int) -> None:
        forgotten(self, key)
        delete(self, key, now_ms)

    def stray(self: LogManager, key: PartitionKey, now_ms: int) -> None:
        forgotten(self, key)
        set_aside(self, key, now_ms)

    def observed(self: Partition, now_ms: int, event: Any) -> list[Any]:
        effects = step(self, now_ms, event)
        owner = OWNER.get()
        if owner is not None:
            owner.of.cluster.checker.stepped(owner.of, self, event, effects)
        return effects

    Partition.step = observed  # type: ignore[method-assign]
    LogManager.delete, LogManager.set_aside = deleted, stray  # type: ignore[method-assign]
    try:
        yield
    finally:
        Partition.step = step  # type: ignore[method-assign]
        LogManager.delete, LogManager.set_aside = delete, set_aside  # type: ignore[method-assign]


class Checker:
    """Checks the invariants of one cluster; a failed check raises Violation."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._truths: dict[PartitionKey, _Truth] = {}
        self._ends: dict[PartitionKey, dict[str, int]] = {}
        """The flushed end of each replica, by broker directory id."""
        self._cuts: dict[tuple[str, PartitionKey], int] = {}
        """The offset to which each replica is being truncated.

        If the process dies, the truncation may or may not have happened.
        """
        self._states: dict[PartitionKey, LeaderAndIsr] = {}
        """The leader and ISR of each partition as ZooKeeper stores them."""
        self._keys: dict[tuple[str, int], PartitionKey] = {}
        self._least_copies: dict[PartitionKey, int] = {}
        self.least_copies: dict[str, int] = {}
        """``min.insync.replicas`` of the topics that set it."""
        self._leaders: dict[tuple[PartitionKey, int], int] = {}
        self._shown: dict[tuple[int, PartitionKey, int], int] = {}
        """The end of the leader's records that were already compared.

        The key is the leader's process, partition and leader epoch.
        """
        self.bad_disks: set[str] = set()
        """Ids of lost or rolled-back directories, which are not checked."""
        self.lossy_topics: set[str] = set()
        """Topics that allow unclean elections, so that committed records may be lost."""
        self.unclean: set[PartitionKey] = set()
        """Partitions in which a leader outside the ISR was elected."""
        self.transactions: TransactionTruth | None = None
        """The true outcome of transactions; None in seeds without transactions."""
        self._made_s: dict[str, float] = {}
        """The virtual time, in seconds, at which each znode was last created."""

    # The methods below check replicas.

    def stepped(
        self, process: Process, role: Partition, event: Any, effects: Sequence[Any]
    ) -> None:
        log = role.log
        key = log.key
        kinds = tuple(map(type, effects))
        self._cluster.trace(
            process.broker_id,
            key.topic_id,
            key.partition,
            type(event).__name__,
            log.log_end_offset,
            log.flushed_end,
            log.high_watermark,
            _names(kinds),
        )
        try:
            if type(event) in _OF_AN_EPOCH:
                _check_epoch(role, event, effects)
            if _cuts(kinds) or type(event) is Truncated:
                self._cut(role, event, effects)
            self._ended(role, log.flushed_end)
            self._check_start(process, key)
            if key.topic_id in self.lossy_topics:
                self._leads_uncleanly(process, role)
            elif role.is_leader:
                self._leads(process, role)
            elif log.high_watermark > self._truth(key).end:
                raise Violation(
                    f"{self._name(process, key)}: the follower's high watermark is "
                    f"{log.high_watermark}, but only {self._truth(key).end} is committed"
                )
            if self.transactions is not None:
                self.transactions.stepped(process, role)
        except Violation as violation:
            # Production code may catch the exception, so store it in the cluster too.
            self._cluster.failure = self._cluster.failure or violation

    def _check_start(self, process: Process, key: PartitionKey) -> None:
        """Check that the log starts at offset 0, unless its topic is the transaction state.

        In the simulation, no other topic's records are deleted.
        """
        log = process.log(key)
        if self.transactions is not None and key.topic_id == self.transactions.state_topic:
            return
        if log is not None and log.log_start_offset > 0:
            raise Violation(
                f"{self._name(process, key)}: begins at {log.log_start_offset}, though nothing was "
                "deleted"
            )

    def _truth(self, key: PartitionKey) -> _Truth:
        truth = self._truths.get(key)
        if truth is None:
            truth = self._truths[key] = _Truth()
        return truth

    def _name(self, process: Process, key: PartitionKey) -> str:
        return f"partition {key.partition} of {key.topic_id[:6]} on broker {process.broker_id}"

    def _cut(self, role: Partition, event: Any, effects: Sequence[Any]) -> None:
        name = (role.local.directory_id, role.key)
        if type(event) is Truncated:
            self._cuts.pop(name, None)
        truth = self._truth(role.key)
        for effect in effects:
            if isinstance(effect, Truncate | StartAt):
                # StartAt empties the log, and records follow only later.
                left = effect.offset if isinstance(effect, Truncate) else 0
                if left < truth.end:
                    # The log removes the whole batch that contains the offset. A reader that finds
                    # a corrupt batch names its own offset, which may lie inside of the batch.
                    left = truth.at(left).base_offset
                self._cuts[name] = min(self._cuts.get(name, left), left)

    def _ended(self, role: Partition, end: int) -> None:
        """Check that a replica in the ISR has all records below the true high watermark: the
        invariant StrongISR."""
        log = role.log
        directory_id = log.replica.directory_id
        ends = self._ends.get(log.key)
        if ends is None:
            ends = self._ends[log.key] = {}
        before = ends.get(directory_id, 0)
        if end != before:
            ends[directory_id] = end
            if end < before:
                self._check_members(role.key, "was truncated")

    def _leads_uncleanly(self, process: Process, role: Partition) -> None:
        """Check that the leader of an unclean election has flushed all records below its high
        watermark, and is alone in its epoch. It may lack committed records."""
        if role.is_leader:
            self._check_flushed(process, role)
            self._check_only_leader(process, role)

    def _check_flushed(self, process: Process, role: Partition) -> None:
        log = role.log
        if log.high_watermark > log.flushed_end:
            raise Violation(
                f"{self._name(process, log.key)}: the high watermark "
                f"{log.high_watermark} is above the flushed end {role.flushed_end}"
            )

    def _check_only_leader(self, process: Process, role: Partition) -> None:
        epoch = role.leader_epoch
        holder = self._leaders.setdefault((role.key, epoch), process.number)
        if holder != process.number:
            raise Violation(
                f"{self._name(process, role.key)}: leads epoch {epoch}, which process {holder} led"
            )

    def _leads(self, process: Process, role: Partition) -> None:
        log = role.log
        key, epoch, shown_to = log.key, role.leader_epoch, log.high_watermark
        self._check_flushed(process, role)
        name = (process.number, key, epoch)
        before = self._shown.get(name)
        if before is not None and shown_to <= before:
            return
        truth = self._truth(key)
        if before is None:
            self._began(process, role, truth)
            before = self._shown[name] = truth.end
        if shown_to > before:
            self._compare(process, key, truth, before, shown_to)
            self._shown[name] = shown_to

    def _began(self, process: Process, role: Partition, truth: _Truth) -> None:
        """Check that only one process leads in this epoch, and that this process has all committed
        records.

        The second check is the invariant LeaderCompleteness.
        """
        key, epoch = role.key, role.leader_epoch
        self._check_only_leader(process, role)
        state = self._states.get(key)
        if state is None or state.leader_epoch != epoch:
            # The process learned late that it was elected; ZooKeeper has a newer leader epoch.
            return
        if role.log_end_offset < truth.end:
            raise Violation(
                f"{self._name(process, key)}: leads epoch {epoch} with records up to "
                f"{role.log_end_offset}; {truth.end} are committed"
            )
        is_struck = role.local.directory_id == self._cluster.rot.directory_id
        if truth.entries and not is_struck:
            self._compare(process, key, truth, truth.entries[-1].base_offset, truth.end)

    def _compare(
        self, process: Process, key: PartitionKey, truth: _Truth, start: int, end: int
    ) -> None:
        """Compare the leader's batches with the committed ones.

        This checks the invariants ConsistentRead and LogMatching."""
        log = process.log(key)
        if log is None:
            return
        for entry in entries(log, start, end):
            if entry.next_offset <= truth.end:
                if truth.at(entry.base_offset) != entry:
                    raise Violation(
                        f"{self._name(process, key)}: shows {entry} where "
                        f"{truth.at(entry.base_offset)} was committed"
                    )
            elif entry.base_offset != truth.end:
                raise Violation(
                    f"{self._name(process, key)}: shows {entry} after {truth.end} was committed"
                )
            else:
                truth.add(entry)
                if self.transactions is not None and self.transactions.follows(key.topic_id):
                    self._show(log, key, entry)
                self._check_copies(key, truth.end)
                self._check_members(key, "is behind")

    def _show(self, log: Log, key: PartitionKey, entry: Entry) -> None:
        assert self.transactions is not None
        data = memoryview(log.reader.read(entry.base_offset, READ_BYTES, entry.next_offset).read())
        for position, header in iter_headers(data):
            if header.base_offset == entry.base_offset:
                batch = data[position : position + header.size_bytes]
                self.transactions.committed(key, batch, header)

    def _check_copies(self, key: PartitionKey, end: int) -> None:
        """Check that at least min.insync.replicas disks have the committed records. Disks of
        replicas outside the ISR count too."""
        ends = self._ends.get(key, {})
        # Count disks that lost the records to damage later: they had them at the commit.
        struck = self._cluster.rot.struck_disks
        copies = [disk for disk, have in ends.items() if have >= end or disk in struck]
        if key not in self._states:
            # The topic was deleted, but this leader has not noticed yet.
            return
        least = self._least_copies.get(key, 1)
        if len(copies) < least:
            raise Violation(
                f"partition {key.partition} of {key.topic_id[:6]}: {end} is committed, but is on "
                f"{len(copies)} disks; min.insync.replicas={least}"
            )

    def _check_members(self, key: PartitionKey, what: str) -> None:
        state = self._states.get(key)
        if state is None:
            return
        true_end = self._truth(key).end
        ends = self._ends.get(key, {})
        for replica in state.isr:
            end = ends.get(replica.directory_id, 0)
            if end < true_end and replica.directory_id not in self.bad_disks:
                raise Violation(
                    f"partition {key.partition} of {key.topic_id[:6]}: {replica} is in the ISR and "
                    f"{what}: it has {end} on disk, {true_end} are committed"
                )

    def recovered(self, process: Process, logs: LogManager) -> None:
        """Check that log recovery kept every record that was flushed to the disk."""
        for key, log in logs.logs.items():
            if process.is_stale:
                # This broker runs on an old copy of its disk, whose logs may differ from those of
                # the present disk.
                continue
            name = (logs.data.directory_id, key)
            was = self._ends.get(key, {}).get(logs.data.directory_id, 0)
            was = min(was, self._cuts.pop(name, was))
            if log.log_end_offset < was:
                raise Violation(
                    f"{self._name(process, key)}: recovered to {log.log_end_offset}, but {was} "
                    "records were on disk"
                )
            self._ends.setdefault(key, {})[logs.data.directory_id] = log.flushed_end

    def forgotten(self, directory_id: str, key: PartitionKey) -> None:
        """Check that a replica is in no ISR when its broker deletes or renames its log."""
        ends = self._ends.get(key)
        if ends is None or ends.pop(directory_id, None) is None:
            return
        try:
            self._check_members(key, "its log was deleted")
        except Violation as violation:
            self._cluster.failure = self._cluster.failure or violation

    def registered(self, process: Process) -> None:
        if process.is_stale:
            raise Violation(f"broker {process.broker_id} serves with a disk that was rolled back")

    def read(self, key: PartitionKey, entry: Entry) -> None:
        """Check that a consumer received the committed batch: the TLA+ invariant ConsistentRead."""
        truth = self._truth(key)
        if entry.next_offset > truth.end:
            raise Violation(f"{key}: {entry} was read, {truth.end} are committed")
        if truth.at(entry.base_offset) != entry:
            raise Violation(f"{key}: {entry} was read, {truth.at(entry.base_offset)} is committed")

    def check_whole(self, process: Process, keys: Sequence[PartitionKey]) -> None:
        """Check the invariant LogMatching: each replica has all committed batches unchanged."""
        for key in keys:
            log, truth = process.log(key), self._truth(key)
            if log is None or not truth.entries:
                continue
            found = list(entries(log, 0, truth.end))
            if found != truth.entries:
                wrong = next((pair for pair in zip(found, truth.entries) if pair[0] != pair[1]), ())
                raise Violation(
                    f"{self._name(process, key)}: {len(found)} batches where {len(truth.entries)} "
                    f"are committed; {wrong}"
                )

    def can_spare(self, directory_id: str, others: int) -> bool:
        """Return whether each partition has, besides a replica in this data directory, at least
        ``others`` ISR members with undamaged disks.
        """
        return all(
            self.is_spared(key, directory_id, others)
            for key in self._states
            if key.topic_id not in self.lossy_topics
        )

    def is_spared(self, key: PartitionKey, directory_id: str, others: int = 1) -> bool:
        """Return whether the partition has, besides the replica in this directory, at least
        ``others`` ISR members with undamaged disks.
        """
        bad = self.bad_disks | {directory_id, self._cluster.rot.directory_id}
        state = self._states.get(key)
        return state is not None and sum(r.directory_id not in bad for r in state.isr) >= others

    def is_lost(self, key: PartitionKey) -> bool:
        """Return whether committed records of the partition cannot be recovered.

        That is so in two cases: no disk of an ISR member is left, or all of these disks are damaged
        and no other disk has the damaged offsets intact. Such a partition must stay without a
        leader.
        """
        there = {
            process.logs.data.directory_id: process
            for process in self._cluster.processes.values()
            if process.logs is not None
        }
        isr = [there.get(replica.directory_id) for replica in self._states[key].isr]
        rot = self._cluster.rot
        left = [rot.damaged(process, key) for process in isr if process is not None]
        struck = [damage for damage in left if damage is not None]
        if len(struck) < len(left):
            return False
        return not any(
            rot.has_whole(process, key, damage) for damage in struck for process in there.values()
        )

    def true_end(self, key: PartitionKey) -> int:
        """Return a partition's true high watermark: the highest that any leader ever returned."""
        return self._truth(key).end

    def state(self, key: PartitionKey) -> LeaderAndIsr | None:
        """Return the leader and ISR of a partition as ZooKeeper stores them."""
        return self._states.get(key)

    @property
    def states(self) -> dict[PartitionKey, LeaderAndIsr]:
        return self._states

    # The methods below check writes to ZooKeeper.

    def written(self, session_id: int, operations: Sequence[Operation]) -> None:
        try:
            if self.transactions is not None:
                self.transactions.written(operations)
            for operation in operations:
                if isinstance(operation, Create):
                    self._made_s[operation.path] = self._cluster.loop.now
                if not operation.path.endswith("/state"):
                    continue
                if isinstance(operation, Create | Set):
                    self._state_written(session_id, operation)
                elif isinstance(operation, Delete):
                    self._states.pop(self._keys.pop(_place(operation.path)), None)
        except Violation as violation:
            self._cluster.failure = self._cluster.failure or violation

    def _state_written(self, session_id: int, operation: Create | Set) -> None:
        zk = self._cluster.zk
        znode = zk.peek(operation.path)
        assert znode is not None
        state = znodes.decode_state(operation.path, operation.data, znode.version)
        topic, partition = _place(operation.path)
        if isinstance(operation, Create):
            found = zk.peek(znodes.topic_path(topic))
            assert found is not None
            assignment = znodes.decode_assignment(znodes.topic_path(topic), found.data)
            key = self._keys[topic, partition] = PartitionKey(assignment.topic_id, partition)
            self._states[key] = state
            default = self._cluster.options.least_copies
            self._least_copies[key] = self.least_copies.get(topic, default)
            return
        key = self._keys[topic, partition]
        before, self._states[key] = self._states[key], state
        self._cluster.trace(
            f"{key.topic_id[:3]}-{partition}",
            "leader",
            state.leader,
            "epoch",
            state.leader_epoch,
            "version",
            state.version,
            "isr",
            *[f"{replica.broker_id}:{replica.directory_id[:4]}" for replica in state.isr],
        )
        self._check_change(session_id, key, before, state)
        self._check_members(key, "joined or stayed")

    def _check_change(
        self, session_id: int, key: PartitionKey, before: LeaderAndIsr, state: LeaderAndIsr
    ) -> None:
        name = f"partition {key.partition} of {key.topic_id[:6]}"
        if not state.isr:
            raise Violation(f"{name}: the ISR is empty")
        if state.leader != NO_BROKER and state.leader not in [r.broker_id for r in state.isr]:
            raise Violation(f"{name}: leader {state.leader} is not in the ISR {state.isr}")
        was = (before.leader, before.leader_broker_epoch)
        now = (state.leader, state.leader_broker_epoch)
        if state.leader_epoch < before.leader_epoch or (
            state.leader_epoch == before.leader_epoch and was != now
        ):
            raise Violation(f"{name}: the state {state} follows {before}")
        joined = set(state.isr) - set(before.isr)
        if joined and not self._is_unclean(key, before, state):
            self._check_joining(session_id, name, before, joined)
        is_own = self._is_leaders(session_id, before) or self._withdraws(session_id, before, state)
        if not is_own:
            self._check_fence(name, state)

    def _is_unclean(self, key: PartitionKey, before: LeaderAndIsr, state: LeaderAndIsr) -> bool:
        """Return whether this write elects a leader outside the ISR; check that this was allowed.

        An unclean election is allowed only if each ISR member is unregistered, or registered for
        less than COMES_BACK_S seconds.
        """
        if key.topic_id not in self.lossy_topics or state.leader_epoch == before.leader_epoch:
            return False
        if [replica.broker_id for replica in state.isr] != [state.leader]:
            return False
        for replica in before.isr:
            path = znodes.broker_path(replica.broker_id)
            znode = self._cluster.zk.peek(path)
            age_s = self._cluster.loop.now - self._made_s.get(path, 0.0)
            if znode is None or age_s < COMES_BACK_S:
                continue
            if znodes.decode_registration(path, znode.data).directory_id == replica.directory_id:
                raise Violation(
                    f"{key}: {state} was elected, but {replica} of {before} was registered"
                )
        self.unclean.add(key)
        self._cluster.count("unclean elections")
        return True

    def _check_joining(
        self, session_id: int, name: str, before: LeaderAndIsr, joined: set[ReplicaId]
    ) -> None:
        if not self._is_leaders(session_id, before):
            raise Violation(f"{name}: {joined} joined the ISR, but its leader did not write that")

    def _is_leaders(self, session_id: int, state: LeaderAndIsr) -> bool:
        """Return whether the ZooKeeper session that wrote ``state`` belongs to the leader in
        ``state``."""
        process = self._cluster.process_of(session_id)
        return (
            process.broker_id == state.leader
            and state.leader_broker_epoch in process.registry.broker_epochs
        )

    def _withdraws(self, session_id: int, before: LeaderAndIsr, state: LeaderAndIsr) -> bool:
        """Return whether this write of a partition's state may be that of a broker that leaves the
        ISR because its log is corrupt. Such a write increments the leader epoch.
        """
        broker_id = self._cluster.process_of(session_id).broker_id
        left = [replica.broker_id for replica in before.isr if replica not in state.isr]
        was = (before.leader, before.leader_broker_epoch)
        return (
            state.controller_epoch == before.controller_epoch
            and state.leader_epoch == before.leader_epoch + 1
            and left in ([], [broker_id])
            and (broker_id == before.leader or was == (state.leader, state.leader_broker_epoch))
        )

    def _check_fence(self, name: str, state: LeaderAndIsr) -> None:
        fence = self._cluster.zk.peek(znodes.CONTROLLER_EPOCH)
        assert fence is not None
        epoch = znodes.decode_controller_epoch(znodes.CONTROLLER_EPOCH, fence.data)
        if state.controller_epoch != epoch:
            raise Violation(
                f"{name}: written by the controller of epoch {state.controller_epoch}, but epoch "
                f"{epoch} has begun"
            )


_OF_AN_EPOCH = (FollowerFetched, Fetched)


def _check_epoch(role: Partition, event: Any, effects: Sequence[Any]) -> None:
    """Check that a replica ignores a fetch or a fetch response of another leader epoch
    (KIP-320)."""
    if event.leader_epoch == role.leader_epoch:
        return
    for effect in effects:
        if isinstance(effect, AppendFetched) or effect == AnswerFollower():
            raise Violation(
                f"{role.key} in leader epoch {role.leader_epoch}: {type(event).__name__} of "
                f"{event.leader_epoch} was accepted"
            )


@cache
def _names(kinds: tuple[type, ...]) -> str:
    return ",".join(kind.__name__ for kind in kinds)


@cache
def _cuts(kinds: tuple[type, ...]) -> bool:
    return Truncate in kinds or StartAt in kinds


def entries(log: Log, start: int, end: int) -> Iterator[Entry]:
    """Yield the identity of each batch on disk from offset ``start`` up to ``end``."""
    while start < end:
        data = log.reader.read(start, READ_BYTES, end).read()
        if not data:
            return
        for _, header in iter_headers(data):
            yield Entry(header.base_offset, header.next_offset, header.leader_epoch, header.crc)
            start = header.next_offset


def _place(path: str) -> tuple[str, int]:
    """Return the topic and partition that the path of a state znode names."""
    parts = path.split("/")
    return parts[-4], int(parts[-2])
