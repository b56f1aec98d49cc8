"""Check the state machines of three replicas with random steps. A seed determines a run.

The faults are lost, duplicated and reordered messages; crashes that keep the flushed records and a
random part of the others; expired sessions of live processes; delayed metadata; writes of the
state znode that arrive after their time-out; and corruption of flushed records. Each step checks
the invariants of replication/README.md against all records that were ever committed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from broker_lite.errors import (
    CorruptMessageError,
    FencedLeaderEpochError,
    OffsetOutOfRangeError,
    StorageError,
)
from broker_lite.model import (
    NO_BROKER,
    NO_EPOCH,
    LeaderAndIsr,
    OffsetAndEpoch,
    PartitionKey,
    ReplicaId,
)
from broker_lite.replication import effects as fx
from broker_lite.replication import events as ev
from broker_lite.replication.leader import Leader
from broker_lite.replication.partition import Partition
from broker_lite.storage.leader_epochs import LeaderEpochs
from support.memory_files import MemFiles

KEY = PartitionKey("T", 0)
RECORDS_PER_FETCH = 4
Record = tuple[int, int] | None
"""A record as (leader epoch, value), or None if it is corrupt. Each batch has one record."""


class ModelDisk:
    """A log that survives its process. A crash may lose unflushed records."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.start = 0
        self.flushed = 0
        self.epochs = LeaderEpochs(MemFiles(), "/")

    @property
    def end(self) -> int:
        return len(self.records)

    def append(self, record: Record, epoch: int) -> None:
        if epoch < self.epochs.latest:
            self.epochs.truncate_from_end(self.end)
        self.epochs.note(epoch, self.end)
        self.records.append(record)

    def truncate(self, offset: int) -> None:
        if offset < self.start:
            self.start_at(offset)
            return
        del self.records[offset:]
        self.flushed = min(self.flushed, self.end)
        self.epochs.truncate_from_end(offset)

    def start_at(self, offset: int) -> None:
        self.records = [(-1, -1)] * offset
        self.start = self.flushed = offset
        self.epochs = LeaderEpochs(MemFiles(), "/")

    def crash(self, rng: Random) -> None:
        del self.records[rng.randint(self.flushed, self.end) :]
        self.flushed = self.end
        self.epochs.truncate_from_end(self.end)

    def end_for(self, epoch: int) -> OffsetAndEpoch | None:
        return self.epochs.end_offset_for(epoch, self.end)

    def damage(self) -> int | None:
        return next((i for i in range(self.start, self.end) if self.records[i] is None), None)


class Node:
    """A broker: its permanent disk, and the state machine of its running process."""

    def __init__(self, broker_id: int) -> None:
        self.replica = ReplicaId(broker_id, f"disk{broker_id}")
        self.disk = ModelDisk()
        self.machine: Partition | None = None
        self.incarnation = 0
        self.broker_epochs: frozenset[int] = frozenset()
        self.queue: list[fx.Effect] = []
        self.asked: fx.FetchFrom | None = None
        self.seen = -1

    def start(self, rng: Random) -> None:
        disk = self.disk
        self.incarnation += 1
        self.queue, self.asked, self.seen = [], None, -1
        self.broker_epochs = frozenset()
        self.machine = Partition(
            KEY,
            self.replica,
            log_end_offset=disk.end,
            flushed_end=disk.flushed,
            high_watermark=disk.start,
            last_epoch=disk.epochs.latest,
        )


class Broken(AssertionError):
    """Raised when an invariant of replication is violated."""


class World:
    """Three nodes with their network and metadata.

    ``run`` takes random steps. ``heal`` stops the faults and checks that the replicas converge.
    """

    def __init__(self, seed: int, *, damage: bool = True) -> None:
        self.rng = rng = Random(seed)
        self.now_ms = 0
        self.nodes = [Node(broker_id) for broker_id in (1, 2, 3)]
        self.registered: dict[int, int] = {}
        self.epoch_counter = 0
        self.values = 0
        self.tokens: dict[int, int] = {}
        self.answered: set[int] = set()
        self.committed: list[Record] = []
        self.net: list[tuple[str, Node, int, Any]] = []
        self.writes: list[tuple[Node, int, LeaderAndIsr, bool]] = []
        self.leaders: dict[int, tuple[int, int]] = {}
        self.is_lossy = True
        self.may_damage = damage
        self.limits = ev.ReplicaLimits(rng.choice((1, 2, 2)), rng.choice((1, 1, 3)), 50, 1000)
        isr = tuple(node.replica for node in self.nodes)
        self.states = [LeaderAndIsr(NO_BROKER, 0, isr, 1)]
        for node in self.nodes:
            node.start(rng)
            self.register(node)

    # The methods below choose random actions.

    def run(self, steps: int) -> None:
        actions: list[tuple[Callable[[], None], int]] = [
            (self.work_on_disk, 60),
            (self.carry_message, 60),
            (self.ask_again, 12),
            (self.produce, 25),
            (self.tell_metadata, 20),
            (self.tick, 15),
            (self.write_state, 15),
            (self.control, 8),
            (self.crash, 2),
            (self.restart, 5),
            (self.end_session, 1),
            (self.delete_records, 3),
            (self.rot, 1 if self.may_damage else 0),
            (self.scrub, 4),
        ]
        choices, weights = zip(*actions, strict=True)
        for action in self.rng.choices(choices, weights, k=steps):
            self.now_ms += self.rng.randint(0, 30)
            action()
            self.check()

    def running(self) -> list[Node]:
        return [node for node in self.nodes if node.machine is not None]

    def deliver(self, node: Node, event: ev.Event) -> None:
        assert node.machine is not None
        effects = node.machine.step(self.now_ms, event)
        ranks = [fx.ORDER[type(effect)] for effect in effects]
        if ranks != sorted(ranks):
            raise Broken(f"effects out of order: {effects}")
        answers = sum(isinstance(effect, fx.AnswerFollower) for effect in effects)
        if answers != isinstance(event, ev.FollowerFetched):
            raise Broken(f"{answers} answers to {event}")
        for effect in effects:
            self.carry_out(node, effect)

    def carry_out(self, node: Node, effect: fx.Effect) -> None:
        match effect:
            case fx.StopFetching():
                node.asked = None
            case fx.FetchFrom():
                node.asked = effect
                self.send_fetch(node)
            case fx.ProposeIsr(state):
                self.writes.append((node, node.incarnation, state, False))
            case fx.HighWatermark(offset):
                self.commit(node, offset)
            case fx.RaiseStart(offset):
                node.queue.append(effect)
            case fx.Reply(token, appended, error):
                self.reply(token, appended, error)
            case fx.AnswerFollower():
                self.answer = effect
            case _:
                node.queue.append(effect)

    def reply(self, token: int, appended: ev.Appended | None, error: object) -> None:
        if token in self.answered or (appended is None) == (error is None):
            raise Broken(f"token {token} is answered twice, or both ways")
        self.answered.add(token)
        if appended is None or self.tokens[token] != ev.ACKS_ALL:
            return
        if appended.next_offset > len(self.committed):
            raise Broken(f"acknowledged beyond what is committed: {appended}")

    # The methods below simulate disks.

    def work_on_disk(self) -> None:
        busy = [node for node in self.running() if node.queue]
        if not busy:
            return
        node = self.rng.choice(busy)
        event = self.done(node, node.queue.pop(0))
        if event is not None:
            self.deliver(node, event)

    def done(self, node: Node, effect: fx.Effect) -> ev.Event | None:
        disk = node.disk
        is_full = self.is_lossy and self.rng.random() < 0.02
        match effect:
            case fx.Append(token) if is_full:
                return ev.AppendFailed(token, StorageError("full"))
            case fx.AppendFetched() if is_full:
                return ev.FetchedAppendFailed(StorageError("full"))
            case fx.StartEpoch(epoch):
                if epoch > disk.epochs.latest:
                    disk.epochs.note(epoch, disk.end)
                return ev.EpochStarted(epoch, disk.end, disk.flushed)
            case fx.Append(token, value, epoch):
                if epoch < disk.epochs.latest:
                    return ev.AppendFailed(token, FencedLeaderEpochError())
                disk.append((epoch, value), epoch)
                return ev.Appended(token, disk.end - 1, disk.end)
            case fx.AppendFetched((base, records), epoch):
                if base != disk.end:
                    return ev.FetchedAppendFailed(CorruptMessageError(f"{base} at {disk.end}"))
                for record in records:
                    if record[0] > epoch:
                        break
                    disk.append(record, record[0])
                return ev.FetchedAppended(disk.end, disk.epochs.latest)
            case fx.Sync():
                disk.flushed = disk.end
                return ev.Synced(disk.flushed)
            case fx.Truncate(offset):
                disk.truncate(offset)
                disk.flushed = disk.end
                return ev.Truncated(disk.end, disk.flushed, disk.epochs.latest)
            case fx.StartAt(offset):
                disk.start_at(offset)
                return ev.Truncated(disk.end, disk.flushed, disk.epochs.latest)
            case fx.RaiseStart(offset):
                self.raise_start(node, offset)
                return None
        raise AssertionError(effect)

    def raise_start(self, node: Node, offset: int) -> None:
        if offset > node.disk.start:
            node.disk.start = offset
            node.disk.epochs.truncate_from_start(offset)

    def crash(self) -> None:
        node = self.rng.choice(self.nodes)
        if node.machine is not None:
            node.machine = None
            node.disk.crash(self.rng)
            if self.rng.random() < 0.5:
                self.registered.pop(node.replica.broker_id, None)

    def restart(self) -> None:
        for node in self.nodes:
            if node.machine is None:
                node.start(self.rng)
                self.register(node)
                return

    def delete_records(self) -> None:
        """Advance a leader's log start offset, at most to its high watermark, as retention does."""
        for node in self.running():
            machine = node.machine
            if machine is not None and machine.is_leader and not node.queue:
                self.raise_start(node, self.rng.randint(0, machine.high_watermark))

    def rot(self) -> None:
        """Corrupt a flushed record of a replica if another in-sync replica has it."""
        if any(node.disk.damage() is not None for node in self.nodes):
            return
        isr = self.states[-1].isr
        node = self.rng.choice(self.nodes)
        if node.disk.flushed <= node.disk.start:
            return
        at = self.rng.randrange(node.disk.start, node.disk.flushed)
        others = [n for n in self.nodes if n is not node and n.replica in isr]
        if any(
            n.disk.start <= at < n.disk.flushed and n.disk.records[at] == node.disk.records[at]
            for n in others
        ):
            node.disk.records[at] = None

    def scrub(self) -> None:
        for node in self.running():
            at = node.disk.damage()
            if at is not None and at < node.disk.flushed:
                self.deliver(node, ev.CorruptionFound(at))

    # The methods below simulate the network.

    def send_fetch(self, node: Node) -> None:
        if node.asked is not None:
            epoch = self.registered.get(node.replica.broker_id)
            request = (node.asked, epoch, node.disk.start)
            self.net.append(("fetch", node, node.incarnation, request))

    def ask_again(self) -> None:
        for node in self.running():
            if node.asked is not None and self.rng.random() < 0.5:
                self.send_fetch(node)

    def carry_message(self) -> None:
        if not self.net:
            return
        at = self.rng.randrange(len(self.net)) if self.is_lossy else 0
        kind, node, incarnation, content = self.net[at]
        if not self.is_lossy or self.rng.random() < 0.8:
            del self.net[at]
        if self.is_lossy and self.rng.random() < 0.1:
            return
        if kind == "fetch":
            self.serve_fetch(node, incarnation, *content)
        elif node.machine is not None and incarnation == node.incarnation:
            self.deliver(node, self.fetch_event(node, *content))

    def serve_fetch(
        self,
        node: Node,
        incarnation: int,
        asked: fx.FetchFrom,
        broker_epoch: int | None,
        follower_start: int,
    ) -> None:
        leader = self.nodes[asked.leader - 1]
        if leader.machine is None:
            return
        # The leader may not know yet that the follower's registration has ended.
        if broker_epoch != self.registered.get(node.replica.broker_id) and (
            not self.is_lossy or self.rng.random() < 0.5
        ):
            return
        disk = leader.disk
        end = leader.machine.log_end_offset
        self.deliver(
            leader,
            ev.FollowerFetched(
                node.replica,
                asked.leader_epoch,
                asked.fetch_offset,
                asked.last_fetched_epoch,
                disk.end_for(asked.last_fetched_epoch),
                disk.start,
                follower_start,
            ),
        )
        answer, records = self.answer, list(self.readable(disk, asked.fetch_offset, end))
        if answer == fx.AnswerFollower() and not records and asked.fetch_offset < end:
            # The next record is corrupt: a leader returns an error, and the follower retries.
            return
        content = (asked, answer, records, leader.machine.high_watermark, disk.start)
        self.net.append(("answer", node, incarnation, content))

    def readable(self, disk: ModelDisk, start: int, end: int) -> Iterator[Record]:
        for record in disk.records[start : min(end, start + RECORDS_PER_FETCH)]:
            if record is None:
                return
            yield record

    def fetch_event(
        self,
        node: Node,
        asked: fx.FetchFrom,
        answer: fx.AnswerFollower,
        records: list[Record],
        high_watermark: int,
        start: int,
    ) -> ev.Event:
        epoch, offset = asked.leader_epoch, asked.fetch_offset
        if answer.diverging is not None:
            own = node.disk.end_for(answer.diverging.leader_epoch)
            last = asked.last_fetched_epoch
            return ev.FetchDiverged(epoch, offset, last, answer.diverging, own)
        if isinstance(answer.error, OffsetOutOfRangeError):
            return ev.FetchOutOfRange(epoch, offset, start)
        if answer.error is not None:
            # The follower must retry: return a response that matches none of its fetches.
            return ev.Fetched(-1, -1, None, 0, 0)
        payload = (offset, records) if records else None
        return ev.Fetched(epoch, offset, payload, high_watermark, start)

    # The methods below simulate clients, time and ZooKeeper.

    def produce(self) -> None:
        for node in self.running():
            if self.rng.random() < 0.5:
                token = self.values = self.values + 1
                self.tokens[token] = self.rng.choice((-1, -1, 1, 0))
                self.deliver(node, ev.AppendRequested(token, self.tokens[token], token))

    def tick(self) -> None:
        for node in self.running():
            self.deliver(node, ev.Tick())

    def register(self, node: Node) -> None:
        # A new session knows at least all writes that were applied before it.
        node.seen = max(node.seen, len(self.states) - 2)
        self.epoch_counter += 1
        self.registered[node.replica.broker_id] = self.epoch_counter
        node.broker_epochs |= {self.epoch_counter}

    def end_session(self) -> None:
        """End a random node's ZooKeeper session; register a running node without session again."""
        node = self.rng.choice(self.nodes)
        if self.registered.pop(node.replica.broker_id, None) is None and node.machine is not None:
            self.register(node)

    def tell_metadata(self) -> None:
        for node in self.running():
            if node.seen < len(self.states) - 1 and self.rng.random() < 0.6:
                node.seen = self.rng.randint(node.seen + 1, len(self.states) - 1)
                self.tell(node, self.states[node.seen])

    def tell(self, node: Node, state: LeaderAndIsr) -> None:
        self.deliver(
            node, ev.LeaderAndIsrChanged(state, node.broker_epochs, self.limits, (1, 2, 3))
        )

    def write(self, state: LeaderAndIsr) -> LeaderAndIsr:
        state = dataclasses.replace(state, version=len(self.states))
        self.states.append(state)
        return state

    def write_state(self) -> None:
        if not self.writes:
            return
        at = self.rng.randrange(len(self.writes))
        node, incarnation, state, given_up = self.writes[at]
        lives = node.machine is not None and node.incarnation == incarnation
        if self.is_lossy and not given_up and self.rng.random() < 0.1:
            # The broker has abandoned the write, but the write is still in flight.
            self.writes[at] = (node, incarnation, state, True)
            if lives:
                self.deliver(node, ev.IsrRefused(state))
            return
        del self.writes[at]
        written = self.write(state) if state.version == self.states[-1].version else None
        if lives and not given_up:
            self.deliver(node, ev.IsrWritten(written) if written else ev.IsrRefused(state))

    def control(self) -> None:
        """Act as the controller: elect leaders and remove dead replicas from the ISR."""
        state, live = self.states[-1], self.registered
        members = tuple(r for r in state.isr if r.broker_id in live)
        leads = (
            live.get(state.leader) == state.leader_broker_epoch
            and state.leader != NO_BROKER
            and any(r.broker_id == state.leader for r in members)
        )
        epoch = state.leader_epoch + 1
        if (not leads and members) or (leads and self.is_lossy and self.rng.random() < 0.05):
            leader = self.rng.choice(members).broker_id
            self.write(
                dataclasses.replace(
                    state,
                    leader=leader,
                    leader_epoch=epoch,
                    isr=members,
                    leader_broker_epoch=live[leader],
                )
            )
        elif not leads and state.leader != NO_BROKER:
            self.write(
                dataclasses.replace(
                    state, leader=NO_BROKER, leader_epoch=epoch, leader_broker_epoch=NO_EPOCH
                )
            )
        elif leads and members != state.isr:
            self.write(dataclasses.replace(state, isr=members))

    # The methods below check invariants.

    def commit(self, node: Node, offset: int) -> None:
        assert node.machine is not None
        if not isinstance(node.machine.role, Leader):
            if offset > len(self.committed):
                raise Broken(f"a follower has the high watermark {offset}, which is not committed")
            return
        if offset > node.disk.flushed:
            raise Broken("the high watermark is beyond the leader's own disk")
        self.committed += node.disk.records[len(self.committed) : offset]

    def check(self) -> None:
        state = self.states[-1]
        for node in self.nodes:
            disk, machine = node.disk, node.machine
            if node.replica in state.isr:
                self.check_same(node, disk.flushed, len(self.committed), "in the ISR")
            if machine is None:
                continue
            high_watermark = machine.high_watermark
            self.check_same(node, disk.end, high_watermark, "below its high watermark")
            role = machine.role
            if isinstance(role, Leader):
                process = (node.replica.broker_id, node.incarnation)
                if self.leaders.setdefault(machine.leader_epoch, process) != process:
                    raise Broken(f"epoch {machine.leader_epoch} has two leaders")
                if role.epoch_start_offset is not None and state.leader_epoch == (
                    machine.leader_epoch
                ):
                    self.check_same(node, disk.end, len(self.committed), "leading")

    def check_same(self, node: Node, have: int, need: int, what: str) -> None:
        """Check that ``node`` has all committed records below offset ``need``.

        Records that retention deleted are exempt.
        """
        if have < need:
            raise Broken(f"{node.replica} is {what}, but its log ends at {have}, before {need}")
        raising = (e.offset for e in node.queue if isinstance(e, fx.RaiseStart))
        start = max(node.disk.start, *raising, 0)
        if node.disk.records[start:need] != self.committed[start:need]:
            for at in range(start, need):
                found = node.disk.records[at]
                if found != self.committed[at] and found is not None and self.committed[at]:
                    raise Broken(
                        f"{node.replica} is {what} and has {found} at {at}, where "
                        f"{self.committed[at]} was committed"
                    )

    def heal(self) -> None:
        """Stop the faults; check that all replicas join the ISR, and that their logs are equal
        and committed."""
        self.is_lossy = False
        for node in self.nodes:
            if node.machine is None:
                node.start(self.rng)
                self.register(node)
            elif node.replica.broker_id not in self.registered:
                self.register(node)
        for _ in range(120):
            self.now_ms += 200
            self.control()
            self.tell_metadata()
            self.scrub()
            self.tick()
            for node in self.running():
                self.send_fetch(node)
            for _ in range(60):
                self.work_on_disk()
                self.carry_message()
                self.write_state()
                self.check()
        self.check_rest()

    def check_rest(self) -> None:
        state = self.states[-1]
        if any(node.disk.damage() is not None for node in self.nodes):
            # The only in-sync replica is corrupt: it stays in the ISR, and followers stop
            # before the corrupt record.
            if len(state.isr) != 1:
                raise Broken(f"damage is not repaired, with {state.isr} in sync")
            return
        if len(state.isr) != 3:
            raise Broken(f"after the faults the ISR is still {state.isr}")
        leader = self.nodes[state.leader - 1]
        assert leader.machine is not None
        if not leader.machine.is_leader or leader.machine.high_watermark != leader.disk.end:
            raise Broken(f"after the faults {leader.replica} makes no progress")
        for node in self.nodes:
            if (
                node.replica in state.isr
                and node.disk.records[node.disk.start :] != (leader.disk.records[node.disk.start :])
            ):
                raise Broken(f"after the faults {node.replica} differs from the leader")
