"""Tests that a Spark sink's batch is committed once, in any order of events and failures.

``World`` has the state log of one partition: committed records, and records in flight, in log
order. A coordinator may die at any time. The next coordinator loads the committed records and a
prefix of the records in flight.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from broker_lite.errors import CoordinatorNotAvailableError, NotCoordinatorError
from broker_lite.model import PartitionKey
from broker_lite.transactions import sink_events as ev
from broker_lite.transactions.events import (
    Deposed,
    Persisted,
    ProducerIdReady,
    RecordRefused,
    TransactionTick,
)
from broker_lite.transactions.sink_records import (
    ProducerPair,
    SinkHead,
    SinkSlot,
    SinkState,
    decode_head,
    decode_slot,
    encode_head,
    encode_slot,
)
from broker_lite.transactions.sinks import SinkPartition
from broker_lite.transactions.transaction import Now

TOPIC = "AAAAAAAAAAAAAAAAAAAAAQ"
SINKS, RUNS = ("s", "t"), ("r0", "r1", "r2")
Attempt = tuple[str, str, int, int, int]
"""An attempt of a task: sink, run, batch, task, attempt."""
Record = ev.PersistHead | ev.PersistSlot


@dataclass
class World:
    """The transaction coordinator, its state log, and the state of Spark's tasks and drivers."""

    machine: SinkPartition = field(default_factory=lambda: SinkPartition({}, {}))
    heads: dict[str, SinkHead] = field(default_factory=dict)
    slots: dict[int, SinkSlot] = field(default_factory=dict)
    open: list[Record] = field(default_factory=list)
    unmarked: list[ev.SlotMarkers] = field(default_factory=list)
    outcomes: dict[ProducerPair, bool] = field(default_factory=dict)
    given: dict[ProducerPair, Attempt] = field(default_factory=dict)
    failed: set[ProducerPair] = field(default_factory=set)
    """Producers of failed attempts, which no driver commits."""
    named: set[ProducerPair] = field(default_factory=set)
    """Producers of finished attempts, which a driver wants to commit."""
    decided: dict[tuple[str, int], tuple[frozenset[ProducerPair], int]] = field(
        default_factory=dict
    )
    asked: dict[int, ev.SinkRequest] = field(default_factory=dict)
    answered: set[int] = field(default_factory=set)
    now_ms: int = 0
    next_id: int = 100
    wanted_ids: int = 0

    def step(self, event: ev.SinkEvent) -> None:
        for effect in self.machine.step(Now(self.now_ms, self.now_ms), event):
            match effect:
                case ev.PersistHead() | ev.PersistSlot():
                    self.open.append(effect)
                case ev.SendSinkMarkers():
                    self.check_markers(effect)
                    self.unmarked.extend(effect.rows)
                case ev.FetchSlotId():
                    self.wanted_ids += 1
                case ev.SinkReply():
                    self.check_reply(effect)

    def ask(self, event: ev.SinkRequest) -> None:
        self.asked[event.token] = event
        self.step(event)

    def check_markers(self, effect: ev.SendSinkMarkers) -> None:
        head = self.heads[effect.sink]
        for row in effect.rows:
            pair = ProducerPair(row.producer_id, row.epoch)
            assert self.outcomes.setdefault(pair, row.is_commit) is row.is_commit, pair
            writer = ProducerPair(row.producer_id, row.epoch - 1)
            if writer in self.failed:
                assert not row.is_commit, "a failed attempt is never committed"
                continue
            assert head.state is not SinkState.OPEN, "markers follow a committed decision"
            assert row.is_commit is (writer in head.winners)

    def check_reply(self, reply: ev.SinkReply) -> None:
        assert reply.token not in self.answered, "a request was answered twice"
        self.answered.add(reply.token)
        request, result = self.asked[reply.token], reply.result
        if result.error is not None:
            return
        if isinstance(request, ev.EndBatch) and request.is_commit:
            # The commit of a batch without rows decides nothing.
            _, rows = self.decided.get((request.sink, request.batch), (frozenset(), 0))
            assert rows == request.rows
        elif isinstance(request, ev.JoinBatch):
            if result.producer_id < 0:
                assert (request.sink, request.batch) in self.decided
                return
            attempt = (
                request.sink, request.run, request.batch, request.task, request.attempt,
            )  # fmt: skip
            pair = ProducerPair(result.producer_id, result.epoch)
            assert self.given.setdefault(pair, attempt) == attempt, (
                "each attempt has its own producer id and epoch"
            )
            slot = self.slots[result.producer_id]
            assert slot.epoch == result.epoch, "an attempt opens after its record is committed"
            assert not self.heads[request.sink].ends(request.run, request.batch), (
                "an attempt opens after the abort of its batch is complete in the log"
            )

    def commit(self, record: Record) -> None:
        """Commit a record in flight, as when the high watermark of the state log passes it."""
        if isinstance(record, ev.PersistSlot):
            self.slots.pop(record.producer_id, None)
            if record.slot is not None:
                self.slots[record.producer_id] = decode_slot(encode_slot(record.slot))
            return
        head = record.head
        if head is None:
            self.heads.pop(record.sink, None)
            return
        before = self.heads.get(record.sink)
        if head.state is SinkState.PREPARE_COMMIT:
            assert before is not None and head.batch > before.batch
            key = record.sink, head.batch
            assert key not in self.decided, "a batch is decided only once"
            self.decided[key] = head.winners, head.rows
            attempts = [self.given[winner] for winner in head.winners]
            assert {row[:3] for row in attempts} <= {(record.sink, head.run, head.batch)}
            assert len({row[3] for row in attempts}) == len(attempts), (
                "only one attempt of each task is committed"
            )
            for winner in head.winners:
                marked = ProducerPair(winner.producer_id, winner.epoch + 1)
                assert self.outcomes.get(marked) is not False, "no aborted attempt is committed"
        elif before is not None:
            assert (head.batch, head.rows) == (before.batch, before.rows), "a decision is final"
        self.heads[record.sink] = decode_head(encode_head(head))

    def settle(self, *, is_refused: bool = False) -> None:
        record = self.open.pop(0)
        if is_refused:
            error = CoordinatorNotAvailableError("refused")
            self.step(RecordRefused(record.number, error))
        else:
            self.commit(record)
            self.step(Persisted(record.number))

    def die(self, survivors: int) -> None:
        """End the coordinator. The next coordinator loads the committed records and the first
        ``survivors`` records in flight.
        """
        self.step(Deposed(NotCoordinatorError("deposed")))
        for record in self.open[:survivors]:
            self.commit(record)
        self.open.clear()
        self.unmarked.clear()
        self.wanted_ids = 0
        self.machine = SinkPartition(dict(self.heads), dict(self.slots))
        self.step(ev.SinksLoaded())

    def mark(self, at: int) -> None:
        row = self.unmarked.pop(at % len(self.unmarked))
        self.step(ev.SlotMarked(row.producer_id, row.epoch))

    def bring_id(self) -> None:
        self.wanted_ids -= 1
        self.next_id += 1
        self.step(ProducerIdReady(self.next_id))

    def finish(self) -> None:
        """Let the state log, the partitions and ZooKeeper answer all pending requests.

        On the timer event (``TransactionTick``), refused records are appended again.
        """
        for _ in range(2):
            self.answer()
            self.now_ms += 2000
            self.step(TransactionTick())

    def answer(self) -> None:
        for _ in range(2000):
            if self.open:
                self.settle()
            elif self.unmarked:
                self.mark(0)
            elif self.wanted_ids:
                self.bring_id()
            else:
                return


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_spark_sink_batch_is_committed_once_in_any_order_of_events_and_failures(
    data: st.DataObject,
) -> None:
    world = World()
    actions = st.sampled_from(
        ["join"] * 4 + ["commit"] * 3 + ["settle"] * 6 + ["mark"] * 4 + ["id"] * 2
        + ["abort", "fail", "fail", "keep", "add", "tick", "refuse", "die"]
    )  # fmt: skip
    # With one sink and one run, several requests for the same batch are likely.
    sinks = st.sampled_from(SINKS[: data.draw(st.integers(1, len(SINKS)))])
    runs = st.sampled_from(RUNS[: data.draw(st.integers(1, len(RUNS)))])
    for token in range(data.draw(st.integers(5, 60))):
        sink, run = data.draw(sinks), data.draw(runs)
        batch = data.draw(st.integers(0, 2))
        match data.draw(actions):
            case "join":
                task, attempt = data.draw(st.integers(0, 1)), data.draw(st.integers(0, 1))
                parts = frozenset({PartitionKey(TOPIC, task)}) if attempt else frozenset()
                world.ask(ev.JoinBatch(token, sink, run, batch, task, attempt, 1000, parts))
            case "commit":
                known = sorted(
                    pair
                    for pair, row in world.given.items()
                    if row[:3] == (sink, run, batch) and pair not in world.failed
                )
                winners = data.draw(st.sets(st.sampled_from(known))) if known else set()
                world.named |= winners
                rows = len(winners)
                world.ask(ev.EndBatch(token, sink, run, batch, True, frozenset(winners), rows))
            case "abort":
                world.ask(ev.EndBatch(token, sink, run, batch, False))
            case "fail" if open_pairs := sorted(set(world.given) - world.named):
                pair = data.draw(st.sampled_from(open_pairs))
                world.failed.add(pair)
                failed = frozenset({pair})
                world.ask(ev.EndBatch(token, *world.given[pair][:3], False, failed))
            case "keep":
                world.ask(ev.KeepBatch(token, sink, run, batch))
            case "add" if world.given:
                pair = data.draw(st.sampled_from(sorted(world.given)))
                parts = frozenset({PartitionKey(TOPIC, data.draw(st.integers(2, 3)))})
                world.ask(ev.AddToSlot(token, world.given[pair][0], *pair, parts))
            case "settle" if world.open:
                world.settle()
            case "refuse" if world.open:
                world.settle(is_refused=True)
            case "die":
                world.die(data.draw(st.integers(0, len(world.open))))
            case "mark" if world.unmarked:
                world.mark(data.draw(st.integers(0, 9)))
            case "id" if world.wanted_ids:
                world.bring_id()
            case "tick":
                world.now_ms += data.draw(st.sampled_from([10, 500, 1500]))
                world.step(TransactionTick())
    world.finish()
    unanswered = set(world.asked) - world.answered
    assert not unanswered, [world.asked[each] for each in unanswered]
    for sink, head in world.machine.heads().items():
        assert head.state is SinkState.OPEN
        for slot in (each.slot for each in world.machine.attempts(sink).values()):
            assert slot.run == head.run and slot.batch > head.batch, (
                "no attempt of a decided batch is left open"
            )
