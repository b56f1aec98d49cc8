"""The state machine of one transactional id, on its transaction coordinator.

``step(now, event)`` returns effects, which the caller carries out. A reply or marker follows only
after the record of the decision is committed in ``__transaction_state``. Nothing waits for the
record that completes a transaction: any later record implies it, and if it is lost, the next
coordinator sends the markers again.

Each request passes these checks, in order:

1. A request with the producer id of another transactional id is refused.
2. While a record is being written, the request is parked: it waits.
3. A request with an epoch that the transactional id does not accept in its current state is
   refused.

The next TransactionTick is due at ``deadline_ms``; an earlier tick changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from broker_lite.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    LogbusError,
    ProducerFencedError,
    TransactionAbortableError,
)
from broker_lite.model import NO_PRODUCER
from broker_lite.transactions import effects as fx
from broker_lite.transactions import events as ev
from broker_lite.transactions.records import NO_PRODUCER_EPOCH, TransactionRecord, TransactionState

NEVER = 1 << 62
EPOCH_LAST = 32_766
"""Highest epoch that a producer receives. The markers that fence this epoch carry 32,767, the
highest possible epoch. The next producer gets a new producer id with epoch 0."""
RETRY_MS = 1_000
"""Milliseconds after which the coordinator repeats the write of a record that the log refused.

This applies to the abort of a timed-out transaction and to the end of a transaction. The write of
other records is repeated when the client repeats its request."""
PARKED_MAX = 100
"""Maximum number of requests of one transactional id that wait until a record is written or a
transaction has ended."""
PARTICIPANT_BYTES_MAX = 512 << 10
"""Maximum bytes of a transaction's participants (partitions and groups), so that its record fits
into one batch."""
_PARTITION_BYTES = 20

_PREPARED = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}

Request = ev.Init | ev.Add | ev.End


class Now(NamedTuple):
    """The monotonic time, with which timeouts are compared, and the wall-clock time, which records
    contain."""

    monotonic_ms: int
    wall_ms: int


@dataclass(slots=True)
class _RecordInFlight:
    """A record that is being written, and the request that is answered after it.

    With ``is_fence``, the record aborts the former producer's transaction, because a new producer
    has sent InitProducerId."""

    number: int
    record: TransactionRecord | None
    request: Request | None
    is_fence: bool


class Transaction:
    """The state machine of one transactional id. ``record`` is its last committed record, or None
    for an unknown id."""

    def __init__(
        self, name: str, record: TransactionRecord | None = None, *, timeout_max_ms: int = 900_000
    ) -> None:
        self.name = name
        self.record = record
        self._timeout_max_ms = timeout_max_ms
        self._now = Now(0, 0)
        self._effects: list[fx.TransactionEffect] = []
        self._pending: _RecordInFlight | None = None
        self._numbers = 0
        self._parked: list[Request] = []
        self._remaining: set[ev.Participating] = set()
        """Participants whose marker is not written yet."""
        self._begun_ms = 0
        """Monotonic time in ms at which the transaction began, or at which this coordinator loaded
        it."""
        self._retry_ms = 0
        self._end_number = 0
        """Number of the effect Persist that writes the end of the last transaction; 0 once this
        record or a later one is committed."""
        self._is_end_refused = False
        self._connection: int | None = None
        """Number of the client connection on which the transaction began: an EndTxn from an older
        connection is refused. None if the transaction began at another coordinator."""
        self._spare_id: int | None = None
        self._is_fetching_id = False

    def step(self, now: Now, event: ev.TransactionEvent) -> list[fx.TransactionEffect]:
        """Apply an event. Return the operations (effects) in the order in which the caller must
        carry them out."""
        self._now = now
        self._effects = []
        match event:
            case ev.Init() | ev.Add() | ev.End():
                self._handle(event)
            case ev.Persisted():
                self._persisted(event.number)
            case ev.RecordRefused():
                self._refused(event)
            case ev.ParticipantDone():
                self._participant_done(event)
            case ev.ProducerIdReady():
                self._spare_id, self._is_fetching_id = event.producer_id, False
                self._retry_parked()
            case ev.ProducerIdFailed():
                self._is_fetching_id = False
                self._retry_ms = now.monotonic_ms + RETRY_MS
                self._fail_parked(event.error)
            case ev.Resumed():
                self._load()
            case ev.TransactionTick():
                self._tick()
            case ev.Expire():
                self._expire(event.before_ms)
            case ev.Abandon():
                self._parked = [row for row in self._parked if row.token != event.token]
            case ev.Deposed():
                self._depose(event.error)
        return self._effects

    # Properties that describe the transaction.

    @property
    def state(self) -> TransactionState:
        """The transaction's state, as DescribeTransactions and ListTransactions report it."""
        if self.record is None:
            return TransactionState.DEAD
        if self._pending is not None and self._pending.is_fence:
            return TransactionState.PREPARE_EPOCH_FENCE
        return self.record.state

    @property
    def deadline_ms(self) -> int:
        """Monotonic time in ms at which the open transaction times out, or at which the coordinator
        repeats the write of a record that the log refused."""
        record = self.record
        if self._is_end_refused and not self._is_busy:
            return self._retry_ms
        if self._is_busy or record is None or record.state is not TransactionState.ONGOING:
            return NEVER
        return max(self._begun_ms + record.timeout_ms, self._retry_ms)

    @property
    def is_quiet(self) -> bool:
        """Whether the caller can drop this object from memory, because the committed record
        contains the whole state."""
        is_open = self.record is not None and self.record.is_open
        return not (self._is_busy or self._parked or is_open or self._is_end_refused)

    @property
    def _is_busy(self) -> bool:
        return self._pending is not None or self._is_fetching_id

    # Methods that handle requests.

    def _handle(self, event: Request) -> None:
        """Check the producer id of a request. Then carry the request out, or let it wait while a
        record is being written."""
        try:
            if isinstance(event, ev.Init):
                self._check_timeout(event.timeout_ms)
            else:
                self._check_producer_id(event.producer_id)
            if self._is_busy and not self._is_settled(event):
                self._park(event)
            elif isinstance(event, ev.Init):
                self._init(event)
            elif isinstance(event, ev.Add):
                self._add(event)
            else:
                self._end(event)
        except LogbusError as error:
            self._fail(event, error)

    def _is_settled(self, event: Request) -> bool:
        """Return whether a request to add partitions or groups can be answered while a record is
        being written, because the open transaction already contains them all."""
        record, pending = self.record, self._pending
        return (
            isinstance(event, ev.Add)
            and record is not None
            and record.state is TransactionState.ONGOING
            and pending is not None
            and pending.record is not None
            and pending.record.state is TransactionState.ONGOING
            and event.partitions <= record.partitions
            and event.groups <= record.groups
        )

    def _check_timeout(self, timeout_ms: int) -> None:
        if not 0 < timeout_ms <= self._timeout_max_ms:
            raise InvalidTransactionTimeoutError(
                f"transaction.timeout.ms {timeout_ms} of transactional id {self.name!r} is not "
                f"between 1 and the broker's transaction.max.timeout.ms {self._timeout_max_ms}; "
                "lower transaction.timeout.ms or raise the broker's setting"
            )

    def _check_producer_id(self, producer_id: int) -> None:
        record = self.record
        if record is None:
            raise InvalidProducerIdMappingError(
                f"transactional id {self.name!r} is unknown: it expired, or no producer has used "
                "it; create a new producer"
            )
        known = record.producer_id, record.next_id, record.previous_id
        if producer_id == NO_PRODUCER or producer_id not in known:
            raise InvalidProducerIdMappingError(
                f"transactional id {self.name!r} has producer id {record.producer_id}, not "
                f"{producer_id}; create a new producer"
            )

    def _pairs(self) -> tuple[tuple[int, int], tuple[int, int] | None]:
        """Return the current producer id and epoch, and the pair before the last increase of the
        epoch (None if there was none)."""
        record = self.record
        assert record is not None
        if record.next_id != NO_PRODUCER:
            current, former_id = (record.next_id, 0), record.producer_id
        else:
            current = record.producer_id, record.epoch
            is_switched = record.previous_id != NO_PRODUCER
            former_id = record.previous_id if is_switched else record.producer_id
        has_former = record.last_epoch != NO_PRODUCER_EPOCH
        return current, (former_id, record.last_epoch) if has_former else None

    def _fenced(self, producer_id: int, epoch: int) -> ProducerFencedError:
        current, _ = self._pairs()
        return ProducerFencedError(
            f"transactional id {self.name!r} has producer id {current[0]} and epoch {current[1]}; "
            f"producer id {producer_id} with epoch {epoch} is fenced. Another producer has started "
            "with this transactional id, or the transaction timed out. Create a new producer, and "
            "give each live producer a transactional id of its own"
        )

    def _invalid(self, wish: str) -> InvalidTxnStateError:
        assert self.record is not None
        return InvalidTxnStateError(
            f"transactional id {self.name!r} cannot {wish} in state {self.record.state.label}; "
            "begin a new transaction"
        )

    def _init(self, event: ev.Init) -> None:
        record = self.record
        if record is None:
            # A producer whose transactional id expired gets a new producer id and epoch, as in
            # Kafka.
            producer_id = self._take_id(event)
            if producer_id is not None:
                fresh = TransactionRecord(producer_id, 0, event.timeout_ms)
                self._persist(fresh, event)
            return
        if record.state in _PREPARED:
            self._park(event)
            return
        current, former = self._pairs()
        if event.expected is not None and event.expected != current:
            is_open = record.state is TransactionState.ONGOING
            if is_open or event.expected != former:
                raise self._fenced(*event.expected)
            self._reply(event, fx.TransactionResult(None, *current))
            return
        continues = event.expected is not None
        if record.state is TransactionState.ONGOING:
            if self._prepare(TransactionState.PREPARE_ABORT, event, continues=continues):
                self._park(event)
            return
        producer_id, epoch, previous_id = record.producer_id, record.epoch + 1, NO_PRODUCER
        if record.epoch >= EPOCH_LAST:
            new_id = self._take_id(event)
            if new_id is None:
                return
            previous_id = record.producer_id if continues else NO_PRODUCER
            producer_id, epoch = new_id, 0
        bumped = replace(
            record,
            producer_id=producer_id,
            epoch=epoch,
            last_epoch=record.epoch if continues else NO_PRODUCER_EPOCH,
            previous_id=previous_id,
            timeout_ms=event.timeout_ms,
            state=TransactionState.EMPTY,
        )
        self._persist(bumped, event)

    def _add(self, event: ev.Add) -> None:
        record = self.record
        assert record is not None
        if record.state in _PREPARED:
            self._park(event)
            return
        if (event.producer_id, event.epoch) != self._pairs()[0]:
            raise self._fenced(event.producer_id, event.epoch)
        is_open = record.state is TransactionState.ONGOING
        missing = event.partitions - record.partitions if is_open else event.partitions
        new_groups = event.groups - record.groups if is_open else event.groups
        if event.verify_only and (missing or new_groups or not is_open):
            error = TransactionAbortableError(
                f"transactional id {self.name!r} has no open transaction with this partition or "
                "group: the transaction has ended, or the partition or group was not added; abort "
                "the transaction and begin a new one"
            )
            refusal = fx.TransactionResult(error, transaction=record.number, missing=missing)
            self._reply(event, refusal)
            return
        if not is_open or self._connection is None:
            self._connection = event.connection
        if is_open and not missing and not new_groups:
            self._reply(event, fx.TransactionResult(transaction=record.number))
            return
        if not is_open:
            self._begun_ms = self._now.monotonic_ms
        grown = replace(
            record,
            state=TransactionState.ONGOING,
            number=record.number if is_open else record.number + 1,
            version=event.version,
            partitions=record.partitions | missing,
            groups=record.groups | new_groups,
            start_ms=record.start_ms if is_open else self._now.wall_ms,
        )
        size = len(grown.partitions) * _PARTITION_BYTES
        size += sum(len(group.encode("utf-8")) for group in grown.groups)
        if size > PARTICIPANT_BYTES_MAX:
            raise InvalidRequestError(
                f"the transaction of id {self.name!r} would have {len(grown.partitions)} "
                f"partitions and {len(grown.groups)} groups, {size} bytes; at most "
                f"{PARTICIPANT_BYTES_MAX} are allowed: abort it and use several transactions"
            )
        self._persist(grown, event)

    def _end(self, event: ev.End) -> None:
        current, former = self._pairs()
        pair = event.producer_id, event.epoch
        if event.version < 2:
            if pair != current:
                raise self._fenced(*pair)
            self._end_keeping_epoch(event)
        elif pair == current:
            self._end_bumping_epoch(event)
        elif pair == former:
            self._repeat_end(event)
        else:
            raise self._fenced(*pair)

    def _end_bumping_epoch(self, event: ev.End) -> None:
        """Commit or abort the transaction, and raise the producer epoch in the same record
        (transaction version 2)."""
        record = self.record
        assert record is not None
        if record.state in _PREPARED:
            self._park(event)
        elif record.state is TransactionState.ONGOING or not event.is_commit:
            # An abort is accepted even if no transaction is open, because the producer may not know
            # whether its first write began one.
            self._prepare(_kind(event.is_commit), event)
        else:
            raise self._invalid("commit")

    def _repeat_end(self, event: ev.End) -> None:
        """Answer a repeated EndTxn, which still has the producer epoch from before the last
        increase."""
        record = self.record
        assert record is not None
        kind = _kind(event.is_commit)
        state = record.state
        is_end = state not in (TransactionState.EMPTY, TransactionState.ONGOING)
        if not is_end or record.version < 2:
            raise self._fenced(event.producer_id, event.epoch)
        if state is kind:
            self._park(event)
        elif state is _PREPARED[kind]:
            self._reply(event, fx.TransactionResult(None, *self._pairs()[0]))
        elif state is TransactionState.COMPLETE_ABORT:
            # A timeout aborted the transaction before this commit arrived (KAFKA-20785).
            raise self._fenced(event.producer_id, event.epoch)
        else:
            raise self._invalid("commit" if event.is_commit else "abort")

    def _end_keeping_epoch(self, event: ev.End) -> None:
        """Commit or abort the transaction of a client whose epoch stays the same (transaction
        version 1).

        With the same epoch, a delayed EndTxn looks like that of the next transaction. So an EndTxn
        from an older connection than the one on which the transaction began is refused."""
        record = self.record
        assert record is not None
        kind = _kind(event.is_commit)
        if record.state is TransactionState.ONGOING:
            began, came = self._connection, event.connection
            if began is not None and came is not None and came < began:
                raise self._invalid("be ended by a connection older than the transaction")
            self._prepare(kind, event, bump=False)
        elif record.version == 1 and record.state is kind:
            self._park(event)
        elif record.version == 1 and record.state is _PREPARED[kind]:
            self._reply(event, fx.TransactionResult(None, *self._pairs()[0]))
        else:
            raise self._invalid("commit" if event.is_commit else "abort")

    def _prepare(
        self,
        kind: TransactionState,
        cause: Request | None,
        *,
        bump: bool = True,
        continues: bool = True,
    ) -> bool:
        """Write the decision to commit or abort (``kind``). Return False if the write must wait for
        a producer id.

        - ``cause`` is the request behind the decision, or None after a timeout.
        - ``bump`` raises the producer epoch, as in transaction version 2.
        - ``continues`` is False if a new producer takes over the transactional id.

        The request ``cause`` is answered once the decision is written; an InitProducerId, only once
        the transaction has ended."""
        record = self.record
        assert record is not None
        decided = replace(record, state=kind, version=2 if bump else 1)
        if bump:
            next_id = NO_PRODUCER
            if record.epoch >= EPOCH_LAST:
                new_id = self._take_id(cause)
                if new_id is None:
                    return False
                next_id = new_id
            decided = replace(
                decided,
                epoch=record.epoch + 1,
                last_epoch=record.epoch if continues else NO_PRODUCER_EPOCH,
                previous_id=NO_PRODUCER,
                next_id=next_id,
            )
        is_fence = isinstance(cause, ev.Init)
        self._persist(decided, None if is_fence else cause, is_fence=is_fence)
        return True

    def _take_id(self, cause: Request | None) -> int | None:
        """Return a reserved producer id. If none is reserved, let the caller fetch one, let the
        request ``cause`` wait for it, and return None."""
        new_id, self._spare_id = self._spare_id, None
        if new_id is None:
            self._is_fetching_id = True
            self._effects.append(fx.FetchProducerId())
            if cause is not None:
                self._park(cause)
        return new_id

    # Methods that let requests wait (park them), and retry them.

    def _park(self, event: Request) -> None:
        """Let a client's request wait until the record in flight is written or the transaction is
        complete.

        A request from another broker is refused: it would delay the later requests on its
        connection."""
        is_broker = isinstance(event, ev.Add) and event.connection is None
        if is_broker or len(self._parked) >= PARKED_MAX:
            raise ConcurrentTransactionsError(
                f"the previous change of transactional id {self.name!r} is still being written; "
                "try again"
            )
        self._parked.append(event)

    def _retry_parked(self) -> None:
        """Handle again, in order, the requests that wait (parked requests). A request that still
        cannot be carried out goes on waiting."""
        parked, self._parked = self._parked, []
        for event in parked:
            self._handle(event)

    def _fail_parked(self, error: LogbusError) -> None:
        parked, self._parked = self._parked, []
        for event in parked:
            self._fail(event, error)

    # Methods that write records and handle the results.

    def _persist(
        self, record: TransactionRecord | None, request: Request | None, *, is_fence: bool = False
    ) -> None:
        if record is not None:
            record = replace(record, changed_ms=self._now.wall_ms)
        self._numbers += 1
        self._pending = _RecordInFlight(self._numbers, record, request, is_fence)
        self._effects.append(fx.Persist(self._numbers, record))

    def _persisted(self, number: int) -> None:
        pending = self._pending
        if number >= self._end_number:
            self._end_number, self._is_end_refused = 0, False
        if pending is None or pending.number != number:
            return
        self._pending = None
        self.record = pending.record
        if pending.request is not None:
            self._reply_persisted(pending.request)
        if self.record is not None and self.record.state in _PREPARED:
            self._send_markers()
        self._retry_parked()

    def _reply_persisted(self, request: Request) -> None:
        record = self.record
        assert record is not None
        match request:
            case ev.Init():
                pair = record.producer_id, record.epoch
                self._reply(request, fx.TransactionResult(None, *pair))
            case ev.Add():
                self._reply(request, fx.TransactionResult(transaction=record.number))
            case ev.End():
                self._reply(request, fx.TransactionResult(None, *self._pairs()[0]))

    def _refused(self, event: ev.RecordRefused) -> None:
        pending = self._pending
        if event.number == self._end_number:
            self._is_end_refused = True
            self._retry_ms = self._now.monotonic_ms + RETRY_MS
        if pending is None or pending.number != event.number:
            return
        self._pending = None
        self._retry_ms = self._now.monotonic_ms + RETRY_MS
        if pending.request is not None:
            self._fail(pending.request, event.error)
        self._fail_parked(event.error)

    def _send_markers(self) -> None:
        record = self.record
        assert record is not None
        self._remaining = {*record.partitions, *record.groups}
        if not self._remaining:
            self._complete()
            return
        self._effects.append(
            fx.SendMarkers(
                record.number,
                record.producer_id,
                record.epoch,
                record.epoch - 1 if record.version > 1 else record.epoch,
                record.state is TransactionState.PREPARE_COMMIT,
                record.version,
                record.partitions,
                record.groups,
            )
        )

    def _participant_done(self, event: ev.ParticipantDone) -> None:
        record = self.record
        if record is None or record.number != event.number or record.state not in _PREPARED:
            return
        self._remaining.discard(event.participant)
        if not self._remaining:
            self._complete()
            self._retry_parked()

    def _complete(self) -> None:
        """Write the record of the transaction's end. Allow the next transaction at once, before the
        record is committed."""
        record = self.record
        assert record is not None
        done = replace(
            record,
            state=_PREPARED[record.state],
            partitions=frozenset(),
            groups=frozenset(),
            changed_ms=self._now.wall_ms,
        )
        if record.next_id != NO_PRODUCER:
            has_former = record.last_epoch != NO_PRODUCER_EPOCH
            done = replace(
                done,
                producer_id=record.next_id,
                epoch=0,
                previous_id=record.producer_id if has_former else NO_PRODUCER,
                next_id=NO_PRODUCER,
            )
        self.record = done
        self._connection = None
        self._persist_end()

    def _persist_end(self) -> None:
        """Write the record of the transaction's end, for which no request waits.

        If the log refuses it, ``_tick`` writes it again, unless the next change's record is
        committed first."""
        self._numbers += 1
        self._end_number, self._is_end_refused = self._numbers, False
        self._effects.append(fx.Persist(self._numbers, self.record))

    # Methods that handle loading, ticks, expiry and the loss of the partition.

    def _load(self) -> None:
        self._begun_ms = self._now.monotonic_ms
        if self.record is not None and self.record.state in _PREPARED:
            self._send_markers()

    def _tick(self) -> None:
        if self.deadline_ms > self._now.monotonic_ms:
            return
        if self._is_end_refused:
            self._persist_end()
        else:
            self._prepare(TransactionState.PREPARE_ABORT, None)

    def _expire(self, before_ms: int) -> None:
        if self.is_quiet and self.record is not None and self.record.changed_ms < before_ms:
            self._persist(None, None)

    def _depose(self, error: LogbusError) -> None:
        pending, self._pending = self._pending, None
        if pending is not None and pending.request is not None:
            self._fail(pending.request, error)
        self._fail_parked(error)

    # Methods that send replies.

    def _reply(self, event: Request, result: fx.TransactionResult) -> None:
        self._effects.append(fx.TransactionReply(event.token, result))

    def _fail(self, event: Request, error: LogbusError) -> None:
        self._reply(event, fx.TransactionResult(error))


def _kind(is_commit: bool) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT
