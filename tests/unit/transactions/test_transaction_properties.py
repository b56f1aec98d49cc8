"""Tests that a transaction has exactly one outcome, in any order of events and failures.

``World`` has the state log of one transactional id: committed records, and at most one record in
flight. A coordinator may die at any time. The next coordinator loads the committed records, with or
without the record in flight.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from broker_lite.errors import CoordinatorNotAvailableError, NotCoordinatorError
from broker_lite.model import PartitionKey
from broker_lite.transactions import effects as fx
from broker_lite.transactions import events as ev
from broker_lite.transactions.records import (
    TransactionRecord,
    TransactionState,
    decode_transaction,
    encode_transaction,
)
from broker_lite.transactions.transaction import EPOCH_LAST, Now, Transaction

TOPIC = "AAAAAAAAAAAAAAAAAAAAAQ"
T0, T1 = PartitionKey(TOPIC, 0), PartitionKey(TOPIC, 1)
PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
COMPLETED = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


@dataclass
class World:
    """The transaction coordinator of one transactional id, its state log, and the state of the
    clients.
    """

    epoch: int
    machine: Transaction = field(init=False)
    committed: TransactionRecord | None = None
    open: list[fx.Persist] = field(default_factory=list)
    sent: list[fx.SendMarkers] = field(default_factory=list)
    outcomes: dict[tuple[int, int], bool] = field(default_factory=dict)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    asked: dict[int, ev.Init | ev.Add | ev.End] = field(default_factory=dict)
    answered: set[int] = field(default_factory=set)
    abandoned: set[int] = field(default_factory=set)
    fenced: set[tuple[int, int]] = field(default_factory=set)
    now_ms: int = 0
    next_id: int = 100
    wanted_ids: int = 0

    def __post_init__(self) -> None:
        self.committed = TransactionRecord(5, self.epoch, 60_000)
        self.pairs = [(5, self.epoch)]
        self.machine = Transaction("x", self.committed)

    def step(self, event: ev.TransactionEvent) -> None:
        for effect in self.machine.step(Now(self.now_ms, self.now_ms), event):
            match effect:
                case fx.Persist():
                    self.open.append(effect)
                case fx.SendMarkers():
                    self.check_markers(effect)
                    self.sent.append(effect)
                case fx.FetchProducerId():
                    self.wanted_ids += 1
                case fx.TransactionReply():
                    self.check_reply(effect)

    def ask(self, event: ev.Init | ev.Add | ev.End) -> None:
        self.asked[event.token] = event
        self.step(event)

    def check_markers(self, effect: fx.SendMarkers) -> None:
        """Check that markers are sent only after a committed decision, and that the decision
        never changes."""
        record = self.committed
        assert record is not None and record.state in PREPARED, record
        assert (record.producer_id, record.epoch) == (effect.producer_id, effect.epoch)
        assert effect.is_commit is (record.state is TransactionState.PREPARE_COMMIT)
        assert effect.partitions == record.partitions
        key = effect.producer_id, effect.transaction
        assert self.outcomes.setdefault(key, effect.is_commit) is effect.is_commit

    def check_reply(self, reply: fx.TransactionReply) -> None:
        assert reply.token not in self.answered, "a request was answered twice"
        if reply.token in self.abandoned:
            return
        self.answered.add(reply.token)
        request, result = self.asked[reply.token], reply.result
        if result.error is not None:
            return
        record = self.committed
        assert record is not None
        if isinstance(request, ev.Add):
            assert result.transaction == record.number
            assert record.state is TransactionState.ONGOING
            assert request.partitions <= record.partitions
            assert (request.producer_id, request.epoch) not in self.fenced
            return
        pair = result.producer_id, result.epoch
        if isinstance(request, ev.End):
            assert (request.producer_id, request.epoch) not in self.fenced
            kind = PREPARED if request.is_commit else PREPARED[::-1]
            complete = COMPLETED if request.is_commit else COMPLETED[::-1]
            # The record that completes the transaction may still be in flight.
            assert record.state in (kind[0], complete[0])
        elif isinstance(request, ev.Init):
            assert request.expected not in self.fenced
            if request.expected is None:
                self.fenced |= set(self.pairs) - {pair}
        if pair not in self.pairs:
            self.pairs.append(pair)

    def settle(self, *, is_refused: bool = False) -> None:
        """Let the state log commit the oldest record, or refuse it."""
        effect = self.open.pop(0)
        if is_refused:
            self.step(ev.RecordRefused(effect.number, CoordinatorNotAvailableError("refused")))
            return
        self.check_decision(effect.record)
        self.committed = effect.record
        self.step(ev.Persisted(effect.number))

    def check_decision(self, record: TransactionRecord | None) -> None:
        """Check that no transaction of a fenced producer is committed."""
        before = self.committed
        if record is not None and record.state is TransactionState.PREPARE_COMMIT:
            assert before is not None
            assert (before.producer_id, before.epoch) not in self.fenced

    def die(self, *, is_last_in_log: bool) -> None:
        """End the coordinator. The next coordinator loads the committed records.

        If the record in flight ``is_last_in_log``, it counts as committed.
        """
        self.step(ev.Deposed(NotCoordinatorError("deposed")))
        if is_last_in_log and self.open:
            self.check_decision(self.open[0].record)
            self.committed = self.open[0].record
        self.open.clear()
        self.sent.clear()
        self.wanted_ids = 0
        loaded = self.committed
        if loaded is not None:
            loaded = decode_transaction(encode_transaction(loaded))
        self.machine = Transaction("x", loaded)
        self.step(ev.Resumed())

    def finish(self) -> None:
        """Let the state log, the partitions and ZooKeeper answer all pending requests."""
        for _ in range(1000):
            if self.open:
                self.settle()
            elif self.wanted_ids:
                self.give_id()
            elif self.sent:
                self.report(everything=True)
            else:
                return
        raise AssertionError("the coordinator never comes to rest")

    def give_id(self) -> None:
        self.wanted_ids -= 1
        self.next_id += 1
        self.step(ev.ProducerIdReady(self.next_id))

    def report(self, *, everything: bool = False) -> None:
        sent = self.sent.pop(0)
        for each in sorted(sent.partitions):
            self.step(ev.ParticipantDone(sent.transaction, each))
            if not everything:
                break
        if not everything and len(sent.partitions) > 1:
            self.sent.append(sent)
            self.report(everything=True)


def run(world: World, data: st.DataObject) -> None:
    for token in range(1, data.draw(st.integers(2, 40))):
        pair = data.draw(st.sampled_from(world.pairs[-3:]))
        version = data.draw(st.integers(1, 2))
        connection = data.draw(st.sampled_from([None, 1, 2]))
        match data.draw(st.integers(0, 11)):
            case 0:
                expected = data.draw(st.sampled_from([None, pair]))
                world.ask(ev.Init(token, 60_000, expected))
            case 1 | 2:
                parts = data.draw(st.sampled_from([{T0}, {T1}, {T0, T1}]))
                verify = connection is None and version == 1
                world.ask(
                    ev.Add(
                        token,
                        *pair,
                        frozenset(parts),
                        version=version,
                        verify_only=verify,
                        connection=connection,
                    )
                )
            case 3 | 4:
                commit = data.draw(st.booleans())
                world.ask(ev.End(token, *pair, commit, version, connection or 3))
            case 5 | 6 | 7 if world.open:
                is_complete = world.open[0].record is not None and (
                    world.open[0].record.state in COMPLETED
                )
                refused = data.draw(st.integers(0, 4)) == 0
                world.settle(is_refused=refused and not is_complete)
            case 8 if world.sent:
                world.report(everything=data.draw(st.booleans()))
            case 9 if world.wanted_ids:
                world.give_id()
            case 10:
                world.now_ms += data.draw(st.sampled_from([1000, 60_000]))
                world.step(ev.TransactionTick())
            case 11 if data.draw(st.booleans()):
                world.die(is_last_in_log=data.draw(st.booleans()))
            case _:
                world.step(ev.Abandon(token - 1))
                world.abandoned.add(token - 1)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([0, EPOCH_LAST - 2, EPOCH_LAST]))
def test_each_transaction_has_one_outcome_and_a_fenced_producer_commits_nothing(
    data: st.DataObject, epoch: int
) -> None:
    world = World(epoch)
    run(world, data)
    world.finish()
    unanswered = set(world.asked) - world.answered - world.abandoned
    assert not unanswered, [world.asked[token] for token in unanswered]
    record = world.machine.record
    assert record is None or record.state not in PREPARED
    assert record is None or 0 <= record.epoch <= EPOCH_LAST
