"""``TransactionalProducer``: a producer whose records become visible together when it commits.
``BusTransaction``: one transaction of such a producer, as a ``with`` block.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from broker_lite.client.operations.group_requests import NO_MEMBER
from broker_lite.client.operations.transaction_requests import OffsetsToCommit
from broker_lite.client.producing.futures import BatchFuture, RecordFuture
from broker_lite.client.producing.producer import WAIT_SLICE_S, Producer
from broker_lite.client.transactions.events import (
    AbortCall,
    BeginCall,
    Call,
    CommitCall,
    OffsetsCall,
)
from broker_lite.client.transactions.face import TransactionFace
from broker_lite.client.transactions.runner import TransactionRunner
from broker_lite.client.transport.steps import Shell
from broker_lite.config import ConsumerConfig, ProducerConfig
from broker_lite.errors import (
    FencedError,
    InvalidConfigError,
    InvalidTxnStateError,
    LogbusError,
    UnknownOutcomeError,
)
from broker_lite.model import CommittedOffset, TopicPartition

Rows = Mapping[TopicPartition, CommittedOffset | int]


class OffsetsOwner(Protocol):
    """The part of a consumer that ``send_offsets`` uses."""

    @property
    def config(self) -> ConsumerConfig: ...

    def group_offsets(
        self,
    ) -> tuple[str, tuple[str, int, str | None], Mapping[TopicPartition, CommittedOffset]]:
        """Return the consumer's group, its identity (member id, generation, instance id), and its
        positions."""


def checked_offsets(source: OffsetsOwner | Rows, group: str | None) -> OffsetsToCommit:
    """Return the offsets to commit: a consumer's positions, or given offsets for ``group``.

    Raises InvalidConfigError if the group is missing or given twice, or the consumer commits
    automatically."""
    if isinstance(source, Mapping):
        if not group:
            raise InvalidConfigError(
                "send_offsets needs the group of these offsets: give group='…'"
            )
        rows = {
            tp: row if isinstance(row, CommittedOffset) else CommittedOffset(row)
            for tp, row in source.items()
        }
        return OffsetsToCommit(group, rows, NO_MEMBER)
    if group is not None:
        raise InvalidConfigError(
            f"send_offsets of a consumer with group={group!r}: leave out the group; the consumer "
            "has one"
        )
    name, member, positions = source.group_offsets()
    if source.config.auto_commit:
        raise InvalidConfigError(
            f"send_offsets of a consumer of group {name!r} that commits automatically, which would "
            "commit records of aborted transactions; create it with auto_commit=False"
        )
    return OffsetsToCommit(name, positions, member)


class TransactionalProducer(Producer):
    """A producer of transactions. Create it with ``Bus.producer(transactional_id=…)``.

    Call ``begin``, then ``send``, ``send_arrow`` and ``send_offsets``, then ``commit`` or
    ``abort``. Consumers with ``isolation_level="read_committed"`` (the default) read all records of
    a committed transaction and none of an aborted one. Each running producer needs a transactional
    id of its own: the first ``begin`` fences older producers with the same id.

    After FencedError, close the producer; after TransactionAbortedError, call ``begin`` again;
    after UnknownOutcomeError, call the same method again."""

    def __init__(
        self, bootstrap_servers: str, config: ProducerConfig, *, shell: Shell | None = None
    ) -> None:
        if not config.transactional_id:
            raise InvalidConfigError("a producer of transactions needs transactional_id='…'")
        super().__init__(bootstrap_servers, config, shell=shell)
        self.on_shut: Callable[[LogbusError], None] | None = None
        """Called on the sending thread at a commit or abort, and after a failure, with the error
        that ``send`` raises from then on."""
        self._shut = InvalidTxnStateError(
            f"no transaction of id {config.transactional_id!r} is open; call begin() before send()"
        )
        self.runner = TransactionRunner(
            self._shell, self._cluster, config, self._sender, on_shut=self._set_shut
        )

    @property
    def is_closed(self) -> bool:
        """Whether the producer was closed, or belongs to the parent of this forked process."""
        return self._end is not None

    @property
    def is_usable(self) -> bool:
        """Whether another transaction can begin: the producer is neither closed nor fenced, and no
        transaction is open or has an unknown outcome."""
        return not self.is_closed and self.runner.is_resting

    def begin(self) -> None:
        """Begin a transaction. If the previous transaction has failed, abort that one first.

        Raises InvalidTxnStateError while a transaction is open, FencedError,
        InvalidTransactionTimeoutError, and after ``max_block_ms`` the error of the last attempt."""
        self._call(BeginCall())

    def commit(self) -> None:
        """Wait until all records are acknowledged, and commit the transaction.

        Raises TransactionAbortedError if a record failed: the transaction is aborted, so begin
        again. Raises UnknownOutcomeError if the coordinator did not answer: call ``commit``
        again."""
        self.start_flush()
        self._call(CommitCall())

    def abort(self) -> None:
        """Abort the open transaction, if any."""
        self._call(AbortCall())

    def send_offsets(self, source: OffsetsOwner | Rows, group: str | None = None) -> None:
        """Commit a group's offsets with the transaction.

        ``source`` is a consumer of a group with ``auto_commit=False``, or a mapping from
        TopicPartition to the next offset to read, for ``group``. Raises IllegalGenerationError or
        UnknownMemberIdError if the consumer has lost its partitions: abort, and continue from the
        group's committed offsets."""
        offsets = checked_offsets(source, group)
        if offsets.rows:
            self._call(OffsetsCall(offsets.group), offsets=offsets)

    def _call(self, call: Call, wait_s: float | None = None, **options: Any) -> None:
        answers: queue.SimpleQueue[LogbusError | None] = queue.SimpleQueue()
        if self._end is not None:
            raise self._end.with_traceback(None)
        self.runner.call(call, answers.put, **options)
        error = self.wait_answer(answers, wait_s)
        if error is not None:
            raise error

    def _set_shut(self, error: LogbusError | None) -> None:
        """Make ``send`` raise ``error`` from now on; None makes it accept records again.

        With an error, also pass the records accepted so far to the sender, because they belong to
        the transaction that is ending."""
        with self._lock:
            self._shut = error
            if error is not None:
                for rows in list(self._open.values()):
                    self._seal(rows)
                self._failures.clear()
                self._space.notify_all()
        if error is not None and self.on_shut is not None:
            self.on_shut(error)

    def close(self, timeout_s: float | None = None) -> None:
        """Abort an open transaction, then stop the background thread.

        Raises RequestTimedOutError if an earlier call still runs after ``timeout_s`` seconds."""
        if self._end is not None:
            return
        options: dict[str, Any] = {}
        if timeout_s is not None:
            # Give the requests of the abort the timeout of this call: a request then usually fails
            # before the call does, and its error gives the reason.
            options = {"timeout_ms": timeout_s * 1000.0, "wait_s": timeout_s + WAIT_SLICE_S}
        try:
            self._call(AbortCall(), **options)
        except FencedError:
            pass  # Another producer has fenced this one, and so aborted the transaction.
        finally:
            self.end()

    def _stop(self) -> None:
        super()._stop()
        assert self._end is not None
        self.runner.close(self._end)


class BusTransaction(TransactionFace[TransactionalProducer]):
    """One transaction, as ``Bus.transaction`` returns it: ``with bus.transaction("id") as txn``.

    The end of the block commits, an exception aborts. After UnknownOutcomeError, call ``commit``
    again, even after the block."""

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture:
        """Send a record; see ``Producer.send``."""
        return self._live().send(topic, value, key, headers, partition, timestamp_ms)

    def send_arrow(
        self,
        topic: str,
        data: Any,
        *,
        key: str | None = None,
        value: str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> BatchFuture:
        """Send Arrow rows; see ``Producer.send_arrow``."""
        return self._live().send_arrow(
            topic, data, key=key, value=value, partition=partition, timestamp_ms=timestamp_ms
        )

    def send_offsets(self, source: OffsetsOwner | Rows, group: str | None = None) -> None:
        """Commit a consumer's positions with the transaction; see
        ``TransactionalProducer.send_offsets``."""
        self._live().send_offsets(source, group)

    def commit(self) -> None:
        """Commit now. The end of the ``with`` block then does nothing."""
        self._end(self._live().commit)

    def abort(self) -> None:
        """Abort now. The end of the ``with`` block then does nothing."""
        self._end(self._live().abort)

    def _end(self, end: Callable[[], None]) -> None:
        try:
            end()
        except UnknownOutcomeError:
            raise
        except BaseException:
            self._finish()
            raise
        self._finish()

    def _finish(self) -> None:
        self._is_open = False
        self._release(self._producer)

    def __enter__(self) -> BusTransaction:
        try:
            self._producer.begin()
        except BaseException:
            self._finish()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if not self._is_open:
            return
        if error is None:
            self.commit()
            return
        try:
            self.abort()
        except LogbusError as problem:
            error.add_note(f"the abort of the transaction failed too: {problem}")
            if self._is_open:
                self._finish()
