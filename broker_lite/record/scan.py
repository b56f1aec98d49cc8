"""Find the positions of the records in the body of a batch of rows, with numpy instead of a loop.

In Kafka's format, a record begins with its length, a varint, and its attributes, a zero byte. The
search takes the varint before every zero byte of the body as the length of a possible record, a
candidate. It first drops candidates that are not adjacent to another candidate at their start and
at their end. Among the rest it finds the chain: adjacent candidates from the start of the body to
its end, as many as the batch has records. If the body has attributes other than zero, or millions
of zero bytes, a loop finds the records instead, which is slower."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from broker_lite.errors import CorruptMessageError
from broker_lite.record.varints import Bytes, Positions

_CONTENT_BYTES_MIN: Final = 6
"""Minimum bytes of a record after its length: one byte each for attributes, timestamp, offset, key
length, value length and header count."""
_LENGTH_BYTES_MAX: Final = 5
_SIEVES: Final = 3
"""Maximum number of passes of ``_drop_isolated``; each can isolate further candidates."""
_ZEROS_MAX: Final = 4 << 20
"""Maximum number of zero bytes in a body that is searched for candidates (possible records). With
more zero bytes, the candidates' positions could take more memory than the body, so a loop finds the
records instead."""
_PIECE_BYTES: Final = 128 << 10
_LOW_32: Final = (1 << 32) - 1


def find_records(body: Bytes, count: int) -> tuple[Positions, Positions]:
    """Return for each of the ``count`` records in ``body`` the position of its attributes and its
    end. Raises CorruptMessageError unless ``count`` records fill the body exactly."""
    if count * (_CONTENT_BYTES_MIN + 1) > len(body):
        raise CorruptMessageError(f"{count} records do not fit in a body of {len(body)} bytes")
    if len(body) - int(np.count_nonzero(body)) > _ZEROS_MAX:
        return _walk(body, count)
    starts, ends, attributes = _candidates(body)
    if count != len(starts) or starts[0] != 0 or not np.array_equal(starts[1:], ends[:-1]):
        chain = _follow(starts, ends, len(body), count)
        if chain is None:
            return _walk(body, count)
        ends, attributes = ends[chain], attributes[chain]
    return attributes, ends


def _candidates(body: Bytes) -> tuple[Positions, Positions, Positions]:
    """Return the starts, the ends and the attributes' positions of the candidates (possible
    records) that ``_drop_isolated`` leaves, in the order of their starts."""
    zeros = _zeros(body)
    # Read each varint from its last byte to its first. ``raw`` is the value of the bytes that have
    # been read.
    raw: npt.NDArray[Any] = body.take(zeros - 1)
    keys = []
    for width in range(1, _LENGTH_BYTES_MAX + 1):
        long_enough = ((raw & 1) == 0) & (raw >= 2 * _CONTENT_BYTES_MIN)
        attributes = zeros[long_enough]
        ends = attributes + (raw[long_enough] >> 1)
        inside = ends <= len(body)
        keys.append((attributes[inside] - width) << 32 | ends[inside])
        byte = body.take(zeros - (width + 1), mode="clip")
        more = (byte > 127) & (zeros > width)
        zeros = zeros[more]
        if not zeros.size:
            break
        raw = raw[more].astype(np.int64) << 7 | (byte[more] & 0x7F)
    return _drop_isolated(keys, body)


def _zeros(body: Bytes) -> Positions:
    """Return the positions of the zero bytes that may be the attributes of a record: the byte
    before is 1 to 127, like the last byte of every record length (a varint)."""
    positions = [np.empty(0, np.int64)]
    for start in range(1, len(body), _PIECE_BYTES):
        piece = body[start : start + _PIECE_BYTES]
        zero = piece == 0
        # Unsigned bytes wrap: 0 - 1 is 255. So one comparison checks that the byte is 1 to 127.
        zero &= body[start - 1 : start - 1 + len(piece)] - 1 < 127
        positions.append(np.flatnonzero(zero) + start)
    return np.concatenate(positions)


def _drop_isolated(keys: list[Positions], body: Bytes) -> tuple[Positions, Positions, Positions]:
    """Drop candidates (possible records) at whose end no other candidate begins, or at whose start
    none ends. Return the arrays of ``_candidates`` for the rest. ``keys`` has the candidates: each
    integer has the start in its upper 32 bits and the end in its lower ones."""
    size = len(body)
    key = np.concatenate(keys)
    starts, ends = key >> 32, key & _LOW_32
    # ``marks`` has an entry for each position in the body. Each round clears the entries that it
    # set: a new array would take more time than the search of the round.
    marks = np.zeros(size + 1, np.bool_)
    for _ in range(_SIEVES):
        before = len(starts)
        marks[starts] = marks[size] = True
        leads = marks[ends]
        marks[starts] = marks[size] = False
        starts, ends = starts[leads], ends[leads]
        marks[ends] = marks[0] = True
        led_to = marks[starts]
        marks[ends] = marks[0] = False
        starts, ends = starts[led_to], ends[led_to]
        if len(starts) == before:
            break
    key = np.sort(starts << 32 | ends)
    starts, ends = key >> 32, key & _LOW_32
    return starts, ends, _attributes(body, starts)


def _attributes(body: Bytes, starts: Positions) -> Positions:
    """Return for each candidate (a possible record) the position of its attributes, which follow
    the varint of its length."""
    after = starts + 1
    active = np.flatnonzero(body.take(starts) > 127)
    while active.size:
        byte = body.take(after[active], mode="clip")
        after[active] += 1
        active = active[byte > 127]
    return after


def _follow(starts: Positions, ends: Positions, size: int, count: int) -> Positions | None:
    """Return the indexes of the ``count`` candidates (possible records) that follow one another
    without a gap from the start of the body to its end; None if there is no such chain.

    The search doubles the length of the known chain in each step: it computes for each candidate
    its 1st, then its 2nd, 4th, 8th, … successor."""
    total = len(starts)
    if not total or starts[0] != 0:
        return None
    arrived, lost = total, total + 1
    index = np.searchsorted(starts, ends)
    has_successor = starts.take(index, mode="clip") == ends
    jump = np.where(ends == size, arrived, np.where(has_successor, index, lost))
    jump = np.append(jump, (arrived, lost))
    chain = np.zeros(1, np.int64)
    while len(chain) <= count:
        chain = np.concatenate((chain, jump[chain]))
        jump = jump[jump]
    if chain[count] != arrived or chain[count - 1] >= total:
        return None
    return chain[:count]


def _walk(body: Bytes, count: int) -> tuple[Positions, Positions]:
    """Return the result of ``find_records``, from a slower loop that works for any valid body."""
    attributes, ends = np.empty(count, np.int64), np.empty(count, np.int64)
    data, size, position = body.data, len(body), 0
    for index in range(count):
        raw = shift = 0
        while position < size and shift < 7 * _LENGTH_BYTES_MAX:
            byte = data[position]
            raw |= (byte & 0x7F) << shift
            position += 1
            shift += 7
            if byte < 128:
                break
        attributes[index] = position
        position += raw >> 1
        if raw & 1 or raw >> 1 < _CONTENT_BYTES_MIN or position > size:
            raise CorruptMessageError(f"record {index} of a batch declares an invalid length")
        ends[index] = position
    if position != size:
        raise CorruptMessageError(f"{size - position} bytes follow the last record of a batch")
    return attributes, ends
