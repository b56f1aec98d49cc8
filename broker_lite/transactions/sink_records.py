"""Encode and decode the records of Spark's exactly-once sinks in ``__transaction_state``: heads and
slots.

A *sink* is the target of one Spark query or batch write, and a *run* is one start of the query. A
sink's *head* is a record with its current run and its last committed batch. To commit a batch, the
coordinator appends a head with that batch. A *slot* is a producer id from the partition's pool,
with which one attempt of a task writes. ``records`` describes the format of all keys and values."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from broker_lite.errors import ProtocolError
from broker_lite.model import PartitionKey
from broker_lite.transactions.records import put_partitions, take_partitions
from broker_lite.wire.primitives import Reader, Writer

NO_BATCH = -1
FORMER_RUNS_MAX = 16
_HEAD_KEY, _SLOT_KEY = 1, 2
_VERSION = 0
_VERSION_FIELD = struct.Struct(">h")
_HEAD = struct.Struct(">qqbqi")
"""Layout of a sink's state: last committed batch, its rows, state, last batch of the commit or
abort in progress, day of the last use."""
_PAIR = struct.Struct(">qh")
_SLOT = struct.Struct(">hqqqq")
"""Layout of the state of a slot (producer id): epoch, batch, task, attempt, timeout in ms."""
_SLOT_ID = struct.Struct(">q")


class SinkState(IntEnum):
    """The state of a sink. OPEN means open for writes. In the other states, a commit or abort is
    decided, but its markers are not all written."""

    OPEN = 0
    PREPARE_COMMIT = 1
    PREPARE_ABORT = 2


class ProducerPair(NamedTuple):
    """A producer id and its epoch, which identify one attempt of a task."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class SinkHead:
    """The state of one sink, as ``__transaction_state`` stores it.

    ``batch`` is the last committed batch, and ``rows`` its number of rows. ``day`` is the day of
    the sink's last use, in days since 1970. While ``state`` is not OPEN, the coordinator writes
    markers for the attempts of former runs and of batches up to ``ends_batch``: commit markers for
    the attempts in ``winners``, abort markers for the others."""

    run: str
    former_runs: tuple[str, ...] = ()
    batch: int = NO_BATCH
    rows: int = 0
    state: SinkState = SinkState.OPEN
    ends_batch: int = NO_BATCH
    winners: frozenset[ProducerPair] = frozenset()
    day: int = 0

    def ends(self, run: str, batch: int) -> bool:
        """Return whether the commit or abort in progress includes the attempts of batch ``batch``
        in the query's run ``run``."""
        is_included = run != self.run or batch <= self.ends_batch
        return self.state is not SinkState.OPEN and is_included


@dataclass(frozen=True, slots=True)
class SinkSlot:
    """The state of one producer id in the pool of a partition of ``__transaction_state``: one
    attempt of a Spark task writes with it, or it is free."""

    epoch: int
    sink: str = ""
    run: str = ""
    batch: int = NO_BATCH
    task: int = 0
    attempt: int = 0
    timeout_ms: int = 0
    partitions: frozenset[PartitionKey] = frozenset()

    @property
    def is_free(self) -> bool:
        return self.batch == NO_BATCH

    def freed(self) -> SinkSlot:
        """Return this slot as free, with the next epoch. The ended attempt's markers and the next
        attempt use that epoch."""
        return SinkSlot(self.epoch + 1)


def head_key(sink: str) -> bytes:
    """Return the key of a sink's head (its state) in ``__transaction_state``."""
    return bytes((_HEAD_KEY,)) + sink.encode("utf-8")


def slot_key(producer_id: int) -> bytes:
    """Return the key of a slot (producer id of a task attempt) in ``__transaction_state``."""
    return bytes((_SLOT_KEY,)) + _SLOT_ID.pack(producer_id)


def sink_of(key: bytes) -> str | None:
    """Return the sink's name in a key of ``__transaction_state``; None for a key of another
    kind."""
    return str(key[1:], "utf-8") if key and key[0] == _HEAD_KEY else None


def slot_of(key: bytes) -> int | None:
    """Return the producer id in the key of a slot's record; None for a key of another kind."""
    return int(_SLOT_ID.unpack(key[1:])[0]) if key and key[0] == _SLOT_KEY else None


def encode_head(head: SinkHead) -> bytes:
    """Return a sink's state as bytes, for the value in the log. Equal states have equal bytes."""
    writer = Writer()
    writer.pack(_VERSION_FIELD, _VERSION)
    writer.pack(_HEAD, head.batch, head.rows, head.state, head.ends_batch, head.day)
    writer.string(head.run)
    writer.array(head.former_runs, writer.string)
    writer.array(sorted(head.winners), lambda pair: writer.pack(_PAIR, *pair))
    writer.tag_end()
    return bytes(writer.buffer)


def decode_head(value: bytes) -> SinkHead:
    """Return a sink's state from the value in the log. Raises ProtocolError if the bytes are no
    such state."""
    reader = _reader(value)
    batch, rows, state, ends_batch, day = reader.unpack(_HEAD)
    run = reader.string()
    former_runs = tuple(reader.array(Reader.string))
    winners = frozenset(reader.array(lambda it: ProducerPair(*it.unpack(_PAIR))))
    reader.skip_tags()
    if state not in SinkState.__members__.values():
        raise ProtocolError(
            f"a Spark sink's record has the unknown state {state}; if a newer logbus wrote it, "
            "upgrade the broker"
        )
    return SinkHead(run, former_runs, batch, rows, SinkState(state), ends_batch, winners, day)


def encode_slot(slot: SinkSlot) -> bytes:
    """Return the state of a slot (producer id) as bytes, for the value in the log. Equal states
    have equal bytes."""
    writer = Writer()
    writer.pack(_VERSION_FIELD, _VERSION)
    writer.pack(_SLOT, slot.epoch, slot.batch, slot.task, slot.attempt, slot.timeout_ms)
    writer.string(slot.sink)
    writer.string(slot.run)
    put_partitions(writer, slot.partitions)
    writer.tag_end()
    return bytes(writer.buffer)


def decode_slot(value: bytes) -> SinkSlot:
    """Return the state of a slot (producer id of a task attempt) from the value in the log. Raises
    ProtocolError if the bytes are no slot."""
    reader = _reader(value)
    epoch, batch, task, attempt, timeout_ms = reader.unpack(_SLOT)
    sink, run = reader.string(), reader.string()
    partitions = take_partitions(reader)
    reader.skip_tags()
    return SinkSlot(epoch, sink, run, batch, task, attempt, timeout_ms, partitions)


def _reader(value: bytes) -> Reader:
    reader = Reader(value)
    (version,) = reader.unpack(_VERSION_FIELD)
    if version != _VERSION:
        raise ProtocolError(
            f"a Spark sink's record has version {version}; this broker reads {_VERSION}: "
            "upgrade the broker"
        )
    return reader
