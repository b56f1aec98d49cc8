"""``TransactionMachine``: the transactions of one producer as a state machine without I/O.

It receives events (calls of the user, results of requests) and returns effects (requests to send,
answers to the user); ``events`` defines both.

Each transaction has an identity of its own (producer id and epoch), so sequences begin at 0 in each
partition. In transaction version 2 (KIP-890), the response to EndTxn contains the next identity. In
version 1, InitProducerId with the present identity raises the epoch before the next transaction.

A transaction in which a record failed can only abort. If the coordinator refuses a commit, the
machine sends an abort with the same identity, to learn the reason:

- The coordinator accepts the abort if it had aborted the transaction itself, after its timeout.
- The coordinator refuses the abort if another producer has taken the transactional id.

The machine does not send InitProducerId to learn the reason, because Kafka's coordinator would then
abort the other producer's transaction. The caller passes one call of the user at a time, and the
next one only after ``AnswerCall``."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from broker_lite.client.producing.batches import ProducerIdentity
from broker_lite.client.transactions import events as ev
from broker_lite.errors import (
    FencedError,
    FencedInstanceIdError,
    IllegalGenerationError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    LogbusError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionAbortedError,
    UnknownMemberIdError,
    UnknownOutcomeError,
)

TRANSACTIONS_BY_EPOCH = 2
"""The lowest transaction version in which every EndTxn raises the producer epoch (KIP-890)."""

_FENCED = (InvalidProducerEpochError, ProducerFencedError)
_ENDED_ALREADY = (*_FENCED, InvalidTxnStateError)
_ENDED_WITHOUT_COMMIT = (
    *_ENDED_ALREADY,
    InvalidProducerIdMappingError,
    TransactionAbortableError,
)
"""Errors of TxnOffsetCommit that show that the transaction has ended or must be aborted."""
_GROUP_MOVED_ON = (FencedInstanceIdError, IllegalGenerationError, UnknownMemberIdError)


class Phase(Enum):
    """The phase of a transactional producer, which determines the calls that it accepts."""

    IDLE = "no transaction is open"
    INITIALIZING = "InitProducerId is under way"
    OPEN = "a transaction is open"
    FAILED = "the transaction can only abort"
    DELIVERING = "the commit waits for acknowledgements"
    ENDING = "EndTxn is under way, or its outcome is unknown"
    CHECKING = "EndTxn found no transaction; InitProducerId is under way"
    OVER = "another producer has the transactional id"


class TransactionMachine:
    """The state machine of one producer. The caller must carry out the effects (requests and
    answers) that ``step`` returns."""

    def __init__(self, transactional_id: str, timeout_ms: int) -> None:
        self.phase = Phase.IDLE
        self.identity: ProducerIdentity | None = None
        self.version = TRANSACTIONS_BY_EPOCH
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self._is_fresh = False
        """Whether the producer's current id and epoch are still unused by any transaction."""
        self._call: ev.Call | None = None
        self._cause: LogbusError | None = None
        """The error because of which the transaction can only abort."""
        self._is_commit = False
        """Whether the EndTxn in flight commits."""
        self._has_begun = False
        """Whether the coordinator may know that the transaction is open; if not, EndTxn is
        unnecessary."""

    def step(self, event: ev.Event, *, has_sent: bool = False) -> list[ev.Effect]:
        """Return the effects (requests and answers) of one event, in order.

        ``has_sent`` says whether a batch was sent, or a partition added, in this transaction."""
        self._has_begun = self._has_begun or has_sent
        return list(self._decide(event))

    def _decide(self, event: ev.Event) -> Iterator[ev.Effect]:
        match event:
            case ev.BeginCall() | ev.CommitCall() | ev.AbortCall() | ev.OffsetsCall():
                self._call = event
                yield from self._called(event)
            case ev.Initialized(identity, version):
                yield from self._initialized(identity, version)
            case ev.InitFailed(error):
                yield from self._init_failed(error)
            case ev.SendFailed(error):
                yield from self._send_failed(error)
            case ev.Delivered() if self.phase is Phase.DELIVERING:
                yield from self._end(is_commit=True)
            case ev.OffsetsSent(error):
                yield from self._offsets_sent(error)
            case ev.Ended(identity) if self.phase is Phase.ENDING:
                yield from self._ended(identity)
            case ev.EndFailed(error) if self.phase is Phase.ENDING:
                yield from self._end_failed(error)
            case _:
                return

    # Methods that handle the user's calls.

    def _called(self, call: ev.Call) -> Iterator[ev.Effect]:
        match self.phase, call:
            case Phase.OVER, _:
                yield ev.AnswerCall(self._over())
            case Phase.IDLE, ev.BeginCall():
                yield from self._begin()
            case Phase.IDLE, ev.AbortCall():
                yield ev.AnswerCall()
            case Phase.FAILED, ev.OffsetsCall():
                yield ev.AnswerCall(self._aborted())
            case Phase.FAILED, _:
                yield from self._end(is_commit=False)
            case Phase.OPEN, ev.CommitCall():
                self.phase = Phase.DELIVERING
                yield ev.ShutSends(self._misuse("is being committed; call begin() after commit()"))
                yield ev.AwaitDelivery()
            case Phase.OPEN, ev.AbortCall():
                yield ev.ShutSends(self._outside())
                yield ev.DiscardSends(TransactionAbortedError(f"abort() ended {self._name()}"))
                yield from self._end(is_commit=False)
            case Phase.OPEN, ev.OffsetsCall():
                assert self.identity is not None
                self._has_begun = True
                yield ev.CommitOffsets(self.identity, self.version)
            case Phase.OPEN, ev.BeginCall():
                yield ev.AnswerCall(self._misuse("is open already; commit() or abort() it first"))
            case Phase.ENDING, ev.CommitCall():
                yield from self._end(is_commit=self._is_commit)
            case Phase.ENDING, ev.BeginCall() | ev.AbortCall() if not self._is_commit:
                yield from self._end(is_commit=False)
            case Phase.ENDING, _:
                yield ev.AnswerCall(self._misuse("has an unknown outcome; call commit() again"))
            case _:
                yield ev.AnswerCall(self._outside())

    def _begin(self) -> Iterator[ev.Effect]:
        self._cause = None
        self._has_begun = False
        if self.identity is None or not self._is_fresh:
            self.phase = Phase.INITIALIZING
            yield ev.Initialize(self.identity)
            return
        self.phase = Phase.OPEN
        yield ev.OpenSends(self.identity, self.version)
        yield ev.AnswerCall()

    # Methods that handle the answers to InitProducerId.

    def _initialized(self, identity: ProducerIdentity, version: int) -> Iterator[ev.Effect]:
        self.identity, self.version, self._is_fresh = identity, version, True
        if self.phase is Phase.CHECKING:
            yield from self._rolled_back()
        elif self.phase is Phase.INITIALIZING:
            yield from self._begin()

    def _init_failed(self, error: LogbusError) -> Iterator[ev.Effect]:
        is_check = self.phase is Phase.CHECKING
        if isinstance(error, InvalidProducerIdMappingError):
            # The transactional id has expired, so the producer's id and epoch are no longer valid.
            # Request new ones.
            self.identity = None
            yield from self._rolled_back() if is_check else self._begin()
        elif isinstance(error, _FENCED):
            yield from self._fenced()
        elif is_check:
            self.phase = Phase.ENDING
            yield self._unknown(error)
        elif isinstance(error, InvalidTransactionTimeoutError):
            self.phase = Phase.IDLE
            yield ev.AnswerCall(
                InvalidTransactionTimeoutError(
                    f"transaction.timeout.ms={self._timeout_ms} of transactional id {self._id!r} "
                    "is above the brokers' transaction.max.timeout.ms (900000 by default); "
                    "lower the producer's setting, or raise that of the brokers"
                )
            )
        else:
            self.phase = Phase.IDLE
            yield ev.AnswerCall(error)

    # Methods that handle failed sends and answers to TxnOffsetCommit.

    def _send_failed(self, error: LogbusError) -> Iterator[ev.Effect]:
        if self.phase not in (Phase.OPEN, Phase.DELIVERING):
            return
        is_commit = self.phase is Phase.DELIVERING
        self.phase = Phase.FAILED
        self._cause = error
        yield ev.ShutSends(self._aborted())
        yield ev.DiscardSends(self._aborted())
        if is_commit:
            yield from self._end(is_commit=False)

    def _offsets_sent(self, error: LogbusError | None) -> Iterator[ev.Effect]:
        if self.phase is Phase.FAILED:
            error = self._aborted()
        elif error is not None:
            self.phase = Phase.FAILED
            if isinstance(error, _GROUP_MOVED_ON):
                error = type(error)(
                    f"{error.message}. The group has given these partitions to another member. "
                    f"Abort {self._name()} and read on from the group's committed offsets"
                )
            self._cause = error
            if isinstance(error, _ENDED_WITHOUT_COMMIT):
                error = self._aborted()
            yield ev.ShutSends(self._aborted())
            yield ev.DiscardSends(self._aborted())
        yield ev.AnswerCall(error)

    # Methods that end a transaction.

    def _end(self, *, is_commit: bool) -> Iterator[ev.Effect]:
        assert self.identity is not None
        if not self._has_begun and self.phase is not Phase.ENDING:
            self.phase = Phase.IDLE
            yield from self._finish(is_commit=is_commit)
            return
        self.phase = Phase.ENDING
        self._is_commit = is_commit
        self._is_fresh = False
        yield ev.SendEnd(self.identity, self.version, is_commit)

    def _ended(self, identity: ProducerIdentity | None) -> Iterator[ev.Effect]:
        if identity is not None:
            self.identity, self._is_fresh = identity, True
        self.phase = Phase.IDLE
        yield from self._finish(is_commit=self._is_commit)

    def _finish(self, *, is_commit: bool) -> Iterator[ev.Effect]:
        yield ev.ShutSends(self._outside())
        if isinstance(self._call, ev.BeginCall):
            yield from self._begin()
        elif isinstance(self._call, ev.CommitCall) and not is_commit:
            yield ev.AnswerCall(self._aborted())
        else:
            yield ev.AnswerCall()

    def _end_failed(self, error: LogbusError) -> Iterator[ev.Effect]:
        is_refused = isinstance(error, (*_ENDED_ALREADY, TransactionAbortableError))
        if is_refused and self._is_commit:
            self._cause = self._cause or error
            yield from self._end(is_commit=False)
        elif isinstance(error, (*_FENCED, InvalidProducerIdMappingError)):
            yield from self._fenced()
        elif isinstance(error, InvalidTxnStateError):
            # The coordinator accepts the producer id and epoch, but has no transaction to abort.
            # Continue with InitProducerId.
            self.phase = Phase.CHECKING
            yield ev.Initialize(self.identity)
        elif error.retriable or not error.definite:
            yield self._unknown(error)
        else:
            self.phase = Phase.FAILED
            self._cause = error
            yield ev.AnswerCall(error)

    def _fenced(self) -> Iterator[ev.Effect]:
        self.phase = Phase.OVER
        yield ev.ShutSends(self._over())
        yield ev.AnswerCall(self._over())

    def _unknown(self, error: LogbusError) -> ev.AnswerCall:
        call = "commit()" if isinstance(self._call, ev.CommitCall) else "abort()"
        return ev.AnswerCall(
            UnknownOutcomeError(
                f"the coordinator did not answer {call} of {self._name()} in time, so its outcome "
                f"is unknown ({error.message}). Call {call} again"
            )
        )

    def _rolled_back(self) -> Iterator[ev.Effect]:
        """End the user's call as if an abort had succeeded: InitProducerId has shown that the
        coordinator has no open transaction any more."""
        self.phase = Phase.IDLE
        yield from self._finish(is_commit=False)

    # Methods that build errors.

    def _name(self) -> str:
        return f"the transaction of id {self._id!r}"

    def _aborted(self) -> TransactionAbortedError:
        why = "" if self._cause is None else f": {self._cause.message}"
        if isinstance(self._cause, _ENDED_ALREADY):
            why = (
                f" by the coordinator: transaction.timeout.ms={self._timeout_ms} has passed, or "
                "another producer has the id"
            )
        return TransactionAbortedError(
            f"{self._name()} was aborted{why}. None of its records becomes visible; begin() again"
        )

    def _over(self) -> FencedError:
        return FencedError(
            f"this producer of transactional id {self._id!r} cannot continue: another producer has "
            f"taken the id, or it expired, or a commit came after transaction.timeout.ms="
            f"{self._timeout_ms}. Close this producer; give each live producer an id of its own"
        )

    def _outside(self) -> InvalidTxnStateError:
        return self._misuse("is not open; call begin() first")

    def _misuse(self, what: str) -> InvalidTxnStateError:
        return InvalidTxnStateError(f"{self._name()} {what}")
