"""The keys and values of one partition of an internal topic, such as the transaction log, on its
leader.

An *upsert* sets or deletes the value of one key, with a record in the topic. It is pending until
the high watermark passes its batch or the log refuses the batch; then it is settled.
``server/coordinators/state_log.py`` does the I/O. It reports upserts, the end of each iteration
of the event loop, the outcome of each batch, and the high watermark. ``KeyedState`` returns
the batches to append and the upserts that are settled.

Internal topics are not compacted. Instead, the leader writes a full copy of the state from time to
time: a ``begin`` record, batches with the values of all keys, and an ``end`` record. Once the copy
is committed, the leader deletes the records before ``begin``. A key with pending upserts waits, and
is left out if one of them is committed, because its record then follows ``begin`` anyway.

The value of a record begins with a byte of flags; a deletion has no value. ``begin`` and ``end``
have no key."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from broker_lite.errors import CorruptMessageError, LogbusError, MessageTooLargeError
from broker_lite.record.batch import BatchHeader
from broker_lite.record.records import decode_entries, encode_entries

BATCH_BYTES = 64 << 10
"""Bytes of keys and values at which a batch is full. The event loop encodes such a batch in 2
ms."""
VALUE_BYTES_MAX = 32 << 20
"""Maximum bytes of a key and its value together."""
COPY_BYTES_MIN = 16 << 20
"""Bytes of batches since the last full copy of all keys and values from which ``COPY_RATIO``
applies."""
COPY_RATIO = 4
"""A full copy is written once the batches since the last copy have this many times the bytes of all
keys and values. This keeps the log short without too many copies."""
COPY_BATCHES = 8_000
"""Apart from ``COPY_RATIO``, a full copy of the keys and values is written after this number of
batches since the last copy, or after half as many batches as there are keys, if that is more.

The limit bounds the time in which a new leader loads the log: it loads about 200,000 batches a
second, whatever their size. With 17,000 keys, copies cost the leader 2 µs per appended batch."""
_MARK = struct.Struct(">BQI")
"""Layout of the values of a full copy's first and last record, ``begin`` and ``end``: kind (begin
or end), number of the copy, count of copied keys."""
_BEGIN, _END = 1, 2


class AppendState(NamedTuple):
    """Append the batch with acks=all. The caller reports the outcome to ``appended`` or
    ``refused``, with the batch's ``number``."""

    number: int
    batch: bytearray


class UpsertsSettled(NamedTuple):
    """The upserts (changes of keys) that callers of ``put`` gave these ``tokens`` are committed or,
    if ``error`` is set, refused by the log."""

    tokens: Sequence[int]
    error: LogbusError | None = None


class DeleteBefore(NamedTuple):
    """Delete the records before ``offset``, because a complete and committed copy of all keys and
    values follows them in the log."""

    offset: int


Effect = UpsertsSettled | DeleteBefore


class _Upsert(NamedTuple):
    token: int
    key: bytes
    value: bytes | None
    flags: int


@dataclass(slots=True)
class _Batch:
    """A batch that is not committed yet.

    ``next_offset`` is -1 until the log has the batch. ``kind`` says whether the batch is the record
    that begins or ends a full copy of all keys and values; it is 0 for other batches."""

    number: int
    upserts: list[_Upsert] = field(default_factory=list)
    copied: list[bytes] = field(default_factory=list)
    kind: int = 0
    base_offset: int = -1
    next_offset: int = -1


@dataclass(slots=True)
class _Copy:
    """A full copy of all keys and values, while it is being appended to the log.

    ``left`` holds the keys still to be copied; None until the copy's first record, ``begin``, is
    committed."""

    number: int
    begin_offset: int = -1
    left: dict[bytes, None] | None = None
    count: int = 0
    is_writing: bool = False
    """Whether a batch of this full copy is being appended. At most one such batch is in flight."""


class KeyedState:
    """The keys and values of one partition of an internal topic, in one leader epoch.

    ``values`` has the committed value of every key. ``flags`` has the byte of flags of each key's
    last record, unless the byte is 0; callers of ``put`` choose its meaning. They must not change
    either mapping."""

    def __init__(
        self,
        values: dict[bytes, bytes] | None = None,
        flags: dict[bytes, int] | None = None,
        *,
        log_bytes: int = 0,
        log_batches: int = 0,
        last_copy: int = 0,
    ) -> None:
        self.values = values if values is not None else {}
        self.flags = flags if flags is not None else {}
        self.live_bytes = sum(map(len, self.values)) + sum(map(len, self.values.values()))
        self._dirty_bytes = max(0, log_bytes - self.live_bytes)
        """Bytes of the batches in the log since the last full copy of all keys and values began."""
        self._dirty_batches = log_batches
        self._turn: list[_Upsert] = []
        self._pending: dict[bytes, int] = {}
        """Number of upserts (changes) of each key that are neither committed nor refused."""
        self._batches: deque[_Batch] = deque()
        self._last_number = 0
        self._last_copy = last_copy
        self._copy: _Copy | None = None
        self._is_copy_refused = False
        """Whether the log refused a batch of the current full copy of all keys and values. The copy
        waits until another batch has been committed."""

    @property
    def is_copy_due(self) -> bool:
        """Whether the next ``turn``, at the end of an iteration of the event loop, may begin a full
        copy of all keys and values, or write the next batch of a copy."""
        if self._is_copy_refused:
            return False
        copy = self._copy
        if copy is None:
            return self._dirty_bytes > max(
                COPY_BYTES_MIN, COPY_RATIO * self.live_bytes
            ) or self._dirty_batches > max(COPY_BATCHES, len(self.values) // 2)
        return copy.left is not None and not copy.is_writing

    def put(self, token: int, key: bytes, value: bytes | None, flags: int = 0) -> None:
        """Set the value of a key, or delete the key if ``value`` is None. The next ``turn``, at the
        end of this iteration of the event loop, returns the change in a batch, and
        ``UpsertsSettled`` with ``token`` reports its outcome. Raises MessageTooLargeError above
        VALUE_BYTES_MAX."""
        size = len(key) + len(value or b"")
        if size > VALUE_BYTES_MAX:
            raise MessageTooLargeError(
                f"key {key[:100]!r} and its value have {size} bytes; a state record has at most "
                f"{VALUE_BYTES_MAX}"
            )
        self._turn.append(_Upsert(token, key, value, flags))
        self._pending[key] = self._pending.get(key, 0) + 1

    def turn(self, now_ms: int) -> list[AppendState]:
        """Return the batches to append at the end of an iteration of the event loop: the values put
        during the iteration, then at most one batch of a copy of all keys and values."""
        writes = []
        upserts, self._turn = self._turn, []
        for part in _split(upserts):
            rows = [(one.key, _content(one.value, one.flags)) for one in part]
            write = self._write(_Batch(0, upserts=part), rows, now_ms)
            self._dirty_bytes += len(write.batch)
            self._dirty_batches += 1
            writes.append(write)
        copying = self._continue_copy(now_ms)
        return writes if copying is None else [*writes, copying]

    def _write(
        self, batch: _Batch, rows: Sequence[tuple[bytes | None, bytes | None]], now_ms: int
    ) -> AppendState:
        batch.number = self._last_number = self._last_number + 1
        self._batches.append(batch)
        return AppendState(batch.number, encode_entries(rows, now_ms))

    # Methods that handle the outcomes of appends.

    def appended(self, number: int, base_offset: int, next_offset: int) -> None:
        """Record that the log has appended batch ``number``. Its upserts (changes of keys) are
        committed when the high watermark passes the batch."""
        batch = next(one for one in self._batches if one.number == number)
        batch.base_offset, batch.next_offset = base_offset, next_offset

    def refused(self, number: int, error: LogbusError) -> list[Effect]:
        """Roll back batch ``number``, which the log refused as a whole. Its upserts (changes of
        keys) fail with ``error``."""
        batch = next(one for one in self._batches if one.number == number)
        self._batches.remove(batch)
        for upsert in batch.upserts:
            self._settle(upsert.key)
        copy = self._copy
        if batch.kind or batch.copied:
            assert copy is not None
            copy.is_writing = False
            self._is_copy_refused = True
            if batch.kind == _BEGIN:
                self._copy = None
            elif copy.left is not None:
                copy.left.update((key, None) for key in batch.copied if key in self.values)
                copy.count -= len(batch.copied)
        if not batch.upserts:
            return []
        return [UpsertsSettled([upsert.token for upsert in batch.upserts], error)]

    def advanced(self, high_watermark: int) -> list[Effect]:
        """Commit the batches below the high watermark, in order. Return the operations (effects)
        that the caller carries out next."""
        effects: list[Effect] = []
        batches = self._batches
        while batches and 0 <= batches[0].next_offset <= high_watermark:
            batch = batches.popleft()
            self._is_copy_refused = False
            for upsert in batch.upserts:
                self._commit(upsert)
            if batch.upserts:
                effects.append(UpsertsSettled([upsert.token for upsert in batch.upserts]))
            else:
                effects += self._copied(batch)
        return effects

    def _commit(self, upsert: _Upsert) -> None:
        _, key, value, flags = upsert
        before = self.values.get(key)
        if before is not None:
            self.live_bytes -= len(key) + len(before)
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value
            self.live_bytes += len(key) + len(value)
        if value is not None and flags:
            self.flags[key] = flags
        else:
            self.flags.pop(key, None)
        self._settle(key)
        if self._copy is not None and self._copy.left is not None:
            # The copy in progress may leave out this key: a load of the state also reads the record
            # of the new value, which comes after the copy's ``begin`` record.
            self._copy.left.pop(key, None)

    def _settle(self, key: bytes) -> None:
        left = self._pending[key] - 1
        if left:
            self._pending[key] = left
        else:
            del self._pending[key]

    # Methods that copy the state to the end of the log.

    def _continue_copy(self, now_ms: int) -> AppendState | None:
        """Return the next batch of the full copy of all keys and values; None if no copy is due, or
        if the copy has no batch to write now."""
        if not self.is_copy_due:
            return None
        copy = self._copy
        if copy is None:
            self._last_copy += 1
            copy = self._copy = _Copy(self._last_copy, is_writing=True)
            return self._write(_Batch(0, kind=_BEGIN), [_mark(_BEGIN, copy.number, 0)], now_ms)
        assert copy.left is not None
        if not copy.left:
            copy.is_writing = True
            mark = _mark(_END, copy.number, copy.count)
            return self._write(_Batch(0, kind=_END), [mark], now_ms)
        keys = self._next_slice(copy.left)
        if not keys:
            return None
        copy.is_writing = True
        copy.count += len(keys)
        rows = [(key, _content(self.values[key], self.flags.get(key, 0))) for key in keys]
        return self._write(_Batch(0, copied=keys), rows, now_ms)

    def _next_slice(self, left: dict[bytes, None]) -> list[bytes]:
        keys = []
        size = 0
        for key in left:
            if size >= BATCH_BYTES:
                break
            if key not in self._pending:
                keys.append(key)
                size += len(key) + len(self.values[key])
        for key in keys:
            del left[key]
        return keys

    def _copied(self, batch: _Batch) -> list[Effect]:
        """Record that a batch of the full copy of all keys and values is committed.

        After the copy's last batch, return the effect that deletes the records before the copy."""
        copy = self._copy
        assert copy is not None
        copy.is_writing = False
        if batch.kind == _BEGIN:
            # The outcome of every batch before the ``begin`` record is known, so ``values`` is the
            # state up to that record.
            copy.begin_offset, copy.left = batch.base_offset, dict.fromkeys(self.values)
            self._dirty_bytes = self._dirty_batches = 0
        elif batch.kind == _END:
            self._copy = None
            return [DeleteBefore(copy.begin_offset)]
        return []


class Replay:
    """Loads the keys and values of a partition from its log, for a new leader. Pass each batch to
    ``batch``, in order from the start of the log. ``state`` then returns the result."""

    def __init__(self, log_start_offset: int) -> None:
        self._start = log_start_offset
        self._contents: dict[bytes, bytes] = {}
        self._bytes = self._batches = 0
        self._rows = 0
        self._begun: tuple[int, int, int] | None = None
        """The last ``begin`` record (the first record of a full copy) that was read: the number of
        the copy, the record's offset, and the number of records read, with this one."""
        self._last_copy = 0
        self.delete_before: int | None = None
        """Offset at which the last complete copy of all keys and values begins, if the log still
        has records before it, which can be deleted; otherwise None."""

    def batch(self, buffer: memoryview, header: BatchHeader) -> None:
        """Apply the records of the next batch in the log. Raises CorruptMessageError."""
        contents = self._contents
        self._batches += 1
        self._bytes += len(buffer)
        for key, value in decode_entries(buffer, header):
            self._rows += 1
            if key is None:
                self._mark(header.base_offset, value or b"")
            elif value is None:
                contents.pop(key, None)
            else:
                contents[key] = value

    def _mark(self, offset: int, value: bytes) -> None:
        if len(value) != _MARK.size:
            raise CorruptMessageError(
                f"offset {offset}: the begin or end record of a state copy has {len(value)} bytes, "
                f"not {_MARK.size}"
            )
        kind, number, count = _MARK.unpack(value)
        self._last_copy = max(self._last_copy, number)
        if kind == _BEGIN:
            self._begun = number, offset, self._rows
        elif self._begun is not None and self._begun[0] == number:
            _, began, rows = self._begun
            if self._rows - 1 - rows < count:
                raise CorruptMessageError(
                    f"the copy of the state from offset {began} to {offset} declares {count} keys, "
                    f"but has only {self._rows - 1 - rows} records"
                )
            self.delete_before = began if began > self._start else None

    def state(self) -> KeyedState:
        """Return the loaded keys and values."""
        contents = self._contents
        return KeyedState(
            {key: content[1:] for key, content in contents.items()},
            {key: content[0] for key, content in contents.items() if content[0]},
            log_bytes=self._bytes,
            log_batches=self._batches,
            last_copy=self._last_copy,
        )


def _split(upserts: list[_Upsert]) -> Iterable[list[_Upsert]]:
    """Divide the upserts (changes of keys), in order, into lists of about BATCH_BYTES each."""
    part: list[_Upsert] = []
    size = 0
    for upsert in upserts:
        if part and size >= BATCH_BYTES:
            yield part
            part, size = [], 0
        part.append(upsert)
        size += len(upsert.key) + len(upsert.value or b"")
    if part:
        yield part


def _content(value: bytes | None, flags: int) -> bytes | None:
    return None if value is None else bytes((flags,)) + value


def _mark(kind: int, number: int, count: int) -> tuple[None, bytes]:
    return None, _MARK.pack(kind, number, count)
